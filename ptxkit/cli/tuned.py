"""``ptxkit tuned``: the winners that sweeps and ``run --tune`` recorded, and their exchange between machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptxkit.cli._commands import Commands
from ptxkit.cli._output import stdout_set_aside
from ptxkit.errors import UsageError

if TYPE_CHECKING:
    from ptxkit.workload.tuned.exchange import Exchange
    from ptxkit.workload.tuned.record import Record

SCHEMA = "ptxkit.tuned_list/1"
MERGE_SCHEMA = "ptxkit.tuned_merge/1"

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else.")
gpu_option = click.option(
    "--gpu", metavar="NAME", help="Take the winners of this GPU model only, such as 'NVIDIA H200' or h200."
)
kernel_argument = click.argument("kernel", required=False, metavar="[KERNEL]")


@click.group(cls=Commands)
def command() -> None:
    """Show, delete and exchange the measured winners of this user.

    `ptxkit run KERNEL SIZES --tune` and `ptxkit sweep tiles --apply` record which variant and tile were the fastest on a GPU
    model. run, bench and ptxkit.torch take them from then on, as long as their machine code is what was measured.
    """


@command.command("list")
@kernel_argument
@gpu_option
@json_option
def list_winners(kernel: str | None, gpu: str | None, as_json: bool) -> int:
    """List the recorded winners and whether each is used.

    KERNEL: list only those of this kernel.
    """
    from ptxkit.cli._text import print_json, table

    found = _selected(kernel, gpu)
    with stdout_set_aside():
        states = [_state(model, record) for model, record in found]
    if as_json:
        values = [_json(m, r, s) for (m, r), s in zip(found, states, strict=True)]
        print_json({"schema": SCHEMA, "directory": str(_directory()), "records": values})
        return 0
    if not found:
        click.echo(f"{_directory()} has no winners{_of(kernel, gpu)}")
        return 0
    rows = [
        [_name(model, record), model, record.case, record.winner, _time(record), record.day or "-", state or "used"]
        for (model, record), state in zip(found, states, strict=True)
    ]
    click.echo(table(rows, ["", "GPU", "case", "winner", "time", "date", "state"], left=7))
    return 0


@command.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> int:
    """Show a winner with its provenance.

    NAME: from `ptxkit tuned list`, or the first characters of it.
    """
    from ptxkit.cli._text import print_json

    model, record = _named(name)
    with stdout_set_aside():
        state = _state(model, record)
    if as_json:
        print_json({"schema": SCHEMA, "directory": str(_directory()), "records": [_json(model, record, state)]})
        return 0
    by = "run --tune" if record.scope == "variant" else "sweep tiles --apply"
    lines = [
        ("case", record.case),
        ("winner", record.winner),
        ("time", f"{_time(record)}, {record.samples} samples with a cold L2"),
        ("measured", f"{record.at or 'at an unknown time'} by {by}"),
        ("GPU", " ".join(filter(None, [model, record.uuid]))),
        ("versions", f"driver {record.driver or '-'}, NVRTC {record.nvrtc or '-'}, ptxkit {record.ptxkit or '-'}"),
        ("target", record.target or "-"),
        ("applies to", f"sizes of the class {record.size_class}"),
        ("inputs", record.inputs or "-"),
        ("machine code", record.code or "-"),
        ("state", state or "used"),
    ]
    for other in record.others:
        tile = " ".join(f"{k}={v}" for k, v in other.tile.items())
        what = f"{other.variant} {tile}".rstrip()  # there may be no tile
        lines.append(("slower", f"{what}: {_microseconds(other.time_us)}"))
    for label, text in lines:
        click.echo(f"{label:<13} {text}")
    return 0


@command.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--kernel", metavar="KERNEL", help="Delete all winners of this kernel.")
@gpu_option
@click.option(
    "--unused", is_flag=True, help="Delete the winners that are not used, such as those whose machine code has changed."
)
@click.option("--all", "everything", is_flag=True, help="Delete all winners.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted without deleting it.")
@json_option
def drop(
    names: tuple[str, ...], kernel: str | None, gpu: str | None, unused: bool, everything: bool, dry_run: bool, as_json: bool
) -> int:
    """Delete recorded winners.

    NAME: from `ptxkit tuned list`, or the first characters of it. Without NAME, one of --kernel, --gpu, --unused or --all
    selects what is deleted.
    """
    from ptxkit.cli._text import print_json
    from ptxkit.workload.tuned import store

    if names and (kernel or gpu or unused or everything):
        raise UsageError("give names, or --kernel, --gpu, --unused or --all, not both")
    if not (names or kernel or gpu or unused or everything):
        raise UsageError("say what to delete: names from `ptxkit tuned list`, --kernel, --gpu, --unused or --all")
    found = _distinct(_named(name) for name in names) if names else _selected(kernel, gpu)
    if unused:
        with stdout_set_aside():
            found = [(model, record) for model, record in found if _state(model, record)]
    for model in dict.fromkeys(model for model, _ in found):
        keys = {record.key for m, record in found if m == model}
        store.update(model, lambda records, keys=keys: store.without(records, keys), dry=dry_run)  # type: ignore[misc]
    if as_json:
        values = [_json(m, r, "") for m, r in found]
        print_json({"schema": SCHEMA, "directory": str(_directory()), "dropped": values, "dry_run": dry_run})
        return 0
    for model, record in found:
        done = "would delete" if dry_run else "deleted"
        click.echo(f"{done} {_name(model, record)}: {record.winner} of {record.case} on {model}")
    if not found:
        click.echo(f"nothing to delete in {_directory()}")
    return 0


@command.command()
@click.argument("destination", type=click.Path())
@gpu_option
@click.option("--dry-run", is_flag=True, help="Print the decisions without writing.")
@json_option
def push(destination: str, gpu: str | None, dry_run: bool, as_json: bool) -> int:
    """Merge the winners of this user into the files of a directory.

    DESTINATION: a directory that exists, which several machines may share. It gets one file for each GPU model. Of two winners
    of the same case the one with at least 16 samples counts, of these the one measured on a later day, on the same day the one
    with more samples; each decision is printed.
    """
    from ptxkit.workload.tuned import exchange

    return _exchanged(exchange.push(_existing(destination), gpu, dry=dry_run), as_json)


@command.command()
@click.argument("origin", type=click.Path())
@gpu_option
@click.option("--dry-run", is_flag=True, help="Print the decisions without writing.")
@json_option
def pull(origin: str, gpu: str | None, dry_run: bool, as_json: bool) -> int:
    """Merge the winners of a directory into those of this user.

    ORIGIN: the directory. The rules are those of push.
    """
    from ptxkit.workload.tuned import exchange

    return _exchanged(exchange.pull(_existing(origin), gpu, dry=dry_run), as_json)


def _exchanged(done: Exchange, as_json: bool) -> int:
    from ptxkit.cli._text import number_of, print_json

    if as_json:
        print_json({"schema": MERGE_SCHEMA, **done.to_json()})
        return 0
    for part in done.parts:
        for decision in part.decisions:
            click.echo(f"{part.gpu}: {decision}")
        for reason in part.left_out:
            click.echo(f"{part.gpu}: leaves out {reason}")
        taken = sum(d.taken for d in part.decisions)
        would = "would take" if done.dry_run else "takes"
        click.echo(f"{part.file}: {would} {taken} of {number_of(part.offered, 'winner')} of {part.gpu}")
    if not done.parts:
        click.echo(f"{done.origin} has no winners{_of(None, done.gpu)}")
    return 0


def _existing(text: str) -> Path:
    if not text:
        raise UsageError("the name of the directory is empty")
    path = Path(text)
    if not path.exists():
        raise UsageError(f"there is no directory {text}; make it first")
    if not path.is_dir():
        raise UsageError(f"{text} is no directory; winners lie in a file for each GPU model of a directory")
    return path


def _directory() -> Path:
    from ptxkit.workload.tuned import store

    return store.directory()


def _selected(kernel: str | None, gpu: str | None) -> list[tuple[str, Record]]:
    """The winners of a kernel and a GPU model, of all where they are not given, with their GPU models.

    Raises:
        UsageError: no recorded winner has such a kernel or GPU model.
    """
    from ptxkit.cli._text import nearest
    from ptxkit.workload.tuned import exchange, store

    models = exchange.models(store.gpus(wanted=gpu), gpu, store.directory())
    found = [(model, record) for model in models for record in store.read(store.path_for(model))]
    if kernel is not None and not (chosen := [pair for pair in found if pair[1].kernel == kernel]):
        known = sorted({record.kernel for _, record in found})
        raise UsageError(f"no winner of a kernel {kernel!r} is recorded{nearest(kernel, known)}")
    return chosen if kernel is not None else found


def _named(name: str) -> tuple[str, Record]:
    """The winner with a name that begins so.

    Raises:
        UsageError: none or several have one.
    """
    found = [pair for pair in _selected(None, None) if name and _name(*pair).startswith(name)]
    if not found:
        raise UsageError(f"no winner is called {name!r}; ptxkit tuned list shows their names")
    if len(found) > 1:
        several = ", ".join(_name(*pair) for pair in found[:3])
        raise UsageError(f"{len(found)} winners have names that begin with {name!r}: {several}; give more characters")
    return found[0]


def _distinct(found: Iterable[tuple[str, Record]]) -> list[tuple[str, Record]]:
    """Each winner once, in the order given."""
    return list({(model, record.key): (model, record) for model, record in found}.values())


def _name(model: str, record: Record) -> str:
    """A short name that follows from the GPU model and what the record decides."""
    import hashlib

    return hashlib.sha256(f"{model} {record.key}".encode()).hexdigest()[:8]


def _state(model: str, record: Record) -> str:
    """Why a winner is not used; "" if it is."""
    from dataclasses import replace
    from functools import partial

    from ptxkit.errors import PtxkitError
    from ptxkit.targets import Target
    from ptxkit.targets.gpus import facts_of, gpu_named, reference_facts
    from ptxkit.workload import registry
    from ptxkit.workload.resolve import as_recorded
    from ptxkit.workload.tuned import lookup

    if record.incomplete:
        return record.incomplete
    try:
        target = Target.parse(record.target)
        facts = reference_facts(target)
        if (gpu := gpu_named(model)) is not None:
            facts = replace(facts_of(gpu), target=target)
        workload = registry.find(record.kernel)().on(facts)
        return lookup.objection(record, workload, partial(as_recorded, target))
    except PtxkitError as error:
        return str(error).splitlines()[0]


def _json(model: str, record: Record, state: str) -> dict[str, Any]:
    return {"name": _name(model, record), "gpu": model, "unused_because": state or None, **record.to_json()}


def _time(record: Record) -> str:
    return "-" if record.time_us is None else _microseconds(record.time_us, record.spread_us)


def _microseconds(value: float, spread: float | None = None) -> str:
    from ptxkit.quantities import time_text

    return time_text(value) + (f" ± {100 * spread / value:.1f}%" if spread is not None else "")


def _of(kernel: str | None, gpu: str | None) -> str:
    parts: Sequence[str | None] = (f"kernel {kernel}" if kernel else None, f"GPU {gpu}" if gpu else None)
    words = " and ".join(filter(None, parts))
    return f" of {words}" if words else ""
