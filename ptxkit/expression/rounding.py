"""The tolerance of an expression: what rounding does to it, found by computing it in numpy with each operation rounded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from ptxkit.expression.operations import DROPOUT, OPERATIONS, REDUCTIONS
from ptxkit.expression.syntax import Expression, Kind
from ptxkit.workload.launch import Tolerance
from ptxkit.workload.tolerance import BASES, median_magnitude

SHAPES = ((64, 1024), (1024, 16))
"""Rows and columns of the simulations: errors of a mean are smaller in long rows, those of a sum larger."""
MARGIN = 4.0
"""The tolerance is this multiple of the largest error seen: other sizes and seeds may have larger ones, and some functions
are approximated to 22 bits."""
DRAWS = 8  # random inputs of each shape of a test
SENSIBLE = 0.25
"""Largest tolerance, relative to the median of the results, with which a comparison still means something."""
TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


class NotFiniteError(Exception):
    """The result has NaN or infinity for the given ranges of inputs; the text says how many values."""


def default_ranges(expression: Expression) -> dict[str, tuple[float, float]]:
    """Range of the random values of each array: [-1, 1), or [0.5, 1.5) for what a logarithm, a root or a divisor needs."""
    positive: set[int] = set()
    for value in expression.values:
        if value.operation in OPERATIONS:
            for operand in OPERATIONS[value.operation].positive:
                _collect(expression, value.operands[operand], positive)
    ranges = {}
    for number, value in enumerate(expression.values):
        if value.operation == "input" and value.kind is not Kind.SCALAR:
            ranges[value.name] = (0.5, 1.5) if number in positive else (-1.0, 1.0)
    return ranges


def _collect(expression: Expression, number: int, found: set[int]) -> None:
    if number in found:
        return
    found.add(number)
    if expression.values[number].operation in ("exp", "exp2", "sigmoid", "abs", "square"):
        return  # not negative, whatever its operand is
    for operand in expression.values[number].operands:
        _collect(expression, operand, found)


def simulated(
    expression: Expression, ranges: Mapping[str, tuple[float, float]], scalars: Mapping[str, float]
) -> dict[str, list[tuple[Any, Any]]]:
    """(exact, rounded) results by element type and shape, with the intermediate results rounded as in the unfused chain.

    Raises:
        NotFiniteError: a result is NaN or infinite for such inputs.
    """
    import ml_dtypes

    rng = np.random.default_rng(0)
    found: dict[str, list[tuple[Any, Any]]] = {}
    for (rows, cols), (dtype, name) in product(SHAPES, TYPES.items()):
        target = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
        inputs = _drawn(expression, ranges, scalars, (rows, cols), target, rng)
        whole = (rows, cols) if expression.result.kind is Kind.ELEMENT else (rows, 1)
        exact = np.broadcast_to(_evaluate(expression, inputs, None), whole)
        rounded = np.broadcast_to(_evaluate(expression, inputs, target), whole)
        wrong = int(np.count_nonzero(~np.isfinite(exact)))
        if wrong or (dtype == "f32" and not np.isfinite(rounded).all()):
            raise NotFiniteError(f"{wrong or int(np.count_nonzero(~np.isfinite(rounded))):,} of {exact.size:,} results")
        found.setdefault(dtype, []).append((exact, rounded))
    return {dtype: pairs for dtype, pairs in found.items() if all(np.isfinite(rounded).all() for _, rounded in pairs)}


def sensible_shapes(
    expression: Expression,
    ranges: Mapping[str, tuple[float, float]],
    scalars: Mapping[str, float],
    shapes: Sequence[tuple[int, int]],
) -> list[tuple[int, int]]:
    """The shapes whose results are finite numbers of the usual magnitude, so that a comparison means something.

    In rows of one element, ``x - mean(x)`` is 0, and its quotient by the norm is NaN.
    """
    rng = np.random.default_rng(1)

    def largest(shape: tuple[int, int]) -> float:
        """The largest magnitude in several draws; 0 if a result is not finite."""
        draws = (_drawn(expression, ranges, scalars, shape, np.dtype(np.float32), rng) for _ in range(DRAWS))
        highest = np.max([np.abs(np.asarray(_evaluate(expression, inputs, None))).max() for inputs in draws])
        return float(highest) if np.isfinite(highest) else 0.0

    usual = largest(SHAPES[0])
    return [shape for shape in shapes if largest(shape) > 1e-6 * usual]


def _drawn(
    expression: Expression,
    ranges: Mapping[str, tuple[float, float]],
    scalars: Mapping[str, float],
    shape: tuple[int, int],
    target: np.dtype[Any],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Random inputs of these rows and columns, which ``target`` represents, and the scalars, in float64."""
    inputs: dict[str, Any] = {}
    for array, (low, high) in ranges.items():
        size = (1, shape[1]) if expression.inputs[array] is Kind.COLUMN else shape
        with np.errstate(over="ignore"):  # an infinite input makes the result infinite, which is refused
            inputs[array] = rng.uniform(low, high, size).astype(np.float32).astype(target).astype(np.float64)
    return inputs | {name: np.float64(np.float32(value)) for name, value in scalars.items()}


