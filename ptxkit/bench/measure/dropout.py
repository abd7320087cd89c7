"""Verifies dropout of a peer with unknown random numbers: which elements are dropped is unknown, but not their values.

Each element must have the value of a kept or of a dropped element, and the fraction of kept elements must be within the
statistical limits. The first rows suffice for this.
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
DEVIATIONS = 6  # permitted deviation of the fraction in standard deviations; exceeded by chance once in 500 million times
ALL_DROPPED = np.uint64(1 << 32)  # a threshold above all random words


def first_rows(workload: Workload, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Matrices reduced to their first :data:`ROWS` rows; other values unchanged."""
    rows = workload.sizes["rows"]
    return {n: v[:ROWS] if np.ndim(v) == 2 and np.shape(v)[0] == rows else v for n, v in arrays.items()}


def nearest(
    workload: Workload, inputs: Mapping[str, Any], outputs: Mapping[str, np.ndarray[Any, Any]]
) -> tuple[dict[str, np.ndarray[Any, Any]], str]:
    """The expected outputs for the elements that were kept, and an error message about their number, or "".

    Args:
        workload: with sizes ``rows`` and ``cols``, a probability ``p`` and an input ``threshold`` that random words of dropped
            elements are below.
        inputs: its inputs, reduced to their first rows.
        outputs: the outputs of a peer, reduced in the same way.
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
        telling = apart > 0.05 * max(apart.mean(), 1e-30)  # other elements are the same in both cases, except for rounding
        count = int(telling.sum())
        share, wanted = float(is_kept[telling].mean()) if count else 0.0, 1 - small.p
        if abs(share - wanted) > DEVIATIONS * np.sqrt(small.p * wanted / max(count, 1)):
            complaint = complaint or f"{name}: {share:.4f} of {count:,} elements are kept, not {wanted:g}"
    return expected, complaint


def objected(verdict: Verdict, complaint: str) -> Verdict:
    """The verdict, changed to wrong if there is an error message."""
    return replace(verdict, verified=False, worst=complaint) if complaint and verdict.verified else verdict
