"""The PTX that NVRTC generates from ordinary CUDA C++: recursion, local arrays, function pointers, printf, malloc,
assert, libdevice."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest

from ptxkit.compiler import compile_source
from ptxkit.emulator import Machine
from ptxkit.emulator.engine.program import Program
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import TrapError
from ptxkit.isa.parser import parse

N = 1000


@pytest.fixture(scope="module", params=["sm_75", "sm_90a", "sm_100a"])
def program(request) -> Program:
    image = compile_source(Path(__file__).parent / "ordinary.cu", target=request.param)
    return Machine(capacity=1 << 28).load(parse(image.ptx, "ordinary.ptx"), request.param)


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def expected(i: int) -> float:
    """The result of the first kernel, computed in Python."""
    v = float(sum(j * i for j in range(16)))
    v = {0: v + 1, 1: v * 2, 2: v - 3, 3: -v, 4: v + 100, 5: v + fibonacci(i % 10), 6: v + math.sqrt(i) + 3}[i % 7]
    v += [1.0, 2.0, 3.0, 4.0][i & 3] * (math.exp(0.7) if i & 1 else math.sin(0.7))
    v += (
        i
        + math.gamma(1.5)
        + math.erf(0.3)
        + math.atan2(0.5, i)
        + math.fmod(i, 3)
        + i.bit_count()
        + 32
        - i.bit_length()
        + 12
    )
    d = i * 1234567891234
    warp = range(i // 32 * 32, min(i // 32 * 32 + 32, N))
    return v + d // (i + 7) + d % (i + 3) + sum(lane & 1 for lane in warp)


def test_everything_at_once(program):
    machine = program.machine
    out = machine.allocate(4 * N, "out")
    counter, _ = program.global_address("counter")
    machine.write(counter, np.zeros(1, np.int32))
    printed: list[str] = []
    params = struct.pack("<d3i4xQi", 0.7, 1, 2, 3, out, N)
    program.launch(
        "k1", params, grid=(8, 1, 1), block=(128, 1, 1), settings=EmulatorSettings(write_output=printed.append)
    )
    got = machine.read(out, 4 * N).view(np.float32)
    want = np.array([expected(i) for i in range(N)])
    assert np.max(np.abs(got - want) / np.abs(want)) < 1e-6
    assert machine.read(counter, 4).view(np.int32)[0] == N
    halfway = np.float32(-360 + 4 * math.exp(0.7))
    assert "".join(printed) == f"hello 3 {halfway:.6f} str c 1099511627776 1.50e+00 ff\n"


def test_a_failed_assert_says_where(program):
    machine = program.machine
    x = machine.allocate(128, "x")
    machine.write(x, np.arange(32, dtype=np.int32))
    words = r"ordinary\.cu:\d+: void k2.*thread \(5, 0, 0\).*assertion `x\[threadIdx\.x\]!=5` failed"
    with pytest.raises(TrapError, match=words):
        program.launch("k2", struct.pack("<Q", x), grid=(1, 1, 1), block=(32, 1, 1))
