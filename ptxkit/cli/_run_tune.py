"""``ptxkit run --tune``: measures the first candidates of the model and keeps the fastest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ptxkit.cli._kernel import find_kernel
from ptxkit.cli._options import emulator_settings
from ptxkit.cli._output import stdout_set_aside
from ptxkit.cli._run_request import Request, end_stuck, split_numbers

if TYPE_CHECKING:
    from pathlib import Path

    from ptxkit.sweep.tune import Tried, Tuning
    from ptxkit.workload.variant import Variant
    from ptxkit.workload.workload import Workload

SCHEMA = "ptxkit.tune/1"
NOT_RECORDED = "Nothing is recorded: costs are modelled from exact counts, because the emulator has no times."


def run_tuned(kernel: str, numbers: Sequence[str], how: Request, count: int) -> int:
    """Measure the candidates, print them, record the fastest and return the exit code.

    Args:
        numbers: sizes and ITERATIONS. count: how many candidates.

    Raises:
        UsageError, FileAccessError: the winner cannot be recorded, which is known before anything is measured.
    """
    from ptxkit.cli._progress import progress
    from ptxkit.cli._text import to_stderr
    from ptxkit.sweep.tune import exit_code
    from ptxkit.workload.tuned import store

    with stdout_set_aside():
        tuning = _tuning(kernel, numbers, how, count)
    if how.dry_run:
        _show(tuning, None, None, how.as_json)
        return 0
    if how.device.times:
        store.check_recordable(how.device.name)
    with emulator_settings(how.device, how.settings), stdout_set_aside(), progress() as say:
        tried = tuning.run(say)
        winner = tuning.record(tried)
    _show(tuning, tried, store.path_for(how.device.name) if winner is not None else None, how.as_json)
    for one in tried:
        if one.error:
            what = f"{one.candidate.name} {one.candidate.resolved.tile}".rstrip()  # there may be no tile
            to_stderr(f"{what}: {one.error.splitlines()[0]}", fg="yellow")
    if winner is not None:
        store.record(how.device.name, winner)
    code = exit_code(tried)
    if code:
        to_stderr(f"error: {tuning.workload.name}: no candidate is verified", fg="red")
    return code


def _tuning(kernel: str, numbers: Sequence[str], how: Request, count: int) -> Tuning:
    from ptxkit.runtime.device import is_emulating
    from ptxkit.sweep.tune import Tuning
    from ptxkit.workload.choice import ranked

    found = find_kernel(kernel)
    sizes, iterations = split_numbers(found, numbers)
    for name in how.variants:
        found.variant(name)
    meant = [v for name, v in found.variants().items() if not how.variants or name in how.variants]
    for name, value in how.tile.items():
        _check_offered(found, [variant for variant in meant if name in variant.tile] or meant, name, value)
    workload = found.make(sizes, how.options, small=is_emulating(how.device))
    workload = workload.on(how.device.facts_for(how.target))
    candidates = ranked(workload, count, how.device, how.target, how.tile, how.variants)
    stuck = None if is_emulating(how.device) else partial(end_stuck, how.device.name)
    return Tuning(kernel, workload, how.device, candidates, how.seed, iterations, how.timeout_s, stuck)


def _check_offered(kernel: type[Workload], variants: Sequence[Variant], name: str, value: str) -> None:
    """Raise UsageError unless one of the variants offers a value of a tile parameter."""
    from ptxkit.errors import UsageError

    for variant in variants:
        try:
            variant.held(kernel, {name: value})
        except UsageError as error:
            refusal = error
        else:
            return
    raise refusal


def _show(tuning: Tuning, tried: Sequence[Tried] | None, path: Path | None, as_json: bool) -> None:
    from ptxkit.cli._text import print_json

    with stdout_set_aside():
        value = _value(tuning, tried, path)
    if as_json:
        print_json(value)
    else:
        click.echo(_text(tuning, tried, path, value))


def _value(tuning: Tuning, tried: Sequence[Tried] | None, path: Path | None) -> dict[str, Any]:
    from ptxkit.sweep.tune import Tried

    workload, device = tuning.workload, tuning.device
    rows = [Tried(candidate) for candidate in tuning.candidates] if tried is None else list(tried)
    best = rows[0] if rows and math.isfinite(rows[0].value) else None
    return {
        "schema": SCHEMA,
        "kernel": workload.name,
        "sizes": workload.sizes,
        "options": workload.options,
        "device": {"kind": device.kind, "name": device.name, "target": tuning.candidates[0].resolved.target.name},
        "unit": "us" if device.times else "modelled cost",
        "candidates": [row.to_json() for row in rows],
        "winner": None if best is None else {"variant": best.candidate.name, "tile": dict(best.candidate.resolved.tile)},
        "recorded": None if path is None else str(path),
    }


def _text(tuning: Tuning, tried: Sequence[Tried] | None, path: Path | None, value: Mapping[str, Any]) -> str:
    from ptxkit.cli._text import styled, table

    workload, device = tuning.workload, tuning.device
    words = " ".join(f"{name}={size}" for name, size in workload.sizes.items())
    head = f"{styled(workload.name, bold=True)}  {words}  on {device.name} ({value['device']['target']})\n"
    measured = "time" if device.times else "modelled cost"
    headers = ["", "variant", "tile", *([] if tried is None else [measured, ""]), "predicted"]
    best = next((c for c in map(_number, value["candidates"]) if c is not None), None)
    rows = [
        [str(place), c["variant"], _tile(c["tile"]) or "-", *([] if tried is None else _measured(c, best)), _predicted(c)]
        for place, c in enumerate(value["candidates"], 1)
    ]
    lines = [head, table(rows, headers, left=3), ""]
    if tried is None:
        lines.append("These would be measured.")
    elif path is not None:
        lines.append(f"Recorded in {path}: run, bench and ptxkit.torch take the first at these sizes and near ones.")
    elif not device.times:
        lines.append(NOT_RECORDED)
    return "\n".join(lines)


def _number(candidate: Mapping[str, Any]) -> float | None:
    found = candidate["time_us"] if candidate["time_us"] is not None else candidate["cost"]
    return None if candidate["error"] else found


def _measured(candidate: Mapping[str, Any], best: float | None) -> list[str]:
    from ptxkit.quantities import time_text

    value = _number(candidate)
    if value is None or best is None:
        return ["failed", "-"]
    shown = f"{value:.4g}" if candidate["time_us"] is None else time_text(value)
    if candidate["spread_us"] is not None:
        shown += f" ± {100 * candidate['spread_us'] / value:.1f}%"
    return [shown, f"{value / best:.3f}x"]


def _predicted(candidate: Mapping[str, Any]) -> str:
    return f"{candidate['predicted_us']:.3g} us"


def _tile(tile: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in tile.items())
