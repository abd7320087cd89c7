"""Every cvt: rounding, saturation, NaN, single rounding; all values of the narrow formats, compared with ml_dtypes."""

from __future__ import annotations

import math
from fractions import Fraction

import alu_forms
import alu_oracle as oracle
import ml_dtypes
import numpy as np
import pytest

from ptxkit.isa.types import TYPES

SCALARS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64")
PLAIN = sorted(
    {
        f.opcode
        for f in alu_forms.forms("cvt")
        if "pack" not in f.opcode and all(p in SCALARS for p in f.opcode.split(".")[-2:])
    }
)


def integer(bits: int, t: str) -> int:
    width = int(t[1:])
    bits &= (1 << width) - 1
    return bits - (1 << width) if t[0] == "s" and bits >> (width - 1) else bits


def limits(t: str) -> tuple[int, int]:
    width = int(t[1:])
    return (-(1 << width - 1), (1 << width - 1) - 1) if t[0] == "s" else (0, (1 << width) - 1)


def integral(v: Fraction, mode: str) -> int:
    if mode == "rni":
        return round(v)  # Python rounds halves to even
    return {"rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode](v)


def expected(opcode: str, bits: int) -> int | str:
    """Bits of the destination, or NAN."""
    *modifiers, d, s = opcode.split(".")[1:]
    mode = next((m for m in modifiers if m in ("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi")), "rn")
    value: oracle.Value
    if s in oracle.FORMATS:
        value = oracle.FORMATS[s].decode(bits & (1 << oracle.FORMATS[s].bits) - 1)
        kept = d == "f16" and s == "f32" and mode in ("rm", "rp")  # the result of an H200
        if "ftz" in modifiers and s != "f64" and not kept:
            value = oracle.flushed(value, "f32")  # halves that are subnormal in f32 too are flushed
    else:
        value = Fraction(integer(bits, s))
    if d not in oracle.FORMATS:
        low, high = limits(d)
        width = int(d[1:])
        if s not in oracle.FORMATS:
            whole = int(value)
            whole = min(max(whole, low), high) if "sat" in modifiers else whole
        elif value == oracle.NAN:
            return 1 << (width - 1) if s == "f64" or width == 64 else 0
        elif isinstance(value, float) and math.isinf(value):
            whole = high if value > 0 else low
        else:
            whole = min(max(integral(Fraction(value), mode), low), high)
        return whole & (1 << width) - 1
    if mode.endswith("i") and value != oracle.NAN and not (isinstance(value, float) and math.isinf(value)):
        sign = oracle.negative(value)
        whole = integral(Fraction(value), mode)
        value = Fraction(whole) if whole else (-0.0 if sign else Fraction(0))
    mode = "rn" if mode.endswith("i") else mode
    if "relu" in modifiers and value != oracle.NAN and oracle.negative(value):
        value = Fraction(0)
    if "sat" in modifiers:
        value = oracle.saturated(value)
    out = oracle.FORMATS[d].encode(value, mode)
    if out != oracle.NAN:
        infinity = oracle.FORMATS[d].infinity
        if "satfinite" in modifiers and out & infinity == infinity:
            out -= 1
        if "ftz" in modifiers and d == "f32":
            out = oracle.FORMATS[d].encode(oracle.flushed(oracle.FORMATS[d].decode(out), "f32"))
    return out


@pytest.mark.parametrize("pair", sorted({tuple(o.split(".")[-2:]) for o in PLAIN}), ids=lambda p: "<-".join(p))
def test_every_scalar_form(pair):
    d, s = pair
    for opcode in (o for o in PLAIN if tuple(o.split(".")[-2:]) == pair):
        rows = oracle.operands(opcode, 400)[0]
        rows &= np.uint64((1 << TYPES[s].bits) - 1)
        got = oracle.bits_of(oracle.apply(opcode, rows), len(rows))
        for lane, bits in zip(rows.tolist(), got, strict=True):
            want = expected(opcode, lane)
            same = oracle.is_nan(bits, d) if want == oracle.NAN else bits == want
            assert same, f"{opcode}({lane:#x}) = {bits:#x}, expected {want if want == 'nan' else hex(want)}"


@pytest.mark.parametrize(
    "opcode",
    ["cvt.rzi.s8.f16", "cvt.rni.s32.bf16", "cvt.f32.f16", "cvt.f16.bf16", "cvt.rn.bf16.f16", "cvt.rn.f16.u16"],
)
def test_sixteen_bits_exhaustively(opcode):
    d = opcode.split(".")[-2]
    got = oracle.bits_of(oracle.apply(opcode, np.arange(1 << 16)), 1 << 16)
    for lane, bits in enumerate(got):
        want = expected(opcode, lane)
        assert oracle.is_nan(bits, d) if want == oracle.NAN else bits == want, (opcode, hex(lane), hex(bits), want)


def test_nan_payloads_that_the_isa_defines():
    nan = np.array([0x7FC00001, 0xFFFFFFFF], np.uint64)
    for opcode, want in (("cvt.rn.f16.f32", 0x7FFF), ("cvt.rn.bf16.f32", 0x7FFF), ("cvt.rna.tf32.f32", 0x7FFFFFFF)):
        assert oracle.bits_of(oracle.apply(opcode, nan), 2) == [want, want]


def test_f64_to_f16_rounds_once():
    # a tie in f16 after rounding to f32, but not before
    x = np.array([1 + 2.0**-11 + 2.0**-40, -(1 + 2.0**-11 + 2.0**-40), 1 + 2.0**-8 + 2.0**-40]).view(np.uint64)
    assert oracle.bits_of(oracle.apply("cvt.rn.f16.f64", x), 3)[:2] == [0x3C01, 0xBC01]
    assert oracle.bits_of(oracle.apply("cvt.rn.bf16.f64", x), 3)[2] == 0x3F81


# -- packed and narrow
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", ["f16x2", "bf16x2"])
@pytest.mark.parametrize(
    "modifiers", ["rn", "rz", "rn.relu", "rz.relu", "rn.satfinite", "rn.relu.satfinite", "rz.satfinite"]
)
def test_two_floats_make_a_pair(d, modifiers):
    element = d.removesuffix("x2")
    a, b = oracle.operands(f"cvt.{modifiers}.{d}.f32", 1500)
    got = np.array(oracle.bits_of(oracle.apply(f"cvt.{modifiers}.{d}.f32", a, b), 1500), np.uint64)
    for value, half in ((a, got >> np.uint64(16)), (b, got & np.uint64(0xFFFF))):
        one = oracle.bits_of(oracle.apply(f"cvt.{modifiers}.{element}.f32", value), 1500)
        assert half.tolist() == one


NARROW = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
LARGEST = {"e4m3": 448, "e5m2": 57344, "e2m3": 7.5, "e3m2": 28, "e2m1": 6}
BITS = {"e4m3": 8, "e5m2": 8, "e2m3": 6, "e3m2": 6, "e2m1": 4}


def narrow(x: np.ndarray, t: str) -> np.ndarray:
    """The nearest value according to ml_dtypes, with PTX's .satfinite."""
    with np.errstate(all="ignore"):
        clipped = np.clip(x, -LARGEST[t], LARGEST[t]).astype(NARROW[t]).view(np.uint8)
    return np.where(np.isnan(x), {"e4m3": 0x7F, "e5m2": 0x7F, "e2m3": 0x1F, "e3m2": 0x1F, "e2m1": 7}[t], clipped)


def interesting(t: str) -> np.ndarray:
    """Every value of the format, the midpoints, their neighbours, and values beyond the range."""
    values = np.arange(1 << BITS[t] - 1, dtype=np.uint8).view(NARROW[t]).astype(np.float32)
    values = np.unique(values[np.isfinite(values)])
    mid = (values[1:] + values[:-1]) / 2
    x = np.concatenate(
        [values, mid, np.nextafter(mid, np.float32(9e9)), np.nextafter(mid, np.float32(0)), values * 1.7]
    )
    x = np.concatenate([x, [np.inf, np.nan, 1e-45, 3e38, LARGEST[t] * 1.06, LARGEST[t] * 1.07]]).astype(np.float32)
    return np.concatenate([x, -x])


@pytest.mark.parametrize("t", NARROW)
def test_narrowing(t):
    x = interesting(t)
    y = np.roll(x, 3)
    width = 4 if t == "e2m1" else 8
    for relu in ("", ".relu"):
        got = oracle.apply(f"cvt.rn.satfinite{relu}.{t}x2.f32", x, y).reshape(-1).astype(int)
        fx, fy = (np.where(v <= 0, np.float32(0), v) if relu else v for v in (x, y))
        assert np.array_equal(got >> width, narrow(fx, t)), relu
        assert np.array_equal(got & (1 << width) - 1, narrow(fy, t)), relu


@pytest.mark.parametrize("t", NARROW)
@pytest.mark.parametrize("s", ["f16", "bf16"])
def test_narrowing_halves_exhaustively(t, s):
    halves = np.arange(1 << 16, dtype=np.uint16)
    pairs = (halves.astype(np.uint32) << np.uint32(16)) | halves[::-1]
    got = oracle.apply(f"cvt.rn.satfinite.{t}x2.{s}x2", pairs).reshape(-1).astype(int)
    width = 4 if t == "e2m1" else 8
    x = halves.view(np.float16 if s == "f16" else ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(got >> width, narrow(x, t))
    assert np.array_equal(got & (1 << width) - 1, narrow(x[::-1], t))


@pytest.mark.parametrize("t", NARROW)
def test_truncating(t):
    x = interesting(t)
    got = oracle.apply(f"cvt.rz.satfinite.{t}x2.f32", x, x).reshape(-1).astype(int)
    width = 4 if t == "e2m1" else 8
    finite = np.isfinite(x)
    back = (got & (1 << BITS[t]) - 1).astype(np.uint8).view(NARROW[t]).astype(np.float32)[finite]
    x = x[finite]
    assert (np.abs(back) <= np.abs(x)).all()
    above = np.abs(narrow(back, t).astype(np.uint8).view(NARROW[t]).astype(np.float32))
    codes = ((got[finite] & (1 << width) - 1) & (1 << BITS[t] - 1) - 1).astype(np.uint8)
    following = (codes + 1).view(NARROW[t]).astype(np.float32)
    inside = above < LARGEST[t]
    assert (following[inside] > np.abs(x[inside])).all()


@pytest.mark.parametrize("t", NARROW)
@pytest.mark.parametrize("d", ["f16", "bf16"])
def test_widening_exhaustively(t, d):
    if t == "e2m1":
        words = np.arange(256, dtype=np.uint8)
        low, high = words & 15, words >> 4
    else:
        words = np.arange(1 << 16, dtype=np.uint16)
        keep = np.uint8((1 << BITS[t]) - 1)
        low, high = ((words >> s).astype(np.uint8) & keep for s in (np.uint16(0), np.uint16(8)))
    got = oracle.apply(f"cvt.rn.{d}x2.{t}x2", words).reshape(-1)
    kind = np.float16 if d == "f16" else ml_dtypes.bfloat16
    for bits, half in ((low, got & np.uint32(0xFFFF)), (high, got >> np.uint32(16))):
        want = bits.view(NARROW[t]).astype(np.float32)
        have = half.astype(np.uint16).view(kind).astype(np.float32)
        assert np.array_equal(have, want, equal_nan=True)
        assert np.array_equal(np.signbit(have[want == 0]), np.signbit(want[want == 0]))
        assert (half[np.isnan(want)] == 0x7FFF).all()


def test_powers_of_two():
    x = np.array([1, 1.5, 2, 0, 2.0**-127, 2.0**-127 * 1.5, 2.0**-130, 3e38, np.inf, -4, np.nan], np.float32)
    for mode, want in (
        ("rz", [127, 127, 128, 0, 0, 0, 0, 254, 254, 129, 255]),
        ("rp", [127, 128, 128, 0, 0, 1, 0, 254, 254, 129, 255]),
    ):
        got = oracle.apply(f"cvt.{mode}.satfinite.ue8m0x2.f32", x, x[::-1].copy()).reshape(-1)
        assert (got >> np.uint16(8)).tolist() == want
        assert (got & np.uint16(255)).tolist() == want[::-1]
    got = oracle.apply("cvt.rp.ue8m0x2.f32", x, x).reshape(-1) & np.uint16(255)
    assert got.tolist()[7:9] == [255, 255]
    back = oracle.apply("cvt.rn.bf16x2.ue8m0x2", np.arange(256)).reshape(-1) & np.uint32(0xFFFF)
    values = back.astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)
    assert np.array_equal(values[:255], 2.0 ** (np.arange(255) - 127.0)) and back[255] == 0x7FFF


@pytest.mark.parametrize("mode", ["rn", "rz", "rna"])
def test_tf32(mode):
    x = oracle.operands(f"cvt.{mode}.tf32.f32", 1500)[0]
    got = oracle.bits_of(oracle.apply(f"cvt.{mode}.tf32.f32", x), 1500)
    tf32 = oracle.Format(8, 10)
    for lane, bits in zip(x.tolist(), got, strict=True):
        want = tf32.encode(oracle.FORMATS["f32"].decode(lane), mode)
        assert bits == (0x7FFFFFFF if want == oracle.NAN else want << 13), hex(lane)


@pytest.mark.parametrize(("d", "bits"), [("bf16", 16), ("f16", 13)])
def test_stochastic_rounding(d, bits):
    x = np.full(1 << bits, 1 + 2.0 ** -(23 - bits) * 0.25, np.float32)  # a quarter of the distance to the next value
    random = np.arange(1 << bits, dtype=np.uint64) << np.uint64(16)
    got = oracle.apply(f"cvt.rs.{d}x2.f32", x, x, random).reshape(-1)
    one = 0x3F80 if d == "bf16" else 0x3C00
    high, low = got >> np.uint32(16), got & np.uint32(0xFFFF)
    assert set(high.tolist()) == {one, one + 1} and (high == one + 1).mean() == 0.25
    assert (low == one).all()


def test_fixed_point():
    x = np.array([0, 1, -1, 0.5, 1 / 64, 1.5 / 64, 2.5 / 64, 1.99, 5, -5, np.nan], np.float32)
    want = np.array([0, 64, -64, 32, 1, 2, 2, 127, 127, -128, 127])
    got = oracle.apply("cvt.rn.satfinite.s2f6x2.f32", x, 2 * x).reshape(-1)
    assert np.array_equal((got >> np.uint16(8)).astype(np.uint8).view(np.int8), want)
    half = oracle.apply("cvt.rn.satfinite.scaled::n2::ue8m0.s2f6x2.f32", x, x, np.full(11, 0x807F)).reshape(-1)
    assert np.array_equal((half & np.uint16(255)).astype(np.uint8).view(np.int8), want)
    assert (half >> np.uint16(8)).astype(np.uint8).view(np.int8).tolist()[:4] == [0, 32, -32, 16]
    back = oracle.apply("cvt.rn.bf16x2.s2f6x2", np.array([0x40C0])).reshape(-1)
    assert back.tolist() == [0x3F80BF80]


@pytest.mark.parametrize("d", ["u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"])
def test_pack(d):
    low, high = limits(d)
    width = int(d[1:])
    opcode = f"cvt.pack.sat.{d}.s32" + (".b32" if width < 16 else "")
    rows = [r & np.uint64(0xFFFFFFFF) for r in oracle.operands(opcode, 600)]
    got = oracle.bits_of(oracle.apply(opcode, *rows), 600)
    for n, lane in enumerate(zip(*(r.tolist() for r in rows), strict=True)):
        a, b = (min(max(integer(v, "s32"), low), high) & (1 << width) - 1 for v in lane[:2])
        rest = lane[2] << 2 * width if width < 16 else 0
        assert got[n] == (a << width | b | rest) & 0xFFFFFFFF
