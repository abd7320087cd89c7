"""Running a result again: the same kernels, sizes, tiles, peers and seed, and what is not the same any more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ptxkit.bench.cases import Plan, kernel_of
from ptxkit.bench.measure.method import Method
from ptxkit.bench.measure.run import BenchRun
from ptxkit.bench.peers import names as peer_names
from ptxkit.bench.peers import peers as usable_peers
from ptxkit.bench.report.tables import COUNTS
from ptxkit.bench.results.json_values import read_as
from ptxkit.bench.results.results import Counted, Results, Target
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.runtime import registry

if TYPE_CHECKING:
    from ptxkit.bench.peers.base import Peer


def again(
    receipt: Results,
    device: Any,
    budget_s: float | None = None,
    peers: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda what: None,
    done: Callable[[Results], None] = lambda results: None,
) -> Results:
    """Run what a receipt says, by its method and with its peers, in the same turns.

    Args:
        receipt: earlier results.
        device: where to run.
        budget_s: seconds of measuring for each target, in place of the receipt's.
        peers: of those in the receipt, only these.
        done: is given the results so far after each target.

    Returns:
        The new results.

    Raises:
        UnavailableError: the receipt is of a GPU and there is none.
        UsageError: a kernel of the receipt is not here, or it has no peer of that name.
    """
    if receipt.device_kind != device.kind:
        where = "a GPU" if registry.measures_time(receipt.device_kind) else "the emulator (CUDA_VISIBLE_DEVICES= hides a GPU)"
        raise UnavailableError(f"this receipt is of {receipt.device}; it can be run again on {where} only")
    found, absent = _here(peers_of(receipt, peers))
    run = BenchRun(
        device,
        found,
        absent,
        method_of(receipt, budget_s),
        seed=receipt.targets[0].seed if receipt.targets else 0,
        counts=False,
        command=("ptxkit", "bench", "verify"),
    )
    return run.run([plan_of(target) for target in receipt.targets], say, done)


def peers_of(receipt: Results, only: Sequence[str] | None = None) -> list[str]:
    """The peers that a receipt has times of, in its order; ``only`` some of them.

    Raises:
        UsageError: it has no time of one of ``only``.
    """
    rows = (row for target in receipt.targets for row in target.rows)
    known = list(dict.fromkeys(row.name for row in rows if row.kind == "peer" and row.cold))
    if strange := [name for name in only or () if name not in known]:
        raise UsageError(f"this receipt has no peer {strange[0]!r}; it has {', '.join(known) or 'none'}")
    return known if only is None else [name for name in known if name in only]


def _here(wanted: Sequence[str]) -> tuple[list[Peer], dict[str, str]]:
    """These peers, and why the others cannot be run: no package, or a plugin that is not here."""
    known = peer_names()
    found, absent = usable_peers([name for name in wanted if name in known])
    gone = [name for name in wanted if name not in known]
    reason = "there is no such peer; it came from a plugin, or from another version"
    return found, dict.fromkeys(gone, reason) | dict(absent)


def method_of(receipt: Results, budget_s: float | None) -> Method:
    """How the receipt was measured, as far as this version knows its parameters.

    Raises:
        UsageError: one is of the wrong type.
    """
    method: Method = read_as(Method, receipt.method, "method")
    return method if budget_s is None else dataclasses.replace(method, budget_s=budget_s, iterations=None)


def plan_of(target: Target) -> Plan:
    """What was measured, variant by variant with its tile.

    Raises:
        UsageError: there is no such kernel, variant, size or option any more.
    """
    kernel = kernel_of(target)
    known = {*kernel.size_names(), *kernel.option_types()}
    given = {**target.sizes, **target.options}
    if gone := [name for name in given if name not in known]:
        raise UsageError(f"{kernel.name} has no size or option {gone[0]} any more; the receipt is of another version")
    ran = [row for row in target.rows if row.kind == "variant" and (row.cold or row.counted)]
    names = tuple(kernel.variant(row.name).name for row in ran)
    peers = tuple(row.name for row in target.rows if row.kind == "peer" and row.cold)
    return Plan(kernel(**given), names, {row.name: dict(row.tile) for row in ran}, peers)


def changes(before: Results, after: Results, peers: Sequence[str] = ()) -> Iterator[str]:
    """What is different, as sentences, other than times; ``peers`` were to be run again."""
    if before.partial:
        yield "the receipt is of a run that was stopped, and has not all of its targets"
    for name, reason in after.absent.items():
        yield f"{name}: not run again, {reason}"
    for name in dict.fromkeys((*before.environment, *after.environment)):
        a, b = before.environment.get(name), after.environment.get(name)
        if a != b and b is not None:
            yield f"{name}: {a or 'not there'} then, {b} now"
    for old in before.targets:
        new = after.target(old.key)
        if new is None:
            continue
        if old.inputs_sha256 != new.inputs_sha256:
            yield f"{old.key}: other inputs from the same seed"
        for row in old.rows:
            now = new.row(row.name)
            if now is None:
                if row.name in peers and row.cold and row.name not in after.absent:
                    yield f"{old.key} {row.name}: not run again, it does not offer this any more"
                continue
            if row.cold and not now.cold:
                why = now.skipped or now.error or now.worst or "no sample was taken without throttling"
                yield f"{old.key} {row.name}: no time, {why}"
            if row.source_sha256 != now.source_sha256:
                same = bool(row.code_sha256) and row.code_sha256 == now.code_sha256
                yield f"{old.key} {row.name}: its PTX has changed{', its machine code has not' if same else ''}"
            elif row.cubin_sha256 != now.cubin_sha256:
                yield f"{old.key} {row.name}: the same PTX gives another cubin"
            if row.counted and now.counted and not registry.measures_time(after.device_kind):
                yield f"{old.key} {row.name}: {_counts(row.counted, now.counted)}"


def _counts(then: Counted, now: Counted) -> str:
    """``"same counts"``, or which are others."""
    if then == now:
        return "same counts"
    pairs = ((name, getattr(then, name), getattr(now, name)) for name in (*COUNTS, "flops"))
    changed = [f"{name.replace('_', ' ')} {a:,} then, {b:,} now" for name, a, b in pairs if a != b]
    return "other counts: " + "; ".join(changed or ["of other sizes"])
