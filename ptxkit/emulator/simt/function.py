"""The registers and the stack frame of a bound function."""

from __future__ import annotations

from dataclasses import dataclass

from ptxkit.isa.model import Function
from ptxkit.isa.types import PtxType


@dataclass
class FunctionCode:
    """A bound function.

    Attributes:
        register_index: name -> number of each register; ``register_types`` by number.
        frame_offsets: variables in local memory -> byte offset in the function's stack frame of ``frame_bytes``.
        entry: index of its first block.
        undefined: registers that are read before they are written on some path from the entry.
    """

    function: Function
    register_index: dict[str, int]
    register_types: list[PtxType]
    frame_offsets: dict[str, int]
    frame_bytes: int
    entry: int = 0
    undefined: tuple[int, ...] = ()
