"""The smallest write to global memory that a PTX text contains.

Where every write is at least as large as an element of an output, an element is written as a whole or not at all. Otherwise an
element may hold bytes that the kernel has not written, next to bytes that it has.
"""

from __future__ import annotations

import re
from functools import lru_cache

from ptxkit.isa.types import TYPES

WIDEST = 64
"""More bytes than any element has: the result where a text contains no write to global memory."""

_WRITE = re.compile(r"(?<![\w.%$])(?:st|red|atom)((?:\.[A-Za-z][\w:]*)+)")
_MASKED = ".cp_mask"
_ELSEWHERE = ("shared", "local", "param", "const")


@lru_cache(maxsize=64)
def smallest_store(ptx: str) -> int:
    """Bytes of the smallest store or atomic that may access global memory; 1 for bulk copies with a byte mask."""
    smallest = WIDEST
    for modifiers in set(_WRITE.findall(ptx)):
        parts = modifiers[1:].split(".")
        if any(part.partition("::")[0] in _ELSEWHERE for part in parts):
            continue
        t = next((TYPES[part] for part in reversed(parts) if part in TYPES), None)
        if t is not None:
            count = next((int(part[1:]) for part in parts if re.fullmatch(r"v\d", part)), 1)
            smallest = min(smallest, t.bits // 8 * count)
    return 1 if _MASKED in ptx else smallest
