"""Explains why ptxas rejects an instruction for a target, by naming the targets that support it.

ptxas only reports ``Instruction 'tcgen05.fence' not supported on .target 'sm_90a'``. The table below maps the quoted
name and the instruction to the rule of the targets that support it (:mod:`ptxkit.targets`). Sources: the "Target ISA
Notes" of the PTX ISA manual, checked against ptxas 13.5 for every target (``tests/compiler/test_explain.py`` repeats it
for a selection).
"""

from __future__ import annotations

import re

from ptxkit.targets import FEATURES, Target, needed_target, needs

_REFUSED = re.compile(
    r"(?:Instruction|Feature|Modifier) '(?P<what>[^']+)' "
    r"(?:not supported on \.target|cannot be compiled for architecture|requires \.target (?P<least>sm_\d+) or higher)"
)

_FAMILIES = ("sm_100f", "sm_110f", "sm_120f")

# Pattern over "<what ptxas quotes> <the instruction>", first match wins -> rule.
_RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"tcgen05\.ld\.red", ("sm_103f", "sm_110f")),
    (r"\.kind::i8\b", ("sm_100a", "sm_110a")),
    (
        r"\.scale_vec::.*tcgen05\.|tcgen05\..*\.scale_vec::|\.scale_vec::4X",
        ("sm_100a", "sm_103a", "sm_107a", "sm_110a"),
    ),
    (r"tcgen05\.", FEATURES["tcgen05"].rule),
    (r"\.cta_group::", FEATURES["tcgen05"].rule),
    (r"wgmma\.", FEATURES["wgmma"].rule),
    (r"setmaxnreg", FEATURES["setmaxnreg"].rule),
    (r"tensormap\.replace", FEATURES["tensormap.replace"].rule),
    (r"redux\S*\.f32", FEATURES["redux.f32"].rule),
    (r"block.scale|FP6/FP4|kind::f8f6f4|kind::mxf", FEATURES["mma.block_scale"].rule),
    (r"ldmatrix\S*\.m(16n16|8n16)|stmatrix\S*\.m16n8", _FAMILIES),
    (r"\.multicast::cluster::all", FEATURES["clusterlaunchcontrol.multicast"].rule),
    (r"^\.rs\b|cvt\.rs\.", ("sm_100a", "sm_103a", "sm_107a")),
    (r"cvt\S*(e2m1|e2m3|e3m2|ue8m0)|cvt with \.ue8m0", FEATURES["fp4"].rule),
    (r"unidirection proxy fence", ("sm_90",)),
)


def explain(message: str, instruction: str, target: Target) -> str | None:
    """An error of ptxas about the target, with the targets that support the instruction and one to use; None for other errors.

    Args:
        message: ptxas's text.
        instruction: the PTX line it points at, or ``""``.
        target: the target of the assembler.
    """
    match = _REFUSED.search(message)
    if not match:
        return None
    what = match["what"]
    rule = (match["least"],) if match["least"] else _rule(f"{what} {instruction}", target)
    if rule is None:
        return None
    wanted = needed_target(rule)
    return f"{_name(what, instruction)} needs {needs(rule)}; the target is {target}; compile for {wanted} (--arch {wanted})"


def lacks(message: str) -> str:
    """The part of an explanation that is the same for all instructions with the same rule; "" for another message."""
    found = re.search(r" needs sm_\w+.*; the target is .*$", message)
    return found[0] if found else ""


def _rule(text: str, target: Target) -> tuple[str, ...] | None:
    for pattern, rule in _RULES:
        if re.search(pattern, text) and not target.satisfies(rule):
            return rule
    return None


def _name(what: str, instruction: str) -> str:
    """The opcode when ptxas quotes only a modifier of it: ``cp.async.bulk.tensor.2d (.cta_group::1)``."""
    opcode = re.search(r"(?:^|[\s{;])([a-z][a-z0-9]*(?:\.[\w:]+)+)", instruction)
    if not what.startswith((".", "::")) or not opcode:
        return what
    return f"{opcode[1]} ({what})"
