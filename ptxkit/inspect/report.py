"""The report of an inspected kernel as JSON values: schema ``ptxkit.inspect/1``.

A document is ``{"schema", "kernels", "ptx", "sources"}``. A kernel's ``ptx`` is an index into the texts of the document;
``sources`` maps a path, as line tables name it, to its lines and a note about problems. Addresses are bytes from the start
of the kernel's code, lines count from 1, sizes are bytes; unknown values are null. Keys may be added within version 1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from ptxkit.inspect.advice import Finding, findings
from ptxkit.inspect.banks import register_banks
from ptxkit.inspect.classes import Mix, group_of, mix, ptx_mix
from ptxkit.inspect.compare import Difference
from ptxkit.inspect.model import Block, SassFunction, SassInstruction
from ptxkit.inspect.natural_loops import Loop, loops
from ptxkit.inspect.subject import Subject
from ptxkit.isa.comments import without_comments
from ptxkit.isa.model import Loc

SCHEMA = "ptxkit.inspect/1"


def document(subjects: Iterable[Subject]) -> dict[str, Any]:
    """The whole document for some kernels."""
    chosen = list(subjects)
    texts = list(dict.fromkeys(s.function.ptx for s in chosen if s.function.ptx))
    files = {path: file for s in chosen for path, file in s.sources.items()}
    return {
        "schema": SCHEMA,
        "kernels": [kernel(s, texts) for s in chosen],
        "ptx": texts,
        "sources": {path: {"lines": list(f.lines), "note": f.note} for path, f in files.items()},
    }


def kernel(subject: Subject, texts: Sequence[str] = ()) -> dict[str, Any]:
    """One kernel of the document."""
    function = subject.function
    resources = asdict(function.resources)
    if not function.spills_known:
        resources["spill_store_bytes"] = resources["spill_load_bytes"] = None
    peak = function.peak
    return {
        "title": subject.title,
        "kernel": subject.kernel,
        "function": function.name,
        "target": function.target.name,
        "tile": subject.tile or None,
        "resources": resources,
        "launch": {
            "block": subject.block,
            "block_known": subject.block_known,
            "dynamic_shared_bytes": subject.dynamic_shared_bytes,
            "cluster": subject.cluster,
        },
        "occupancy": {**asdict(subject.occupancy), "fraction": subject.occupancy.fraction},
        "peak_live_registers": peak
        and {"registers": peak.live["R"], "address": peak.address, "source": _loc(peak.source)},
        "mix": {"sass": _mix(mix(function)), "ptx": _mix(ptx) if (ptx := mix_of_ptx(function)) else None},
        "loops": [_loop(loop) for loop in loops(function)],
        "register_banks": _banks(function),
        "findings": [_finding(f) for f in findings(function, subject.image)],
        "callees": {str(address): name for address, name in function.callees.items()},
        "blocks": [_block(b) for b in function.blocks],
        "instructions": [_instruction(i) for i in function.instructions],
        "ptx": texts.index(function.ptx) if function.ptx in texts else None,
        "ptx_lines": ptx_range(function),
    }


def difference(
    found: Difference, titles: tuple[str, str], times_us: tuple[float | None, float | None] = (None, None)
) -> dict[str, Any]:
    """A comparison as JSON values, under the same schema; ``times_us`` are of the variants' launches, where measured."""
    return {
        "schema": SCHEMA,
        "diff": {
            "left": titles[0],
            "right": titles[1],
            "same": found.same,
            "time_us": list(times_us),
            "resources": {name: list(pair) for name, pair in found.resources.items()},
            "classes": {name: {"group": g, "left": a, "right": b} for name, (g, a, b) in found.classes.items()},
            "lines": [
                {"mark": line.mark, "left": line.left and str(line.left), "right": line.right and str(line.right)}
                for line in found.lines
            ],
        },
    }


