"""The expected result of one tcgen05.mma, element by element, from the manual's tables: formats, canonical layouts,
data paths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tensor_programs import BASE, COLUMNS, LANES

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "e2m3": 6, "e3m2": 6, "e2m1": 4, "s8": 8, "u8": 8}
FORMATS = {  # exponent bits, mantissa bits, bias
    "f16": (5, 10, 15),
    "bf16": (8, 7, 127),
    "tf32": (8, 23, 127),
    "e4m3": (4, 3, 7),
    "e5m2": (5, 2, 15),
    "e2m3": (2, 3, 1),
    "e3m2": (3, 2, 3),
    "e2m1": (2, 1, 1),
}
K = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
SWIZZLES = {0: 0, 128: 2, 64: 4, 32: 6}
CODES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5, "s8": 1, "u8": 0}


def value(code: int, t: str) -> float:
    """The finite number that a code represents."""
    if t == "u8":
        return float(code)
    if t == "s8":
        return float(code - 256 if code > 127 else code)
    exponent_bits, mantissa_bits, bias = FORMATS[t]
    mantissa = code & (1 << mantissa_bits) - 1
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) & 1 else 1.0
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


def small(t: str) -> list[int]:
    """Codes of numbers with few bits, so that all sums are exact in f32 and f16."""
    wanted = [v / 2 for v in range(-8, 9)] if t not in ("s8", "u8") else list(range(-8 if t == "s8" else 0, 9))
    bits = BITS[t]
    if bits <= 8:
        found = [
            c for c in range(1 << bits) if not (t in ("e5m2", "e4m3") and c & 127 >= 120) and value(c, t) in wanted
        ]
    elif t == "f16":
        found = [int(np.float16(v).view(np.uint16)) for v in wanted]
    else:
        found = [int(np.float32(v).view(np.uint32)) >> (16 if t == "bf16" else 0) for v in wanted]
    return found


@dataclass(frozen=True)
class Matrix:
    """A canonical layout in shared memory. PTX ISA, "Canonical Layouts".

    Attributes:
        swizzle: bytes, 0 for none; ``atom32`` for units of 32 bytes.
        mn: MN-major.
    """

    t: str
    extent: int
    k: int
    padded: bool
    swizzle: int = 128
    mn: bool = False
    atom32: bool = False

    @property
    def slot(self) -> int:
        return 8 if self.padded else BITS[self.t]

    @property
    def strides(self) -> tuple[int, int]:
        """Leading and stride byte offsets, larger than the minimum."""
        w = self.swizzle
        if self.mn and w == 0:
            chunks = self.extent * self.slot // 128
            return 16 * 8 * chunks + 128, 128
        if self.mn:
            atoms = -(-self.extent * self.slot // 8 // w)
            high = 4 if self.atom32 else 8
            return high * w, high * w * atoms
        return (128 * (self.extent // 8) + 128, 128) if w == 0 else (16, 8 * w)

    def bit(self, mn: Any, k: Any) -> Any:
        """First bit of an element, before swizzling, relative to the start address."""
        t, w, (leading, stride) = 128 // self.slot, self.swizzle, self.strides
        element = 4 if self.padded and BITS[self.t] == 4 else 6 if self.padded and BITS[self.t] == 6 else self.slot
        if self.mn:
            inner, j = mn % t * element, mn // t
            if w == 0:
                return inner + 8 * (16 * (k % 8) + leading * (k // 8) + stride * j)
            s, high = w // 16, 4 if self.atom32 else 8
            return inner + 8 * (w * (k % high) + stride * (k // high) + 16 * (j % s) + leading * (j // s))
        inner, c = k % t * element, k // t
        if w == 0:
            return inner + 8 * (16 * (mn % 8) + stride * (mn // 8) + leading * c)
        return inner + 8 * (w * (mn % 8) + stride * (mn // 8) + 16 * c)

    def swizzled(self, address: Any) -> Any:
        if self.atom32:
            return address ^ ((address >> 7 & 3) << 5)
        return address ^ ((address >> 7) & max(self.swizzle // 16 - 1, 0)) << 4 if self.swizzle else address

    def put(self, image: np.ndarray, address: int, codes: np.ndarray) -> None:
        """Write (extent, k) codes into one CTA's shared memory, whose first byte is at :data:`BASE`."""
        bits = BITS[self.t]
        mn, k = np.indices(codes.shape)
        first = self.bit(mn, k)
        word = codes.astype(np.int64) << first % 8
        mask = np.int64((1 << bits) - 1) << first % 8
        for n in range((bits + 14) // 8):
            at = self.swizzled(address + first // 8 + n) - BASE
            held = (mask >> 8 * n & 255) != 0
            np.bitwise_and.at(image, at[held], (~(mask >> 8 * n) & 255).astype(np.uint8)[held])
            np.bitwise_or.at(image, at[held], (word >> 8 * n & 255).astype(np.uint8)[held])

    def descriptor(self, address: int) -> int:
        leading, stride = self.strides
        mode = 1 if self.atom32 else SWIZZLES[self.swizzle]
        return address >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | mode << 61


def places(
    m: int, n: int, group: int, ws: bool = False, sparse: bool = False, lane: int = 0
) -> Iterator[tuple[int, ...]]:
    """(row, column, CTA, lane, column of tensor memory) of every element of D."""
    for row in range(m):
        for column in range(n):
            cta, r = (row // (m // group), row % (m // group))
            if m // group == 128:
                yield row, column, cta, r, column
            elif (group == 2 and not sparse) or (m == 64 and ws):
                yield row, column, cta, r + 64 * (column // (n // 2)), column % (n // 2)
            elif m == 32:
                yield row, column, cta, r + 32 * (column // (n // 4)), column % (n // 4)
            else:
                yield row, column, cta, r // 16 * 32 + r % 16 + lane, column


def scattered(memory: np.ndarray, at: int, d: np.ndarray, where: list[tuple[int, ...]]) -> None:
    """Write D's bits to tensor memory, (CTAs, 128, 512), from column ``at`` on."""
    index = np.array(where)
    memory[index[:, 2], index[:, 3], at + index[:, 4]] = d[index[:, 0], index[:, 1]]


def noise(ctas: int, nbytes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Shared memory and tensor memory."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(0, 256, (ctas, nbytes)).astype(np.uint8)
    return shared, rng.integers(0, 1 << 32, (ctas, LANES, COLUMNS), np.uint32)


def values(codes: np.ndarray, t: str) -> np.ndarray:
    """float64."""
    table = {int(c): value(int(c), t) for c in np.unique(codes)}
    return np.vectorize(table.__getitem__, otypes=[np.float64])(codes)


def bits(d: np.ndarray, t: str) -> np.ndarray:
    """uint32 words of D."""
    if t == "f16":
        return d.astype(np.float16).view(np.uint16).astype(np.uint32)
    return (d.astype(np.int64).astype(np.uint32) if t == "s32" else d.astype(np.float32).view(np.uint32)) + np.uint32(0)
