"""The arithmetic of tcgen05.mma: D = A B + C on bit patterns, for every kind.

This is a new implementation of the model of github.com/sf-tensor/tcgen05 (commit affce0c), which its authors compared with a
B200. The value of an element of D does not depend on M, N, ``.cta_group`` and ``.ws``.

- ``f16``, ``tf32``, ``f8f6f4``, ``mxf8f6f4``: the model of :mod:`~ptxkit.emulator.tensor_core.accumulation` with 25 bits and
  all products of the instruction in one group. The largest exponent is that of the products that are not zero and of a C that
  is not zero; where nothing is scaled it is at least -133, near the end of float32's subnormal range. Exponents are those of
  the encodings: a subnormal value has the exponent of the smallest normal one.
- ``i8``: exact; the sum wraps or, at the end, saturates.
- ``mxf4``, ``mxf4nvf4``: :mod:`~ptxkit.emulator.tensor_core.tcgen05_fp4`.

Elements are truncated to the bits of their type before they are classified: a tf32 NaN whose payload is in the 13 lowest bits
only is an infinity. NaN results are 0x7fffffff or 0x7fff; zero results are +0. Elements that a sparse A does not store have
no effect, even if the corresponding element of B is NaN or infinite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from ptxkit.emulator.arrays import Lanes, Mask
from ptxkit.emulator.tensor_core import numerics, tcgen05_fp4
from ptxkit.emulator.tensor_core.accumulation import Accumulation
from ptxkit.emulator.tensor_core.tcgen05_scales import Scales

_HALVES, _NARROW = ("f16", "bf16"), ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
_PLAIN = Accumulation(25, 128, floor=-133)
_SCALED = Accumulation(25, 128, floor=-900)
_CANONICAL = {"f32": 0x7FFFFFFF, "f16": 0x7FFF}
_WORDS: dict[str, tuple[DTypeLike, DTypeLike]] = {
    "f32": (np.uint32, np.float32),
    "f16": (np.uint16, np.float16),
    "s32": (np.uint32, np.int32),
}
"""Type of C and D -> numpy types of its bits and of its values."""
_MAX_LOWERED = 15
_FP4 = ("mxf4", "mxf4nvf4")


@dataclass(frozen=True)
class Kind:
    """The types of a kind of tcgen05.mma.

    Attributes:
        inputs: types of A's and of B's elements.
        outputs: types of C and D.
        scales: pairs of scale type and K elements (of a dense A) that one scale factor applies to; empty without scaling.
        lowers: whether it accepts ``scale-input-d``.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scales: tuple[tuple[str, int], ...] = ()
    lowers: bool = False


KINDS = {
    "f16": Kind(_HALVES, ("f16", "f32"), lowers=True),
    "tf32": Kind(("tf32",), ("f32",), lowers=True),
    "f8f6f4": Kind(_NARROW, ("f16", "f32")),
    "i8": Kind(("s8", "u8"), ("s32",)),
    "mxf8f6f4": Kind(_NARROW, ("f32",), (("ue8m0", 32),)),
    "mxf4": Kind(("e2m1",), ("f32",), (("ue8m0", 32),)),
    "mxf4nvf4": Kind(("e2m1",), ("f32",), (("ue8m0", 32), ("ue8m0", 16), ("ue4m3", 16))),
}
"""Every kind by the name after ``.kind::``."""


