"""Pure instructions: arithmetic, logic, comparison, conversion. Importing this fills the table."""

from ptxkit.emulator.instructions.arithmetic import (
    approximate,
    carry,
    compare,
    convert,
    floating,
    half,
    integer,
    logic,
    narrow_formats,
    packed_integer,
    selection,
    video,
)

__all__ = [
    "approximate",
    "carry",
    "compare",
    "convert",
    "floating",
    "half",
    "integer",
    "logic",
    "narrow_formats",
    "packed_integer",
    "selection",
    "video",
]
