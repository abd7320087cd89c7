"""Brings the modifiers of opcodes that access memory into the order of the manual.

ptxas takes the modifiers of these instructions in any order, and CUTLASS writes ``ld.global.acquire.gpu.b32`` where the manual
has ``ld.acquire.gpu.global.b32``. Modifiers are sorted; types keep their order.
"""

from __future__ import annotations

import re

from ptxkit.emulator.simt.table import respell

_SPACE = r"(global|const|local|param|shared)(::\w+)?"
_HEAD = (r"weak|relaxed|acquire|release|acq_rel|volatile|mmio", r"cta|cluster|gpu|sys", _SPACE)
_CACHE = (r"L1::\w+", r"L2::evict_\w+", r"L2::cache_hint", r"L2::\d+B")
_REST = (r"v[248]", r"[busf]\d+|b?f16(x2)?")
_ATOMIC = (*_HEAD, r"and|or|xor|cas|exch|add|inc|dec|min|max", r"noftz", r"L2::cache_hint", *_REST)
_ORDER = {
    "ld": (*_HEAD, r"ca|cg|cs|lu|cv", r"nc", *_CACHE, *_REST),
    "st": (*_HEAD, r"wb|cg|cs|wt", *_CACHE, *_REST),
    "ldu": (_SPACE, *_REST),
    "atom": _ATOMIC,
    "red": _ATOMIC,
}


@respell(*_ORDER)
def spelling(opcode: str) -> str | None:
    """The opcode with its parts in the manual's order; None where it has parts that no form has."""
    name, *parts = opcode.split(".")
    out = [name]
    for kind in _ORDER[name]:
        mine = [p for p in parts if re.fullmatch(kind, p)]
        out += mine
        parts = [p for p in parts if p not in mine]
    return None if parts else ".".join(out)
