"""Brings the modifiers of tensor copies, which ptxas accepts in several orders, into the order of the patterns."""

from __future__ import annotations

import re

from ptxkit.emulator.simt.table import respell

_ORDER = (
    "async",
    "bulk",
    "prefetch",
    "tensor",
    r"[1-5]d",
    r"global|shared::\w+|L2",
    r"tile(::\w+)?|im2col(\w|::\w)*",
    r"mbarrier::complete_tx::bytes|bulk_group",
    "multicast::cluster",
    r"cta_group::[12]",
    "L2::cache_hint",
)


@respell("cp")
def spelling(opcode: str) -> str | None:
    """The opcode with its parts in the order of the patterns; None where it has parts that no tensor copy has."""
    name, *parts = opcode.split(".")
    if "tensor" not in parts:
        return None
    out = [name]
    for kind in _ORDER:
        mine = [p for p in parts if re.fullmatch(kind, p)]
        out += mine
        parts = [p for p in parts if p not in mine]
    return None if parts else ".".join(out)
