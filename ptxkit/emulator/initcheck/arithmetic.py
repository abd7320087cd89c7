"""Which bits of a result are undefined, for pure instructions.

Instructions that move bits are executed on the undefined bits. Bitwise ones take into account that a defined 0 decides an
``and``, and a defined 1 an ``or``. A sum or product is undefined from its operands' lowest undefined bit on. Packed formats are
followed element by element. Anything else is wholly undefined if any bit of a source is (Seward and Nethercote, "Using Valgrind
to detect undefined value errors with bit-precision", 2005).
"""

from __future__ import annotations

import re

import numpy as np

from ptxkit.emulator.arrays import Lanes, Mask
from ptxkit.emulator.initcheck.origins import COMPUTED, FIELD
from ptxkit.emulator.initcheck.shadow import as_data, every, from_data, origins, resized, shadow
from ptxkit.emulator.simt.instrumented import Instrumented, unsigned
from ptxkit.emulator.simt.step import result_tuple
from ptxkit.emulator.simt.undefined import Shadow
from ptxkit.isa.types import PtxType

Sources = list[Shadow | None]

_MOVES = {
    "mov": None,
    "brev": None,
    "shl": (0,),
    "shr": (0,),
    "szext": (0,),
    "bfe": (0,),
    "shf": (0, 1),
    "prmt": (0, 1),
    "bfi": (0, 1),
    "selp": (0, 1),
    "slct": (0, 1),
}
"""Instructions that move bits, and the sources that they move; None means all. The others say how."""

_FIELDS = {"shl", "shr", "bfe", "szext"}
_INSERTIONS = {"or", "lop3", "bfi", "prmt"}

_INTEGERS = re.compile(r"[usb](8|16|32|64)")


def results(w: Instrumented, values: tuple[Lanes, ...], sources: Sources) -> list[Shadow | None]:
    """Undefined bits of each destination of a pure instruction.

    Args:
        values: of the sources, as the instruction gets them.
        sources: their undefined bits; at least one is not None.
    """
    if w.name in _MOVES:
        return flagged(_moved(w, values, sources), FIELD if w.name in _FIELDS else 0, w.name in _INSERTIONS)
    if w.name == "cvt" and all(_INTEGERS.fullmatch(p) for p in w.parts):
        widens = w.destinations[0].type.bits > w.sources[0].type.bits
        return flagged(_moved(w, values, sources), COMPUTED if widens else 0)
    if w.name in ("and", "or", "xor", "not", "lop3"):
        found = _one(w, _bitwise(w.name, values, sources), sources)
        return flagged(found, FIELD if w.name == "and" else 0, w.name in _INSERTIONS)
    if w.name == "cvta":  # it adds or subtracts the address of a window
        return _one(w, _carried(_union(sources, unsigned(w.destinations[0].type))), sources)
    if _is_integer_sum(w):
        return flagged(_one(w, _carried(_union(sources, unsigned(w.destinations[0].type))), sources), COMPUTED)
    if w.name == "setp" and w.parts[0] in ("eq", "ne") and len(sources) == 2:
        return flagged(_compared(w, values, sources), COMPUTED)
    return flagged(smeared(w, sources), COMPUTED)


def flagged(found: list[Shadow | None], flag: int, clears: bool = False) -> list[Shadow | None]:
    """Results whose origins have a flag more, or, where fields are put together, not the flag of a field."""
    if not flag and not clears:
        return found
    kept = np.int32(~FIELD) if clears else np.int32(-1)
    return [
        None if s is None else Shadow(s.bits, np.where(s.bits != 0, s.origin & kept | np.int32(flag), 0)) for s in found
    ]


def computed(found: list[Shadow | None] | None) -> list[Shadow | None] | None:
    """Results of an instruction that computes, not only moves, what it is given."""
    return None if found is None else flagged(found, COMPUTED)


def smeared(w: Instrumented, sources: Sources) -> list[Shadow | None]:
    """Every destination is wholly undefined where any source has an undefined bit; packed elements stand for themselves."""
    origin = origins(sources)
    out = []
    for d in w.destinations:
        bits = _packed(w, d.type, sources)
        if bits is None:
            lanes: Mask = np.zeros((1, 1, 1), np.bool_)
            for s in sources:
                if s is not None:
                    lanes = lanes | s.lanes
            bits = every(lanes, unsigned(d.type))
        out.append(shadow(bits, origin))
    return out


