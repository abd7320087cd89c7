"""The journal of a sweep: one JSON line for each configuration, appended in one write, so that a crash loses no earlier
entry.

The first line describes the sweep. A truncated last line is ignored. The same command reads the journal and continues
the sweep. Entries are found by the fingerprint of the machine code, so a configuration whose code has changed is
measured again.
"""

from __future__ import annotations

import datetime
import errno
import gzip
import json
import os
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from ptxkit import environment
from ptxkit.errors import UsageError
from ptxkit.files import refused, user_directory
from ptxkit.sweep.journal_lock import JournalLock, lock
from ptxkit.sweep.problem import Problem
from ptxkit.workload.launch import Tile

SCHEMA = "ptxkit.sweep/1"
LARGEST = 1e300  # that a number of an entry can be
SMALLEST = 1e-9  # microseconds that a launch can take
Status = Literal["ok", "slow", "compile", "wrong", "fault", "timeout", "launch"]


@dataclass(frozen=True)
class Entry:
    """One configuration.

    Attributes:
        tile: its parameters.
        status: ``"ok"``; ``"slow"``, if measuring ended early because it is clearly slower than the best; or the kind
            of failure.
        error: the message of the failure, or "".
        time_us, spread_us, samples: median, half the interquartile range, number of samples; None if it was not timed.
        cost: modelled instead of measured, in the emulator.
        compile_s: seconds in a compiling process. measured_s: seconds until the measuring process had answered, of them
        prepare_s: loading and binding, verify_s: the first launch and its check, time_s: the samples.
        fingerprint, registers, spill_bytes, shared_bytes, occupancy, limiter, threads, ctas: see
            :class:`ptxkit.sweep.compiling.Compiled`.
        measured_on: the GPU that measured it: ``uuid``, ``driver``, and after the last sample ``sm_clock_mhz``,
            ``temperature_c`` and ``throttled``; on a cluster also the ``worker`` and its ``host``. None if nothing is known.
        at: time of the entry, UTC.
    """

    tile: Mapping[str, Any]
    status: Status
    error: str = ""
    time_us: float | None = None
    spread_us: float | None = None
    samples: int = 0
    cost: float | None = None
    compile_s: float = 0.0
    measured_s: float = 0.0
    prepare_s: float = 0.0
    verify_s: float = 0.0
    time_s: float = 0.0
    fingerprint: str = ""
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    occupancy: float = 0.0
    limiter: str = ""
    threads: int = 0
    ctas: int = 0
    measured_on: Mapping[str, Any] | None = None
    at: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))

    def __post_init__(self) -> None:
        object.__setattr__(self, "tile", dict(self.tile))  # JSON knows no other mapping

    @property
    def value(self) -> float:
        """The value that the sweep minimizes; infinite for a configuration that failed."""
        found = self.time_us if self.time_us is not None else self.cost
        return found if found is not None and self.status in ("ok", "slow") else float("inf")

    @property
    def key(self) -> Tile:
        """The tile, hashable."""
        return Tile(self.tile)


