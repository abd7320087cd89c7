"""Reads the files that ``scripts/measure_choices.py`` writes: times of variants and tiles, one case in a line."""

from __future__ import annotations

import gzip
import json
import statistics
import zlib
from pathlib import Path
from typing import Any

from ptxkit.errors import PtxkitError

SCHEMA = "ptxkit.choices/1"


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first line of a file, compressed (.gz) or not, and a value for each case.

    Raises:
        PtxkitError: the file is not one of ``scripts/measure_choices.py``.
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    try:
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        head, *values = map(json.loads, text.splitlines())
    except (ValueError, OSError, EOFError, zlib.error):
        head, values = None, []
    if not isinstance(head, dict) or head.get("schema") != SCHEMA:
        raise PtxkitError(f"{path} was not written by scripts/measure_choices.py, whose files have the schema {SCHEMA}")
    return head, values


def times(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], float]]:
    """The measured variants and tiles of a case, each with its time in microseconds.

    The fastest ones may have a second time, ``leader_us``, of interleaved samples under sustained load. It tells more of their
    order, because the clock falls while one after the other is timed, and is taken in relation to those of the others.
    """
    own = [row for row in rows if "variant" in row and "us" in row]
    both = [row["leader_us"] / row["us"] for row in own if "leader_us" in row]
    level = statistics.median(both) if both else 1.0
    return [(row, row["leader_us"] / level if "leader_us" in row else row["us"]) for row in own]


def origin(heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each file the GPU, the driver and the version of NVRTC, as files of fitted coefficients state them."""
    return [{name: head[name] for name in ("gpu", "driver", "nvrtc") if name in head} for head in heads]
