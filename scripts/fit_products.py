"""Fit the models of products by wgmma to measured times, and write them to ptxkit/kernels/fitted_products.json.

    python scripts/fit_products.py TIMES.jsonl... [--dry-run] [--only MODEL [--term NAME]] [--refine]

TIMES are files with the schema of ``scripts/measure_choices.py``, compressed (.gz) or not, whose cases are products of
matmul_wgmma and matmul_fused. Each model (``ptxkit.kernels.gemm.stream_model``) is fitted to the times of its variants: steps 8
and 10 of matmul_wgmma and ``fused`` of matmul_fused; step 12; step 9; step 13 and ``stream_k``; their tiles with
equal parts of k (``parts``); step 14 and ``cluster_k``; step 15 and ``multicast``; step 16; step 17; step 18; step 19; step 20;
tiles of steps 8 and 12 and of ``fused`` that consumers compute in turn; tiles of steps 8 and 12 with few steps along k; tiles
of ``fused`` in other types than 16 bits. All but the first four are chosen from the first fit with times of them on.

The first line of a file has ``stores``: "vectors" since step 15 stores vectors of elements, "fours" since matmul_fused stores
two or four neighbours together, and partial sums of stream-K are added with several loads in flight; before, these took longer.
Those without ``shifted`` are of steps 12, 13, 15 and 17 before they stored rows of c that begin anywhere by vectors, and those
without ``"shifted": "several"`` of step 12 before it had several vectors in flight; such times are left out.
Those without ``"together": true`` are of equal parts of k whose sums were all stored, and added by another launch.

Minimized is the sum of

- the mean of |log(predicted / measured)|, where slow tiles count less, by the square of the fastest time of their case over
  theirs, and cases with many tiles less for each of them;
- the mean regret of the variant and tile that all models together choose, over the fastest of the case.

The search takes random steps, with fixed seeds. Printed are the error of the predictions of each model, and the regret of the
choice. Models with the rates of the GPU in common have more regret, also in cases that the fit does not have (``--folds``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import choice_files
import numpy as np

from ptxkit.errors import PtxkitError
from ptxkit.kernels.gemm import (
    cluster_k,
    direct,
    dot,
    fused_tiles,
    multicast,
    row_classes,
    shifted,
    short_k,
    stream_k,
    stream_model,
    swapped,
    unaligned,
    wgmma_tiles,
)
from ptxkit.kernels.gemm.stream_model import StreamWork
from ptxkit.kernels.measured import PRODUCTS_FILE, StreamRates, fitted_products
from ptxkit.targets.gpus import facts_of, find_gpu
from ptxkit.workload import registry

SLOWEST = 4.0  # tiles that take more than this many times the fastest of their case are left out
FEW_PARTS = 3  # of a divided tile, up to which adding them took as long before
LIMITS = {
    "order": (2.0, 8.0),
    "memory_gbs": (3500, 4700),
    "launch_us": (0.5, 4.0),
    "reads": (0.2, 1.5),
    "split_line": (1, 4),
    "latency_us": (0.2, 4.0),
    "hit_us": (0.1, 1.5),
    "power": (0.0, 0.8),
    "again": (0.0, 1.0),
    "uneven": (0.0, 1.0),
    "paired": (0.0, 2.0),
}
MODELS = (
    *("products", "unaligned", "swapped", "stream_k"),
    *("parts", "cluster_k", "multicast", "multicast_parts", "direct", "shifted", "row_classes", "short_k", "ping_pong", "dot"),
    *("few_steps", "few_steps_ping_pong"),
    *("fused", "fused_ping_pong"),
)
"""Those after the first four may have no times."""
START = StreamRates(
    memory_gbs=4400.0,
    shared_gbs=245.0,
    reads=1.0,
    l2_gbs=11000.0,
    latency_us=1.6,
    hit_us=0.8,
    column_us=0.0012,
    split_line=1.4,
    order=4.0,
    launch_us=2.3,
    cluster_us=0.3,
    wave_us=0.3,
    end_us=5e-5,
    scattered_us=5e-4,
    shifted_us=1e-4,
    exchange_us=1e-4,
    second_us=1.5,
    partial_gbs=2800.0,
    release_us=0.1,
    power=0.2,
    again=0.3,
    step_us=0.05,
    uneven=0.3,
    paired=0.3,
    wide_us=5e-5,
    box_us=5e-4,
)
"""Where searches begin: about the peak rates and latencies of an H200."""
REGRET_WEIGHT = 1.0
SIZES = (0.02, 0.06, 0.2, 0.6)  # of random steps
SOFTNESS = 0.02  # of the regret: predictions that differ by this share


@dataclass(frozen=True)
class Row:
    """A measured tile: its case, the model that predicts it, what it does, and its time, of which ``beside`` is for copies."""

    case: tuple[str, int, str]  # file, place in it, sizes and options
    model: str
    work: StreamWork
    us: float
    beside: float
    variant: str
    tile: Mapping[str, Any]


def work_of(w: Any, variant: str, t: Mapping[str, int]) -> tuple[str, StreamWork] | None:
    """The model of a variant and what a launch with this tile does; None for other variants.

    Files from before step 15 had PARTS and CTAS_PER_SM, and step 13 B_SHARING, have tiles without them.
    """
    t = multicast.ALONE | t if variant in ("multicast", "step15_multicast") else t
    made = work_of_step(w, variant, t)
    if not made or not t.get("PING_PONG"):
        return made
    return {"few_steps": "few_steps_ping_pong", "fused": "fused_ping_pong"}.get(made[0], "ping_pong"), made[1]


def work_of_step(w: Any, variant: str, t: Mapping[str, int]) -> tuple[str, StreamWork] | None:
    """The same, of tiles that all consumers compute together."""
    t = stream_k.ALONE | t if variant in ("stream_k", "step13_stream_k") else t
    shares = "parts" if t.get("DIVIDED") in (2, stream_k.TRANSPOSED) else "stream_k"
    of_parts = "multicast_parts" if t.get("PARTS", 1) > 1 else "multicast"
    if w.name == "matmul_fused":
        if variant == "cluster_k":
            return "cluster_k", cluster_k.stream_work(w, t, w.itemsize, w.batch)
        if variant == "multicast":
            return of_parts, multicast.stream_work(w, t, w.itemsize, w.batch)
        if variant == "stream_k":
            return shares, stream_k.stream_work(w, t, w.itemsize, w.batch)
        own = "products" if w.itemsize == 2 else "fused"
        return (own, fused_tiles.stream_work(w, t)) if variant == "fused" else None
    if variant == "step8_tma_store" and wgmma_tiles.few_steps(w):
        return "few_steps", wgmma_tiles.stream_work(w, t)
    if variant in ("step8_tma_store", "step10_split_k"):
        return "products", wgmma_tiles.stream_work(w, t, t.get("PARTS", 1))
    if variant == "step12_aligned_copy":
        model = "few_steps" if unaligned.few_steps(w, t) else "unaligned"
        return (model, unaligned.stream_work(w, t)) if "CLUSTER_M" in t else None
    if variant == "step9_swapped":
        return "swapped", swapped.stream_work(w, t)
    if variant == "step14_cluster_k":
        return "cluster_k", cluster_k.stream_work(w, t)
    if variant == "step15_multicast":
        return of_parts, multicast.stream_work(w, t)
    if variant == "step16_direct":
        return "direct", direct.stream_work(w, t)
    if variant == "step17_shifted":
        return "shifted", shifted.stream_work(w, t)
    if variant == "step18_row_classes":
        return "row_classes", row_classes.stream_work(w, t)
    if variant == "step19_short_k":
        return "short_k", short_k.stream_work(w, t)
    if variant == "step20_dot":
        return "dot", dot.stream_work(w, t)
    return (shares, stream_k.stream_work(w, t)) if variant == "step13_stream_k" else None


def stored_as_now(head: Mapping[str, Any], w: Any, variant: str) -> bool:
    """Whether a variant stored rows of c that begin anywhere as it does now when a file was written."""
    if w.name != "matmul_wgmma" or unaligned.stores_by_tma(w):
        return True
    if variant == "step12_aligned_copy":
        return head.get("shifted") == "several"
    return bool(head.get("shifted")) or variant not in ("step13_stream_k", "step15_multicast", "step17_shifted")


def as_stored(
    model: str, work: StreamWork, w: Any, t: Mapping[str, int], head: Mapping[str, Any]
) -> tuple[str, StreamWork] | None:
    """The model and the work of a tile as its results were stored at the time; None if many partial sums were added slowly."""
    stores, fused = head.get("stores"), w.name == "matmul_fused"
    if model == "parts" and not head.get("together"):
        t = stream_k.ALONE | t
        shares = stream_k.Shares.of(w, t, w.itemsize, w.batch) if fused else stream_k.Shares.of(w, t)
        return model, replace(work, partial_bytes=stream_k.stored_bytes(t, replace(shares, polls=0)))
    if stores == "fours" or model not in ("multicast", "multicast_parts", "stream_k"):
        return model, work
    if model == "stream_k" and work.partial_bytes:
        t = stream_k.ALONE | t
        shares = stream_k.Shares.of(w, t, w.itemsize, w.batch) if fused else stream_k.Shares.of(w, t)
        if shares.shares > FEW_PARTS * shares.divided:
            return None
    alone = model != "stream_k" and (fused or stores is None)
    return model, replace(work, scattered=work.ends) if alone else work


def copied_us(w: Any, variant: str) -> float:
    """The time of copies of operands before a variant."""
    if w.name != "matmul_wgmma" or variant in ("step16_direct", "step17_shifted", "step19_short_k", "step20_dot"):
        return 0.0
    if variant == "step18_row_classes":
        return row_classes.copy_us(w)
    return unaligned.copies_us(w)


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """The first line of a file, and its rows."""
    head, values = choice_files.read(path)
    facts, found = facts_of(find_gpu(head["gpu"])), []
    for number, value in enumerate(values):
        w = registry.get(value["kernel"])(**value["sizes"], **value["options"]).on(facts)
        for row, us in choice_files.times(value["rows"]):
            made = work_of(w, row["variant"], row["tile"])
            made = made and as_stored(*made, w, row["tile"], head)
            beside = copied_us(w, row.get("variant", ""))
            if made and stored_as_now(head, w, row["variant"]):
                case = path.name, number, f"{w.name} {w.sizes} {w.options}"
                found.append(Row(case, *made, us, beside, row["variant"], row["tile"]))
    return head, found


class Search:
    """The rows as arrays in the order of their cases, and the coefficients of all models, which random steps improve."""

    def __init__(
        self, rows: Sequence[Row], models: Mapping[str, StreamRates], fitted: Sequence[str] = (), terms: Sequence[str] = ()
    ) -> None:
        self.fitted, self.terms = list(fitted or models), terms
        best: dict[Any, float] = {}
        for row in rows:
            best[row.case] = min(best.get(row.case, row.us), row.us)
        self.rows = sorted((row for row in rows if row.us <= SLOWEST * best[row.case]), key=lambda row: row.case)
        self.us = np.array([row.us for row in self.rows])
        names = [row.case for row in self.rows]
        self.starts = np.array([i for i, name in enumerate(names) if i == 0 or name != names[i - 1]])
        self.of = np.repeat(np.arange(len(self.starts)), np.diff([*self.starts, len(names)]))  # case of each row
        self.best = np.minimum.reduceat(self.us, self.starts)
        weights = (self.best[self.of] / self.us) ** 2
        self.weights = weights / np.sqrt(np.add.reduceat(weights, self.starts))[self.of]
        self.models = dict(models)
        self.at = {name: np.flatnonzero([row.model == name for row in self.rows]) for name in models}
        self.works = {name: arrays([self.rows[i].work for i in at]) for name, at in self.at.items()}
        self.beside = np.array([row.beside for row in self.rows])
        self.predicted = np.empty(len(self.us))
        for name, rates in models.items():
            self.predicted[self.at[name]] = self.of_model(name, rates)

    def of_model(self, name: str, rates: StreamRates) -> Any:
        """The predicted times of the rows of a model."""
        return stream_model.predicted_us(rates, self.works[name], 1.0) + self.beside[self.at[name]]

    def chosen(self, predicted: Any) -> Any:
        """The time of the row with the smallest prediction of each case."""
        least = np.minimum.reduceat(predicted, self.starts)[self.of]
        return np.maximum.reduceat(np.where(predicted == least, self.us, 0.0), self.starts)

    def regrets(self) -> Any:
        """The regret of the choice in each case."""
        return self.chosen(self.predicted) / self.best - 1

    def cost(self, predicted: Any) -> float:
        """What is minimized: the error, and the regret where nearly equal predictions are taken with nearly equal odds."""
        error = (self.weights * np.abs(np.log(predicted / self.us)) ** 1.3).sum() / self.weights.sum()
        least = np.minimum.reduceat(predicted, self.starts)[self.of]
        odds = np.exp((1 - predicted / least) / SOFTNESS)
        expected = np.add.reduceat(odds * self.us, self.starts) / np.add.reduceat(odds, self.starts)
        return float(error + REGRET_WEIGHT * (expected / self.best - 1).mean())

    def improve(self, steps: int, seed: int) -> float:
        """Try random steps, and keep those that reduce the cost, which is returned."""
        rng = np.random.default_rng(seed)
        names, best = self.fitted, self.cost(self.predicted)
        for _ in range(steps):
            name = names[rng.integers(len(names))]
            tried = moved(self.models[name], rng, SIZES[rng.integers(len(SIZES))], self.terms)
            predicted = self.predicted.copy()
            predicted[self.at[name]] = self.of_model(name, tried)
            if (cost := self.cost(predicted)) < best:
                best, self.predicted, self.models[name] = cost, predicted, tried
        return best

    def worst(self, count: int) -> list[str]:
        """The cases with the largest regret."""
        regrets = self.regrets()
        lines = []
        for case in np.argsort(-regrets)[:count]:
            at = np.flatnonzero(self.of == case)
            chosen, fastest = self.rows[at[self.predicted[at].argmin()]], self.rows[at[self.us[at].argmin()]]
            described = (f"{row.variant} {dict(row.tile)} {row.us:.1f} us" for row in (chosen, fastest))
            lines.append(f"{regrets[case]:.1%} {chosen.case[2]}: {' instead of '.join(described)}")
        return lines


def arrays(works: Sequence[StreamWork]) -> Any:
    """One ``StreamWork`` whose members are arrays, as ``predicted_us`` allows."""
    return StreamWork(**{f.name: np.array([getattr(w, f.name) for w in works], float) for f in fields(StreamWork)})  # type: ignore[arg-type]


def moved(rates: StreamRates, rng: np.random.Generator, size: float, terms: Sequence[str] = ()) -> StreamRates:
    """Coefficients a random step away, each within its limits: ``terms``, or all."""
    names = terms or [f.name for f in fields(StreamRates)]
    factors = np.exp(rng.normal(0, size, len(names)) * (rng.random(len(names)) < 0.3))
    values = {name: getattr(rates, name) * f for name, f in zip(names, factors, strict=True)}
    return replace(rates, **{name: float(np.clip(v, *LIMITS.get(name, (0, np.inf)))) for name, v in values.items()})


def best_of(
    rows: Sequence[Row],
    starts: int,
    steps: int,
    fitted: Sequence[str] = (),
    names: Sequence[str] = MODELS,
    *,
    refine: bool = False,
    terms: Sequence[str] = (),
) -> Search:
    """The best of several searches for the coefficients of the models ``fitted``, or of all; the others keep theirs.

    Args:
        names: all models, of which those without rows are left out.
        refine: begin with the present coefficients, where there are any.
        terms: the coefficients that are fitted, from START on; the others keep their present values. All by default.
    """
    known = fitted_products() if fitted or refine else {}
    at_first = {name: START if name in fitted and not refine else known.get(name, START) for name in names}
    if terms:
        begin = {term: getattr(START, term) for term in terms}
        at_first |= {name: replace(known[name], **begin) for name in fitted}
    models = {name: at_first[name] for name in names if any(row.model == name for row in rows)}
    searches = [Search(rows, models, fitted, terms) for _ in range(starts)]
    return searches[min(range(starts), key=lambda seed: searches[seed].improve(steps, seed))]


def held_out(rows: Sequence[Row], folds: int, steps: int, names: Sequence[str] = MODELS) -> Any:
    """The regret of the choice in each case by a fit without the cases of the same sizes, which is made for each fold."""
    sizes = sorted({row.case[2] for row in rows})
    found = []
    for fold in range(folds):
        left_out = set(sizes[fold::folds])
        search = best_of([row for row in rows if row.case[2] not in left_out], 1, steps, names=names)
        found.append(Search([row for row in rows if row.case[2] in left_out], search.models).regrets())
    return np.concatenate(found)


def summary(what: str, regrets: Any) -> str:
    """A line about the regret of the choice in each case."""
    return (
        f"{what}, {len(regrets)} cases: median {np.median(regrets):.1%}, mean {regrets.mean():.1%}, "
        f"95th percentile {np.quantile(regrets, 0.95):.1%}, maximum {regrets.max():.1%}"
    )


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """The parser of the arguments that the scripts for all models of this form take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", nargs="+", type=Path, metavar="TIMES", help="read times from these files")
    parser.add_argument("--dry-run", action="store_true", help="print without writing")
    parser.add_argument("--starts", type=int, default=2, metavar="N", help="search with N seeds")
    parser.add_argument("--steps", type=int, default=20000, metavar="N", help="take N random steps in each search")
    parser.add_argument("--folds", type=int, default=0, metavar="N", help="also fit N times without a part of the cases")
    parser.add_argument("--worst", type=int, default=10, metavar="N", help="show the N cases with the largest regret")
    return parser