def mix_of_ptx(function: SassFunction) -> Mix | None:
    """The mix of the kernel's PTX, or None when the PTX is not available."""
    from ptxkit.errors import PtxSyntaxError
    from ptxkit.isa.parser import parse

    if not function.ptx:
        return None
    try:
        found = parse(function.ptx).functions.get(function.name)
    except PtxSyntaxError:  # the PTX in a cubin has no comments, and may be of a newer PTX version
        return None
    return ptx_mix(found) if found else None


def ptx_range(function: SassFunction) -> tuple[int, int] | None:
    """First and last line of the kernel in its PTX, or None when it is not available."""
    lines = without_comments(function.ptx).split("\n")
    head = re.compile(rf"\.(entry|func)\b.*?(?<![\w$]){re.escape(function.name)}(?![\w$])")
    start = next((n for n, line in enumerate(lines) if head.search(line)), None)
    if start is None:
        return None
    depth = 0
    for number in range(start, len(lines)):
        opened = lines[number].count("{")
        depth += opened - lines[number].count("}")
        if depth == 0 and "}" in lines[number]:
            return start + 1, number + 1
    return None


def instructions_by_line(function: SassFunction) -> dict[str, Counter[int]]:
    """File -> source line -> SASS instructions that come from it, inlined ones counted where they are written."""
    found: dict[str, Counter[int]] = {}
    for instruction in function.instructions:
        if instruction.source:
            found.setdefault(instruction.source.file, Counter())[instruction.source.line] += 1
    return found


def _mix(found: Mix) -> dict[str, Any]:
    return {
        "total": found.total,
        "groups": dict(found.groups),
        "classes": {g: dict(c) for g, c in found.classes.items()},
    }


def _loop(loop: Loop) -> dict[str, Any]:
    return {
        "address": loop.address,
        "depth": loop.depth,
        "blocks": list(loop.blocks),
        "instructions": len(loop.instructions),
        "stall_cycles": loop.stall_cycles,
        "source": _loc(loop.source),
        "lines": loop.own_lines and list(loop.own_lines),
        "mix": _mix(mix(loop.instructions)),
    }


def _banks(function: SassFunction) -> dict[str, Any] | None:
    """Register-bank conflicts of the hottest loop (:mod:`ptxkit.inspect.banks`); ``loop`` is the address of its start."""
    found = register_banks(function)
    if found is None:
        return None
    return {
        "loop": found.loop.address,
        "arithmetic": found.arithmetic,
        "delayed": found.delayed,
        "slots": found.slots,
        "lost_slots": found.lost_slots,
        "share": found.share,
    }


def _block(block: Block) -> dict[str, Any]:
    return {
        "index": block.index,
        "label": block.label or None,
        "address": block.address,
        "instructions": len(block.instructions),
        "successors": list(block.successors),
        "stall_cycles": block.stall_cycles,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "source": _loc(finding.source)}


def _instruction(instruction: SassInstruction) -> dict[str, Any]:
    control = instruction.control
    return {
        "address": instruction.address,
        "text": str(instruction),
        "opcode": instruction.opcode,
        "modifiers": list(instruction.modifiers),
        "operands": instruction.operands,
        "predicate": instruction.predicate or None,
        "group": group_of(instruction),
        "encoding": f"{instruction.encoding:#034x}",
        "control": {
            "stall": control.stall,
            "yield": control.prefers_switch,
            "write_barrier": control.write_barrier,
            "read_barrier": control.read_barrier,
            "wait": list(control.wait),
            "reuse": list(control.reuse),
        },
        "source": _loc(instruction.source),
        "ptx_line": instruction.ptx_line,
        "live": dict(instruction.live),
        "reads": list(instruction.reads),
        "writes": list(instruction.writes),
    }


def _loc(loc: Loc | None) -> dict[str, Any] | None:
    if loc is None:
        return None
    return {"file": loc.file, "line": loc.line, "inlined_at": _loc(loc.inlined_at)}
