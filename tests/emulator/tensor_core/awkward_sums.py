"""Operands for which alignment, truncation and the order of the sums decide the result, for every floating-point form.

Everything is derived from a counter by splitmix64, so that the operands are the same with every version of numpy, and results
that a GPU gave can be recorded as digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import test_mma as warp
import test_sparse as sparse
import test_wgmma as group
from matrix_programs import BITS, DTYPES, pack, run, unpack

COLUMNS = 32
"""Columns of B of a wgmma."""

FRACTION = {"e4m3": 3, "e5m2": 2, "f16": 10, "bf16": 7, "tf32": 10, "f32": 23}
EXPONENT = {"e4m3": 4, "e5m2": 5, "f16": 5, "bf16": 8, "tf32": 8, "f32": 8}
BIAS = {t: (1 << bits - 1) - 1 for t, bits in EXPONENT.items()}

KINDS = ("encodings", "near", "positive", "cancelling", "subnormal", "largest", "special", "zeros")
"""What elements of A and B are:

- ``encodings``: any finite encoding; the products' exponents are far apart.
- ``near``: random significands, exponents within 8 of each other; ``positive``: the same without signs.
- ``cancelling``: the second half of K cancels the first, except for small elements in some places.
- ``subnormal``: subnormal numbers, the smallest normal ones, and zeros.
- ``largest``: the largest finite number, the smallest, their negatives, 1 and zero.
- ``special``: any encoding, one in 128 of them infinite or NaN.
- ``zeros``: zeros of either sign, one in 64 elements the smallest number; accumulators likewise.

