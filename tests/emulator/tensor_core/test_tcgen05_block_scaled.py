"""mxf4 and mxf4nvf4 of tcgen05.mma, and sparse A of all kinds, compared with the reference in Python's integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tcgen05_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tcgen05_arithmetic import NARROW, expected, operands

from ptxkit.emulator.tensor_core.tcgen05 import sparsity
from ptxkit.emulator.tensor_core.tcgen05_arithmetic import products

FORMS = [("mxf4", "ue8m0", 32), ("mxf4nvf4", "ue8m0", 32), ("mxf4nvf4", "ue8m0", 16), ("mxf4nvf4", "ue4m3", 16)]
STYLES = ("near", "far", "tiny", "large c", "small c", "cancelling", "nan")
SELECTORS = (0x4, 0x8, 0xC, 0x9, 0xD, 0x6, 0xE)


def scale_factors(rng: np.random.Generator, shape: tuple[int, int], t: str, style: str) -> np.ndarray:
    if t == "ue4m3":
        low, high = {"near": (0x30, 0x40), "cancelling": (0x38, 0x39)}.get(style, (0, 0x7F))
        factors = rng.integers(low, high, shape) | rng.integers(0, 2, shape) << 7
    elif style == "tiny":
        factors = rng.integers(38, 66, shape)
    else:
        low, high = {"near": (124, 131), "far": (0, 255), "cancelling": (127, 128)}.get(style, (100, 150))
        factors = rng.integers(low, high, shape)
    if style == "nan":
        factors[rng.random(shape) < 0.05] = 0x7F if t == "ue4m3" else 0xFF
    return factors.astype(np.uint8)


def case(seed: int, style: str, t: str, m: int, n: int, k: int, count: int) -> tuple[np.ndarray, ...]:
    """A, B, C and scale factors, with accumulators about as large as the products, unless ``style`` says otherwise."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 16, (m, k)).astype(np.uint8), rng.integers(0, 16, (n, k)).astype(np.uint8)
    a[rng.random((m, k)) < rng.choice([0.0, 0.3, 0.9])] &= 8
    if style == "cancelling":
        a[:, k // 2 :], b[:, k // 2 :] = a[:, : k // 2] ^ 8, b[:, : k // 2]
        a[0, 0] ^= 1
    scale_a, scale_b = scale_factors(rng, (m, count), t, style), scale_factors(rng, (n, count), t, style)
    if t == "ue8m0":
        middle = scale_a.astype(int).max(1)[:, None] + scale_b.astype(int).max(1) - 127
    else:
        middle = np.full((m, n), 127)
    shift = {"large c": 20, "small c": -20, "far": 0}.get(style, 3)
    exponents = np.clip(middle + shift + rng.integers(-12, 13, (m, n)), 0, 254)
    c = (rng.integers(0, 2, (m, n)) << 31 | exponents << 23 | rng.integers(0, 1 << 23, (m, n))).astype(np.uint32)
    c[rng.random((m, n)) < 0.2] &= 0x80000000
    return a, b, c, scale_a, scale_b


def want(a: Any, b: Any, c: Any, scale_a: Any, scale_b: Any, t: str) -> np.ndarray:
    out = np.empty(c.shape, np.uint32)
    width = a.shape[1] // scale_a.shape[1]
    rows, columns = ([[reference.decode(int(x), "e2m1") for x in row] for row in v] for v in (a, b))
    factors = [
        [[reference.decode(int(x), t) for x in row.repeat(width)] for row in scale] for scale in (scale_a, scale_b)
    ]
    for i, j in np.ndindex(out.shape):
        accumulator = reference.decode(int(c[i, j]), "f32")
        out[i, j] = reference.fp4(rows[i], columns[j], accumulator, factors[0][i], factors[1][j], t == "ue8m0")
    return out


@pytest.mark.parametrize("form", FORMS, ids=str)
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(STYLES), st.sampled_from([64, 96]))
def test_agrees_with_exact_integers(form, seed, style, k):
    kind, t, block = form
    a, b, c, scale_a, scale_b = case(seed, style, t, 3, 3, k, k // block)
    more: Any = {"scale_a": scale_a, "scale_b": scale_b, "scale_type": t, "block": block}
    got = products(kind, a, b, c, a_type="e2m1", b_type="e2m1", d_type="f32", **more)
    np.testing.assert_array_equal(got, want(a, b, c, scale_a, scale_b, t))


HALF, ONE, TWO, FOUR = 1, 2, 4, 6
MINUS = 8
NOTHING: tuple[dict[int, int], int, int] = ({}, 0, 0)


def one(t: str, groups: list[tuple[dict[int, int], int, int]], c: float = 0.0) -> float:
    """One element, with a scale factor for 16 of K; every element of B is a half.

    Args:
        groups: elements of A by their place in the group, and exponents (ue8m0) or bits (ue4m3) of both scale factors.
    """
    groups = groups + [NOTHING] * (4 - len(groups))
    a = np.zeros((1, 64), np.uint8)
    for g, (elements, _, _) in enumerate(groups):
        for place, bits in elements.items():
            a[0, 16 * g + place] = bits
    b = np.full((1, 64), HALF, np.uint8)
    bias = 127 if t == "ue8m0" else 0
    scale_a, scale_b = (np.array([[g[i] + bias for g in groups]], np.uint8) for i in (1, 2))
    accumulator = np.array([[c]], np.float32).view(np.uint32)
    form: Any = {"a_type": "e2m1", "b_type": "e2m1", "d_type": "f32", "scale_type": t, "block": 16}
    got = products("mxf4nvf4", a, b, accumulator, scale_a=scale_a, scale_b=scale_b, **form)
    assert got[0, 0] == want(a, b, accumulator, scale_a, scale_b, t)[0, 0]
    return float(got.view(np.float32)[0, 0])


def test_groups_below_two_to_the_minus_174_are_dropped_from_subnormal_sums():
    """2**-148 minus 2**-175 gives 2**-148; minus 2**-174 it is truncated to 2**-149."""
    unit = ({0: ONE}, -100, -47)
    assert one("ue8m0", [unit, ({0: HALF | MINUS}, -100, -73)]) == 2.0**-148
    assert one("ue8m0", [unit, ({0: HALF | MINUS}, -100, -72)]) == 2.0**-149


def test_a_group_that_c_outranks_is_cut_35_bits_below_c():
    """C = -2 has exponent 1, and cancels a group with S = 0 and R = 2."""
    large = ({0: FOUR}, 0, 0)
    assert one("ue8m0", [large, ({0: HALF}, -32, 0)], -2.0) == 2.0**-34
    assert one("ue8m0", [large, ({0: HALF}, -33, 0)], -2.0) == 0
    assert one("ue8m0", [({0: FOUR, 1: FOUR | MINUS}, 0, 0), ({0: HALF}, -33, 0)]) == 2.0**-35


LARGEST, SMALLEST = 0x78, 0x01
"""2**8 and 2**-9 as ue4m3."""


@pytest.mark.parametrize(("second", "left"), [(1, 2.0**-19), (3, 2.0**-19), (4, 0.0), (15, 0.0)])
def test_four_products_are_added_before_they_are_cut(second, left):
    """With S = 16 a unit is 2**-19: two products of half of it survive if one group of four has both."""
    cancels = ({0: ONE, 5: ONE | MINUS}, LARGEST, LARGEST)
    assert one("ue4m3", [cancels, ({0: HALF, second: HALF}, SMALLEST, SMALLEST)]) == left


def test_sixteen_products_are_added_before_they_are_cut_where_c_is_largest():
    """C = -2**16 has the exponent of a group that cancels it."""
    large = ({0: ONE, 1: ONE}, LARGEST, LARGEST)
    assert one("ue4m3", [large, ({0: HALF, 4: HALF}, SMALLEST, SMALLEST)], -(2.0**16)) == 2.0**-19


def test_a_scale_factor_of_zero_has_no_exponent():
    """C keeps its last bit, which is below 35 bits under the exponents of 0 and 2**8."""
    c = 2.0**-14 + 2.0**-37
    groups = [({0: FOUR}, 0, LARGEST), ({0: HALF}, SMALLEST, SMALLEST)]
    assert one("ue4m3", groups, c) == c + 2.0**-20


@pytest.mark.parametrize("t", ["ue8m0", "ue4m3"])
def test_sums_that_need_no_truncation_agree_with_those_that_do(t):
    """One tiny accumulator excludes the shortcut for all elements of a tile."""
    a, b, c, scale_a, scale_b = case(3, "near", t, 16, 16, 64, 4)
    form: Any = {"a_type": "e2m1", "b_type": "e2m1", "d_type": "f32", "scale_type": t, "block": 16}
    c = (np.round(c.view(np.float32) * 8) / 8).view(np.uint32)
    quick = products("mxf4nvf4", a, b, c, scale_a=scale_a, scale_b=scale_b, **form)
    c[15, 15] = 0x00000001
    slow = products("mxf4nvf4", a, b, c, scale_a=scale_a, scale_b=scale_b, **form)
    np.testing.assert_array_equal(slow.reshape(-1)[:-1], quick.reshape(-1)[:-1])


def expand_sparse(kind: str, stored: np.ndarray, nibbles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A with its zeros, and which elements are stored."""
    t = {"tf32": "tf32", "f16": "f16", "i8": "u8"}.get(kind, "e2m1")
    found = sparsity.expand(stored, nibbles, t, kind.startswith("mxf4"))
    assert isinstance(found, tuple)
    return found


def sparse_case(rng: np.random.Generator, kind: str, m: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Metadata (m, chunks), and whether each element (m, k) is stored, by the description."""
    width = 2 if kind == "tf32" else 8 if kind.startswith("mxf4") else 4
    nibbles = rng.choice((0x4, 0xE) if width == 2 else SELECTORS, (m, k // width)).astype(np.uint8)
    kept = np.zeros((m, k), bool)
    for (row, chunk), nibble in np.ndenumerate(nibbles):
        if width == 2:
            kept[row, 2 * chunk + (nibble == 0xE)] = True
            continue
        for position in (nibble & 3, nibble >> 2):
            unit = width // 4
            start = width * chunk + unit * int(position)
            kept[row, start : start + unit] = True
    return nibbles, kept


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from(["f16", "tf32", "f8f6f4"]), st.sampled_from(["near", "special", "far"])
)
def test_sparse_products(seed, kind, style):
    """Elements that are not stored have no effect, even where B has a NaN or an infinity."""
    rng = np.random.default_rng(seed)
    t = {"f16": rng.choice(["f16", "bf16"]), "tf32": "tf32", "f8f6f4": rng.choice(NARROW)}[kind]
    k = {"tf32": 16, "f16": 32, "f8f6f4": 64}[kind]
    types = (str(t), str(t), "f32")
    a, b, c = operands(seed, style, types, 3, 3, k)
    nibbles, kept = sparse_case(rng, kind, 3, k)
    stored = a[kept].reshape(3, -1)
    if kind != "tf32":  # 0b0110 stores the later element first
        pairs = stored.reshape(3, -1, 2)
        pairs[nibbles == 6] = pairs[nibbles == 6][:, ::-1]
    full, found = expand_sparse(kind, stored, nibbles)
    np.testing.assert_array_equal(found, kept)
    np.testing.assert_array_equal(full, np.where(kept, a, 0))
    got = products(kind, full, b, c, a_type=types[0], b_type=types[1], d_type="f32", kept=found)
    for i in range(3):
        ones = expected(a[i : i + 1, kept[i]], b[:, kept[i]], c[i : i + 1], types)
        np.testing.assert_array_equal(got[i], ones[0])


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(FORMS), st.sampled_from(STYLES))
def test_sparse_fp4(seed, form, style):
    kind, t, block = form
    a, b, c, scale_a, scale_b = case(seed, style, t, 3, 3, 128, 64 // block)
    rng = np.random.default_rng(seed)
    nibbles, kept = sparse_case(rng, kind, 3, 128)
    stored = a[kept].reshape(3, -1)
    pairs = stored.reshape(3, -1, 2, 2)
    pairs[nibbles == 6] = pairs[nibbles == 6][:, ::-1]
    full, found = expand_sparse(kind, stored, nibbles)
    np.testing.assert_array_equal(full, np.where(kept, a, 0))
    more: Any = {"scale_a": scale_a, "scale_b": scale_b, "scale_type": t, "block": block, "kept": found}
    got = products(kind, full, b, c, a_type="e2m1", b_type="e2m1", d_type="f32", **more)
    for i, j in np.ndindex(3, 3):
        row, column = a[i : i + 1, kept[i]], b[j : j + 1, kept[i]]
        one = want(row, column, c[i : i + 1, j : j + 1], scale_a[i : i + 1], scale_b[j : j + 1], t)
        assert got[i, j] == one[0, 0]


def test_sparse_mxf8f6f4_has_one_scale_factor_for_64_columns():
    rng = np.random.default_rng(0)
    nibbles, kept = sparse_case(rng, "mxf8f6f4", 4, 64)
    a, b = (rng.integers(0x30, 0x48, (4, 64)).astype(np.uint8) for _ in range(2))
    full, found = expand_sparse("mxf8f6f4", a[kept].reshape(4, -1), nibbles)
    form: Any = {"a_type": "e4m3", "b_type": "e4m3", "d_type": "f32", "kept": found}
    doubled = np.full((4, 1), 128, np.uint8)
    got = products("mxf8f6f4", full, b, None, scale_a=doubled, scale_b=doubled - 1, **form)
    plain = products("f8f6f4", full, b, None, **form)
    np.testing.assert_array_equal(got.view(np.float32), 2 * plain.view(np.float32))


def test_sparse_integers():
    rng = np.random.default_rng(1)
    nibbles, kept = sparse_case(rng, "i8", 4, 64)
    a, b = (rng.integers(0, 256, (4, 64)).astype(np.uint8) for _ in range(2))
    stored = a[kept].reshape(4, -1, 2)
    stored[nibbles == 6] = stored[nibbles == 6][:, ::-1]
    full, found = expand_sparse("i8", stored.reshape(4, -1), nibbles)
    got = products("i8", full, b, None, a_type="u8", b_type="s8", d_type="s32", kept=found)
    whole = np.where(kept, a, 0).astype(np.int64) @ b.view(np.int8).T.astype(np.int64)
    np.testing.assert_array_equal(got.view(np.int32), whole)


def test_shapes_of_scale_factors():
    a, b, c, scale_a, scale_b = case(0, "near", "ue8m0", 4, 8, 64, 4)
    form: Any = {"a_type": "e2m1", "b_type": "e2m1", "d_type": "f32"}
    with pytest.raises(ValueError, match=r"kind mxf4nvf4 has ue8m0 of 32, ue8m0 of 16, ue4m3 of 16"):
        products("mxf4nvf4", a, b, c, scale_a=scale_a, scale_b=scale_b, **form)
    with pytest.raises(ValueError, match=r"scale factors of A have shape \(4, 4\); expected \(4, 2\)"):
        products("mxf4", a, b, c, scale_a=scale_a, scale_b=scale_b, **form)
    with pytest.raises(ValueError, match="K is 48; with blocks of 32 it is a multiple of 32"):
        products("mxf4", a[:, :48], b[:, :48], c, scale_a=scale_a, scale_b=scale_b, **form)
