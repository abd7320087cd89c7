"""Verifies dropout of a peer with unknown random numbers: which elements are dropped is unknown, but not their values.

Each element must have the value of a kept or of a dropped element, and the fraction of kept elements must be within the
statistical limits. The first elements suffice for this. Outputs whose elements depend on several random numbers, such as sums
along rows, cannot be verified in this way; :func:`applies` recognizes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.workload.verify import Verdict

if TYPE_CHECKING:
    from ptxkit.workload.workload import Workload

ROWS = 64  # of workloads with several sizes
ELEMENTS = 1 << 16  # of workloads with one size
DEVIATIONS = (
    6  # permitted deviation of the fraction in standard deviations; exceeded by chance once in 500 million times
)
ALL_DROPPED = np.uint64(1 << 32)  # a threshold above all random words


def reduced(workload: Workload) -> Workload:
    """The workload with its first size, which is that of the leading dimension, reduced to what is verified."""
    name, size = next(iter(workload.sizes.items()))
    limit = ROWS if len(workload.sizes) > 1 else ELEMENTS
    return replace(workload, **{name: min(size, limit)})  # type: ignore[type-var]  # made a dataclass


def reduced_inputs(small: Workload, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a workload, with the arrays reduced to the shapes that the :func:`reduced` workload has."""
    shapes = {name: np.shape(value) for name, value in small.inputs(np.random.default_rng(0)).items()}
    return {name: _first(value, shapes[name]) for name, value in inputs.items()}


def reduced_outputs(
    own: Mapping[str, np.ndarray[Any, Any]], outputs: Mapping[str, np.ndarray[Any, Any]]
) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs of a peer, with the arrays reduced to the shapes of the outputs ``own`` of the reduced workload."""
    return {name: _first(value, np.shape(own[name])) for name, value in outputs.items() if name in own}


def _first(value: Any, shape: tuple[int, ...]) -> Any:
    """The first elements of each dimension of an array; a scalar unchanged."""
    return value[tuple(slice(int(size)) for size in shape)] if np.ndim(value) else value


@dataclass(frozen=True)
class Choices:
    """The outputs of the :func:`reduced` workload with all elements kept, and with all elements dropped.

    Attributes:
        p: the probability of an element to be dropped.
    """

    kept: Mapping[str, np.ndarray[Any, Any]]
    dropped: Mapping[str, np.ndarray[Any, Any]]
    p: float

    @classmethod
    def of(cls, small: Workload, inputs: Mapping[str, Any]) -> Choices:
        """Those of a workload with a probability ``p`` and an input ``threshold`` that random words of dropped elements are
        below; ``inputs`` are its inputs, see :func:`reduced_inputs`."""
        kept, dropped = (small.reference(**{**inputs, "threshold": t}) for t in (np.uint64(0), ALL_DROPPED))
        return cls(kept, dropped, small.options["p"])


def applies(choices: Choices, own: Mapping[str, np.ndarray[Any, Any]]) -> bool:
    """Whether each element of the outputs ``own`` of the reference depends on one random number."""
    expected, complaint = nearest(choices, own)
    return not complaint and all(np.allclose(own[n], expected[n], rtol=1e-6, atol=1e-12, equal_nan=True) for n in own)


def nearest(
    choices: Choices, outputs: Mapping[str, np.ndarray[Any, Any]]
) -> tuple[dict[str, np.ndarray[Any, Any]], str]:
    """The expected outputs for the elements that were kept, and an error message about their number, or "".

    Args:
        outputs: the outputs of a peer, see :func:`reduced_outputs`.
    """
    kept, dropped, p = choices.kept, choices.dropped, choices.p
    expected, complaint = {}, ""
    for name, output in outputs.items():
        actual = output.astype(np.float64)
        is_kept = np.abs(actual - kept[name]) <= np.abs(actual - dropped[name])
        expected[name] = np.where(is_kept, kept[name], dropped[name])
        apart = np.abs(kept[name] - dropped[name])
        telling = apart > 0.05 * max(
            apart.mean(), 1e-30
        )  # other elements are the same in both cases, except for rounding
        count = int(telling.sum())
        share, wanted = float(is_kept[telling].mean()) if count else 0.0, 1 - p
        if count and abs(share - wanted) > DEVIATIONS * np.sqrt(p * wanted / count):
            complaint = complaint or f"{name}: {share:.4f} of {count:,} elements are kept, not {wanted:g}"
    return expected, complaint


def objected(verdict: Verdict, complaint: str) -> Verdict:
    """The verdict, changed to wrong if there is an error message."""
    return replace(verdict, verified=False, worst=complaint) if complaint and verdict.verified else verdict
