"""Fit the coefficients of the gradients of norms in one launch to measured times, and write them to one_launch.json.

    python scripts/fit_gradients.py TIMES.jsonl... [--second TIMES.jsonl...] [--dry-run]

TIMES are files of ``scripts/measure_choices.py``, compressed (.gz) or not. Fitted is the logarithm of predicted over measured
time of all tiles of ``one_launch``, where slow tiles count less, as in ``scripts/fit_choice.py``. Each coefficient is varied by
factors in turn, from the present values, until nothing improves. The coefficients of the variants with partial sums are then
those with the smallest sum of the regrets of the choice between one launch and two, and of the squares of the logarithm of
predicted over measured time of two launches. They are fitted to the files of --second as well, which have few tiles of one
launch: those that the model had taken for the fastest. From these alone it cannot learn what makes a tile slow.

Printed is the regret of the tile and of the variant that the model takes, of those that were measured, also with each case left
out of the fit of one launch in turn. Cases of TIMES in which it is more than EXCEPTION become measured exceptions: on that GPU,
the fastest measured tile, or two launches, are taken at exactly these sizes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fit_choice import FACTORS, ROUNDS, given_cases, read, summary, write_coefficients

from ptxkit import Tile
from ptxkit.errors import PtxkitError
from ptxkit.kernels.rows.backward import Gradients, move_as_blocks, second_tile
from ptxkit.kernels.rows.backward import usable as usable_in_two
from ptxkit.kernels.rows.backward_one_launch import FILE, Coefficients, Parts, fitted, kind, parts, second_us, usable
from ptxkit.targets.gpus import facts_of, find_gpu
from ptxkit.workload import registry

EXCEPTION = 0.03
STARTS = (2.5, 3.0, 3.5, 4.0, 4.5, 5.0)  # values that are tried for second_us
EXCHANGES = (0.0, 0.3, 0.6, 0.9, 1.2, 1.5)  # for exchange_us, and for each kind of rows:
OF_TWO: Mapping[str, Mapping[str, Sequence[float]]] = {
    "second_copy": {"second_copy": (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4)},
    "second_cluster": {"second_cluster": (0.5, 0.7, 0.9, 1.1, 1.3, 1.5, 1.7, 1.9)},
    "second_short": {"second_short": (3.0, 4.0, 5.0, 6.0)},
    "second_blocks": {
        "second_blocks": (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5),
        "blocks_us": (0.0, 1.0, 2.0, 3.0, 4.0),
    },
    "second_streamed": {
        "second_streamed": (1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4),
        "streamed_us": (0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1),
    },
    "second_single": {"second_single": (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8)},
    "second_single_cluster": {"second_single_cluster": (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.5)},
}
SECOND = {"second_us", "exchange_us", *itertools.chain(*OF_TWO.values())}  # the coefficients of two launches


@dataclass(frozen=True)
class Case:
    """The tiles of one_launch of a case with their times in microseconds, and the least of the variants with partial sums.

    The least is infinite where only tiles were measured that are no longer taken.
    """

    workload: Any
    tiles: tuple[Tile, ...]
    rows: tuple[tuple[Parts, float], ...]
    two_us: float

    @cached_property
    def kind(self) -> str:
        """The kind of its rows in two launches."""
        return kind(self.workload, second_tile(self.workload))

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
    blocks = bool(row["tile"].get("BLOCK_STAGES"))
    if blocks and usable_in_two(workload, Tile(row["tile"])) is not True:
        return False
    return not move_as_blocks(workload) or blocks


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
        for name in (f.name for f in dataclasses.fields(Coefficients) if f.name not in SECOND):
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
    """The coefficients of two launches with the smallest sum of regrets and errors; each kind of rows has its own cases."""
    kinds = {name: [case for case in cases if case.kind == name] for name in OF_TWO}

    def of_kind(start: Coefficients, name: str) -> tuple[float, Coefficients]:
        names, values = OF_TWO[name].keys(), OF_TWO[name].values()
        tried = [replace(start, **dict(zip(names, each, strict=True))) for each in itertools.product(*values)]
        return min(((judged(kinds[name], each), each) for each in tried), key=lambda each: each[0])

    found = []
    for start_us, exchange_us in itertools.product(STARTS, EXCHANGES):
        best, total = replace(c, second_us=start_us, exchange_us=exchange_us), 0.0
        for name, own in kinds.items():
            if own:
                more, best = of_kind(best, name)
                total += more
        found.append((total, best))
    return min(found, key=lambda each: each[0])[1]


def judged(cases: Sequence[Case], c: Coefficients) -> float:
    """The sum of the regrets of these cases and of the squared errors of the times of two launches."""
    errors = [math.log(second_us(case.workload, c) / case.two_us) ** 2 for case in cases if case.two_us < math.inf]
    return sum(regret(case, c) for case in cases) + sum(errors)


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
    split = arguments.index("--second") if "--second" in arguments else len(arguments)
    options = [each for each in arguments[split:] if each.startswith("--") and each != "--second"]
    given = given_cases([*arguments[:split], *options], __doc__, cases_of, "no tiles of one_launch were measured")
    if given is None:
        return 2
    writes, heads, cases = given
    second = [Path(each) for each in arguments[split + 1 :] if not each.startswith("--")]
    try:
        every = [*cases, *(case for path in second for case in cases_of(path))]
        heads = [*heads, *(read(path)[0] for path in second)]
    except (PtxkitError, OSError, KeyError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = rounded(with_two(every, fit(cases, fitted())))
    two = {name: getattr(found, name) for name in SECOND}
    left_out = []
    for case in cases:
        others = [other for other in cases if other is not case]
        left_out.append(regret(case, replace(fit(others, found, rounds=1), **two)))
    print(f"{len(cases)} cases, {sum(len(case.rows) for case in cases)} tiles; loss {loss(cases, found):.4f}")
    print(summary("tile of one launch", [case.taken(found)[1] / case.best_us - 1 for case in cases]))
    print(summary("variant and tile", [regret(case, found) for case in cases]))
    print(summary("variant and tile, case left out of the fit", left_out))
    if second:
        print(summary("variant and tile, with the files of --second", [regret(case, found) for case in every]))
    excepted = exceptions(cases, found)
    by_exception = [0.0 if regret(case, found) > EXCEPTION else regret(case, found) for case in cases]
    print(summary(f"variant and tile, {len(excepted)} measured exceptions", by_exception))
    for name, value in dataclasses.asdict(found).items():
        print(f"{name} = {value:g}")
    if writes:
        beside = {"exceptions": excepted}
        write_coefficients(FILE, "scripts/fit_gradients.py", heads, len(every), found, beside)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
