"""Brings the modifiers of matrix opcodes into the order of the manual.

ptxas takes the modifiers of these instructions in any order (``mma.sync.aligned.row.col.m16n8k16...`` too). Modifiers
are sorted; layouts and types keep their order, which distinguishes A from B.
"""

from __future__ import annotations

import re

from ptxkit.emulator.simt.table import respell

_ORDER: dict[str, tuple[str, ...]] = {
    "mma": (
        r"sp|sp::ordered_metadata",
        "sync",
        "aligned",
        r"m\d+n\d+k\d+",
        "row|col",
        r"kind::\w+",
        "block_scale",
        r"scale_vec::\dX",
        "satfinite",
        "type",
        "rn|rz|rm|rp",
        "and|xor",
        "popc",
    ),
    "wmma.mma": ("and|xor", "popc", "sync", "aligned", "row|col", r"m\d+n\d+k\d+", "type", "rn|rz|rm|rp", "satfinite"),
    "wmma.load": ("a|b|c", "sync", "aligned", "row|col", r"m\d+n\d+k\d+", "global|shared|shared::cta", "type"),
    "wmma.store": ("d", "sync", "aligned", "row|col", r"m\d+n\d+k\d+", "global|shared|shared::cta", "type"),
    "wgmma.mma_async": ("sp", "sync", "aligned", r"m\d+n\d+k\d+", "satfinite", "type", "and|xor", "popc"),
    "ldmatrix": ("sync", "aligned", r"m\d+n\d+", "x1|x2|x4", "trans", "shared|shared::cta", "type"),
    "stmatrix": ("sync", "aligned", r"m\d+n\d+", "x1|x2|x4", "trans", "shared|shared::cta", "type"),
    "movmatrix": ("sync", "aligned", r"m\d+n\d+", "trans", "type"),
}
_TYPE = (
    r"f16|bf16|tf32|f32|f64|e4m3|e5m2|e3m2|e2m3|e2m1|ue8m0|ue4m3|s8|u8|s4|u4|b1|s32|b8|b16|b8x16|b6x16_p32|b4x16_p64"
)


@respell("mma", "wmma", "wgmma", "ldmatrix", "stmatrix", "movmatrix")
def spelling(opcode: str) -> str | None:
    """The opcode with its parts in the manual's order; None where it has parts that no form has."""
    name, *parts = opcode.split(".")
    if name in ("wmma", "wgmma") and parts:
        name = f"{name}.{parts.pop(0)}"
    out = [name]
    for kind in _ORDER.get(name, ()):
        pattern = _TYPE if kind == "type" else kind
        mine = [p for p in parts if re.fullmatch(pattern, p)]
        out += mine
        parts = [p for p in parts if p not in mine]
    return None if parts else ".".join(out)
