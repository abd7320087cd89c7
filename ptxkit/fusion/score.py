"""The weighted score of a group: savings and costs against thresholds.

The criteria, their weights and thresholds are the usual ones of fusion checklists: bytes saved (0.4, above 30%), launches
saved (0.2, above 10%), register pressure (0.2, below 50 registers), complexity (0.1, at most moderate), maintainability (0.1,
high). A criterion that reaches its threshold counts in full, below it in proportion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from ptxkit.errors import UsageError
from ptxkit.fusion.cost import Cost, Group
from ptxkit.fusion.rules import Complexity
from ptxkit.targets.sm import SmLimits
from ptxkit.workload.workload import suggestion

PRODUCT_REGISTERS = 168  # 128 sums of a 128 x 128 tile with 128 threads, addresses, descriptors
ATTENTION_REGISTERS = 208  # scores and results of a tile
ROW_REGISTERS = 40  # eight to sixteen elements of a row, sums, addresses
ELEMENT_REGISTERS = 16
VECTOR_ELEMENTS = 4  # elements of a tensor that a thread holds at a time


@dataclass(frozen=True)
class Weights:
    """The weights of the criteria; their sum is 1."""

    memory: float = 0.4
    launches: float = 0.2
    registers: float = 0.2
    complexity: float = 0.1
    maintainability: float = 0.1


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of the criteria.

    Attributes:
        memory, launches: fractions saved from which a criterion counts in full.
        registers: registers that the fused kernel may need, beyond what its most demanding operation needs anyway.
        score: the lowest score of the verdict FUSE.
        speedup: the lowest predicted speed-up of the verdict FUSE.
    """

    memory: float = 0.3
    launches: float = 0.1
    registers: float = 50.0
    score: float = 0.5
    speedup: float = 1.005


WEIGHTS, THRESHOLDS = Weights(), Thresholds()


@dataclass(frozen=True)
class Score:
    """The criteria of a group, each from 0 to 1, and their weighted sum."""

    memory: float
    launches: float
    registers: float
    complexity: float
    maintainability: float
    weights: Weights = field(default=WEIGHTS, repr=False)

    @property
    def total(self) -> float:
        """The weighted sum."""
        return float(sum(getattr(self.weights, f.name) * getattr(self, f.name) for f in fields(Weights)))


def score(
    group: Group,
    separate: list[Cost],
    fused: Cost,
    complexity: Complexity,
    offered: bool,
    weights: Weights,
    thresholds: Thresholds,
    registers: int | None = None,
) -> Score:
    """The score of a group.

    Args:
        separate: costs of its operations as launches of their own.
        offered: whether a bundled kernel, or a formula, computes the group.
        registers: of a thread of the compiled kernel; None: estimated.
    """
    before = sum(one.bytes for one in separate)
    saved = 1 - fused.bytes / before if before else 0.0
    launches = 1 - 1 / len(separate)
    beyond = (registers or estimated_registers(group)) - max(
        estimated_registers(Group.of(group.graph, [o])) for o in group.operations
    )
    room = max(1.0, SmLimits.registers_per_thread - thresholds.registers)
    return Score(
        memory=_reached(saved, thresholds.memory),
        launches=_reached(launches, thresholds.launches),
        registers=1.0 if beyond <= thresholds.registers else max(0.0, 1 - (beyond - thresholds.registers) / room),
        complexity=1.0 if complexity != "high" else 0.5 if offered else 0.0,
        maintainability=1.0 if offered else {"low": 0.8, "moderate": 0.5, "high": 0.0}[complexity],
        weights=weights,
    )


def _reached(value: float, threshold: float) -> float:
    return 1.0 if value >= threshold else max(0.0, value) / threshold if threshold else 0.0


def estimated_registers(group: Group) -> int:
    """Registers of a thread that a kernel of the group needs, roughly: the base of the most demanding family, and a vector of
    elements for each further tensor."""
    families = group.families
    if "attention" in families:
        base = ATTENTION_REGISTERS
    elif "contraction" in families:
        base = PRODUCT_REGISTERS
    else:
        base = ROW_REGISTERS if "row" in families else ELEMENT_REGISTERS
    tensors = len(group.reads()) + len(group.writes())
    return min(SmLimits.registers_per_thread, base + VECTOR_ELEMENTS * max(0, tensors - 2))


def parse_weights(given: Mapping[str, str]) -> Weights:
    """Weights from texts; those that are not given keep their defaults, and all are scaled so that their sum is 1.

    Raises:
        UsageError: an unknown criterion, or a weight that is no number from 0.
    """
    values = _numbers(given, WEIGHTS, "weight")
    total = sum(values.values())
    if not total:
        raise UsageError("the weights must not all be 0")
    return Weights(**{name: value / total for name, value in values.items()})


def parse_thresholds(given: Mapping[str, str]) -> Thresholds:
    """Thresholds from texts; those that are not given keep their defaults.

    Raises:
        UsageError: an unknown criterion, or a threshold that is no number from 0.
    """
    return Thresholds(**_numbers(given, THRESHOLDS, "threshold"))


def _numbers(given: Mapping[str, str], defaults: Weights | Thresholds, what: str) -> dict[str, float]:
    values = {f.name: float(getattr(defaults, f.name)) for f in fields(defaults)}
    for name, text in given.items():
        if name not in values:
            raise UsageError(f"there is no {what} {name!r}; {suggestion(name, values)}")
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or number < 0:
            raise UsageError(f"the {what} of {name} must be a number from 0, not {text!r}")
        values[name] = number
    return values
