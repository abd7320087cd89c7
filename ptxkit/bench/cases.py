"""The cases of a benchmark: kernels at the sizes that their descriptions declare, or at given sizes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ptxkit.bench.results.results import CaseResult, Row
from ptxkit.errors import UsageError
from ptxkit.workload import registry
from ptxkit.workload.workload import Workload, suggestion


@dataclass(frozen=True)
class Plan:
    """One case to be measured.

    Attributes:
        workload: the workload to measure.
        variants: names of the variants to measure; all if empty. tiles: variant -> tile parameters to fix.
        peers: the peers of the run to compare with; None for all.
        seed: seed for the inputs; None for that of the run.
        chosen: the variant that :func:`ptxkit.workload.choice.choose` takes, for the result; "" where it was not asked.
        without: names of variants and peers that are left out, because they made a GPU unusable for an earlier process.
    """

    workload: Workload
    variants: tuple[str, ...] = ()
    tiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    peers: tuple[str, ...] | None = None
    chosen: str = ""
    seed: int | None = None
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class CaseSpec:
    """A case as it travels between processes: descriptions do not.

    Attributes:
        kernel: name, or absolute path of the description. sizes, options: of the workload.
        variants, tiles, peers, chosen, seed, without: see :class:`Plan`.
    """

    kernel: str
    sizes: Mapping[str, int]
    options: Mapping[str, Any]
    variants: tuple[str, ...] = ()
    tiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    peers: tuple[str, ...] | None = None
    chosen: str = ""
    seed: int | None = None
    without: tuple[str, ...] = ()

    @classmethod
    def of(cls, plan: Plan) -> CaseSpec:
        """The case of a plan."""
        workload = plan.workload
        return cls(
            description_of(type(workload)) or workload.name,
            dict(workload.sizes),
            dict(workload.options),
            plan.variants,
            {name: dict(tile) for name, tile in plan.tiles.items()},
            plan.peers,
            plan.chosen,
            plan.seed,
            plan.without,
        )

    def workload(self) -> Workload:
        """The workload, made from its description here."""
        return made_again(registry.find(self.kernel), self.sizes, self.options)

    def plan(self) -> Plan:
        """The case as :class:`~ptxkit.bench.measure.benchmark.Benchmark` takes it."""
        return Plan(self.workload(), self.variants, self.tiles, self.peers, self.chosen, self.seed, self.without)


@dataclass(frozen=True)
class Rest:
    """What is left to be measured.

    Attributes:
        plans: the cases; the first one is that of ``failed``.
        failed: the rows of the first case whose kernels failed. before: how many cases were measured before.
    """

    plans: tuple[Plan, ...]
    failed: tuple[Row, ...]
    before: int

    def after(self, count: int, failed: Row) -> Rest:
        """What is left when ``count`` more cases are measured, and a candidate of the next one failed."""
        earlier = self.failed if count == 0 else ()
        return Rest(self.plans[count:], (*earlier, failed), self.before + count)

    def specs(self) -> list[CaseSpec]:
        """The cases for another process: the first one without the candidates that failed."""
        first = replace(self.plans[0], without=tuple(row.name for row in self.failed))
        return [CaseSpec.of(plan) for plan in (first, *self.plans[1:])]


def plans(
    words: Sequence[str],
    sizes: Sequence[Sequence[str]] = (),
    options: Mapping[str, str] | None = None,
    *,
    small: bool = False,
) -> list[Plan]:
    """The cases that the arguments of a command name.

    Args:
        words: ``KERNEL`` or ``KERNEL:VARIANT``, a pattern or a description file in place of the name; none means every kernel.
        sizes: sizes of each kernel instead of those in the descriptions.
        options: option -> value, for the kernels that have the option.
        small: use the emulator's sizes if none are given.

    Raises:
        UsageError: no such kernel or variant, sizes that do not fit it, an option that none of the kernels has.
    """
    chosen: dict[type[Workload], list[str]] = {}
    whole: set[type[Workload]] = set()  # named without a variant, at least once
    for word in registry.selected(words):
        name, colon, variant = word.partition(":")
        kernel = registry.find(name)
        wanted = chosen.setdefault(kernel, [])
        if colon:
            wanted.append(kernel.variant(variant).name)
        else:
            whole.add(kernel)
    given = dict(options or {})
    for option in given:
        if not any(option in kernel.option_types() for kernel in chosen):
            known = dict.fromkeys(o for kernel in chosen for o in kernel.option_types())
            raise UsageError(f"none of these kernels has an option {option!r}; {suggestion(option, known)}")
    made: dict[Workload, Plan] = {}
    for kernel, variants in chosen.items():
        mine = {name: value for name, value in given.items() if name in kernel.option_types()}
        if sizes:
            cases = [kernel.make(list(s), mine) for s in sizes]
        elif small:
            cases = [kernel.make((), mine, small=True)]
        else:
            cases = [kernel(**{**case, **mine}) for case in kernel.benchmarks]
        for workload in cases:
            made.setdefault(workload, Plan(workload, () if kernel in whole else tuple(dict.fromkeys(variants))))
    return list(made.values())


def description_of(kernel: type[Workload]) -> str:
    """Path of a user's description; "" for a kernel that is found by name."""
    if not kernel.__module__.startswith(registry.FILE_MODULE):
        return ""
    return str(sys.modules[kernel.__module__].__file__)


