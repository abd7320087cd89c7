"""Triton's PTX for sm_100a runs in the emulator: tcgen05, tensor memory, TMA with maps of the host and of the kernel.

Two programs are stored, so that they run everywhere. All are compiled and run where Triton is installed; that needs no GPU.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from triton_programs import CASES, STORED, Program, compiled, stored

import ptxkit
from ptxkit.errors import PtxkitError
from ptxkit.workload.inputs import dtype_of

SETTINGS = [
    pytest.param({}, id="eager"),
    pytest.param({"completion": "latest-legal"}, id="latest-legal"),
    pytest.param({"racecheck": "warps"}, id="racecheck"),
]
SMALL = (200, 144, 176)
"""m, n, k: no multiple of a tile."""

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


@cache
def emulator():
    return ptxkit.device("emulator")


def launch(program: Program, args: list, grid: tuple[int, ...], settings: dict) -> None:
    """Launch with Triton's parameters: its shape and strides follow each tensor map, the scratch memory follows the
    arguments."""
    given, swizzles = [], iter(program.swizzles)
    for argument in args:
        if isinstance(argument, tuple):
            array, box = argument
            swizzle = next(swizzles)
            given.append(ptxkit.TensorMap(array, box=box, swizzle=f"{swizzle}B" if swizzle else "none"))
            given += [*map(np.int32, array.shape), np.int64(array.shape[1]), np.int64(1)]
        else:
            given.append(argument)
    scratch = np.uint64(0)
    if program.scratch:
        scratch = emulator().upload(np.zeros(program.scratch * int(np.prod(grid)), np.uint8))
    kernel = ptxkit.compile(program.ptx, device=emulator())[program.name]
    with emulator().settings(**settings):
        kernel(*given, scratch, np.uint64(0), grid=grid, block=program.threads, shared=program.shared)


def check_matmul(program: Program, settings: dict) -> None:
    """Integers, so that every sum is exact."""
    m, n, k = SMALL
    rng = np.random.default_rng(m)
    a, b = rng.integers(-3, 4, (m, k)).astype(np.float16), rng.integers(-3, 4, (n, k)).astype(np.float16)
    up = emulator().upload
    arrays = [up(a), up(b), up(np.zeros((m, n), np.float16))]
    if program.swizzles:
        args = [(array, box) for array, box in zip(arrays, ((128, 64), (64, 64), (128, 64)), strict=True)]
    else:
        args = list(arrays)
    launch(program, [*args, np.int32(m), np.int32(n), np.int32(k)], (2,), settings)
    np.testing.assert_array_equal(arrays[2].numpy(), (a.astype(np.float32) @ b.T.astype(np.float32)).astype(np.float16))


def quantized(case: str, rows: int, k: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bytes of the elements, exponents of the factors, and the matrix that they stand for, (rows, k)."""
    exponents = rng.integers(125, 130, (rows, k // 32)).astype(np.uint8)
    factors = np.repeat(2.0 ** (exponents.astype(int) - 127), 32, 1)
    if case == "mxfp4":
        codes = rng.integers(0, 16, (rows, k))
        return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8), exponents, E2M1[codes] * factors
    elements = rng.integers(-6, 7, (rows, k)).astype(dtype_of("e4m3"))
    return elements.view(np.uint8), exponents, elements.astype(float) * factors


def check_scaled(case: str, program: Program, settings: dict) -> None:
    m, n, k = 256, 128, 384
    rng = np.random.default_rng(n)
    a, a_scale, left = quantized(case, m, k, rng)
    b, b_scale, right = quantized(case, n, k, rng)
    up = emulator().upload
    c = up(np.zeros((m, n), np.float32))
    args = [*map(up, (a, b, a_scale, b_scale)), c, np.int32(n), np.int32(k)]
    launch(program, args, (m // 128, n // 64), settings)
    np.testing.assert_array_equal(c.numpy(), left @ right.T)


def check_attention(causal: bool, program: Program, settings: dict) -> None:
    n, d = 208, 64
    rng = np.random.default_rng(d)
    q, k, v = rng.standard_normal((3, n, d)).astype(np.float16)
    up = emulator().upload
    o = up(np.zeros((n, d), np.float16))
    scale = np.float32(1.4426950408889634 / d**0.5)
    launch(program, [up(q), up(k), up(v), o, np.int32(n), scale], (2,), settings)
    scores = q.astype(float) @ k.T.astype(float) / d**0.5
    if causal:
        scores[np.triu_indices(n, 1)] = -np.inf
    p = np.exp(scores - scores.max(1, keepdims=True))
    np.testing.assert_allclose(o.numpy(), p / p.sum(1, keepdims=True) @ v, atol=2e-3, rtol=2e-3)


def check(case: str, program: Program, settings: dict) -> None:
    if case.startswith("matmul"):
        check_matmul(program, settings)
    elif case.startswith("mx"):
        check_scaled(case, program, settings)
    else:
        check_attention(case.endswith("causal"), program, settings)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("case", sorted(path.stem for path in STORED.glob("*.ptx")))
def test_stored(case, settings):
    check(case, stored(case), settings)


@pytest.mark.parametrize("case", CASES)
def test_compiled_on_the_spot(case):
    pytest.importorskip("triton", reason="Triton is not installed")
    program = compiled(case)
    assert "tcgen05.mma" in program.ptx
    for settings in SETTINGS:
        check(case, program, *settings.values)


WAIT = re.compile(r"mbarrier\.try_wait[^;]*;\s*@!complete bra\.uni waitLoop;")


@pytest.mark.parametrize("case", ["matmul", "mxfp8"])
def test_each_missing_wait_is_found(case):
    """Without one of the waits for copies or products, data is read or written too early."""
    program = stored(case)
    waits = list(WAIT.finditer(program.ptx))
    assert waits
    for wait in waits:
        without = replace(program, ptx=program.ptx[: wait.start()] + program.ptx[wait.end() :])
        with pytest.raises((PtxkitError, AssertionError)):
            check(case, without, {"completion": "latest-legal"})
