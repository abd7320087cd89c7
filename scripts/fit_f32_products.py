"""Fit the model of steps 9 to 14 of micro_tiling_matmul to measured times, and write ptxkit/kernels/gemm/fitted_f32.json.

    python scripts/fit_f32_products.py TIMES.jsonl... [--dry-run] [--rounds N] [--folds N] [--only PREFIX]

TIMES are files with the schema of ``scripts/measure_choices.py``, compressed (.gz) or not, whose cases are products of
micro_tiling_matmul. Minimized is the mean of |log(predicted / measured)|, where slow tiles count less, plus the mean regret of
the candidate with the shortest predicted time over the fastest tile of its case. The search changes one coefficient at a time
by random factors, with fixed seeds; with --only, those whose names begin with PREFIX. Printed are both parts, and the cases
with the largest regret; with --folds also both parts for cases that were left out of the fit, a fold of them at a time.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path

import choice_files

from ptxkit import Tile
from ptxkit.errors import PtxkitError
from ptxkit.kernels.gemm.micro_choice import STEPS, ranked
from ptxkit.kernels.gemm.micro_model import FILE, MicroRates, fitted, predicted_us
from ptxkit.targets.gpus import facts_of, find_gpu
from ptxkit.workload import registry

LEAST_WEIGHT = 0.1  # of a tile that is much slower than the fastest of its case


def cases(head, values):
    """(workload, peer's time, [(step, tile, time)]) of each case of a file; times in microseconds."""
    facts = facts_of(find_gpu(head["gpu"]))
    for case in values:
        w = registry.get(case["kernel"])(**case["sizes"], **case["options"]).on(facts)
        peer = next((row["us"] for row in case["rows"] if "peer" in row), math.nan)
        yield w, peer, [(r["variant"], considered(r["tile"]), r["us"]) for r in case["rows"] if r.get("variant") in STEPS]


def considered(tile):
    """A tile as ptxkit considers it: without COPY, which is newer than some files, where it is 0."""
    return Tile({name: value for name, value in tile.items() if value or name != "COPY"})


def merged(files):
    """The cases of all files, as :func:`choice_files.read` returns them; one with the same sizes in several is one case."""
    found = {}
    for head, values in files:
        for w, peer, rows in cases(head, values):
            before = found.setdefault(w, (peer, []))
            before[1].extend(rows)
    return {w: (peer, rows) for w, (peer, rows) in found.items() if rows}


@cache
def candidates(w):
    """(step, tile) of what ptxkit considers."""
    return {(step, frozenset(tile.items())) for _, step, tile in ranked(w)}


def chosen(w, rows, rates: MicroRates):
    """(predicted time, step, tile, measured time) of the candidate that the model prefers among the measured ones."""
    of_case = candidates(w)
    offered = [row for row in rows if (row[0], frozenset(row[1].items())) in of_case]
    known = [(predicted_us(w, step, tile, rates), step, tile, us) for step, tile, us in offered]
    return min(known, key=lambda one: one[0], default=None)


def loss(found, rates: MicroRates):
    """(error of the predictions, mean regret)."""
    error = total = 0.0
    regrets = []
    for w, (_, rows) in found.items():
        best = min(us for *_, us in rows)
        for step, tile, us in rows:
            weight = max(LEAST_WEIGHT, (best / us) ** 2)
            error += weight * abs(math.log(predicted_us(w, step, tile, rates) / us))
            total += weight
        if (choice := chosen(w, rows, rates)) is not None:
            regrets.append(choice[3] / best - 1)
    return error / total, sum(regrets) / len(regrets)


def fit(found, rates: MicroRates, rounds: int, only: str = "") -> MicroRates:
    """Coefficients with a smaller loss."""
    generator = random.Random(0)
    names = [field.name for field in fields(MicroRates) if field.name.startswith(only)]
    least = sum(loss(found, rates))
    for turn in range(rounds):
        for name in generator.sample(names, len(names)):
            factor = math.exp(generator.gauss(0, 0.3 / (1 + turn / 6)))
            changed = MicroRates(**{**asdict(rates), name: getattr(rates, name) * factor})
            if (value := sum(loss(found, changed))) < least:
                rates, least = changed, value
    return rates


def held_out(found, rates: MicroRates, rounds: int, folds: int):
    """The mean loss of the cases of each fold, with coefficients fitted to the other folds."""
    order = random.Random(1).sample(list(found), len(found))
    parts = []
    for fold in range(folds):
        left_out = {w: found[w] for w in order[fold::folds]}
        fitted_to = {w: found[w] for w in found if w not in left_out}
        parts.append((len(left_out), loss(left_out, fit(fitted_to, rates, rounds))))
    return [sum(n * part[i] for n, part in parts) / len(found) for i in (0, 1)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=Path, nargs="+", metavar="TIMES", help="read times from these files")
    parser.add_argument("--dry-run", action="store_true", help="print without writing")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="try N changes of each coefficient")
    parser.add_argument("--folds", type=int, default=0, metavar="N", help="also fit without each of N parts of the cases")
    parser.add_argument("--only", default="", metavar="PREFIX", help="change only coefficients with such names")
    given = parser.parse_args(arguments)
    try:
        files = [choice_files.read(path) for path in given.times]
        found = merged(files)
    except (PtxkitError, OSError, KeyError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.folds:
        error, regret = held_out(found, fitted(), given.rounds, given.folds)
        print(f"left out of the fit: error of predictions {error:.1%}, mean regret {regret:.1%}")
    rates = fit(found, fitted(), given.rounds, given.only)
    error, regret = loss(found, rates)
    print(f"{len(found)} cases, error of predictions {error:.1%}, mean regret {regret:.1%}")
    for w, (peer, rows) in found.items():
        predicted, step, tile, us = chosen(w, rows, rates) or (math.nan, "no candidate", "", math.inf)
        best = min(us for *_, us in rows)
        if us > 1.05 * best or us > peer:
            print(f"{w.m}x{w.n}x{w.k}: {step} {tile} {us} us, predicted {predicted:.1f}, best {best}, peer {peer}")
    if not given.dry_run:
        rounded = {name: float(f"{value:.5g}") for name, value in asdict(rates).items()}
        written = {
            "written_by": "scripts/fit_f32_products.py",
            "measured_on": choice_files.origin([head for head, _ in files]),
            "times": sum(len(rows) for _, rows in found.values()),
            "cases": len(found),
            "rates": rounded,
        }
        FILE.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
