"""Host time of a call of ptxkit.torch.layernorm, beside a prepared launch, torch, Triton and a C++ extension, in one run.

::

    python scripts/torch_overhead.py [--device cuda|cpu] [--tiny] [--rows N] [--cols N] [--rounds N] [--calls N] [--json FILE]
                                     [--extension FOLDER]

The candidates take turns: in each round, each queues ``--calls`` calls without waiting, and the GPU is waited for
between them. The table has the lower quartile and the median of the rounds in microseconds for a call, and their differences to
those of the prepared launch, which binds its arguments once and allocates nothing. Where the clock of the host changes during
the run, the lower quartiles are of rounds in one state. The default size is small, so that the queue does not
fill. ``--extension`` builds the C++ extension in a folder first (scripts/torch_extension.py), which takes a minute. On
the CPU the calls run in the emulator, whose time is not that of the host side: this only shows that the script runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch_extension

import ptxkit.torch as pt
from ptxkit.kernels.rows.layernorm import Layernorm
from ptxkit.runtime.kernel import PreparedLaunch
from ptxkit.torch.plan import device_of
from ptxkit.workload import execute


def prepared(rows: int, cols: int, where: torch.device) -> PreparedLaunch:
    """A prepared launch of the same kernel, with arrays of its own."""
    case = execute.Case(Layernorm(rows=rows, cols=cols, activation="none"), device_of(where))
    (launch,) = execute.prepare(case, Layernorm.variant("vectorized")).launches
    return launch


def by_triton(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Callable[[], Any] | None:
    """Layer normalization by a kernel of Triton; None where Triton is not installed."""
    try:
        import triton
        import triton.language as tl
    except ImportError:
        return None

    @triton.jit  # type: ignore[untyped-decorator]
    def kernel(x, weight, bias, y, cols, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0)
        c = tl.arange(0, BLOCK)
        inside = c < cols
        value = tl.load(x + row * cols + c, inside, 0.0)
        mean = tl.sum(value) / cols
        centered = tl.where(inside, value - mean, 0.0)
        rstd = tl.rsqrt(tl.sum(centered * centered) / cols + eps)
        shifted = centered * rstd * tl.load(weight + c, inside) + tl.load(bias + c, inside)
        tl.store(y + row * cols + c, shifted, inside)

    rows, cols = x.shape
    block = triton.next_power_of_2(cols)

    def call() -> torch.Tensor:
        y = torch.empty_like(x)
        kernel[(rows,)](x, weight, bias, y, cols, 1e-5, BLOCK=block)
        return y

    return call


def candidates(
    rows: int, cols: int, where: torch.device, extension: Any = None
) -> tuple[dict[str, Callable[[], Any]], PreparedLaunch]:
    """Name -> a call, after its first call; and the prepared launch, which owns its arrays."""
    x = torch.randn(rows, cols, device=where)
    weight, bias = torch.rand(cols, device=where), torch.rand(cols, device=where)
    training = [t.clone().requires_grad_() for t in (x, weight, bias)]
    launch = prepared(rows, cols, where)
    found: dict[str, Callable[[], Any]] = {
        "prepared launch": launch.fire,
        "ptxkit.torch.layernorm": lambda: pt.layernorm(x, weight, bias),
        "  with a derivative to come": lambda: pt.layernorm(*training),
        "  through torch.ops": lambda: torch.ops.ptxkit.layernorm(x, weight, bias, "none", 1e-5, False),
        "torch.nn.functional.layer_norm": lambda: torch.nn.functional.layer_norm(x, (cols,), weight, bias),
        "  with a derivative to come (torch)": lambda: torch.nn.functional.layer_norm(
            training[0], (cols,), *training[1:]
        ),
    }
    if where.type == "cuda" and (triton := by_triton(x, weight, bias)) is not None:
        found["Triton kernel and torch.empty_like"] = triton
    if where.type == "cuda" and extension is not None:
        by_extension = torch_extension.layernorm(extension, launch, rows, cols)
        found["C++ extension of torch"] = lambda: by_extension(x, weight, bias)
    expected = torch.nn.functional.layer_norm(x, (cols,), weight, bias)
    for name, call in found.items():
        result = call()
        if isinstance(result, tuple):
            result = result[0]
        if isinstance(result, torch.Tensor) and not torch.allclose(result, expected, atol=1e-4):
            raise SystemExit(f"{name.strip()}: wrong result")
    return found, launch


def measure(
    found: dict[str, Callable[[], Any]], rounds: int, calls: int, where: torch.device
) -> dict[str, list[float]]:
    """Microseconds for a call, for each round."""
    times: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds):
        for name, call in found.items():
            start = time.perf_counter()
            for _ in range(calls):
                call()
            times[name].append((time.perf_counter() - start) / calls * 1e6)
            if where.type == "cuda":
                torch.cuda.synchronize()
    return times


def quartiles(values: list[float]) -> tuple[float, float]:
    """The lower quartile and the median."""
    lower, middle, _ = statistics.quantiles(values, method="inclusive")
    return lower, middle


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="run two rounds of two calls on 4 rows")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--cols", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write the times of all rounds to a file")
    parser.add_argument("--extension", type=Path, help="build a C++ extension of torch in a folder, and measure it")
    given = parser.parse_args()
    if given.tiny:
        given.rows, given.cols, given.rounds, given.calls = 4, 64, 2, 2
    where = torch.device(given.device)
    extension = torch_extension.built(given.extension) if given.extension else None
    found, launch = candidates(given.rows, given.cols, where, extension)
    times = measure(found, given.rounds, given.calls, where)
    name = torch.cuda.get_device_name() if where.type == "cuda" else "the emulator: no times of the host side"
    print(f"layernorm {given.rows} x {given.cols} f32 on {name}, torch {torch.__version__}")
    print(f"{launch.kernel.readable}")
    print(f"{given.rounds} rounds of {given.calls} calls, microseconds for a call, and over a prepared launch\n")
    print(f"{'':38} {'lower quartile':>19} {'median':>19}")
    base = quartiles(times["prepared launch"])
    for label, values in times.items():
        shown = (f"{value:9.2f} {value - least:+9.2f}" for value, least in zip(quartiles(values), base, strict=True))
        print(f"{label:38} {' '.join(shown)}")
    if given.json:
        given.json.write_text(
            json.dumps({"device": name, "torch": torch.__version__, "times_us": times}), encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
