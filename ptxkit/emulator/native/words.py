"""Records of 64-bit integers, which contain addresses of each other, of constants and of forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.native.forms import Form
from ptxkit.emulator.native.text import LANES

_WORD = (1 << 64) - 1


class Words:
    """Records that are being written.

    Attributes:
        forms: the forms that they name.
    """

    def __init__(self) -> None:
        self.forms: dict[str, Form] = {}
        self._words: list[int] = []
        self._addresses: list[int] = []  # positions of words that are addresses of other words
        self._constants: dict[tuple[int, int], list[int]] = {}  # (value, bits) -> positions that get its address
        self._named: list[tuple[int, str]] = []

    def reserve(self, count: int) -> int:
        """Room for words, all 0; returns its position."""
        at = len(self._words)
        self._words += [0] * count
        return at

    def add(self, words: Sequence[int]) -> int:
        """Add words; returns the position of the first one."""
        at = len(self._words)
        self._words += words
        return at

    def put(self, position: int, value: int) -> None:
        """Write a word."""
        self._words[position] = value

    def point(self, position: int, other: int) -> None:
        """Let a word be the address of another one."""
        self._words[position] = other
        self._addresses.append(position)

    def constant(self, position: int, value: int, bits: int) -> None:
        """Let a word be the address of a constant, which all lanes have; predicates are bytes."""
        self._constants.setdefault((value, bits), []).append(position)

    def form(self, position: int, form: Form) -> None:
        """Let a word be the address of a form."""
        self.forms[form.name] = form
        self._named.append((position, form.name))

    def finish(self, forms: Mapping[str, int]) -> NDArray[np.int64]:
        """The records as an array, which they address.

        Args:
            forms: name -> address.
        """
        size = len(self._words)
        addresses = [*self._addresses]
        tail: list[NDArray[np.int64]] = []
        words = [*self._words]
        for (value, bits), positions in self._constants.items():
            lanes = np.full(LANES, value & ((1 << bits) - 1), f"u{max(8, bits) // 8}").view(np.int64)
            for p in positions:
                words[p] = size
            addresses += positions
            tail.append(lanes)
            size += len(lanes)
        for position, name in self._named:
            words[position] = forms[name]
        made = np.zeros(size, np.int64)
        made[: len(words)] = np.array([w & _WORD for w in words], np.uint64).view(np.int64)
        if tail:
            made[len(words) :] = np.concatenate(tail)
        made[addresses] = made[addresses] * 8 + made.__array_interface__["data"][0]
        return made
