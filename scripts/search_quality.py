"""Evaluate the searches of `ptxkit sweep tiles` by replaying the journal of an exhaustive sweep; needs no GPU.

python scripts/search_quality.py JOURNAL [--seeds 20]
python scripts/search_quality.py --model EMULATED.jsonl MEASURED.jsonl     rank correlation of modelled costs and times
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from statistics import median

from tabulate import tabulate

from ptxkit.sweep import journal, search
from ptxkit.sweep.model import Geometry, transferred
from ptxkit.workload.launch import Tile

SHARES = (0.02, 0.05, 0.10, 0.15)
NEAR = 1.02


def quality(path: Path, seeds: int) -> None:
    """Print a table: how far from the best each search was, after several shares of the space."""
    found = journal.read(path)
    head, entries = found.head, found.entries
    times: dict[Tile, float] = {}
    for entry in entries:
        times[entry.key] = entry.value
    best = min(times.values())
    entry_of = {entry.key: entry for entry in entries}
    axes = {name: tuple(values) for name, values in head["axes"].items()}
    tiles = list(times)
    features = search.described(axes, entry_of.__getitem__)
    print(
        f"{head['title']} on {head['device']}: {len(tiles)} configurations, {sum(map(math.isfinite, times.values()))} work"
    )
    unit = "us" if any(entry.time_us is not None for entry in entries) else "modelled"
    print(f"best {best:.4g} {unit}; within 2%: {sum(t <= NEAR * best for t in times.values())}")
    rows = []
    for name in ("random", "guided"):
        runs = []
        for seed in range(seeds):
            made = search.shuffled(tiles, seed) if name == "random" else search.Guided(tiles, features, seed)
            runs.append(search.replayed(made, times, round(SHARES[-1] * len(tiles))))
        for share in SHARES:
            count = max(1, round(share * len(tiles)))
            over = [run[count - 1] / best for run in runs]
            hits = sum(o <= NEAR for o in over)
            rows.append(
                (name, f"{share:.0%}", count, f"{median(over):.3f}x", f"{max(over):.3f}x", f"{hits} of {seeds}")
            )
    print(
        tabulate(
            rows, ["search", "share", "evaluations", "median over best", "worst", "within 2%"], disable_numparse=True
        )
    )


def correlation(modelled: Path, measured: Path) -> None:
    """Spearman's and Kendall's rank correlation over the configurations that both have.

    The emulator is too slow for the sizes that a GPU is measured at, so the two journals may have different sizes. The
    work is assumed to grow by the same factor for all tiles; residency is computed for the measured launch.
    """
    from scipy.stats import kendalltau, spearmanr

    counted = {e.key: e for e in journal.read(modelled).entries if math.isfinite(e.value)}
    timed = {e.key: e for e in journal.read(measured).entries if math.isfinite(e.value)}
    both = [k for k in timed if k in counted]
    costs = {k: transferred(counted[k].value, geometry(counted[k]), geometry(timed[k])) for k in both}
    times = {k: timed[k].value for k in both}
    a, b = [costs[k] for k in both], [times[k] for k in both]
    print(
        f"{len(both)} configurations: Spearman {spearmanr(a, b).statistic:.3f}, Kendall {kendalltau(a, b).statistic:.3f}"
    )
    best = min(b)
    order = sorted(both, key=lambda k: costs[k])
    for share in (0.01, 0.05, 0.10, 0.25):
        first = order[: max(1, round(share * len(order)))]
        print(f"best measured among the model's first {share:.0%}: {min(times[k] for k in first) / best:.3f}x the best")


def geometry(entry: journal.Entry) -> Geometry:
    """The geometry of a configuration's launch."""
    return Geometry(entry.ctas, entry.threads, entry.occupancy)


def main() -> int:
    """Replay, or correlate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journals", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--model", action="store_true")
    arguments = parser.parse_args()
    if arguments.model:
        correlation(*arguments.journals)
    else:
        for path in arguments.journals:
            quality(path, arguments.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