def kernel_of(case: CaseResult) -> type[Workload]:
    """The kernel of a result.

    Raises:
        UsageError: this version has no such kernel.
    """
    return registry.find(case.description or case.kernel)


def made_again(kernel: type[Workload], sizes: Mapping[str, Any], options: Mapping[str, Any]) -> Workload:
    """The workload of earlier results.

    Raises:
        UsageError: a size or an option does not exist any more, or has another range.
    """
    known = {*kernel.size_names(), *kernel.option_types()}
    given = {**sizes, **options}
    if gone := [name for name in given if name not in known]:
        raise UsageError(f"{kernel.name} has no size or option {gone[0]} any more; the results are of another version")
    return kernel(**given)


STEPS = 8
"""Sizes of a generated ladder: from a sixteenth of an L2 cache to eight of it, where each size has twice the bytes."""
SMALLEST, LARGEST = 1 / 16, 8.0


def ladder(
    kernel: type[Workload],
    l2_bytes: int,
    options: Mapping[str, str] | None = None,
    along: str | None = None,
    *,
    steps: int = STEPS,
    small: bool = False,
) -> list[Workload]:
    """A kernel at growing sizes, the smallest first.

    The sizes of its benchmarks, and where it has one size, or ``along`` names one, powers of two of that size whose arrays have
    from a sixteenth to eight times the bytes of the L2 cache. With ``small``, powers of two up to the default size of the
    emulator instead, of the first size unless ``along`` names another.

    Args:
        l2_bytes: of the device. options: option -> value. along: the size to vary.
        steps: how many powers of two. small: sizes for the emulator.

    Raises:
        UsageError: no such option or size, the kernel has no size, or no power of two fits its constraints.
    """
    names = kernel.size_names()
    if along is not None and along not in names:
        raise UsageError(f"{kernel.name} has no size {along!r}; {suggestion(along, names)}")
    if not names:
        raise UsageError(f"{kernel.name} has no sizes; there is no ladder of it")
    base = kernel.make((), options, small=small)
    varied = along or (names[0] if small or len(names) == 1 else None)
    given = [base] if small else [kernel(**{**case, **dict(options or {})}) for case in kernel.benchmarks]
    if varied is not None:
        largest = getattr(base, varied)
        every = list(_powers(base, varied))
        if small:
            chosen = [w for w in every if getattr(w, varied) <= largest][-steps:]
        else:
            fitting = [w for w in every if SMALLEST * l2_bytes <= w.bytes_needed() <= LARGEST * l2_bytes]
            chosen = (fitting or every)[:steps]
        if not chosen:
            raise UsageError(f"no power of two fits {kernel.name} as {varied}; give sizes by --sizes")
        given += chosen
    made = {tuple(w.sizes.items()): w for w in given}
    return sorted(made.values(), key=lambda w: (w.bytes_needed(), *w.sizes.values()))


def _powers(base: Workload, name: str) -> Iterator[Workload]:
    """The workload with each power of two that it accepts as one of its sizes."""
    for exponent in range(31):
        with suppress(UsageError):  # of its constraints
            yield type(base)(**{**base.sizes, **base.options, name: 1 << exponent})


def parse_sizes(text: str) -> list[tuple[str, ...]]:
    """``"8192x4096,128x4096"`` -> ``[("8192", "4096"), ("128", "4096")]``.

    Raises:
        UsageError: an empty size, or one that is not numbers joined by x.
    """
    found = []
    for part in text.split(","):
        if not re.fullmatch(r"\d[\d_]*(x\d[\d_]*)*", part.strip()):
            raise UsageError(f"--sizes takes sizes such as 8192x4096,128x4096, not {part.strip()!r}")
        found.append(tuple(part.strip().split("x")))
    return found
