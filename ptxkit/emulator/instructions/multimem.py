"""multimem: accesses to memory that several devices have, with the emulated machine as the only one. PTX ISA, "multimem".

With one device a multicast address is an ordinary one: a load that reduces is a load, and a reduction is ``red``.
"""

from __future__ import annotations

from dataclasses import replace

from ptxkit.emulator.simt.step import Binding, Gated, Step
from ptxkit.emulator.simt.table import effect, lookup

_SCOPES = "cta cluster gpu sys"
_INTEGER_TYPES = {
    "add": "u32 s32 u64",
    "min": "u32 s32 u64 s64",
    "max": "u32 s32 u64 s64",
    "and": "b32 b64",
    "or": "b32 b64",
    "xor": "b32 b64",
}
_VECTORS = {
    "": "f16x2 bf16x2 f32 f64 e5m2x4 e4m3x4",
    "v2": "f16 f16x2 bf16 bf16x2 f32 e5m2x2 e5m2x4 e4m3x2 e4m3x4",
    "v4": "f16 f16x2 bf16 bf16x2 f32 e5m2 e5m2x2 e5m2x4 e4m3 e4m3x2 e4m3x4",
    "v8": "f16 bf16 e5m2 e4m3 e5m2x2 e4m3x2",
}
"""Vector -> the types of floats that it may have."""
_BITS = {
    **dict.fromkeys(("f16", "bf16", "e5m2x2", "e4m3x2"), "b16"),
    **dict.fromkeys(("f16x2", "bf16x2", "e5m2x4", "e4m3x4"), "b32"),
    **dict.fromkeys(("e5m2", "e4m3"), "b8"),
}
"""Type -> that of a load or store of the same size."""
_INTEGERS = "b32 b64 u32 u64 s32 s64"
_FLOATS = "f16 f16x2 bf16 bf16x2 f32 f64"
_NARROW = "e5m2 e5m2x2 e5m2x4 e4m3 e4m3x2 e4m3x4"


def _check_type(b: Binding, op: str) -> None:
    """Refuse combinations that ptxas takes for no target."""
    t, vec, acc = b.form["t"], b.form["vec"], b.form.get("acc", "")
    if t in _INTEGERS.split():
        if vec or acc or (op and t not in _INTEGER_TYPES[op].split()):
            raise b.fail(f".{vec or acc} is for floats" if vec or acc else f".{op} does not take .{t}")
        return
    if t not in _VECTORS[vec].split():
        raise b.fail(f".{t} goes {'without a vector' if vec else 'with a vector'}, or with another one")
    if t in _NARROW.split() and b.target < 100:
        raise b.fail(f".{t} needs sm_100a")
    if op in ("and", "or", "xor") or (op in ("min", "max") and t in ("f32", "f64")):
        raise b.fail(f".{op} does not take .{t}")
    if acc and op != "add":
        raise b.fail(f".{acc} goes with .add")
    if acc and acc != ("acc::f16" if t in _NARROW.split() else "acc::f32" if t not in ("f32", "f64") else ""):
        raise b.fail(f".{acc} does not go with .{t}")


def _check_scope(b: Binding) -> str:
    """Semantics and scope as other instructions have them; without any they are relaxed at the scope of the system."""
    sem, scope = b.form["sem"], b.form["scope"]
    if (sem == "weak" and scope) or (sem in ("relaxed", "acquire", "release") and not scope):
        raise b.fail(".weak has no scope" if scope else f".{sem} needs a scope")
    return ".weak" if sem == "weak" else f".{sem or 'relaxed'}.{scope or 'sys'}"


def _as(b: Binding, opcode: str) -> Step | Gated:
    """The step of another instruction with the same operands."""
    found = lookup(opcode)
    assert found is not None, opcode
    entry, form = found
    step = entry.function(replace(b, instruction=replace(b.instruction, opcode=opcode), form=form))
    assert isinstance(step, Step | Gated)
    return step


@effect(
    "multimem.ld_reduce{.<sem>}{.<scope>}{.global}.<op>{.<acc>}{.<vec>}.<t>",
    sem="weak relaxed acquire",
    scope=_SCOPES,
    op="min max add and or xor",
    acc="acc::f32 acc::f16",
    vec="v2 v4 v8",
    t=f"{_INTEGERS} {_FLOATS} {_NARROW}",
)
def _ld_reduce(b: Binding) -> Step | Gated:
    _check_type(b, b.form["op"])
    t, vec = b.form["t"], b.form["vec"]
    return _as(b, f"ld{_check_scope(b)}.global{'.' + vec if vec else ''}.{_BITS.get(t, t)}")


@effect(
    "multimem.st{.<sem>}{.<scope>}{.global}{.<vec>}.<t>",
    sem="weak relaxed release",
    scope=_SCOPES,
    vec="v2 v4 v8",
    t=f"{_INTEGERS} {_FLOATS} {_NARROW}",
)
def _st(b: Binding) -> Step | Gated:
    _check_type(b, "")
    t, vec = b.form["t"], b.form["vec"]
    return _as(b, f"st{_check_scope(b)}.global{'.' + vec if vec else ''}.{_BITS.get(t, t)}")


@effect(
    "multimem.red{.<sem>}{.<scope>}{.global}.<op>{.<vec>}.<t>",
    sem="relaxed release",
    scope=_SCOPES,
    op="min max add and or xor",
    vec="v2 v4 v8",
    t=f"{_INTEGERS} {_FLOATS}",
)
def _red(b: Binding) -> Step | Gated:
    t, vec, op = b.form["t"], b.form["vec"], b.form["op"]
    _check_type(b, op)
    if op in ("min", "max") and t not in _INTEGERS.split() and not vec:
        raise b.fail(f".{op} does not take .{t}")
    half = ".noftz" if "f16" in t else ""
    return _as(b, f"red{_check_scope(b)}.global.{op}{half}{'.' + vec if vec else ''}.{t}")
