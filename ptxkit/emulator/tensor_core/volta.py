"""mma.sync.m8n8k4 with f16: four products at once, each by eight lanes. PTX ISA, "Matrix Fragments for mma.m8n8k4".

Product q belongs to lanes 4 q to 4 q + 3, which hold rows (or columns) 0 to 3, and to the same lanes plus 16, which hold 4 to
7.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.simt.step import Binding, Gated, Step
from ptxkit.emulator.simt.table import blocking
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.tensor_core import fragments, numerics
from ptxkit.emulator.tensor_core.collective import collective, require_whole
from ptxkit.emulator.tensor_core.mma import accumulator_words, register_type, registers

Place = Callable[[int, int, int], tuple[int, int]]
"""(lane % 4, 4 in the upper half of the warp, element) -> (row, column)."""

_PLACES: dict[str, Place] = {
    "a.row": lambda t, up, i: (t + up, i),
    "a.col": lambda t, up, i: (i + up, t),
    "b.row": lambda t, up, i: (t, i + up),
    "b.col": lambda t, up, i: (i, t + up),
    "c.f16": lambda t, up, i: (t + up, i),
    "c.f32": lambda t, up, i: ((t & 1) + (i & 2) + up, (i & 4) + (t & 2) + (i & 1)),
}


def _table(name: str, rows: int, columns: int) -> Lanes:
    """(4, rows, columns): positions of a matrix's elements among a warp's, [register, lane, element of a word]."""
    per_word = 1 if name == "c.f32" else 2
    out = np.full((4, rows, columns), -1, np.int64)
    for lane in range(32):
        for i in range(rows * columns // 8):
            at = _PLACES[name](lane % 4, lane // 16 * 4, i)
            out[(lane % 16 // 4, *at)] = (i // per_word * 32 + lane) * per_word + i % per_word
    assert (out >= 0).all()
    return out


_TABLES = {
    name: _table(name, *shape)
    for name, shape in {
        "a.row": (8, 4),
        "a.col": (8, 4),
        "b.row": (4, 8),
        "b.col": (4, 8),
        "c.f16": (8, 8),
        "c.f32": (8, 8),
    }.items()
}
_TYPES: dict[str, np.dtype] = {"f16": np.dtype(np.float16), "f32": np.dtype(np.float32)}


@blocking("mma.sync.aligned.m8n8k4.<la>.<lb>.<d>.f16.f16.<c>", la="row col", lb="row col", d="f16 f32", c="f16 f32")
def _mma(b: Binding) -> Step | Gated:
    form = b.form
    tc, td = form["c"], form["d"]
    if tc == "f32" and td == "f16":
        raise b.fail("the result is .f32 when the accumulator is")
    if len(b.operands) != 4:
        raise b.fail(f"{len(b.operands)} operands; it takes d, a, b, c")
    count_c, count_d = (8 if t == "f32" else 4 for t in (tc, td))
    d, a, bb, c = b.operands
    outs = registers(b, d, count_d, td, "d")
    ins = (*registers(b, a, 2, "f16", "a"), *registers(b, bb, 2, "f16", "b"), *registers(b, c, count_c, tc, "c"))
    tables = [_TABLES[f"a.{form['la']}"], _TABLES[f"b.{form['lb']}"], _TABLES[f"c.{tc}"]]
    order = np.empty(256, np.int64)
    order[_TABLES[f"c.{td}"].reshape(-1)] = np.arange(256)
    where, number, d_type = b.where, b.index, register_type(td).dtype
    compute = numerics.arithmetic(b, "mma", "f16", "f16", "mul", False)
    per_word = 256 // (32 * count_d)

    def multiply(x: Group, *lanes: Lanes) -> tuple[Lanes, ...]:
        require_whole(x, where)
        warps = x.shape[0] * x.shape[1]
        parts = []
        for t, table, chosen in zip(("f16", "f16", tc), tables, (lanes[:2], lanes[2:4], lanes[4:]), strict=True):
            words = fragments.gather(x.shape, chosen, np.uint32)
            parts.append(words.view(_TYPES[t]).take(table, axis=1))
        left, right = (p.astype(np.float32) for p in parts[:2])
        start = parts[2].astype(_TYPES[td]).reshape(-1, 8, 8)
        product = compute(left.reshape(-1, 8, 4), right.reshape(-1, 4, 8), start)
        x.tally.add(number, "flops.tensor.f16", 4 * 2 * 8 * 8 * 4 * (x.lanes // 32))
        elements = np.ascontiguousarray(product.reshape(warps, 256).take(order, axis=1))
        words = accumulator_words(elements, td).reshape(warps, count_d, 32)
        return tuple(words[:, k].view(d_type).reshape(x.shape) for k in range(count_d))

    assert per_word == (1 if td == "f32" else 2)
    return collective(b, Step(multiply, ins, outs))
