"""Find the programs that products by wgmma share, and write them to ptxkit/kernels/gemm/product_programs.json.

    python scripts/choose_programs.py TIMES.jsonl... [--kernel NAME] [--add STEP] [--limit N] [--folds 4] [--dry-run]

TIMES are files with the schema of ``scripts/measure_choices.py``, compressed (.gz) or not, to which ``scripts/fit_products.py``
has fitted the models. For each of matmul_wgmma and matmul_fused the script searches a set of programs, and a margin by which
another program must be predicted to be faster to be taken; within a step, MARGINS_US is enough. Written are those with the
smallest mean regret with which the products of that kernel in the grid of ``ptxkit bench shapes``, of several seeds, need at
most --limit programs for a type.

The regret of a case is the time of the tile that the choice takes over that of the fastest measured tile, less 1. The time of a
tile that was not measured at these sizes is its prediction, times the median of measured over predicted time of the case's
tiles of the same model. The search adds, omits and exchanges programs at random, with a fixed seed, and keeps what reduces the
regret, that of the grid by predictions, and the programs above the limit. With --folds, the fit and the search are repeated
without the cases of a part of the sizes, in which the choice is then judged. With --add, all programs of a new step are added
to the present set, without a search.

Exceptions are measured cases in which the choice takes more than EXCEPTION over the fastest measured tile: the choice takes
that tile at exactly these sizes on the GPU that was measured, for bf16 and f16 alike.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import choice_files
import fit_products
import numpy as np
from fit_products import MODELS, summary

from ptxkit.bench.shapes.grid import grid
from ptxkit.errors import PtxkitError
from ptxkit.kernels.gemm import fused_tiles, multicast, steps, stream_model
from ptxkit.kernels.gemm.programs import FILE, Option, SharedPrograms, keys_of_exceptions, product_programs
from ptxkit.kernels.measured import StreamRates, fitted_products
from ptxkit.targets.gpus import DeviceFacts, facts_of, find_gpu
from ptxkit.workload import registry

KERNELS = {"matmul_wgmma": 21, "matmul_fused": 14}
"""Kernel -> the most programs that the grid may need for a type."""
SIZES = (20, 28)  # most programs of a set
MARGINS = (0.07, 0.1)
MARGINS_US = {"matmul_wgmma": 1.5, "matmul_fused": math.inf}
"""Kernel -> microseconds by which another program of the same step must be predicted to be faster, if that is less than the
margin. The search does without: large products, for which it counts, are few. It was found from the times of matmul_wgmma."""
SEEDS, UNSEEN = (0, 1, 2), (3, 4)  # of the grids of the search, and of those with which it is checked
STEPS = 8000
GRID_WEIGHT, EXCESS = 0.5, 0.02  # of the regret of the grid, and of a program above the limit, in units of mean regret
EXCEPTION = 0.03  # more than the difference of the same tile between two runs, in nine of ten cases
NEAR = 2.0  # tiles up to so many times the fastest one calibrate the predictions of a case


@dataclass(frozen=True)
class Case:
    """A product with its options, of which the predictions follow from the coefficients, and measured times.

    Attributes:
        file: of the times, or the seed of the grid. sizes: sizes and options.
        beside: of each option, microseconds of copies of operands.
        models, works: of the options. us: (variant, tile) -> measured time.
    """

    file: str
    sizes: str
    kernel: str
    workload: Any
    beside: Any
    options: tuple[Option, ...]
    models: tuple[str, ...]
    works: tuple[Any, ...]
    us: Mapping[Any, float]

    @property
    def best_us(self) -> float:
        return min(self.us.values())


def tile_key(variant: str, tile: Mapping[str, Any]) -> Any:
    """What identifies a tile: without what follows from the other parameters, and may have other values in old files.

    Those of step 15 had no PARTS and CTAS_PER_SM.
    """
    tile = multicast.ALONE | tile if variant in ("multicast", "step15_multicast") else tile
    return variant, tuple(sorted((k, v) for k, v in tile.items() if k not in ("GROUP", "REGISTERS", "BOXES")))


def case_of(file: str, workload: Any, rows: Iterable[Mapping[str, Any]]) -> Case:
    """A case with its times."""
    us = {tile_key(row["variant"], row["tile"]): row["us"] for row in rows if "variant" in row and "us" in row}
    if workload.name == "matmul_fused":
        options = tuple(fused_tiles.options(workload))
    else:
        options = tuple(option for step in steps.TILES for option in steps.options(workload, step))
    made = [fit_products.work_of(workload, option.variant, option.tile) for option in options]
    known = {tile_key(option.variant, option.tile) for option in options}
    return Case(
        file,
        f"{workload.name} {workload.sizes} {workload.options}",
        workload.name,
        workload,
        np.array([fit_products.copied_us(workload, option.variant) for option in options]),
        options,
        tuple(m[0] for m in made if m),
        tuple(m[1] for m in made if m),
        {key: time for key, time in us.items() if key in known},
    )


def read(path: Path) -> tuple[dict[str, Any], list[Case]]:
    """The first line of a file, and its cases of the kernels."""
    head, values = choice_files.read(path)
    facts = facts_of(find_gpu(head["gpu"]))
    cases = [
        case_of(path.name, registry.get(v["kernel"])(**v["sizes"], **v["options"]).on(facts), v["rows"])
        for v in values
        if v["kernel"] in KERNELS
    ]
    return head, [case for case in cases if case.us]


def of_grid(kernel: str, facts: DeviceFacts, seeds: Sequence[int]) -> list[Case]:
    """The products of the grids of these seeds, which have no times."""
    found = ((seed, shape.workload) for seed in seeds for shape in grid(seed).shapes)
    return [case_of(str(seed), w.on(facts), ()) for seed, w in found if w.name == kernel and w.layout == "tn"]


class Choices:
    """For each case and each set of programs of an option, the option with the smallest prediction, and its time."""

    _found: ClassVar[tuple[Any, dict[int, Any]]] = (None, {})

    def __init__(self, cases: Sequence[Case], rates: Mapping[str, StreamRates]) -> None:
        self.cases = list(cases)
        found = [self._known(case, rates) for case in cases]
        self.bundles = sorted({bundle for of_case, _ in found for bundle in near(of_case)})
        self.programs = sorted({program for bundle in self.bundles for program in bundle})
        at = {bundle: i for i, bundle in enumerate(self.bundles)}
        shape = len(cases), len(self.bundles)
        self.predicted, self.us = np.full(shape, np.inf), np.full(shape, np.inf)
        for row, (of_case, _) in enumerate(found):
            for bundle in self.bundles:
                predicted, us = of_case.get(bundle, (np.inf, np.inf))
                self.predicted[row, at[bundle]], self.us[row, at[bundle]] = predicted, us
        self.best = np.array([best for _, best in found])
        self.kernels = np.array([bundle[0].split()[0] for bundle in self.bundles])
        self.needed = np.array([[program in bundle for program in self.programs] for bundle in self.bundles])

        self.fastest = self.predicted.argmin(1)
        self.rows = np.arange(len(self.cases))
        groups: dict[tuple[str, str], list[int]] = {}
        for row, case in enumerate(self.cases):
            if not case.us:
                groups.setdefault((case.file, case.workload.dtype), []).append(row)
        self.grids = [np.array(rows) for rows in groups.values()]
        self.measured = np.array([bool(case.us) for case in self.cases])

    @classmethod
    def _known(cls, case: Case, rates: Mapping[str, StreamRates]) -> Any:
        """What ``_of`` returns, which takes 10 ms of a case, computed once for the rates of all cases."""
        if cls._found[0] is not rates:
            cls._found = rates, {}
        found = cls._found[1]
        if id(case) not in found:
            found[id(case)] = case, cls._of(case, rates)  # the case, so that no other one has its id
        return found[id(case)][1]

    @staticmethod
    def _of(case: Case, rates: Mapping[str, StreamRates]) -> tuple[dict[tuple[str, ...], tuple[float, float]], float]:
        predicted = predictions(case, rates)
        keys = [tile_key(option.variant, option.tile) for option in case.options]
        best = min(case.us.values(), default=math.inf)
        logs: dict[str, list[float]] = {name: [] for name in MODELS}
        for key, name, value in zip(keys, case.models, predicted, strict=True):
            if key in case.us and case.us[key] < NEAR * best:
                logs[name].append(math.log(case.us[key] / value))
        every = [value for of_model in logs.values() for value in of_model]
        middle = float(np.median(every)) if every else 0.0
        factors = {name: math.exp(float(np.median([*of_model, middle]))) for name, of_model in logs.items()}
        found: dict[tuple[str, ...], tuple[float, float]] = {}
        for option, key, name, value in zip(case.options, keys, case.models, predicted, strict=True):
            if option.programs not in found or value < found[option.programs][0]:
                found[option.programs] = float(value), case.us.get(key, float(value) * factors[name])
        return found, best if case.us else min(us for _, us in found.values())

    def taken(self, programs: Iterable[int], margin: float, margin_us: float = math.inf) -> Any:
        """The bundle of each case that the choice takes with these programs."""
        within = np.zeros(len(self.programs), bool)
        within[list(programs)] = True
        shared = np.flatnonzero(~(self.needed & ~within).any(1))
        if not len(shared):
            return self.fastest
        best = shared[self.predicted[:, shared].argmin(1)]
        us, least_us = self.predicted[self.rows, best], self.predicted[self.rows, self.fastest]
        alike = np.where(self.kernels == self.kernels[best][:, None], self.predicted, np.inf).argmin(1)
        best = np.where(self.predicted[self.rows, alike] + margin_us < us, alike, best)
        return np.where(us <= least_us * (1 + margin), best, self.fastest)

    def regrets(self, programs: Iterable[int], margin: float, margin_us: float = math.inf) -> Any:
        """The regret of each case."""
        return np.maximum(self.us[self.rows, self.taken(programs, margin, margin_us)] / self.best - 1, 0)

    def most_needed(self, programs: Iterable[int], margin: float, margin_us: float = math.inf) -> int:
        """The most programs that a type in a grid needs."""
        taken = self.taken(programs, margin, margin_us)
        return max(int(self.needed[taken[rows]].any(0).sum()) for rows in self.grids)

    def cost(self, programs: Iterable[int], margin: float, limit: int) -> float:
        """What the search reduces."""
        taken = self.taken(programs, margin)
        regrets = np.maximum(self.us[self.rows, taken] / self.best - 1, 0)
        above = [max(0, int(self.needed[taken[rows]].any(0).sum()) - limit) for rows in self.grids]
        of_grid = regrets[~self.measured].mean() if self.grids else 0.0
        return float(regrets[self.measured].mean() + GRID_WEIGHT * of_grid + EXCESS * np.mean(above or [0]))

    def search(self, size: int, margin: float, limit: int) -> frozenset[int]:
        """A set of at most ``size`` programs with a small cost."""
        rng = np.random.default_rng(size)
        found: frozenset[int] = frozenset()
        least = self.cost(found, margin, limit)
        for _ in range(STEPS):
            kind, added = rng.random(), frozenset({int(rng.integers(len(self.programs)))})
            omitted = frozenset({int(rng.choice(sorted(found)))}) if found else frozenset()
            tried = found - omitted | added if kind < 0.6 else found | added if kind < 0.8 else found - omitted
            if len(tried) <= size and (cost := self.cost(tried, margin, limit)) <= least:
                found, least = tried, cost
        return found


def near(of_case: Mapping[tuple[str, ...], tuple[float, float]]) -> list[tuple[str, ...]]:
    """The programs that the choice can take in a case: within the largest margin of the smallest prediction."""
    least = min(predicted for predicted, _ in of_case.values())
    return [bundle for bundle, (predicted, _) in of_case.items() if predicted <= least * (1 + max(MARGINS))]


def predictions(case: Case, rates: Mapping[str, StreamRates]) -> Any:
    """The predicted times of the options of a case."""
    found = np.empty(len(case.options))
    for name in set(case.models):
        at = np.flatnonzero([model == name for model in case.models])
        found[at] = stream_model.predicted_us(rates[name], fit_products.arrays([case.works[i] for i in at]), 1.0)
    return found + case.beside


@dataclass(frozen=True)
class Found:
    """Programs, what the grid needs with them for a type, and the mean regrets of the measured cases and of the grid."""

    shared: SharedPrograms
    needed: int
    regret: float
    of_grid: float

    @property
    def weighted(self) -> float:
        """The regret that decides."""
        return self.regret + GRID_WEIGHT * self.of_grid


def searched(
    cases: Sequence[Case], grid_cases: Sequence[Case], rates: Mapping[str, StreamRates], limit: int
) -> list[Found]:
    """The sets of programs that the search finds, for each size and margin."""
    choices = Choices([*cases, *grid_cases], rates)
    found = []
    for size, margin in itertools.product(SIZES, MARGINS):
        programs = choices.search(size, margin, limit)
        regret = choices.regrets(programs, margin)
        means = float(regret[choices.measured].mean()), float(regret[~choices.measured].mean())
        shared = SharedPrograms(frozenset(choices.programs[i] for i in programs), margin)
        found.append(Found(shared, choices.most_needed(programs, margin), *means))
    return found


def best(found: Sequence[Found], limit: int) -> Found:
    """The least regret with at most ``limit`` programs, or, where there is none, the fewest programs."""
    within = [each for each in found if each.needed <= limit]
    if within:
        return min(within, key=lambda each: (each.weighted, each.needed))
    return min(found, key=lambda each: (each.needed, each.weighted))


def with_programs_of(kernel: str, step: str, cases: Sequence[Case]) -> SharedPrograms:
    """The programs of the file, and all of a step that cases may take."""
    known = product_programs().shared[kernel]
    every = {program for case in cases for option in case.options for program in option.programs}
    added = {each for each in every if each.split()[0] == step}
    return SharedPrograms(known.programs | added, known.margin)


def needed(grid_cases: Sequence[Case], rates: Mapping[str, StreamRates], shared: SharedPrograms) -> int:
    """The most programs that the cases of a type in a grid need."""
    choices = Choices(grid_cases, rates)
    programs = [i for i, p in enumerate(choices.programs) if p in shared.programs]
    return choices.most_needed(programs, shared.margin, shared.margin_us)


def regrets(cases: Sequence[Case], rates: Mapping[str, StreamRates], shared: SharedPrograms) -> Any:
    """The regret of each case with these programs."""
    choices = Choices(cases, rates)
    programs = [i for i, p in enumerate(choices.programs) if p in shared.programs]
    return choices.regrets(programs, shared.margin, shared.margin_us)


def held_out(
    rows: Sequence[Any], cases: Sequence[Case], grid_cases: Sequence[Case], folds: int, limit: int
) -> tuple[Any, Any]:
    """The regrets by a fit and a search without the cases of the same sizes; with the shared programs, and with all."""
    sizes = sorted({case.sizes for case in cases})
    shared, every = [], []
    for fold in range(folds):
        out = set(sizes[fold::folds])
        rates = fit_products.best_of([row for row in rows if row.case[2] not in out], 1, 20000).models
        kept, rest = ([case for case in cases if (case.sizes in out) == left] for left in (False, True))
        found = best(searched(kept, grid_cases, rates, limit), limit)
        shared.append(regrets(rest, rates, found.shared))
        every.append(regrets(rest, rates, SharedPrograms()))
    return np.concatenate(shared), np.concatenate(every)


def exceptions(cases: Sequence[Case], rates: Mapping[str, StreamRates], shared: SharedPrograms) -> list[dict[str, Any]]:
    """The measured cases in which the choice is slower than the fastest measured tile, by the latest file with each."""
    found: dict[str, dict[str, Any]] = {}
    for case, regret in zip(cases, regrets(cases, rates, shared), strict=True):
        w = case.workload
        key = min(case.us, key=lambda each: case.us[each])
        fastest = next(o for o in case.options if tile_key(o.variant, o.tile) == key)
        if w.layout != "tn" or getattr(w, "batch", 1) > 1:
            continue
        found.pop(case.sizes, None)
        if regret > EXCEPTION:
            sizes = {name: getattr(w, name) for name in ("m", "n", "k")}
            tile = {"variant": fastest.variant, "tile": dict(fastest.tile)}
            found[case.sizes] = {"kernel": w.name, **sizes, "dtype": w.dtype, **tile, "us": case.best_us}
    return list(found.values())


def with_exceptions(cases: Sequence[Case], found: Any, excepted: Sequence[Mapping[str, Any]]) -> Any:
    """The regrets of cases after the exceptions."""
    by_sizes = {tuple(e[k] for k in ("kernel", "m", "n", "k", "dtype")): e for e in excepted}
    result = np.array(found)
    for i, case in enumerate(cases):
        w = case.workload
        exception = next(filter(None, map(by_sizes.get, keys_of_exceptions(w))), None)
        if exception and (us := case.us.get(tile_key(exception["variant"], exception["tile"]))) is not None:
            result[i] = us / case.best_us - 1
    return result


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", nargs="+", type=Path, metavar="TIMES", help="read times from these files")
    parser.add_argument("--limit", type=int, metavar="N", help="let the grid need at most N programs for a type")
    parser.add_argument("--folds", type=int, default=0, metavar="N", help="also search N times without a part of the cases")
    parser.add_argument("--dry-run", action="store_true", help="print without writing")
    parser.add_argument("--add", metavar="STEP", help="add all programs of a step, such as step16, to the present set")
    parser.add_argument("--kernel", choices=KERNELS, help="choose those of this kernel alone, and keep those of the other one")
    given = parser.parse_args(arguments)
    try:
        files = [read(path) for path in given.times]
        rows = [row for path in given.times for row in fit_products.read(path)[1]]
        rates = fitted_products()
        facts = facts_of(find_gpu(files[0][0]["gpu"]))
        written: dict[str, Any] = {
            "written_by": "scripts/choose_programs.py",
            "measured_on": {k: files[0][0][k] for k in ("gpu", "driver", "nvrtc") if k in files[0][0]},
            "kernels": {},
            "exceptions": [],
        }
        kept = json.loads(FILE.read_text(encoding="utf-8")) if given.kernel else {"exceptions": ()}
        for kernel in KERNELS:
            if given.kernel not in (None, kernel):
                written["kernels"][kernel] = kept["kernels"][kernel]
                written["exceptions"] += [each for each in kept["exceptions"] if each["kernel"] == kernel]
                continue
            cases = [case for _, of_file in files for case in of_file if case.kernel == kernel]
            limit = given.limit or KERNELS[kernel]
            on_grid, unseen = of_grid(kernel, facts, SEEDS), of_grid(kernel, facts, UNSEEN)
            every = regrets(cases, rates, SharedPrograms())
            sets = [] if given.add else searched(cases, on_grid, rates, limit)
            shared = with_programs_of(kernel, given.add, [*cases, *on_grid]) if given.add else best(sets, limit).shared
            shared = replace(shared, margin_us=MARGINS_US[kernel])
            for each in sets:
                print(f"  {len(each.shared.programs)} programs, margin {each.shared.margin:.0%}: ", end="")
                print(f"the grid needs at most {each.needed} for a type,", end=" ")
                print(f"mean regret {each.regret:.1%}, of the grid by predictions {each.of_grid:.1%}")
            print(f"{kernel}: {len(shared.programs)} programs, margin {shared.margin:.0%}; the grid needs at most", end=" ")
            print(f"{needed(on_grid, rates, shared)} for a type, of other seeds {needed(unseen, rates, shared)}", end=" ")
            print(f"(without a set {needed([*on_grid, *unseen], rates, SharedPrograms())})")
            found = regrets(cases, rates, shared)
            excepted = exceptions(cases, rates, shared)
            print(summary("  all programs", every))
            print(summary("  shared programs", found))
            print(summary(f"  with {len(excepted)} exceptions", with_exceptions(cases, found, excepted)))
            if given.folds > 1:
                out, others = held_out(rows, cases, on_grid, given.folds, limit)
                print(summary(f"  all programs, without the case in the fit ({given.folds} folds)", others))
                print(summary("  shared programs, without the case in fit and search", out))
            margin_us = {"margin_us": shared.margin_us} if math.isfinite(shared.margin_us) else {}
            written["kernels"][kernel] = {"margin": shared.margin, **margin_us, "programs": sorted(shared.programs)}
            written["exceptions"] += excepted
    except (PtxkitError, OSError, KeyError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not given.dry_run:
        FILE.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