def _evaluate(expression: Expression, inputs: Mapping[str, Any], target: np.dtype[Any] | None) -> Any:
    """The result in float64; with ``target``, each value is rounded to float32, and to ``target`` where it is stored."""
    from ptxkit.kernels.elementwise.elementwise import activation

    values: list[Any] = []
    with np.errstate(all="ignore"):
        for value in expression.values:
            if value.operation == "input":
                values.append(inputs[value.name])
                continue
            if value.operation == "constant":
                values.append(np.float64(value.number))
                continue
            operands = [values[o] for o in value.operands]
            if value.operation == DROPOUT:
                result = operands[0] / 0.9  # what is kept; zeros are exact
            else:
                formula = (OPERATIONS.get(value.operation) or REDUCTIONS[value.operation]).numpy
                scope = {"np": np, "activation": activation} | {f"v{k}": operand for k, operand in enumerate(operands)}
                result = eval(formula.format(*(f"v{k}" for k in range(len(operands)))), scope)
            if target is not None:
                result = np.asarray(result).astype(np.float32)
                stored = value.kind in (Kind.ELEMENT, Kind.COLUMN)
                result = (result.astype(target) if stored else result).astype(np.float64)
            values.append(result)
    return values[-1]


def tolerances(results: Mapping[str, list[tuple[Any, Any]]], by_row: bool) -> dict[str, Tolerance | None]:
    """By element type: None where the default tolerance permits the errors with a margin, else a tolerance.

    Types are missing for which rounding changes results by so much of their typical magnitude that a tolerance would permit
    wrong results.

    Args:
        results: see :func:`simulated`.
        by_row: the results are of rows; they are f32, whatever the element type, so that its default does not apply.
    """
    found: dict[str, Tolerance | None] = {}
    for dtype, pairs in results.items():
        base = BASES[TYPES[dtype]]
        needed = [_needed(exact, rounded, base) for exact, rounded in pairs]
        if all(absolute == 0 for absolute, _ in needed) and not (by_row and dtype != "f32"):
            found[dtype] = None
        elif all(absolute <= SENSIBLE * typical for absolute, typical in needed):
            smallest = base.absolute * min(1.0, *(typical for _, typical in needed))
            found[dtype] = Tolerance(
                relative=base.relative, absolute=max(smallest, *(absolute for absolute, _ in needed))
            )
    return found


def _needed(exact: Any, rounded: Any, base: Tolerance) -> tuple[float, float]:
    """The absolute tolerance that errors need, 0 where the base suffices with a margin; and the typical magnitude."""
    error, typical = np.abs(rounded - exact), median_magnitude(exact)
    if (2 * error <= base.absolute * min(1.0, typical) + base.relative * np.abs(exact)).all():
        return 0.0, typical
    return _rounded_up(MARGIN * float((error - base.relative * np.abs(exact) / 2).max())), typical


def _rounded_up(number: float) -> float:
    """The next larger number of two decimal digits."""
    if number <= 0:
        return 0.0
    digit = 10.0 ** (math.floor(math.log10(number)) - 1)
    return float(f"{math.ceil(number / digit) * digit:.2g}")
