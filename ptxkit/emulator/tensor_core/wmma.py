"""The instructions wmma.load, wmma.store and wmma.mma. PTX ISA, "wmma.load", "wmma.store", "wmma.mma".

:mod:`ptxkit.emulator.tensor_core.wmma_fragments` determines which lane holds which element.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from ptxkit.emulator.access.site import Loaded
from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.simt.step import Binding, Gated, Step
from ptxkit.emulator.simt.table import blocking
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.tensor_core import fragments, numerics
from ptxkit.emulator.tensor_core.collective import acts_together, collective, require_whole
from ptxkit.emulator.tensor_core.mma import (
    accumulator_words,
    load_accumulator,
    register_type,
    registers,
    shape_of,
)
from ptxkit.emulator.tensor_core.wmma_fragments import FragmentMemory, register_count, table

acts_together(1, "wmma")

_WIDE = "m16n16k16 m8n32k16 m32n8k16"


def _load(b: Binding, role: str) -> Step | Gated:
    matrix = FragmentMemory(b, role, write=False)
    want = register_count(role, matrix.shape, matrix.t)
    outs = registers(b, b.operands[0], want, matrix.t, "the fragment")
    where = b.where

    def load(x: Group, base: Lanes, stride: Lanes) -> Loaded:
        require_whole(x, where)
        lanes = matrix.load(x, base, stride)
        found = [lanes[r % len(lanes)] for r in range(want)]
        found = [v.view(t.dtype) for v, (_, t) in zip(found, outs, strict=True)]
        return tuple(found) if want > 1 else found[0]

    return collective(b, Step(load, matrix.sources, outs))


_SPACES = "global shared shared::cta"


@blocking(
    "wmma.load.<role>.sync.aligned.<layout>.<shape>{.<space>}.<t>",
    role="a b",
    layout="row col",
    shape=_WIDE,
    space=_SPACES,
    t="f16 bf16 s8 u8",
)
@blocking(
    "wmma.load.<role>.sync.aligned.<layout>.<shape>{.<space>}.<t>",
    role="a b",
    layout="row col",
    shape="m16n16k8",
    space=_SPACES,
    t="tf32",
)
@blocking(
    "wmma.load.<role>.sync.aligned.<layout>.<shape>{.<space>}.<t>",
    role="a b",
    layout="row col",
    shape="m8n8k4",
    space=_SPACES,
    t="f64",
)
@blocking(
    "wmma.load.<role>.sync.aligned.<layout>.<shape>{.<space>}.<t>",
    role="a",
    layout="row",
    shape="m8n8k32",
    space=_SPACES,
    t="s4 u4",
)
@blocking(
    "wmma.load.<role>.sync.aligned.<layout>.<shape>{.<space>}.<t>",
    role="b",
    layout="col",
    shape="m8n8k32",
    space=_SPACES,
    t="s4 u4",
)
@blocking(
    "wmma.load.<role>.sync.aligned.<layout>.<shape>{.<space>}.<t>",
    role="a",
    layout="row",
    shape="m8n8k128",
    space=_SPACES,
    t="b1",
)
@blocking(
    "wmma.load.<role>.sync.aligned.<layout>.<shape>{.<space>}.<t>",
    role="b",
    layout="col",
    shape="m8n8k128",
    space=_SPACES,
    t="b1",
)
def _load_multiplicand(b: Binding) -> Step | Gated:
    return _load(b, b.form["role"])


_ACCUMULATORS = (
    (_WIDE, "f16 f32 s32"),
    ("m16n16k8", "f32"),
    ("m8n8k4", "f64"),
    ("m8n8k32 m8n8k128", "s32"),
)


def _load_accumulator(b: Binding) -> Step | Gated:
    return _load(b, "c")


def _store(b: Binding) -> Step | Gated:
    matrix = FragmentMemory(b, "c", write=True)
    ins = registers(b, b.operands[1], matrix.registers, matrix.t, "the fragment")
    where = b.where

    def store(x: Group, base: Lanes, stride: Lanes, *lanes: Lanes) -> None:
        require_whole(x, where)
        matrix.store(x, base, stride, lanes)

    return collective(b, Step(store, (*matrix.sources, *ins)))


for _shapes, _types in _ACCUMULATORS:
    _pattern = "sync.aligned.<layout>.<shape>{.<space>}.<t>"
    _sets = {"layout": "row col", "shape": _shapes, "space": _SPACES, "t": _types}
    blocking(f"wmma.load.c.{_pattern}", **_sets)(_load_accumulator)
    blocking(f"wmma.store.d.{_pattern}", **_sets)(_store)


def _multiply(b: Binding, ta: str, tb: str, tc: str, td: str, op: str, limit: bool) -> Step | Gated:
    shape = m, n, k = shape_of(b.form["shape"])
    if ta != tb:
        raise b.fail("A and B have the same type")
    if len(b.operands) != 4:
        raise b.fail(f"{len(b.operands)} operands; it takes d, a, b, c")
    counts = [register_count("a", shape, ta), register_count("b", shape, tb), register_count("c", shape, tc)]
    outs = registers(b, b.operands[0], register_count("c", shape, td), td, "d")
    ins = [registers(b, o, c, t, w) for o, c, t, w in zip(b.operands[1:], counts, (ta, tb, tc), "abc", strict=True)]
    tables = [table(r, shape, t) for r, t in zip("abc", (ta, tb, tc), strict=True)]
    inverse = fragments.inverse(table("c", shape, td))
    word: DTypeLike = np.uint64 if ta == "f64" else np.uint32
    c_type = {"f32": np.float32, "s32": np.int32, "f64": np.float64}.get(tc, np.uint32)
    where, number, d_type = b.where, b.index, register_type(td).dtype
    ends = counts[0], counts[0] + counts[1]
    d_numpy = np.dtype({"f16": "f2", "f32": "f4", "s32": "i4", "f64": "f8"}[td])
    compute = numerics.arithmetic(b, "mma", ta, tb, op, limit)

    def multiply(x: Group, *lanes: Lanes) -> tuple[Lanes, ...]:
        require_whole(x, where)
        warps = x.shape[0] * x.shape[1]
        av = fragments.gather(x.shape, lanes[: ends[0]], word).take(tables[0].reshape(-1), axis=1)
        bv = fragments.gather(x.shape, lanes[ends[0] : ends[1]], word).take(tables[1].reshape(-1), axis=1)
        a = numerics.decode(av, ta).reshape(warps, m, k)
        bt = numerics.decode(bv, tb).reshape(warps, n, k).transpose(0, 2, 1)
        c = load_accumulator(fragments.gather(x.shape, lanes[ends[1] :], c_type), tables[2], tc)
        # C is converted to the type of the result before it is added
        d = compute(a, bt, c.astype(d_numpy, copy=False))
        x.tally.add(number, f"flops.tensor.{ta}", 2 * m * n * k * (x.lanes // 32))
        return fragments.scatter(x.shape, accumulator_words(d, td), inverse, d_type)

    return collective(b, Step(multiply, (*ins[0], *ins[1], *ins[2]), outs))


@blocking(
    "wmma.mma.sync.aligned.<la>.<lb>.<shape>.<d>.<c>", la="row col", lb="row col", shape=_WIDE, d="f16 f32", c="f16 f32"
)
def _mma_f16(b: Binding) -> Step | Gated:
    return _multiply(b, "f16", "f16", b.form["c"], b.form["d"], "mul", False)


@blocking(
    "wmma.mma.sync.aligned.<la>.<lb>.<shape>.<d>.<a>.<b>.<c>",
    la="row col",
    lb="row col",
    shape=_WIDE,
    d="f32",
    a="bf16",
    b="bf16",
    c="f32",
)
@blocking(
    "wmma.mma.sync.aligned.<la>.<lb>.<shape>.<d>.<a>.<b>.<c>",
    la="row col",
    lb="row col",
    shape="m16n16k8",
    d="f32",
    a="tf32",
    b="tf32",
    c="f32",
)
@blocking(
    "wmma.mma.sync.aligned.<la>.<lb>.<shape>.<d>.<a>.<b>.<c>{.satfinite}",
    la="row col",
    lb="row col",
    shape=_WIDE,
    d="s32",
    a="s8 u8",
    b="s8 u8",
    c="s32",
)
@blocking(
    "wmma.mma.sync.aligned.<la>.<lb>.<shape>.<d>.<a>.<b>.<c>{.satfinite}",
    la="row",
    lb="col",
    shape="m8n8k32",
    d="s32",
    a="s4 u4",
    b="s4 u4",
    c="s32",
)
@blocking(
    "wmma.mma.<op>.popc.sync.aligned.<la>.<lb>.<shape>.<d>.<a>.<b>.<c>",
    op="and xor",
    la="row",
    lb="col",
    shape="m8n8k128",
    d="s32",
    a="b1",
    b="b1",
    c="s32",
)
@blocking(
    "wmma.mma.sync.aligned.<la>.<lb>.<shape>.<d>.<a>.<b>.<c>{.<rnd>}",
    la="row col",
    lb="row col",
    shape="m8n8k4",
    d="f64",
    a="f64",
    b="f64",
    c="f64",
    rnd="rn rz rm rp",
)
def _mma(b: Binding) -> Step | Gated:
    form = b.form
    op = form.get("rnd") or ("rn" if form["a"] == "f64" else form.get("op") or "mul")
    return _multiply(b, form["a"], form["b"], form["c"], form["d"], op, form.has("satfinite"))
