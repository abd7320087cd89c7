"""Compare the variant that ptxkit chooses with the fastest recorded one, over all cases with recorded times of a GPU.

    python scripts/regret.py [--gpu "NVIDIA H200"] [--markdown] [--worst 10] [--fit]
    python scripts/regret.py --times tests/workload/data/choices-2-h200.jsonl.gz [--markdown] [--worst 10]

The regret of a case is the recorded cold median of the chosen variant over that of the fastest variant, less 1. Cases with one
recorded variant are left out, and so are those whose chosen variant has no recorded time: the number of these is printed. The
further lines are the regret of the parts of the choice: without the model, without objections of descriptions (the last
variant), and by the model alone. Times of a variant that was recorded with another tile than today's are of that tile.

With --times, the cases and times are those of a file of ``scripts/measure_choices.py``, which has many tiles of each case: the
regret is that of the variant and tile that ptxkit chooses today over the fastest of all that were measured, by families.

--fit prints two coefficients of ptxkit/targets/achievable.py from the same times: WAVE_US from kernels with one element for
each thread, and WARP_PRODUCT from the largest products by mma.sync and by wgmma.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ptxkit.bench.results import expectations
from ptxkit.bench.results.statistics import quantile
from ptxkit.errors import PtxkitError
from ptxkit.targets.achievable import WAVE_US
from ptxkit.targets.gpus import DeviceFacts, facts_of, find_gpu
from ptxkit.workload import registry
from ptxkit.workload.choice import Choice, choose
from ptxkit.workload.workload import Workload

ONE_ELEMENT = ("saxpy:scalar", "add_gelu:fused", "add_mul_exp:fused", "add_activation:fused", "swiglu:fused")
"""Variants with one element for each thread, without shared memory."""
LARGE = "m=8192 n=8192 k=8192 alpha=1.0 beta=0.0 epilogue=none dtype=bf16"
CONTIGUOUS = "layout=tn lda=0 ldb=0 ldc=0"


@dataclass(frozen=True)
class Found:
    """A case with recorded times.

    Attributes:
        key: of the case. times: variant -> cold median in microseconds. choice: of ptxkit.
    """

    key: str
    times: Mapping[str, float]
    choice: Choice

    def regret(self, variant: str) -> float | None:
        """How much slower a variant is than the fastest, as a fraction; None where it has no recorded time."""
        return self.times[variant] / min(self.times.values()) - 1 if variant in self.times else None

    @property
    def last(self) -> str:
        """The last variant that runs."""
        return self.choice.candidates[-1].name

    @property
    def unobjectionable(self) -> str:
        """The last variant to which nothing is objected: the choice without the model."""
        return ([o for o in self.choice.candidates if not o.objection] or self.choice.candidates)[-1].name

    @property
    def modelled(self) -> str:
        """The variant with the smallest predicted time, the last of several: the model without order and objections."""
        return min(reversed(self.choice.candidates), key=lambda candidate: candidate.terms.total).name


def workload_of(key: str) -> Workload:
    """The workload of a recorded case, from its key."""
    kernel, *words = key.split()
    return registry.find(kernel).of(dict(word.split("=", 1) for word in words))


def found_of(recorded: Mapping[str, Any], facts: DeviceFacts) -> list[Found]:
    """The cases with at least two recorded variants, and the choice for each."""
    found = []
    for key, case in recorded["cases"].items():
        variants = {n: row for n, row in case["rows"].items() if row["kind"] == "variant" and "cold" in row}
        if len(variants) > 1:
            times = {name: row["cold"]["median_us"] for name, row in variants.items()}
            found.append(Found(key, times, choose(workload_of(key).on(facts), target=facts.target)))
    return found


def summary(found: Sequence[Found]) -> list[list[str]]:
    """A line for the choice and for each of its parts alone: cases, median, 95th percentile, maximum."""
    lines = []
    for name, picks in (
        ("choose", [(f, f.choice.variant) for f in found]),
        ("without the model", [(f, f.unobjectionable) for f in found]),
        ("without model and objections: the last", [(f, f.last) for f in found]),
        ("the model alone", [(f, f.modelled) for f in found]),
    ):
        regrets = [r for f, variant in picks if (r := f.regret(variant)) is not None]
        unknown = len(picks) - len(regrets)
        exact = sum(r == 0 for r in regrets)
        cells = [
            f"{100 * value:.1f}%"
            for value in (statistics.median(regrets), quantile(sorted(regrets), 0.95), max(regrets))
        ]
        lines.append([name, str(len(regrets)), str(unknown), str(exact), *cells])
    return lines


def worst(found: Sequence[Found], count: int) -> list[list[str]]:
    """The cases with the largest regret of the choice."""
    regrets = [(r, f) for f in found if (r := f.regret(f.choice.variant))]
    regrets.sort(key=lambda item: -item[0])
    return [
        [_short(f), f.choice.variant, min(f.times, key=f.times.__getitem__), f"{100 * r:.1f}%"]
        for r, f in regrets[:count]
    ]


def of_times(path: Path) -> tuple[list[list[str]], list[list[str]]]:
    """A line for each family and for all cases, and the worst cases first, of a file of scripts/measure_choices.py."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines()
    head, *values = map(json.loads, lines)
    facts = facts_of(find_gpu(head["gpu"]))
    by_family: dict[str, list[float]] = {}
    unknown: dict[str, int] = {}
    cases = []
    for value in values:
        workload = registry.get(value["kernel"])(**value["sizes"], **value["options"])
        choice = choose(workload.on(facts), target=facts.target)
        timed = [row for row in value["rows"] if "us" in row and "variant" in row]
        best = min(timed, key=_time_us)
        space = workload.variant(choice.variant).tile  # parameters that were added later have their first value in old files
        first = {name: values[0] for name, values in space.items()}
        own = [row for row in timed if row["variant"] == choice.variant and {**first, **row["tile"]} == dict(choice.tile)]
        if not own:
            unknown[value["family"]] = unknown.get(value["family"], 0) + 1
            continue
        regret = _time_us(own[0]) / _time_us(best) - 1
        by_family.setdefault(value["family"], []).append(regret)
        words = [workload.name, *(f"{k}={v}" for k, v in value["sizes"].items()), value["options"].get("dtype", "f32")]
        cases.append((regret, [" ".join(words), _candidate(own[0]), _candidate(best), f"{100 * regret:.1f}%"]))
    every = [r for regrets in by_family.values() for r in regrets]
    summed = {**by_family, "all": every}
    missing = {**unknown, "all": sum(unknown.values())}
    table = [
        [name, str(len(r)), str(missing.get(name, 0)), str(sum(x < 0.01 for x in r)), *_quantiles(r)]
        for name, r in summed.items()
    ]
    return table, [cells for _, cells in sorted(cases, key=lambda case: -case[0])]


