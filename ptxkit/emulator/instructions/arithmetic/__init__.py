"""Pure instructions: arithmetic, logic, comparison, conversion. Importing the modules registers the instructions."""

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
