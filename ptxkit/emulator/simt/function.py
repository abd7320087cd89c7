"""The registers and the stack frame of a bound function."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from functools import cached_property

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
        find_uniform: finds :attr:`uniform`.
        find_timed: for the indices of the blocks of a loop, the bit set of the registers whose values depend on the clock; None
            if the clock can influence more than these; see :mod:`ptxkit.emulator.lowering.time_dependence`.
    """

    function: Function
    register_index: dict[str, int]
    register_types: list[PtxType]
    frame_offsets: dict[str, int]
    frame_bytes: int
    entry: int = 0
    undefined: tuple[int, ...] = ()
    find_uniform: Callable[[], int] = field(default=lambda: 0, repr=False, compare=False)
    find_timed: Callable[[Set[int]], int | None] = field(default=lambda _: None, repr=False, compare=False)

    @cached_property
    def uniform(self) -> int:
        """The bit set of the registers that have one value for all threads of a warp that execute an instruction together."""
        return self.find_uniform()
