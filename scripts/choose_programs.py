"""Find the programs that products share, and write them to ptxkit/kernels/gemm/product_programs.json.

    python scripts/choose_programs.py TIMES.jsonl... [--kernel NAME] [--dry-run]

Run it after tiles, steps or the coefficients of their models have changed; it takes about a minute. TIMES are files with the
schema of ``scripts/measure_choices.py``, compressed (.gz) or not.

For each kernel and type the script searches a set of programs, and uses a margin by which another program must be predicted to
be faster to be compiled. With a margin, each product of the grid of ``ptxkit bench shapes`` needs a program of the set that is
predicted to be at most so much slower than the fastest one. The fewest programs with which each has one are printed for several
margins, with the losses that follow, and of such sets one with a small loss is searched: that of the grid, of OTHERS random
products and products of models, for which programs outside of the set may be compiled, and the regret of the measured cases.

The loss of a product is the predicted time of the program that is taken over that of the fastest one, less 1. The regret of a
measured case is the time over that of the fastest measured tile; a tile that was not measured at these sizes takes its
prediction, times the median of measured over predicted time of the case's tiles of the same variant. The search begins with the
programs that reduce the losses most, one after another, and then exchanges one at a time as long as that is an improvement.

Exceptions are measured cases in which the choice takes more than EXCEPTION over the fastest measured tile: the choice takes
that tile at exactly these sizes on the GPU that was measured, for bf16 and f16 alike, or the fastest measured one of a shared
program, if that is not slower by more than the margin. At sizes of the grid, whose programs are to be few, a tile of another
program is an exception only where the choice takes more than SPECIAL_GAIN times the margin over it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import choice_files
import numpy as np
from fit_products import stored_as_now, summary
from tabulate import tabulate

from ptxkit.bench.shapes.grid import SIDES, TOKENS, VECTOR, grid, layers
from ptxkit.bench.shapes.models import DIMENSIONS
from ptxkit.errors import PtxkitError, UsageError
from ptxkit.kernels.gemm import fused_tiles, micro_choice, multicast, steps, stream_k
from ptxkit.kernels.gemm.programs import COPIES, FILE, Option, SharedPrograms, dtype_of, keys_of_exceptions
from ptxkit.targets.gpus import DeviceFacts, facts_of, find_gpu
from ptxkit.workload import registry


@dataclass(frozen=True)
class Group:
    """A kernel with types that have the same programs.

    Attributes:
        margin: of those of MARGINS; None where nothing is written, so that each product takes the fastest program.
        margin_us: microseconds by which another program of the same step must be predicted to be faster, if that is less than
            the margin. Found from the times of matmul_wgmma.
        least_us: microseconds by which it must at least be predicted to be faster.
        multiple: of which random sizes are.
    """

    kernel: str
    dtypes: tuple[str, ...]
    margin: float | None
    margin_us: float = math.inf
    least_us: float = 0.0
    multiple: int = 1


GROUPS = (
    Group("matmul_wgmma", ("bf16", "f16"), margin=0.06, margin_us=1.5),
    *(
        Group("matmul_fused", (dtype,), margin=margin, least_us=0.15, multiple=VECTOR)
        for dtype, margin in (("e4m3", 0.04), ("s8", 0.06), ("tf32", 0.06))
    ),
    Group("micro_tiling_matmul", ("f32",), margin=None),
)
"""With larger margins, products that were measured afterwards lose more than predicted: docs/shapes.md."""
MARGINS = (0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.1)
OTHERS = 300  # products beside those of the grid, for each group: two of three random, the others of models
OTHERS_WEIGHT = 0.5  # of the mean loss of these, where that of the grid and the mean regret count once
UNCOVERED, SPECIAL = 1.0, 0.03  # counted as losses of a product that needs another program, of the grid and of the others
COVERS = 300  # attempts to find the fewest programs
EXCEPTION = 0.03  # more than the difference of the same tile between two runs, in nine of ten cases
SPECIAL_GAIN = 3.0
NEAR = 2.0  # tiles up to so many times the fastest one calibrate the predictions of a case


@dataclass(frozen=True)
class Case:
    """A product with the options of the choice, and measured times: (variant, tile) -> microseconds."""

    workload: Any
    options: tuple[Option, ...]
    us: Mapping[Any, float]

    @property
    def best_us(self) -> float:
        return min(self.us.values())


def tile_key(variant: str, tile: Mapping[str, Any]) -> Any:
    """What identifies a tile: without what follows from the other parameters, and may have other values in old files.

    Those of step 15 had no PARTS and CTAS_PER_SM, those of step 13 no B_SHARING, those of step 8 no PING_PONG, and those of
    products in f32 no COPY.
    """
    tile = stream_k.ALONE | tile if variant in ("stream_k", "step13_stream_k") else tile
    tile = multicast.ALONE | tile if variant in ("multicast", "step15_multicast") else tile
    given = ((k, v) for k, v in tile.items() if v or k not in ("COPY", "PING_PONG"))
    kept = ((k, v) for k, v in given if k not in ("GROUP", "REGISTERS", "BOXES"))
    return variant, tuple(sorted(kept))


def options_of(workload: Any) -> Iterator[Option]:
    """What the choice considers for a product."""
    if workload.name == "matmul_fused":
        yield from fused_tiles.options(workload)
    elif workload.name == "micro_tiling_matmul":
        yield from micro_choice.options(workload)
    else:
        for step in steps.TILES:
            yield from steps.options(workload, step)


def case_of(workload: Any, rows: Iterable[dict[str, Any]] = ()) -> Case:
    """A case with its times, of equal tiles with different groups the shortest."""
    us: dict[Any, float] = {}
    for row, time in choice_files.times(list(rows)):
        key = tile_key(row["variant"], row["tile"])
        us[key] = min(time, us.get(key, time))
    options = tuple(options_of(workload))
    known = {tile_key(option.variant, option.tile) for option in options} if us else ()
    return Case(workload, options, {key: time for key, time in us.items() if key in known})


def read(path: Path) -> tuple[dict[str, Any], list[Case]]:
    """The first line of a file, and its cases of the kernels that have programs in common."""
    head, values = choice_files.read(path)
    facts, kernels = facts_of(find_gpu(head["gpu"])), {group.kernel for group in GROUPS}
    made = (registry.get(v["kernel"])(**v["sizes"], **v["options"]) if v["kernel"] in kernels else None for v in values)
    cases = []
    for w, value in zip(made, values, strict=True):
        if w is not None:
            rows = [row for row in value["rows"] if stored_as_now(head, w, row.get("variant", ""))]
            cases.append(case_of(w.on(facts), rows))
    return head, [case for case in cases if case.us]


def of_grid(group: Group, facts: DeviceFacts) -> list[Case]:
    """The products of the grid."""
    return [case_of(shape.workload.on(facts)) for shape in grid(0).shapes if belongs(shape.workload, group)]


def belongs(w: Any, group: Group) -> bool:
    """Whether the programs of a group are for a product."""
    single = getattr(w, "layout", "tn") == "tn" and getattr(w, "batch", 1) == 1
    return bool(w.name == group.kernel and dtype_of(w) in group.dtypes and single)


def others(group: Group, facts: DeviceFacts, count: int) -> list[Case]:
    """Random products, of sizes as those of the grid, and every layer of models with every number of tokens, at random."""
    generator = random.Random(f"programs {group.kernel} {group.dtypes}")
    kernel, of = registry.get(group.kernel), group.multiple
    options = {"dtype": group.dtypes[0]} if "dtype" in kernel.fields() else {}
    low, high = map(math.log, SIDES)
    sizes = []
    for _ in range(2 * count // 3):
        m, n, k = (round(math.exp(generator.uniform(low, high))) for _ in range(3))
        sizes.append((m, -(-n // of) * of, -(-k // of) * of))
    of_models = [(tokens, n, k) for tokens in TOKENS for model in DIMENSIONS.values() for n, k in layers(model)]
    found = []
    for m, n, k in (*sizes, *generator.sample(of_models, min(len(of_models), count - len(sizes)))):
        try:
            found.append(case_of(kernel(m=m, n=n, k=k, **options).on(facts)))
        except UsageError:  # sizes that it does not take
            continue
    return found


def program_of(option: Option) -> str:
    """The program of the product, without that of copies."""
    return next(name for name in option.programs if not name.startswith(COPIES))


class Times:
    """For each case and each program, the option with the smallest prediction, and its time.

    Attributes:
        programs: their names. predicted, us: of each case with each program; infinite without an option. best: of each case.
        refused: where another program is compiled, with the margins. cost: what a case contributes if it takes a program.
    """

    def __init__(self, of_grid: Sequence[Case], others: Sequence[Case], measured: Sequence[Case]) -> None:
        self.cases = [*of_grid, *others, *measured]
        groups = (len(of_grid), 1.0), (len(others), OTHERS_WEIGHT), (len(measured), 1.0)
        self.weights = np.concatenate([np.full(count, weight / max(1, count)) for count, weight in groups])
        self.grid = np.arange(len(self.cases)) < len(of_grid)
        self.measured = np.arange(len(self.cases)) >= len(of_grid) + len(others)
        steps_of = {program_of(o): o.variant for case in self.cases for o in case.options}
        self.programs = sorted(steps_of)
        self.at = {name: i for i, name in enumerate(self.programs)}
        self.of_step = np.array([steps_of[name] for name in self.programs])
        self.predicted = np.full((len(self.cases), len(self.programs)), np.inf)
        self.us = np.full_like(self.predicted, np.inf)
        self.best = np.empty(len(self.cases))
        for row, case in enumerate(self.cases):
            self._enter(row, case)
        self.with_margins(0.0)

    def _enter(self, row: int, case: Case) -> None:
        logs: dict[str, list[float]] = {}
        best = case.best_us if case.us else math.inf
        for option in case.options if case.us else ():
            us = case.us.get(tile_key(option.variant, option.tile), math.inf)
            if us < NEAR * best:
                logs.setdefault(option.variant, []).append(math.log(us / option.predicted_us))
        every = [value for of_variant in logs.values() for value in of_variant]
        middle = float(np.median(every)) if every else 0.0
        for option in case.options:
            at = row, self.at[program_of(option)]
            if option.predicted_us < self.predicted[at]:
                factor = math.exp(float(np.median([*logs.get(option.variant, ()), middle]))) if every else 1.0
                self.predicted[at] = option.predicted_us
                key = tile_key(option.variant, option.tile) if case.us else None
                self.us[at] = case.us.get(key, option.predicted_us * factor)
        self.best[row] = best if case.us else self.us[row].min()

    def with_margins(self, margin: float, margin_us: float = math.inf, least_us: float = 0.0) -> Times:
        """The same object with ``refused`` and ``cost`` for these margins."""
        rows, fastest = np.arange(len(self.cases)), self.predicted.argmin(1)
        shortest = self.predicted[rows, fastest][:, None]
        beyond = self.predicted > np.maximum(shortest * (1 + margin), shortest + least_us)
        alike = np.empty(self.predicted.shape, int)  # the fastest program of the same step
        for step in set(self.of_step):
            own = np.where(self.of_step == step, self.predicted, np.inf)
            alike[:, self.of_step == step] = own.argmin(1)[:, None]
        slower = np.take_along_axis(self.predicted, alike, 1) + margin_us < self.predicted
        self.refused = beyond | slower
        self.taken = np.where(beyond, fastest[:, None], np.where(slower, alike, np.arange(len(self.programs))))
        self.losses = np.maximum(np.take_along_axis(self.us, self.taken, 1) / self.best[:, None] - 1, 0)
        special = self.refused * np.where(self.grid, UNCOVERED, np.where(self.measured, 0.0, SPECIAL))[:, None]
        self.cost = (self.losses + special) * self.weights[:, None]
        return self

    def fewest(self) -> list[int]:
        """As few programs as were found of which one is taken in each case of the grid."""
        covers = ~self.refused[self.grid] & np.isfinite(self.predicted[self.grid])
        rng = np.random.default_rng(0)
        best: list[int] = []
        for attempt in range(COVERS):
            left, found = np.ones(len(covers), bool), []
            while left.any():
                gains = covers[left].sum(0) + rng.random(covers.shape[1]) * (1.5 if attempt else 0.5)
                found.append(int(gains.argmax()))
                left &= ~covers[:, found[-1]]
            for program in list(found):
                rest = [other for other in found if other != program]
                if rest and covers[:, rest].any(1).all():
                    found = rest
            if not best or len(found) < len(best):
                best = found
        return best

    def chosen(self, programs: Sequence[int]) -> Any:
        """The program that each case takes of these: the one with the smallest prediction."""
        return np.array(programs)[self.predicted[:, programs].argmin(1)]

    def search(self, size: int, begin: Sequence[int] = ()) -> list[int]:
        """``size`` programs with small costs, from those of ``begin`` on."""
        found = list(begin)
        while len(found) < min(size, len(self.programs)):
            found.append(int(self._with_each(found).argmin()))
        improved = True
        while improved:
            improved = False
            for i in range(len(found)):
                rest = found[:i] + found[i + 1 :]
                costs = self._with_each(rest)
                best = int(costs.argmin())
                if costs[best] < costs[found[i]] - 1e-9:
                    found[i], improved = best, True
        return found

    def _with_each(self, programs: Sequence[int]) -> Any:
        """The cost of these programs with each of the others."""
        if not programs:
            return np.where(np.isfinite(self.predicted), self.cost, self.weights[:, None] * (1 + UNCOVERED)).sum(0)
        rows, chosen = np.arange(len(self.cases)), self.chosen(programs)
        faster = self.predicted < self.predicted[rows, chosen][:, None]
        return np.where(faster, self.cost, self.cost[rows, chosen][:, None]).sum(0)

    def losses_of(self, programs: Sequence[int]) -> Any:
        """The loss of each case that takes one of these programs, or another one beyond the margins."""
        return self.losses[np.arange(len(self.cases)), self.chosen(programs)]


@dataclass(frozen=True)
class Found:
    """A set of programs, and what follows from it."""

    margin: float
    programs: tuple[str, ...]
    row: tuple[str, ...]


def searched(times: Times, group: Group, margin: float) -> Found:
    """The set of programs for a margin: as many as are enough for the grid."""
    times.with_margins(margin, group.margin_us, group.least_us)
    fewest = times.fewest()
    found = times.search(len(fewest), fewest)
    losses = times.losses_of(found)
    of_grid, other = losses[times.grid], losses[~times.grid & ~times.measured]
    row = [f"{margin:.0%}", str(len(found))]
    row += [f"{of_grid.mean():.1%}", f"{of_grid.max():.1%}", f"{other.mean():.1%}"]
    row += [f"{losses[times.measured].mean():.1%}" if times.measured.any() else ""]
    return Found(margin, tuple(sorted(times.programs[i] for i in found)), tuple(row))


def taken(case: Case, shared: SharedPrograms, excepted: Mapping[Any, Any]) -> Option:
    """What the choice takes."""
    for exception in map(excepted.get, keys_of_exceptions(case.workload)):
        for option in case.options if exception else ():
            if (option.variant, dict(option.tile)) == (exception["variant"], exception["tile"]):
                return option
    return shared.best(case.options)


def needed(cases: Sequence[Case], shared: SharedPrograms, excepted: Mapping[Any, Any]) -> dict[str, int]:
    """The programs that the cases of each type need."""
    found: dict[str, set[str]] = {}
    for case in cases:
        found.setdefault(dtype_of(case.workload), set()).update(taken(case, shared, excepted).programs)
    return {dtype: len(names) for dtype, names in found.items()}


def regrets(times: Times, shared: SharedPrograms, excepted: Mapping[Any, Any]) -> Any:
    """The regret of each measured case."""
    found = []
    for row in np.flatnonzero(times.measured):
        case = times.cases[row]
        option = taken(case, shared, excepted)
        us = case.us.get(tile_key(option.variant, option.tile), times.us[row, times.at[program_of(option)]])
        found.append(max(0.0, us / case.best_us - 1))
    return np.array(found)


def exceptions(times: Times, shared: SharedPrograms) -> dict[Any, dict[str, Any]]:
    """The measured cases in which the choice is slower than the fastest measured tile, by the latest file with each."""
    found: dict[Any, dict[str, Any]] = {}
    measured = [times.cases[row] for row in np.flatnonzero(times.measured)]
    on_grid = {next(iter(keys_of_exceptions(times.cases[row].workload))) for row in np.flatnonzero(times.grid)}
    for case, regret in zip(measured, regrets(times, shared, {}), strict=True):
        w = case.workload
        if getattr(w, "layout", "tn") != "tn" or getattr(w, "batch", 1) > 1:
            continue
        key = next(iter(keys_of_exceptions(w)))
        found.pop(key, None)
        if regret > EXCEPTION:
            special = key not in on_grid or regret > SPECIAL_GAIN * shared.margin
            timed = ((case.us.get(tile_key(o.variant, o.tile), math.inf), shared.has(o), o) for o in case.options)
            weighted = [(us if has else us * (1 + shared.margin), o) for us, has, o in timed if has or special]
            best = min(weighted, key=lambda one: one[0], default=(math.inf, case.options[0]))[1]
            us = case.us.get(tile_key(best.variant, best.tile), math.inf)
            if us * (1 + EXCEPTION) < (1 + regret) * case.best_us:
                sizes = {name: getattr(w, name) for name in ("m", "n", "k")}
                tile = {"variant": best.variant, "tile": dict(best.tile), "us": us}
                found[key] = {"kernel": w.name, **sizes, "dtype": dtype_of(w), **tile}
    return found


def chosen_for(group: Group, measured: Sequence[Case], facts: DeviceFacts) -> tuple[list[Any], list[Any]]:
    """What the file has for a group, nothing without a margin: programs and exceptions. Prints the sets for all margins."""
    on_grid = of_grid(group, facts)
    times = Times(on_grid, others(group, facts, OTHERS), [case for case in measured if belongs(case.workload, group)])
    sets = [searched(times, group, margin) for margin in MARGINS]
    best = next((each for each in sets if each.margin == group.margin), Found(0.0, (), ()))
    margin_us = group.margin_us if best.programs else math.inf
    shared = SharedPrograms(frozenset(best.programs), best.margin, margin_us, group.least_us)
    excepted = exceptions(times, shared)
    print(f"\n{group.kernel} {', '.join(group.dtypes)}: {len(times.programs)} programs; a margin of {best.margin:.0%} is taken")
    headers = ["margin", "programs", "mean loss", "largest", "of others", "regret"]
    print(tabulate([each.row for each in sets], headers, disable_numparse=True))
    for name, of in (("by predictions", {}), ("with exceptions", excepted)):
        counts = ", ".join(f"{count} of {dtype}" for dtype, count in needed(on_grid, shared, of).items())
        print(f"{name}: the grid takes {counts}")
        if times.measured.any():
            print(summary(f"  {len(of)} exceptions", regrets(times, shared, of)))
    value: dict[str, Any] = {"kernel": group.kernel, "dtypes": list(group.dtypes), "margin": best.margin}
    if math.isfinite(group.margin_us):
        value["margin_us"] = group.margin_us
    if group.least_us:
        value["least_us"] = group.least_us
    return ([], []) if group.margin is None else ([{**value, "programs": sorted(best.programs)}], list(excepted.values()))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", nargs="+", type=Path, metavar="TIMES", help="read times from these files")
    parser.add_argument("--kernel", help="choose those of this kernel alone, and keep those of the others")
    parser.add_argument("--dry-run", action="store_true", help="print without writing")
    given = parser.parse_args(arguments)
    try:
        files = [read(path) for path in given.times]
        facts = facts_of(find_gpu(files[0][0]["gpu"]))
        measured = [case for _, of_file in files for case in of_file]
        kept = json.loads(FILE.read_text(encoding="utf-8"))
        origin = {k: files[0][0][k] for k in ("gpu", "driver", "nvrtc") if k in files[0][0]}
        written: dict[str, Any] = {"written_by": "scripts/choose_programs.py", "measured_on": origin}
        written |= {"shared": [], "exceptions": []}
        for group in GROUPS:
            if given.kernel not in (None, group.kernel):
                mine = {name: [v for v in kept[name] if v["kernel"] == group.kernel] for name in ("shared", "exceptions")}
                written["shared"] += [value for value in mine["shared"] if value["dtypes"] == list(group.dtypes)]
                written["exceptions"] += [value for value in mine["exceptions"] if value["dtype"] in group.dtypes]
                continue
            shared, excepted = chosen_for(group, measured, facts)
            written["shared"] += shared
            written["exceptions"] += excepted
    except (PtxkitError, OSError, KeyError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not given.dry_run:
        FILE.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
