"""Words of memory through which threads synchronise: flags, locks and counters. PTX ISA, "Release and Acquire Patterns".

A release and an acquire synchronise if the scope of each includes the other thread (PTX ISA, "Morally strong operations"). What
is released with the scope ``.cta`` therefore passes to threads of the same CTA only, and so does what an acquire of this scope
observes. The same holds for relaxed accesses, and for the fences that order them.
"""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Index
from ptxkit.emulator.racecheck.clocks import Clocks, Table

RANKS = 16
"""The maximum number of CTAs of a cluster."""


class _Words:
    """The clocks that were released to words, either to threads of the same CTA or to all.

    Attributes:
        known: the words with clocks; each is identified by a number.
    """

    def __init__(self) -> None:
        self.known: dict[int, int] = {}
        self.table: Table | None = None


class Flags:
    """The words through which the threads of a wave synchronise."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self._same_cta, self._cluster = _Words(), _Words()

    def accessed(self, places: Index, rows: Index, ordering: str, write: bool) -> None:
        """The actors ``rows`` make strong accesses to the words ``places``, both (n,).

        Args:
            ordering: relaxed, acquire, release or acq_rel; with ``.cta`` appended if the scope is ``.cta``.
        """
        kind, _, narrow = ordering.partition(".")
        if self.clocks.size == 1:
            self._accessed(self._same_cta, places, rows, kind, write, True)
            return
        self._accessed(self._same_cta, places * RANKS + self.clocks.rank[rows], rows, kind, write, True)
        if not narrow:
            self._accessed(self._cluster, places, rows, kind, write, False)

    def _accessed(
        self, words: _Words, places: Index, rows: Index, ordering: str, write: bool, within_cta: bool
    ) -> None:
        clocks = self.clocks
        releases = ordering in ("release", "acq_rel")
        passes_on = write and (releases or clocks.has_fenced)
        if not passes_on and not words.known:
            return
        if words.table is None:
            words.table = clocks.table(16)
        distinct, which = np.unique(places, return_inverse=True)
        if passes_on:
            for place in distinct.tolist():
                words.known.setdefault(place, len(words.known))
            words.table.lengthen(len(words.known))
        slots = np.array([words.known.get(place, -1) for place in distinct.tolist()], np.int64)
        pairs = np.unique(which.reshape(-1) * len(clocks.interval) + rows)
        keys, rows = slots[pairs // len(clocks.interval)], pairs % len(clocks.interval)
        keys, rows = keys[keys >= 0], rows[keys >= 0]
        if passes_on:
            clocks.release(words.table, keys, rows, not releases, within_cta)
        clocks.acquire(words.table, keys, rows, ordering not in ("acquire", "acq_rel"), within_cta)
