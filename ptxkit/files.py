"""Files that are written atomically, completely or not at all, and names for them."""

from __future__ import annotations

import codecs
import errno
import json
import math
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxkit import environment
from ptxkit.errors import FileAccessError, PtxkitError, UsageError

if TYPE_CHECKING:
    from ptxkit.environment import Variable

WRONG_PATH = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EEXIST)
"""Errors that a different path fixes, unlike a full disk or a missing permission."""


def stem_of(device: str) -> str:
    """A device's name as part of a file name: ``NVIDIA H200`` -> ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def refused(path: str | Path, error: OSError, doing: str = "write") -> PtxkitError:
    """The error to raise where a file cannot be used: UsageError for a wrong path, FileAccessError for a full or closed one."""
    kind = UsageError if error.errno in WRONG_PATH else FileAccessError
    return kind(f"cannot {doing} {path}: {error.strerror}")


def write_new(texts: Mapping[Path, str], mode: int = 0o666) -> None:
    """Write new files and the directories in which they lie, all files or none; an existing file is never overwritten.

    Args:
        mode: the permissions of the files, which the umask restricts.

    Raises:
        UsageError, FileAccessError: one of them exists or cannot be written.
    """
    written: list[Path] = []
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            written.append(path)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
    except BaseException as error:
        for each in written:
            each.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise refused(path, error) from None
        raise


def user_directory(variable: Variable, kind: str) -> Path:
    """The directory that a variable names, else the user's directory of a kind.

    Args:
        kind: ``"cache"``, ``"config"`` or ``"state"``, as platformdirs names them.

    Raises:
        UsageError: the variable is not set, or begins with ``~``, and there is no such home directory.
    """
    text = environment.read(variable)
    if not text:
        import platformdirs

        text = getattr(platformdirs, f"user_{kind}_dir")("ptxkit")
    path = Path(os.path.expanduser(text))  # noqa: PTH111  # Path's raises RuntimeError where there is no home directory
    if path.parts[:1] and path.parts[0].startswith("~"):
        raise UsageError(f"there is no home directory for {text}; set {variable.name} to a directory")
    return path.absolute()


def native_path(path: str) -> Path:
    """The file that UTF-8 text, such as the line table of a kernel or a message of the compiler, names.

    Compilers write the bytes of a path as they are. Where the locale's encoding is not UTF-8 (``LC_ALL=C`` without UTF-8 mode),
    Python would encode the same characters to other bytes, or to none.
    """
    return Path(os.fsdecode(path.encode("utf-8", "surrogateescape")))


STREAMS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/", "/dev/null")
"""Files that are no regular ones and are read all the same: stdin, and the pipes that a shell opens for ``<(...)``."""


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a file.

    Raises:
        UsageError: it is a device, a socket or a named pipe, which may have no end or no writer. OSError: it cannot be read.
    """
    mode = os.stat(path).st_mode  # noqa: PTH116  # the text of /dev/fd/63 counts, not where it leads
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or str(path).startswith(STREAMS)):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise UsageError(f"{path} is {kind}, not a regular file")
    return Path(path).read_bytes()


def read_text(path: str | Path, legacy: bool = False) -> str:
    """The text of a UTF-8 file, without a byte order mark.

    Args:
        legacy: see :func:`decode`.

    Raises:
        UsageError: it is not text; the message names the line. Or it is no regular file. OSError: it cannot be read.
    """
    return decode(read_bytes(path), str(path), legacy)


