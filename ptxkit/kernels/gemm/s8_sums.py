"""How long sums of products of 8-bit integers may be: the tensor cores add them in 32 bits, which wrap around."""

from __future__ import annotations

from collections.abc import Iterator

MOST_TERMS = (2**31 - 1) // 128**2  # of which each is at most 128²


def refused(dtype: str, **lengths: int) -> Iterator[str]:
    """A complaint about each sum of products that is too long for elements of ``dtype``.

    Args:
        lengths: the size that is the number of terms -> its value.
    """
    for name, terms in lengths.items():
        if dtype == "s8" and terms > MOST_TERMS:
            yield f"{name} must be at most {MOST_TERMS}, so that no sum of products of s8 exceeds 32 bits, not {terms}"
