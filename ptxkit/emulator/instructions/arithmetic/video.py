"""Video instructions: arithmetic on bytes and half-words picked from registers. PTX ISA, "Video Instructions".

All lanes are computed as int64, in which the 34-bit intermediate results fit. Operands have selectors (``r2.b0``, ``r1.h10``),
so that a signature of types does not describe them, and they are bound with their instruction.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.simt.step import U32, Binding, Step
from ptxkit.emulator.simt.table import effect
from ptxkit.isa.model import Negated, Operand, Selection

_OPERATION: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
    "vadd": lambda a, b: a + b,
    "vsub": lambda a, b: a - b,
    "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
    # ties are rounded away from zero: (a + b + 1) >> 1 unless the sum is negative
    "vavrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
}
_COMPARE: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_SECOND: dict[str, Callable[[Lanes, Lanes], Lanes]] = {"add": np.add, "min": np.minimum, "max": np.maximum}
_32 = "u32 s32"


def _selected(o: Operand | None) -> tuple[Operand | None, str]:
    return (o.operand, o.part) if isinstance(o, Selection) else (o, "")


def _place(part: str) -> tuple[int, int]:
    """(bit position, width) of a scalar selector."""
    if not part:
        return 0, 32
    width = 8 if part[0] == "b" else 16
    return int(part[1]) * width, width


def _extract(a: Lanes, position: int, width: int, signed: bool) -> Lanes:
    """A field of 32-bit lanes as int64."""
    left = a.view(np.uint32) << np.uint32(32 - position - width)
    down = 32 - width
    if signed:
        return (left.view(np.int32) >> np.int32(down)).astype(np.int64)
    return (left >> np.uint32(down)).astype(np.int64)


def _clamp(t: Lanes, width: int, signed: bool) -> Lanes:
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)
    return np.clip(t, low, high)


def _word(t: Lanes) -> Lanes:
    return (t & 0xFFFFFFFF).astype(np.uint32)


# -- scalar -------------------------------------------------------------------------------------------------------------------


def _scalar(b: Binding, compute: Callable[[Lanes, Lanes], Lanes], d: str, types: tuple[str, str]) -> Step:
    """``compute`` on the selected parts, then saturation, then a second operation or a merge into c."""
    operands = b.operands
    if len(operands) not in (3, 4):
        raise b.fail(f"{len(operands)} operands, expected 3 or 4")
    destination, dsel = _selected(operands[0])
    (x, xsel), (y, ysel) = _selected(operands[1]), _selected(operands[2])
    second = b.form.get("second") or ""
    if (len(operands) == 4) != bool(second or dsel):
        raise b.fail(
            "the third source goes with a second operation, or with a destination that is a part of a register"
        )
    if second and dsel:
        raise b.fail("a second operation writes a whole register")
    places = _place(xsel), _place(ysel)
    position, width = _place(dsel)
    signed, sat = d == "s32", b.form.has("sat")

    def run(first: Lanes, other: Lanes, c: Lanes | None = None) -> Lanes:
        t = compute(_extract(first, *places[0], types[0] == "s32"), _extract(other, *places[1], types[1] == "s32"))
        if sat:
            t = _clamp(t, width, signed)
        if c is None:
            return _word(t)
        if second:
            return _word(_SECOND[second](t, c.view(np.int32 if signed else np.uint32).astype(np.int64)))
        mask = ((1 << width) - 1) << position
        return (_word(t << position) & np.uint32(mask)) | (c & np.uint32(0xFFFFFFFF ^ mask))

    sources = ((x, U32), (y, U32), *(((operands[3], U32),) if len(operands) == 4 else ()))
    return Step(run, sources, ((destination, U32),), pure=True)


@effect("vadd.<d>.<a>.<b>{.sat}{.<second>}", d=_32, a=_32, b=_32, second="add min max")
@effect("vsub.<d>.<a>.<b>{.sat}{.<second>}", d=_32, a=_32, b=_32, second="add min max")
@effect("vabsdiff.<d>.<a>.<b>{.sat}{.<second>}", d=_32, a=_32, b=_32, second="add min max")
@effect("vmin.<d>.<a>.<b>{.sat}{.<second>}", d=_32, a=_32, b=_32, second="add min max")
@effect("vmax.<d>.<a>.<b>{.sat}{.<second>}", d=_32, a=_32, b=_32, second="add min max")
def arithmetic(b: Binding) -> Step:
    """vadd, vsub, vabsdiff, vmin and vmax."""
    f = b.form
    return _scalar(b, _OPERATION[f.opcode.split(".", 1)[0]], f["d"], (f["a"], f["b"]))


@effect("vshl.<d>.<a>.u32{.sat}.<mode>{.<second>}", d=_32, a=_32, mode="clamp wrap", second="add min max")
@effect("vshr.<d>.<a>.u32{.sat}.<mode>{.<second>}", d=_32, a=_32, mode="clamp wrap", second="add min max")
def shift(b: Binding) -> Step:
    """vshl and vshr."""
    left, wrap = b.form.opcode.startswith("vshl"), b.form["mode"] == "wrap"

    def compute(x: Lanes, n: Lanes) -> Lanes:
        n = (n & 31) if wrap else np.minimum(n, 32)
        return (x << n) if left else (x >> n)

    return _scalar(b, compute, b.form["d"], (b.form["a"], "u32"))


@effect("vset.<a>.<b>.<cmp>{.<second>}", a=_32, b=_32, cmp="eq ne lt le gt ge", second="add min max")
def set_(b: Binding) -> Step:
    """vset: 1 or 0."""
    f = _COMPARE[b.form["cmp"]]
    return _scalar(b, lambda x, y: f(x, y).astype(np.int64), "u32", (b.form["a"], b.form["b"]))


@effect("vmad.<d>.<a>.<b>{.po}{.sat}{.<scale>}", d=_32, a=_32, b=_32, scale="shr7 shr15")
def multiply_add(b: Binding) -> Step:
    """vmad: product plus c, shifted right and saturated. The sum has 66 bits, so that Python integers are used."""
    f = b.form
    if len(b.operands) != 4:
        raise b.fail(f"{len(b.operands)} operands, expected 4")
    plain, negative = [], []
    for o in b.operands[1:]:
        negative.append(isinstance(o, Negated))
        plain.append(_selected(o.operand if isinstance(o, Negated) else o))
    if f["po"] and any(negative):
        raise b.fail(".po takes no negated operand")
    flip, minus = negative[0] != negative[1], negative[2]
    signed = "s32" in (f["a"], f["b"]) or flip or minus
    shift_by = int(f["scale"][3:]) if f["scale"] else 0
    places, sat = [_place(part) for _, part in plain], f["sat"]

    def run(x: Lanes, y: Lanes, c: Lanes) -> Lanes:
        product = _extract(x, *places[0], f["a"] == "s32").astype(object) * _extract(y, *places[1], f["b"] == "s32")
        addend = (c.view(np.int32) if signed else c).astype(np.int64).astype(object)
        t = (-product if flip else product) + (-addend if minus else addend) + f.has("po")
        t = t >> shift_by
        if sat:
            low, high = (-(2**31), 2**31 - 1) if signed else (0, 2**32 - 1)
            t = np.minimum(np.maximum(t, low), high)
        return (t & 0xFFFFFFFF).astype(np.uint32)

    return Step(run, tuple((o, U32) for o, _ in plain), ((b.operands[0], U32),), pure=True)


# -- two and four at a time
# ------------------------------------------------------------------------------------------------------


def _vector(b: Binding, count: int, compute: Callable[[Lanes, Lanes], Lanes], d: str, types: tuple[str, str]) -> Step:
    """``compute`` on selected elements of a and b; the results replace elements of c, or are added to it."""
    if len(b.operands) != 4:
        raise b.fail(f"{len(b.operands)} operands, expected 4")
    width, letter = 32 // count, "bh"[count == 2]
    destination, mask = _selected(b.operands[0])
    chosen = []
    for o, default in zip(b.operands[1:3], range(2), strict=True):
        operand, part = _selected(o)
        digits = part[1:] or "".join(str(default * count + k) for k in reversed(range(count)))
        if (part and part[0] != letter) or len(digits) != count or any(int(k) >= 2 * count for k in digits):
            raise b.fail(f"selector .{part}")
        chosen.append((operand, [int(k) for k in reversed(digits)]))
    enabled = [int(k) for k in mask[1:]] or list(range(count))
    signed, sat, accumulate = d == "s32", b.form.has("sat"), b.form.has("add")

    def element(x: Lanes, y: Lanes, n: int, t: str) -> Lanes:
        return _extract(y if n >= count else x, n % count * width, width, t == "s32")

    def run(x: Lanes, y: Lanes, c: Lanes) -> Lanes:
        out = c.astype(np.int64) if accumulate else c
        for k in enabled:
            t = compute(element(x, y, chosen[0][1][k], types[0]), element(x, y, chosen[1][1][k], types[1]))
            if sat:
                t = _clamp(t, width, signed)
            if accumulate:
                out = out + t
            else:
                field = ((1 << width) - 1) << k * width
                out = (_word(t << k * width) & np.uint32(field)) | (out & np.uint32(0xFFFFFFFF ^ field))
        return _word(out) if accumulate else out

    return Step(run, ((chosen[0][0], U32), (chosen[1][0], U32), (b.operands[3], U32)), ((destination, U32),), pure=True)


def _simd(b: Binding) -> Step:
    name = b.form.opcode.split(".", 1)[0]
    return _vector(b, int(name[-1]), _OPERATION[name[:-1]], b.form["d"], (b.form["a"], b.form["b"]))


def _simd_set(b: Binding) -> Step:
    f = _COMPARE[b.form["cmp"]]
    count = int(b.form.opcode[4])
    return _vector(b, count, lambda x, y: f(x, y).astype(np.int64), "u32", (b.form["a"], b.form["b"]))


for _count in (2, 4):
    for _name in ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"):
        effect(f"{_name}{_count}.<d>.<a>.<b>{{.sat}}", d=_32, a=_32, b=_32)(_simd)
        effect(f"{_name}{_count}.<d>.<a>.<b>.<add>", d=_32, a=_32, b=_32, add="add")(_simd)
    effect(f"vset{_count}.<a>.<b>.<cmp>{{.add}}", a=_32, b=_32, cmp="eq ne lt le gt ge")(_simd_set)
