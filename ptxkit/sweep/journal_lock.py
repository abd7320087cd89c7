"""A lock on a journal: two sweeps that write to one file would measure every configuration twice, and record it twice."""

from __future__ import annotations

import fcntl
import os
import weakref
from contextlib import suppress
from pathlib import Path

from ptxkit.errors import UsageError


class JournalLock:
    """Held by this process while the object exists; the operating system releases it, however the process ends.

    Several journals of one process on one file share it. Where the file system has no locks, nothing is locked.

    Args:
        path: of an existing file.

    Raises:
        UsageError: another process holds it. OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._handle = os.open(path, os.O_RDWR)  # some file systems lock what can be written only
        except OSError:
            self._handle = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another sweep is writing to {path}; wait for its end, or take another file with --journal"
            ) from None
        except OSError:
            return  # ENOLCK, EOPNOTSUPP: the file system has no locks


_held: weakref.WeakValueDictionary[tuple[int, int], JournalLock] = weakref.WeakValueDictionary()


def lock(path: Path) -> JournalLock | None:
    """The lock on a journal; None for a file that is none, such as a device.

    Raises:
        UsageError: another process holds it.
    """
    with suppress(OSError):
        if path.is_file():
            status = path.stat()
            key = status.st_dev, status.st_ino
            found = _held.get(key) or JournalLock(path)
            _held[key] = found
            return found
    return None
