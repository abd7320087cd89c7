"""Pure instructions: arithmetic, logic, comparison, conversion. Importing this fills the table."""

from ptxkit.emulator.alu import approximate, compare, convert, floating, half, integer, logic

__all__ = ["approximate", "compare", "convert", "floating", "half", "integer", "logic"]