Accumulators have the magnitude of the products, or up to 2 ** 30 times more or less, with random significands; some are zero
of either sign, subnormal, or next to the largest; with ``special`` some are infinite or NaN.
"""


class Numbers:
    """A sequence of random 64-bit words: splitmix64 (Steele, Lea, Flood, 2014) from a seed."""

    def __init__(self, seed: str) -> None:
        self.state = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "little")

    def words(self, *shape: int) -> np.ndarray:
        """uint64 of this shape."""
        count = int(np.prod(shape))
        with np.errstate(over="ignore"):
            z = np.uint64(self.state) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            self.state = int(z[-1])
            z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return (z ^ z >> np.uint64(31)).reshape(shape)

    def below(self, limit: int, *shape: int) -> np.ndarray:
        """int64 from 0 to ``limit`` - 1."""
        return (self.words(*shape) >> np.uint64(16)).astype(np.int64) % limit


def encoded(t: str, sign: Any, exponent: Any, fraction: Any) -> np.ndarray:
    """Elements of type ``t`` from the fields of their encodings, int64; those of tf32 have zeros below."""
    f, e = FRACTION[t], EXPONENT[t]
    bits = (np.asarray(sign) << e + f | np.asarray(exponent) << f | np.asarray(fraction)).astype(np.uint64)
    if t == "tf32":
        bits <<= np.uint64(13)
    return bits.astype(f"u{max(1, BITS[t] // 8)}").view(DTYPES[t])


def finite(t: str, values: np.ndarray) -> np.ndarray:
    """The values with zeros in place of infinities and NaN."""
    return np.where(np.isfinite(values.astype(np.float32)), values, np.zeros((), values.dtype))


def elements(n: Numbers, t: str, kind: str, rows: int, k: int, below: int = 0) -> np.ndarray:
    """(rows, k) elements of a multiplicand; ``below`` limits the exponents of ``encodings``, so that few sums overflow."""
    shape, f, e = (rows, k), FRACTION[t], EXPONENT[t]
    sign, fraction = n.below(2, *shape), n.below(1 << f, *shape)
    if kind in ("encodings", "special"):
        values = encoded(t, sign, n.below(below or 1 << e, *shape), fraction)
        if kind == "encodings":
            return finite(t, values)
        top = encoded(t, sign, (1 << e) - 1, np.where(n.below(2, *shape) == 0, 0, (1 << f) - 1))
        return np.where(n.below(128, *shape) == 0, top, finite(t, values))
    if kind == "subnormal":
        return encoded(t, sign, n.below(2, *shape), fraction)
    if kind == "zeros":
        return encoded(t, sign, 0, n.below(64, *shape) == 0)
    if kind == "largest":
        largest = (1 << e) - 1, (1 << f) - 2
        if t != "e4m3":
            largest = (1 << e) - 2, (1 << f) - 1
        which = n.below(8, *shape)
        exponents, fractions = np.zeros((2, *shape), np.int64)
        for choice, fields in ((0, largest), (1, largest), (2, (0, 1)), (3, (BIAS[t], 0)), (4, (1, 0))):
            exponents[which == choice], fractions[which == choice] = fields
        return encoded(t, sign, exponents, fractions)
    window = min(8, (1 << e) - 2)
    near = encoded(t, 0 if kind == "positive" else sign, BIAS[t] - window // 2 + n.below(window, *shape), fraction)
    if kind != "cancelling":
        return near
    half = k // 2
    near[:, half:] = near[:, :half]
    return near


def multiplicands(n: Numbers, ta: str, tb: str, kind: str, size: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """A, (m, k), and B, (columns, k)."""
    m, columns, k = size
    below = 0 if ta == tb == "e4m3" else 1 << EXPONENT[tb] - 1
    a, b = elements(n, ta, kind, m, k), elements(n, tb, kind, columns, k, below)
    if kind == "cancelling":
        half = k // 2
        a[:, half:] = -a[:, half:]
        small = encoded(ta, n.below(2, m, half), 1, n.below(1 << FRACTION[ta], m, half))
        a[:, half:] = np.where(n.below(8, m, half) == 0, small, a[:, half:])
    return a, b


def accumulators(n: Numbers, td: str, ta: str, tb: str, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """The accumulators, see :data:`KINDS`."""
    sign, fraction = n.below(2, *shape), n.below(1 << FRACTION[td], *shape)
    if kind == "zeros":
        return encoded(td, sign, 0, n.below(64, *shape) == 0)
    low, high = (-30, 31) if td == "f32" else (-12, 13)
    middle = 0
    if kind in ("encodings", "largest", "special") and ta in ("e4m3", "e5m2", "f16"):
        middle = (1 << EXPONENT[ta] - 1) + (1 << EXPONENT[tb] - 1) - 4
    if kind == "subnormal":
        middle = max(3 - BIAS[td], 2 - BIAS[ta] - BIAS[tb])
    top = (1 << EXPONENT[td]) - 2
    exponent = np.clip(BIAS[td] + middle + low + n.below(high - low, *shape), 0, top)
    which = n.below(16, *shape)
    exponent[which == 0] = 0
    exponent[which == 1] = top
    fraction[which == 0] *= n.below(2, *shape)[which == 0]
    if kind == "special":
        exponent[which == 2] = top + 1
        fraction[which == 2] *= n.below(2, *shape)[which == 2]
    return encoded(td, sign, exponent, fraction)


@dataclass(frozen=True)
class Sum:
    """One instruction on one kind of operands.

    Attributes:
        form: the instruction, with how it is called: ``execute(form, device, numbers, kind)`` gives the results.
    """

    form: Any
    kind: str
    execute: Callable[[Any, Any, Numbers, str], np.ndarray]

    @property
    def opcode(self) -> str:
        """The instruction, without the qualifiers that all have."""
        return str(self.form.opcode.replace(".sync.aligned", "").replace(".row.col", ""))

    @property
    def name(self) -> str:
        """The opcode and the kind."""
        return f"{self.opcode}-{self.kind}"

    def words(self, device: Any) -> np.ndarray:
        """The results as unsigned integers."""
        found = np.ascontiguousarray(self.execute(self.form, device, Numbers(self.name), self.kind))
        return found.view(f"u{found.dtype.itemsize}")


def digest(words: np.ndarray) -> str:
    """A digest of all results."""
    return hashlib.sha256(np.ascontiguousarray(words).tobytes()).hexdigest()[:8]


def of_warps(form: warp.Case, device: Any, n: Numbers, kind: str) -> np.ndarray:
    """mma.sync by eight warps."""
    (m, columns, k), (ta, tb, td) = form.shape, form.types
    pairs = [multiplicands(n, ta, tb, kind, (m, columns, k)) for _ in range(8)]
    a, b = np.stack([p[0] for p in pairs]), np.stack([p[1].T for p in pairs])
    c = accumulators(n, td, ta, tb, kind, (8, m, columns))
    return warp.multiply(device, form, a, b, c)


def of_warpgroups(form: group.Case, device: Any, n: Numbers, kind: str) -> np.ndarray:
    """wgmma by two warpgroups with the same A and B."""
    a, b = multiplicands(n, form.ta, form.tb, kind, (64, form.n, form.k))
    c = accumulators(n, form.td, form.ta, form.tb, kind, (2, 64, form.n))
    return group.execute(device, group.text(form), form, group.inputs(form, a[None], b[None], c), 1)


def compressed(n: Numbers, a: np.ndarray, t: str) -> tuple[np.ndarray, np.ndarray]:
    """The elements of a dense A that are kept, (rows, k / 2), and nibbles of metadata, (rows, chunks)."""
    rows, k = a.shape
    if BITS[t] == 32:
        keep = n.below(2, rows, k // 2)
        return np.take_along_axis(a.reshape(rows, -1, 2), keep[..., None], 2)[..., 0], np.where(keep, 0b1110, 0b0100)
    first, second = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])[n.below(6, rows, k // 4)].transpose(2, 0, 1)
    kept = np.take_along_axis(a.reshape(rows, -1, 4), np.stack((first, second), -1), 2)
    return kept.reshape(rows, k // 2), first | second << 2


def of_sparse_warps(form: sparse.Case, device: Any, n: Numbers, kind: str) -> np.ndarray:
    """mma.sp by two warps."""
    (m, columns, k), (ta, tb, td) = form.shape, form.types
    parts = []
    for _ in range(2):
        a, b = multiplicands(n, ta, tb, kind, (m, columns, k))
        kept, nibbles = compressed(n, a, ta)
        c = accumulators(n, td, ta, tb, kind, (m, columns))
        words = sparse.metadata(np.random.default_rng(0), nibbles, ta, k, form.selector)[None]
        fragments = [
            pack(kept, ta, sparse.place_a(ta, k), m * k // 64),
            pack(b.T, tb, sparse.place_b(tb), k * columns // 32),
            pack(c, td, group.place_d, 4),
        ]
        parts.append(np.concatenate([*fragments, words]))
    given = np.concatenate(parts, axis=1)
    out = run(device, sparse.kernel(form), given, 4 * BITS[td] // 32, block=64)
    return np.stack([unpack(out[:, 32 * w : 32 * w + 32], td, group.place_d, 4, (m, columns)) for w in range(2)])


def of_sparse_warpgroups(form: sparse.WideCase, device: Any, n: Numbers, kind: str) -> np.ndarray:
    """wgmma.mma_async.sp by two warpgroups with the same A and B."""
    a, b = multiplicands(n, form.ta, form.tb, kind, (64, form.n, form.k))
    kept, nibbles = compressed(n, a, form.ta)
    c = accumulators(n, form.td, form.ta, form.tb, kind, (2, 64, form.n))
    rows = [slice(16 * w, 16 * w + 16) for w in range(4)]
    columns = [pack(c[g, r], form.td, group.place_d, form.n // 2) for g in range(2) for r in rows]
    rng = np.random.default_rng(0)
    words = [sparse.metadata(rng, nibbles[r], form.ta, form.k, form.selector) for r in rows]
    layouts = group.layouts(form)
    memory = np.concatenate(
        [
            group.image(layouts[0], kept, form.ta, 0, group.TILE_A),
            group.image(layouts[1], b, form.tb, 0, group.TILE_B),
        ]
    )
    tail = memory.view(np.uint32).astype(np.uint64).reshape(-1, 256)
    given = np.concatenate([np.concatenate(columns, axis=1), np.concatenate([*words, *words])[None], tail])
    return group.execute(device, sparse.text(form), form, given, 1)


def sums() -> Iterator[Sum]:
    """Every floating-point form of Hopper's tensor cores with every kind of operands."""
    forms: list[tuple[Any, Any]] = []
    for td, ta, tb in (k for k in group.KINDS if k[0] != "s32"):
        forms.append((group.Case(COLUMNS, td, ta, tb), of_warpgroups))
        forms.append((sparse.WideCase(COLUMNS, td, ta, tb), of_sparse_warpgroups))
    forms += [(c, of_warps) for c in warp.cases() if c.types[2] in ("f16", "f32")]
    forms += [(c, of_sparse_warps) for c in sparse.cases() if c.types[2] != "s32" and c.selector == 0]
    for form, execute in forms:
        for kind in KINDS:
            yield Sum(form, kind, execute)
