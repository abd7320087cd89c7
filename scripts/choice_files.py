"""Reads the files that ``scripts/measure_choices.py`` writes: times of variants and tiles, one case in a line."""

from __future__ import annotations

import gzip
import json
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


def origin(heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each file the GPU, the driver and the version of NVRTC, as files of fitted coefficients state them."""
    return [{name: head[name] for name in ("gpu", "driver", "nvrtc") if name in head} for head in heads]
