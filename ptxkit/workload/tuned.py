"""The best tiles that sweeps recorded for this user's GPUs; ``run`` and ``bench`` use them at the same sizes and options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxkit import environment
from ptxkit.errors import UsageError
from ptxkit.files import check_writable, refused, stem_of, user_directory, write_json

if TYPE_CHECKING:
    from ptxkit.workload.workload import Workload

SCHEMA = "ptxkit.tuned/1"


def path_for(gpu: str) -> Path:
    """The file of a GPU: in ``PTXKIT_CONFIG_DIR`` or the user's configuration directory."""
    return user_directory(environment.CONFIG_DIR, "config") / "tuned" / f"{stem_of(gpu)}.json"


def tile_for(workload: Workload, variant: str, gpu: str) -> dict[str, Any]:
    """The recorded tile; empty if none is recorded for exactly these sizes and options.

    Raises:
        UsageError: the file exists and cannot be read.
    """
    return dict(_entry(workload, variant, gpu).get("tile", {}))


def time_for(workload: Workload, variant: str, gpu: str) -> float | None:
    """The time in microseconds that the sweep measured with the recorded tile; None if none is recorded.

    Raises:
        UsageError: the file exists and cannot be read.
    """
    time = _entry(workload, variant, gpu).get("time_us")
    return float(time) if isinstance(time, (int, float)) and time > 0 else None


def _entry(workload: Workload, variant: str, gpu: str) -> Mapping[str, Any]:
    """What is recorded for exactly these sizes and options; empty if nothing is."""
    path = path_for(gpu)
    try:
        stamp = path.stat().st_mtime_ns
    except OSError:
        return {}
    for entry in _entries(path, stamp):
        wanted = (workload.name, variant, workload.sizes, workload.options)
        if tuple(entry[k] for k in ("kernel", "variant", "sizes", "options")) == wanted:
            return entry
    return {}


def record(workload: Workload, variant: str, gpu: str, tile: Mapping[str, Any], evidence: Mapping[str, Any]) -> Path:
    """Record a tile in the file of a GPU, replacing the one for the same sizes and options.

    Args:
        evidence: values to store with the tile: time, date, versions.

    Raises:
        UsageError: the file cannot be read or written.
    """
    path = path_for(gpu)
    entry = {
        "kernel": workload.name,
        "variant": variant,
        "sizes": workload.sizes,
        "options": workload.options,
        "tile": dict(tile),
        **evidence,
    }
    same = ("kernel", "variant", "sizes", "options")
    entries = list(_entries(path, path.stat().st_mtime_ns)) if path.is_file() else []
    entries = [e for e in entries if any(e[k] != entry[k] for k in same)]
    value = {"schema": SCHEMA, "gpu": gpu, "entries": [*entries, entry]}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(path, error) from None
    write_json(path, value)
    return path


def check_recordable(gpu: str) -> None:
    """Check that :func:`record` can record a tile for a GPU; called before a measurement that takes minutes.

    Raises:
        UsageError, FileAccessError: the file cannot be read or written.
    """
    path = path_for(gpu)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            _entries(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise refused(path, error) from None
    check_writable(path)


@lru_cache(maxsize=8)
def _entries(path: Path, stamp: int) -> tuple[dict[str, Any], ...]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        entries = tuple(value["entries"])
        wanted = ("kernel", "variant", "sizes", "options", "tile")
        if value["schema"] != SCHEMA or any(k not in e for e in entries for k in wanted):
            raise ValueError("another schema")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{path} cannot be read as tuned tiles ({error}); delete it, or sweep with --apply again"
        ) from None
    return entries
