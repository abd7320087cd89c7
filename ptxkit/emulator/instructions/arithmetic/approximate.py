"""Approximate functions. The PTX ISA states a maximum error for each. The results here are within that error, but their bits
differ from those of hardware.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.instructions.arithmetic.floating import flush, modified
from ptxkit.emulator.simt.opcode_patterns import Form
from ptxkit.emulator.simt.table import alu


def _through_f64(f: Callable[[Lanes], Lanes]) -> Callable[[Form], Callable[..., Lanes]]:
    def bind(form: Form) -> Callable[..., Lanes]:
        def run(a: Lanes) -> Lanes:
            return f(a.astype(np.float64)).astype(np.float32)

        return modified(run, form)

    return bind


def _rsqrt(x: Lanes) -> Lanes:
    return 1 / np.sqrt(x)  # +-0 gives +-inf


for _name, _function in (
    ("rcp", lambda x: 1 / x),
    ("sqrt", np.sqrt),
    ("rsqrt", _rsqrt),
    ("ex2", np.exp2),
    ("lg2", np.log2),
    ("sin", np.sin),
    ("cos", np.cos),
):
    alu(f"{_name}.approx{{.ftz}}.f32", sig="f32 = f32", bind=True)(_through_f64(_function))
alu("tanh.approx.f32", sig="f32 = f32", bind=True)(_through_f64(np.tanh))


_UPPER = np.uint64(0xFFFFFFFF00000000)
_CANONICAL = np.uint64(0x7FFFFFFF00000000).view(np.float64)
_SMALLEST = np.finfo(np.float64).tiny


def _upper_word(f: Callable[[Lanes], Lanes], a: Lanes) -> Lanes:
    """``f`` of the upper word of f64 lanes, in the upper word; subnormals are flushed. PTX ISA, "rcp.approx.ftz.f64"."""

    def flushed(v: Lanes) -> Lanes:
        return np.where(np.abs(v) < _SMALLEST, np.copysign(0.0, v), v)

    r = flushed(f(flushed((a.view(np.uint64) & _UPPER).view(np.float64))))
    return np.where(np.isnan(r), _CANONICAL, (r.view(np.uint64) & _UPPER).view(np.float64))


@alu("rsqrt.approx{.ftz}.f64")
def rsqrt_f64(a: Lanes, *, ftz: bool) -> Lanes:
    """1 / sqrt(a). The .ftz form uses the upper words of operand and result only."""
    return _upper_word(_rsqrt, a) if ftz else _rsqrt(a)


@alu("rcp.approx.ftz.f64")
def rcp_f64(a: Lanes) -> Lanes:
    """1 / a, of the upper words of operand and result only."""
    return _upper_word(lambda x: 1 / x, a)


@alu("div.<how>{.ftz}.f32", how="approx full")
def div(a: Lanes, b: Lanes, *, how: str, ftz: bool) -> Lanes:
    """a / b. .approx gives 0 for divisors above 2^126, as on hardware, which multiplies by the reciprocal."""
    if ftz:
        a, b = flush(a), flush(b)
    q = a / b
    if how == "approx":
        huge = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
        if huge.any():
            zero = np.copysign(np.float32(0), a) * np.copysign(np.float32(1), b)
            q = np.where(huge & np.isfinite(a), zero, np.where(huge & np.isinf(a), np.float32(np.nan), q))
    return flush(q) if ftz else q
