"""Fit the coefficients of the choice to measured times, and write them to ptxkit/targets/fitted.json.

    python scripts/fit_choice.py TIMES.jsonl... [--dry-run]

TIMES are files of ``scripts/measure_choices.py``, compressed (.gz) or not. Of each case, the tiles of variants that compute a
product in blocks count. Fitted is the logarithm of predicted over measured time, within each case, where slow tiles count less
(by the square of the fastest time over theirs) and the mean of a case a tenth: the model must order the tiles of a case, and
only roughly predict the time. Each coefficient is varied by factors in turn, from the present values, until nothing improves.
The margin is then the largest one with nearly the smallest mean regret.

Printed is the regret of the chosen tiles, with and without the model, also with each case left out of the fit in turn.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ptxkit.errors import PtxkitError
from ptxkit.targets.gpus import facts_of, find_gpu
from ptxkit.workload import registry
from ptxkit.workload.choice import model_of
from ptxkit.workload.cost import FILE, Coefficients, Model, fitted
from ptxkit.workload.resolve import resolve

FACTORS = (0.5, 0.7, 0.85, 0.95, 0.98, 1.02, 1.05, 1.18, 1.4, 2.0)
MARGINS = (1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5)
ROUNDS = 12
T = TypeVar("T")
LEVEL = 0.1  # weight of the mean error of a case


@dataclass(frozen=True)
class Row:
    """A measured tile with its model, its time in microseconds, and whether ptxkit had chosen it then."""

    model: Model
    time_us: float
    chosen: bool

    def predicted(self, c: Coefficients) -> float:
        """The predicted time in microseconds."""
        return self.model.terms(c).least


@dataclass(frozen=True)
class Case:
    """The tiles of one variant in a case. name: for messages. rows: of the tiles. best_us: of all variants."""

    name: str
    rows: tuple[Row, ...]
    best_us: float


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first line, and a value for each case, of a file of scripts/measure_choices.py."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines()
    head = json.loads(lines[0])
    if head.get("schema") != "ptxkit.choices/1":
        raise PtxkitError(f"{path} was not written by scripts/measure_choices.py")
    return head, [json.loads(line) for line in lines[1:]]


def cases_of(path: Path) -> list[Case]:
    """The cases of a file in which tiles of a variant with blocks were measured."""
    head, values = read(path)
    gpu = find_gpu(head["gpu"])
    facts = facts_of(gpu)
    found = []
    for value in values:
        workload = registry.get(value["kernel"])(**value["sizes"], **value["options"]).on(facts)
        timed = [(i, row) for i, row in enumerate(value["rows"]) if "us" in row]
        by_variant: dict[str, list[Row]] = {}
        for place, row in timed:
            variant = workload.variants().get(row["variant"])
            if variant is None or not variant.blocks:
                continue
            try:
                resolved = resolve(workload, variant, facts.target, row["tile"])
            except PtxkitError:
                continue  # the description has changed
            made = Row(model_of(resolved), row.get("leader_us", row["us"]), place == 0)
            by_variant.setdefault(variant.name, []).append(made)
        best = min((row.get("leader_us", row["us"]) for _, row in timed), default=0.0)
        name = f"{workload.name} {workload.size_text()}"
        found += [Case(f"{name} {v}", tuple(rows), best) for v, rows in by_variant.items() if len(rows) > 2]
    return found


def loss(cases: Sequence[Case], c: Coefficients) -> float:
    """The mean over cases of the weighted variance of the logarithm of predicted over measured time."""
    total = 0.0
    for case in cases:
        fastest = min(row.time_us for row in case.rows)
        errors = [math.log(row.predicted(c) / row.time_us) for row in case.rows]
        weights = [(fastest / row.time_us) ** 2 for row in case.rows]
        mean = sum(w * e for w, e in zip(weights, errors, strict=True)) / sum(weights)
        variance = sum(w * (e - mean) ** 2 for w, e in zip(weights, errors, strict=True)) / sum(weights)
        total += variance + LEVEL * mean**2
    return total / len(cases)


def fit(cases: Sequence[Case], start: Coefficients, rounds: int = ROUNDS) -> Coefficients:
    """The coefficients with the smallest loss that varying one at a time reaches."""
    best, least = start, loss(cases, start)
    for _ in range(rounds):
        before = least
        for name in (f.name for f in dataclasses.fields(Coefficients) if f.name != "margin"):
            for factor in FACTORS:
                tried = replace(best, **{name: getattr(best, name) * factor})
                if max(tried.product, tried.vector_product, tried.warp_product) > 1:
                    continue  # shares of a peak
                if (found := loss(cases, tried)) < least:
                    best, least = tried, found
        if before - least < 1e-5:
            break
    return best


def regret(case: Case, c: Coefficients) -> tuple[float, float] | None:
    """Regret of the tile that the model takes, and of the one that was chosen; None where that was not measured."""
    chosen = next((row for row in case.rows if row.chosen), None)
    if chosen is None:
        return None
    best = min(case.rows, key=lambda row: row.predicted(c))
    faster = best.predicted(c) * c.margin < chosen.predicted(c)
    taken = best if faster else chosen
    return taken.time_us / case.best_us - 1, chosen.time_us / case.best_us - 1


def summary(title: str, values: Sequence[float]) -> str:
    ordered = sorted(values)
    at = [100 * ordered[min(len(ordered) - 1, math.ceil(q * len(ordered)) - 1)] for q in (0.5, 0.95, 1.0)]
    mean = 100 * statistics.mean(ordered)
    return f"{title:<42} {len(ordered):3} cases: mean {mean:5.1f}%, median {at[0]:5.1f}%, p95 {at[1]:5.1f}%, max {at[2]:5.1f}%"


def rounded(c: Coefficients) -> Coefficients:
    return Coefficients(**{name: float(f"{value:.3g}") for name, value in dataclasses.asdict(c).items()})


def given_cases(
    arguments: Sequence[str], doc: str | None, cases_of: Callable[[Path], list[T]], what: str
) -> tuple[bool, list[dict[str, Any]], list[T]] | None:
    """Whether to write, and the first lines and the cases of the files that the arguments name; None after an error message.

    Args:
        doc: of the script. cases_of: the cases of a file. what: the error if no file has any.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", nargs="+", type=Path, help="files of scripts/measure_choices.py")
    parser.add_argument("--dry-run", action="store_true", help="print without writing")
    given = parser.parse_args(arguments)
    try:
        cases = [case for path in given.times for case in cases_of(path)]
        heads = [read(path)[0] for path in given.times]
    except (PtxkitError, OSError, KeyError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return None
    if not cases:
        print(f"error: {what}", file=sys.stderr)
        return None
    return not given.dry_run, heads, cases


def write_coefficients(
    path: Path, script: str, heads: Sequence[dict[str, Any]], cases: int, found: Any, beside: Mapping[str, Any] | None = None
) -> None:
    """Write coefficients with what they were fitted to.

    Args:
        script: that fitted them. heads: first lines of the files of times. cases: their number. found: a dataclass.
        beside: further members.
    """
    fields = {
        "written_by": script,
        "measured_on": [{k: head.get(k) for k in ("gpu", "driver", "nvrtc", "seed")} for head in heads],
        "cases": cases,
        "coefficients": dataclasses.asdict(found),
        **(beside or {}),
    }
    path.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")


def main(arguments: Sequence[str]) -> int:
    given = given_cases(arguments, __doc__, cases_of, "no tiles of a product in blocks were measured")
    if given is None:
        return 2
    writes, heads, cases = given
    found = fit(cases, fitted())
    of_margin = {}
    for margin in MARGINS:
        values = [r[0] for case in cases if (r := regret(case, replace(found, margin=margin))) is not None]
        of_margin[margin] = statistics.mean(values)
    least = min(of_margin.values())
    # the largest margin that costs no more than a tenth of a percent: a preferred tile was measured by somebody
    found = rounded(replace(found, margin=max(m for m, value in of_margin.items() if value <= least + 0.001)))
    pairs = [r for case in cases if (r := regret(case, found)) is not None]
    left_out = []
    for case in cases:
        if regret(case, found) is not None:
            others = [other for other in cases if other is not case]
            left_out.append(regret(case, fit(others, found, rounds=1)))
    print(f"{len(cases)} cases, {sum(len(case.rows) for case in cases)} tiles; loss {loss(cases, found):.4f}")
    print(summary("preferred tiles", [r[1] for r in pairs]))
    print(summary("with the model", [r[0] for r in pairs]))
    print(summary("with the model, each case left out of the fit", [r[0] for r in left_out if r is not None]))
    for name, value in dataclasses.asdict(found).items():
        print(f"{name} = {value:g}")
    if writes:
        write_coefficients(FILE, "scripts/fit_choice.py", heads, len(cases), found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
