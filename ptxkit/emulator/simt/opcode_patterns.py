"""Opcode patterns of the instruction table: their regular expressions, and the operand types of a form.

A pattern is written as in the PTX manual: ``add{.<rnd>}{.ftz}.f32`` has the required name ``<rnd>`` of a set, which is
optional here because of the braces, and the optional literal ``ftz``. A *form* is an opcode that a pattern has matched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ptxkit.isa.types import TYPES, PtxType

CARRY = "cc"
"""Pseudo type of the carry flag CC.CF, an implicit operand of add.cc, addc, and others; it is stored as bool lanes."""

CARRY_TYPE = PtxType(CARRY, 1, "p", TYPES["pred"].dtype)


@dataclass(frozen=True)
class Form:
    """The parts of an opcode, according to the pattern that matched it.

    Attributes:
        opcode: the whole opcode.
        parts: the text of every optional literal and the member of every named set of the pattern; "" when absent.
        pair: whether the instruction has a second destination, ``p|q``.
    """

    opcode: str
    parts: Mapping[str, str]
    pair: bool = True

    def __getitem__(self, name: str) -> str:
        return self.parts[name]

    def get(self, name: str, default: str = "") -> str:
        """The part, or ``default`` when the pattern does not have it."""
        return self.parts.get(name, default)

    def has(self, name: str) -> bool:
        """Whether the opcode has this optional part."""
        return bool(self.parts.get(name))


Signature = Callable[[Form], tuple[tuple[PtxType, ...], tuple[PtxType, ...]]]
"""The types of the destinations and of the sources of a form."""

PIECE = re.compile(
    r"\{\.<(?P<oset>\w+)>\}|\.<(?P<rset>\w+)>|\{\.(?P<oflag>[\w:]+)\}|(?P<literal>\.?[\w:]+)",
)


def flag_name(flag: str) -> str:
    """The name of an optional literal in the parts of a form: a Python identifier."""
    return re.sub(r"[^0-9a-zA-Z_]", "_", flag)


def expression_of(pattern: str, sets: Mapping[str, str]) -> tuple[str, set[str]]:
    """The text of the regular expression that an opcode pattern stands for, and the names of its groups."""
    out, at = "", 0
    used, flags = set(), set()
    while at < len(pattern):
        m = PIECE.match(pattern, at)
        if m is None:
            raise ValueError(f"bad opcode pattern {pattern!r} at {pattern[at:]!r}")
        if m["oset"] or m["rset"]:
            name = m["oset"] or m["rset"]
            if name not in sets:
                raise ValueError(f"{pattern!r}: no members given for <{name}>")
            used.add(name)
            # longest first, so that "x2" does not hide "x2.trans"-like members
            members = "|".join(re.escape(s) for s in sorted(sets[name].split(), key=len, reverse=True))
            out += rf"(?:\.(?P<{name}>{members}))" + ("?" if m["oset"] else "")
        elif m["oflag"]:
            flag = m["oflag"]
            group = f"flag_{flag_name(flag)}"
            flags.add(group)
            out += rf"(?P<{group}>\.{re.escape(flag)})?"
        else:
            out += re.escape(m["literal"])
        at = m.end()
    if set(sets) - used:
        raise ValueError(f"{pattern!r} does not use the sets {sorted(set(sets) - used)}")
    return out, used | flags


_WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def signature_of(pattern: str, sig: str | None, arity: int | None) -> Signature:
    if sig is None:
        if arity is None:
            raise ValueError(f"{pattern!r}: bind=True needs sig")

        def default(form: Form) -> tuple[tuple[PtxType, ...], tuple[PtxType, ...]]:
            t = TYPES[form.opcode.rsplit(".", 1)[1]]
            return (t,), (t,) * arity

        return default
    left, right = (side.strip() for side in sig.split("="))
    destinations = [s.strip() for s in left.split(",") if s.strip()]
    sources = [s.strip().rstrip("?") for s in right.split(",") if s.strip()]

    def resolve(name: str, form: Form) -> PtxType:
        if name == CARRY:
            return CARRY_TYPE
        m = re.fullmatch(r"wide\((\w+)\)", name)
        if m:
            return TYPES[_WIDER[form.get(m[1]) or m[1]]]
        return TYPES[form.get(name) or name]

    def given(form: Form) -> tuple[tuple[PtxType, ...], tuple[PtxType, ...]]:
        return tuple(resolve(d, form) for d in destinations), tuple(resolve(s, form) for s in sources)

    return given
