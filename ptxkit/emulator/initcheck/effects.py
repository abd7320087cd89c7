"""What instructions that access memory, or combine lanes, do with undefined values; and which of them may not be undefined.

Each rule is for the instructions of some names. It gets the check, the instruction, the threads that execute it, and the
values and undefined bits of the sources; it reports what is an error and returns the undefined bits of the destinations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.access.generic import by_space
from ptxkit.emulator.access.site import widen
from ptxkit.emulator.arrays import Addresses, Lanes, Mask
from ptxkit.emulator.initcheck import arithmetic, padding
from ptxkit.emulator.initcheck.arithmetic import computed, smeared
from ptxkit.emulator.initcheck.check import InitCheck
from ptxkit.emulator.initcheck.matrices import multiplied, multiplied_from_shared
from ptxkit.emulator.initcheck.memory import LOCK
from ptxkit.emulator.initcheck.shadow import as_data, every, from_data, origins, shadow
from ptxkit.emulator.instructions.warp import ballot
from ptxkit.emulator.simt.instrumented import Instrumented, unsigned
from ptxkit.emulator.simt.step import result_tuple
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.undefined import Shadow
from ptxkit.emulator.simt.where import named
from ptxkit.emulator.tensor_core.tcgen05.memory import TensorMemory
from ptxkit.isa.model import Address

Sources = list[Shadow | None]
Found = list[Shadow | None]
Rule = Callable[[InitCheck, Instrumented, Group, tuple[Lanes, ...], Sources], Found | None]

_RULES: dict[str, Rule] = {}
"""The first part of an opcode -> its rule."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of the instructions with these first parts. A test requires one for each that is not pure."""

    def register(function: Rule) -> Rule:
        for name in names:
            assert name not in _RULES, f"{name} has two rules"
            _RULES[name] = function
        return function

    return register


def has_rule(name: str) -> bool:
    """Whether the instructions whose opcode begins with ``name`` have a rule."""
    return name in _RULES


def results(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...]) -> Found | None:
    """An instruction is about to be executed: report what is an error, and return what its destinations will be.

    None stands for no undefined destination.
    """
    sources = check.sources(w)
    if w.step.pure:
        return arithmetic.results(w, values, sources) if any(s is not None for s in sources) else None
    return _RULES.get(w.name, _combined)(check, w, x, values, sources)


def _offset(w: Instrumented) -> np.uint64:
    """Constant offset of the first address operand."""
    for o in w.instruction.operands:
        if isinstance(o, Address):
            return np.uint64((0 if o.base is None else o.offset) & 0xFFFF_FFFF_FFFF_FFFF)
    return np.uint64(0)


def _addresses(w: Instrumented, base: Lanes) -> Addresses:
    return widen(base.view(f"u{base.dtype.itemsize}")) + _offset(w)


def _moved(check: InitCheck, w: Instrumented, x: Group, given: list[Lanes]) -> list[Lanes]:
    """The instruction executed on undefined bits; bits of each destination."""
    with LOCK:
        found = w.step.call(check.mirror.group(x), *given)
    if not w.destinations:
        return []
    out = []
    for v, d in zip(result_tuple(found), w.destinations, strict=True):
        assert v is not None
        out.append(from_data(v, d.type))
    return out


def _loaded(check: InitCheck, w: Instrumented, x: Group, where: str, base: Lanes | None = None) -> NDArray[np.int32]:
    """The number of this execution as the origin of what it loads; ``base`` are the addresses of the lanes, if known."""
    addresses = None if base is None else _addresses(w, base)
    return np.full((1, 1, 1), check.origins.load(x, w.where, where, addresses), np.int32)


def _elements(check: InitCheck, w: Instrumented, x: Group, base: Lanes, bits: list[Lanes]) -> list[Shadow | None]:
    """What a load finds undefined, with an origin for each element of a vector."""
    addresses = _addresses(w, base)
    found: list[Shadow | None] = []
    for n, (b, d) in enumerate(zip(bits, w.destinations, strict=True)):
        size = d.type.bits // 8
        if not b.any():
            found.append(None)
            continue
        number = check.origins.load(x, w.where, w.space, addresses + np.uint64(n * size), b, size)
        found.append(shadow(b, np.full((1, 1, 1), number, np.int32)))
    return found


