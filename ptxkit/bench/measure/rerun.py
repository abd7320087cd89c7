"""Runs the cases of a result file again, with the same kernels, sizes, tiles, peers and seed, and reports what has changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ptxkit.bench.cases import Plan, kernel_of, made_again
from ptxkit.bench.measure.benchmark import Benchmark
from ptxkit.bench.measure.method import Method
from ptxkit.bench.measure.new_process import in_new_process
from ptxkit.bench.peers import names as peer_names
from ptxkit.bench.peers import peers as usable_peers
from ptxkit.bench.results.json_values import read_as
from ptxkit.bench.results.results import COUNTS, CaseResult, Counted, Results
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.runtime import registry
from ptxkit.targets import Target, lowest_target

if TYPE_CHECKING:
    from ptxkit.bench.peers.base import Peer


def again(
    before: Results,
    device: Any,
    budget_s: float | None = None,
    peers: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda what: None,
    done: Callable[[Results], None] = lambda results: None,
    tell: Callable[[str], None] = lambda line: None,
) -> Results:
    """Measure the cases of earlier results again, with the same method and the same peers.

    Args:
        before: the earlier results.
        device: the device to run on.
        budget_s: time budget per case in seconds; None for that of the earlier results.
        peers: only these of the peers in the earlier results.
        done: called with the results so far after each case. tell: see :class:`~ptxkit.bench.measure.benchmark.Benchmark`.

    Returns:
        The new results.

    Raises:
        UnavailableError: the results are of a GPU, and this machine has none.
        UsageError: a kernel of the results does not exist, or they have no peer of that name.
    """
    if before.device_kind != device.kind:
        timed = registry.measures_time(before.device_kind)
        where = "a GPU" if timed else "the emulator (CUDA_VISIBLE_DEVICES= hides a GPU)"
        raise UnavailableError(f"these results are of {before.device}; they can be run again on {where} only")
    found, absent = _here(peers_of(before, peers))
    run = Benchmark(
        device,
        found,
        absent,
        method_of(before, budget_s),
        seed=before.cases[0].seed if before.cases else 0,
        counts=False,
        command=("ptxkit", "bench", "rerun"),
        target=_target(before, device),
        tell=tell,
        when_lost=in_new_process,
    )
    return run.run([plan_of(case) for case in before.cases], say, done)


def _target(before: Results, device: Any) -> Target | None:
    """The target that bench run --arch named: the one of all variants, where the device would take another one by itself."""
    used = {row.target for case in before.cases for row in case.rows if row.target}
    if used != {before.target}:
        return None
    target = Target.parse(used.pop())
    own = device.target or lowest_target(())
    return target if target != own and (device.target is None or own.accepts(target)) else None


def peers_of(before: Results, only: Sequence[str] | None = None) -> list[str]:
    """The peers with times in the results, in their order; with ``only``, these of them.

    Raises:
        UsageError: one of ``only`` has no time in the results.
    """
    rows = (row for case in before.cases for row in case.rows)
    known = list(dict.fromkeys(row.name for row in rows if row.kind == "peer" and row.cold))
    if strange := [name for name in only or () if name not in known]:
        raise UsageError(f"these results have no peer {strange[0]!r}; they have {', '.join(known) or 'none'}")
    return known if only is None else [name for name in known if name in only]


def _here(wanted: Sequence[str]) -> tuple[list[Peer], dict[str, str]]:
    """The peers that can be run, and for the others the reason: a package or a plugin that is not installed."""
    known = peer_names()
    found, absent = usable_peers([name for name in wanted if name in known])
    gone = [name for name in wanted if name not in known]
    reason = "no such peer; it came from a plugin, or from another version"
    return found, dict.fromkeys(gone, reason) | dict(absent)


def method_of(before: Results, budget_s: float | None) -> Method:
    """The method of the results, as far as this version has its parameters.

    Raises:
        UsageError: one is of the wrong type.
    """
    method: Method = read_as(Method, before.method, "method")
    return method if budget_s is None else dataclasses.replace(method, budget_s=budget_s, iterations=None)


def plan_of(case: CaseResult) -> Plan:
    """The measured case: variants with their tiles.

    Raises:
        UsageError: the kernel, a variant, a size or an option does not exist any more.
    """
    kernel = kernel_of(case)
    workload = made_again(kernel, case.sizes, case.options)
    ran = [row for row in case.rows if row.kind == "variant" and (row.cold or row.counted)]
    names = tuple(kernel.variant(row.name).name for row in ran)
    peers = tuple(row.name for row in case.rows if row.kind == "peer" and row.cold)
    return Plan(workload, names, {row.name: dict(row.tile) for row in ran}, peers, case.chosen)


def changes(before: Results, after: Results, peers: Sequence[str] = ()) -> Iterator[str]:
    """Differences other than times, as sentences; ``peers`` are the peers to run again."""
    if before.partial:
        yield "the earlier run was stopped, and has not all of its cases"
    for name, reason in after.absent.items():
        yield f"{name}: not run again, {reason}"
    for name in dict.fromkeys((*before.environment, *after.environment)):
        a, b = before.environment.get(name), after.environment.get(name)
        if a != b and b is not None:
            yield f"{name}: {a or 'not installed'} before, {b} now"
    for old in before.cases:
        new = after.case(old.key)
        if new is None:
            continue
        if old.inputs_sha256 != new.inputs_sha256:
            yield f"{old.key}: other inputs from the same seed"
        for row in old.rows:
            now = new.row(row.name)
            if now is None:
                if row.name in peers and row.cold and row.name not in after.absent:
                    yield f"{old.key} {row.name}: not run again, it does not support this case any more"
                continue
            if row.cold and not now.cold:
                why = now.skipped or now.error or now.worst or "every sample was discarded for throttling"
                yield f"{old.key} {row.name}: no time, {why}"
            if row.source_sha256 != now.source_sha256:
                same = bool(row.code_sha256) and row.code_sha256 == now.code_sha256
                yield f"{old.key} {row.name}: its PTX has changed{', its machine code has not' if same else ''}"
            elif row.cubin_sha256 != now.cubin_sha256:
                yield f"{old.key} {row.name}: the same PTX gives another cubin"
            if row.counted and now.counted and not registry.measures_time(after.device_kind):
                yield f"{old.key} {row.name}: {_counts(row.counted, now.counted)}"


def _counts(then: Counted, now: Counted) -> str:
    """``"same counts"``, or the counts that differ."""
    if then == now:
        return "same counts"
    pairs = ((name, getattr(then, name), getattr(now, name)) for name in (*COUNTS, "flops"))
    changed = [f"{name.replace('_', ' ')} {a:,} before, {b:,} now" for name, a, b in pairs if a != b]
    return "other counts: " + "; ".join(changed or ["of other sizes"])