def products(
    kind: str,
    a_bits: Lanes,
    b_bits: Lanes,
    c_bits: Lanes | None,
    *,
    a_type: str,
    b_type: str,
    d_type: str,
    scale_a: Lanes | None = None,
    scale_b: Lanes | None = None,
    scale_type: str | None = None,
    block: int | None = None,
    negate_a: bool = False,
    negate_b: bool = False,
    saturate: bool = False,
    scale_input_d: int = 0,
    kept: Mask | None = None,
) -> Lanes:
    """D as bit patterns: uint16 (M, N) for f16, else uint32 (M, N).

    All arrays may have one more axis in front, of independent products.

    Args:
        kind: a key of :data:`KINDS`.
        a_bits, b_bits: (M, K) and (N, K), an element an entry, unsigned; bits above the type's are ignored. Of a sparse A the
            expanded matrix with its zeros (:mod:`~ptxkit.emulator.tensor_core.tcgen05.sparsity`).
        c_bits: (M, N) in D's type; None for D = A B.
        scale_a, scale_b: (M, S) and (N, S) uint8 where the kind is block-scaled, a scale factor for each ``block`` of K.
        scale_type: ``"ue8m0"`` or ``"ue4m3"``; None for the only one that the kind has.
        block: elements of K that one scale factor applies to, counted in what is stored of A; twice as many of a sparse A's
            expanded columns. None for the only one that the kind has.
        negate_a, negate_b: change the sign of A, of B.
        saturate: limit an i8 result to the range of s32 instead of wrapping.
        scale_input_d: C is multiplied by 2**-scale_input_d first (0 to 15; kinds f16 and tf32).
        kept: (M, K) bool, the elements that a sparse A has; None for a dense one.

    Raises:
        ValueError: a combination that the kind does not have, or shapes that do not fit.
    """
    described = _described(kind, a_type, b_type, d_type, negate_a or negate_b, saturate, scale_input_d)
    _require_shapes(a_bits, b_bits, c_bits, kept)
    alone = a_bits.ndim == 2
    if alone:
        a_bits, b_bits = a_bits[None], b_bits[None]
        c_bits, scale_a, scale_b, kept = (None if v is None else v[None] for v in (c_bits, scale_a, scale_b, kept))
    a, b = _signed(numerics.values(a_bits, a_type), negate_a), _signed(numerics.values(b_bits, b_type), negate_b)
    shape = *a.shape[:2], b.shape[1]
    scales = None
    if described.scales:
        sizes = *shape, a.shape[2]
        scales = Scales.of(kind, described.scales, scale_a, scale_b, scale_type, block, sizes, kept is not None)
    elif scale_a is not None or scale_b is not None or scale_type is not None or block is not None:
        raise ValueError(f"kind {kind} has no scale factors")
    word, number = _WORDS[d_type]
    c = np.zeros(shape, number) if c_bits is None else np.ascontiguousarray(c_bits, word).view(number)
    if kind == "i8":
        d = numerics.integer(a, b.transpose(0, 2, 1), c, "mul", saturate).view(word)
    else:
        d = _floating(a, b, c, (a_type, b_type, d_type), scales, kind in _FP4, scale_input_d, kept)
    return d[0] if alone else d


def _described(kind: str, a_type: str, b_type: str, d_type: str, negated: bool, saturate: bool, lowered: int) -> Kind:
    described = KINDS.get(kind)
    if described is None:
        raise ValueError(f"no kind {kind!r}; kinds are {', '.join(KINDS)}")
    for name, t, allowed in (
        ("A", a_type, described.inputs),
        ("B", b_type, described.inputs),
        ("D", d_type, described.outputs),
    ):
        if t not in allowed:
            raise ValueError(f"{name} of type {t!r}; kind {kind} takes {' '.join(allowed)}")
    if d_type == "f16" and "bf16" in (a_type, b_type):
        raise ValueError("kind f16 with D of type f16 multiplies f16 only, not bf16")
    if kind == "i8" and negated:
        raise ValueError("kind i8 does not negate A or B")
    if kind != "i8" and saturate:
        raise ValueError(f"kind {kind} does not saturate; kind i8 does")
    if lowered and not described.lowers:
        raise ValueError(f"kind {kind} takes no scale-input-d; kinds f16 and tf32 do")
    if not 0 <= lowered <= _MAX_LOWERED:
        raise ValueError(f"scale-input-d is {lowered}; 0 to {_MAX_LOWERED} are possible")
    return described


