"""Compare the emulator's sums of tcgen05.mma with the model of github.com/sf-tensor/tcgen05, on random operands.

    python scripts/compare_with_model.py DIRECTORY [--cases N] [--path NAME]... [--seed N]

DIRECTORY is a checkout of that repository (MIT licence), whose authors compared the model with a B200. Its own code
(``tcgen05_model.model``) is executed; none of it is part of this project. A case is one element of D: a row of A, a column of
B, an element of C, and scale factors. The operands of a case are of one of several kinds: random bits, one narrow range of
exponents, products that cancel each other, few elements that are not 0, and subnormal numbers; infinities and NaN are mixed in.
Prints the number of cases and differences of each path, and the first differences. Exits with 1 when something differs.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from ptxkit.emulator.tensor_core.tcgen05_arithmetic import products

BATCH = 5000
SHOWN = 5


@dataclass(frozen=True)
class Path_:
    """A path through the tensor core: a kind with types.

    Attributes:
        types: pairs of types of A and B, from which each batch takes one.
        k: products of an instruction, of a sparse one those of the stored elements.
        scale, block: type of the scale factors, and the elements that share one; "" and 0 without scaling.
    """

    name: str
    kind: str
    types: tuple[tuple[str, str], ...]
    k: int
    d: str = "f32"
    scale: str = ""
    block: int = 0
    sparse: bool = False


NARROW = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
ALL = tuple((a, b) for a in NARROW for b in NARROW)
INTEGERS = tuple((a, b) for a in ("s8", "u8") for b in ("s8", "u8"))
FP4 = (("e2m1", "e2m1"),)
DENSE = (
    Path_("tf32", "tf32", (("tf32", "tf32"),), 8),
    Path_("f16", "f16", (("f16", "f16"),), 16),
    Path_("bf16", "f16", (("bf16", "bf16"),), 16),
    Path_("f8f6f4", "f8f6f4", ALL, 32),
    Path_("f8f6f4 to f16", "f8f6f4", ALL, 32, d="f16"),
    Path_("i8", "i8", INTEGERS, 32, d="s32"),
    Path_("mxf8f6f4", "mxf8f6f4", ALL, 32, scale="ue8m0", block=32),
    Path_("mxf4", "mxf4", FP4, 64, scale="ue8m0", block=32),
    Path_("mxf4nvf4 2X ue8m0", "mxf4nvf4", FP4, 64, scale="ue8m0", block=32),
    Path_("mxf4nvf4 4X ue8m0", "mxf4nvf4", FP4, 64, scale="ue8m0", block=16),
    Path_("mxf4nvf4 4X ue4m3", "mxf4nvf4", FP4, 64, scale="ue4m3", block=16),
)
PATHS = DENSE + tuple(replace(p, name=f"{p.name} sparse", sparse=True) for p in DENSE)
FIELDS = {
    "tf32": (8, 23), "f32": (8, 23), "f16": (5, 10), "bf16": (8, 7), "e4m3": (4, 3), "e5m2": (5, 2), "e2m3": (2, 3),
    "e3m2": (3, 2), "e2m1": (2, 1), "s8": (0, 7), "u8": (0, 7), "s32": (0, 31),
}  # fmt: skip
"""Type -> bits of the exponent and of the fraction, after the sign."""


def operands(rng: np.random.Generator, t: str, shape: tuple[int, ...]) -> Any:
    """Bits of random operands, uint32; each row (the first axis) is of one kind."""
    exponent, fraction = FIELDS[t]
    width = 1 + exponent + fraction
    bits = rng.integers(0, 1 << width, shape, np.uint32)
    if not exponent:
        return bits
    rows = (shape[0], *(1,) * (len(shape) - 1))
    kind = rng.integers(0, 8, rows)
    # exponents within a few steps of one value
    center = rng.integers(0, 1 << exponent, rows)
    near = np.clip(center + rng.integers(-2, 3, shape), 0, (1 << exponent) - 1).astype(np.uint32)
    narrow = bits & ~np.uint32(((1 << exponent) - 1) << fraction) | near << np.uint32(fraction)
    bits = np.where((kind >= 2) & (kind <= 5), narrow, bits)
    bits = np.where(kind == 6, bits & np.uint32(1 << width - 1 | (1 << fraction) - 1), bits)  # subnormal
    bits = np.where((kind == 7) & (rng.random(shape) < 0.8), bits & np.uint32(1 << width - 1), bits)  # mostly zeros
    if exponent >= 4:  # fewer rows with infinities and NaN than random bits would have
        special = bits >> np.uint32(fraction) & np.uint32((1 << exponent) - 1) == (1 << exponent) - 1
        keep = rng.random(rows) < 0.05
        bits = np.where(special & ~keep, bits & ~np.uint32(1 << fraction), bits)
    return bits


def cancelled(rng: np.random.Generator, a: Any, b: Any, sign: int) -> None:
    """In some cases, let half of the products cancel the others, except for a few."""
    half = a.shape[1] // 2
    some = rng.random(len(a)) < 0.25
    left = rng.random((len(a), half)) < 0.9
    chosen = some[:, None] & left
    a[:, half : 2 * half] = np.where(chosen, a[:, :half] ^ np.uint32(sign), a[:, half : 2 * half])
    b[:, half : 2 * half] = np.where(chosen, b[:, :half], b[:, half : 2 * half])


def stored_places(rng: np.random.Generator, path: Path_, count: int) -> Any:
    """(count, k): the columns of the elements that a sparse A stores: 1 of 2 for tf32, 2 of 4, or 2 pairs of 4 for e2m1."""
    chunk, unit = (2, 1) if path.kind == "tf32" else (8, 2) if path.types == FP4 else (4, 1)
    order = rng.random((count, 2 * path.k // chunk, chunk // unit)).argsort(axis=2)
    chosen = np.sort(order[:, :, : chunk // unit // 2], axis=2) * unit + np.arange(order.shape[1])[:, None] * chunk
    return (chosen[..., None] + np.arange(unit)).reshape(count, path.k)


def compare(model: Any, path: Path_, cases: int, rng: np.random.Generator) -> int:
    """The number of differences."""
    different = 0
    for first in range(0, cases, BATCH):
        count = min(BATCH, cases - first)
        a_type, b_type = path.types[first // BATCH % len(path.types)]
        a, b = operands(rng, a_type, (count, path.k)), operands(rng, b_type, (count, path.k))
        exponent, fraction = FIELDS[a_type]
        cancelled(rng, a, b, 1 << exponent + fraction if exponent else 0)
        c = operands(rng, {"s32": "s32", "f16": "f16"}.get(path.d, "f32"), (count,))
        saturate = path.kind == "i8" and bool(first // BATCH % 2)
        keywords: dict[str, Any] = {}
        scales: list[Any] = []
        if path.scale:
            low, high = (0, 0x7F) if path.scale == "ue4m3" else (0, 0xFF)
            center = rng.integers(low, high, (count, 1))
            near = np.clip(center + rng.integers(-6, 7, (2, count, path.k // path.block)), low, high)
            wild = rng.random((2, count, 1)) < 0.2
            scales = list(np.where(wild, rng.integers(low, high + 1, near.shape), near).astype(np.uint8))
            keywords = {"scale_" + n: s[:, None] for n, s in zip("ab", scales, strict=True)}
            keywords |= {"scale_type": path.scale, "block": path.block}
        left, right = a, b
        if path.sparse:
            places = stored_places(rng, path, count)
            left, right = np.zeros((count, 2 * path.k), np.uint32), operands(rng, b_type, (count, 2 * path.k))
            np.put_along_axis(left, places, a, 1)
            np.put_along_axis(right, places, b, 1)
            keywords["kept"] = np.zeros((count, 1, 2 * path.k), np.bool_)
            np.put_along_axis(keywords["kept"][:, 0], places, True, 1)
        got = products(
            path.kind, left[:, None], right[:, None], c[:, None, None].astype(np.uint16 if path.d == "f16" else np.uint32),
            a_type=a_type, b_type=b_type, d_type=path.d, saturate=saturate, **keywords,
        )[:, 0, 0].tolist()  # fmt: skip
        more = {"scaling": path.scale, "scale_vec": path.k // path.block, "kind": path.kind} if path.scale else {}
        rule = model.make_model(a_type, b_type, d_type=path.d, saturate=saturate, **more)
        shift = 16 if a_type == "bf16" else 0  # the model takes the upper half of an f32
        words = [(x.astype(np.uint64) << np.uint64(shift)).tolist() for x in (a, b)]
        for e in range(count):
            given = [tuple(s[e].tolist()) for s in scales] if scales else [None, None]
            want = rule.eval(model.DotProduct(tuple(words[0][e]), tuple(words[1][e]), int(c[e]), *given))
            if got[e] != want:
                different += 1
                if different <= SHOWN:
                    print(f"{path.name}: {a_type} {b_type} a={a[e].tolist()} b={b[e].tolist()} c={int(c[e]):#x} {given}: "
                          f"{got[e]:#x}, the model says {want:#x}")  # fmt: skip
    return different


def main(arguments: list[str]) -> int:
    """Compare, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description="Compare sums of tcgen05.mma with the model of sf-tensor/tcgen05.")
    parser.add_argument("directory", type=Path, help="checkout of github.com/sf-tensor/tcgen05")
    parser.add_argument("--cases", type=int, default=10_000, help="number of cases of each path; the default is 10,000")
    parser.add_argument("--path", action="append", choices=[p.name for p in PATHS], help="compare this path; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="seed of the operands")
    given = parser.parse_args(arguments)
    if not (given.directory / "tcgen05_model" / "model.py").is_file():
        parser.error(f"{given.directory} has no tcgen05_model/model.py: name a checkout of github.com/sf-tensor/tcgen05")
    sys.path.insert(0, str(given.directory))
    from tcgen05_model import model  # type: ignore[import-not-found]

    rows = []
    for number, path in enumerate(PATHS):
        if given.path is None or path.name in given.path:
            found = compare(model, path, given.cases, np.random.default_rng([given.seed, number]))
            rows.append((path.name, given.cases, found))
    print(tabulate(rows, headers=("path", "cases", "different")))
    return 1 if any(row[2] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
