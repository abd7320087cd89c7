"""Fit the models of 2:4 sparse products to measured times, and write them to ptxkit/kernels/fitted_sparse.json.

    python scripts/fit_sparse.py TIMES.jsonl... [--dry-run] [--starts N]

TIMES are files with the schema of ``scripts/measure_choices.py``, compressed (.gz) or not, whose cases are products of
matmul_sparse. There are two models (``ptxkit.kernels.gemm.stream_model``): of steps 4 and 5, and of step 6. Minimized is what
``scripts/fit_products.py`` minimizes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import choice_files
from fit_products import Row, best_of, parser_of, print_fit, write

from ptxkit import Tile
from ptxkit.errors import PtxkitError
from ptxkit.kernels.gemm import sparse_cluster_k, sparse_tiles
from ptxkit.kernels.gemm.matmul_sparse import STEP_4, MatmulSparse, full
from ptxkit.kernels.gemm.stream_model import StreamWork
from ptxkit.kernels.measured import SPARSE_FILE
from ptxkit.targets.gpus import facts_of, find_gpu

MODELS = ("sparse", "sparse_tiles")


def work_of(w: MatmulSparse, variant: str, tile: Mapping[str, int]) -> tuple[str, StreamWork] | None:
    """The model of a variant and what a launch with this tile does; None for other variants."""
    if variant == "step6_cluster_k":
        return "sparse", sparse_cluster_k.stream_work(w.sparse_product, tile)
    if variant == "step5_multicast":
        return "sparse_tiles", sparse_tiles.stream_work(w.sparse_product, full(Tile(tile)))
    return ("sparse_tiles", sparse_tiles.stream_work(w.sparse_product, STEP_4)) if variant == "step4_persistent" else None


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """The first line of a file, and its rows."""
    head, values = choice_files.read(path)
    facts, found = facts_of(find_gpu(head["gpu"])), []
    for number, value in enumerate(values):
        w = MatmulSparse(**value["sizes"], **value["options"]).on(facts)
        for row in value["rows"]:
            if made := work_of(w, row["variant"], row["tile"]) if "variant" in row and "us" in row else None:
                case = path.name, number, f"{w.name} {w.sizes} {w.options}"
                found.append(Row(case, *made, row["us"], 0.0, row["variant"], row["tile"]))
    return head, found


def main(arguments: Sequence[str]) -> int:
    given = parser_of(__doc__).parse_args(arguments)
    try:
        read_files = [read(path) for path in given.times]
    except (PtxkitError, OSError, KeyError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = [row for _, found in read_files for row in found]
    search = best_of(rows, given.starts, given.steps, names=MODELS)
    print_fit(search, given, MODELS)
    if not given.dry_run:
        write(SPARSE_FILE, "scripts/fit_sparse.py", [head for head, _ in read_files], len(rows), search)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
