"""Measure the parts of the time of a reduction of small rows, on the GPU of this machine.

    python scripts/small_rows.py [--seconds 20] [--markdown]

At 128 x 4096 and 1024 x 1024 an H200 has all data in L2, and a kernel takes two microseconds. Each line of a table adds one
piece of such a kernel, with nothing else in it: nothing, rows read, rows written, both, a copy that stores nothing before the
whole row has arrived, sums within warps, sums over warps, l2norm. ptxkit's vectorized variants and, where torch is installed,
torch.compile follow. All are measured as by `ptxkit bench`: interleaved, hot, in CUDA graphs of 200 launches.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tabulate import tabulate

import ptxkit
from ptxkit.bench.measure.candidates import BufferSets, PeerCandidate, VariantCandidate
from ptxkit.bench.measure.environment import require_gpu
from ptxkit.bench.measure.method import Method
from ptxkit.bench.measure.session import Session
from ptxkit.bench.peers import peers
from ptxkit.bench.results.results import Accuracy, Row
from ptxkit.compiler.image import Image
from ptxkit.compiler.nvrtc import compile_source
from ptxkit.errors import PtxkitError
from ptxkit.workload import registry
from ptxkit.workload.verify import Verdict

LAUNCHES = 200  # of a graph, of these kernels of few microseconds
EPS = np.float32(1e-12)
SOURCE = r"""
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/floating_point.cuh"
#include "ptxkit/rows/reduce.cuh"
using namespace ptxkit;

enum Piece { EMPTY, READ, WRITE, COPY, WHOLE, LANES, WARPS, L2NORM };

// A CTA for each row of THREADS * VECTORS * 4 columns. FOLLOWS: it is launched as the grid before ends.
template <int PIECE, bool FOLLOWS, int THREADS, int VECTORS>
__global__ void __launch_bounds__(THREADS) piece(const float* x, float* y, float eps) {
    constexpr int warps = THREADS / 32;
    __shared__ float slots[warps];
    const size_t first = static_cast<size_t>(blockIdx.x) * (THREADS * VECTORS * 4) + threadIdx.x * 4;
    if (FOLLOWS) griddepcontrol_wait();
    if (PIECE == EMPTY) return;
    uint4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        if (PIECE == WRITE) v[i] = make_uint4(__float_as_uint(eps), threadIdx.x, i, 0);
        else v[i] = ld_global(reinterpret_cast<const uint4*>(x + first + i * THREADS * 4));
    }
    float factor = 1, sum = 0;
    if (PIECE == READ || PIECE >= WHOLE) {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const unsigned word[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
            for (int j = 0; j < 4; j++) sum = fmaf(__uint_as_float(word[j]), __uint_as_float(word[j]), sum);
        }
        if (PIECE == READ) {
            if (sum < 0) *y = sum;  // never
            return;
        }
    }
    if (PIECE == WHOLE && __syncthreads_or(sum < 0)) return;  // never either
    if (PIECE >= LANES) factor = sum = warp_sum<32>(sum);
    if (PIECE >= WARPS) {
        if (laneid() == 0) slots[threadIdx.x / 32] = sum;
        barrier_sync();
        factor = sum = warp_sum<warps>(slots[laneid() & (warps - 1)]);
    }
    if (PIECE == L2NORM) factor = rsqrt_approx(sum + eps);
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        auto scaled = [&](unsigned bits) { return PIECE >= LANES ? __float_as_uint(__uint_as_float(bits) * factor) : bits; };
        const uint4 quad = make_uint4(scaled(v[i].x), scaled(v[i].y), scaled(v[i].z), scaled(v[i].w));
        *reinterpret_cast<uint4*>(y + first + i * THREADS * 4) = quad;
    }
}
"""


@dataclass(frozen=True)
class Size:
    """A problem size, the launch shape of the pieces, and the kernels that they are compared with."""

    rows: int
    cols: int
    threads: int
    vectors: int
    kernels: tuple[str, ...]


SIZES = (
    Size(128, 4096, 512, 2, ("fused_l2norm", "rmsnorm", "layernorm")),
    Size(1024, 1024, 128, 2, ("fused_l2norm", "softmax")),
)
PIECES = (
    ("a kernel that does nothing", "EMPTY", False),
    ("the same, launched while the previous one ends", "EMPTY", True),
    ("rows read", "READ", True),
    ("rows written", "WRITE", True),
    ("copy", "COPY", True),
    ("copy, no store before the whole row has arrived", "WHOLE", True),
    ("squares summed within each warp", "LANES", True),
    ("and over the warps", "WARPS", True),
    ("and a reciprocal root: l2norm, no more", "L2NORM", True),
)


@dataclass
class Piece:
    """A bare piece as a candidate of a measurement. Its outputs are not compared.

    Attributes:
        launch: queues one call. keep: the device memory that the launch works on.
    """

    device: Any
    row: Row
    launch: Callable[[], None]
    keep: Any = None

    def check(self, percentiles: bool) -> tuple[Verdict | None, Accuracy | None]:
        """See :class:`ptxkit.bench.measure.candidates.Candidate`."""
        return None, None

    def replay(self, order: Sequence[int]) -> Callable[[], None]:
        """See :class:`ptxkit.bench.measure.candidates.Candidate`."""

        def calls() -> None:
            for _ in order:
                self.launch()

        graph: Callable[[], None] = self.device.graph(calls)
        return graph

    def check_graph(self, run: Callable[[], None], which: int) -> Verdict | None:
        """See :class:`ptxkit.bench.measure.candidates.Candidate`."""
        return None


def name_of(piece: str, follows: bool, size: Size) -> str:
    """NVRTC's name expression of a piece."""
    return f"piece<{piece}, {str(follows).lower()}, {size.threads}, {size.vectors}>"


