"""Merging the winners of a user with those in a directory that several machines share: push and pull."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptxkit.errors import UsageError
from ptxkit.workload.tuned import store
from ptxkit.workload.tuned.merge import Decision, merged
from ptxkit.workload.tuned.record import Record, moment

TOLERATED = datetime.timedelta(days=1)  # by which the clocks of two machines may differ


@dataclass(frozen=True)
class Part:
    """What was merged for one GPU model.

    Attributes:
        gpu: its name. file: the destination. offered: how many records the origin has.
        decisions: for each that the destination did not have already, or had beside a better one of the same case.
        left_out: records that were not merged, with the reason.
    """

    gpu: str
    file: Path
    offered: int
    decisions: tuple[Decision, ...]
    left_out: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The part as JSON values."""
        return {
            "gpu": self.gpu,
            "file": str(self.file),
            "offered": self.offered,
            "decisions": [decision.to_json() for decision in self.decisions],
            "left_out": list(self.left_out),
        }


@dataclass(frozen=True)
class Exchange:
    """A push or a pull.

    Attributes:
        origin, destination: directories. gpu: the requested model, or None. dry_run: nothing was written.
        parts: one for each GPU model of the origin.
    """

    origin: Path
    destination: Path
    gpu: str | None
    dry_run: bool
    parts: tuple[Part, ...]

    def to_json(self) -> dict[str, Any]:
        """The exchange as JSON values."""
        return {
            "origin": str(self.origin),
            "destination": str(self.destination),
            "dry_run": self.dry_run,
            "parts": [part.to_json() for part in self.parts],
        }


def push(destination: Path, gpu: str | None = None, *, dry: bool = False) -> Exchange:
    """Merge the user's records into the files of a directory.

    Args:
        gpu: a model, or part of its name; None for all. dry: write nothing.

    Raises:
        UsageError, FileAccessError: a file cannot be read, and all are as before; or written, and those of the models before
            it are complete.
    """
    return _merge(store.directory(), destination.absolute(), gpu, dry, own=False)


def pull(origin: Path, gpu: str | None = None, *, dry: bool = False) -> Exchange:
    """Merge the records of a directory into the user's; see :func:`push`."""
    return _merge(origin.absolute(), store.directory(), gpu, dry, own=True)


def models(known: Sequence[str], gpu: str | None, where: Path) -> list[str]:
    """The GPU models that a name or a part of one in any case names; all for None.

    Raises:
        UsageError: none or several.
    """
    if gpu is None or gpu in known:
        return list(known) if gpu is None else [gpu]
    found = [name for name in known if gpu and gpu.lower() in name.lower()]
    if len(found) == 1:
        return found
    if found:
        raise UsageError(f"GPU {gpu!r} may be {' or '.join(map(repr, found))}; give more of the name")
    raise UsageError(f"{where} has no winners of a GPU {gpu!r}; it has {', '.join(known) or 'none'}")


def _merge(origin: Path, destination: Path, gpu: str | None, dry: bool, *, own: bool) -> Exchange:
    if origin.resolve() == destination.resolve():
        raise UsageError(f"{destination} is this user's own directory of winners; give another one")
    names = models(store.gpus(origin, gpu), gpu, origin)
    for name in names:  # so that nothing is written, without a printed decision, before a file that is refused
        _part(name, origin, destination, True, own)
    parts = [_part(name, origin, destination, dry, own) for name in names]
    return Exchange(origin, destination, gpu, dry, tuple(parts))


def _part(gpu: str, origin: Path, destination: Path, dry: bool, own: bool) -> Part:
    offered = store.read(store.path_for(gpu, origin))
    latest = datetime.datetime.now(datetime.UTC) + TOLERATED
    reasons = {record.text: _unfit(record, latest) for record in offered}  # a file may have several records of a key
    decisions: list[Decision] = []

    def change(records: Sequence[Record]) -> list[Record]:
        result, found = merged(records, [record for record in offered if not reasons[record.text]])
        decisions[:] = found
        return result

    path = store.update(gpu, change, None if own else destination, dry=dry)
    left_out = tuple(f"{r.winner} of {r.case}: {reasons[r.text]}" for r in offered if reasons[r.text])
    return Part(gpu, path, len(offered), tuple(decisions), left_out)


def _unfit(record: Record, latest: datetime.datetime) -> str:
    """Why a record is not exchanged; "" if it is."""
    if record.incomplete:
        return record.incomplete
    if record.time_us is None:
        return "it was recorded by an older version, without a time"
    if moment(record) > latest:
        return f"it is dated {record.day}, in the future; a clock is wrong"
    return ""
