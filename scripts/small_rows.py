"""Where the microseconds of a reduction of small rows go, on the GPU that is there.

    python scripts/small_rows.py [--seconds 20] [--markdown]

At 128 x 4096 and 1024 x 1024 an H200 holds everything in L2, and a kernel lasts two microseconds. Each line of a table is one
more piece of such a kernel, as bare as it can be written: nothing, rows read, rows written, both, a copy that stores nothing
until the whole row is there, the sums of lanes, those of warps, l2norm. Under them stand ptxkit's best variants and, where
torch is installed, torch.compile. All are timed in turns, as `ptxkit bench` does it: hot, in CUDA graphs of 200 launches.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tabulate import tabulate

import ptxkit
from ptxkit.bench.measure.candidates import BufferSets, PeerCandidate, VariantCandidate
from ptxkit.bench.measure.environment import require_gpu
from ptxkit.bench.measure.statistics import summarize
from ptxkit.bench.peers import peers
from ptxkit.compiler.image import Image
from ptxkit.compiler.nvrtc import compile_source
from ptxkit.errors import PtxkitError
from ptxkit.workload import registry

NODES = 200  # launches of a graph
BATCH = 3  # samples of a candidate in one round
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
            if (sum < 0) *y = sum;  // which it never is
            return;
        }
    }
    if (PIECE == WHOLE && __syncthreads_or(sum < 0)) return;  // nor that
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
    """Rows, and how the pieces lie over threads; the kernels that are put beside them."""

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
    ("the same, launched while the one before ends", "EMPTY", True),
    ("rows read", "READ", True),
    ("rows written", "WRITE", True),
    ("copy", "COPY", True),
    ("copy, no store before the row is there", "WHOLE", True),
    ("lanes' squares summed, each warp for itself", "LANES", True),
    ("and the warps' sums", "WARPS", True),
    ("and a reciprocal root: l2norm, no more", "L2NORM", True),
)


@dataclass
class Line:
    """A candidate, its graph of NODES calls, and microseconds of a call.

    Attributes:
        kernel: which it computes. peer: whether as torch.compile has it.
        keep: what the graph works on.
    """

    name: str
    replay: Callable[[], None]
    kernel: str = ""
    peer: bool = False
    keep: Any = None
    times_us: list[float] = field(default_factory=list)


def name_of(piece: str, follows: bool, size: Size) -> str:
    """NVRTC's name expression of a piece."""
    return f"piece<{piece}, {str(follows).lower()}, {size.threads}, {size.vectors}>"


def compiled(target: Any) -> Image:
    """All pieces at all sizes."""
    names = [name_of(piece, follows, size) for _, piece, follows in PIECES for size in SIZES]
    return compile_source(SOURCE, target=target, name="small_rows.cu", instantiate=names)


def pieces(device: Any, size: Size) -> list[Line]:
    """The bare pieces."""
    module = device.load(compiled(device.target))
    x = device.upload(np.random.default_rng(0).uniform(-1, 1, (size.rows, size.cols)).astype(np.float32))
    y = device.empty((size.rows, size.cols), np.float32)
    lines = []
    for name, piece, follows in PIECES:
        kernel = module[name_of(piece, follows, size)]
        launch = kernel.prepare(x, y, EPS, grid=size.rows, block=size.threads)
        lines.append(
            Line(name, device.graph(lambda launch=launch: [launch() for _ in range(NODES)]), keep=(x, y, launch))
        )
    return lines


def kernels(device: Any, size: Size) -> list[Line]:
    """ptxkit's kernels and torch.compile's, verified.

    Raises:
        PtxkitError: an output is wrong.
    """
    lines = []
    for kernel in size.kernels:
        sets = BufferSets(registry.get(kernel).make([str(size.rows), str(size.cols)], {}), device, 1, seed=0)
        candidates: list[tuple[str, Any]] = [
            (f"{kernel}, ptxkit", VariantCandidate(sets, sets.workload.variant("vectorized")))
        ]
        there, _ = peers(["compile"])
        candidates += [(f"{kernel}, torch.compile", PeerCandidate(sets, peer)) for peer in there]
        for name, candidate in candidates:
            replay = candidate.replay([0] * NODES)
            for verdict in (candidate.check(percentiles=False)[0], candidate.check_graph(replay, 0)):
                if verdict is not None and not verdict.verified:
                    raise PtxkitError(f"{name} is wrong: {verdict.worst}")
            lines.append(Line(name, replay, kernel, "torch" in name, candidate))
    return lines


def table(lines: Sequence[Line], markdown: bool) -> str:
    """A line each: microseconds, their spread, and how many times faster than torch.compile at the same."""
    peer = {line.kernel: statistics.median(line.times_us) for line in lines if line.peer}
    rows = []
    for line in lines:
        s = summarize(line.times_us)
        ratio = f"{peer[line.kernel] / s.median:.2f}" if line.kernel in peer else ""
        rows.append([line.name, f"{s.median:.3f}", f"{s.spread:.3f}", ratio])
    headers = ["", "us", "±", "x torch.compile"]
    style = "github" if markdown else "simple"
    return tabulate(rows, headers, tablefmt=style, colalign=["left"] + ["right"] * 3, disable_numparse=True)


def measure(device: Any, lines: Sequence[Line], seconds: float) -> None:
    """Turns in random order, the first of which only warms up."""
    order, begin, warm = random.Random(0), time.perf_counter(), False
    while not warm or time.perf_counter() - begin < seconds or len(lines[0].times_us) < 20:
        for line in order.sample(list(lines), len(lines)):
            times = device.timing.replays(line.replay, BATCH, warm=True)
            if warm:
                line.times_us += [t / NODES for t in times]
        warm = True


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of measuring, in all [default: 20]")
    parser.add_argument("--markdown", action="store_true", help="tables for a document")
    options = parser.parse_args(arguments)
    if not options.seconds > 0:
        parser.error(f"--seconds must be above 0, not {options.seconds}")
    try:
        device: Any = ptxkit.device()
        require_gpu(device, "measuring")
        for size in SIZES:
            lines = [*pieces(device, size), *kernels(device, size)]
            measure(device, lines, options.seconds / len(SIZES))
            print(f"{device.name}, {size.rows} x {size.cols}, {device.sensors().sm_clock_mhz} MHz\n")
            print(table(lines, options.markdown) + "\n")
    except PtxkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
