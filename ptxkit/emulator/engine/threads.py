"""Groups of threads that stand at the same instruction, and the frames that hold their registers.

A wave of C CTAs with W warps each has its lanes on three axes, (C, W, 32). A register is an array that broadcasts to that
shape: what is the same in the whole wave is (1, 1, 1), what depends on the CTA alone (C, 1, 1), and so on; numpy then computes
it once. A :class:`Group` selects some of the lanes: all, all under a mask, or a list of warps (rows) with or without a mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ptxkit.emulator.memory.allocations import poison

if TYPE_CHECKING:
    from ptxkit.emulator.counters.tally import Tally
    from ptxkit.emulator.engine.code import FunctionCode
    from ptxkit.emulator.engine.wave import Wave

Lanes: TypeAlias = Any  # a lane array: its shape and dtype are known to the engine, not to the type checker
Mask: TypeAlias = Any  # the same of bools


class Frame:
    """One activation of a function: the registers of every thread that is inside this call.

    Attributes:
        undefined: register -> which bits of it are not initialised, in the wave's shape; kept by a watch.
        undefined_bits: bit set of those registers.
    """

    __slots__ = (
        "back",
        "bindings",
        "depth",
        "dirty",
        "function",
        "groups",
        "local_base",
        "owned",
        "parent",
        "reg_returns",
        "registers",
        "serial",
        "undefined",
        "undefined_bits",
    )

    def __init__(
        self, function: FunctionCode, parent: Frame | None, local_base: int, bindings: dict[str, int], serial: int
    ) -> None:
        self.function = function
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.serial = serial
        self.registers: list[Any] = [None] * len(function.register_types)
        self.owned: list[bool] = [False] * len(function.register_types)
        self.local_base = local_base
        self.bindings = bindings
        self.dirty = False
        self.groups = 0
        self.back = -1
        self.reg_returns: list[tuple[int, int]] = []
        self.undefined: dict[int, Any] = {}
        self.undefined_bits = 0


class Group:
    """Threads of one frame at one block.

    Attributes:
        mask: which of the selected lanes take part, in the selection's shape; None when all do.
        c, w: CTA and warp index of each selected warp, for a selection by rows; None when every warp of the wave is selected.
        shape: of a full lane array under this selection: (C, W, 32), or (rows, 1, 32).
        lanes, warps: how many lanes take part, and warps with at least one.
        yielded: a failed wait; everybody else goes first.
    """

    __slots__ = (
        "_cache",
        "c",
        "frame",
        "lanes",
        "mask",
        "resume",
        "rows",
        "shape",
        "sub",
        "tally",
        "w",
        "warps",
        "wave",
        "yielded",
    )

    def __init__(self, wave: Wave, frame: Frame, c: Any, w: Any, mask: Mask | None, tally: Tally) -> None:
        self.wave = wave
        self.frame = frame
        self.c = c
        self.w = w
        self.rows = c is not None
        self.mask = mask
        self.tally = tally
        self.shape: tuple[int, int, int] = (len(c), 1, 32) if c is not None else wave.shape
        if mask is None:
            self.warps = self.shape[0] * self.shape[1]
            self.lanes = self.warps * 32
        else:
            self.lanes = int(np.count_nonzero(mask))
            self.warps = int(np.count_nonzero(mask.any(-1)))
        self.yielded = 0
        self.resume = 0
        self.sub = False
        self._cache: dict[str, Any] = {}

    # -- registers ---------------------------------------------------------------------------------------------------

    def select(self, value: Lanes) -> Lanes:
        """A wave-wide array as this selection sees it."""
        if not self.rows or value.size == 1:
            return value
        s0, s1, _ = value.shape
        if s0 > 1:
            return (value[self.c, self.w] if s1 > 1 else value[self.c, 0])[:, None]
        return value[0, self.w][:, None] if s1 > 1 else value

    def fetch(self, index: int) -> Any:
        """Register ``index`` as this selection sees it; None if it was never written."""
        value = self.frame.registers[index]
        return value if value is None else self.select(value)

    def store(self, index: int, value: Lanes) -> None:
        """Write register ``index`` for the lanes of this group alone."""
        frame = self.frame
        registers = frame.registers
        old = registers[index]
        if not self.rows:
            if self.mask is None:
                registers[index] = value
            elif old is None:
                registers[index] = value  # lanes outside the mask never had a value
            else:
                registers[index] = np.where(self.mask, value, old)
            return
        if not frame.owned[index]:
            if old is None:
                full = poison(value.dtype, self.wave.shape)
            else:
                full = np.empty(self.wave.shape, value.dtype)
                full[:] = old
            registers[index] = old = full
            frame.owned[index] = frame.dirty = True
        if self.mask is None:
            old[self.c, self.w] = np.broadcast_to(value, self.shape)[:, 0]
        else:
            rows = old[self.c, self.w][:, None]
            np.copyto(rows, value, where=self.mask)
            old[self.c, self.w] = rows[:, 0]

    # -- who takes part ----------------------------------------------------------------------------------------------

    def full_mask(self) -> Mask:
        """The lanes of this group in the wave's shape."""
        wave_shape = self.wave.shape
        if not self.rows:
            return np.ones(wave_shape, np.bool_) if self.mask is None else self.mask
        full = np.zeros(wave_shape, np.bool_)
        full[self.c, self.w] = True if self.mask is None else self.mask[:, 0]
        return full

    def active(self, shape: tuple[int, ...] | None = None) -> Mask:
        """The mask as an array of the selection's shape."""
        return np.ones(self.shape, np.bool_) if self.mask is None else self.mask

    def narrow(self, predicate: Mask) -> Group | None:
        """The lanes for which ``predicate`` holds too, for one predicated instruction; None if there are none."""
        if predicate.size == 1:
            return self if predicate.flat[0] else None
        mask = np.broadcast_to(predicate, self.shape) if self.mask is None else predicate & self.mask
        if not mask.any():
            return None
        part = Group.__new__(Group)
        part.wave, part.frame, part.c, part.w, part.rows = self.wave, self.frame, self.c, self.w, self.rows
        part.mask, part.shape, part.tally, part.yielded, part.resume = mask, self.shape, self.tally, 0, 0
        part.lanes = int(np.count_nonzero(mask))
        part.warps = self.warps
        part.sub = True
        part._cache = self._cache if mask is self.mask else {}
        for key in ("cta", "warp", "thread"):
            if key in self._cache:
                part._cache[key] = self._cache[key]
        return part

    def covers(self, shape: tuple[int, ...]) -> Mask | None:
        """The mask reduced to a smaller broadcast shape: True where any lane that shares the element takes part."""
        mask = self.mask
        if mask is None or mask.shape == shape:
            return mask
        axes = tuple(i for i in range(3) if shape[i] == 1 and mask.shape[i] != 1)
        return mask.any(axes, keepdims=True) if axes else mask

    # -- indices -----------------------------------------------------------------------------------------------------

    @property
    def cta(self) -> Lanes:
        """Index of each selected CTA within the wave, broadcastable to ``shape``."""
        value = self._cache.get("cta")
        if value is None:
            value = self._cache["cta"] = (
                np.asarray(self.c, np.int64)[:, None, None]
                if self.rows
                else np.arange(self.shape[0], dtype=np.int64)[:, None, None]
            )
        return value

    @property
    def warp(self) -> Lanes:
        """Index of each selected warp within its CTA, broadcastable to ``shape``."""
        value = self._cache.get("warp")
        if value is None:
            value = self._cache["warp"] = (
                np.asarray(self.w, np.int64)[:, None, None]
                if self.rows
                else np.arange(self.shape[1], dtype=np.int64)[None, :, None]
            )
        return value

    @property
    def thread(self) -> Lanes:
        """Index of each selected lane within the wave, in ``shape``."""
        value = self._cache.get("thread")
        if value is None:
            lane = np.arange(32, dtype=np.int64)
            value = self._cache["thread"] = (self.cta * self.wave.shape[1] + self.warp) * 32 + lane
        return value

    def first(self, bad: Mask) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """CTA coordinates and thread coordinates of the first lane for which ``bad`` holds."""
        i = tuple(int(k[0]) for k in np.nonzero(np.broadcast_to(bad, self.shape)))
        cta = int(self.c[i[0]]) if self.rows else i[0]
        warp = int(self.w[i[0]]) if self.rows else i[1]
        return self.wave.cta_coordinates(cta), self.wave.thread_coordinates(warp * 32 + i[2])


def merge(values: Any, old: Any, predicate: Mask) -> Any:
    """``values`` where ``predicate`` holds, else ``old``; an unwritten ``old`` does not matter."""
    if old is None:
        return values
    if predicate.size == 1:
        return values if predicate.flat[0] else old
    return np.where(predicate, values, old)
