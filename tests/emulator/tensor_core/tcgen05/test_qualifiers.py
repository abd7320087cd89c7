"""Qualifiers and operands of tcgen05.mma that few kernels use: zero-column masks, .ashift, .collector. Results are compared
with numpy, and tensor memory outside of D must be unchanged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracle
import pytest
import tensor_programs
from test_tcgen05_mma import A_AT, A_SHARED, B_SHARED, D_AT, SHARED, Case, words

from ptxkit.errors import TrapError

KIND = ("f16", "bf16", "bf16", "f32")
LARGEST = {32: 0, 64: 1, 128: 3}
"""M -> the code of the maximum shift, of 0, 8 and 32 columns."""


def zeroed(m: int, n: int, starts: list[int], firsts: list[int], ones: int, zeros: int) -> np.ndarray:
    """(n,) bool: the columns of B that a mask sets to zero, by walking its runs. PTX ISA, "Zero-Column Mask Descriptor"."""
    found = []
    for start, first in zip(starts[: 128 // m], firsts, strict=False):
        runs: list[bool] = []
        while len(runs) < start + n:
            runs += [True] * ones + [False] * zeros if first else [False] * zeros + [True] * ones
        found += runs[start : start + n // (128 // m)]
    return np.array(found)


def run(case: Case, body: str, b_zero: np.ndarray | None = None, shift: int = 0, seed: int = 0):
    """Tensor memory before and afterwards, the expected one, and the codes of A."""
    rng = np.random.default_rng(seed)
    shared, memory = oracle.noise(1, SHARED, seed + 1)
    a, c = rng.choice(oracle.small(case.a), (case.m, case.k)), rng.integers(-16, 17, (case.m, case.n)).astype(np.float64)
    b = rng.choice(oracle.small(case.b), (case.n + shift, case.k))
    where = list(oracle.places(case.m, case.n, 1, case.ws, lane=case.lane))
    oracle.scattered(memory, D_AT, oracle.bits(c, case.d), where)
    case.matrix("A").put(shared[0], A_SHARED, a)
    replace(case, n=case.n + shift).matrix("B").put(shared[0], B_SHARED, b)
    if case.in_memory:
        packed = words(a, case.a, case.padded)
        for row, column, _, lane, _ in where:
            if column % 8 == 0:
                memory[0, lane, A_AT : A_AT + packed.shape[1]] = packed[row]
    right = oracle.values(b[shift:], case.b)
    if b_zero is not None:
        right = np.where(b_zero[:, None], 0, right)
    expected = memory.copy()
    oracle.scattered(expected, D_AT, oracle.bits(oracle.values(a, case.a) @ right.T + c, case.d), where)
    return memory, tensor_programs.run(body, shared, memory), expected


def masked(case: Case, bits: int) -> str:
    return case.body().replace("%p6;", "%p6, %rd33;").replace("mov.u64 %rd30", f"mov.u64 %rd33, {bits}; mov.u64 %rd30")


@pytest.mark.parametrize("m", [32, 64, 128])
@pytest.mark.parametrize(
    ("starts", "firsts", "ones", "zeros"),
    [
        ([0, 0, 0, 0], [0, 0, 0, 0], 1, 1),
        ([3, 7, 1, 12], [1, 0, 1, 1], 5, 2),
        ([255, 9, 30, 0], [0, 1, 1, 0], 256, 256),
        ([0, 1, 2, 3], [1, 1, 0, 0], 3, 11),
    ],
)
def test_zero_column_masks(m, starts, firsts, ones, zeros):
    case = Case(*KIND, m=m, n=128, ws=True)
    bits = sum(s << 8 * k for k, s in enumerate(starts)) | sum(f << 32 + k for k, f in enumerate(firsts))
    bits |= 1 << 39 | ones - 1 << 40 | zeros - 1 << 48
    mask = zeroed(m, case.n, starts, firsts, ones, zeros)
    _, got, expected = run(case, masked(case, bits), mask)
    np.testing.assert_array_equal(got, expected)
    _, got, expected = run(case, masked(case, bits & ~(1 << 39)))  # without bit 39 there is no mask
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("m", "columns"), [(64, 8), (128, 5), (128, 1)])
def test_columns_that_are_shifted(m, columns):
    case = Case(*KIND, m=m, n=64, ws=True)
    body = masked(case, columns << 56).replace(str(case.descriptor), str(case.descriptor | LARGEST[m] << 30))
    _, got, expected = run(case, body, shift=columns)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        (1 << 37, "bits 36 to 38 are 2, which are reserved"),
        (1 << 62, "bits 62 and 63 are 1; the descriptor has 62 bits"),
        (9 << 56, r"bits 56 to 61 \(column shift\) are 9; the instruction descriptor allows 0"),
    ],
)
def test_zero_column_masks_that_are_not_valid(bits, message):
    case = Case(*KIND, m=64, n=64, ws=True)
    with pytest.raises(TrapError, match=message):
        run(case, masked(case, bits))


@pytest.mark.parametrize("kind", [KIND, ("tf32", "tf32", "tf32", "f32"), ("f8f6f4", "e2m1", "e4m3", "f32")], ids=str)
def test_ashift_moves_the_rows_of_a(kind):
    """In each 32 lanes, after the product: a row of A takes the place of the one before it, and the last one stays."""
    case = Case(*kind, m=128, n=64, in_memory=True)
    body = case.body().replace(f"kind::{case.kind}", f"kind::{case.kind}.ashift")
    memory, got, expected = run(case, body)
    columns = slice(A_AT, A_AT + case.k * (8 if case.padded else oracle.BITS[case.a]) // 32)
    for lane in range(128):
        if lane % 32 != 31:
            expected[0, lane, columns] = memory[0, lane + 1, columns]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("use", ["a::fill", "a::use", "a::lastuse", "a::discard"])
def test_collectors_of_a_do_not_change_the_result(use):
    for in_memory in (False, True):
        case = Case(*KIND, m=128, n=32, in_memory=in_memory)
        _, got, expected = run(case, case.body().replace("kind::f16", f"kind::f16.collector::{use}"))
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("use", ["b0::fill", "b1::use", "b2::lastuse", "b3::discard"])
def test_collectors_of_b_do_not_change_the_result(use):
    case = Case(*KIND, m=64, n=64, ws=True)
    _, got, expected = run(case, case.body().replace("kind::f16", f"kind::f16.collector::{use}"))
    np.testing.assert_array_equal(got, expected)
