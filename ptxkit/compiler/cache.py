"""The disk cache: entries under a content hash, which processes share and which are verified by a checksum when read.

Every entry is one file that starts with a checksum of the rest. It is written to a temporary file and renamed, so a
reader sees a whole entry or none. A damaged entry is deleted and treated as absent. When the total size exceeds the
limit, the least recently used entries are deleted. If the directory cannot be written, a warning is logged once and
compilation continues.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from ptxkit import environment
from ptxkit.errors import UsageError
from ptxkit.files import refused, user_directory

DEFAULT_LIMIT_BYTES = 1 << 30
_MAGIC = b"ptxkit1\n"
_CHECKSUM_BYTES = 16
_SUFFIX = ".bin"
# Adding up the sizes of a full cache takes about 20 ms, so the total is computed at the first write of a process, and
# again each time the process has written this share of the limit.
_TRIM_EVERY = 1 / 32


@dataclass(frozen=True)
class CacheInfo:
    """What ``ptxkit cache info`` shows: entries, their bytes, the limit in bytes, and whether the directory can be written."""

    directory: Path
    entries: int
    size_bytes: int
    limit_bytes: int
    writable: bool


class Cache:
    """A directory of checksummed entries.

    Args:
        directory: made on the first write.
        limit_bytes: maximum total size of the entries.
    """

    def __init__(self, directory: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        self._unchecked_bytes: float = float("inf")
        self._warned = False

    def get(self, key: str) -> bytes | None:
        """The bytes stored under ``key``, or None."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        head = len(_MAGIC) + _CHECKSUM_BYTES
        data = content[head:]
        if content[:head] != _MAGIC + _checksum(data):
            self.drop(key)
            return None
        with suppress(OSError):  # the time of last use, for trimming; a read-only cache can still be read
            os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Store ``data`` under ``key``; a full or read-only disk is logged once and otherwise ignored."""
        temporary = self.directory / f"{os.getpid()}-{os.urandom(8).hex()}.tmp"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(_MAGIC + _checksum(data) + data)
            temporary.replace(self._path(key))
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            self._warn(
                f"the compile cache {self.directory} cannot be written ({error.strerror}); every run will compile anew"
            )
            return
        self._unchecked_bytes += len(data)
        if self._unchecked_bytes > self.limit_bytes * _TRIM_EVERY:
            self.trim()

    def drop(self, key: str) -> None:
        """Delete an entry, for instance because its contents cannot be decoded."""
        with suppress(OSError):
            self._path(key).unlink()

    def trim(self) -> None:
        """Delete the least recently used entries until the rest fits, and what interrupted writers left behind."""
        self._unchecked_bytes = 0
        files = sorted(self._files(), key=lambda file: file[1], reverse=True)
        total = 0
        for path, _, size in files:
            total += size
            if total > self.limit_bytes:
                with suppress(OSError):
                    path.unlink()

    def clear(self) -> int:
        """Delete every entry.

        Returns:
            How many there were.

        Raises:
            UsageError: it is not a directory. FileAccessError: it cannot be read or written.
        """
        removed = 0
        try:
            for path, _, _ in self._listed():
                path.unlink(missing_ok=True)
                removed += path.suffix == _SUFFIX
        except FileNotFoundError:
            return removed
        except OSError as error:
            raise refused(f"the compile cache {self.directory}", error, "clear") from error
        return removed

    def info(self) -> CacheInfo:
        """Size, limit and state, freshly counted."""
        files = [file for file in self._files() if file[0].suffix == _SUFFIX]
        parent = next(p for p in (self.directory, *self.directory.parents) if p.exists())
        writable = parent.is_dir() and os.access(parent, os.W_OK)
        return CacheInfo(self.directory, len(files), sum(size for _, _, size in files), self.limit_bytes, writable)

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}{_SUFFIX}"

    def _files(self) -> list[tuple[Path, float, int]]:
        """(path, time of last use, bytes) of every file of ours; others may delete them meanwhile."""
        with suppress(OSError):
            return self._listed()
        return []

    def _listed(self) -> list[tuple[Path, float, int]]:
        """:meth:`_files`; raises OSError if the directory cannot be read."""
        found = []
        with os.scandir(self.directory) as listing:
            for item in listing:
                if item.name.endswith((_SUFFIX, ".tmp")):
                    with suppress(OSError):
                        status = item.stat()
                        found.append((Path(item.path), status.st_mtime, status.st_size))
        return found

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            import logging  # imported here, because a run that hits the cache does not need it

            logging.getLogger("ptxkit").warning(message)


def digest(data: bytes) -> str:
    """The content hash that keys are made of."""
    return blake2b(data, digest_size=20).hexdigest()


def _checksum(data: bytes) -> bytes:
    return blake2b(data, digest_size=_CHECKSUM_BYTES).digest()


_caches: dict[tuple[Path, int], Cache] = {}


def default_cache() -> Cache:
    """The cache in ``PTXKIT_CACHE_DIR``, or else in the user's cache directory, with a limit of ``PTXKIT_CACHE_LIMIT``
    bytes.

    Raises:
        UsageError: ``PTXKIT_CACHE_LIMIT`` is not a size.
    """
    path = user_directory(environment.CACHE_DIR, "cache")
    if not environment.read(environment.CACHE_DIR):
        path /= "images"
    limit = _limit(environment.read(environment.CACHE_LIMIT))
    return _caches.setdefault((path, limit), Cache(path, limit))


def _limit(text: str) -> int:
    if not text:
        return DEFAULT_LIMIT_BYTES
    number, unit = text.strip().rstrip("iIbB"), 1
    if number[-1:].upper() in ("K", "M", "G"):
        unit = 1 << {"K": 10, "M": 20, "G": 30}[number[-1].upper()]
        number = number[:-1]
    if not number.isdecimal():
        raise UsageError(f"PTXKIT_CACHE_LIMIT={text!r} is not a size; write bytes, or 500M, 2G")
    return int(number) * unit
