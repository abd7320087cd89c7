"""Operations on lane arrays that numpy lacks or performs slowly.

They select by a predicate, recompute a few lanes, and access packed halves and bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

from ptxkit.emulator.arrays import Lanes

SMALL = 2048
"""Number of lanes up to which np.where is faster than the combination of bits, whose passes take at least 1 us each."""


def choose(p: Lanes, a: Lanes, b: Lanes) -> Lanes:
    """``a`` where ``p``, else ``b``; both of one dtype.

    np.where branches, and takes about 2 ns for each lane if the predicate has no regular pattern; bit operations take a sixth.
    """
    if p.size == 1:
        return a if p.flat[0] else b
    if p.size <= SMALL or a.dtype.itemsize not in (1, 2, 4, 8):
        return np.where(p, a, b)
    if a.dtype.kind == "b":
        return (p & a) | (b & ~p)
    integer = np.dtype(f"i{a.dtype.itemsize}")
    mask = np.negative(p.view(np.int8)).astype(integer)
    other = b.view(integer)
    if b.size == 1 and not other.flat[0]:
        return (a.view(integer) & mask).view(a.dtype)
    out = a.view(integer) ^ other
    if out.shape != mask.shape:
        out = out & mask
    else:
        np.bitwise_and(out, mask, out=out)
    if out.shape == np.broadcast_shapes(out.shape, other.shape):
        return np.bitwise_xor(out, other, out=out).view(a.dtype)
    return (out ^ other).view(a.dtype)


def recompute(out: Lanes, doubtful: Lanes, exact: Callable[..., Lanes], *operands: Lanes) -> Lanes:
    """``out``, in which the lanes marked in ``doubtful`` (of the same shape) are recomputed by ``exact``; changes ``out``.

    ``exact`` gets flat operands and returns flat lanes of ``out``'s dtype.
    """
    lanes = np.flatnonzero(doubtful)
    if lanes.size:
        out = np.ascontiguousarray(out)
        few = (v.reshape(-1) if v.size == 1 else np.broadcast_to(v, out.shape).reshape(-1)[lanes] for v in operands)
        out.reshape(-1)[lanes] = exact(*few)
    return out


def parts(a: Lanes, dtype: DTypeLike) -> Lanes:
    """Packed lanes as an array with one more axis, least significant element first."""
    element = np.dtype(dtype)
    return np.ascontiguousarray(a).view(element).reshape(*a.shape, a.dtype.itemsize // element.itemsize)


def joined(elements: Lanes, dtype: DTypeLike) -> Lanes:
    """The inverse of :func:`parts`."""
    return np.ascontiguousarray(elements).view(np.dtype(dtype))[..., 0]


def elementwise(f: Callable[..., Lanes], dtype: DTypeLike) -> Callable[..., Lanes]:
    """``f`` over the elements of packed 32- or 64-bit lanes; the result is packed alike."""

    def run(*lanes: Lanes) -> Lanes:
        return joined(f(*(parts(v, dtype) for v in lanes)), lanes[0].dtype)

    return run
