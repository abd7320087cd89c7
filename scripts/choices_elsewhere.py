"""Show the variants and tiles that ptxkit takes on GPUs that were never measured, by their documented facts.

    python scripts/choices_elsewhere.py [--gpu "NVIDIA L4"] [--markdown] [--verify]

--verify executes each variant with its tile in the emulator, for the target of the GPU, at reduced sizes with the same
remainders.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from ptxkit.bench.shapes.reduced import reduced
from ptxkit.errors import PtxkitError
from ptxkit.runtime.device import device
from ptxkit.targets.gpus import Gpu, facts_of, find_gpu
from ptxkit.workload import execute, registry
from ptxkit.workload.choice import Choice, choose
from ptxkit.workload.workload import Workload

ELSEWHERE = (
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA H100 PCIe",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA L4",
    "NVIDIA B200",
)
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("rmsnorm", {"rows": 8192, "cols": 4096, "dtype": "bf16"}),
    ("softmax", {"rows": 32, "cols": 128256, "dtype": "f16"}),
    ("swiglu", {"rows": 300, "cols": 14336, "dtype": "bf16"}),
    ("matmul_mma", {"m": 300, "n": 4096, "k": 4096, "dtype": "f16"}),
    ("matmul_mma", {"m": 8192, "n": 8192, "k": 8192, "dtype": "f16"}),
    ("micro_tiling_matmul", {"m": 1024, "n": 1024, "k": 1024}),
    ("attention", {"batch": 1, "heads": 16, "q": 2048, "k": 2048, "d": 128, "causal": True, "dtype": "bf16"}),
)


def choice_on(gpu: Gpu, kernel: str, fields: dict[str, Any]) -> Choice:
    """The choice for a case on a documented GPU."""
    facts = facts_of(gpu)
    return choose(registry.get(kernel)(**fields).on(facts), target=facts.target)


def verified(choice: Choice) -> str:
    """``"verified"``, or what is wrong, of the chosen variant and tile in the emulator at reduced sizes."""
    resolved = choice.chosen.resolved
    workload = resolved.workload
    small: Workload = reduced(workload)
    if resolved.tile and resolved.tile not in resolved.variant.tiles(small, dict(resolved.tile)):
        small = type(workload)(**{**workload.sizes, **workload.options, "rows": 2})  # rows of this length need the tile
    case = execute.Case(small, device("emulator"), 0, target=resolved.target)
    try:
        result = execute.run(case, resolved.variant, resolved.target, resolved.tile, explicit=True)
    except PtxkitError as error:
        return str(error).splitlines()[0]
    assert result.verdict is not None
    return "verified" if result.verdict.verified else f"wrong: {result.verdict.worst}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="append", default=[], help="a documented GPU; several may be given")
    parser.add_argument("--markdown", action="store_true", help="print a table for a page of docs/")
    parser.add_argument("--verify", action="store_true", help="execute each choice in the emulator")
    given = parser.parse_args(arguments)
    rows, wrong = [], 0
    for kernel, fields in CASES:
        for name in given.gpu or ELSEWHERE:
            try:
                gpu = find_gpu(name)
                choice = choice_on(gpu, kernel, fields)
            except PtxkitError as error:
                print(f"error: {error}", file=sys.stderr)
                return 2
            said = verified(choice) if given.verify else ""
            wrong += given.verify and said != "verified"
            sizes = " ".join(f"{k}={v}" for k, v in fields.items())
            tile = " ".join(f"{k}={v}" for k, v in choice.tile.items()) or "-"
            rows.append([f"{kernel} {sizes}", gpu.name, choice.variant, tile, *([said] if said else [])])
    headers = ["case", "GPU", "variant", "tile", *(["emulator"] if given.verify else [])]
    print(tabulate(rows, headers, tablefmt="github" if given.markdown else "simple", disable_numparse=True))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
