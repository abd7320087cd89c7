"""Measure the time from `compile` to the first result in the emulator, of kernels with few threads or much divergence.

    python scripts/emulator_corpus.py                      # the kernels of emulator_corpus.cu and emulator_programs.cu
    python scripts/emulator_corpus.py --only queens        # those whose names contain "queens"
    python scripts/emulator_corpus.py --numpy              # without machine code, as if llvmlite were not installed
    python scripts/emulator_corpus.py --attention flash.cu --argsort argsort.cu

Each kernel is compiled and launched once, and its result compared with numpy's. Times are seconds of processor time of this
process and of the processes that it has started and waited for, and seconds on the clock; the time of the launch includes
binding and machine code. An empty directory in PTXKIT_CACHE_DIR gives the times without a cache, a second call with the same
directory those with it. `--attention` takes flash.cu of flash-attention-minimal, `--argsort` argsort.cu of ggml, which are
not part of ptxkit.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads of numpy's that wait would count as processor time

import emulator_programs
import numpy as np
from tabulate import tabulate

import ptxkit
from ptxkit.emulator.native import wave as native_wave

RNG = np.random.default_rng(0)
OWN = Path(__file__).with_suffix(".cu")
HEADINGS = ("kernel", "entries", "compile s", "launch s", "on the clock s", "million thread instructions", "million a second")


@dataclass
class Case:
    """One kernel with its arguments, and what its result must be."""

    name: str
    source: Path
    entry: str
    arguments: Sequence[Any]
    grid: int | tuple[int, int]
    block: int | tuple[int, int]
    is_right: Callable[[Sequence[Any]], bool]
    shared: int = 0
    instances: Sequence[str] = ()


def processor_s() -> float:
    """Seconds of processor time of this process and of its children."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)


def own_cases(scale: int) -> Iterator[Case]:
    """The kernels of emulator_corpus.cu."""
    x = RNG.integers(0, 10**6, (64, 32 * scale)).astype(np.int32)
    for name in ("merge_sort", "quick_sort"):
        yield Case(
            name, OWN, name, [x.copy(), np.int32(32 * scale)], 1, 64, lambda a: bool((a[0] == np.sort(x, 1)).all())
        )
    yield attention(OWN, "attention", 4, 128 * scale, 64)
    counts = np.zeros(512, np.int32)
    steps = [counts, np.float32(-1.8), np.float32(0.01), np.float32(2.2 / 512), np.int32(100 * scale)]
    yield Case("escape", OWN, "escape", steps, 4, 128, lambda a: bool(a[0].min() >= 0))
    yield tree(800 * scale)
    yield parsed(64 * scale)
    yield probed(200 * scale)


def programs(scale: int) -> Iterator[Case]:
    """The kernels of emulator_programs.cu."""
    source = emulator_programs.SOURCE
    for name, arguments, grid, block, is_right in emulator_programs.programs(scale):
        yield Case(name, source, name, arguments, grid, block, is_right)


