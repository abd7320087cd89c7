"""Fit the models of 2:4 sparse products to measured times, and write them to ptxkit/kernels/fitted_sparse.json.

    python scripts/fit_sparse.py TIMES.jsonl... [--dry-run] [--starts N]

TIMES are files with the schema of ``scripts/measure_choices.py``, compressed (.gz) or not, whose cases are products of
matmul_sparse. There are two models (``ptxkit.kernels.gemm.stream_model``): of steps 4 and 5, and of step 6. Minimized is what
``scripts/fit_products.py`` minimizes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from fit_products import START, Row, Search, summary

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
    data = path.read_bytes()
    head, *values = map(json.loads, (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines())
    if head.get("schema") != "ptxkit.choices/1":
        raise PtxkitError(f"{path} has another schema than that of scripts/measure_choices.py")
    facts, found = facts_of(find_gpu(head["gpu"])), []
    for number, value in enumerate(values):
        w = MatmulSparse(**value["sizes"], **value["options"]).on(facts)
        for row in value["rows"]:
            if made := work_of(w, row["variant"], row["tile"]) if "variant" in row and "us" in row else None:
                case = path.name, number, f"{w.name} {w.sizes} {w.options}"
                found.append(Row(case, *made, row["us"], 0.0, row["variant"], row["tile"]))
    return head, found


def best_of(rows: Sequence[Row], starts: int, steps: int) -> Search:
    """The best of several searches."""
    searches = [Search(rows, dict.fromkeys(MODELS, START)) for _ in range(starts)]
    return searches[min(range(starts), key=lambda seed: searches[seed].improve(steps, seed))]


def held_out(rows: Sequence[Row], folds: int, steps: int) -> Any:
    """The regret of the choice in each case by a fit without the cases of the same sizes, which is made for each fold."""
    sizes, found = sorted({row.case[2] for row in rows}), []
    for fold in range(folds):
        left_out = set(sizes[fold::folds])
        search = best_of([row for row in rows if row.case[2] not in left_out], 1, steps)
        found.append(Search([row for row in rows if row.case[2] in left_out], search.models).regrets())
    return np.concatenate(found)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", nargs="+", type=Path, metavar="TIMES", help="read times from these files")
    parser.add_argument("--dry-run", action="store_true", help="print without writing")
    parser.add_argument("--starts", type=int, default=2, metavar="N", help="search with N seeds")
    parser.add_argument("--steps", type=int, default=20000, metavar="N", help="take N random steps in each search")
    parser.add_argument("--folds", type=int, default=0, metavar="N", help="also fit N times without a part of the cases")
    parser.add_argument("--worst", type=int, default=10, metavar="N", help="show the N cases with the largest regret")
    given = parser.parse_args(arguments)
    try:
        read_files = [read(path) for path in given.times]
    except (PtxkitError, OSError, KeyError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = [row for _, found in read_files for row in found]
    search = best_of(rows, given.starts, given.steps)
    for name, at in search.at.items():
        error = np.abs(np.log(search.predicted[at] / search.us[at]))
        print(f"{name}: {len(at)} times, error {np.median(error):.1%} (median), {np.quantile(error, 0.9):.1%} (p90)")
    print(summary("regret of the choice", search.regrets()))
    if given.folds > 1:
        print(summary(f"without the case in the fit ({given.folds} folds)", held_out(rows, given.folds, given.steps)))
    print(*search.worst(given.worst), sep="\n")
    if given.dry_run:
        return 0
    written = {
        "written_by": "scripts/fit_sparse.py",
        "measured_on": [{k: head[k] for k in ("gpu", "driver", "nvrtc") if k in head} for head, _ in read_files],
        "times": len(rows),
        "cases": len(search.best),
        "models": {
            name: {k: float(f"{v:.4g}") for k, v in asdict(rates).items()} for name, rates in search.models.items()
        },
    }
    SPARSE_FILE.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