def _global_parts(w: Instrumented, x: Group, base: Lanes) -> list[Group]:
    """The threads of ``x`` that access global memory."""
    where = w.space
    if where == "":
        parts = by_space(x, np.broadcast_to(_addresses(w, base), x.shape))
        return [part for name, part, _ in parts if name == "global"]
    return [x] if where == "global" else []


def _data(w: Instrumented, sources: Sources, values: tuple[Lanes, ...], first: int) -> list[Lanes]:
    """The sources with undefined bits from the ``first`` on, and values before it."""
    return [v if k < first else as_data(sources[k], w.sources[k].type) for k, v in enumerate(values)]


@rule("ld", "ldu")
def _load(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> Found | None:
    """ld: its result is what memory holds."""
    if not w.sources:
        return None  # a parameter of the kernel
    check.require(w, x, sources[0], "reads memory at")
    if not check.follows(w, x, values[0]):
        return None
    bits = _moved(check, w, x, list(values))
    if x.mask is not None:  # what the other lanes would read is no result
        bits = [np.where(x.mask, b, b.dtype.type(0)) for b in bits]
    if not any(b.any() for b in bits):
        return None
    return _elements(check, w, x, values[0], bits)


def _store(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> None:
    """st: undefined values may go to shared and local memory, where loads find them, but only padding to global memory."""
    check.require(w, x, sources[0], "writes memory at")
    if any(s is not None for s in sources[1:]):
        parts = _global_parts(w, x, values[0])
        uses = [padding.refused(check, w, sources, k) for k in range(1, len(sources))] if parts else []
        for part in parts:
            for use in uses:
                check.require(w, part, use, "writes to global memory")
        if parts:
            check.stored_undefined = lambda: _mark(check, w, parts, _addresses(w, values[0]), sources[1:])
    if check.follows(w, x, values[0]):
        _moved(check, w, x, _data(w, sources, values, 1))


def _mark(check: InitCheck, w: Instrumented, parts: list[Group], addresses: Addresses, stored: Sources) -> None:
    for part in parts:
        padding.mark(check, w, part, addresses, stored)


@rule("atom")
def _atomic(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> Found | None:
    """atom and red: neither the operands nor, except for an exchange, the old value may be undefined."""
    check.require(w, x, sources[0], "updates memory at")
    for s in sources[1:]:
        check.require(w, x, s, "updates memory with")
    if not check.follows(w, x, values[0]):
        return None
    inner = check.mirror.group(x)
    zeros = [as_data(None, s.type) for s in w.sources[1:]]
    with LOCK:
        found = w.step.call(inner, values[0], *zeros)
    bits: list[Mask] = [
        np.any(np.ascontiguousarray(v).view(np.uint8).reshape(*v.shape, -1), -1)
        for v in result_tuple(found)
        if v is not None
    ]
    if not any((np.broadcast_to(b, x.shape) & x.active()).any() for b in bits):
        return None
    origin = _loaded(check, w, x, w.space, values[0])
    if "exch" not in w.parts:
        for b in bits:
            check.require(w, x, shadow(b, origin), "updates memory that holds")
        return None
    return [shadow(every(b, unsigned(d.type)), origin) for b, d in zip(bits, w.destinations, strict=False)]


@rule("ldmatrix", "stmatrix")
def _matrix_rows(
    check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources
) -> Found | None:
    """ldmatrix and stmatrix: with fewer than four matrices the last lanes' addresses do not count."""
    count = next((int(p[1:]) for p in w.parts if p in ("x1", "x2", "x4")), 4)
    address = sources[0]
    if address is not None and count < 4:
        givers = np.arange(32)[None, None] < 8 * count
        address = shadow(np.where(givers, address.bits, address.bits.dtype.type(0)), address.origin)
    check.require(w, x, address, "accesses shared memory at")
    if not check.mirror.tracks_memory:
        return None
    bits = _moved(check, w, x, _data(w, sources, values, 1))
    if not any(b.any() for b in bits):
        return None
    # the lanes that receive a row of a matrix are not the lane that provides its address
    origin = _loaded(check, w, x, "shared")
    return [shadow(b, origin) for b in bits]


@rule("multimem")
def _multimem(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> Found | None:
    """multimem on one device: a load, a store or a reduction."""
    as_rule = {"ld_reduce": _load, "st": _st, "red": _RULES["red"]}[w.parts[0]]
    return as_rule(check, w, x, values, sources)


@rule("tex", "tld4", "txq", "istypep", "suld", "suq", "sust", "sured")
def _texels(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> None:
    """Textures and surfaces: no operand may be undefined; their texels count as initialised."""
    for s in sources:
        check.require(w, x, s, "accesses texels with")


@rule("movmatrix", "shfl")
def _shuffle(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> Found | None:
    """shfl and movmatrix: bits move between the lanes of a warp."""
    if all(s is None for s in sources):
        return None
    steering = [None, *sources[1:]]
    if any(s is not None for s in steering):
        return computed(smeared(w, sources))
    first = sources[0]
    assert first is not None
    given = np.ascontiguousarray(np.broadcast_to(as_data(first, w.sources[0].type), x.shape))
    found = w.step.call(check.mirror.group(x), given, *values[1:])
    moved = result_tuple(found)[0]
    assert moved is not None
    if w.name == "shfl":
        lanes = np.ascontiguousarray(np.broadcast_to(first.origin, x.shape)).view(np.uint32)
        shuffled = result_tuple(w.step.call(check.mirror.group(x), lanes, *values[1:]))[0]
        assert shuffled is not None
        whence = shuffled.view(np.int32)
    else:
        whence = np.broadcast_to(first.origin, x.shape).max(-1, keepdims=True)
    return [shadow(from_data(moved, w.destinations[0].type), whence)] + [None] * (len(w.destinations) - 1)


@rule("vote", "match", "redux")
def _vote(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> Found | None:
    """vote, match and redux: the result depends on all members; a ballot has a bit of its own for each."""
    if all(s is None for s in sources):
        return None
    lanes: Mask = np.zeros((1, 1, 1), np.bool_)
    for s in sources:
        if s is not None:
            lanes = lanes | s.lanes
    undefined = ballot(x, np.broadcast_to(lanes, x.shape), values[-1])
    origin = np.broadcast_to(origins(sources), x.shape).max(-1, keepdims=True)
    if "ballot" in w.parts and sources[-1] is None:
        return computed([shadow(undefined, origin)])
    return computed([shadow(every(undefined != 0, unsigned(d.type)), origin) for d in w.destinations])


@rule("cp")
def _copied(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> None:
    """cp.async and its relatives: operands are addresses, sizes and coordinates; bytes move with what is undefined of them."""
    for s in sources:
        check.require(w, x, s, "copies with")
    if not check.mirror.tracks_memory or _MOVES_NOTHING & set(w.parts) or not w.sources:
        return
    inner = check.mirror.group(x)
    with LOCK:
        if _writes_global(w):
            for base, undefined in check.mirror.memory.written(lambda: w.step.call(inner, *values)).items():
                if not padding.is_padding(undefined):
                    check.stored(w, x, base, int(np.count_nonzero(undefined)))
                octets = np.uint64(base) + np.flatnonzero(undefined).astype(np.uint64)
                padding.mark_bytes(check, octets, f"{named(w.where)} copies uninitialised shared memory")
            w.step.call(inner, *values)
        else:
            check.mirror.issued(lambda: w.step.call(inner, *values))


_MOVES_NOTHING = {"prefetch", "commit_group", "wait_group", "wait_all", "mbarrier"}


def _writes_global(w: Instrumented) -> bool:
    """Whether a bulk operation writes global memory: its first state space is the destination's."""
    first = next((p for p in w.parts if p.partition("::")[0] in ("global", "shared")), "")
    return first == "global"


def _sent(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> None:
    """st.async and red.async: the last operands are values."""
    first = 1 if "release" in w.parts else 2
    for s in sources[:first]:
        check.require(w, x, s, "writes memory at")
    if check.mirror.tracks_memory and w.name == "st":
        check.mirror.issued(lambda: _moved(check, w, x, _data(w, sources, values, first)))


def _bulk_store(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> None:
    """st.bulk writes zeros."""
    for s in sources:
        check.require(w, x, s, "writes shared memory with")
    if check.mirror.tracks_memory:
        w.step.call(check.mirror.group(x), *values)


@rule("st")
def _st(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> None:
    if "async" in w.parts:
        _sent(check, w, x, values, sources)
    elif "bulk" in w.parts:
        _bulk_store(check, w, x, values, sources)
    else:
        _store(check, w, x, values, sources)


@rule("red")
def _red(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> Found | None:
    if "async" in w.parts:
        _sent(check, w, x, values, sources)
        return None
    return _atomic(check, w, x, values, sources)


@rule("wmma")
def _wmma(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> Found | None:
    """wmma.load, wmma.store and wmma.mma."""
    if w.parts[0] == "mma":
        return _mma(check, w, x, values, sources)
    store = w.parts[0] == "store"
    addresses = len(sources) - (len(w.sources) - 2 if store else 0)
    addresses = min(addresses, 2)
    for s in sources[:addresses]:
        check.require(w, x, s, "accesses memory at")
    if store:
        for part in _global_parts(w, x, values[0]):
            for s in sources[2:]:
                check.require(w, part, s, "writes to global memory")
    if not check.mirror.tracks_memory:
        return None
    bits = _moved(check, w, x, _data(w, sources, values, 2))
    if not any(b.any() for b in bits):
        return None
    origin = _loaded(check, w, x, w.space)
    return [shadow(b, origin) for b in bits]


@rule("mma")
def _mma(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> Found | None:
    if all(s is None for s in sources):
        return None
    return computed(multiplied(w, x, values, sources, check.mirror))


@rule("wgmma")
def _wgmma(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> Found | None:
    if w.parts[0] != "mma_async":
        return None
    if not check.mirror.tracks_memory and all(s is None for s in sources):
        return None
    count = len(w.destinations)
    for s in sources[count : count + 2]:
        check.require(w, x, s, "multiplies with")

    origin = partial(_loaded, check, w, x, "shared")
    return computed(multiplied_from_shared(w, x, values, sources, check.mirror, origin))


@rule("clusterlaunchcontrol")
def _cancelled(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> None:
    """clusterlaunchcontrol.try_cancel writes its response to shared memory."""
    for s in sources:
        check.require(w, x, s, "requests a cluster with")
    if check.mirror.tracks_memory:
        check.define(x, _addresses(w, values[0]), 16)


@rule("tcgen05")
def _tcgen05(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> Found | None:
    """tcgen05: loads, stores and copies move undefined bits; products follow them when they are performed."""
    what = w.parts[0]
    addresses = len(sources) if what != "st" else 1
    for s in sources[:addresses]:
        check.require(w, x, s, "accesses tensor memory with")
    if not check.mirror.tracks_memory:
        return None
    x.wave.part(TensorMemory).follow(check.mirror.group(x).wave)
    if what == "alloc":
        check.define(x, _addresses(w, values[0]), 4)
    if what not in ("ld", "st", "cp", "shift"):
        return None
    bits = _moved(check, w, x, _data(w, sources, values, addresses))
    if not any(b.any() for b in bits):
        return None
    return [shadow(b, _loaded(check, w, x, "tensor")) for b in bits]


@rule("mbarrier", "bar", "barrier")
def _barrier(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> Found | None:
    for s in sources:
        check.require(w, x, s, "synchronises with")
    return None


@rule("tensormap")
def _tensormap(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> None:
    """Writes fields of a tensor map, which counts as initialised from then on."""
    for s in sources:
        check.require(w, x, s, "changes a tensor map with")
    if check.mirror.tracks_memory:
        check.define(x, _addresses(w, values[0]), 128)


@rule("prefetch", "prefetchu", "nanosleep", "applypriority", "discard", "createpolicy")
def _nothing(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> None:
    """A hint, which may be given anything."""


@rule("activemask", "cvt", "cvta", "elect", "getctarank", "isspacep", "mapa")
@rule("fence", "griddepcontrol", "membar", "pmevent", "setmaxnreg")
def _combined(check: InitCheck, w: Instrumented, x: Group, values: tuple[Lanes, ...], sources: Sources) -> Found | None:
    """No access to memory: a destination depends on all sources of its lane."""
    return computed(smeared(w, sources)) if w.destinations and any(s is not None for s in sources) else None