def _require_shapes(a: Lanes, b: Lanes, c: Lanes | None, kept: Mask | None) -> None:
    if a.ndim not in (2, 3) or a.ndim != b.ndim or a.shape[-1] != b.shape[-1] or a.shape[:-2] != b.shape[:-2]:
        raise ValueError(f"A of shape {a.shape} and B of shape {b.shape}; expected (M, K) and (N, K)")
    shape = *a.shape[:-1], b.shape[-2]
    if c is not None and c.shape != shape:
        raise ValueError(f"C of shape {c.shape}; expected {shape}")
    if kept is not None and kept.shape != a.shape:
        raise ValueError(f"kept of shape {kept.shape}; A has {a.shape}")


def _signed(values: Lanes, negate: bool) -> Lanes:
    return -values if negate else values


def _floating(
    a: Lanes,
    b: Lanes,
    c: Lanes,
    types: tuple[str, str, str],
    scales: Scales | None,
    fp4: bool,
    lowered: int,
    kept: Mask | None,
) -> Lanes:
    """The floating-point kinds: (U, M, K), (U, N, K) float32 and (U, M, N) float32 or float16."""
    ta, tb, td = types
    infinite = None
    if not (np.isfinite(a).all() and np.isfinite(b).all() and np.isfinite(c).all()):
        infinite = _infinite(a, b, c, kept)
        a, b, c = (np.where(np.isfinite(v), v, v.dtype.type(0)) for v in (a, b, c))
    columns = b.transpose(0, 2, 1)
    with np.errstate(over="ignore", under="ignore"):
        if scales is None:
            d = _PLAIN.scaled(a, columns, c, ta, tb, None, lowered)
        elif fp4:
            d = tcgen05_fp4.sums(a, b, c, scales, 1 if kept is None else 2)
        else:
            scale = scales.a.astype(np.int32) + (scales.b.astype(np.int32) - 254).transpose(0, 2, 1)
            d = _SCALED.scaled(a, columns, c, ta, tb, scale)
    d += d.dtype.type(0)  # -0 becomes +0
    if infinite is not None:
        special = ~np.isfinite(infinite)
        d[special] = infinite[special]
    if scales is not None:
        d[scales.not_numbers] = np.nan
    bits = d.view(_WORDS[td][0])
    bits[np.isnan(d)] = _CANONICAL[td]
    return bits


def _infinite(a: Lanes, b: Lanes, c: Lanes, kept: Mask | None) -> Lanes:
    """(U, M, N) float64: the result where it is NaN or infinite because of a NaN or infinite input, else 0."""
    present = np.ones(a.shape, bool) if kept is None else kept
    a = np.where(present, a, np.float32(1))
    not_a_number = _any(np.isnan(a) & present, np.ones(b.shape, bool)) | _any(present, np.isnan(b))
    not_a_number |= _any(np.isinf(a) & present, b == 0) | _any((a == 0) & present, np.isinf(b))
    up, down = np.zeros(not_a_number.shape, bool), np.zeros(not_a_number.shape, bool)
    for chosen, other in ((a == np.inf, b > 0), (a == -np.inf, b < 0), (a > 0, b == np.inf), (a < 0, b == -np.inf)):
        up |= _any(chosen & present, other)
    for chosen, other in ((a == np.inf, b < 0), (a == -np.inf, b > 0), (a > 0, b == -np.inf), (a < 0, b == np.inf)):
        down |= _any(chosen & present, other)
    up |= c == np.inf
    down |= c == -np.inf
    not_a_number |= np.isnan(c) | (up & down)
    return np.where(not_a_number, np.nan, np.where(up, np.inf, np.where(down, -np.inf, 0.0)))


def _any(left: Lanes, right: Lanes) -> Lanes:
    """(U, M, N) bool: whether (U, M, K) and (U, N, K) bool are both true for some k."""
    return left.astype(np.float32) @ right.astype(np.float32).transpose(0, 2, 1) > 0
