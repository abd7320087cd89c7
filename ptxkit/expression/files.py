"""Writes NAME.cu, NAME.py and test_NAME.py for a formula and options."""

from __future__ import annotations

import math
from collections.abc import Callable

from ptxkit.errors import UsageError
from ptxkit.expression.description import Description
from ptxkit.expression.kernels import source_of, write_source
from ptxkit.expression.names import CLASS_WORDS
from ptxkit.expression.rounding import TYPES, NotFiniteError, default_ranges, simulated, tolerances
from ptxkit.expression.syntax import SCALAR_NAMES, Expression, Kind, parse
from ptxkit.workload.workload import Workload

DEFAULT_SCALAR = 0.5

LARGEST_FLOAT32 = (2 - 2.0**-23) * 2.0**127


def generate(
    formula: str,
    name: str,
    title: str,
    naming: str,
    columns: tuple[str, ...],
    arrays: tuple[str, ...],
    scalars: tuple[str, ...],
    ranges: tuple[str, ...],
    say: Callable[[str], None],
) -> dict[str, str]:
    """File name -> text of ``NAME.cu``, ``NAME.py`` and ``test_NAME.py``.

    Args:
        formula: the expression.
        name: of the kernel. title: of the class. naming: see :meth:`Description.text`.
        columns, arrays: names. scalars: ``NAME`` or ``NAME=VALUE``. ranges: ``NAME=LOW:HIGH``.
        say: called with a remark about what the files lack.

    Raises:
        UsageError: the formula or an option is wrong, or the formula has no finite value for such inputs.
    """
    numbers = dict(_scalar(text) for text in scalars)
    expression = parse(formula, columns, tuple(numbers), arrays)
    source = source_of(expression, name)
    for scalar in source.scalars:
        if scalar in CLASS_WORDS or hasattr(Workload, scalar):
            raise UsageError(f"--expression: {scalar!r} cannot name a number, a field of the class; choose another name")
    values = {n: numbers.get(n, SCALAR_NAMES.get(n, DEFAULT_SCALAR)) for n in source.scalars}
    chosen = default_ranges(expression) | _ranges(ranges, expression)
    try:
        results = simulated(expression, chosen, values)
    except NotFiniteError as error:
        drawn = ", ".join(f"{n} in {low:g}:{high:g}" for n, (low, high) in chosen.items())
        raise UsageError(
            f"--expression: {error} are NaN or infinite with {drawn}; give other ranges by --range NAME=LOW:HIGH"
        ) from None
    permitted = tolerances(results, expression.result.kind is Kind.ROW)
    if "f32" not in permitted:
        raise UsageError(
            "--expression: rounding changes results of f32 by a quarter of their magnitude, so that no tolerance could tell "
            "right from wrong; give other ranges by --range NAME=LOW:HIGH"
        )
    for dtype in TYPES:
        if dtype not in permitted:
            say(
                f"{dtype} is left out: with intermediate results in {dtype}, rounding changes the result too much to verify it"
            )
    description = Description(source, title, chosen, values, permitted)
    return {
        f"{name}.cu": write_source(source),
        f"{name}.py": description.text(naming),
        f"test_{name}.py": description.test(),
    }


def _scalar(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        number = float(value) if equals else SCALAR_NAMES.get(name, DEFAULT_SCALAR)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"--scalar {text}: write NAME or NAME=VALUE, such as alpha=0.5")
    if abs(number) > LARGEST_FLOAT32:
        raise UsageError(f"--scalar {text}: scalars are float32, which holds numbers up to {LARGEST_FLOAT32:.7g}")
    return name, number


def _ranges(texts: tuple[str, ...], expression: Expression) -> dict[str, tuple[float, float]]:
    found = {}
    for text in texts:
        name, _, bounds = text.partition("=")
        low, _, high = bounds.partition(":")
        try:
            range_ = float(low), float(high)
        except ValueError:
            raise UsageError(f"--range {text}: write NAME=LOW:HIGH, such as x=0.5:1.5") from None
        if not (math.isfinite(range_[0]) and math.isfinite(range_[1]) and range_[0] < range_[1]):
            raise UsageError(f"--range {text}: LOW must be less than HIGH, and both finite")
        if expression.inputs.get(name, Kind.SCALAR) is Kind.SCALAR:
            raise UsageError(f"--range {text}: the expression has no array {name!r}")
        found[name] = range_
    return found
