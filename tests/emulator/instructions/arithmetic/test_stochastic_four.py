"""cvt.rs of four f32 to a vector of 8-, 6- or 4-bit numbers, with random bits."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction

import numpy as np
import ptxas_oracle
import pytest
from either import Bench
from programs import Run, kernel

from ptxkit.emulator.instructions.arithmetic.narrow_formats import FORMATS
from ptxkit.errors import UnsupportedError

FORMS = ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"]
THREADS = 512


def statement(t: str, relu: str = "") -> str:
    destination = "%h4" if t == "e2m1" else "%r4"
    return f"cvt.rs{relu}.satfinite.{t}x4.f32 {destination}, {{%f4, %f5, %f6, %f7}}, %r8;"


def rounded(x: float, random: int, t: str) -> int:
    """The code of ``x``: the next one in magnitude where the cut-off part and the random bits together reach 1."""
    f = FORMATS[t]
    values = [Fraction(float(v)) for v in np.arange(f.largest + 1, dtype=np.uint8).view(f.values).astype(np.float32)]
    if np.isnan(x):
        return f.nan
    sign = (1 << f.sign) if np.signbit(x) else 0
    if np.isinf(x) or abs(Fraction(float(x))) >= values[-1]:
        return sign | f.largest
    magnitude = abs(Fraction(float(x)))
    below = bisect_right(values, magnitude) - 1
    part = (magnitude - values[below]) / (values[below + 1] - values[below])
    return sign | (below + (part + Fraction(random, 1 << 16) >= 1))


def halves(bits: int, t: str) -> list[int]:
    """The 16 random bits of each of the four numbers."""
    b = bits.to_bytes(4, "little")
    first, second = (b[3] << 8 | b[1], b[2] << 8 | b[0]) if t == "e2m1" else (bits >> 16, bits & 0xFFFF)
    return [int(f"{first:016b}"[::-1], 2), first, int(f"{second:016b}"[::-1], 2), second]


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("t", FORMS)
def test_rounding(device, t, relu):
    if device.kind == "gpu" and device.target.name not in ("sm_100a", "sm_103a"):
        pytest.skip("needs sm_100a or sm_103a")
    assert not ptxas_oracle.refused([statement(t, relu)], "sm_100a")
    rng = np.random.default_rng(5)
    scale = 2.0 ** rng.integers(-12, 6, (THREADS, 4))
    x = (rng.uniform(-2, 2, (THREADS, 4)) * scale).astype(np.float32)
    x[0], x[1] = [0, -0.0, np.inf, -np.inf], [np.nan, 1e30, -1e30, 2**-30]
    bits = rng.integers(0, 1 << 32, THREADS, dtype=np.uint32)
    bits[2:4] = 0, 0xFFFFFFFF
    out = np.zeros(THREADS, np.uint32)
    move = "cvt.u32.u16 %r4, %h4;" if t == "e2m1" else ""
    body = (
        "mov.u32 %r0, %tid.x; mul.wide.u32 %rd5, %r0, 16; add.u64 %rd5, %rd5, %rd0; mul.wide.u32 %rd6, %r0, 4;"
        "add.u64 %rd7, %rd6, %rd1; add.u64 %rd8, %rd6, %rd2; ld.global.v4.f32 {%f4, %f5, %f6, %f7}, [%rd5];"
        f"ld.global.u32 %r8, [%rd7]; {statement(t, relu)} {move} st.global.u32 [%rd8], %r4;"
    )
    got = Bench(device, "eager")(body, x, bits, out, block=THREADS, target="sm_100a")[2]
    width = 4 if t == "e2m1" else 8
    for n in range(THREADS):
        want = 0
        for value, random in zip(x[n], halves(int(bits[n]), t), strict=True):
            clamped = max(value, np.float32(0)) if relu and not np.isnan(value) else value
            want = want << width | rounded(clamped if clamped != 0 or not relu else np.float32(0), random, t)
        assert got[n] == want, (x[n], hex(bits[n]), hex(got[n]), hex(want))


def test_older_targets_are_refused():
    assert ptxas_oracle.refused([statement("e4m3")], "sm_90a")
    with pytest.raises(UnsupportedError, match=r"cvt.rs.satfinite.e4m3x4.f32: needs sm_100a or sm_103a"):
        Run(kernel(statement("e4m3")))(0, 0)
