"""f32 and f64 arithmetic: IEEE 754 with the modifiers of PTX. PTX ISA, "Floating Point Instructions".

The common forms are numpy's ufuncs; :mod:`ptxkit.emulator.instructions.arithmetic.rounding` has the other rounding modes.
PTX does not define the payload of NaN results, so that they are those of the host's arithmetic except where noted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.instructions.arithmetic import rounding
from ptxkit.emulator.instructions.arithmetic.lanes import choose, elementwise
from ptxkit.emulator.simt.opcode_patterns import Form
from ptxkit.emulator.simt.table import alu

_RND = "rn rz rm rp"
_TINY = np.float32(2.0**-126)
_ONE = np.ones((1, 1, 1), np.float32)


def flush(a: Lanes) -> Lanes:
    """Replaces subnormal f32 values by zeros of the same sign."""
    tiny = np.abs(a) < _TINY
    if not tiny.any():
        return a
    cleared = np.negative(tiny.view(np.int8)).astype(np.int32) & np.int32(0x7FFFFFFF)
    return (a.view(np.int32) & ~cleared).view(np.float32)


def saturate(a: Lanes) -> Lanes:
    """Clamps to [0, 1]; NaN and -0 become +0."""
    zero, one = a.dtype.type(0), a.dtype.type(1)
    return np.fmin(np.fmax(a, zero), one) + zero


def modified(
    f: Callable[..., Lanes], form: Form, toward_zero: Callable[..., Lanes] | None = None
) -> Callable[..., Lanes]:
    """``f`` on f32 lanes with the form's .ftz and .sat.

    A result that is subnormal before rounding is flushed, even if rounding makes it the smallest normal number, as on an H200.

    Args:
        toward_zero: ``f`` rounded toward zero, which shows whether a result is subnormal before rounding; None if such results
            are exact.
    """
    ftz, sat = form.has("ftz"), form.has("sat")
    if not ftz and not sat:
        return f

    def flushed(*lanes: Lanes) -> Lanes:
        given = [flush(v) for v in lanes]
        out = f(*given)
        edge = np.abs(out) == _TINY
        if toward_zero is not None and edge.any():
            below = edge & (np.abs(toward_zero(*given)) < _TINY)
            out = np.where(below, np.copysign(np.float32(0), out), out)
        return flush(out)

    def run(*lanes: Lanes) -> Lanes:
        out = flushed(*lanes) if ftz else f(*lanes)
        return saturate(out) if sat else out

    return run


def _sub_f32(a: Lanes, b: Lanes, mode: str) -> Lanes:
    return rounding.add_f32(a, -b, mode)


def _sub_f64(a: Lanes, b: Lanes, mode: str) -> Lanes:
    return rounding.add_f64(a, -b, mode)


_F32: dict[str, tuple[Callable[..., Lanes], Callable[..., Lanes]]] = {
    "add": (np.add, rounding.add_f32),
    "sub": (np.subtract, _sub_f32),
    "mul": (np.multiply, rounding.mul_f32),
    "fma": (rounding.fma_f32, rounding.fma_f32_mode),
    "mad": (rounding.fma_f32, rounding.fma_f32_mode),
    "div": (np.divide, rounding.div_f32),
    "rcp": (lambda a: _ONE / a, lambda a, mode: rounding.div_f32(_ONE, a, mode)),
    "sqrt": (np.sqrt, rounding.sqrt_f32),
}
"""Operation -> its function for rounding to nearest, and one that takes a directed rounding mode as last argument."""

_F64: dict[str, tuple[Callable[..., Lanes], Callable[..., Lanes]]] = {
    "add": (np.add, rounding.add_f64),
    "sub": (np.subtract, _sub_f64),
    "mul": (np.multiply, rounding.mul_f64),
    "fma": (rounding.fma_f64, rounding.fma_f64),
    "mad": (rounding.fma_f64, rounding.fma_f64),
    "div": (np.divide, rounding.div_f64),
    "rcp": (lambda a: 1.0 / a, lambda a, mode: rounding.div_f64(np.ones((1, 1, 1)), a, mode)),
    "sqrt": (np.sqrt, rounding.sqrt_f64),
}


def _in_mode(
    functions: dict[str, tuple[Callable[..., Lanes], Callable[..., Lanes]]], form: Form
) -> Callable[..., Lanes]:
    nearest, directed = functions[form.opcode.split(".", 1)[0]]
    mode = form["rnd"] or "rn"
    return nearest if mode == "rn" else lambda *lanes: directed(*lanes, mode)


def _f32(form: Form) -> Callable[..., Lanes]:
    directed = _F32[form.opcode.split(".", 1)[0]][1]
    return modified(_in_mode(_F32, form), form, lambda *lanes: directed(*lanes, "rz"))


def _f32x2(form: Form) -> Callable[..., Lanes]:
    return elementwise(_f32(form), np.float32)


def _f64(form: Form) -> Callable[..., Lanes]:
    return _in_mode(_F64, form)


for _name in ("add", "sub", "mul"):
    alu(f"{_name}{{.<rnd>}}{{.ftz}}{{.sat}}.f32", rnd=_RND, sig="f32 = f32, f32", bind=True)(_f32)
    alu(f"{_name}{{.<rnd>}}{{.ftz}}.f32x2", rnd=_RND, sig="f32x2 = f32x2, f32x2", bind=True)(_f32x2)
    alu(f"{_name}{{.<rnd>}}.f64", rnd=_RND, sig="f64 = f64, f64", bind=True)(_f64)
for _name in ("fma", "mad"):
    alu(f"{_name}.<rnd>{{.ftz}}{{.sat}}.f32", rnd=_RND, sig="f32 = f32, f32, f32", bind=True)(_f32)
    alu(f"{_name}.<rnd>.f64", rnd=_RND, sig="f64 = f64, f64, f64", bind=True)(_f64)
alu("fma.<rnd>{.ftz}.f32x2", rnd=_RND, sig="f32x2 = f32x2, f32x2, f32x2", bind=True)(_f32x2)
alu("div.<rnd>{.ftz}.f32", rnd=_RND, sig="f32 = f32, f32", bind=True)(_f32)
alu("div.<rnd>.f64", rnd=_RND, sig="f64 = f64, f64", bind=True)(_f64)
for _name in ("rcp", "sqrt"):
    alu(f"{_name}.<rnd>{{.ftz}}.f32", rnd=_RND, sig="f32 = f32", bind=True)(_f32)
    alu(f"{_name}.<rnd>.f64", rnd=_RND, sig="f64 = f64", bind=True)(_f64)


@alu("abs{.ftz}.f32")
def abs_f32(a: Lanes, *, ftz: bool) -> Lanes:
    """Magnitude."""
    return np.abs(flush(a) if ftz else a)


@alu("neg{.ftz}.f32")
def neg_f32(a: Lanes, *, ftz: bool) -> Lanes:
    """Negated; -0 too."""
    return -(flush(a) if ftz else a)


@alu("abs.f64")
def abs_f64(a: Lanes) -> Lanes:
    """Magnitude."""
    return np.abs(a)


@alu("neg.f64")
def neg_f64(a: Lanes) -> Lanes:
    """Negated; -0 too."""
    return -a


# -- minimum and maximum -----------------------------------------------------------------------------------------------------


def extremum(a: Lanes, b: Lanes, sign: int, nan: bool = False) -> Lanes:
    """The smaller (sign > 0) or larger of two floats, where -0 is below +0.

    If one operand is NaN, the result is the other one; with ``nan``, it is the canonical NaN (all bits set but the sign).
    """
    pick = (np.minimum if nan else np.fmin) if sign > 0 else (np.maximum if nan else np.fmax)
    out = pick(a, b)
    if np.abs(out).min() > 0:  # neither a zero nor NaN
        return out
    zero, lost = out == 0, np.isnan(out)
    if zero.any():
        out = _signed_zeros(out, zero, a, b, sign)
    if lost.any():
        canonical = rounding.CANONICAL_F32 if out.dtype.itemsize == 4 else rounding.CANONICAL_F64
        out = np.where(lost, canonical, out)
    return out


def _signed_zeros(out: Lanes, zero: Lanes, a: Lanes, b: Lanes, sign: int) -> Lanes:
    """``out`` with the sign that a zero has: negative if either operand is (minimum), or if both are (maximum)."""
    if sign < 0 and b.size == 1 and b.view(f"u{b.dtype.itemsize}").flat[0] == 0:
        return out + out.dtype.type(0)  # the maximum with +0 is never -0
    u = np.dtype(f"u{out.dtype.itemsize}")
    top = u.type(1 << (u.itemsize * 8 - 1))
    na, nb = np.isnan(a), np.isnan(b)
    if na.any() or nb.any():  # if one operand is NaN, the sign of the other one decides
        a, b = np.where(na, b, a), np.where(nb, a, b)
    x, y = a.view(u), b.view(u)
    signs = ((x | y) if sign > 0 else (x & y)) & top
    return choose(zero, signs, out.view(u)).view(out.dtype)


def with_xorsign(f: Callable[[Lanes, Lanes], Lanes]) -> Callable[[Lanes, Lanes], Lanes]:
    """``f`` of the magnitudes, with the product's sign unless NaN. PTX ISA, "min", .xorsign.abs."""

    def run(a: Lanes, b: Lanes) -> Lanes:
        out = f(np.abs(a), np.abs(b))
        return np.where((np.signbit(a) != np.signbit(b)) & ~np.isnan(out), -out, out)

    return run


