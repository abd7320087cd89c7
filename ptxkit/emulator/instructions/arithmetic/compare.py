"""setp and set. PTX ISA, "Comparison and Selection Instructions" and "Half Precision Comparison Instructions"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.instructions.arithmetic.floating import flush
from ptxkit.emulator.instructions.arithmetic.half import DTYPE, flush_f16, widen
from ptxkit.emulator.instructions.arithmetic.lanes import joined, parts
from ptxkit.emulator.simt.opcode_patterns import Form
from ptxkit.emulator.simt.table import LaneFunction, alu

Compare = Callable[[Lanes, Lanes], Lanes]

_INTEGER: dict[str, Compare] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_FLOAT: dict[str, Compare] = {
    "eq": np.equal,
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: (a == a) & (b == b),
    "nan": lambda a, b: (a != a) | (b != b),
}
"""Comparison operator -> function. With a NaN, ordered comparisons are false and unordered ones true."""

_BOOLEAN: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}
_KINDS = (
    ("eq ne", "b16 b32 b64"),
    ("eq ne lt le gt ge", "s16 s32 s64"),
    ("eq ne lt le gt ge lo ls hi hs", "u16 u32 u64"),
)
_FLOAT_OPS = " ".join(_FLOAT)
_BOOL = "and or xor"


def _comparison(form: Form) -> Compare:
    """The comparison function of a form, on lanes of its source type."""
    op, t, ftz = form["cmp"], form["t"], form.has("ftz")
    element = t.removesuffix("x2")
    if element not in ("f16", "bf16", "f32", "f64"):
        return _INTEGER[op]
    function = _FLOAT[op]
    if element == "f64" or (element == "f32" and not ftz):
        return function
    if element == "f32":
        return lambda a, b: function(flush(a), flush(b))

    def half(a: Lanes, b: Lanes) -> Lanes:
        x, y = (widen(flush_f16(v) if ftz else v, element) for v in (a, b))
        return function(x, y)

    return half


def _setp(form: Form) -> LaneFunction:
    single, combine = _comparison(form), form.get("bool")
    pair = form.pair and form["t"] not in ("f16", "bf16")
    if not combine:
        if not pair:
            return single

        def both(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
            p = single(a, b)
            return p, ~p

        return both
    function = _BOOLEAN[combine]
    if not pair:
        return lambda a, b, c: function(single(a, b), c)

    def combined(a: Lanes, b: Lanes, c: Lanes) -> tuple[Lanes, Lanes]:
        p = single(a, b)
        return function(p, c), function(~p, c)

    return combined


for _ops, _types in _KINDS:
    alu("setp.<cmp>.<t>", cmp=_ops, t=_types, sig="pred, pred = t, t", bind=True)(_setp)
    alu("setp.<cmp>.<bool>.<t>", cmp=_ops, bool=_BOOL, t=_types, sig="pred, pred = t, t, pred", bind=True)(_setp)
for _ftz, _type, _left in (
    ("", "f64", "pred, pred"),
    ("{.ftz}", "f32", "pred, pred"),
    ("{.ftz}", "f16", "pred"),
    ("", "bf16", "pred"),
):
    alu(f"setp.<cmp>{_ftz}.<t>", cmp=_FLOAT_OPS, t=_type, sig=f"{_left} = t, t", bind=True)(_setp)
    alu(f"setp.<cmp>.<bool>{_ftz}.<t>", cmp=_FLOAT_OPS, bool=_BOOL, t=_type, sig=f"{_left} = t, t, pred", bind=True)(
        _setp
    )


def _setp_x2(form: Form) -> Callable[..., tuple[Lanes, Lanes]]:
    """setp on f16x2 and bf16x2: a predicate for each half."""
    element, combine = form["t"].removesuffix("x2"), form.get("bool")
    single = _comparison(form)

    def run(a: Lanes, b: Lanes, *c: Lanes) -> tuple[Lanes, Lanes]:
        p = single(parts(a, DTYPE[element]), parts(b, DTYPE[element]))
        low, high = p[..., 0], p[..., 1]
        return (_BOOLEAN[combine](low, c[0]), _BOOLEAN[combine](high, c[0])) if combine else (low, high)

    return run


for _ftz, _type in (("{.ftz}", "f16x2"), ("", "bf16x2")):
    alu(f"setp.<cmp>{_ftz}.<t>", cmp=_FLOAT_OPS, t=_type, sig="pred, pred = t, t", bind=True)(_setp_x2)
    alu(f"setp.<cmp>.<bool>{_ftz}.<t>", cmp=_FLOAT_OPS, bool=_BOOL, t=_type, sig="pred, pred = t, t, pred", bind=True)(
        _setp_x2
    )


# -- set -----------------------------------------------------------------------------------------------------------------------


def _truth(d: str) -> Callable[[Lanes], Lanes]:
    """Converts predicates to values: true is 1.0 for floating-point types and all ones for integers."""
    if d == "f32":
        return lambda p: p.astype(np.float32)
    if d in ("f16", "bf16"):
        one = np.uint16(0x3C00 if d == "f16" else 0x3F80)
        return lambda p: (p.astype(np.uint16) * one).view(DTYPE[d])
    integer = np.dtype(f"{'i' if d[0] == 's' else 'u'}{int(d[1:]) // 8}")
    return lambda p: np.negative(p.view(np.int8)).astype(f"i{integer.itemsize}").view(integer)


def _set(form: Form) -> Callable[..., Lanes]:
    single, truth, combine = _comparison(form), _truth(form["d"]), form.get("bool")
    if not combine:
        return lambda a, b: truth(single(a, b))
    return lambda a, b, c: truth(_BOOLEAN[combine](single(a, b), c))


def _set_x2(form: Form) -> Callable[..., Lanes]:
    """set on f16x2 and bf16x2: the results of both halves in one register."""
    element, combine = form["t"].removesuffix("x2"), form.get("bool")
    single, truth = _comparison(form), _truth(form["d"].removesuffix("x2") if "x2" in form["d"] else "u16")

    def run(a: Lanes, b: Lanes, *c: Lanes) -> Lanes:
        p = single(parts(a, DTYPE[element]), parts(b, DTYPE[element]))
        if combine:
            p = _BOOLEAN[combine](p, c[0][..., None])
        return joined(truth(p), np.int32 if form["d"] == "s32" else np.uint32)

    return run


def _register_set(ops: str, d: str, t: str, ftz: bool, bind: Callable[[Form], LaneFunction] = _set) -> None:
    flag = "{.ftz}" if ftz else ""
    alu(f"set.<cmp>{flag}.<d>.<t>", cmp=ops, d=d, t=t, sig="d = t, t", bind=True)(bind)
    alu(f"set.<cmp>.<bool>{flag}.<d>.<t>", cmp=ops, bool=_BOOL, d=d, t=t, sig="d = t, t, pred", bind=True)(bind)


for _ops, _types in _KINDS:
    _register_set(_ops, "u32 s32 f32 f16 bf16", _types, False)
_register_set(_FLOAT_OPS, "u32 s32 f32 f16", "f32", True)
_register_set(_FLOAT_OPS, "bf16", "f32", False)
_register_set(_FLOAT_OPS, "u32 s32 f32 f16 bf16", "f64", False)
_register_set(_FLOAT_OPS, "u16 s16 u32 s32 f16", "f16", True)
_register_set(_FLOAT_OPS, "bf16", "f16", False)
_register_set(_FLOAT_OPS, "u16 s16 u32 s32 bf16", "bf16", False)
_register_set(_FLOAT_OPS, "f16x2 u32 s32", "f16x2", True, _set_x2)
_register_set(_FLOAT_OPS, "bf16x2 u32 s32", "bf16x2", False, _set_x2)
