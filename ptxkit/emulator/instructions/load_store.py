"""ld and st of every state space. PTX ISA, "ld", "ld.global.nc", "ldu", "st"."""

from __future__ import annotations

from numpy.typing import DTypeLike

from ptxkit.emulator.access.generic import GenericSite
from ptxkit.emulator.access.global_memory import GlobalSite
from ptxkit.emulator.access.local_memory import LocalSite
from ptxkit.emulator.access.shared_memory import ClusterSite, SharedSite
from ptxkit.emulator.access.site import Site, scoped, widen
from ptxkit.emulator.arrays import Lanes, Results
from ptxkit.emulator.simt.step import U64, Binding, Step, Typed
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.where import Where
from ptxkit.isa.model import Immediate, Operand, Symbol
from ptxkit.isa.types import TYPES, PtxType

_TYPES = "b8 b16 b32 b64 b128 u8 u16 u32 u64 s8 s16 s32 s64 f32 f64"
_SPACES = "global const param param::entry param::func local shared shared::cta shared::cluster"
_SEMANTICS = "weak relaxed acquire volatile mmio.relaxed"
_ORDERING = {
    "": "",
    "weak": "",
    "volatile": "relaxed",
    "relaxed": "relaxed",
    "mmio.relaxed": "relaxed",
    "acquire": "acquire",
    "release": "release",
}
_SCOPES = "cta cluster gpu sys"
_L1 = "L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate"
_L2 = "L2::evict_normal L2::evict_first L2::evict_last L2::cache_hint"
_PREFETCH = "L2::64B L2::128B L2::256B"


def is_entry_parameter(b: Binding, operand: Operand | None) -> bool:
    """Whether an address operand names a parameter of the kernel."""
    return isinstance(operand, Symbol) and b.function.is_entry and operand.name in b.layout.params


def site_for(
    b: Binding, space: str, operand: Operand, offset: int, dtype: DTypeLike, count: int, write: bool
) -> Site | GenericSite:
    """The site that accesses ``space``."""
    arguments: tuple[Where, int, int, DTypeLike, int, bool] = (b.where, b.index, offset, dtype, count, write)
    match space.partition("::")[0]:
        case "global" | "const":
            return GlobalSite(*arguments)
        case "shared":
            return ClusterSite(*arguments) if space.endswith("cluster") else SharedSite(*arguments)
        case "local":
            return LocalSite(*arguments)
        case "param":
            if b.function.is_entry and not isinstance(operand, Symbol):
                return GlobalSite(*arguments)
            return GlobalSite(*arguments) if is_entry_parameter(b, operand) else LocalSite(*arguments)
        case _:
            return GenericSite(*arguments)


def _elements(b: Binding, operand: Operand | None, vec: str) -> tuple[Operand | None, ...]:
    items = b.elements(operand)
    want = int(vec[1:]) if vec else 1
    if len(items) != want:
        raise b.fail(f"{len(items)} registers for .{vec or 'scalar'}")
    return items


def _check_width(b: Binding, size: int) -> None:
    if size > 32 or (size == 32 and b.target < 100):
        raise b.fail(f"{size * 8}-bit accesses {'need sm_100 or newer' if size == 32 else 'do not exist'}")
    elsewhere = b.form.get("space", "") not in ("", "global") or b.instruction.name == "ldu"
    if size == 32 and (elsewhere or b.form["t"] == "b128"):
        raise b.fail("256-bit accesses are .v8.b32 or .v4.b64 in global memory")


def _check_modifiers(b: Binding, space: str) -> None:
    """Refuse combinations of modifiers that ptxas accepts for no target."""
    form = b.form
    bits = TYPES[form["t"]].bits
    l1, l2 = form.get("l1", ""), form.get("l2", "")
    hints = [m for m in (l1, l2, form.get("hint", ""), form.get("pre", "")) if m]
    if hints and space not in ("", "global"):
        raise b.fail(f".{hints[0]} is for global memory")
    if l2.startswith("L2::evict") and (form.get("vec"), bits) not in (("v8", 32), ("v4", 64)):
        raise b.fail(f".{l2} goes with .v8.b32 and .v4.b64")
    if form.get("sem", "") in ("relaxed", "acquire", "release", "mmio.relaxed"):
        if not form["scope"]:
            raise b.fail(f".{form['sem']} needs a scope")
        if space.startswith(("const", "local", "param")):
            raise b.fail(f".{form['sem']} is for memory that threads share")
    elif form.get("scope"):
        raise b.fail(f".{form['scope']} goes with .relaxed, .acquire or .release")
    elif form.get("sem") == "volatile" and space.startswith(("const", "param")):
        raise b.fail(".volatile is for memory that can change")


