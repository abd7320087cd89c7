"""Fit the coefficients of the gradients of norms in one launch to measured times, and write them to one_launch.json.

    python scripts/fit_gradients.py TIMES.jsonl... [--dry-run]

TIMES are files of ``scripts/measure_choices.py``, compressed (.gz) or not. Fitted is the logarithm of predicted over measured
time of all tiles of ``one_launch``, where slow tiles count less, as in ``scripts/fit_choice.py``. Each coefficient is varied by
factors in turn, from the present values, until nothing improves. The coefficients of the variants with partial sums are then
those with the smallest mean regret of the choice between one launch and two.

Printed is the regret of the tile and of the variant that the model takes, of those that were measured, also with each case left
out of the fit in turn. Cases in which it is more than EXCEPTION become measured exceptions: on that GPU, the fastest measured
tile, or two launches, are taken at exactly these sizes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fit_choice import FACTORS, ROUNDS, given_cases, read, summary, write_coefficients

from ptxkit import Tile
from ptxkit.kernels.rows.backward import Gradients, move_as_blocks
from ptxkit.kernels.rows.backward_one_launch import FILE, Coefficients, Parts, fitted, parts, second_us, usable
from ptxkit.targets.gpus import facts_of, find_gpu
from ptxkit.workload import registry

EXCEPTION = 0.03
OF_TWO = {  # values that are tried for the variants with partial sums
    "second_us": (2.5, 3.0, 3.5, 4.0, 4.5),
    "second_copy": (0.9, 1.0, 1.1, 1.2, 1.3),
    "second_cluster": (1.1, 1.3, 1.5, 1.7, 1.9),
    "second_short": (3.0, 4.0, 5.0, 6.0),
}


@dataclass(frozen=True)
class Case:
    """The tiles of one_launch of a case with their times in microseconds, and the least of the variants with partial sums.

    The least is infinite where only tiles were measured that are no longer taken.
    """

    workload: Any
    tiles: tuple[Tile, ...]
    rows: tuple[tuple[Parts, float], ...]
    two_us: float

    @property
    def best_us(self) -> float:
        return min(time for _, time in self.rows)

    def taken(self, c: Coefficients) -> tuple[Parts, float]:
        """The tile that the model takes."""
        return min(self.rows, key=lambda each: each[0].time_us(c))


def cases_of(path: Path) -> list[Case]:
    """The cases of a file with tiles of one_launch."""
    head, values = read(path)
    facts = facts_of(find_gpu(head["gpu"]))
    found = []
    for value in values:
        workload = registry.get(value["kernel"])(**value["sizes"], **value["options"]).on(facts)
        if not isinstance(workload, Gradients):
            continue
        timed = [row for row in value["rows"] if "us" in row]
        tiles = [(Tile(row["tile"]), row["us"]) for row in timed if row.get("variant") == "one_launch"]
        tiles = [(tile, time) for tile, time in tiles if usable(workload, tile) is True]
        two = [row["us"] for row in timed if row.get("variant") in ("vectorized", "pipelined") and comparable(workload, row)]
        if move_as_blocks(workload) and not two:
            two = [math.inf]
        if tiles and two:
            rows = tuple((parts(workload, tile), time) for tile, time in tiles)
            found.append(Case(workload, tuple(tile for tile, _ in tiles), rows, min(two)))
    return found


def comparable(workload: Any, row: dict[str, Any]) -> bool:
    """Whether a tile with partial sums may still be taken: rows that begin between two vectors move as blocks."""
    return not move_as_blocks(workload) or bool(row["tile"].get("BLOCK_STAGES"))


def loss(cases: Sequence[Case], c: Coefficients) -> float:
    """The weighted mean square of the logarithm of predicted over measured time, by cases."""
    total = 0.0
    for case in cases:
        weights = [(case.best_us / time) ** 2 for _, time in case.rows]
        errors = [math.log(part.time_us(c) / time) ** 2 for part, time in case.rows]
        total += sum(w * e for w, e in zip(weights, errors, strict=True)) / sum(weights)
    return total / len(cases)


def fit(cases: Sequence[Case], start: Coefficients, rounds: int = ROUNDS) -> Coefficients:
    """The coefficients with the smallest loss that varying one at a time reaches; those of two launches stay."""
    best, least = start, loss(cases, start)
    for _ in range(rounds):
        before = least
        for name in (f.name for f in dataclasses.fields(Coefficients) if f.name not in OF_TWO):
            for factor in FACTORS:
                tried = replace(best, **{name: getattr(best, name) * factor})
                if (found := loss(cases, tried)) < least:
                    best, least = tried, found
        if before - least < 1e-5:
            break
    return best


def regret(case: Case, c: Coefficients) -> float:
    """Regret of the variant and tile that the model takes, over the fastest of one launch and two."""
    part, time = case.taken(c)
    if case.two_us < math.inf and second_us(case.workload, c) < part.time_us(c):
        time = case.two_us
    return time / min(case.best_us, case.two_us) - 1


def with_two(cases: Sequence[Case], c: Coefficients) -> Coefficients:
    """The coefficients of two launches with the smallest mean regret; of several, those in the middle."""
    tried = [replace(c, **dict(zip(OF_TWO, values, strict=True))) for values in itertools.product(*OF_TWO.values())]
    regrets = [statistics.mean(regret(case, each) for case in cases) for each in tried]
    least = [each for each, value in zip(tried, regrets, strict=True) if value <= min(regrets) + 1e-9]
    middle = {name: statistics.median_low(getattr(each, name) for each in least) for name in OF_TWO}
    return replace(c, **middle)


def rounded(c: Coefficients) -> Coefficients:
    return Coefficients(**{name: float(f"{value:.3g}") for name, value in dataclasses.asdict(c).items()})


def exceptions(cases: Sequence[Case], c: Coefficients) -> list[dict[str, Any]]:
    """The cases in which the model takes a slower tile or variant, with the fastest one."""
    found = []
    for case in cases:
        w, fastest = case.workload, min(range(len(case.rows)), key=lambda i: case.rows[i][1])
        if regret(case, c) > EXCEPTION:
            tile = None if case.two_us < case.best_us else dict(case.tiles[fastest])
            sizes = {"kernel": w.name, "rows": w.rows, "cols": w.cols, "dtype": w.dtype}
            found.append({**sizes, "tile": tile, "us": min(case.best_us, case.two_us)})
    return found


def main(arguments: Sequence[str]) -> int:
    given = given_cases(arguments, __doc__, cases_of, "no tiles of one_launch were measured")
    if given is None:
        return 2
    writes, heads, cases = given
    found = rounded(with_two(cases, fit(cases, fitted())))
    left_out = []
    for case in cases:
        others = [other for other in cases if other is not case]
        left_out.append(regret(case, with_two(others, fit(others, found, rounds=1))))
    print(f"{len(cases)} cases, {sum(len(case.rows) for case in cases)} tiles; loss {loss(cases, found):.4f}")
    print(summary("tile of one launch", [case.taken(found)[1] / case.best_us - 1 for case in cases]))
    print(summary("variant and tile", [regret(case, found) for case in cases]))
    print(summary("variant and tile, case left out of the fit", left_out))
    excepted = exceptions(cases, found)
    by_exception = [0.0 if regret(case, found) > EXCEPTION else regret(case, found) for case in cases]
    print(summary(f"variant and tile, {len(excepted)} measured exceptions", by_exception))
    for name, value in dataclasses.asdict(found).items():
        print(f"{name} = {value:g}")
    if writes:
        beside = {"exceptions": excepted}
        write_coefficients(FILE, "scripts/fit_gradients.py", heads, len(cases), found, beside)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
