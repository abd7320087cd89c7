"""Fit the models of products by wgmma to measured times, and write them to ptxkit/kernels/fitted_products.json.

    python scripts/fit_products.py TIMES.jsonl... [--dry-run] [--starts N]

TIMES are files with the schema of ``scripts/measure_choices.py``, compressed (.gz) or not, whose cases are products of
matmul_wgmma and matmul_fused. Each model (``ptxkit.kernels.gemm.stream_model``) is fitted to the times of its variants: steps 8
and 10 of matmul_wgmma and ``fused`` of matmul_fused; steps 11 and 12; step 9; step 13 and ``stream_k``. Minimized is the mean
of |log(predicted / measured)|, where slow tiles count less, by the square of the fastest time of their case over theirs, plus
the mean regret of the tile that the model prefers. The search takes random steps from the present coefficients, with a fixed
seed. A factor for each model is then fitted by the regret of the chosen variant and tile of all models together.

Printed are, for each model, the error of the predictions and the regret of its tile, and the regret of the choice over all.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ptxkit.errors import PtxkitError
from ptxkit.kernels.gemm import matmul_fused, stream_k, stream_model, swapped, unaligned, wgmma_tiles
from ptxkit.kernels.gemm.stream_model import StreamWork
from ptxkit.kernels.measured import PRODUCTS_FILE, StreamRates, fitted_products
from ptxkit.targets.gpus import facts_of, find_gpu
from ptxkit.workload import registry

SLOWEST = 4.0  # tiles that take more than this many times the fastest of their case are left out
STEPS = 6000
FACTORS = (0.92, 0.96, 1.0, 1.04, 1.08)
LIMITS = {"order": (2.0, 8.0), "memory_gbs": (3500, 4700), "launch_us": (1.5, 4.0), "reads": (0.2, 1.5), "split_line": (1, 2)}
COPY_US, COPY_GBS = 1.5, 3500.0  # of step 12, which its model leaves out
REGRET_WEIGHT = 0.3


@dataclass(frozen=True)
class Row:
    """A measured tile: its case, the model that predicts it, what it does, and its time without copies of operands."""

    case: tuple[str, int, str]  # file, place in it, sizes and options
    model: str
    work: StreamWork
    us: float
    variant: str
    tile: Mapping[str, Any]


def work_of(w: Any, variant: str, t: Mapping[str, int]) -> tuple[str, StreamWork] | None:
    """The model of a variant and what a launch with this tile does; None for other variants."""
    if w.name == "matmul_fused":
        if variant == "stream_k":
            return "stream_k", stream_k.stream_work(w, t, w.itemsize, w.batch)
        return ("products", wgmma_tiles.stream_work(matmul_fused.alike(w), t)) if variant == "fused" else None
    if variant in ("step8_tma_store", "step10_split_k"):
        return "products", wgmma_tiles.stream_work(w, t, t.get("PARTS", 1))
    if variant in ("step11_unaligned", "step12_aligned_copy"):
        return "unaligned", wgmma_tiles.stream_work(w, {**t, "CLUSTER_M": 1, "CLUSTER_N": 1})
    if variant == "step9_swapped":
        return "swapped", swapped.stream_work(w, t)
    return ("stream_k", stream_k.stream_work(w, t)) if variant == "step13_stream_k" else None


def copied_us(w: Any) -> float:
    """The time of copies of operands."""
    if w.name != "matmul_wgmma":
        return 0.0
    nbytes = sum(2 * rows * columns for rows, columns in unaligned.copies(w).values())
    return COPY_US + 2 * nbytes / (COPY_GBS * 1e3) if nbytes else 0.0


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """The first line of a file, and its rows."""
    data = path.read_bytes()
    head, *values = map(json.loads, (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines())
    if head.get("schema") != "ptxkit.choices/1":
        raise PtxkitError(f"{path} has another schema than that of scripts/measure_choices.py")
    facts, found = facts_of(find_gpu(head["gpu"])), []
    for number, value in enumerate(values):
        w = registry.get(value["kernel"])(**value["sizes"], **value["options"]).on(facts)
        beside = copied_us(w)
        for row in value["rows"]:
            made = work_of(w, row["variant"], row["tile"]) if "variant" in row and "us" in row else None
            if made and (made[0] != "unaligned" or row["variant"] == "step12_aligned_copy" or not beside):
                case = path.name, number, f"{w.name} {w.sizes} {w.options}"
                found.append(Row(case, *made, row["us"] - beside, row["variant"], row["tile"]))
    return head, found


class Fit:
    """The rows of one model as arrays."""

    def __init__(self, rows: Sequence[Row], best: Mapping[Any, float]) -> None:
        """``best``: case -> the fastest time of all models."""
        kept = [row for row in rows if row.us <= SLOWEST * best[row.case]]
        columns = {f.name: np.array([getattr(row.work, f.name) for row in kept], float) for f in fields(StreamWork)}
        self.work: Any = StreamWork(**columns)  # type: ignore[arg-type]  # arrays, as predicted_us allows
        self.us = np.array([row.us for row in kept])
        names = [row.case for row in kept]
        self.cases = {name: np.flatnonzero([n == name for n in names]) for name in dict.fromkeys(names)}
        self.weights = np.array([(best[row.case] / row.us) ** 2 for row in kept])

    def predicted(self, rates: StreamRates) -> Any:
        """Microseconds of all rows."""
        return stream_model.predicted_us(rates, self.work, 1.0)

    def regrets(self, predicted: Any) -> Any:
        """The regret of the preferred tile in each case, among those of this model."""
        return np.array([self.us[at[predicted[at].argmin()]] / self.us[at].min() - 1 for at in self.cases.values()])

    def cost(self, rates: StreamRates) -> float:
        """What is minimized."""
        predicted = self.predicted(rates)
        error = np.abs(np.log(predicted / self.us))
        mean = (self.weights * error**1.3).sum() / self.weights.sum()
        return float(mean + REGRET_WEIGHT * self.regrets(predicted).mean())

    def search(self, rates: StreamRates, seed: int) -> tuple[float, StreamRates]:
        """The best coefficients that random steps from ``rates`` find, and their cost."""
        rng = np.random.default_rng(seed)
        names = [f.name for f in fields(StreamRates) if f.name != "factor"]
        best, size = self.cost(rates), 0.3
        for step in range(STEPS):
            factors = np.exp(rng.normal(0, size, len(names)) * (rng.random(len(names)) < 0.25))
            values = {name: getattr(rates, name) * f for name, f in zip(names, factors, strict=True)}
            tried = replace(rates, **{name: float(np.clip(v, *LIMITS.get(name, (0, np.inf)))) for name, v in values.items()})
            cost = self.cost(tried)
            if cost < best:
                best, rates = cost, tried
            if step % 1500 == 1499:
                size *= 0.6
        return best, rates


def factors(
    rows: Sequence[Row], models: Mapping[str, StreamRates], shown: int
) -> tuple[dict[str, float], Any, list[str]]:
    """The factor of each model with the smallest regret of the choice over all models, the regrets with it, and the worst."""
    by_case: dict[Any, list[Row]] = {}
    for row in rows:
        by_case.setdefault(row.case, []).append(row)
    compared = {case: found for case, found in by_case.items() if len({row.model for row in found}) > 1}
    predicted = {
        case: np.array([stream_model.predicted_us(replace(models[row.model], factor=1.0), row.work, 1.0) for row in found])
        for case, found in compared.items()
    }
    times = {case: np.array([row.us for row in found]) for case, found in compared.items()}
    names = sorted(models)
    of_rows = {case: np.array([names.index(row.model) for row in found]) for case, found in compared.items()}
    tried = []
    for values in itertools.product(FACTORS, repeat=len(names) - 1):
        given = np.array((1.0, *values))  # of products, the first name
        regrets = np.array(
            [times[c][(predicted[c] * given[of_rows[c]]).argmin()] / times[c].min() - 1 for c in compared]
        )
        tried.append((regrets.mean() + 0.3 * np.quantile(regrets, 0.95), values, regrets))
    _, values, regrets = min(tried, key=lambda item: item[0])
    found = dict(zip(names, (1.0, *values), strict=True))
    worst = []
    for (case, of_case), regret in sorted(zip(compared.items(), regrets, strict=True), key=lambda item: -item[1])[:shown]:
        given = [p * found[row.model] for p, row in zip(predicted[case], of_case, strict=True)]
        chosen, fastest = of_case[int(np.argmin(given))], of_case[int(times[case].argmin())]
        described = (f"{row.variant} {dict(row.tile)} {row.us:.1f} us" for row in (chosen, fastest))
        worst.append(f"{regret:.1%} {case[2]}: {' instead of '.join(described)}")
    return found, regrets, worst


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", nargs="+", type=Path, metavar="TIMES", help="read times from these files")
    parser.add_argument("--dry-run", action="store_true", help="print without writing")
    parser.add_argument("--starts", type=int, default=2, metavar="N", help="search with N seeds")
    parser.add_argument("--worst", type=int, default=10, metavar="N", help="show the N cases with the largest regret")
    given = parser.parse_args(arguments)
    try:
        read_files = [read(path) for path in given.times]
    except (PtxkitError, OSError, KeyError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = [row for _, found in read_files for row in found]
    best: dict[Any, float] = {}
    for row in rows:
        best[row.case] = min(best.get(row.case, row.us), row.us)
    models = {}
    for name, start in fitted_products().items():
        fit = Fit([row for row in rows if row.model == name], best)
        _, models[name] = min((fit.search(start, seed) for seed in range(given.starts)), key=lambda item: item[0])
        predicted = fit.predicted(models[name])
        error, regrets = np.abs(np.log(predicted / fit.us)), fit.regrets(predicted)
        print(
            f"{name}: {len(fit.us)} times of {len(fit.cases)} cases, error of the time {np.median(error):.1%} (median), "
            f"regret of the tile {np.mean(regrets):.1%} (mean), {np.quantile(regrets, 0.95):.1%} (95th percentile)"
        )
    found, regrets, worst = factors(rows, models, given.worst)
    print(
        f"choice among all models, {len(regrets)} cases: median {np.median(regrets):.1%}, mean {regrets.mean():.1%}, "
        f"95th percentile {np.quantile(regrets, 0.95):.1%}, maximum {regrets.max():.1%}; factors {found}"
    )
    print(*worst, sep="\n")
    if given.dry_run:
        return 0
    written = {
        "written_by": "scripts/fit_products.py",
        "measured_on": [{k: head[k] for k in ("gpu", "driver", "nvrtc") if k in head} for head, _ in read_files],
        "times": len(rows),
        "cases": len(best),
        "models": {
            name: {k: float(f"{v:.4g}") for k, v in asdict(replace(rates, factor=found[name])).items()}
            for name, rates in models.items()
        },
    }
    PRODUCTS_FILE.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
