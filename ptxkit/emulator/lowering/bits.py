"""Sets of registers as bit sets in Python integers."""

from __future__ import annotations


def members(bits: int) -> list[int]:
    """Positions of the set bits. It is fast for few set bits: a block uses few of a function's thousands of registers."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found
