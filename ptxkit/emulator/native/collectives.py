"""Machine code for warp collectives whose lanes are all there: shfl, vote, redux, elect, activemask.

:mod:`ptxkit.emulator.native.gates` decides whether the lanes are there; the functions of
:mod:`ptxkit.emulator.instructions.warp` define the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.native.operands import Places, can_translate_operands
from ptxkit.emulator.native.text import LANES, Text, constant, ints
from ptxkit.isa.model import Immediate, Operand

LANE = f"<{', '.join(f'i32 {k}' for k in range(LANES))}>"
"""The number of each lane."""

WORDS = ints(32)


@dataclass(frozen=True)
class Collective:
    """An instruction whose results depend on the values of other lanes.

    Attributes:
        emit: writes its code; gets the values of the operands and the active lanes as an i32.
        allocas: its variables, at the beginning of the function.
    """

    emit: Callable[[Text, Sequence[str], str], list[str]]
    allocas: tuple[str, ...] = ()


def collective(typed: TypedInstruction, places: Places) -> Collective | None:
    """The machine code of an instruction that reads values of other lanes; None where it has none."""
    i, form = typed.instruction, typed.form
    if form is None or typed.step is None or not can_translate_operands(typed, places):
        return None
    if i.name == "shfl" and typed.gated is not None:
        return _shuffle(typed, form["mode"])
    if i.name == "vote" and typed.gated is not None:
        return Collective(_vote(form.get("mode", "ballot")))
    if i.name == "redux" and form.get("t") in _NEUTRAL:
        return Collective(_redux(form["op"], form["t"]))
    if i.name == "elect":
        return Collective(_elect)
    if i.name == "activemask":
        return Collective(lambda t, _, mask: [t.everywhere(mask, 32)])
    return None


# -- shfl --------------------------------------------------------------------------------------------------------------------


def shuffle_source(t: Text, mode: str, lane: str, clamp: str) -> tuple[str, str]:
    """The lane that each lane reads, and whether that is in its range: the pseudo code of PTX ISA, "shfl.sync".

    Args:
        lane, clamp: the operands b and c, for all lanes.
    """

    def both(operation: str, a: str, b: str) -> str:
        return t.value(f"{operation} {WORDS} {a}, {b}")

    last = constant(LANES - 1, 32)
    distance = both("and", lane, last)
    segment = both("and", both("lshr", clamp, constant(8, 32)), last)
    inverted = both("xor", segment, constant(-1, 32))
    low = both("and", LANE, segment)
    high = both("or", low, both("and", both("and", clamp, last), inverted))
    if mode == "idx":
        wanted = both("or", low, both("and", distance, inverted))
    else:
        wanted = both({"up": "sub", "down": "add", "bfly": "xor"}[mode], LANE, distance)
    inside = t.value(f"icmp {'sge' if mode == 'up' else 'sle'} {WORDS} {wanted}, {high}")
    return t.select(inside, 32, wanted, LANE), inside


def _number(operand: Operand | None) -> int | None:
    return int(operand.value) if isinstance(operand, Immediate) else None


def _fixed_source(mode: str, lane: int, clamp: int) -> tuple[list[int], list[bool]]:
    """As :func:`shuffle_source`, for operands that are constants."""
    lane, segment, last = lane & 31, clamp >> 8 & 31, clamp & 31
    source, inside = [], []
    for me in range(LANES):
        high = me & segment | last & ~segment
        wanted = {"up": me - lane, "down": me + lane, "bfly": me ^ lane}.get(mode, me & segment | lane & ~segment)
        inside.append(wanted >= high if mode == "up" else wanted <= high)
        source.append(wanted if inside[-1] else me)
    return source, inside


def _shuffle(typed: TypedInstruction, mode: str) -> Collective:
    assert typed.step is not None
    lane, clamp = (_number(operand) for operand, _ in typed.step.sources[1:3])
    if lane is not None and clamp is not None:
        source, inside = _fixed_source(mode, lane, clamp)
        order = ", ".join(f"i32 {k}" for k in source)
        known = ", ".join(f"i1 {str(v).lower()}" for v in inside)

        def fixed(t: Text, v: Sequence[str], mask: str) -> list[str]:
            return [t.value(f"shufflevector {WORDS} {v[0]}, {WORDS} poison, {WORDS} <{order}>"), f"<{known}>"]

        return Collective(fixed)
    names = ("%given", "%source", "%moved")

    def moved(t: Text, v: Sequence[str], mask: str) -> list[str]:
        source, inside = shuffle_source(t, mode, v[1], v[2])
        t.store(WORDS, v[0], names[0])
        t.store(WORDS, source, names[1])
        t.put(f"call void @ptxkit_permute(ptr {names[0]}, ptr {names[1]}, ptr {names[2]})")
        return [t.load(WORDS, names[2]), inside]

    return Collective(moved, tuple(f"  {name} = alloca {WORDS}" for name in names))


# -- the others --------------------------------------------------------------------------------------------------------------


def _vote(mode: str) -> Callable[[Text, Sequence[str], str], list[str]]:
    def emit(t: Text, v: Sequence[str], mask: str) -> list[str]:
        bits = t.value(f"and i32 {t.mask(v[0])}, {mask}")
        if mode == "ballot":
            return [t.everywhere(bits, 32)]
        some, every = t.value(f"icmp ne i32 {bits}, 0"), t.value(f"icmp eq i32 {bits}, {mask}")
        if mode == "uni":
            every = t.value(f"or i1 {every}, {t.value(f'xor i1 {some}, true')}")
        return [t.everywhere(some if mode == "any" else every, 1)]

    return emit


_NEUTRAL = {
    "u32": {"add": 0, "min": -1, "max": 0},
    "s32": {"add": 0, "min": (1 << 31) - 1, "max": -(1 << 31)},
    "b32": {"and": -1, "or": 0, "xor": 0},
}


def _redux(operation: str, kind: str) -> Callable[[Text, Sequence[str], str], list[str]]:
    name = f"{kind[0]}{operation}" if operation in ("min", "max") else operation

    def emit(t: Text, v: Sequence[str], mask: str) -> list[str]:
        values = t.select(t.lanes(mask), 32, v[0], constant(_NEUTRAL[kind][operation], 32))
        return [t.everywhere(t.value(f"call i32 @llvm.vector.reduce.{name}.v{LANES}i32({WORDS} {values})"), 32)]

    return emit


def _elect(t: Text, v: Sequence[str], mask: str) -> list[str]:
    leader = t.everywhere(t.value(f"call i32 @llvm.cttz.i32(i32 {mask}, i1 true)"), 32)
    return [leader, t.value(f"icmp eq {WORDS} {leader}, {LANE}")]


_PERMUTE = """
; %out[k] = %in[%source[k]]
define void @ptxkit_permute(ptr %in, ptr %source, ptr %out) noinline {
entry:
  br label %lane
lane:
  %k = phi i64 [0, %entry], [%k1, %lane]
  %sp = getelementptr i32, ptr %source, i64 %k
  %s = load i32, ptr %sp
  %s64 = zext i32 %s to i64
  %ip = getelementptr i32, ptr %in, i64 %s64
  %v = load i32, ptr %ip
  %op = getelementptr i32, ptr %out, i64 %k
  store i32 %v, ptr %op
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, 32
  br i1 %more, label %lane, label %done
done:
  ret void
}
"""


def permute_code() -> str:
    """The text of the function that moves values between lanes."""
    return _PERMUTE


def declarations() -> str:
    """Declarations of what the code of collectives calls."""
    names = ("add", "and", "or", "xor", "umin", "umax", "smin", "smax")
    reductions = [f"declare i32 @llvm.vector.reduce.{name}.v{LANES}i32({WORDS})" for name in names]
    lines = ["declare void @ptxkit_permute(ptr, ptr, ptr)", "declare i32 @llvm.cttz.i32(i32, i1)", *reductions]
    return "\n".join(lines) + "\n"
