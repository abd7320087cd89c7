"""sparse_compress: the stored elements and their positions, in the layout of the manual's figures, for all kinds of values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.gemm import sparse
from ptxkit.kernels.gemm.sparse_compress import SparseCompress
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.workload import execute
from ptxkit.workload.inputs import dtype_of

VARIANTS = list(SparseCompress.variants())
DTYPES = ["bf16", "f16", "e4m3"]


def nibble(metadata: np.ndarray, row: int, four: int, itemsize: int) -> int:
    """The metadata of four elements, read as in PTX ISA's figures for mma.sp ("Tk: [m..n]"), one element after the other."""
    warp_row, warp, block = row % 16, row % 64 // 16, row // 64
    g, lower = warp_row % 8, warp_row // 8
    instruction_fours = 8 if itemsize == 2 else 16  # m16n8k32 of 16-bit, m16n8k64 of 8-bit elements
    instruction, within = divmod(four, instruction_fours)
    stage, part = divmod(instruction, 2)
    if itemsize == 2:  # selector F = part: thread 2 F has columns 0 to 15, 2 F + 1 has columns 16 to 31; rows g, g + 8
        lane, bit, word = 4 * g + 2 * part + within // 4, 16 * lower + within % 4 * 4, 0
    else:  # threads 0 and 1 have columns 0 to 31 of rows g and g + 8, threads 2 and 3 columns 32 to 63
        lane, bit, word = 4 * g + 2 * (within // 8) + lower, within % 8 * 4, part
    words = 2 // itemsize
    return int(metadata[block, (stage * 128 + 32 * warp + lane) * words + word]) >> bit & 15


def decoded(values: np.ndarray, metadata: np.ndarray) -> np.ndarray:
    """The dense matrix, as unsigned integers of the elements' size."""
    rows, k, size = values.shape[0], 2 * values.shape[1], values.dtype.itemsize
    dense = np.zeros((rows, k // 4, 4), f"u{size}")
    stored = np.ascontiguousarray(values).view(f"u{size}").reshape(rows, k // 4, 2)
    for row, four in np.ndindex(rows, k // 4):
        positions = nibble(metadata, row, four, size)
        first, second = positions & 3, positions >> 2
        assert first < second
        dense[row, four, [first, second]] = stored[row, four]
    return dense.reshape(rows, k)


def selected(four: np.ndarray) -> list[int]:
    """Positions of the two larger magnitudes of four elements; of equal ones the first."""
    size = four.dtype.itemsize
    magnitudes = four.view(f"u{size}").astype(int) & ((1 << (8 * size - 1)) - 1)
    return sorted(sorted(range(4), key=lambda i: (-magnitudes[i], i))[:2])


def expected(dense: np.ndarray) -> np.ndarray:
    rows, k = dense.shape
    fours = np.ascontiguousarray(dense).reshape(rows, -1, 4)
    out = np.zeros(fours.shape, f"u{dense.dtype.itemsize}")
    for at in np.ndindex(fours.shape[:2]):
        kept = selected(fours[at])
        out[at][kept] = fours[at].view(out.dtype)[kept]
    return out.reshape(rows, k)


def adversarial(dtype: str) -> np.ndarray:
    """All groups of four with equal magnitudes, zeros of both signs, subnormal numbers, infinity and NaN, in rows of 256."""
    numbers = [0.0, -0.0, 1.0, -1.0, 2.0**-9, np.inf, -np.inf, np.nan]
    fours = np.array(list(itertools.product(numbers, repeat=4)), np.float32)
    return fours.astype(dtype_of(dtype)).reshape(-1, 256)


def outputs(device, dense: np.ndarray, dtype: str, variant: str) -> dict[str, np.ndarray]:
    workload = SparseCompress(rows=dense.shape[0], k=dense.shape[1], dtype=dtype)
    case = execute.Case(workload, device, inputs={"dense": dense})
    execute.prepare(case, workload.variant(variant)).launch()
    return case.outputs()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_zeros_infinity_and_nan(device, dtype, variant):
    dense = adversarial(dtype)
    found = outputs(device, dense, dtype, variant)
    np.testing.assert_array_equal(decoded(found["values"], found["metadata"]), expected(dense))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "k"), [(1, 32), (65, 96), (130, 288)])
def test_any_size(device, dtype, variant, rows, k):
    dense = np.random.default_rng(rows).standard_normal((rows, k), np.float32).astype(dtype_of(dtype))
    found = outputs(device, dense, dtype, variant)
    np.testing.assert_array_equal(decoded(found["values"], found["metadata"]), expected(dense))


@pytest.mark.parametrize("dtype", DTYPES)
def test_metadata_beyond_the_matrix_is_valid(device, dtype):
    """wgmma reads the metadata of whole stages of 64 rows."""
    size = dtype_of(dtype).itemsize
    dense = np.ones((3, 32), dtype_of(dtype))
    metadata = outputs(device, dense, dtype, "fused")["metadata"]
    assert {nibble(metadata, row, four, size) for row in range(64) for four in range(32 // size)} == {0b0100}


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_selects_the_same(dtype):
    dense = adversarial(dtype)
    values, metadata = sparse.compress(dense)
    np.testing.assert_array_equal(decoded(values, metadata), expected(dense))
    np.testing.assert_array_equal(sparse.prune(dense).view(f"u{dense.dtype.itemsize}"), expected(dense))
    again, same = sparse.compress(sparse.prune(dense))  # pruning a pruned matrix changes nothing
    np.testing.assert_array_equal(same, metadata)
    np.testing.assert_array_equal(again.view(np.uint8), values.view(np.uint8))


def test_rows_are_compared_in_chunks(monkeypatch):
    dense = np.random.default_rng(0).standard_normal((70, 64), np.float32).astype(np.float16)
    whole = sparse.nibbles(dense)
    monkeypatch.setattr(sparse, "CHUNK", 32)
    np.testing.assert_array_equal(sparse.nibbles(dense), whole)


def test_every_word_is_written():
    settings = EmulatorSettings(initcheck=True)
    for dtype, variant in itertools.product(DTYPES, VARIANTS):
        workload = SparseCompress(rows=70, k=160, dtype=dtype)
        case = execute.Case(workload, EmulatedDevice(settings=settings), seed=5)
        assert execute.run(case, workload.variant(variant)).verdict.verified


@pytest.mark.parametrize(("dtype", "k"), [("bf16", 24), ("e4m3", 48)])
def test_rows_of_stored_elements_are_multiples_of_16_bytes(dtype, k):
    with pytest.raises(UsageError, match=f"k must be a multiple of {16 if dtype == 'bf16' else 32}"):
        SparseCompress(rows=8, k=k, dtype=dtype)
