"""The arithmetic of tcgen05.mma compared with a reference in Python's integers, which is itself compared with cases computed
by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tcgen05_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxkit.emulator.tensor_core.tcgen05_arithmetic import products

WIDTH = {"tf32": 32, "bf16": 16, "f16": 16, "f32": 32, "e4m3": 8, "e5m2": 8, "e2m3": 6, "e3m2": 6, "e2m1": 4}
NARROW = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
FORMS = [
    *(("f16", t, t, "f32") for t in ("f16", "bf16")),
    ("f16", "f16", "f16", "f16"),
    ("f16", "bf16", "f16", "f32"),
    ("tf32", "tf32", "tf32", "f32"),
    *(("f8f6f4", t, u, "f32") for t in NARROW for u in NARROW),
    *(("f8f6f4", t, t, "f16") for t in NARROW),
]
STYLES = ("any", "near", "far", "cancelling", "subnormal", "special", "whole")


def operand(rng: np.random.Generator, shape: tuple[int, ...], t: str, style: str) -> np.ndarray:
    """Random bit patterns of a type, as uint32, with the exponents that ``style`` names."""
    exponent_bits, fraction_bits, ignored = reference.FIELDS[t]
    top = (1 << exponent_bits) - 1
    middle = top // 2
    low, high = {
        "any": (0, top),
        "near": (middle - 1, middle + 1),
        "far": (0, top - 1),
        "cancelling": (middle, middle + 1),
        "subnormal": (0, min(3, top - 1)),
        "special": (0, top),
        "whole": (middle, middle + 3),
    }[style]
    if style in ("subnormal", "near") and t in ("bf16", "tf32"):  # products near the smallest float32 values
        low, high = (55, 66) if style == "subnormal" else (low, high)
    exponents = rng.integers(low, min(high, top) + 1, shape)
    fractions = rng.integers(0, 1 << fraction_bits, shape)
    if style == "whole":
        fractions &= ~((1 << max(fraction_bits - 2, 0)) - 1)
    signs = rng.integers(0, 2, shape)
    words = (signs << exponent_bits | exponents) << fraction_bits | fractions
    words[rng.random(shape) < 0.15] &= 1 << exponent_bits + fraction_bits  # zeros of both signs
    if style == "special":
        chosen = rng.random(shape) < 0.05
        words[chosen] |= top << fraction_bits
        infinite = chosen & (rng.random(shape) < 0.7)
        words[infinite] &= ~((1 << fraction_bits) - 1)
    elif t in ("f32", "tf32", "bf16", "f16", "e5m2"):
        full = (words >> fraction_bits & top) == top
        words[full] &= ~(1 << fraction_bits)
    words = words << ignored
    if ignored:
        words |= rng.integers(0, 1 << ignored, shape)
    return words.astype(np.uint32)


def operands(
    seed: int, style: str, types: tuple[str, str, str], m: int, n: int, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    ta, tb, td = types
    a, b, c = operand(rng, (m, k), ta, style), operand(rng, (n, k), tb, style), operand(rng, (m, n), td, style)
    if style == "cancelling":
        half = k // 2
        a[:, half : 2 * half], b[:, half : 2 * half] = a[:, :half] ^ 1 << WIDTH[ta] - 1, b[:, :half]
        a[0, half] ^= 1 << reference.FIELDS[ta][2]
    if style == "near" and td == "f32":  # an accumulator about as large as the products
        c = (c & 0x807FFFFF) | (rng.integers(115, 132, c.shape) << 23).astype(np.uint32)
    return a, b, c


def expected(a: Any, b: Any, c: Any, types: tuple[str, str, str], **more: Any) -> np.ndarray:
    ta, tb, td = types
    rows = [[reference.decode(int(x), ta) for x in row] for row in a]
    columns = [[reference.decode(int(x), tb) for x in row] for row in b]
    return np.array(
        [
            [reference.plain(x, y, reference.decode(int(c[i, j]), td), td, **more) for j, y in enumerate(columns)]
            for i, x in enumerate(rows)
        ]
    )


def test_the_reference_rounds_as_described():
    f = reference.Fraction
    assert reference.encode(f(1) + f(1, 2**24), "f32") == 0x3F800000  # toward zero
    assert reference.encode(-f(2**25 - 1, 2**24), "f32") == 0xBFFFFFFF
    assert reference.encode(f(1) + f(3, 2**11), "f16") == 0x3C02  # half way: to the even one
    assert reference.encode(f(2**16 - 16), "f16") == 0x7C00
    assert reference.encode(f(2**16 - 17), "f16") == 0x7BFF
    assert reference.encode(f(3, 2**150), "f32") == 1
    assert reference.encode(-f(1, 2**150), "f32") == 0
    assert reference.encode(f(2**128), "f32") == 0x7F800000
    assert reference.encode(f(2**23 - 1, 2**149), "f32") == 0x7FFFFF


@pytest.mark.parametrize("form", FORMS, ids="-".join)
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(STYLES))
def test_agrees_with_exact_integers(form, seed, style):
    kind, *types = form
    ta, tb, td = types
    k = {"tf32": 8, "f16": 16}.get(kind, 32)
    a, b, c = operands(seed, style, (ta, tb, td), 3, 3, k)
    got = products(kind, a, b, c, a_type=ta, b_type=tb, d_type=td)
    np.testing.assert_array_equal(got, expected(a, b, c, (ta, tb, td)))


@pytest.mark.parametrize("columns", [8, 40])
def test_wide_tiles_agree_with_narrow_ones(columns):
    a, b, c = operands(7, "near", ("f16", "f16", "f32"), 24, columns, 16)
    got = products("f16", a, b, c, a_type="f16", b_type="f16", d_type="f32")
    np.testing.assert_array_equal(got, expected(a, b, c, ("f16", "f16", "f32")))


def one(kind: str, t: str, a: list[int], b: list[int], c: int, td: str = "f32", **more: Any) -> int:
    words = [np.array([x], np.uint32) for x in (a, b, [c])]
    return int(products(kind, *words, a_type=t, b_type=t, d_type=td, **more)[0, 0])


def test_exponents_are_those_of_the_encoding():
    """1.5 * 1.5 has exponent 0, although it is above 2: 2**-25 is kept, 2**-26 is not."""
    small = {25: 0x3F80 - (25 << 7), 26: 0x3F80 - (26 << 7)}
    for bits, kept in ((25, 2.0**-25), (26, 0.0)):
        words = [0x3FC0, 0xBFC0, small[bits]], [0x3FC0, 0x3FC0, 0x3F80]
        assert one("f16", "bf16", *words, 0) == int(np.float32(kept).view(np.uint32))


def test_zero_products_and_a_zero_accumulator_have_no_exponent():
    """2**100 * 0 does not truncate 2**-60, nor does a zero accumulator."""
    assert one("f16", "bf16", [0x7180, 0x2180], [0, 0x3F80], 0x80000000) == 0x21800000


@pytest.mark.parametrize(
    ("kind", "t", "scales"), [("f16", "f16", 0), ("f8f6f4", "e4m3", 0), ("f8f6f4", "e2m1", 0), ("mxf8f6f4", "e5m2", 1)]
)
def test_an_accumulator_without_products_is_unchanged_beside_large_products(kind, t, scales):
    """Of a matrix, one row of A is zero; the products of the others are as large as they can be, and some of C are small."""
    rng = np.random.default_rng(3)
    largest = {"f16": 0x7BFF, "e4m3": 0x7E, "e5m2": 0x7B, "e2m1": 0x7}[t]
    a, b = np.full((4, 32), largest, np.uint32), np.full((8, 32), largest, np.uint32)
    a[:, 5], a[2], b[3, ::2] = 1, 0, 0
    c = rng.integers(1, 1 << 30, (4, 8), np.uint32)
    c[2] = [1, 0x3A293F, 0x85A11B59, 0x114C54D, 0x3FE2A0, 0x807FFFFF, 0x3F800001, 0x12345678]
    more = {f"scale_{name}": np.full((len(v), 1), 200, np.uint8) for name, v in (("a", a), ("b", b))} if scales else {}
    got = products(kind, a, b, c, a_type=t, b_type=t, d_type="f32", **more)
    np.testing.assert_array_equal(got[2], c[2])


def test_sums_are_aligned_to_two_to_the_minus_133_at_least():
    """2**-158 is the smallest number with an effect: 2**-149 minus 2**-159 is 2**-149, minus 2**-158 it is a unit of
    float32 less."""
    exponents = {-149: (52, 53), -158: (48, 48), -159: (47, 48)}
    pairs = {e: (x << 7, y << 7) for e, (x, y) in exponents.items()}
    assert all(x + y - 254 == e for e, (x, y) in exponents.items())
    for lost, result in ((-159, 1), (-158, 0)):
        a, b = [pairs[-149][0], pairs[lost][0] | 0x8000], [pairs[-149][1], pairs[lost][1]]
        assert one("f16", "bf16", a, b, 0) == result


def test_low_bits_of_tf32_are_dropped_before_a_nan_is_one():
    ones = [0x3F800000] * 2
    assert one("tf32", "tf32", [0x7F800001, 0], ones, 0) == 0x7F800000
    assert one("tf32", "tf32", [0x7F802000, 0], ones, 0) == 0x7FFFFFFF


@pytest.mark.parametrize(("td", "nan", "infinity"), [("f32", 0x7FFFFFFF, 0x7F800000), ("f16", 0x7FFF, 0x7C00)])
def test_special_values(td, nan, infinity):
    minus = infinity | (nan + 1)
    cases = [
        ([0x7C00, 0], [0x3C00, 0], 0, infinity),
        ([0x7C00, 0], [0xBC00, 0], 0, minus),
        ([0x7C00, 0], [0x0000, 0], 0, nan),
        ([0x7C00, 0xFC00], [0x3C00, 0x3C00], 0, nan),
        ([0x3C00, 0], [0x3C00, 0], minus, minus),
        ([0x7C00, 0], [0x3C00, 0], minus, nan),
        ([0xFE01, 0], [0x0000, 0], 0, nan),
        ([0x0000, 0], [0x0000, 0], nan, nan),
        ([0x8000, 0], [0x3C00, 0], nan + 1, 0),
    ]
    for a, b, c, result in cases:
        assert one("f16", "f16", a, b, c, td) == result


def test_a_special_row_leaves_other_rows_alone():
    a, b, c = operands(1, "near", ("bf16", "bf16", "f32"), 8, 40, 16)
    want = products("f16", a, b, c, a_type="bf16", b_type="bf16", d_type="f32")
    a[3, 5] = 0x7F80
    got = products("f16", a, b, c, a_type="bf16", b_type="bf16", d_type="f32")
    np.testing.assert_array_equal(np.delete(got, 3, 0), np.delete(want, 3, 0))
    assert (got[3] & 0x7F800000 == 0x7F800000).all()


def test_tiny_negative_sums_are_plus_zero():
    assert one("f16", "bf16", [0x8080], [0x2080], 0) == 0
    assert one("f8f6f4", "e5m2", [0x81], [0x01], 0, "f16") == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(STYLES[:5]), st.integers(0, 15))
def test_scale_input_d(seed, style, lowered):
    for kind, types in (("tf32", ("tf32", "tf32", "f32")), ("f16", ("f16", "f16", "f16"))):
        a, b, c = operands(seed, style, types, 2, 2, 8)
        got = products(kind, a, b, c, a_type=types[0], b_type=types[1], d_type=types[2], scale_input_d=lowered)
        np.testing.assert_array_equal(got, expected(a, b, c, types, lowered=lowered))


def test_negation():
    a, b, c = operands(2, "near", ("f16", "f16", "f32"), 4, 4, 16)
    form: Any = {"a_type": "f16", "b_type": "f16", "d_type": "f32"}
    want = products("f16", a ^ 0x8000, b, c, **form)
    np.testing.assert_array_equal(products("f16", a, b, c, negate_a=True, **form), want)
    np.testing.assert_array_equal(products("f16", a, b, c, negate_b=True, **form), want)
    want = products("f16", a, b, c, **form)
    np.testing.assert_array_equal(products("f16", a, b, c, negate_a=True, negate_b=True, **form), want)


def test_no_accumulator_is_a_zero_one():
    a, b, c = operands(3, "near", ("f16", "f16", "f16"), 4, 4, 16)
    form: Any = {"a_type": "f16", "b_type": "f16", "d_type": "f16"}
    got = products("f16", a, b, None, **form)
    assert got.dtype == np.uint16
    np.testing.assert_array_equal(got, products("f16", a, b, np.zeros_like(c), **form))


@pytest.mark.parametrize("ta", ["s8", "u8"])
@pytest.mark.parametrize("tb", ["s8", "u8"])
@pytest.mark.parametrize("saturate", [False, True])
def test_integers(ta, tb, saturate):
    rng = np.random.default_rng(4)
    a, b = (rng.integers(0, 256, (6, 32)).astype(np.uint8) for _ in range(2))
    c = rng.integers(0, 2**32, (6, 6)).astype(np.uint32)
    c[:3] = rng.choice([0x7FFFFFFF, 0x80000000, 0x7FFF0000, 0x80010000], (3, 6))
    signed = {"s8": np.int8, "u8": np.uint8}
    rows, columns = a.view(signed[ta]).tolist(), b.view(signed[tb]).tolist()
    want = [
        [reference.integer(x, y, int(c.view(np.int32)[i, j]), saturate) for j, y in enumerate(columns)]
        for i, x in enumerate(rows)
    ]
    got = products("i8", a, b, c, a_type=ta, b_type=tb, d_type="s32", saturate=saturate)
    np.testing.assert_array_equal(got, want)


def test_extreme_integers_saturate_once():
    full = np.full((1, 32), 255, np.uint8)
    form: Any = {"a_type": "u8", "b_type": "u8", "d_type": "s32"}
    c = np.array([[0x7FFFFFF0]], np.uint32)
    assert products("i8", full, full, c, saturate=True, **form)[0, 0] == 0x7FFFFFFF
    assert products("i8", full, full, c, **form)[0, 0] == 0x7FFFFFF0 + 32 * 255 * 255


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(STYLES), st.sampled_from(NARROW), st.sampled_from(NARROW))
def test_block_scaled_mxf8f6f4(seed, style, ta, tb):
    a, b, c = operands(seed, style, (ta, tb, "f32"), 3, 3, 32)
    rng = np.random.default_rng(seed)
    spread = int(rng.choice([2, 30, 127]))
    scale_a, scale_b = (rng.integers(127 - spread, 128 + spread, (3, 1)).astype(np.uint8) for _ in range(2))
    if style == "special":
        scale_a[1] = 255
    got = products("mxf8f6f4", a, b, c, a_type=ta, b_type=tb, d_type="f32", scale_a=scale_a, scale_b=scale_b)
    for i, j in np.ndindex(3, 3):
        scale = reference.decode(int(scale_a[i, 0]), "ue8m0") * reference.decode(int(scale_b[j, 0]), "ue8m0")
        want = expected(a[i : i + 1], b[j : j + 1], c[i : i + 1, j : j + 1], (ta, tb, "f32"), scale=scale)
        assert got[i, j] == want[0, 0]


def test_combinations_that_no_kind_has():
    a, b, c = operands(3, "near", ("f16", "f16", "f32"), 4, 4, 16)
    form: Any = {"a_type": "f16", "b_type": "f16", "d_type": "f32"}
    for change, text in (
        ({"a_type": "e4m3"}, "A of type 'e4m3'; kind f16 takes f16 bf16"),
        ({"d_type": "s32"}, "D of type 's32'; kind f16 takes f16 f32"),
        ({"a_type": "bf16", "d_type": "f16"}, "multiplies f16 only"),
        ({"saturate": True}, "kind f16 does not saturate"),
        ({"scale_a": np.zeros((4, 1), np.uint8)}, "kind f16 has no scale factors"),
        ({"scale_input_d": 16}, "scale-input-d is 16; 0 to 15 are possible"),
    ):
        with pytest.raises(ValueError, match=text):
            products("f16", a, b, c, **{**form, **change})
    with pytest.raises(ValueError, match="no kind 'f64'; kinds are f16, tf32"):
        products("f64", a, b, c, **form)
    with pytest.raises(ValueError, match=r"C of shape \(3, 4\); expected \(4, 4\)"):
        products("f16", a, b, c[:3], **form)
    with pytest.raises(ValueError, match=r"scale factors of A have shape None; expected \(4, 1\)"):
        products("mxf8f6f4", a.repeat(2, 1), b.repeat(2, 1), c, a_type="e4m3", b_type="e4m3", d_type="f32")
    with pytest.raises(ValueError, match="kind i8 does not negate"):
        products("i8", a, b, c, a_type="u8", b_type="u8", d_type="s32", negate_a=True)
