"""The summation of products: the vectorised model compared with the published description, one scalar at a time.

With a GPU the last tests also compare the model with the hardware, bit for bit, on data that is not integer-valued.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import test_mma
import test_wgmma

from ptxkit.emulator.tensor_core.accumulation import Accumulation, accumulation, to_f32_toward_zero

LOWEST = {"f16": -14, "bf16": -126, "tf32": -126, "e4m3": -6, "e5m2": -14, "f32": -126}
KINDS: dict[str, Any] = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


def significand(x: float, t: str) -> tuple[float, int]:
    if x == 0:
        return 0.0, -126
    s, e = math.frexp(x)
    s, e = 2 * s, e - 1
    low = LOWEST[t]
    return (s * 2.0 ** (e - low), low) if e < low else (s, e)


def scalar(a: Any, b: Any, c: Any, types: tuple[str, str, str], model: Accumulation) -> Any:
    """One element by the published description; ``types`` of A, B and the accumulator."""
    terms = [significand(float(c), types[2])]
    for x, y in zip(a, b, strict=True):
        (s0, e0), (s1, e1) = significand(float(x), types[0]), significand(float(y), types[1])
        terms.append((s0 * s1, e0 + e1))
    largest = max(e for _, e in terms)
    whole = sum(math.trunc(s * 2.0 ** (model.fraction + e - largest)) for s, e in terms)
    value = whole * 2.0 ** (largest - model.fraction)
    if types[2] == "f16":
        return np.float16(value)
    s, e = significand(value, "f32")
    bits = 13 if model.short else 23
    return np.float32(math.trunc(s * 2.0**bits) * 2.0**-bits * 2.0**e if value else 0.0)


def reference(a: Any, b: Any, c: Any, types: tuple[str, str, str], model: Accumulation) -> np.ndarray:
    """(U, m, n), group after group of terms."""
    out = c.copy()
    for start in range(0, a.shape[-1], model.terms):
        s = slice(start, start + model.terms)
        before = out.copy()
        for u, i, j in np.ndindex(out.shape):
            out[u, i, j] = scalar(a[u, i, s], b[u, s, j], before[u, i, j], types, model)
    return out


def values(rng: np.random.Generator, shape: tuple[int, ...], t: str, kind: str) -> np.ndarray:
    """float32 values that type ``t`` has: ``"plain"`` normal, ``"wide"`` over many binades, ``"tiny"`` with subnormal ones."""
    x = rng.standard_normal(shape)
    if kind == "wide":
        x *= 2.0 ** rng.integers(-6 if t == "e4m3" else -12, 5 if t == "e4m3" else 8, shape)
    if kind == "tiny":
        x *= 2.0 ** -(60 if t in ("bf16", "tf32") else 13 if t == "f16" else 6)
    x[rng.random(shape) < 0.1] = 0
    short = x.astype(np.float32)
    if t == "tf32":
        return (short.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return short.astype(KINDS[t]).astype(np.float32)


MODELS = [accumulation("mma", "f16", 90), accumulation("wgmma", "e4m3", 90), accumulation("mma", "bf16", 80)]


@pytest.mark.parametrize("kind", ["plain", "wide", "tiny"])
@pytest.mark.parametrize("td", ["f32", "f16"])
@pytest.mark.parametrize(
    "types", [("bf16", "bf16"), ("f16", "f16"), ("tf32", "tf32"), ("e4m3", "e5m2"), ("e5m2", "e4m3")]
)
@pytest.mark.parametrize("columns", [8, 40])
def test_agrees_with_the_description(types, td, kind, columns):
    rng = np.random.default_rng(columns)
    k = {"tf32": 8, "bf16": 16, "f16": 16}.get(types[0], 32)
    a, b = values(rng, (2, 4, k), types[0], kind), values(rng, (2, k, columns), types[1], kind)
    c = (rng.standard_normal((2, 4, columns)) * (2.0**-20 if kind == "tiny" else 1)).astype(
        "f4" if td == "f32" else "f2"
    )
    with np.errstate(over="ignore"):
        for model in MODELS:
            got = model.dot(a, b, c, *types)
            np.testing.assert_array_equal(got, reference(a, b, c, (*types, td), model))
            assert got.dtype == c.dtype


def test_magnitudes_beyond_the_fast_path():
    """Products that overflow or underflow float32 on their own."""
    model = MODELS[0]
    a = np.array([[[2.0**120, 2.0**-120, 1.5], [2.0**-70, 2.0**-75, 0]]], np.float32)
    b = np.array([[[2.0**60, 0.0], [2.0**-60, 2.0**100], [2.0**-100, 2.0**-126]]], np.float32)
    c = np.array([[[1.0, 0.0], [2.0**-140, -(2.0**-149)]]], np.float32)
    with np.errstate(over="ignore"):
        got = model.dot(a, b, c, "bf16", "bf16")
    assert got[0, 0, 0] == np.inf
    np.testing.assert_array_equal(got[0, 0, 1], np.float32(2.0**-20))
    np.testing.assert_array_equal(got[0, 1], np.float32([2.0**-10, 2.0**25]))


def test_infinities_and_nans():
    with np.errstate(all="ignore"):
        infinities_and_nans()


def infinities_and_nans():
    a = np.ones((1, 4, 16), np.float32)
    a[0, 0, 3], a[0, 1, 3], a[0, 2, 3], a[0, 2, 4] = np.inf, np.nan, np.inf, -np.inf
    got = MODELS[0].dot(a, np.ones((1, 16, 8), np.float32), np.zeros((1, 4, 8), np.float32), "bf16", "bf16")
    assert (got[0, 0] == np.inf).all()
    assert (got[0, 1:3].view(np.uint32) == 0x7FFFFFFF).all()
    assert (got[0, 3] == 16).all()
    half = MODELS[0].dot(a, np.ones((1, 16, 8), np.float32), np.zeros((1, 4, 8), np.float16), "f16", "f16")
    assert (half[0, 1].view(np.uint16) == 0x7FFF).all()


def test_whole_and_aligned_ways_agree():
    """Integers are computed by a shortcut, which a single value with many bits excludes for all."""
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-9, 9, s).astype(np.float32) for s in ((3, 16, 16), (3, 16, 40)))
    c = rng.integers(-999, 999, (3, 16, 40)).astype(np.float32)
    quick = MODELS[0].dot(a, b, c, "bf16", "bf16")
    np.testing.assert_array_equal(quick, (a.astype("f8") @ b + c).astype("f4"))
    c[2, 15, 39] = 2.0**-40
    slow = MODELS[0].dot(a, b, c, "bf16", "bf16")
    np.testing.assert_array_equal(slow.reshape(-1)[:-1], quick.reshape(-1)[:-1])


@pytest.mark.parametrize(("target", "unpacks"), [(90, True), (100, True), (103, True), (110, True), (120, False)])
def test_which_targets_widen_8_bit_floats_to_f16(target, unpacks):
    """2**-12 is cut off below 2**14 * (1 - 1) in one sum of 25 bits, but C is added to the products' sum afterwards."""
    model = accumulation("mma", "e5m2", target)
    a, b = np.zeros((1, 1, 32), np.float32), np.ones((1, 32, 1), np.float32)
    a[0, 0, :3] = 2.0**14, -(2.0**14), 2.0**-12
    c = np.full((1, 1, 1), 1, np.float32)
    got = model.dot(a, b, c, "e5m2", "e5m2")
    assert got[0, 0, 0] == (1 + 2.0**-12 if unpacks else 1)


