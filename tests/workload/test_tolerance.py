"""The default tolerance allows rounding errors, and detects that one product of a sum is missing."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ptxkit import Tolerance, Work
from ptxkit.emulator.tensor_core.accumulation import accumulation
from ptxkit.workload.mismatch import places
from ptxkit.workload.tolerance import Rule, Sums, Typical
from ptxkit.workload.verify import allowed_errors, compare

f32, bf16 = np.float32, ml_dtypes.bfloat16
M, N = 48, 64


def operands(k, dtype=bf16, scale=None, seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(-1, 1, (M, k)), rng.uniform(-1, 1, (k, N))
    if scale is not None:
        a, b = a * scale ** rng.uniform(-1, 1, (M, 1)), b * scale ** rng.uniform(-1, 1, (1, N))
    return a.astype(dtype), b.astype(dtype)


def product(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


def tensor_core_sums(a, b, step=16):
    """Products summed in float32 in steps of 16, every partial sum truncated."""
    total = np.zeros((a.shape[0], b.shape[1]), f32)
    for i in range(0, a.shape[1], step):
        exact = total.astype(np.float64) + product(a[:, i : i + step], b[i : i + step])
        rounded = exact.astype(f32)
        total = np.where(np.abs(rounded) > np.abs(exact), np.nextafter(rounded, f32(0)), rounded)
    return total


def rule(k, dtype=bf16, stated=None):
    return Rule(sums=Sums.of(Work(2 * M * N * k, 1, sum_length=stated), M * N, [np.dtype(dtype)]))


@pytest.mark.parametrize("k", [64, 1024, 8192])
@pytest.mark.parametrize("scale", [None, 1e4])
def test_a_correct_tensor_core_product_is_verified(k, scale):
    a, b = operands(k, scale=scale)
    verdict = compare("c", tensor_core_sums(a, b), product(a, b), rule(k))
    assert verdict.verified, verdict.explanation


@pytest.mark.parametrize("k", [64, 1024])
def test_a_correct_sequential_product_of_floats_is_verified(k):
    for positive in (False, True):
        a, b = (np.abs(v) if positive else v for v in operands(k, f32))
        total = np.zeros((M, N), f32)
        for i in range(k):
            total += a[:, i : i + 1] * b[i : i + 1]
        verdict = compare("c", total, product(a, b), rule(k, f32))
        assert verdict.verified, verdict.explanation


@pytest.mark.parametrize("scale", [None, 1e4])
@pytest.mark.parametrize("out", [f32, bf16])
@pytest.mark.parametrize("dropped", [0, 4095, 8191])
def test_one_product_too_few_of_8192_is_wrong(out, dropped, scale):
    a, b = operands(8192, scale=scale)
    short = product(a, b) - product(a[:, dropped : dropped + 1], b[dropped : dropped + 1])
    verdict = compare("c", short.astype(out), product(a, b), rule(8192))
    assert not verdict.verified and verdict.mismatches > 0.05 * M * N
    assert out is bf16 or scale or verdict.mismatches > 0.8 * M * N


@pytest.mark.parametrize("seed", range(12))
def test_a_single_element_that_lacks_one_product_is_found(seed):
    """The kernel omits the largest product of a single element of the output."""
    a, b = operands(8192, seed=seed)
    rng = np.random.default_rng(seed)
    i, j = int(rng.integers(M)), int(rng.integers(N))
    sums = tensor_core_sums(a, b)
    products = a[i].astype(np.float64) * b[:, j].astype(np.float64)
    sums[i, j] -= products[np.argmax(np.abs(products) > 0.05)]
    verdict = compare("c", sums, product(a, b), rule(8192))
    assert verdict.mismatches == 1 and verdict.worst.startswith(f"c[{i}, {j}] is")


@pytest.mark.parametrize(
    "mutation", ["row shifted", "column shifted", "k shifted", "transposed b", "doubled", "swapped rows"]
)
def test_mutations_of_a_product_are_found(mutation):
    k = N
    a, b = operands(k)
    c = product(a, b)
    wrong = {
        "row shifted": np.roll(c, 1, axis=0),
        "column shifted": np.roll(c, 1, axis=1),
        "k shifted": product(a[:, 1:], b[:-1]),
        "transposed b": product(a, b.T),
        "doubled": 2 * c,
        "swapped rows": c[[1, 0, *range(2, M)]],
    }[mutation]
    assert not compare("c", wrong.astype(f32), c, rule(k)).verified


def test_a_huge_element_does_not_widen_what_others_may_differ_by():
    c = np.random.default_rng(0).normal(size=(M, N))
    c[3, 4] = 1e30
    typical = Typical(c)
    magnitudes = typical.at(np.arange(c.size)).reshape(M, N)
    magnitudes[3, 4] = 0
    assert magnitudes.max() < 10


def test_matrices_of_few_rows_are_one_matrix():
    """Each token has two heads: the magnitude of a row is that of the row, and not the median of all."""
    scales = np.repeat(10.0 ** -np.arange(40), 2).reshape(40, 2, 1)
    expected = scales * np.random.default_rng(0).uniform(0.5, 1, (40, 2, 64))
    found = np.asarray(Typical(expected).at(np.arange(expected.size))).reshape(expected.shape)
    assert (found / expected).max() < 4 and (found / expected).min() > 0.25


@pytest.mark.parametrize("shape", [(4096, 16, 128), (16, 65536), (65536, 16), (20, 33), (300, 24, 24)])
def test_the_typical_magnitude_varies_little_where_all_elements_are_alike(shape):
    """The smallest mean of thousands of means of few elements would be far below the typical magnitude."""
    expected = np.random.default_rng(0).normal(size=shape)
    found = np.asarray(Typical(expected).at(np.arange(expected.size)))
    assert found.min() > 0.5 and found.mean() < 1.5


def test_small_outputs_are_not_accepted_by_an_absolute_tolerance():
    p = np.full(4096, 1 / 4096)
    for dtype in (f32, np.float16, bf16):
        assert compare("p", p.astype(dtype), p).verified
        assert not compare("p", (1.1 * p).astype(dtype), p).verified
        assert not compare("p", np.zeros(4096, dtype), p).verified


def test_the_length_of_sums_is_derived_or_stated():
    assert rule(512).sums == Sums(512, False, "f32", "bfloat16")
    assert rule(512, stated=64).sums.length == 64
    work = Work(2 * M * N * 512, 1)
    assert Sums.of(work, 0, []).length == work.flops // 2
    assert Sums.of(Work(10, 80), 10, [np.dtype(f32)]).error("float32") == 0


def test_allowed_errors_of_an_output_with_its_own_tolerance():
    rule = Rule(Tolerance(absolute=1e-3), outputs={"y": Tolerance(absolute=0.5)})
    for name, allowed in (("y", 0.5), ("z", 1e-3)):
        np.testing.assert_array_equal(allowed_errors(np.dtype(np.float32), np.zeros(3), rule, name), allowed)


@pytest.mark.parametrize("shape", [(7,), (20, 17), (3, 16, 16), (5, 3)])
def test_allowed_errors_are_those_of_the_comparison(shape):
    rng = np.random.default_rng(1)
    expected = rng.normal(size=shape)
    allowed = allowed_errors(np.dtype(np.float64), expected, Tolerance(relative=1e-3, typical=1e-2, absolute=1e-4))
    where = tuple(rng.integers(n) for n in shape)
    for factor, right in ((0.99, True), (1.01, False)):
        actual = expected.copy()
        actual[where] += factor * allowed[where]
        assert compare("y", actual, expected, Tolerance(relative=1e-3, typical=1e-2, absolute=1e-4)).verified is right


def marked(shape, *where):
    wrong = np.zeros(shape, bool)
    for place in where:
        wrong[place] = True
    return wrong


@pytest.mark.parametrize(
    "wrong, text",
    [
        (marked(100, slice(None)), "every element"),
        (marked(100, 99), "the last element"),
        (marked(100, slice(96, None)), "the last 4 elements"),
        (marked(100, slice(10, 20)), "elements 10 to 19"),
        (marked(100, slice(1, None, 4)), "every 4th element from 1"),
        (marked((8, 16), 3), "all of row 3"),
        (marked((8, 16), slice(6, 8)), "all of the last 2 rows"),
        (marked((8, 16), (slice(None), 5)), "all of column 5"),
        (marked((8, 16), (slice(None), slice(0, None, 2))), "all of every 2nd column from column 0"),
        (marked((64, 64), (slice(16, 32), slice(32, 48))), "which is tile (1, 2) of 16 x 16 elements"),
        (marked((64, 64), (slice(48, 64), slice(48, 64))), "which is tile (3, 3) of 16 x 16 elements, the last"),
        (marked((8, 16), (3, slice(2, 5))), "in row 3: columns 2 to 4"),
        (marked((2, 4, 8), (1, 2)), "all of row 6 (rows of all leading axes together)"),
    ],
)
def test_where_wrong_elements_lie(wrong, text):
    assert text in places(wrong)


@pytest.mark.parametrize(
    "made, text",
    [
        (lambda y: np.roll(y, 1), "each holds the value of the element before: off by one"),
        (lambda y: np.roll(y, -1), "each holds the value of the next element: off by one"),
        (lambda y: 2 * y, "each is 2 times the reference"),
        (lambda y: -y, "each is -1 times the reference"),
        (lambda y: y + 1, "each differs by 1"),
        (lambda y: 0 * y, "all 0"),
        (lambda y: y * np.nan, "all NaN"),
        (lambda y: y.reshape(20, 20).T.reshape(-1), "transposed"),
    ],
)
def test_what_wrong_elements_hold(made, text):
    y = np.random.default_rng(0).uniform(1, 2, 400)
    shape = (20, 20) if text == "transposed" else (400,)
    verdict = compare("y", made(y).astype(f32).reshape(shape), y.reshape(shape))
    assert text in verdict.explanation
    assert "tolerance: relative=1e-05, absolute=1e-06: the default for float32" in verdict.explanation


def test_elements_that_were_never_written_are_counted():
    y = np.random.default_rng(0).uniform(1, 2, 100)
    actual = y.astype(f32)
    actual[90:] = np.frombuffer(b"\xcd" * 4, f32)[0]
    verdict = compare("y", actual, y, poison=0xCD)
    assert "10 of 100 elements of y are wrong" in verdict.explanation
    assert "where: the last 10 elements" in verdict.explanation and "all never written" in verdict.explanation


@pytest.mark.parametrize("bits, dtype", [(0x7FFFFFFF, f32), (0xFFC00000, f32), (0x7FFF, bf16), (0xFE00, np.float16)])
def test_nan_that_was_computed_counts_as_written(bits, dtype):
    """Some bytes of the NaN that a GPU or an x86 returns are those of the sentinel 0xFF."""
    y = np.linspace(1, 2, 100)
    actual = np.full(100, bits, f"u{np.dtype(dtype).itemsize}").view(dtype)
    held = compare("y", actual, y, poison=0xFF, smallest_store=1).explanation
    assert "what they hold: all NaN" in held and "written" not in held


@pytest.mark.parametrize("smallest_store, text", [(2, "bytes 2, 3 of the elements never written"), (4, "")])
def test_bytes_count_as_unwritten_only_where_a_store_is_smaller_than_an_element(smallest_store, text):
    y = np.arange(100)
    actual = (-2 - y * 37 % 1000).astype(np.int32)  # the upper bytes are those of the sentinel
    held = compare("y", actual, y, poison=0xFF, smallest_store=smallest_store).explanation
    assert (text in held) if text else ("written" not in held)


def test_integers_of_a_reference_with_fractions_must_be_the_nearest():
    steps = np.random.default_rng(0).uniform(-128, 127, 4096)
    tolerance = Tolerance(absolute=0.5, relative=2**-20)
    assert compare("q", np.rint(steps).astype(np.int8), steps, tolerance).verified
    for wrong in (np.trunc(steps), np.floor(steps), np.ceil(steps), np.rint(steps * 126 / 127)):
        assert not compare("q", wrong.astype(np.int8), steps, tolerance).verified


def test_eight_bit_floats_must_be_the_nearest():
    e4m3 = ml_dtypes.float8_e4m3fn
    values = np.random.default_rng(0).uniform(-400, 400, 4096)
    assert compare("q", values.astype(np.float32).astype(e4m3), values).verified
    assert compare("q", values.astype(bf16).astype(e4m3), values).verified  # rounded twice
    assert not compare("q", (0.96 * values).astype(np.float32).astype(e4m3), values).verified


def test_the_root_mean_square_of_all_errors_is_limited():
    rng = np.random.default_rng(0)
    o = rng.normal(size=(256, 64))
    tolerance = Tolerance(typical=1, rms=0.04)
    assert compare("o", o * (1 + 0.03 * rng.normal(size=o.shape)), o, tolerance).verified
    verdict = compare("o", 1.08 * o, o, tolerance)
    assert not verdict.verified and "root mean square error of o is 0.08" in verdict.worst


def test_tf32_truncation_is_permitted_for_large_elements():
    """A truncated product is smaller than the reference by about 0.0007 of itself."""
    c = np.random.default_rng(0).normal(size=(M, N))
    assert Rule(None, sums=Sums(128, unit="tf32")).resolved(np.dtype(f32), c)[0].relative > 2**-10
    assert compare("c", (c * (1 - 2**-10)).astype(f32), c, Rule(None, sums=Sums(128, unit="tf32"))).verified


def test_rows_of_a_few_tokens_have_magnitudes_of_their_own():
    expected = np.array([[1.0], [1e-3]]) * np.random.default_rng(0).normal(size=(2, 256))
    found = np.asarray(Typical(expected).at(np.arange(expected.size))).reshape(2, 256)
    assert 0.5 < found[0, 0] < 1.5 and 0.5e-3 < found[1, 0] < 1.5e-3


def test_fp8_truncation_is_permitted_for_large_elements():
    """Partial sums with 13 bits of fraction that grow to 6 times the typical magnitude lose more than the typical term."""
    steps = 128
    products = np.random.default_rng(0).normal(0, steps**-0.5, (steps, 64, 64))
    products[:, 0, 0] += (6 - products[:, 0, 0].sum()) / steps
    exact, partial = products.sum(0), np.zeros((64, 64))
    for step in products:
        fraction, exponent = np.frexp(partial + step)
        partial = np.ldexp(np.trunc(np.ldexp(fraction, 14)), exponent - 14)
    rule = Rule(None, sums=Sums(32 * steps, unit="e4m3", narrow="float8_e4m3fn"))
    assert 6 - partial[0, 0] > 0.018
    assert compare("c", partial.astype(f32), exact, rule).verified
    assert not compare("c", (exact * 1.02).astype(f32), exact, rule).verified


@pytest.mark.parametrize(
    ("k", "positive"), [(256, False), (256, True), (4096, False), (4096, True), (14336, False), (28672, False)]
)
def test_sums_of_fp8_products_as_tensor_cores_truncate_them_are_verified(k, positive):
    """Each product is truncated to the unit of the partial sum: with products of one sign, a sum of 4096 loses 6%."""
    rng = np.random.default_rng(k)
    fp8 = ml_dtypes.float8_e4m3fn
    a, b = (rng.uniform(0 if positive else -1, 1, shape).astype(fp8).astype(f32) for shape in ((64, k), (k, 64)))
    found = np.zeros((1, 64, 64), f32)
    sums = accumulation("wgmma", "e4m3", 90)
    for start in range(0, k, 32):
        found = sums.dot(a[None, :, start : start + 32], b[None, start : start + 32], found, "e4m3", "e4m3")
    exact, verdict_of = product(a, b), rule(k, fp8)
    verdict = compare("c", found[0], exact, verdict_of)
    assert verdict.verified, verdict.explanation
    assert not compare("c", exact * 1.15, exact, verdict_of).verified
    assert positive or not compare("c", product(a[:, 128:], b[128:]), exact, verdict_of).verified
    assert positive or k > 4096 or not compare("c", exact * 1.03, exact, verdict_of).verified


@pytest.mark.parametrize("shape", [(3, 200, 130), (5, 40, 70), (200, 8), (7, 300), (1000,), (90, 64, 64)])
def test_no_magnitude_of_a_block_is_below_its_lower_bound(shape):
    expected = np.random.default_rng(0).normal(size=shape) * np.logspace(-3, 3, shape[-1])
    typical = Typical(expected)
    for block in (slice(0, expected.size), slice(100, 333), slice(expected.size - 70, expected.size)):
        assert typical.least(block) <= np.min(typical.at(np.arange(block.start, block.stop)))
