"""Sets of registers as the bits of an integer."""

from __future__ import annotations


def members(bits: int) -> list[int]:
    """Positions of the set bits, few among many: a block touches some of a function's thousands of registers."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found
