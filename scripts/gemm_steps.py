"""Write tables of the gain of each step of the matrix products, and its reasons, from results of ``ptxkit bench run``.

    ptxkit bench run micro_tiling_matmul matmul_mma matmul_wgmma --sizes 4096x4096x4096 --profile ncu --json steps.json
    python scripts/gemm_steps.py steps.json                        # print them
    python scripts/gemm_steps.py steps.json --write docs/gemm.md   # between <!-- steps --> and <!-- end of steps -->

Every figure comes from the results: nothing in the tables is typed. With several results each has its own heading, since times
of two runs do not compare.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from ptxkit.bench.results.files import load
from ptxkit.bench.results.results import CaseResult, Results, Row
from ptxkit.errors import PtxkitError, UsageError

BEGIN, END = "<!-- steps -->", "<!-- end of steps -->"


def tables(results: Results) -> str:
    """Markdown: a table for each case that has steps; cold times."""
    parts = [_heading(results)]
    for case in results.cases:
        if any(row.name.startswith("step") for row in case.rows):
            sizes = " x ".join(str(size) for size in case.sizes.values())
            parts.append(f"`{case.kernel}`, {sizes}:\n\n{_table(case)}")
    if len(parts) == 1:
        raise UsageError("no kernel with steps was measured; run: ptxkit bench run matmul_wgmma --json FILE")
    return "\n\n".join(parts)


def stalls(measured: Mapping[str, float], most: int = 2) -> str:
    """The reasons that kept warps waiting longest: ``"gmma 3.1, barrier 0.4"``, in cycles for each issued instruction."""
    found = {name.removeprefix("stall_"): value for name, value in measured.items() if name.startswith("stall_")}
    longest = sorted(found.items(), key=lambda item: -item[1])[:most]
    return ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in longest if value >= 0.005)


def write(path: Path, text: str) -> None:
    """Replace what is between the markers of a document.

    Raises:
        UsageError: it has none.
    """
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"{path} has no {BEGIN} and {END}: put them where the tables belong")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def _heading(results: Results) -> str:
    known = (name for name in ("kernel_driver", "cuda_driver", "nvrtc") if name in results.environment)
    versions = ", ".join(f"{name} {results.environment[name]}" for name in known)
    return f"{results.device}, {versions}, ptxkit bench run of {results.created[:10]}; cold L2, medians."


def _table(case: CaseResult) -> str:
    peers = [row for row in case.rows if row.kind == "peer" and row.cold]
    lines = list(_lines(case.rows, peers))
    headers = ["", "us", "±", "TFLOP/s", "gain", *(f"x {peer.name}" for peer in peers)]
    headers += ["tensor pipe", "FMA pipe", "issue slots", "L2 hits", "DRAM", "waits for"]
    kept = [i for i in range(len(headers)) if i == 0 or any(line[i] for line in lines)]
    rows = [[line[i] for i in kept] for line in lines]
    align = ["left" if headers[i] in ("", "waits for") else "right" for i in kept]
    return tabulate(rows, [headers[i] for i in kept], tablefmt="github", colalign=align, disable_numparse=True)


def _lines(rows: Sequence[Row], peers: Sequence[Row]) -> Iterator[list[str]]:
    before: float | None = None
    for row in rows:
        if not row.cold:
            continue
        us, measured = row.cold.median_us, row.measured or {}
        gain = f"{100 * (before / us - 1):+.1f}%" if before and row.kind == "variant" else ""
        ratios = [f"{peer.cold.median_us / us:.3f}" if peer.cold else "" for peer in peers]
        percents = [measured.get(f"{name}_percent") for name in ("tensor_pipe", "fma_pipe", "issue", "l2_hit")]
        dram = f"{measured['dram_bytes'] / 1e6:.0f} MB" if "dram_bytes" in measured else ""
        spread = f"{100 * row.cold.spread_us / us:.1f}%"
        tflops = f"{row.tflops:.1f}" if row.tflops else ""
        busy = [f"{percent:.0f}%" if percent else "" for percent in percents]
        yield [row.name, f"{us:.1f}", spread, tflops, gain, *ratios, *busy, dram, stalls(measured)]
        before = us if row.kind == "variant" else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or write them into a document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="JSON of ptxkit bench run")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this document")
    options = parser.parse_args(arguments)
    try:
        text = "\n\n".join(tables(load(path)) for path in options.results)
        write(options.write, text) if options.write else print(text)
    except PtxkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
