"""The instruction mix of a tile's machine code; computed in the pool of compiling processes during measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ptxkit.errors import PtxkitError
from ptxkit.sweep.problem import Problem
from ptxkit.workload.build import build


def sass_mix(problem: Problem, tile: Mapping[str, Any]) -> str:
    """The three commonest groups of SASS instructions: ``"fp32 71%, shared 14%, ..."``, or in parentheses why there is none."""
    from ptxkit.inspect import mix, sass

    try:
        built = build(problem.workload, problem.chosen, problem.parsed_target, tile)
        counts: Counter[str] = Counter()
        for step in built.steps:
            function = sass(step.image)[step.entry]
            for name, kinds in mix(function).classes.items():
                counts[name] += sum(kinds.values())
    except PtxkitError as error:
        return f"({error})"[:60]
    total = sum(counts.values())
    return ", ".join(f"{name} {n / total:.0%}" for name, n in counts.most_common(3))