def _one(w: Instrumented, bits: Lanes, sources: Sources) -> list[Shadow | None]:
    out: list[Shadow | None] = [shadow(bits, origins(sources))]
    return out + [None] * (len(w.destinations) - 1)


def _moved(w: Instrumented, values: tuple[Lanes, ...], sources: Sources) -> list[Shadow | None]:
    data = _MOVES.get(w.name)
    chosen = range(len(sources)) if data is None else data
    given = [as_data(s, w.sources[k].type) if k in chosen else values[k] for k, s in enumerate(sources)]
    found = result_tuple(w.step.call(*given))
    steering: Mask = np.zeros((1, 1, 1), np.bool_)
    for k, s in enumerate(sources):
        if k not in chosen and s is not None:
            steering = steering | s.lanes
    origin = origins(sources)
    out: list[Shadow | None] = []
    for d, value in zip(w.destinations, found, strict=True):
        if value is None:
            out.append(None)
            continue
        bits = from_data(value, d.type)
        if steering.any():
            bits = bits | every(steering, bits.dtype)
        out.append(shadow(bits, origin))
    return out


def _carried(bits: Lanes) -> Lanes:
    """The undefined bits of a sum whose operands have these: all from the lowest on."""
    carried: Lanes = bits | (~bits + bits.dtype.type(1))
    return carried


def _union(sources: Sources, dtype: np.dtype) -> Lanes:
    out: Lanes = np.zeros((1, 1, 1), dtype)
    for s in sources:
        if s is not None:
            out = out | resized(s.bits, dtype)
    return out


def _bitwise(name: str, values: tuple[Lanes, ...], sources: Sources) -> Lanes:
    first = next(s for s in sources if s is not None)
    union = _union(sources, first.bits.dtype)
    if name not in ("and", "or"):
        return union
    a, b = (v if v.dtype.kind == "b" else v.view(union.dtype) for v in values)
    sa, sb = (np.zeros((1, 1, 1), union.dtype) if s is None else s.bits for s in sources)
    if name == "or":
        a, b = ~a, ~b
    # a bit is defined where one side has the value that decides and is defined
    return union & (sa | a) & (sb | b)


def _is_integer_sum(w: Instrumented) -> bool:
    if len(w.destinations) != 1 or not _INTEGERS.fullmatch(w.destinations[0].type.name) or "cc" in w.parts:
        return False
    return w.name in ("add", "sub") or (w.name in ("mul", "mad") and w.parts[0] == "lo")


def _compared(w: Instrumented, values: tuple[Lanes, ...], sources: Sources) -> list[Shadow | None]:
    """``eq`` and ``ne`` are decided where defined bits differ."""
    out = smeared(w, sources)
    if not all(_INTEGERS.fullmatch(s.type.name) for s in w.sources):
        return out
    a, b = (v.view(unsigned(s.type)) for v, s in zip(values, w.sources, strict=True))
    differ = ((a ^ b) & ~_union(sources, a.dtype)) != 0
    return [None if s is None else shadow(s.bits & ~differ, s.origin) for s in out]


def _elements(t: PtxType) -> int:
    found = re.search(r"x([24])$", t.name)
    return int(found[1]) if found else 1


def _packed(w: Instrumented, t: PtxType, sources: Sources) -> Lanes | None:
    """Bits of a packed result; None where the elements do not correspond."""
    count = _elements(t)
    if count == 1 or t.bits % (8 * count):
        return None
    columns: list[Mask] = [np.zeros((1, 1, 1), np.bool_)] * count
    scalars = [_elements(s.type) == 1 for s in w.sources]
    for k, s in enumerate(sources):
        if s is None:
            continue
        if _elements(w.sources[k].type) == count:
            parts = _split(s.bits, count)
            columns = [c | (parts[..., n] != 0) for n, c in enumerate(columns)]
        elif scalars[k] and len(sources) == count:  # the first source goes to the upper element
            n = count - 1 - k
            columns[n] = columns[n] | s.lanes
        else:
            return None
    element = np.dtype(f"u{t.bits // 8 // count}")
    stacked = np.stack(np.broadcast_arrays(*(every(c, element) for c in columns)), -1)
    return np.ascontiguousarray(stacked).view(unsigned(t))[..., 0]


def _split(bits: Lanes, count: int) -> Lanes:
    size = bits.dtype.itemsize // count
    if size == 0:
        return np.repeat(bits[..., None], count, -1)
    return np.ascontiguousarray(bits).view(f"u{size}").reshape(*bits.shape, count)
