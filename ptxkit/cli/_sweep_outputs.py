"""Where the results of ``ptxkit sweep`` go: checked before the sweep, written after it, and the text of its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptxkit.cli._kernel import peer_list, refuse_absent
from ptxkit.cli._output import stdout_set_aside
from ptxkit.errors import PtxkitError, UsageError
from ptxkit.files import refuse_same

if TYPE_CHECKING:
    from ptxkit.bench.peers import Peer
    from ptxkit.runtime.device import Device
    from ptxkit.sweep.problem import Problem
    from ptxkit.sweep.report import Outcome


@dataclass(frozen=True)
class Outputs:
    """The outputs of a sweep; every path was checked to be writable.

    Attributes:
        json_file: for the JSON; ``"-"`` for stdout instead of the table. t4_file: for the T4 format.
        heatmap: the picture. axes: its two tile parameters; None for those that matter most.
        apply: record the best tile for this GPU.
        top: rows of the table.
    """

    json_file: str | None
    t4_file: str | None
    heatmap: str | None
    axes: tuple[str, str] | None
    apply: bool
    top: int

    def write(self, outcome: Outcome) -> PtxkitError | None:
        """Write every requested file. An error does not prevent the other files; the first one is returned."""
        from ptxkit.files import write_json
        from ptxkit.sweep import heatmap, report

        writers: list[Callable[[], object]] = []
        json_file, t4_file, picture = self.json_file, self.t4_file, self.heatmap
        if json_file not in (None, "-"):
            writers.append(lambda: write_json(json_file, report.to_json(outcome)))
        if t4_file is not None:
            writers.append(lambda: write_json(t4_file, report.to_t4(outcome.entries, outcome.timed)))
        if picture is not None and outcome.best is not None:
            axes = outcome.problem.axes
            xy = self.axes or heatmap.most_telling(outcome.entries, axes)
            title = outcome.problem.title
            writers.append(lambda: heatmap.draw(outcome.entries, picture, axes, xy, title, outcome.timed))
        with stdout_set_aside():
            failures = [error for writer in writers if (error := _failure(writer)) is not None]
        return failures[0] if failures else None

    def show(self, outcome: Outcome, journal: Path) -> None:
        """Print the table, or the JSON, and on stderr what failed."""
        from ptxkit.cli._text import print_json, table, to_stderr
        from ptxkit.sweep import report

        with stdout_set_aside():  # the description's work() may print
            headers, rows = report.rows(outcome, self.top)
            head, notes, document = _head(outcome), list(_notes(outcome, journal)), report.to_json(outcome)
        if self.json_file == "-":
            print_json(document)
        else:
            click.echo(head + "\n")
            if rows:
                click.echo(table(rows, headers) + "\n")
            for line in notes:
                click.echo(line)
        for line in report.failures(outcome.entries):
            to_stderr(line, fg="yellow")

    def record(self, outcome: Outcome) -> None:
        """Record the best tile, if that was requested."""
        from ptxkit.cli._text import to_stderr
        from ptxkit.sweep.winners import of_sweep
        from ptxkit.workload.tuned import store

        if not self.apply or outcome.best is None:
            return
        with stdout_set_aside():
            path = store.record(outcome.device, of_sweep(outcome))
        to_stderr(f"recorded in {path}: run and bench take this tile on {outcome.device} at these sizes")


def checked(given: Mapping[str, Any], problem: Problem, device: Device, journal: Path) -> Outputs:
    """The outputs that the options request.

    Args:
        given: option -> value, as click names them.
        problem: what will be swept. device: where.
        journal: which none of them may overwrite.

    Raises:
        UsageError, FileAccessError: a path that cannot be written, two outputs with one path, axes that do not exist, or
            ``--apply`` without a GPU.
        UnavailableError: matplotlib is needed and not installed.
    """
    from ptxkit.files import check_writable
    from ptxkit.workload.tuned import store

    if given["apply_it"] and not device.times:
        raise UsageError("--apply needs a GPU: a modelled cost is no reason to change a default")
    named = {"--json": given["json_file"], "--t4": given["t4_file"], "--heatmap": given["heatmap"]}
    files = {option: file for option, file in named.items() if file is not None and (option, file) != ("--json", "-")}
    refuse_same({"--journal": str(journal), **files})
    for option, file in files.items():
        if not file:
            raise UsageError(f"{option} takes the name of a file")
        if option != "--heatmap":
            check_writable(file)
    axes = _checked_heatmap(given["heatmap"], given["axes"], problem)
    if given["apply_it"]:
        store.check_recordable(device.name)
    return Outputs(given["json_file"], given["t4_file"], given["heatmap"], axes, given["apply_it"], given["top"])


def checked_peers(names: str, problem: Problem, device: Device) -> list[Peer]:
    """The peers to compare the best tile with.

    Raises:
        UsageError: there is no such peer, it does not offer this kernel, or nothing is timed here.
        UnavailableError: its package is not installed.
    """
    from ptxkit.bench.peers import every, peers

    wanted = peer_list(names)
    if not wanted:
        return []
    with stdout_set_aside():
        found, absent = peers(wanted)
    if not device.times:
        raise UsageError("--peers needs a GPU: the emulator has no times to compare with")
    refuse_absent(wanted, absent)
    workload = problem.workload
    for peer in found:
        if not peer.offers(workload):
            offering = ", ".join(other.name for other in every() if other.offers(workload)) or "no peer does"
            raise UsageError(
                f"--peers {peer.name}: {peer.name} does not offer {workload.name} with these options; these do: {offering}"
            )
    return found


def _checked_heatmap(file: str | None, axes: str | None, problem: Problem) -> tuple[str, str] | None:
    from ptxkit.figures import check_drawable
    from ptxkit.sweep import heatmap

    if file is None:
        if axes is not None:
            raise UsageError("--axes is for the heat map; give --heatmap FILE, too")
        return None
    check_drawable(file, heatmap.WHAT)
    return heatmap.check_axes(axes, problem.axes)


def _failure(writer: Callable[[], object]) -> PtxkitError | None:
    try:
        writer()
    except PtxkitError as error:
        return error
    return None


def _head(outcome: Outcome) -> str:
    space = outcome.space
    refused = f", {space.size - len(space.tiles)} refused by constraints" if space.size > len(space.tiles) else ""
    if not space.complete:
        refused = f" that were taken from {space.size} combinations"
    return (
        f"{outcome.problem.title}  on {outcome.device} ({outcome.problem.target})\n"
        f"{len(outcome.entries)} of {len(space.tiles)} configurations{refused}; {outcome.seconds:.1f} s, "
        f"{len(outcome.entries) / outcome.seconds:.1f} a second; {outcome.reused} known already"
    )


def _spent(outcome: Outcome) -> str:
    parts, count = outcome.spent, max(1, outcome.measured)
    wall = ", ".join(
        f"{name} {parts[name]:.1f} s" for name in ("start", "explored", "leaders", "search") if name in parts
    )
    names = ("prepare", "verify", "time")
    each = ", ".join(f"{name} {1e3 * parts[name] / count:.3g} ms" for name in names)
    compiling = 1e3 * parts["compile"] / max(1, len(outcome.entries))
    return f"Time: {wall}. A configuration: compile {compiling:.3g} ms of a process; on the GPU {each}."


def _notes(outcome: Outcome, journal: Path) -> list[str]:
    notes = ["Stopped early: these are the results so far."] if outcome.partial else []
    if outcome.timed:
        repeated = (
            "the best were measured once more, interleaved" if "leaders" in outcome.spent else "each measured once"
        )
        notes.append(f"Cold L2; {repeated}. mix: of all SASS instructions.")
    else:
        notes.append(
            "Modelled from exact counts, not measured: the emulator has no times. Only the order may mean something."
        )
    if outcome.agreement is not None:
        notes.append(outcome.agreement.text)
    if outcome.best_peer:
        notes.append(f"Best peer: {outcome.best_peer[0]}, {outcome.best_peer[1]:.4g} us.")
    if outcome.timed:
        notes.append(_spent(outcome))
    notes.append(f"Journal: {journal}")
    return notes
