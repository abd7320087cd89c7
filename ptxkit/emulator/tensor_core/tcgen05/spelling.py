"""Brings the modifiers of tcgen05 opcodes into the order of the manual.

ptxas accepts the modifiers in any order: CUTLASS writes ``.shared::cluster`` before ``.multicast::cluster``, Triton writes
``.warpx4.32x128b``.
"""

from __future__ import annotations

import re

from ptxkit.emulator.simt.table import respell

_GROUP = r"cta_group::[12]"
_ORDER: dict[str, tuple[str, ...]] = {
    "alloc": (_GROUP, "sync", "aligned", "exclusive", "shared::cta", "b32"),
    "dealloc": (_GROUP, "sync", "aligned", "b32"),
    "relinquish_alloc_permit": (_GROUP, "sync", "aligned"),
    "ld": (
        "red",
        "sync",
        "aligned",
        r"\d+x\d+b(x2)?",
        r"x\d+",
        "pack::16b",
        "min|max",
        "abs",
        "NaN",
        "b32|f32|u32|s32",
    ),
    "st": ("sync", "aligned", r"\d+x\d+b(x2)?", r"x\d+", "unpack::16b", "b32"),
    "commit": (_GROUP, "mbarrier::arrive::one", "shared::cluster", "multicast::cluster", "b64"),
    "cp": (_GROUP, r"\d+x\d+b", r"warpx\d(::\d+_\d+)?", "b8x16", "b6x16_p32|b4x16_p64"),
    "shift": (_GROUP, "down"),
    "mma": (
        "ws",
        "sp",
        _GROUP,
        r"kind::\w+",
        "block_scale",
        r"scale_vec::[124]X|block16|block32",
        "ashift",
        r"collector::\w+::\w+",
    ),
}


@respell("tcgen05")
def spelling(opcode: str) -> str | None:
    """The opcode with its parts in the manual's order; None where it has parts that no form has."""
    name, first, *parts = [*opcode.split("."), ""]
    parts = parts[:-1]
    out = [name, first]
    for kind in _ORDER.get(first, ()):
        mine = [p for p in parts if re.fullmatch(kind, p)]
        out += mine
        parts = [p for p in parts if p not in mine]
    return None if parts or first not in _ORDER else ".".join(out)
