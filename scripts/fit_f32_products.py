"""Fit the model of steps 9 to 13 of micro_tiling_matmul to measured times, and write ptxkit/kernels/gemm/fitted_f32.json.

    python scripts/fit_f32_products.py TIMES.jsonl... [--dry-run] [--rounds N]

TIMES are files with the schema of ``scripts/measure_choices.py``, compressed (.gz) or not, whose cases are products of
micro_tiling_matmul. Minimized is the mean of |log(predicted / measured)|, where slow tiles count less, plus the mean regret of
the candidate with the shortest predicted time over the fastest tile of its case. The search changes one coefficient at a time
by random factors, with fixed seeds. Printed are both parts, and the cases with the largest regret.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path

from ptxkit import Tile
from ptxkit.kernels.gemm.micro_choice import STEPS, ranked
from ptxkit.kernels.gemm.micro_model import FILE, MicroRates, fitted, predicted_us
from ptxkit.targets.gpus import facts_of, find_gpu
from ptxkit.workload import registry

LEAST_WEIGHT = 0.1  # of a tile that is much slower than the fastest of its case


def cases(path: Path):
    """(workload, peer's time, [(step, tile, time)]) of a file."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        head = json.loads(next(file))
        facts = facts_of(find_gpu(head["gpu"]))
        for line in file:
            case = json.loads(line)
            w = registry.get(case["kernel"])(**case["sizes"], **case["options"]).on(facts)
            peer = next((row["us"] for row in case["rows"] if "peer" in row), math.nan)
            yield w, peer, [(r["variant"], Tile(r["tile"]), r["us"]) for r in case["rows"] if r.get("variant") in STEPS]


def merged(paths):
    """The cases of all files; one with the same sizes in several of them is one case."""
    found = {}
    for path in paths:
        for w, peer, rows in cases(path):
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


def fit(found, rates: MicroRates, rounds: int) -> MicroRates:
    """Coefficients with a smaller loss."""
    generator = random.Random(0)
    names = [field.name for field in fields(MicroRates)]
    least = sum(loss(found, rates))
    for turn in range(rounds):
        for name in generator.sample(names, len(names)):
            factor = math.exp(generator.gauss(0, 0.3 / (1 + turn / 6)))
            changed = MicroRates(**{**asdict(rates), name: getattr(rates, name) * factor})
            if (value := sum(loss(found, changed))) < least:
                rates, least = changed, value
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=Path, nargs="+")
    parser.add_argument("--dry-run", action="store_true", help="write no file")
    parser.add_argument("--rounds", type=int, default=20, help="changes of each coefficient that are tried")
    given = parser.parse_args()
    found = merged(given.times)
    rates = fit(found, fitted(), given.rounds)
    error, regret = loss(found, rates)
    print(f"{len(found)} cases, error of predictions {error:.1%}, mean regret {regret:.1%}")
    for w, (peer, rows) in found.items():
        predicted, step, tile, us = chosen(w, rows, rates) or (math.nan, "no candidate", "", math.inf)
        best = min(us for *_, us in rows)
        if us > 1.05 * best or us > peer:
            print(f"{w.m}x{w.n}x{w.k}: {step} {tile} {us} us, predicted {predicted:.1f}, best {best}, peer {peer}")
    if not given.dry_run:
        rounded = {name: float(f"{value:.5g}") for name, value in asdict(rates).items()}
        FILE.write_text(json.dumps({"gpu": "NVIDIA H200", "rates": rounded}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
