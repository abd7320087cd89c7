"""Which of two records of one key wins, and merging files of several machines.

The order is total, so that merging is deterministic, commutative, associative and idempotent: the winner of a key is the
maximum of its records, whichever machine's file is read first and however often.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ptxkit.workload.tuned.record import Record, moment

ENOUGH = 16  # samples; a measurement with fewer never replaces one with at least as many as this


@dataclass(frozen=True)
class Decision:
    """What merging decided for a key.

    Attributes:
        kept: the record that is left. dropped: the other one; None where there was none.
        taken: whether ``kept`` is new in the destination.
        reason: why, in words.
    """

    kept: Record
    dropped: Record | None
    taken: bool
    reason: str

    def __str__(self) -> str:
        verb = "takes" if self.taken else "keeps"
        against = f", not {_shown(self.dropped)}" if self.dropped is not None else ""
        return f"{self.kept.case}: {verb} {_shown(self.kept)}{against}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """The decision as JSON values."""
        dropped = None if self.dropped is None else self.dropped.to_json()
        return {"kept": self.kept.to_json(), "dropped": dropped, "taken": self.taken, "reason": self.reason}


def rank(record: Record) -> tuple[Any, ...]:
    """The order of records of one key; the largest wins.

    1. One with a hash of its machine code, which records of older versions lack.
    2. One with at least 16 samples.
    3. The one measured on a later day (UTC).
    4. Of one day, the one with more samples.
    5. With as many samples, the later one, then the one with the smaller relative spread.
    6. The one whose JSON text is greater, so that there is always one.
    """
    spread = (record.spread_us or 0.0) / record.time_us if record.time_us else 0.0
    at = moment(record)
    enough = record.samples >= ENOUGH
    return bool(record.code), enough, at.date(), record.samples, at, -spread, record.text


REASONS = (
    "it has a hash of its machine code",
    f"at least {ENOUGH} samples",
    "measured on a later day",
    "more samples on the same day",
    "measured later on the same day",
    "a smaller spread",
    "the same time and samples; the order of their text decides",
)


def reason(better: Record, worse: Record) -> str:
    """Why the first of two different records wins."""
    pairs = zip(REASONS, rank(better), rank(worse), strict=True)
    return next(why for why, one, other in pairs if one != other)


def merged(mine: Sequence[Record], theirs: Iterable[Record]) -> tuple[list[Record], list[Decision]]:
    """The records of ``mine`` with those of ``theirs`` merged in, sorted, and a decision for each that is dropped or is new.

    Equal records need no decision. Several records of one key in ``mine``, which no merging leaves there, are decided first.
    """
    found: dict[str, Record] = {}
    decisions = []
    for record in sorted(mine, key=rank, reverse=True):
        kept = found.setdefault(record.key, record)
        if kept.text != record.text:
            decisions.append(Decision(kept, record, False, reason(kept, record)))
    for record in sorted(theirs, key=lambda r: (r.key, rank(r))):
        before = found.get(record.key)
        if before is None:
            decisions.append(Decision(record, None, True, "it is new here"))
        elif before.text == record.text:
            continue
        elif rank(record) > rank(before):
            decisions.append(Decision(record, before, True, reason(record, before)))
        else:
            decisions.append(Decision(before, record, False, reason(before, record)))
            continue
        found[record.key] = record
    return sorted(found.values(), key=lambda r: r.key), decisions


def _shown(record: Record) -> str:
    time = f"{record.time_us:.4g} us, " if record.time_us is not None else ""
    return f"{record.winner} ({time}{record.samples} samples, {record.day or 'undated'})"
