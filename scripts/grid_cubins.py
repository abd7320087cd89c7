"""Count the cubins that the chosen variants of the whole grid of ``ptxkit bench shapes`` need, by kernel and type.

    python scripts/grid_cubins.py [--seed 0] [--family rows] [--markdown] [--compile]

A cubin is a source with its options, macros and template arguments, for the target of an H200. --compile also compiles each, in
a new cache and in one process, and prints the seconds and the bytes of the cache; programs of CUTLASS, half a minute each, are
left out of that.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tabulate import tabulate

from ptxkit.bench.shapes.grid import grid
from ptxkit.errors import PtxkitError
from ptxkit.targets import Target
from ptxkit.targets.gpus import facts_of, find_gpu
from ptxkit.workload.choice import choose
from ptxkit.workload.resolve import Program


@dataclass
class Needed:
    """What the cases of a kernel and a type need. cases: their number. programs: by what identifies them."""

    cases: int = 0
    programs: dict[str, Program] = field(default_factory=dict)
    seconds: float = 0.0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", action="append", default=[], metavar="FAMILY")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--compile", action="store_true")
    given = parser.parse_args(arguments)
    facts = facts_of(find_gpu("NVIDIA H200"))
    found: dict[tuple[str, str], Needed] = {}
    try:
        shapes = grid(given.seed).of_families(given.family).shapes
    except PtxkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for shape in shapes:
        workload = shape.workload.on(facts)
        resolved = choose(workload, target=facts.target).chosen.resolved
        needed = found.setdefault((workload.name, str(workload.options.get("dtype", workload.work().unit))), Needed())
        needed.cases += 1
        for program in resolved.programs:
            needed.programs.setdefault(repr(program), program)
    size = compiled(found, facts.target) if given.compile else 0
    headers = ["kernel", "type", "cases", "cubins", *(["seconds"] if given.compile else [])]
    rows = [
        [*key, str(n.cases), str(len(n.programs)), *([f"{n.seconds:.1f}"] if given.compile else [])]
        for key, n in sorted(found.items())
    ]
    print(tabulate(rows, headers, tablefmt="github" if given.markdown else "simple", disable_numparse=True))
    total = sum(len(n.programs) for n in found.values())
    most = max(len(n.programs) for n in found.values())
    line = f"{len(shapes)} cases, {total} cubins, at most {most} for a kernel and type"
    if given.compile:
        line += f"; {sum(n.seconds for n in found.values()):.0f} s of one process, {size / 1e6:.1f} MB of cache"
    print(f"\n{line}")
    return 0


def compiled(found: dict[tuple[str, str], Needed], target: Target) -> int:
    """Compile the programs into a new cache; the seconds are entered. Returns the bytes of the cache."""
    from ptxkit.compiler.cache import default_cache
    from ptxkit.compiler.nvrtc import compile_source

    with tempfile.TemporaryDirectory() as directory:
        os.environ["PTXKIT_CACHE_DIR"] = directory
        for needed in found.values():
            for program in needed.programs.values():
                if program.slow:
                    continue
                source, how = program.request(target)
                begin = time.perf_counter()
                compile_source(source, **how)
                needed.seconds += time.perf_counter() - begin
        return default_cache().info().size_bytes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