def print_fit(search: Search, given: argparse.Namespace, names: Sequence[str] = MODELS) -> None:
    """Print the error of the predictions of each model, the regret of the choice, and the cases with the largest one."""
    for name, at in search.at.items():
        error = np.abs(np.log(search.predicted[at] / search.us[at]))
        print(f"{name}: {len(at)} times, error {np.median(error):.1%} (median), {np.quantile(error, 0.9):.1%} (p90)")
    print(summary("regret of the choice", search.regrets()))
    if given.folds > 1:
        left_out = held_out(search.rows, given.folds, given.steps, names)
        print(summary(f"without the case in the fit ({given.folds} folds)", left_out))
    print(*search.worst(given.worst), sep="\n")


def write(path: Path, script: str, heads: Sequence[dict[str, Any]], times: int, search: Search) -> None:
    """Write the coefficients, rounded to four digits, and what they are fitted to."""
    written = {
        "written_by": script,
        "measured_on": choice_files.origin(heads),
        "times": times,
        "cases": len(search.best),
        "models": {
            name: {k: float(f"{v:.4g}") for k, v in asdict(rates).items()} for name, rates in search.models.items()
        },
    }
    path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--only", action="append", default=[], choices=MODELS, metavar="MODEL", help="fit this model alone")
    parser.add_argument("--refine", action="store_true", help="begin with the present coefficients")
    parser.add_argument(
        "--term", action="append", default=[], metavar="NAME", help="with --only: fit this coefficient, and keep the others"
    )
    given = parser.parse_args(arguments)
    try:
        read_files = [read(path) for path in given.times]
    except (PtxkitError, OSError, KeyError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = [row for _, found in read_files for row in found]
    if missing := sorted(set(given.only) - {row.model for row in rows}):
        print(f"error: there are no times of {missing[0]} to fit", file=sys.stderr)
        return 2
    search = best_of(rows, given.starts, given.steps, given.only, refine=given.refine, terms=given.term)
    print_fit(search, given)
    if not given.dry_run:
        write(PRODUCTS_FILE, "scripts/fit_products.py", [head for head, _ in read_files], len(rows), search)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
