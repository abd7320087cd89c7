"""Approximate functions. PTX ISA gives each a maximum error; the results here are the correctly rounded ones or closer to
them than that error, never the hardware's bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxkit.emulator.alu.floating import flush
from ptxkit.emulator.table import Form, alu

Lanes = Any


def _through_f64(f: Callable[[Lanes], Lanes]) -> Callable[[Form], Callable[..., Lanes]]:
    def bind(form: Form) -> Callable[..., Lanes]:
        if form.get("ftz"):
            return lambda a: flush(f(flush(a).astype(np.float64)).astype(np.float32))
        return lambda a: f(a.astype(np.float64)).astype(np.float32)

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


@alu("rsqrt.approx{.ftz}.f64")
def rsqrt_f64(a: Lanes, *, ftz: bool) -> Lanes:
    """1 / sqrt(a) from the upper word of a, as the ISA defines the .ftz form."""
    if ftz:
        a = (np.ascontiguousarray(a).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
        a = np.where(np.abs(a) < np.finfo(np.float64).tiny, np.copysign(0.0, a), a)
    r = 1 / np.sqrt(a)
    return (r.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64) if ftz else r


@alu("rcp.approx.ftz.f64")
def rcp_f64(a: Lanes) -> Lanes:
    """1 / a in the upper word; the lower is 0. PTX ISA, "rcp.approx.ftz.f64"."""
    top = np.uint64(0xFFFFFFFF00000000)
    x = (np.ascontiguousarray(a).view(np.uint64) & top).view(np.float64)
    x = np.where(np.abs(x) < np.finfo(np.float64).tiny, np.copysign(0.0, x), x)
    r = 1 / x
    r = np.where(np.abs(r) < np.finfo(np.float64).tiny, np.copysign(0.0, r), r)
    return (r.view(np.uint64) & top).view(np.float64)


@alu("div.<how>{.ftz}.f32", how="approx full")
def div(a: Lanes, b: Lanes, *, how: str, ftz: bool) -> Lanes:
    """a / b; .approx gives 0 for divisors above 2^126, as hardware's reciprocal does."""
    if ftz:
        a, b = flush(a), flush(b)
    q = a / b
    if how == "approx":
        huge = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
        if huge.any():
            zero = np.copysign(np.float32(0), a) * np.copysign(np.float32(1), b)
            q = np.where(huge & np.isfinite(a), zero, np.where(huge & np.isinf(a), np.float32(np.nan), q))
    return flush(q) if ftz else q
