"""The layout of variables: offsets in shared memory and stack frames, addresses of module variables, kernel parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ptxkit.isa.model import Function, Instruction, Module, SpecialRegister, Symbol, Variable, symbols_in

SHARED_BASE = 1024
"""First shared-memory address of a CTA: the bytes below are reserved, as on hardware since sm_90. 0 is a null pointer."""

CLUSTER_RANK_SHIFT = 24
"""Lowest bit of the cluster rank in an address of shared memory, as on sm_90. Rank 0 leaves an address unchanged."""

CODE_BASE = 0x1000
"""Address of the first function, for indirect calls; the next ones follow at distances of ``CODE_STEP``."""
CODE_STEP = 0x100


def align_up(value: int, alignment: int) -> int:
    """The next multiple of ``alignment`` (bytes)."""
    return -(-value // alignment) * alignment


@dataclass
class Layout:
    """The addresses of variables and functions for one kernel.

    Attributes:
        globals: module variable in global or constant memory -> (address, bytes).
        constants: those of them in constant memory.
        shared: shared variable -> offset, from :data:`SHARED_BASE`.
        shared_bytes: static shared memory, dynamic left out.
        ranked: the code may access other CTAs of the cluster, so that shared addresses must contain the rank.
        dynamic_base: where unsized ``extern .shared`` arrays start.
        functions: function -> code address.
        params: kernel parameter -> (offset, bytes) in the parameter buffer.
        param_bytes: size of that buffer.
    """

    globals: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    constants: frozenset[str] = frozenset()
    shared: dict[str, int] = field(default_factory=dict)
    shared_bytes: int = 0
    ranked: bool = False
    dynamic_base: int = SHARED_BASE
    functions: dict[str, int] = field(default_factory=dict)
    params: dict[str, tuple[int, int]] = field(default_factory=dict)
    param_bytes: int = 0

    def space_of(self, name: str, function: Function) -> str:
        """State space of the variable ``name`` within ``function``; "" if there is no such variable."""
        own = function.variables.get(name) or next(
            (v for v in (*function.params, *function.returns) if v.name == name), None
        )
        if own is not None:
            return own.space
        if name in self.shared:
            return "shared"
        return "const" if name in self.constants else "global" if name in self.globals else ""


def parameter_offsets(params: Iterable[Variable]) -> tuple[dict[str, tuple[int, int]], int]:
    """Offsets and sizes of kernel parameters, each at its declared alignment, and the buffer's size in bytes."""
    offsets, at = {}, 0
    for p in params:
        at = align_up(at, max(p.align, 1))
        offsets[p.name] = (at, p.bytes)
        at += p.bytes
    return offsets, at


def callees(module: Module, entry: Function) -> list[Function]:
    """The kernel and every function that it can call; for an indirect call, every function whose address is taken."""
    # code that loads from a table of function pointers may call each of its functions
    pointed = {symbol for v in module.variables.values() for _, symbol, *_ in v.relocations}
    seen: dict[str, Function] = {}
    todo = [entry, *(f for name, f in module.functions.items() if name in pointed)]
    while todo:
        f = todo.pop(0)
        if f.name in seen or f.declared_only or (f.is_entry and f is not entry):
            continue
        seen[f.name] = f
        named = {o.name for i in f.instructions for o in i.operands if isinstance(o, Symbol)}
        todo += [g for name, g in module.functions.items() if name in named]
    return list(seen.values())


def make_layout(module: Module, entry: Function, globals_: Mapping[str, tuple[int, int]]) -> Layout:
    """Assign addresses to the variables and functions that the kernel ``entry`` uses.

    A kernel gets those shared variables of the module that it, or a function that it can call, names. ptxas does the same.
    """
    functions = callees(module, entry)
    constants = frozenset(v.name for v in module.variables.values() if v.space == "const")
    ranked = any(_sees_ranks(i) for f in functions for i in f.instructions)
    layout = Layout(globals=globals_, constants=constants, ranked=ranked)
    used = {name for f in functions for i in f.instructions for o in i.operands for name in symbols_in(o)}
    shared = [v for v in module.variables.values() if v.space == "shared" and v.name in used]
    for f in functions:
        shared += [v for v in f.variables.values() if v.space == "shared"]
    at = SHARED_BASE
    unsized = []
    for v in shared:
        if v.bytes == 0:
            unsized.append(v)
            continue
        at = align_up(at, max(v.align, 1))
        layout.shared[v.name] = at
        at += v.bytes
    layout.shared_bytes = at - SHARED_BASE
    # all extern arrays start at the same address, after the static variables, as on hardware
    layout.dynamic_base = align_up(at, max([16, *(v.align for v in unsized)]))
    for v in unsized:
        layout.shared[v.name] = layout.dynamic_base
    for n, f in enumerate(module.functions.values()):
        layout.functions[f.name] = CODE_BASE + n * CODE_STEP
    layout.params, layout.param_bytes = parameter_offsets(entry.params)
    return layout


def _sees_ranks(i: Instruction) -> bool:
    special = any(isinstance(o, SpecialRegister) and "cluster" in o.name for o in i.operands)
    return (
        special or i.name in ("mapa", "getctarank", "isspacep") or "cluster" in i.opcode or "cta_group::2" in i.opcode
    )


def frame_layout(function: Function) -> tuple[dict[str, int], int]:
    """Stack offsets of a function's local and call-parameter variables, and the size of its frame in bytes."""
    offsets, at = {}, 0
    for v in function.variables.values():
        if v.space in ("local", "param"):
            at = align_up(at, max(v.align, 4))
            offsets[v.name] = at
            at += max(v.bytes, 4)
    return offsets, align_up(at, 16)


_PART = re.compile(r"(?P<enum>L?)(?P<number>[1-9]\d*)|L[a-z]n?[0-9a-f]+E|A\d+_|Dv\d+_|DF\d+|[ST][0-9A-Z]*_")
"""A length that a name follows, or something else with digits: a literal, an array, a vector, a type or a substitution."""
_VALUE = re.compile(r"n?\d+E")
_TAIL = re.compile(r"E?(_\d+)?(_\$_\d+)?$")


def plain(name: str) -> str:
    """The source name of a variable: the last name in a mangled one (Itanium C++ ABI, "Mangling").

    ``_ZZ1fvE3sum_$_1`` -> ``sum``, ``_ZN2ns4tileE`` -> ``tile``, ``_ZL5table`` -> ``table``; names that are not mangled are
    returned unchanged.
    """
    if not name.startswith("_Z"):
        return name
    at, last = 2, name
    while at < len(name):
        part = _PART.match(name, at)
        if part is None:
            at += 1
            continue
        at = part.end()
        if part["number"]:  # the name is skipped, because it may contain digits itself
            end = at + int(part["number"])
            if end <= len(name):
                last = name[at:end] if _TAIL.fullmatch(name, end) else last
                value = _VALUE.match(name, end) if part["enum"] else None  # of a template argument, after its type
                at = end if value is None else value.end()
    return last