class Journal:
    """Entries on disk.

    Args:
        path: of the file; its directory is made.
        problem: what is swept.
        device: name of the device; a journal of another device is an error.

    Attributes:
        entries, leaders: so far. unread: see :class:`Read`.

    Raises:
        UsageError, FileAccessError: the file is of another sweep, another process writes to it, or it cannot be read or
            written.
    """

    def __init__(self, path: Path, problem: Problem, device: str) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self.leaders: list[Entry] = []
        self.unread = 0
        self._known: dict[str, Entry] = {}  # by fingerprint, the last one
        self._lock: JournalLock | None = None
        self._written: list[bytes] = []  # what the file has
        head: dict[str, Any] = {
            "schema": SCHEMA,
            "key": problem.key,
            "title": problem.title,
            "device": device,
            "target": problem.target,
        }
        _check_kind(path)
        head["axes"] = {name: list(values) for name, values in problem.axes.items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refused(path, error) from None
        if not path.exists():
            os.close(self._opened())
        self._lock = lock(path)
        if path.is_file() and path.stat().st_size:
            self._read(head)
            os.close(self._opened())
        else:
            self._append(head)

    def _read(self, head: Mapping[str, Any]) -> None:
        read_again = read(self.path)
        self._written = [read_again.data]
        first = read_again.head
        for name in ("key", "device"):
            if first.get(name) != head[name]:
                what = f"{first.get('title')} on {first.get('device')}"
                raise UsageError(
                    f"{self.path} is the journal of another sweep: {what}; choose another file with --journal"
                )
        self.entries, self.leaders, self.unread = read_again.entries, read_again.leaders, read_again.unread
        for entry in self.entries:
            self._remember(entry)
        if read_again.cut_short:  # so that the next entry begins on a new line
            self._write(b"\n")

    def add(self, entry: Entry, *, leader: bool = False, other_gpu: bool = False) -> None:
        """Append one configuration; ``leader`` marks a repeated measurement of the best, and ``other_gpu`` one that decides
        nothing."""
        if not other_gpu:
            (self.leaders if leader else self.entries).append(entry)
        if not leader:
            self._remember(entry)
        told = {f.name: getattr(entry, f.name) for f in fields(entry) if getattr(entry, f.name) != f.default}
        value = {name: round(v, 6) if isinstance(v, float) else v for name, v in told.items()}
        marks = {"leader": leader, "other_gpu": other_gpu}
        self._append({**value, **{name: True for name, mark in marks.items() if mark}})

    def known(self, fingerprint: str) -> Entry | None:
        """A configuration with this machine code and geometry that was measured already."""
        return self._known.get(fingerprint)

    def _remember(self, entry: Entry) -> None:
        if entry.status in ("ok", "slow", "wrong"):
            self._known[entry.fingerprint] = entry

    def _append(self, value: Mapping[str, Any]) -> None:
        self._write(json.dumps(value, separators=(",", ":")).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        """Append all of it or nothing; a file that was deleted or emptied meanwhile gets everything again.

        Raises:
            UsageError, FileAccessError: see :func:`ptxkit.files.refused`.
        """
        self._written.append(data)
        handle = self._opened()
        try:
            status = os.fstat(handle)
            if stat.S_ISREG(status.st_mode) and not status.st_size:
                data = b"".join(self._written)
            try:
                written = os.write(handle, data)
                if written < len(data):  # the disk is full
                    os.ftruncate(handle, os.fstat(handle).st_size - written)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(handle)
        except OSError as error:
            raise refused(self.path, error) from None

    def _opened(self) -> int:
        """A handle to append to the file with.

        Raises:
            UsageError, FileAccessError: see :func:`ptxkit.files.refused`.
        """
        try:
            return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise refused(self.path, error) from None


def _check_kind(path: Path) -> None:
    """Refuse what cannot be appended to.

    Raises:
        UsageError: a compressed file, to which plain lines would be appended, or a pipe, which would wait for a reader.
    """
    if path.suffix == ".gz":
        raise UsageError(f"{path} would be a compressed journal, which can only be read; decompress it: gunzip {path}")
    if path.is_fifo():
        raise UsageError(f"{path} is a pipe; a journal is a file, which the same command reads again")


def entry_of(value: Mapping[str, Any]) -> Entry | None:
    """An entry from its JSON, without fields that this version does not know; None where one has a value of another type."""
    known = {f.name: value[f.name] for f in fields(Entry) if f.name in value}
    if not {"tile", "status"} <= known.keys() or not all(_is_a_value(name, each) for name, each in known.items()):
        return None
    return Entry(**known)


_TEXTS = {"error", "fingerprint", "limiter", "at"}


def _is_a_value(name: str, value: Any) -> bool:
    """Whether a field of an entry can have a value."""
    if name == "tile":
        return isinstance(value, dict) and all(isinstance(each, str | int | float) for each in value.values())
    if name == "status":
        return value in get_args(Status)
    if name in _TEXTS:
        return isinstance(value, str)
    if name == "measured_on":
        return value is None or isinstance(value, dict)
    if value is None:
        return name in ("time_us", "spread_us", "cost")
    least = SMALLEST if name == "time_us" else 0
    return type(value) in (int, float) and least <= value < LARGEST  # also without NaN


@dataclass(frozen=True)
class Read:
    """The contents of a journal.

    Attributes:
        head: the first line. entries: of the configurations. leaders: of the repeated measurements that decided.
        cut_short: the last line was not written to its end. unread: number of other lines that are no entries.
        data: the text.
    """

    head: dict[str, Any]
    entries: list[Entry]
    leaders: list[Entry]
    cut_short: bool
    unread: int
    data: bytes


def read(path: Path) -> Read:
    """Read the journal of any sweep; the file may be compressed (``.gz``).

    Raises:
        UsageError: it cannot be read, or is no journal.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise refused(path, error, "read") from None
    try:
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    lines = data.split(b"\n")
    head = _parsed(lines[0])
    if not head or head.get("schema") != SCHEMA:
        raise UsageError(f"{path} is not a journal of a sweep ({SCHEMA}); --journal takes another file, --fresh puts it aside")
    values = [_parsed(line) for line in lines[1:]]
    made = [None if value is None else entry_of(value) for value in values]
    unread = sum(entry is None and bool(line) for line, entry in zip(lines[1:-1], made[:-1], strict=True))
    found = Read(head, [], [], bool(lines[-1]), unread, data)
    for value, entry in zip(values, made, strict=True):
        if value is not None and entry is not None and not value.get("other_gpu"):
            (found.leaders if value.get("leader") else found.entries).append(entry)
    return found


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def default_path(problem: Problem, device: str) -> Path:
    """Where the journal of a sweep is kept: ``PTXKIT_STATE_DIR``, or the user's state directory."""
    base = user_directory(environment.STATE_DIR, "state")
    slug = "".join(c if c.isalnum() else "-" for c in device.lower())
    return base / "sweeps" / f"{problem.workload.name}-{problem.variant}-{slug}-{problem.key}.jsonl"