def decode(data: bytes, name: str, legacy: bool = False) -> str:
    """The text of a file's bytes, see :func:`read_text`; ``name`` begins messages.

    Args:
        legacy: bytes that are not UTF-8 are taken as Latin-1, in which every byte is a character.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UsageError(f"{name}:1: the text is UTF-16; save it as UTF-8")
    data = data.removeprefix(codecs.BOM_UTF8)
    if (at := data.find(0)) >= 0:
        raise UsageError(f"{name}:{_line(data, at)}: there is a NUL byte, so this is not text; remove it")
    try:
        return data.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        if legacy:
            return data.decode("latin-1").replace("\r\n", "\n").replace("\r", "\n")
        place, byte = _line(data, error.start), data[error.start]
        raise UsageError(f"{name}:{place}: the byte {byte:#04x} is not UTF-8; save the file as UTF-8") from None


def _line(data: bytes, at: int) -> int:
    """1-based line of the byte at an offset; lines end in a line feed, a carriage return, or both."""
    return data[:at].replace(b"\r\n", b"\n").replace(b"\r", b"\n").count(b"\n") + 1


def refuse_same(files: Mapping[str, str]) -> None:
    """Raise UsageError where two options, or an argument and an option, name one file, of which only the last would be left.

    Args:
        files: name of the option or argument -> file; devices such as /dev/null may occur several times.
    """
    options: dict[str, str] = {}
    for option, file in files.items():
        real = os.path.realpath(file)
        if real in options and not real.startswith("/dev/"):
            raise UsageError(f"{options[real]} and {option} name the same file, {file}")
        options[real] = option


def check_writable(path: str | Path) -> None:
    """Raise an error unless :func:`write_text` can write the file; its content is unchanged.

    Raises:
        UsageError, FileAccessError: the file cannot be written there; see :func:`refused`.
    """
    try:
        target = _target(path)
        if _is_stream(target):
            if not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise refused(path, error) from None
    os.close(handle)
    Path(temporary).unlink()


@contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Inside, no other process and no other thread is inside for a file of the same directory, which is locked by flock(2).

    Around reading, changing and writing a file, so that changes by two processes are both kept.

    Raises:
        UsageError, FileAccessError: the directory cannot be locked; see :func:`refused`.
    """
    import fcntl

    try:
        handle = os.open(Path(os.path.realpath(path)).parent, os.O_RDONLY)
    except OSError as error:
        raise refused(path, error, "lock") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            raise refused(path, error, "lock") from None
        yield
    finally:
        os.close(handle)


_one_thread = threading.RLock()  # a POSIX lock belongs to a process, so that it does not exclude other threads


@contextmanager
def locked_by_file(directory: Path, wait_s: float = 30.0) -> Iterator[None]:
    """Inside, no other process of any machine and no other thread is inside for the same directory.

    A POSIX lock (fcntl(2)) on a file ``.lock`` in it: the operating system releases it when its process ends, however that
    ends, and network file systems with a lock manager (NFS 4, NFS 3 with lockd) extend it to all their clients.

    Args:
        wait_s: seconds to wait for another process.

    Raises:
        UsageError, FileAccessError: the file cannot be made or locked there, see :func:`refused`, or is locked for ``wait_s``.
    """
    import fcntl

    path = directory / ".lock"
    with _one_thread:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise refused(path, error, "lock") from None
        try:
            end = time.monotonic() + wait_s
            while True:
                try:
                    fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except (BlockingIOError, PermissionError):  # POSIX permits EAGAIN and EACCES
                    if time.monotonic() > end:
                        message = f"{path} is locked by another process for more than {wait_s:g} s; try again later"
                        raise FileAccessError(message) from None
                    time.sleep(0.02)
                except OSError as error:
                    raise refused(path, error, "lock") from None
            yield
        finally:
            os.close(handle)


def write_json(path: str | Path, value: Any) -> None:
    """Replace a file by one JSON value, through a temporary file that is renamed. NaN and infinity become null.

    Raises:
        UsageError, FileAccessError: the file cannot be written there; see :func:`refused`.
    """
    write_text(path, json.dumps(finite(value), indent=1, allow_nan=False) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Replace a file, or the target of a link, completely or not at all; a device or a pipe is written to directly.

    Raises:
        UsageError, FileAccessError: the file cannot be written there; see :func:`refused`.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | Path, data: bytes | memoryview) -> None:
    """:func:`write_text` for bytes."""
    try:
        target = _target(path)
        if _is_stream(target):
            target.write_bytes(data)
            return
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise refused(path, error) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        mode = target.stat().st_mode if target.exists() else 0o666 & ~_umask()
        os.chmod(temporary, mode)  # noqa: PTH101  # mkstemp makes it private
        os.replace(temporary, target)  # noqa: PTH105
    except BaseException as error:  # also on an interrupt: the old file stays, and the temporary one is removed
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise refused(path, error) from None
        raise


def _target(path: str | Path) -> Path:
    """The file to write: the target if the path is a link.

    Raises:
        UsageError: the name is empty. OSError: the links form a cycle.
    """
    if not str(path):
        raise UsageError("the name of a file to write is empty")
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target


def _is_stream(path: Path) -> bool:
    """Whether the path exists and is not a regular file, such as /dev/null, which must not be replaced by a file.

    Raises:
        IsADirectoryError: it is a directory.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return path.exists() and not path.is_file()


def finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return value


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@cache
def code_digest(*packages: Path) -> str:
    """The hash of all Python sources below some directories, which stands for a version of the code in keys of caches.

    Unlike a version number it changes with every edit. A directory without sources, as in an archive, counts by its name only.
    """
    found = blake2b(digest_size=16)
    for package in packages:
        found.update(f"{package.name}\n".encode())
        for path in sorted(package.rglob("*.py")):
            found.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return found.hexdigest()