def compiled(target: Any) -> Image:
    """All pieces at all sizes."""
    names = [name_of(piece, follows, size) for _, piece, follows in PIECES for size in SIZES]
    return compile_source(SOURCE, target=target, name="small_rows.cu", instantiate=names)


def pieces(device: Any, size: Size) -> list[Piece]:
    """The bare pieces."""
    module = device.load(compiled(device.target))
    x = device.upload(np.random.default_rng(0).uniform(-1, 1, (size.rows, size.cols)).astype(np.float32))
    y = device.empty((size.rows, size.cols), np.float32)
    found = []
    for name, piece, follows in PIECES:
        launch = module[name_of(piece, follows, size)].prepare(x, y, EPS, grid=size.rows, block=size.threads)
        found.append(Piece(device, Row(name), launch, keep=(x, y)))
    return found


def measure(device: Any, size: Size, seconds: float) -> tuple[list[Row], dict[str, list[Row]]]:
    """Rows of the pieces, and by kernel the rows of ptxkit's variant and of torch.compile."""
    sets = {
        kernel: BufferSets(registry.get(kernel).make([str(size.rows), str(size.cols)], {}), device, 1, seed=0)
        for kernel in size.kernels
    }
    there, _ = peers(["compile"])
    bare = pieces(device, size)
    candidates: list[Any] = list(bare)
    for kernel in size.kernels:
        threads = max(128, size.cols // 16)
        vectors = size.cols // (4 * threads)
        tile = {"THREADS": threads, "VECTORS": vectors, "NO_EARLY_LAUNCH": True}  # the fastest one in hot caches
        candidates.append(VariantCandidate(sets[kernel], sets[kernel].workload.variant("vectorized"), tile))
        candidates += [PeerCandidate(sets[kernel], peer) for peer in there]
    session = Session(device, next(iter(sets.values())), method_for(seconds))
    rows = session.measure(candidates, lambda what: None)
    each, of_kernels = 1 + len(there), rows[len(bare) :]
    return rows[: len(bare)], {kernel: of_kernels[i * each : (i + 1) * each] for i, kernel in enumerate(size.kernels)}


def method_for(seconds: float) -> Method:
    """Hot times in graphs of LAUNCHES launches, as precise as ``seconds`` allow."""
    return Method(
        budget_s=seconds,
        precision=0.0005,
        sample_us=5000.0,  # so that LAUNCHES is the limit
        calls=LAUNCHES,
        modes=("hot",),
        fresh_inputs=False,
        percentiles=False,
    )


def table(bare: Sequence[Row], kernels: dict[str, list[Row]], markdown: bool) -> str:
    """A line for each row: microseconds, their spread, and how many times faster than torch.compile of the same kernel.

    Raises:
        PtxkitError: a row has no time, or is wrong.
    """
    lines = [[row.name, *_times(row), ""] for row in bare]
    for kernel, rows in kernels.items():
        peer = next((row for row in rows if row.kind == "peer"), None)
        for row in rows:
            ratio = f"{peer.hot.median_us / row.hot.median_us:.2f}" if peer and peer.hot and row.hot else ""
            by = "torch.compile" if row.kind == "peer" else "ptxkit"
            lines.append([f"{kernel}, {by}", *_times(row), ratio])
    headers = ["", "us", "±", "x torch.compile"]
    style = "github" if markdown else "simple"
    return tabulate(lines, headers, tablefmt=style, colalign=["left"] + ["right"] * 3, disable_numparse=True)


def _times(row: Row) -> list[str]:
    if row.hot is None or row.verified is False:
        raise PtxkitError(f"{row.name} has no time: {row.error or row.worst or row.skipped}")
    return [f"{row.hot.median_us:.3f}", f"{row.hot.spread_us:.3f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="measure for so many seconds in all [default: 20]")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    options = parser.parse_args(arguments)
    if not options.seconds > 0:
        parser.error(f"--seconds must be above 0, not {options.seconds}")
    try:
        device: Any = ptxkit.device()
        require_gpu(device, "measuring")
        for size in SIZES:
            bare, kernels = measure(device, size, options.seconds / len(SIZES))
            print(f"{device.name}, {size.rows} x {size.cols}, {device.sensors().sm_clock_mhz} MHz\n")
            print(table(bare, kernels, options.markdown) + "\n")
    except PtxkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
