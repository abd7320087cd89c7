"""Opcodes whose modifiers stand in another order than in the patterns of the instruction table.

ptxas reads an opcode as a name, which may have several parts (``mul.lo``, ``cp.async.bulk``), and modifiers in any order.
Only modifiers of the same kind keep their order: types (destination and source), state spaces (of two addresses), layouts,
and others in :data:`_KINDS`. ``tests/emulator/instructions/test_modifier_orders.py`` compares this with ptxas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ptxkit.emulator.simt.opcode_patterns import PIECE, flag_name

_NAMES = tuple(
    re.compile(text)
    for text in (
        r"bar\.warp\.sync",
        r"barrier\.cluster\.(arrive|wait)",
        r"barrier\.cta(\.(arrive|red))?",
        r"(bar(\.cta)?|barrier)\.(sync|arrive|red)",
        r"cp\.async\.bulk(\.prefetch)?\.tensor",
        r"cp\.async\.bulk\.(prefetch|commit_group|wait_group)",
        r"cp\.async\.(bulk|commit_group|wait_group|wait_all|mbarrier\.arrive)",
        r"cp\.async",
        r"cp\.reduce\.async\.bulk(\.tensor)?",
        r"clusterlaunchcontrol\.(try_cancel\.async|query_cancel)",
        r"createpolicy\.\w+",
        r"cvt\.pack",
        r"cvta\.to",
        r"div\.full",
        r"(dp2a|mul|mul24)\.(lo|hi|wide)",
        r"(mad|madc|mad24)\.(lo|hi|wide)",
        r"(fence|membar)\.proxy",
        r"mbarrier\.(arrive|arrive_drop)\.expect_tx",
        r"mbarrier\.(test_wait|try_wait)\.parity",
        r"(mbarrier|griddepcontrol|multimem|setmaxnreg|tcgen05|tensormap|wgmma)\.\w+",
        r"(red|st)\.async",
        r"st\.bulk",
        r"shf\.[lr]",
        r"wmma\.(load\.[abc]|store\.d|mma)",
        r"tex\.(base|level|grad)",
        r"txq\.level",
        r"suld\.b",
        r"(sust|sured)\.[bp]",
        r"\w+",
    )
)
"""Names of more than one part. The first that matches the beginning of an opcode is its name."""

_KINDS = tuple(
    re.compile(text)
    for text in (
        r"(global|const|local|param|shared)(::\w+)?",
        r"row|col",
        r"and|or|xor|popc",
        r"L2::evict_\w+",
    )
)


_TYPE = re.compile(r"(?!b1024)[bsu]\d+(x\d+(_p\d+)?)?|(b|t)?f\d+(x\d)?|u?e\dm\d(x\d)?|s2f6x2|pred")


def is_type(part: str) -> bool:
    """Whether a part of an opcode is a type. Types keep their order."""
    return _TYPE.fullmatch(part) is not None


def name_of(opcode: str) -> str:
    """The parts of an opcode that are its name."""
    for name in _NAMES:
        m = name.match(opcode)
        if m is not None and opcode[m.end() : m.end() + 1] in ("", "."):
            return m[0]
    return opcode


def _kind(part: str) -> int:
    """Modifiers of the same kind keep their order; -1: any order."""
    if is_type(part):
        return len(_KINDS)
    return next((n for n, kind in enumerate(_KINDS) if kind.fullmatch(part)), -1)


class Pieces:
    """The pieces of a pattern, each with the modifiers that it matches.

    Args:
        pattern, sets: as for an entry of the instruction table.
    """

    def __init__(self, pattern: str, sets: Mapping[str, str]) -> None:
        self._pieces: list[tuple[str, tuple[tuple[str, ...], ...], bool]] = []
        for m in PIECE.finditer(pattern):
            name = m["oset"] or m["rset"]
            if name:
                members = tuple(tuple(member.split(".")) for member in sets[name].split())
                self._pieces.append((name, members, bool(m["oset"])))
            elif m["oflag"]:
                self._pieces.append((flag_name(m["oflag"]), ((m["oflag"],),), True))
            else:
                self._pieces.append(("", ((m["literal"].removeprefix("."),),), False))
        self.largest = sum(max(map(len, members)) for _, members, _ in self._pieces)
        self.words = frozenset(word for _, members, _ in self._pieces for member in members for word in member)
        self.required = frozenset(members[0][0] for name, members, _ in self._pieces if not name)

    def match(self, parts: Sequence[str], fixed: int) -> tuple[str, dict[str, str]] | None:
        """The opcode in the order of the pattern, and the modifier of each named piece, "" for an absent one.

        None if the parts are not those of the pattern. The first ``fixed`` parts, the name, must match the first pieces in
        this order.
        """
        if len(parts) > self.largest or not self.words.issuperset(parts) or not self.required.issubset(parts):
            return None
        kinds = [_kind(p) for p in parts]
        found: dict[str, str] = {}
        if not self._match(0, parts, kinds, fixed, frozenset(range(len(parts))), found):
            return None
        words = [found[name] if name else members[0][0] for name, members, _ in self._pieces]
        return ".".join(w for w in words if w), found

    def _match(
        self, n: int, parts: Sequence[str], kinds: list[int], fixed: int, left: frozenset[int], found: dict[str, str]
    ) -> bool:
        """Whether the pieces from ``n`` on match the parts ``left``."""
        if n == len(self._pieces):
            return not left
        name, members, optional = self._pieces[n]
        for member in members:
            taken = _take(member, parts, kinds, fixed, left)
            if taken is not None and self._match(n + 1, parts, kinds, fixed, left - taken, found):
                if name:
                    found[name] = ".".join(member)
                return True
        if optional and self._match(n + 1, parts, kinds, fixed, left, found):
            found[name] = ""
            return True
        return False


def _take(
    member: tuple[str, ...], parts: Sequence[str], kinds: list[int], fixed: int, left: frozenset[int]
) -> frozenset[int] | None:
    """The indices of the parts that make up ``member``; None if one is not there, or another must be taken before it."""
    taken: set[int] = set()
    for word in member:
        free = sorted(left - taken)
        if not free:
            return None
        if free[0] < fixed:
            found = free[0] if parts[free[0]] == word else None
        else:
            found = next((k for k in free if parts[k] == word), None)
            if found is not None and kinds[found] >= 0 and any(kinds[k] == kinds[found] for k in free if k < found):
                return None
        if found is None:
            return None
        taken.add(found)
    return frozenset(taken)
