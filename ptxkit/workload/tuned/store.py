"""The files of winners: one for each GPU model in a directory, which processes and machines share.

A file is replaced by renaming a complete one, so that a reader, and whoever comes after a crash or a full disk, finds the old
file or the new one. A writer reads, changes and replaces it under a lock of the directory, so that no change is lost.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from ptxkit import environment
from ptxkit.errors import PtxkitError, UsageError
from ptxkit.files import check_writable, locked_by_file, read_bytes, refused, stem_of, user_directory, write_json
from ptxkit.workload.tuned.record import MalformedError, Record, parsed

SCHEMA = "ptxkit.tuned/2"
WITHOUT_PROVENANCE = "ptxkit.tuned/1"  # of older versions; its records have no hash of their machine code
ABANDONED_S = 3600.0  # age of a temporary file after which its writer is taken to have ended

_said: set[str] = set()


def directory() -> Path:
    """The user's directory: ``tuned`` in ``PTXKIT_CONFIG_DIR`` or in the user's configuration directory."""
    return user_directory(environment.CONFIG_DIR, "config") / "tuned"


def path_for(gpu: str, where: Path | None = None) -> Path:
    """The file of a GPU model in a directory; None for the user's."""
    return (where or directory()) / f"{stem_of(gpu)}.json"


