"""Summary of an array after a launch: range, mean, NaNs, first elements, and the number of elements that changed."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptxkit.files import write_bytes
from ptxkit.source_run.arrays import Array
from ptxkit.workload.mismatch import Sentinel, holds

FIRST = 8  # elements shown
CHUNK = 1 << 20  # elements converted to float64 at a time


@dataclass(frozen=True)
class ArraySummary:
    """One array after the launch.

    Attributes:
        name: of the parameter.
        dtype, shape: numpy's.
        minimum, maximum: of the elements that are not NaN; None where all are.
        mean: of the finite elements; None where there are none.
        nans, infinities: how many.
        first: the first elements in memory order.
        changed: how many elements differ, bit for bit, from before the launch.
        initialised: False for an array that was left uninitialised: then ``changed`` counts the elements that differ from the
            fill pattern of its memory.
        file: where it was written, or "".
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    minimum: float | int | None
    maximum: float | int | None
    mean: float | None
    nans: int
    infinities: int
    first: tuple[float | int | bool, ...]
    changed: int
    initialised: bool
    file: str = ""

    @property
    def elements(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def to_json(self) -> dict[str, Any]:
        """The array's object in the schema; a NaN or an infinity is a string there."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "min": self.minimum,
            "max": self.maximum,
            "mean": self.mean,
            "nan": self.nans,
            "inf": self.infinities,
            "first": list(self.first),
            "changed": self.changed,
            "initialised": self.initialised,
            "file": self.file or None,
        }


def summarise(name: str, after: Array, before: Array | None, poison: Sentinel, file: str = "") -> ArraySummary:
    """Summarise an array.

    Args:
        name: of the parameter.
        after: its content after the launch.
        before: its content before the launch; None for an array that held ``poison``.
        file: where it was written, or "".
    """
    flat = after.reshape(-1)
    is_float = after.dtype.kind not in "iub"
    nans = infinities = changed = 0
    total, finite = 0.0, 0
    lows: list[Any] = []
    highs: list[Any] = []
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK]
        old = None if before is None else before.reshape(-1)[start : start + CHUNK]
        changed += _different(part, old, poison)
        numbers = part.astype(np.float64) if is_float else part
        if is_float:
            nan = np.isnan(numbers)
            nans += int(np.count_nonzero(nan))
            infinities += int(np.count_nonzero(np.isinf(numbers)))
            numbers = numbers[~nan]
        if numbers.size:
            lows.append(numbers.min())
            highs.append(numbers.max())
        numbers = numbers[np.isfinite(numbers)] if is_float else numbers
        finite += numbers.size
        with np.errstate(over="ignore"):
            total += float(numbers.sum(dtype=np.float64))
    return ArraySummary(
        name=name,
        dtype=after.dtype.name,
        shape=after.shape,
        minimum=min(lows).item() if lows else None,
        maximum=max(highs).item() if highs else None,
        mean=total / finite if finite else None,
        nans=nans,
        infinities=infinities,
        first=tuple((flat[:FIRST].astype(np.float64) if is_float else flat[:FIRST]).tolist()),
        changed=changed,
        initialised=before is not None,
        file=file,
    )


def _different(after: Array, before: Array | None, poison: Sentinel) -> int:
    """Elements of which a byte differs; -0 differs from 0, and a NaN from one of other bits."""
    if before is None:
        return int(np.count_nonzero(~holds(after, poison)))
    size = after.dtype.itemsize
    new = np.ascontiguousarray(after).view(np.uint8).reshape(-1, size)
    old = np.ascontiguousarray(before).view(np.uint8).reshape(-1, size)
    return int(np.count_nonzero((new != old).any(axis=1)))


def save_npy(path: str | Path, array: Array) -> None:
    """Write an array as ``.npy``, completely or not at all; the types of ml_dtypes as bytes without a type, as np.save does.

    Raises:
        UsageError: the file cannot be written there.
    """
    text = io.BytesIO()
    known = array.dtype.isbuiltin == 1  # 2 for a type that another package registered
    np.save(text, array if known else array.view(f"V{array.dtype.itemsize}"), allow_pickle=False)
    write_bytes(path, text.getbuffer())
