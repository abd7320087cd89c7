"""mma.sync and mma.sp with ``.kind``: the narrow and block-scaled forms of sm_120. PTX ISA, "mma", "mma.sp".

Their sums are those of tcgen05.mma (:mod:`~ptxkit.emulator.tensor_core.tcgen05_arithmetic`), according to results recorded on
an RTX PRO 6000. The fragments have the layout of 8-bit and 4-bit integers. In the 8-bit containers of ``f8f6f4`` and
``mxf8f6f4``, a 6-bit element is in the lowest six bits, and e2m1 is in bits 2 to 5. The hardware reads e2m1 as e2m3, so that
the two bits below it are not ignored.

PTX ISA, "Block Scaling for mma.sync": the scale factors of rows g and g + 8 of A are in lane 4 g + 2 thread-id-a and in the
next lane, those of column g of B in lane 4 g + thread-id-b; they begin at byte byte-id of the register.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.simt.step import B32, Binding, Gated, Step, Typed
from ptxkit.emulator.simt.table import blocking
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.tensor_core import fragments, sparse
from ptxkit.emulator.tensor_core.collective import collective, require_whole
from ptxkit.emulator.tensor_core.mma import (
    Expansion,
    accumulator_words,
    active_warps,
    fragment_registers,
    load_accumulator,
    register_type,
    registers,
    shape_of,
)
from ptxkit.emulator.tensor_core.tcgen05_arithmetic import products
from ptxkit.errors import TrapError
from ptxkit.isa.model import Operand, Vector
from ptxkit.isa.types import TYPES

U16 = TYPES["u16"]
_NARROW = "e4m3 e5m2 e3m2 e2m3 e2m1"
_LANES = np.arange(8) * 4


@dataclass(frozen=True)
class Factors:
    """Scale factors of the warps of one instruction.

    Attributes:
        count: factors of a row or column: 1, 2 or 4 bytes of a register.
        t: ``"ue8m0"`` or ``"ue4m3"``.
        block: number of elements along K to which one factor applies.
        where: the instruction, for errors.
    """

    count: int
    t: str
    block: int
    where: Where

    def select(self, words: Lanes, byte: Lanes, thread: Lanes, rows: int, name: str) -> Lanes:
        """Select the scale factors of each row: (warps, rows, count) uint8.

        Args:
            words: the register with the factors, (warps, 32) uint32.
            byte, thread: the selectors byte-id and thread-id, (warps, 32) uint16.

        Raises:
            TrapError: selectors for which PTX defines no behaviour.
        """
        for what, values, allowed in (
            (f"byte-id-{name}", byte, range(0, 4, self.count)),
            (f"thread-id-{name}", thread, range(2 if rows == 16 else 4)),
        ):
            if (values != values[:, :1]).any():
                raise TrapError(f"{self.where}: {what} differs between lanes of a warp")
            bad = sorted(set(values[:, 0].tolist()) - set(allowed))
            if bad:
                known = ", ".join(map(str, allowed))
                raise TrapError(f"{self.where}: {what} is {bad[0]}; scale_vec::{self.count}X takes {known}")
        first = _LANES + thread[:, :1] * (2 if rows == 16 else 1)
        lanes = np.concatenate((first, first + 1), axis=1) if rows == 16 else first
        found = np.take_along_axis(words, lanes, axis=1).view(np.uint8).reshape(len(words), rows, 4)
        return np.take_along_axis(found, byte[:, :1, None] + np.arange(self.count), axis=2)


_SPARSE = "sp::ordered_metadata"


@blocking(
    "mma.sync.aligned.<shape>.row.col.<kind>.<d>.<a>.<b>.<c>",
    shape="m16n8k32",
    kind="kind::f8f6f4",
    d="f16 f32",
    a=_NARROW,
    b=_NARROW,
    c="f16 f32",
)
@blocking(
    "mma.<sp>.sync.aligned.<shape>.row.col.<kind>.<d>.<a>.<b>.<c>",
    sp=_SPARSE,
    shape="m16n8k64",
    kind="kind::f8f6f4",
    d="f16 f32",
    a=_NARROW,
    b=_NARROW,
    c="f16 f32",
)
@blocking(
    "mma.sync.aligned.<shape>.row.col.<kind>.block_scale{.<vector>}.<d>.<a>.<b>.<c>.<scale>",
    shape="m16n8k32",
    kind="kind::mxf8f6f4",
    vector="scale_vec::1X",
    d="f32",
    a=_NARROW,
    b=_NARROW,
    c="f32",
    scale="ue8m0",
)
@blocking(
    "mma.<sp>.sync.aligned.<shape>.row.col.<kind>.block_scale{.<vector>}.<d>.<a>.<b>.<c>.<scale>",
    sp=_SPARSE,
    shape="m16n8k64",
    kind="kind::mxf8f6f4",
    vector="scale_vec::1X",
    d="f32",
    a=_NARROW,
    b=_NARROW,
    c="f32",
    scale="ue8m0",
)
@blocking(
    "mma.sync.aligned.<shape>.row.col.<kind>.block_scale{.<vector>}.<d>.<a>.<b>.<c>.<scale>",
    shape="m16n8k64",
    kind="kind::mxf4",
    vector="scale_vec::2X",
    d="f32",
    a="e2m1",
    b="e2m1",
    c="f32",
    scale="ue8m0",
)
@blocking(
    "mma.<sp>.sync.aligned.<shape>.row.col.<kind>.block_scale{.<vector>}.<d>.<a>.<b>.<c>.<scale>",
    sp=_SPARSE,
    shape="m16n8k128",
    kind="kind::mxf4",
    vector="scale_vec::2X",
    d="f32",
    a="e2m1",
    b="e2m1",
    c="f32",
    scale="ue8m0",
)
@blocking(
    "mma.sync.aligned.<shape>.row.col.<kind>.block_scale.<vector>.<d>.<a>.<b>.<c>.<scale>",
    shape="m16n8k64",
    kind="kind::mxf4nvf4",
    vector="scale_vec::2X",
    d="f32",
    a="e2m1",
    b="e2m1",
    c="f32",
    scale="ue8m0",
)
@blocking(
    "mma.sync.aligned.<shape>.row.col.<kind>.block_scale.<vector>.<d>.<a>.<b>.<c>.<scale>",
    shape="m16n8k64",
    kind="kind::mxf4nvf4",
    vector="scale_vec::4X",
    d="f32",
    a="e2m1",
    b="e2m1",
    c="f32",
    scale="ue8m0 ue4m3",
)
@blocking(
    "mma.<sp>.sync.aligned.<shape>.row.col.<kind>.block_scale.<vector>.<d>.<a>.<b>.<c>.<scale>",
    sp=_SPARSE,
    shape="m16n8k128",
    kind="kind::mxf4nvf4",
    vector="scale_vec::2X",
    d="f32",
    a="e2m1",
    b="e2m1",
    c="f32",
    scale="ue8m0",
)
@blocking(
    "mma.<sp>.sync.aligned.<shape>.row.col.<kind>.block_scale.<vector>.<d>.<a>.<b>.<c>.<scale>",
    sp=_SPARSE,
    shape="m16n8k128",
    kind="kind::mxf4nvf4",
    vector="scale_vec::4X",
    d="f32",
    a="e2m1",
    b="e2m1",
    c="f32",
    scale="ue8m0 ue4m3",
)
def _mma(b: Binding) -> Step | Gated:
    form = b.form
    m, n, k = shape_of(form["shape"])
    kind, td = form["kind"].removeprefix("kind::"), form["d"]
    compressed = bool(form.get("sp"))
    kept = k // 2 if compressed else k
    if form["c"] != td:
        raise b.fail("the accumulator has the type of the result in this shape")
    operands = list(b.operands)
    names = (
        "d, a, b, c"
        + (", e, f" if compressed else "")
        + (", scale-a, {ids}, scale-b, {ids}" if form.get("scale") else "")
    )
    expected = 4 + 2 * compressed + 4 * bool(form.get("scale"))
    if len(operands) != expected:
        raise b.fail(f"{len(operands)} operands; it takes {names}")
    packed = "s4" if kind in ("mxf4", "mxf4nvf4") else "u8"
    per_word = 8 if packed == "s4" else 4
    counts = [fragment_registers(m, kept, packed), fragment_registers(k, n, packed), fragment_registers(m, n, td)]
    outs = registers(b, operands[0], counts[2], td, "d")
    a_in, b_in = (
        registers(b, o, count, packed, w) for o, count, w in zip(operands[1:3], counts[:2], "ab", strict=True)
    )
    c_in = registers(b, operands[3], counts[2], td, "c")
    expand = Expansion(b, packed, k, operands[5], True) if compressed else None
    factors, factor_sources = _factors(b, operands[4 + 2 * compressed :], kept)
    table_a = fragments.multiplicand_a(m, kept // per_word).reshape(-1)
    table_b = fragments.multiplicand_b(k // per_word).reshape(-1)
    table_c = fragments.accumulator(m, n, td == "f16")
    table_d = fragments.accumulator_inverse(m, n, td == "f16")
    bits: DTypeLike = np.uint16 if td == "f16" else np.uint32
    types: dict[str, Any] = {"a_type": _read_as(form["a"], kind), "b_type": _read_as(form["b"], kind), "d_type": td}
    d_type = register_type(td).dtype
    flops, where, number = f"flops.tensor.{form['a']}", b.where, b.index
    metadata: tuple[Typed, ...] = ((operands[4], B32),) if compressed else ()

    def multiply(x: Group, *lanes: Lanes) -> tuple[Lanes, ...]:
        require_whole(x, where)
        left = list(lanes)

        def take(count: int, dtype: DTypeLike = np.uint32) -> Lanes:
            return fragments.gather(x.shape, [left.pop(0) for _ in range(count)], dtype)

        warps = x.shape[0] * x.shape[1]
        a = _elements(take(counts[0]).take(table_a, axis=1), packed).reshape(warps, m, kept)
        bt = _elements(take(counts[1]).take(table_b, axis=1), packed).reshape(warps, n, k)
        words = take(counts[2], np.float32 if td == "f32" else np.uint32)
        c = load_accumulator(words, table_c, td).view(bits)
        active = active_warps(x)
        more: dict[str, Any] = {}
        if expand is not None:
            columns = expand.columns(take(1), active)
            a = sparse.expand(a, columns)
            more["kept"] = sparse.kept(columns)
        if factors is not None:
            more |= {"scale_type": factors.t, "block": factors.block}
            for name, rows in (("a", m), ("b", n)):
                data, byte, thread = take(1), take(1, np.uint16), take(1, np.uint16)
                if active is not None:
                    byte, thread = (np.where(active[:, None], v, v.dtype.type(0)) for v in (byte, thread))
                more[f"scale_{name}"] = factors.select(data, byte, thread, rows, name)
        d = products(kind, a, bt, c, **types, **more)
        x.tally.add(number, flops, 2 * m * n * kept * (x.lanes // 32))
        return fragments.scatter(
            x.shape, accumulator_words(d.view(np.float16), td) if td == "f16" else d, table_d, d_type
        )

    return collective(b, Step(multiply, (*a_in, *b_in, *c_in, *metadata, *factor_sources), outs))


def _read_as(t: str, kind: str) -> str:
    """The type that the hardware reads an element of type ``t`` as."""
    return "e2m3" if t == "e2m1" and kind in ("f8f6f4", "mxf8f6f4") else t


def _factors(b: Binding, operands: Sequence[Operand | None], kept: int) -> tuple[Factors | None, tuple[Typed, ...]]:
    """The scale factors of a form, and the operands that hold them and their selectors."""
    if not operands:
        return None, ()
    form = b.form
    default = {"kind::mxf8f6f4": "1X", "kind::mxf4": "2X"}.get(form["kind"], "")
    count = int((form.get("vector") or default).removeprefix("scale_vec::").removesuffix("X"))
    sources: list[Typed] = []
    data_a, ids_a, data_b, ids_b = operands
    for name, data, ids in (("a", data_a, ids_a), ("b", data_b, ids_b)):
        if not isinstance(ids, Vector) or len(ids.items) != 2:
            raise b.fail(f"{ids} where {{byte-id-{name}, thread-id-{name}}} is expected")
        sources += [*registers(b, data, 1, "b32", f"scale-{name}-data"), *((item, U16) for item in ids.items)]
    return Factors(count, form["scale"], kept // count, b.where), tuple(sources)


def _elements(words: Lanes, packed: str) -> Lanes:
    """Bit patterns of the elements in words, (..., words) uint32, low bits first."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    return octets if packed == "u8" else np.stack((octets & 15, octets >> 4), axis=-1).reshape(*octets.shape[:-1], -1)