def test_truncation():
    exact = np.array(
        [1 + 2.0**-24 + 2.0**-40, -1 - 2.0**-24 - 2.0**-40, 2.0**-149 * 1.9, -(2.0**-130) * (1 + 2.0**-22), 0.0]
    )
    with np.errstate(all="ignore"):
        got = to_f32_toward_zero(exact)
    np.testing.assert_array_equal(got, np.float32([1, -1, 2.0**-149, -(2.0**-130), 0]))


@pytest.mark.parametrize("accumulator", [0.0, -0.0])
def test_a_negative_sum_that_becomes_zero_in_f16_is_positive_zero(accumulator):
    """As on an H200: the product is -2 ** -26, a quarter of the smallest number of f16."""
    a, b = np.full((1, 1, 1), -(2.0**-13), np.float32), np.full((1, 1, 1), 2.0**-13, np.float32)
    for model in (accumulation("mma", "f16", 90), accumulation("mma", "e5m2", 90), accumulation("wgmma", "e5m2", 90)):
        got = model.dot(a, b, np.full((1, 1, 1), accumulator, np.float16), "f16", "f16")
        assert got.view(np.uint16)[0, 0, 0] == 0


RANDOM = [
    "m16n8k16.row.col.f32.bf16",
    "m16n8k16.row.col.f16.f16",
    "m16n8k8.row.col.f32.tf32",
    "m16n8k32.row.col.f32.e4m3.e5m2",
]


@pytest.mark.parametrize("case", [c for c in test_mma.cases() if any(r in c.opcode for r in RANDOM)], ids=str)
@pytest.mark.parametrize("kind", ["plain", "wide"])
def test_mma_on_random_data(device, case, kind):
    hopper_or_skip(device)
    rng = np.random.default_rng(5)
    m, n, k = case.shape
    ta, tb, td = case.types
    a, b = values(rng, (4, m, k), ta, kind), values(rng, (4, k, n), tb, kind)
    c = rng.standard_normal((4, m, n)).astype(test_mma.DTYPES[td])
    got = test_mma.multiply(device, case, a.astype(test_mma.DTYPES[ta]), b.astype(test_mma.DTYPES[tb]), c)
    with np.errstate(over="ignore"):
        if ta == "e4m3":
            low = np.arange(k) % 4 < 2
            halves, model = ("f16", "f16", td), Accumulation(25, 64)
            first = reference(a[..., low], b[:, low], np.zeros_like(c), halves, model)
            want = c + reference(a[..., ~low], b[:, ~low], first, halves, model)
        else:
            want = reference(a, b, c, (ta, tb, td), accumulation("mma", ta, 90))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "types", [("f32", "bf16", "bf16"), ("f16", "f16", "f16"), ("f32", "tf32", "tf32"), ("f32", "e4m3", "e5m2")]
)
def test_wgmma_on_random_data(device, types):
    hopper_or_skip(device)
    td, ta, tb = types
    case = test_wgmma.Case(32, td, ta, tb)
    rng = np.random.default_rng(6)
    a, b = values(rng, (1, 64, case.k), ta, "plain"), values(rng, (1, 32, case.k), tb, "plain")
    c = rng.standard_normal((2, 64, 32)).astype(test_mma.DTYPES[td])
    given = test_wgmma.inputs(case, a.astype(test_mma.DTYPES[ta]), b.astype(test_mma.DTYPES[tb]), c)
    got = test_wgmma.execute(device, test_wgmma.text(case), case, given, 1)
    want = reference(
        np.repeat(a, 2, 0), np.repeat(b.transpose(0, 2, 1), 2, 0), c, (ta, tb, td), accumulation("wgmma", ta, 90)
    )
    np.testing.assert_array_equal(got, want)


def hopper_or_skip(device: Any) -> None:
    """The programs are assembled for sm_90a, so that only this target has to agree."""
    if device.kind == "gpu" and device.target.cc != 90:
        pytest.skip(f"{device.name} adds up in its own way")