def gpus(where: Path | None = None, wanted: str | None = None) -> list[str]:
    """The GPU models that have a file in a directory, sorted.

    Args:
        where: the directory; None for the user's. wanted: a model, or part of its name: files that cannot be read and, by
            their names, belong to other models are left out.

    Raises:
        UsageError, FileAccessError: the directory or a file cannot be read.
    """
    folder = where or directory()
    try:
        files = sorted(p for p in folder.iterdir() if p.suffix == ".json" and not p.name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refused(folder, error, "read") from None
    meant = files if wanted is None else _named_as(wanted, files)
    found = []
    for path in files:
        try:
            gpu = _content(path)[0]
        except PtxkitError:
            if path in meant:
                raise
            continue
        if gpu and path == path_for(gpu, folder):
            found.append(gpu)
        elif gpu and (path in meant or wanted is None or wanted.lower() in gpu.lower()):
            raise _misplaced(path, gpu)
    return found


def _named_as(gpu: str, files: Sequence[Path]) -> list[Path]:
    """The files that a GPU model, or a part of its name, may mean: the one with exactly its name, else all that contain it."""
    stem = stem_of(gpu)
    return [path for path in files if path.stem == stem] or [path for path in files if stem in path.stem]


def read(path: Path) -> tuple[Record, ...]:
    """The records of a file; none if there is no such file.

    Raises:
        UsageError, FileAccessError: it cannot be read, or not by this version.
    """
    return _content(path)[1]


def _of_model(path: Path, gpu: str) -> tuple[Record, ...]:
    """The records of the file of a GPU model; none if there is no such file.

    Raises:
        UsageError, FileAccessError: see :func:`read`; or they are winners of another GPU model, as in a file that was renamed.
    """
    found, records = _content(path)
    if found not in ("", gpu):
        raise _misplaced(path, found)
    return records


def _misplaced(path: Path, gpu: str) -> UsageError:
    """The error of a file with the winners of a GPU model that is not the one of its name."""
    name = path_for(gpu, path.parent).name
    advice = _advice(path, "rename or delete it", "rename it")
    return UsageError(f"{path} has the winners of {gpu!r}, whose file is {name}; {advice}")


def read_leniently(gpu: str) -> tuple[Record, ...]:
    """The user's records of a GPU model; none, with one line in the log, where its file cannot be read."""
    try:
        return _of_model(path_for(gpu), gpu)
    except PtxkitError as error:
        say_once(f"{error}; the winners in it are not used")
        return ()


def update(
    gpu: str, change: Callable[[Sequence[Record]], Sequence[Record]], where: Path | None = None, *, dry: bool = False
) -> Path:
    """Replace the records of a GPU model by what ``change`` makes of them, while no other process changes the directory.

    Args:
        where: the directory; None for the user's, which is made. dry: change nothing.

    Raises:
        UsageError, FileAccessError: the file cannot be read or written; it is then as before.
    """
    path = path_for(gpu, where)
    if dry:
        change(_of_model(path, gpu))
        return path
    if where is None:
        _make(path.parent)
    with locked_by_file(path.parent):
        _remove_abandoned(path)
        records = _of_model(path, gpu)
        wanted = list(change(records))
        if [r.text for r in wanted] != [r.text for r in records] or not path.is_file():
            write_json(path, {"schema": SCHEMA, "gpu": gpu, "records": [r.to_json() for r in wanted]})
    return path


def record(gpu: str, winner: Record) -> Path:
    """Keep a winner in the user's file, in place of those with its key.

    Raises:
        UsageError, FileAccessError: see :func:`update`; or the record is one that could not be read again.
    """
    try:
        parsed(winner.to_json())
    except MalformedError as error:
        raise UsageError(f"the winner is not recorded: it {error}") from None
    return update(gpu, lambda records: [*(r for r in records if r.key != winner.key), winner])


def check_recordable(gpu: str) -> None:
    """Check that :func:`record` can keep a winner; called before a measurement that takes seconds or hours.

    Raises:
        UsageError, FileAccessError: see :func:`update`.
    """
    path = path_for(gpu)
    _make(path.parent)
    _of_model(path, gpu)
    check_writable(path)


def say_once(message: str) -> None:
    """A line in the log, which goes to stderr; once in a process."""
    if message not in _said:
        _said.add(message)
        logging.getLogger("ptxkit").warning("%s", message)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(folder, error) from None


def _remove_abandoned(path: Path) -> None:
    """Delete the temporary files that killed writers left."""
    with suppress(OSError):
        for file in path.parent.glob(f".{path.name}.*"):
            with suppress(OSError):
                if time.time() - file.stat().st_mtime > ABANDONED_S:
                    file.unlink()


def _content(path: Path) -> tuple[str, tuple[Record, ...]]:
    """The GPU model and the records of a file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            advice = _advice(path, "delete the link or restore the file", "restore the file")
            raise UsageError(f"{path} is a link that leads nowhere, to {path.readlink()}; {advice}") from None
        return "", ()
    except OSError as error:
        raise refused(path, error, "read") from None
    return _read(path, status.st_mtime_ns, status.st_size, status.st_ino)


def _advice(path: Path, own: str, shared: str) -> str:
    """What to do about a file of the user, or about one of a directory that others may use too."""
    if path.parent == directory():
        return own
    return f"{shared}, with those who share the directory, or select other GPU models with --gpu"


@lru_cache(maxsize=16)
def _read(path: Path, *state: int) -> tuple[str, tuple[Record, ...]]:
    try:
        value = json.loads(read_bytes(path))
        _check_not_newer(path, value)
        return _decoded(value)
    except OSError as error:
        raise refused(path, error, "read") from None
    except (ValueError, RecursionError) as error:
        why = error if isinstance(error, MalformedError) else "it is no JSON text"
        advice = _advice(path, "move or delete it", "repair it")
        raise UsageError(f"{path} is no file of winners ({why}); {advice}") from None


def _check_not_newer(path: Path, value: Any) -> None:
    """Raise UsageError for a file whose schema has a greater version than that of this package."""
    schema = value.get("schema") if isinstance(value, dict) else None
    name, newest = SCHEMA.split("/")
    found = re.fullmatch(rf"{re.escape(name)}/([0-9]{{1,9}})", schema) if isinstance(schema, str) else None
    if found is not None and int(found[1]) > int(newest):
        raise UsageError(
            f"{path} was written by a newer version of ptxkit ({schema}; this version reads {SCHEMA}); update ptxkit to use it"
        )


def _decoded(value: Any) -> tuple[str, tuple[Record, ...]]:
    if not isinstance(value, dict):
        raise MalformedError("it is no object")
    schema = value.get("schema")
    if schema == WITHOUT_PROVENANCE:
        entries = value.get("entries")
    elif schema == SCHEMA:
        entries = value.get("records")
    else:
        raise MalformedError(f"its schema is {schema!r}; this version reads {SCHEMA}")
    gpu = value.get("gpu")
    if not isinstance(gpu, str) or not gpu.isprintable() or not stem_of(gpu) or not isinstance(entries, list):
        raise MalformedError("it names no GPU or has no list of records")
    return gpu, tuple(_parsed(number, entry) for number, entry in enumerate(entries))


def _parsed(number: int, entry: Any) -> Record:
    try:
        return parsed(entry)
    except MalformedError as error:
        raise MalformedError(f"record {number} {error}") from None


def without(records: Iterable[Record], keys: set[str]) -> list[Record]:
    """The records whose keys are not among these."""
    return [record for record in records if record.key not in keys]


