"""The shapes of wgmma: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions", table of shapes."""

from __future__ import annotations

ROWS = 64
FLOAT_COLUMNS = tuple(range(8, 257, 8))
INTEGER_COLUMNS = (8, 16, 24, *range(32, 257, 16))


def columns_of(kind: str) -> tuple[int, ...]:
    """The numbers of columns of an instruction whose operands have elements of type ``kind``, s8, u8, b1 or a float type."""
    return INTEGER_COLUMNS if kind in ("s8", "u8", "b1") else FLOAT_COLUMNS


def columns_refused(kind: str, columns: int) -> str | None:
    """Why no instruction multiplies operands of type ``kind`` with this number of columns; None where one does."""
    if columns in (allowed := columns_of(kind)):
        return None
    step = "8" if allowed is FLOAT_COLUMNS else "16, or 8 or 24"
    return f"wgmma has no instruction for {kind} with {columns} columns: it takes multiples of {step}, up to {allowed[-1]}"