def _minmax(form: Form) -> Callable[..., Lanes]:
    sign, nan = (1 if form.opcode.startswith("min") else -1), form.has("NaN")
    ftz, how = form.has("ftz"), form.get("how")

    def plain(a: Lanes, b: Lanes) -> Lanes:
        return extremum(a, b, sign, nan)

    two = with_xorsign(plain) if how == "xorsign.abs" else plain

    def run(a: Lanes, b: Lanes, c: Lanes | None = None) -> Lanes:
        lanes = [flush(v) if ftz else v for v in (a, b, c) if v is not None]
        if how == "abs":
            lanes = [np.abs(v) for v in lanes]
        out = two(lanes[0], lanes[1])
        return two(out, lanes[2]) if len(lanes) > 2 else out

    return run


for _name in ("min", "max"):
    alu(f"{_name}{{.ftz}}{{.NaN}}.f32", sig="f32 = f32, f32, f32?", bind=True)(_minmax)
    alu(f"{_name}{{.ftz}}{{.NaN}}.<how>.f32", how="xorsign.abs", sig="f32 = f32, f32", bind=True)(_minmax)
    alu(f"{_name}{{.ftz}}{{.NaN}}.<how>.f32", how="abs", sig="f32 = f32, f32, f32", bind=True)(_minmax)
    alu(f"{_name}.f64", sig="f64 = f64, f64", bind=True)(_minmax)