def _load(b: Binding, space: str) -> Step:
    form = b.form
    _check_modifiers(b, space)
    t = TYPES[form["t"]]
    destinations = _elements(b, b.operands[0], form.get("vec", ""))
    _check_width(b, t.bytes * len(destinations))
    operand, offset = b.address(b.operands[1])
    outs: tuple[Typed, ...] = tuple((d, t) for d in destinations)
    if space.startswith("param") and is_entry_parameter(b, operand):
        # a kernel parameter at a constant offset has the same value in the whole grid
        assert isinstance(operand, Symbol)
        at, size, dtype = b.layout.params[operand.name][0] + operand.offset, t.bytes, t.dtype
        if at + size * len(outs) > b.layout.param_bytes or at < 0:
            raise b.fail(f"reads after the end of the kernel's {b.layout.param_bytes} bytes of parameters")
        if len(outs) == 1:
            return Step(lambda x: x.wave.launch.parameter(at, dtype), (), outs)
        return Step(lambda x: tuple(x.wave.launch.parameter(at + k * size, dtype) for k in range(len(outs))), (), outs)
    site = site_for(b, space, operand, offset, t.dtype, len(outs), write=False)
    site.ordering = scoped(_ORDERING[form.get("sem", "")], form.get("scope", ""))
    return Step(site.load, ((operand, _width(b, operand)),), outs)


def _width(b: Binding, operand: Operand) -> PtxType:
    t = b.register_type(operand)
    if t is not None and t.bits == 32:
        return TYPES["u32"]
    if isinstance(operand, Immediate | Symbol) or t is None or t.bits == 64:
        return U64
    raise b.fail(f"a {t.bits}-bit register as an address")


def _wrap(step: Step) -> Step:
    """Extends a 32-bit address register to 64 bits before the site uses it."""
    if step.sources and step.sources[0][1].bits == 32:
        inner = step.call
        return Step(lambda x, a, *rest: inner(x, widen(a), *rest), step.sources, step.destinations)
    return step


@effect(
    "ld{.<sem>}{.<scope>}{.<space>}{.<cop>}{.<l1>}{.<l2>}{.<hint>}{.<pre>}{.<vec>}.<t>",
    sem=_SEMANTICS,
    scope=_SCOPES,
    space=_SPACES,
    cop="ca cg cs lu cv",
    l1=_L1,
    l2=_L2,
    hint="L2::cache_hint",
    pre=_PREFETCH,
    vec="v2 v4 v8",
    t=_TYPES,
)
def _ld(b: Binding) -> Step:
    return _observed(b, _wrap(_load(b, b.form["space"])))


@effect(
    "ld{.weak}.global{.<cop>}.nc{.<l1>}{.<l2>}{.<hint>}{.<pre>}{.<vec>}.<t>",
    cop="ca cg cs",
    l1=_L1,
    l2=_L2,
    hint="L2::cache_hint",
    pre=_PREFETCH,
    vec="v2 v4 v8",
    t=_TYPES,
)
def _ld_nc(b: Binding) -> Step:
    return _wrap(_load(b, "global"))


@effect("ldu{.global}{.<vec>}.<t>", vec="v2 v4", t=_TYPES)
def _ldu(b: Binding) -> Step:
    return _wrap(_load(b, "global" if b.form.has("global") else ""))


POLLING = ("relaxed", "acquire", "volatile", "mmio.relaxed")
"""Semantics of loads that can observe the stores of other threads."""


def _observed(b: Binding, step: Step) -> Step:
    """A load that can observe other threads' stores: a group that polls with it is executed again after all other groups."""
    if b.form["sem"] not in POLLING:
        return step
    inner = step.call

    def poll(x: Group, *sources: Lanes) -> Results:
        x.wave.spin()
        return inner(x, *sources)

    return Step(poll, step.sources, step.destinations)


@effect(
    "st{.<sem>}{.<scope>}{.<space>}{.<cop>}{.<l1>}{.<l2>}{.<hint>}{.<vec>}.<t>",
    sem="weak relaxed release volatile mmio.relaxed",
    scope=_SCOPES,
    space=_SPACES.replace("const ", ""),
    cop="wb cg cs wt",
    l1=_L1,
    l2=_L2,
    hint="L2::cache_hint",
    vec="v2 v4 v8",
    t=_TYPES,
)
def _st(b: Binding) -> Step:
    form = b.form
    _check_modifiers(b, form["space"])
    t = TYPES[form["t"]]
    operand, offset = b.address(b.operands[0])
    if is_entry_parameter(b, operand):
        raise b.fail("kernel parameters are read-only")
    values = _elements(b, b.operands[1], form["vec"])
    _check_width(b, t.bytes * len(values))
    site = site_for(b, form["space"], operand, offset, t.dtype, len(values), write=True)
    site.ordering = scoped(_ORDERING[form["sem"]], form.get("scope", ""))
    sources: tuple[Typed, ...] = ((operand, _width(b, operand)), *((v, t) for v in values))
    return _wrap(Step(lambda x, a, *v: site.store(x, a, v), sources))