def _time_us(row: Mapping[str, Any]) -> float:
    return float(row.get("leader_us", row["us"]))


def _candidate(row: Mapping[str, Any]) -> str:
    return " ".join([row["variant"], *(f"{k}={v}" for k, v in row["tile"].items())])


def _quantiles(regrets: Sequence[float]) -> list[str]:
    values = statistics.median(regrets), quantile(sorted(regrets), 0.95), max(regrets)
    return [f"{100 * value:.1f}%" for value in values]


def _short(found: Found) -> str:
    workload = found.choice.chosen.resolved.workload
    defaults = type(workload)().options
    options = {k: v for k, v in workload.options.items() if v != defaults[k]}
    return " ".join([workload.name, *(f"{k}={v}" for k, v in {**workload.sizes, **options}.items())])


def fitted(found: Sequence[Found], recorded: Mapping[str, Any]) -> dict[str, float]:
    """The coefficients that follow from the recorded times."""
    waves = []
    for f in found:
        for option in f.choice.candidates:
            kernel = f.choice.chosen.resolved.workload.name
            count = option.terms.waves / WAVE_US
            if f"{kernel}:{option.name}" in ONE_ELEMENT and option.name in f.times and count > 20:
                waves.append(f.times[option.name] / count)
    best = {}
    for kernel, words in (("matmul_mma", LARGE), ("matmul_wgmma", f"{LARGE} {CONTIGUOUS}")):
        rows = recorded["cases"][f"{kernel} {words}"]["rows"].values()
        best[kernel] = min(row["cold"]["median_us"] for row in rows if row["kind"] == "variant")
    share = best["matmul_wgmma"] / best["matmul_mma"]
    return {"WAVE_US": statistics.median(waves), "WARP_PRODUCT": share}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="NVIDIA H200", help="take the recorded times of this GPU")
    parser.add_argument("--markdown", action="store_true", help="print tables for a page of docs/")
    parser.add_argument("--worst", type=int, default=10, metavar="N", help="show the N cases with the largest regret")
    parser.add_argument("--fit", action="store_true", help="print the coefficients that follow from the times")
    parser.add_argument("--times", type=Path, metavar="FILE", help="take the times of scripts/measure_choices.py in FILE")
    given = parser.parse_args(arguments)
    form = "github" if given.markdown else "simple"
    if given.times is not None:
        try:
            table, cases = of_times(given.times)
        except (PtxkitError, OSError, KeyError, ValueError) as error:
            print(f"error: {given.times}: {error}", file=sys.stderr)
            return 2
        headers = ["family", "cases", "not measured", "below 1%", "median", "p95", "maximum"]
        print(tabulate(table, headers, tablefmt=form, disable_numparse=True, colalign=("left", *["right"] * 6)))
        print()
        print(tabulate(cases[: given.worst], ["case", "chosen", "fastest", "regret"], tablefmt=form, disable_numparse=True))
        return 0
    try:
        gpu = find_gpu(given.gpu)
        recorded = expectations.load(expectations.path_for(gpu.name))
        facts = facts_of(gpu)
        found = found_of(recorded, facts)
        if not found:
            raise PtxkitError(f"no case of {gpu.name} has times of two variants")
        fit = fitted(found, recorded) if given.fit else {}
    except (PtxkitError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    headers = ["", "cases", "not recorded", "regret 0", "median", "p95", "maximum"]
    print(tabulate(summary(found), headers, tablefmt=form, disable_numparse=True, colalign=("left", *["right"] * 6)))
    if rows := worst(found, given.worst):
        print()
        align = ("left", "left", "left", "right")
        print(
            tabulate(
                rows, ["case", "chosen", "fastest", "regret"], tablefmt=form, disable_numparse=True, colalign=align
            )
        )
    for name, value in fit.items():
        print(f"{name} = {value:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
