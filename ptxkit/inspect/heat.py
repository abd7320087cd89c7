"""Heat maps of code: the emulator's counts for each line of a kernel's PTX and, from them, for each line of its source.

The emulator assigns its counts to the source line that a ``.loc`` names, or to the PTX line where there is no ``.loc``.
Therefore the PTX runs here with its ``.loc`` lines blanked, and the counts of a source line are the sum over the PTX lines
generated from it. SASS is not executed: the page shows the count of a PTX line once, at the first instruction from that line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ptxkit.errors import PtxkitError
from ptxkit.inspect.subject import Subject
from ptxkit.isa.lexer import unescape
from ptxkit.runtime.emulated import ptx_name

if TYPE_CHECKING:
    from ptxkit.emulator.counters.counters import Counters, LineCounters
    from ptxkit.workload.build import Build
    from ptxkit.workload.case import Case

_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'\s*\.file\s+(\d+)\s+("(?:[^"\\]|\\.)*")')

SourceCounts = dict[str, dict[str, dict[int, int]]]
"""Metric -> file -> line -> count."""


def heat_of(subject: Subject) -> tuple[dict[str, Any] | None, str]:
    """The emulator's counts for each line, or None and the reason why there are none.

    Returns:
        ``{"sizes": "... rows=128 cols=4096", "metrics": {"instructions": {file: {line: count}}, ...}, "ptx": {"instructions":
        {line: count}, ...}}`` and ""; metrics that are zero everywhere are left out, and so are the counts of PTX lines where
        the emulator ran other PTX than is shown, as it does when small sizes need another tile.

    Raises:
        PtxkitError: the launch that the subject was given fails.
    """
    from ptxkit.runtime.device import emulating_device
    from ptxkit.workload import execute

    try:
        if subject.launched is not None:
            run, sizes = subject.launched, subject.launched.workload.size_text()
            case = execute.Case(run.workload, emulating_device(), target=run.target)
            if run.workload.outputs():
                case.reset()
        elif subject.build is not None:
            case, run, sizes = _at_small_sizes(subject.build)
        elif subject.function.ptx:
            return None, (
                "no heat map: a source file has no launch of its own; give one as to `ptxkit run`: --arg NAME=VALUE for each "
                "parameter, --grid and --block"
            )
        else:
            return None, "no heat map: the emulator executes PTX, which this file does not contain"
        ran = _by_ptx_line(run)
        lines = case.device.measure(execute.bound(case, ran).launch, samples=1).lines
    except PtxkitError as error:
        if subject.launched is not None:  # the launch is the user's
            _fail_in_the_source(subject.launched)
            raise
        return None, f"no heat map: the emulator cannot run it: {str(error).splitlines()[0]}"
    texts = {
        ptx_name(step.image.source_name): original.image.ptx
        for step, original in zip(ran.steps, run.steps, strict=True)
    }
    shown = [name for name, text in texts.items() if text == subject.function.ptx]
    heat: dict[str, Any] = {
        "sizes": f"counted in the emulator, {sizes}",
        "metrics": source_counts(lines, texts),
        "ptx": ptx_counts([line for line in lines if line.file in shown]),
    }
    return heat, ""


def _fail_in_the_source(build: Build) -> None:
    """Execute a launch that fails with the PTX as it is, so that the error names the line of the source."""
    from ptxkit.runtime.device import emulating_device
    from ptxkit.workload import execute

    case = execute.Case(build.workload, emulating_device(), target=build.target)
    execute.bound(case, build).launch()


def _at_small_sizes(build: Build) -> tuple[Case, Build, str]:
    """A variant at its emulator sizes: the case, what is launched, and the sizes as text."""
    from ptxkit.runtime.device import emulating_device
    from ptxkit.workload import execute

    small = type(build.workload).make((), build.workload.options, small=True)
    case = execute.Case(small, emulating_device(), target=build.target)
    try:
        prepared = execute.prepare(case, build.variant, build.target, dict(build.tile))
    except PtxkitError:  # a tile for large sizes may not suit small ones
        prepared = execute.prepare(case, build.variant, build.target)
    sizes = " ".join(f"{k}={v}" for k, v in small.sizes.items())
    if prepared.build.tile != build.tile:
        sizes += f", tile {prepared.build.tile}"
    return case, prepared.build, sizes


def _by_ptx_line(build: Build) -> Build:
    """The same launches with PTX without ``.loc``; each distinct PTX text gets a name of its own."""
    images = list({step.image.ptx: step.image for step in build.steps})
    steps = []
    for step in build.steps:
        name = f"{images.index(step.image.ptx)}.ptx"
        image = replace(step.image, ptx=without_locs(step.image.ptx), key="", source_name=name)
        steps.append(replace(step, image=image))
    return replace(build, steps=tuple(steps))


def without_locs(ptx: str) -> str:
    """The text with its ``.loc`` lines blank, so that every other line keeps its number."""
    return "\n".join("" if _LOC.match(line) else line for line in ptx.split("\n"))


def ptx_sources(text: str) -> list[dict[str, Any] | None]:
    """For every line of PTX the source line that the last ``.loc`` before it names; None outside functions."""
    names: dict[int, str] = {}
    lines = text.split("\n")
    for line in lines:
        if match := _FILE.match(line):
            names[int(match[1])] = unescape(match[2])
    found: list[dict[str, Any] | None] = []
    here: dict[str, Any] | None = None
    depth = 0
    for line in lines:
        if match := _LOC.match(line):
            file = names.get(int(match[1]))
            here = {"file": file, "line": int(match[2]), "inlined_at": None} if file else None
        instruction = bool(re.match(r"\s*(@!?%|[a-z])", line)) and depth > 0
        found.append(here if instruction else None)
        depth += line.count("{") - line.count("}")
        if depth == 0:
            here = None
    return found


def ptx_counts(lines: Sequence[LineCounters]) -> dict[str, dict[int, int]]:
    """Metric -> PTX line -> count, without zeros."""
    found: dict[str, dict[int, int]] = {}
    for line in lines:
        for name, value in _counts(line.counters).items():
            if value:
                found.setdefault(name, {})[line.line] = value
    return found


def source_counts(lines: Sequence[LineCounters], texts: Mapping[str, str]) -> SourceCounts:
    """Metric -> file -> line -> count, without zeros, from counts of PTX lines.

    Args:
        lines: counts by PTX line; ``file`` names the text.
        texts: name -> PTX.
    """
    sources = {name: ptx_sources(text) for name, text in texts.items()}
    found: SourceCounts = {}
    for line in lines:
        loc = sources[line.file][line.line - 1]
        if loc is None:
            continue
        for name, value in _counts(line.counters).items():
            if value:
                of_file = found.setdefault(name, {}).setdefault(loc["file"], {})
                of_file[loc["line"]] = of_file.get(loc["line"], 0) + value
    return found


def _counts(c: Counters) -> dict[str, int]:
    return {
        "instructions": c.instructions,
        "bytes": c.global_load_bytes + c.global_store_bytes + c.global_atomic_bytes + sum(c.async_bytes.values()),
        "sectors": c.global_sectors,
        "flops": c.flops,
        "bank conflicts": c.shared_bank_conflicts,
        "shared wavefronts": c.shared_wavefronts,
        "divergent branches": c.divergent_branches,
    }