def attention(source: Path, entry: str, heads: int, n: int, d: int) -> Case:
    """One warp for each head, as flash-attention-minimal does it: softmax in blocks of 32 keys."""
    q, k, v = (RNG.standard_normal((heads, n, d)).astype(np.float32) for _ in range(3))
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(d)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    want = p @ v / p.sum(-1, keepdims=True)
    sums, maxima = np.zeros((heads, n), np.float32), np.full((heads, n), -np.inf, np.float32)
    scale = np.float32(1 / math.sqrt(d))
    sizes = [np.int32(i) for i in (n, d, n // 32, n // 32, 32, 32)]
    return Case(
        f"{entry}, {heads} x {n} x {d}",
        source,
        entry,
        [q, k, v, *sizes, scale, sums, maxima, np.zeros_like(q)],
        (1, heads),
        32,
        lambda a: bool(np.abs(a[-1] - want).max() < 1e-4),
        (3 * 32 * d + 32 * 32) * 4,
    )


def tree(n: int) -> Case:
    """Ranges of keys in a binary tree, with a stack in local memory."""
    keys = RNG.permutation(n).astype(np.int32)
    left, right = -np.ones(n, np.int32), -np.ones(n, np.int32)
    for k in range(1, n):
        at = 0
        while True:
            side = left if keys[k] < keys[at] else right
            if side[at] < 0:
                side[at] = k
                break
            at = side[at]
    low = RNG.integers(0, n, 128).astype(np.int32)
    high = (low + RNG.integers(0, n // 2, 128)).astype(np.int32)
    nodes = np.stack([keys, left, right], 1).copy()
    arguments = [nodes, low, high, np.zeros(128, np.int32)]
    return Case("tree", OWN, "tree", arguments, 1, 128, lambda a: bool((a[3] == np.minimum(high, n) - low).all()))


def parsed(lists: int) -> Case:
    """Nested lists of numbers and strings, read byte by byte."""

    def value(depth: int) -> str:
        kind = RNG.integers(0, 4 if depth < 5 else 2)
        if kind == 0:
            return str(RNG.integers(0, 100_000))
        if kind == 1:
            return '"' + "ab\\\\" * int(RNG.integers(0, 5)) + '"'
        return "[" + ", ".join(value(depth + 1) for _ in range(RNG.integers(0, 6))) + "]"

    begin, end, text = [], [], ""
    for _ in range(lists):
        begin.append(len(text))
        text += "[" + ",".join(value(i) for i in (0, 1, 1)) + "]"
        end.append(len(text))
    first, last = (np.array(v, np.int32).reshape(64, -1) for v in (begin, end))
    ranges = [first[:, 0].copy(), last[:, -1].copy()]
    arguments = [np.frombuffer(text.encode(), np.uint8).copy(), *ranges, np.zeros((64, 4), np.int32)]
    return Case("parse", OWN, "parse", arguments, 1, 64, lambda a: bool((a[3][:, 3] == 0).all()))


def probed(n: int) -> Case:
    """Keys in a hash table that a warp probes together."""
    table, keys = np.zeros(1 << 14, np.uint32), RNG.integers(1, 2**31, n).astype(np.uint32)
    there = n * 3 // 5
    for k in keys[:there]:
        h = (int(k) * 2654435761) & 0xFFFFFFFF
        while table[h & 0x3FFF]:
            h += 1
        table[h & 0x3FFF] = k
    arguments = [keys, table, np.int32(0x3FFF), np.full(n, -2, np.int32), np.int32(n)]
    return Case("probe", OWN, "probe", arguments, 2, 64, lambda a: bool((table[a[3][:there]] == keys[:there]).all()))


def argsort(source: Path) -> Case:
    """The bitonic sort of ggml: 4 rows of 64 columns."""
    x, order = RNG.random((4, 64)).astype(np.float32), np.zeros((4, 64), np.int32)
    names = [f"k_argsort_f32_i32<GGML_SORT_ORDER_{o}>" for o in ("ASC", "DESC")]
    return Case(
        "argsort of ggml",
        source,
        names[0],
        [x, order, np.int32(64), np.int32(64)],
        4,
        64,
        lambda a: bool((np.sort(x, 1) == np.take_along_axis(x, a[1].astype(np.int64), 1)).all()),
        256,
        names,
    )


def measured(case: Case, device: Any) -> list[Any]:
    """A row of the table."""
    begin, clock = processor_s(), time.perf_counter()
    module = ptxkit.compile(case.source, device=device, instantiate=list(case.instances))
    compiled = processor_s()
    arrays = [device.upload(a) if isinstance(a, np.ndarray) and a.ndim else a for a in case.arguments]
    prepared = module[case.entry].prepare(*arrays, grid=case.grid, block=case.block, shared=case.shared)
    device.reset_counters()
    prepared()
    launched, wall = processor_s(), time.perf_counter() - clock
    out = [a.numpy().reshape(g.shape) if hasattr(a, "numpy") else g for a, g in zip(arrays, case.arguments, strict=True)]
    if not case.is_right(out):
        raise SystemExit(f"{case.name}: wrong result")
    millions = device.counters.instructions / 1e6
    seconds = launched - compiled
    entries = len(module.image.functions)
    return [case.name, entries, compiled - begin, seconds, wall, millions, millions / seconds]


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numpy", action="store_true", help="use no machine code")
    parser.add_argument("--scale", type=int, default=4, help="multiplies the sizes (default: 4)")
    parser.add_argument("--only", default="", help="measure the kernels whose names contain this")
    parser.add_argument("--attention", type=Path, help="flash.cu of flash-attention-minimal")
    parser.add_argument("--argsort", type=Path, help="argsort.cu of ggml")
    given = parser.parse_args()
    if given.numpy:
        native_wave.is_installed = lambda: False  # type: ignore[assignment]
    cases = [c for c in (*own_cases(given.scale), *programs(2 * given.scale)) if given.only in c.name]
    if given.attention is not None:
        cases.append(attention(given.attention, "forward_kernel", 4, 512, 64))
    if given.argsort is not None:
        cases.append(argsort(given.argsort))
    device = ptxkit.device("emulator")
    rows = []
    for case in cases:
        rows.append(measured(case, device))
        print(f"{case.name}: {rows[-1][3]:.2f} s", flush=True)
    print(tabulate(rows, HEADINGS, floatfmt=("", "", ".2f", ".2f", ".2f", ".3f", ".2f")))
    millions, seconds = sum(r[5] for r in rows), sum(r[3] for r in rows)
    print(f"together {millions:.1f} million thread instructions in {seconds:.2f} s: {millions / seconds:.2f} million a second")


if __name__ == "__main__":
    main()
