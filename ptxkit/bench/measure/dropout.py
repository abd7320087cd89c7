"""Verifying dropout with random numbers of somebody else's: which elements are dropped is open, but not what becomes of them.

Each element must be what the reference makes of it when it is kept or when it is dropped, and the share of those kept must be
what chance allows. The first rows are enough for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.workload.verify import Verdict

if TYPE_CHECKING:
    from ptxkit.workload.workload import Workload

ROWS = 64
DEVIATIONS = 6  # standard deviations that the share may be off: once in 500 million times by chance
ALL_DROPPED = np.uint64(1 << 32)  # a threshold above every random word


def first_rows(workload: Workload, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Matrices cut to their first :data:`ROWS` rows, everything else as it is."""
    rows = workload.sizes["rows"]
    return {n: v[:ROWS] if np.ndim(v) == 2 and np.shape(v)[0] == rows else v for n, v in arrays.items()}


def nearest(
    workload: Workload, inputs: Mapping[str, Any], outputs: Mapping[str, np.ndarray[Any, Any]]
) -> tuple[dict[str, np.ndarray[Any, Any]], str]:
    """What the outputs should be, given which of their elements were kept, and a complaint about how many those are, or "".

    Args:
        workload: with sizes ``rows`` and ``cols``, a probability ``p`` and an input ``threshold`` that random words of dropped
            elements are below.
        inputs: its inputs, cut to their first rows.
        outputs: what a peer made of them, cut likewise.
    """
    small: Any = replace(workload, rows=min(workload.sizes["rows"], ROWS))  # type: ignore[type-var]  # made a dataclass
    kept = small.reference(**{**inputs, "threshold": np.uint64(0)})
    dropped = small.reference(**{**inputs, "threshold": ALL_DROPPED})
    expected, complaint = {}, ""
    for name, output in outputs.items():
        actual = output.astype(np.float64)
        is_kept = np.abs(actual - kept[name]) <= np.abs(actual - dropped[name])
        expected[name] = np.where(is_kept, kept[name], dropped[name])
        apart = np.abs(kept[name] - dropped[name])
        telling = apart > 0.05 * max(apart.mean(), 1e-30)  # the others are the same either way, but for rounding
        count = int(telling.sum())
        share, wanted = float(is_kept[telling].mean()) if count else 0.0, 1 - small.p
        if abs(share - wanted) > DEVIATIONS * np.sqrt(small.p * wanted / max(count, 1)):
            complaint = complaint or f"{name}: {share:.4f} of {count:,} elements are kept, not {wanted:g}"
    return expected, complaint


def objected(verdict: Verdict, complaint: str) -> Verdict:
    """A verdict that holds only if there is no complaint."""
    return replace(verdict, verified=False, worst=complaint) if complaint and verdict.verified else verdict
