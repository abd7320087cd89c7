"""mma.sync and mma.sp: warp-level matrix multiply-accumulate. PTX ISA, "mma", "mma.sp"."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import DTypeLike

from ptxkit.emulator.arrays import Index, Lanes, Mask, Words
from ptxkit.emulator.simt.step import B32, Binding, Gated, Step, Typed
from ptxkit.emulator.simt.table import blocking
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.tensor_core import fragments, numerics, sparse
from ptxkit.emulator.tensor_core.collective import acts_together, collective, require_whole
from ptxkit.isa.model import Immediate, Operand
from ptxkit.isa.types import TYPES, PtxType

acts_together(1, "mma")

F32, F64, S32 = TYPES["f32"], TYPES["f64"], TYPES["s32"]


def shape_of(name: str) -> tuple[int, int, int]:
    """M, N and K of ``m16n8k16``."""
    found = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", name)
    assert found is not None
    m, n, k = (int(g) for g in found.groups())
    return m, n, k


def register_type(t: str) -> PtxType:
    """The type of a register with elements of type ``t``: .b32 for packed elements."""
    return {"f32": F32, "f64": F64, "s32": S32}.get(t, B32)


def registers(b: Binding, operand: Operand | None, count: int, t: str, what: str) -> tuple[Typed, ...]:
    """The registers of a fragment, with their type.

    Raises:
        UnsupportedError: not ``count`` of them.
    """
    items = b.elements(operand)
    if len(items) != count:
        raise b.fail(f"{what} has {len(items)} registers, this form takes {count}")
    return tuple((item, register_type(t)) for item in items)


def fragment_registers(rows: int, columns: int, t: str) -> int:
    """Number of registers of a lane for a matrix; elements narrower than 32 bits are packed."""
    bits = {"f32": 32, "s32": 32}.get(t) or numerics.BITS[t]
    return rows * columns * bits // (32 * max(32, bits))


def load_accumulator(words: Lanes, table: Index, t: str) -> Lanes:
    """C as (warps, m, n) in its own type; pairs of f16 are unpacked."""
    picked = words.take(table.reshape(-1), axis=1).reshape(len(words), *table.shape)
    return picked.view(np.float16) if t == "f16" else picked


def accumulator_words(d: Lanes, t: str) -> Lanes:
    """A result matrix as register words."""
    if t == "f16":
        return np.ascontiguousarray(d, np.float16).view(np.uint32)
    return d.view(np.uint32) if t != "f64" else d.view(np.uint64)


@blocking(
    "mma.sync.aligned.<shape>.row.col.<d>.<a>.<b>.<c>",
    shape="m16n8k8 m16n8k16",
    d="f16 f32",
    a="f16",
    b="f16",
    c="f16 f32",
)
@blocking(
    "mma.sync.aligned.<shape>.row.col.<d>.<a>.<b>.<c>", shape="m16n8k8 m16n8k16", d="f32", a="bf16", b="bf16", c="f32"
)
@blocking(
    "mma.sync.aligned.<shape>.row.col.<d>.<a>.<b>.<c>", shape="m16n8k4 m16n8k8", d="f32", a="tf32", b="tf32", c="f32"
)
@blocking(
    "mma.sync.aligned.<shape>.row.col.<d>.<a>.<b>.<c>",
    shape="m16n8k16 m16n8k32",
    d="f16 f32",
    a="e4m3 e5m2",
    b="e4m3 e5m2",
    c="f16 f32",
)
@blocking(
    "mma.sync.aligned.<shape>.row.col.<d>.<a>.<b>.<c>{.<op>}",
    shape="m8n8k4 m16n8k4 m16n8k8 m16n8k16",
    d="f64",
    a="f64",
    b="f64",
    c="f64",
    op="rn rz rm rp",
)
@blocking(
    "mma.sync.aligned.<shape>.row.col{.satfinite}.<d>.<a>.<b>.<c>",
    shape="m8n8k16 m16n8k16 m16n8k32",
    d="s32",
    a="s8 u8",
    b="s8 u8",
    c="s32",
)
@blocking(
    "mma.sync.aligned.<shape>.row.col{.satfinite}.<d>.<a>.<b>.<c>",
    shape="m8n8k32 m16n8k32 m16n8k64",
    d="s32",
    a="s4 u4",
    b="s4 u4",
    c="s32",
)
@blocking(
    "mma.sync.aligned.<shape>.row.col.<d>.<a>.<b>.<c>.<op>.popc",
    shape="m8n8k128 m16n8k128 m16n8k256",
    d="s32",
    a="b1",
    b="b1",
    c="s32",
    op="and xor",
)
@blocking(
    "mma.<sp>.sync.aligned.<shape>.row.col.<d>.<a>.<b>.<c>",
    sp="sp sp::ordered_metadata",
    shape="m16n8k16 m16n8k32",
    d="f16 f32",
    a="f16",
    b="f16",
    c="f16 f32",
)
@blocking(
    "mma.<sp>.sync.aligned.<shape>.row.col.<d>.<a>.<b>.<c>",
    sp="sp sp::ordered_metadata",
    shape="m16n8k16 m16n8k32",
    d="f32",
    a="bf16",
    b="bf16",
    c="f32",
)
@blocking(
    "mma.<sp>.sync.aligned.<shape>.row.col.<d>.<a>.<b>.<c>",
    sp="sp sp::ordered_metadata",
    shape="m16n8k8 m16n8k16",
    d="f32",
    a="tf32",
    b="tf32",
    c="f32",
)
@blocking(
    "mma.<sp>.sync.aligned.<shape>.row.col.<d>.<a>.<b>.<c>",
    sp="sp sp::ordered_metadata",
    shape="m16n8k64",
    d="f32",
    a="e4m3 e5m2",
    b="e4m3 e5m2",
    c="f32",
)
@blocking(
    "mma.<sp>.sync.aligned.<shape>.row.col{.satfinite}.<d>.<a>.<b>.<c>",
    sp="sp sp::ordered_metadata",
    shape="m16n8k32 m16n8k64",
    d="s32",
    a="s8 u8",
    b="s8 u8",
    c="s32",
)
@blocking(
    "mma.<sp>.sync.aligned.<shape>.row.col{.satfinite}.<d>.<a>.<b>.<c>",
    sp="sp sp::ordered_metadata",
    shape="m16n8k64 m16n8k128",
    d="s32",
    a="s4 u4",
    b="s4 u4",
    c="s32",
)
def _mma(b: Binding) -> Step | Gated:
    form = b.form
    m, n, k = shape_of(form["shape"])
    ta, tb, tc, td = form["a"], form["b"], form["c"], form["d"]
    compressed = form.has("sp")
    kept = k // 2 if compressed else k
    if tc != td:
        raise b.fail("the accumulator has the type of the result in this shape")
    names = "d, a, b, c, e, f" if compressed else "d, a, b, c"
    if len(b.operands) != len(names.split()):
        raise b.fail(f"{len(b.operands)} operands; it takes {names}")
    per_word = numerics.per_word(ta)
    counts = [fragment_registers(m, kept, ta), fragment_registers(k, n, tb), fragment_registers(m, n, tc)]
    outs = registers(b, b.operands[0], counts[2], td, "d")
    ins = [registers(b, o, c, t, w) for o, c, t, w in zip(b.operands[1:4], counts, (ta, tb, tc), "abc", strict=True)]
    table_a = fragments.multiplicand_a(m, kept // per_word).reshape(-1)
    table_b = fragments.multiplicand_b(k // per_word).reshape(-1)
    table_c = fragments.accumulator(m, n, tc == "f16")
    table_d = fragments.accumulator_inverse(m, n, tc == "f16")
    word: DTypeLike = np.uint64 if ta == "f64" else np.uint32
    c_type = {"f32": np.float32, "s32": np.int32, "f64": np.float64}.get(tc, np.uint32)
    d_type = register_type(td).dtype
    ends = counts[0], counts[0] + counts[1], sum(counts)
    op = form.get("op") or ("rn" if ta == "f64" else "mul")
    compute = numerics.arithmetic(b, "mma", ta, tb, op, form.has("satfinite"))
    flops = f"flops.tensor.{ta}"
    where, number = b.where, b.index
    expand = Expansion(b, ta, k, b.operands[5], form["sp"].endswith("ordered_metadata")) if compressed else None

    def multiply(x: Group, *lanes: Lanes) -> tuple[Lanes, ...]:
        require_whole(x, where)
        warps = x.shape[0] * x.shape[1]
        av = fragments.gather(x.shape, lanes[: ends[0]], word).take(table_a, axis=1)
        bv = fragments.gather(x.shape, lanes[ends[0] : ends[1]], word).take(table_b, axis=1)
        a = numerics.decode(av, ta).reshape(warps, m, kept)
        stored = None
        if expand is not None:
            places = expand.columns(fragments.gather(x.shape, lanes[ends[2] :], word), active_warps(x))
            a, stored = sparse.expand(a, places), sparse.kept(places)
        bt = numerics.decode(bv, tb).reshape(warps, n, k).transpose(0, 2, 1)
        c = load_accumulator(fragments.gather(x.shape, lanes[ends[1] : ends[2]], c_type), table_c, tc)
        d = sparse.product(compute, a, stored, bt, c)
        x.tally.add(number, flops, 2 * m * n * kept * (x.lanes // 32))
        return fragments.scatter(x.shape, accumulator_words(d, td), table_d, d_type)

    metadata: tuple[Typed, ...] = ((b.operands[4], B32),) if compressed else ()
    return collective(b, Step(multiply, (*ins[0], *ins[1], *ins[2], *metadata), outs))


def active_warps(x: Group) -> Mask | None:
    """(warps,) bool: which of the selected warps take part; None for all."""
    return None if x.mask is None else x.mask.any(-1).reshape(-1)


class Expansion:
    """Expands a sparse A to a dense matrix by its metadata.

    Args:
        t: element type.
        k: columns of the dense matrix.
        selector: the operand with the sparsity selector.
        ordered: positions must be ascending.
    """

    def __init__(self, b: Binding, t: str, k: int, selector: Operand | None, ordered: bool) -> None:
        self.where = b.where
        self.t = t
        self.ordered = ordered
        self.how = sparse.arrangement(t, k)
        self.selector = int(selector.value) if isinstance(selector, Immediate) else -1
        if self.selector not in range(sparse.SELECTORS[self.how]):
            raise b.fail(f"sparsity selector {selector}; this form takes 0 to {sparse.SELECTORS[self.how] - 1}")

    def columns(self, words: Words, active: Mask | None) -> Index:
        """(warps, 16, k / 2): the columns of the elements that are kept, from the metadata register, (warps, 32).

        ``active``, (warps,) bool: the metadata of warps that do not take part are not checked; None for all warps.
        """
        found = sparse.chunks(words, self.how, self.selector)
        if active is not None:
            found[~active] = 0b0100
        return sparse.columns(found, self.t, self.ordered, self.where)
