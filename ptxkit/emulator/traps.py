"""Stops at the first integer division by zero, NaN or infinity that a kernel produces. Hardware does not: a GPU has no trap for
any of these.

A NaN is produced by an instruction whose result is one while none of its operands is; infinity likewise. Operands are what the
instruction computes with: values that are loaded, moved, selected or exchanged between lanes were produced elsewhere, or were
there before the launch. For a matrix product the operands are all elements of its matrices, for a bulk reduction those of one
operation.

The first is the first in the order of emulation: of the lowest CTAs that are resident together, and of what one instruction
computes for all of them, the lowest CTA's lowest thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np

from ptxkit.emulator.arrays import Lanes, Mask
from ptxkit.emulator.simt.instrumented import Instrumented
from ptxkit.emulator.simt.threads import Group, WaveState
from ptxkit.emulator.simt.where import Where, named
from ptxkit.errors import ArithmeticTrap
from ptxkit.isa.types import PtxType

_ELEMENTS: dict[str, tuple[str, int]] = {
    "f16": ("f2", 1),
    "f32": ("f4", 1),
    "f64": ("f8", 1),
    "bf16": ("bf16", 1),
    "tf32": ("f4", 1),
    "f16x2": ("f2", 2),
    "bf16x2": ("bf16", 2),
    "f32x2": ("f4", 2),
}
"""Floating-point type of a register -> numpy type of its elements, and how many it holds."""

_COPIES = frozenset(("mov", "selp", "slct", "copysign", "abs", "neg", "ld", "ldu", "shfl", "set", "atom"))
"""Instructions that compute nothing, or a class or sign of what they are given. What atomics compute goes to memory."""

_MATRICES = frozenset(("mma", "wmma"))

Test = Callable[[Lanes], Mask]


class Traps:
    """Checks what instructions compute.

    Args:
        kinds: the conditions that are reported, of ``"div0"``, ``"nan"`` and ``"inf"``.
    """

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self.kinds = frozenset(kinds)

    def before(self, w: Instrumented, x: Group, values: tuple[Lanes, ...], guard: Mask | None) -> None:
        """An integer division is about to be executed.

        Raises:
            ArithmeticTrap: by zero.
        """
        if "div0" in self.kinds and w.name in ("div", "rem") and w.sources[1].type.kind in ("u", "s"):
            bad = values[1] == 0
            if bad.any():
                self._report(w.where, x, bad, guard, "divides an integer by zero")

    def after(
        self, w: Instrumented, x: Group, values: tuple[Lanes, ...], results: tuple[Lanes, ...], guard: Mask | None
    ) -> None:
        """An instruction has computed ``results``.

        Raises:
            ArithmeticTrap: a NaN or an infinity is among them that was not among the values.
        """
        if w.name in _COPIES or not {"nan", "inf"} & self.kinds or w.parts[:1] == ("load",):
            return
        if w.name == "wgmma":
            return  # it reports what it produces when it is performed; until then its registers hold NaNs that name it
        for d, value in zip(w.destinations, results, strict=True):
            kind = _kind_of(w, d.type, False)
            if value is None or kind is None:
                continue
            for name, test, words in (("nan", np.isnan, "a NaN"), ("inf", np.isinf, "an infinity")):
                if name not in self.kinds:
                    continue
                bad = _any(value, kind, test)
                if bad.any():
                    bad = bad & ~self._given(w, x, values, test)
                    self._report(w.where, x, bad, guard, f"computes {words}, and no operand is one")

    def computed(self, x: Group, where: Where, t: PtxType, result: Lanes, operands: tuple[Lanes, ...]) -> None:
        """An atomic or a reduction has computed ``result`` for memory.

        Raises:
            ArithmeticTrap: a NaN or an infinity is among it that was not among the operands.
        """
        kind = _ELEMENTS.get(t.name)
        if kind is None:
            return
        for name, test, words in (("nan", np.isnan, "a NaN"), ("inf", np.isinf, "an infinity")):
            if name in self.kinds:
                bad = _any(result, kind, test)
                for operand in operands:
                    bad = bad & ~_any(operand, kind, test)
                self._report(where, x, bad, None, f"computes {words} in memory, and no operand is one")

    def produced(self, wave: WaveState, where: Where, thread: int, result: Lanes, operands: Sequence[Lanes]) -> None:
        """A matrix product or a reduction of the thread with the wave-wide index ``thread`` has computed ``result``.

        Raises:
            ArithmeticTrap: a NaN or an infinity is in it, and none in the operands.
        """
        for name, test, words in (("nan", np.isnan, "a NaN"), ("inf", np.isinf, "an infinity")):
            if name in self.kinds and np.any(test(result)) and not any(np.any(test(o)) for o in operands):
                per_cta = wave.shape[1] * wave.shape[2]
                cta = wave.cta_coordinates(thread // per_cta)
                coordinates = wave.thread_coordinates(thread % per_cta)
                wave.flush_output()
                raise ArithmeticTrap(
                    f"{named(where)}: issued by thread {coordinates} of CTA {cta}, computes {words}, and no operand is one"
                )

    def _given(self, w: Instrumented, x: Group, values: tuple[Lanes, ...], test: Test) -> Mask:
        """Lanes in which an operand is one already."""
        out: Mask = np.zeros((1, 1, 1), np.bool_)
        for s, value in zip(w.sources, values, strict=True):
            kind = _kind_of(w, s.type, True)
            if kind is not None:
                out = out | _any(value, kind, test)
        if w.name in _MATRICES or w.name == "redux":
            out = np.any(np.broadcast_to(out, x.shape), -1, keepdims=True)
        return out

    @staticmethod
    def _report(where: Where, x: Group, bad: Mask, guard: Mask | None, what: str) -> None:
        bad = np.broadcast_to(bad, x.shape) & x.active()
        if guard is not None:
            bad = bad & guard
        if not bad.any():
            return
        cta, thread = x.first(bad)
        x.wave.flush_output()
        raise ArithmeticTrap(f"{named(where)}: thread {thread} of CTA {cta} {what}")


def _kind_of(w: Instrumented, t: PtxType, source: bool) -> tuple[str, int] | None:
    """How the floating-point elements of an operand are stored; None if it holds none."""
    found = _ELEMENTS.get(t.name)
    if found is not None:
        return found
    if w.name not in _MATRICES or t.name != "b32":
        return None
    if not source:  # registers of D with two f16
        return _ELEMENTS["f16x2"]
    for name in ("bf16", "f16", "tf32"):
        if name in w.parts:
            return _ELEMENTS["tf32" if name == "tf32" else f"{name}x2"]
    return None


def _any(value: Lanes, kind: tuple[str, int], test: Test) -> Mask:
    """Lanes with an element for which ``test`` holds."""
    name, count = kind
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bf16" else np.dtype(name)
    view = np.ascontiguousarray(value).view(dtype).reshape(*value.shape, count)
    return np.any(test(view), -1)
