"""The zero-column mask of tcgen05.mma.ws: columns of B that count as zero. PTX ISA, "Zero-Column Mask Descriptor".

The manual's text and its examples contradict each other in the meaning of the two spans. Here the examples are followed: runs
of ones (B counts as zero) have "skip span" + 1 columns, runs of zeros "use span" + 1.
"""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Lanes


def mask(bits: int, m: int, n: int) -> Lanes:
    """(n,) bool: which columns are zero.

    Args:
        bits: the descriptor.
        m: 32, 64 or 128: one mask covers n m / 128 columns.
    """
    if not bits >> 39 & 1:
        return np.zeros(n, np.bool_)
    ones, zeros = (bits >> 40 & 255) + 1, (bits >> 48 & 255) + 1
    parts = 128 // m
    found = []
    for k in range(parts):
        begins = bits >> 32 + k & 1
        at = np.arange(n // parts) + (bits >> 8 * k & 255)
        place = at % (ones + zeros)
        found.append(place < ones if begins else place >= zeros)
    return np.concatenate(found)


def shift(bits: int) -> int:
    """The number of columns by which B is shifted."""
    return bits >> 56 & 63


def refusal(bits: int, allowed: int) -> str:
    """Why the descriptor is invalid, naming the bits; "" if it is valid. ``allowed`` is the maximum shift."""
    if bits >> 36 & 7:
        return f"bits 36 to 38 are {bits >> 36 & 7}, which are reserved"
    if bits >> 62:
        return f"bits 62 and 63 are {bits >> 62}; the descriptor has 62 bits"
    if shift(bits) > allowed:
        return f"bits 56 to 61 (column shift) are {shift(bits)}; the instruction descriptor allows {allowed}"
    return ""
