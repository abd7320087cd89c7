"""One self-contained HTML page for some kernels: source, PTX and SASS side by side, linked through the line tables.

The page loads nothing: style, script and data are in it, and its content security policy names the hashes of the first two.
The data is the document of :mod:`ptxkit.inspect.report` with, for each kernel, where every PTX line comes from and what the
emulator counts on every source line.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxkit.errors import PtxkitError
from ptxkit.inspect.report import document
from ptxkit.inspect.subject import Subject
from ptxkit.isa.lexer import unescape

if TYPE_CHECKING:
    from ptxkit.emulator.counters.counters import Counters, LineCounters

PARTS = Path(__file__).parent / "page"
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'\s*\.file\s+(\d+)\s+("(?:[^"\\]|\\.)*")')


def page(subjects: Sequence[Subject], *, heat: bool = True) -> str:
    """The page's text.

    Args:
        subjects: the kernels that can be chosen on it, in order.
        heat: run variants in the emulator, at their emulator sizes, for the counts of each line.
    """
    value = document(subjects)
    for kernel, subject in zip(value["kernels"], subjects, strict=True):
        first, last = kernel["ptx_lines"] or (1, 0)
        kernel["ptx_first"] = first
        kernel["ptx_sources"] = ptx_sources(subject.function.ptx)[first - 1 : last]
        kernel["heat"], kernel["heat_note"] = heat_of(subject) if heat else (None, "not counted")
    style, script = ((PARTS / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    template = string.Template((PARTS / "page.html").read_text(encoding="utf-8"))
    titles = ", ".join(dict.fromkeys(s.title for s in subjects))
    return template.substitute(
        title=html.escape(f"{titles} - ptxkit inspect"),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=embedded(value),
    )


def embedded(value: Any) -> str:
    """JSON that can stand inside a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"sha256-{digest}"


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


def heat_of(subject: Subject) -> tuple[dict[str, Any] | None, str]:
    """What the emulator counts on each line, or None and why there is nothing.

    Returns:
        ``{"sizes": "... rows=128 cols=4096", "metrics": {"instructions": {file: {line: count}}, ...}}`` and ""; metrics that
        are zero everywhere are left out.
    """
    if subject.build is None:
        return None, "no heat: this is code alone, nothing to run; inspect a KERNEL:VARIANT or a description"
    from ptxkit.runtime.device import device
    from ptxkit.workload import execute

    build = subject.build
    small = type(build.workload).make((), build.workload.options, small=True)
    case = execute.Case(small, device("emulator"))
    try:
        try:
            prepared = execute.prepare(case, build.variant, build.target, dict(build.tile))
        except PtxkitError:  # a tile for large sizes may not suit small ones
            prepared = execute.prepare(case, build.variant, build.target)
        lines = case.device.measure(prepared.launch, samples=1).lines
    except PtxkitError as error:
        return None, f"no heat: the emulator cannot run it: {str(error).splitlines()[0]}"
    sizes = " ".join(f"{k}={v}" for k, v in small.sizes.items())
    if prepared.build.tile != build.tile:
        sizes += f", tile {prepared.build.tile}"
    return {"sizes": f"counted in the emulator, {sizes}", "metrics": metrics(lines)}, ""


def metrics(lines: Sequence[LineCounters]) -> dict[str, dict[str, dict[int, int]]]:
    """Metric -> file -> line -> count, without zeros."""
    found: dict[str, dict[str, dict[int, int]]] = {}
    for line in lines:
        for name, value in _counts(line.counters).items():
            if value:
                found.setdefault(name, {}).setdefault(line.file, {})[line.line] = value
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
