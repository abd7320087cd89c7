"""Earlier counts of the emulator: ``expectations/emulator-<target>.json``, compared with new ones on any machine.

What may differ from the recorded counts:

- Launches, floating-point operations and the bytes of global and shared memory belong to the kernel. They are compared on
  every machine: exactly under the version of NVRTC with which they were recorded, and up to a thousandth under another one,
  which may move a single load into or out of a branch.
- Instructions, their classes, sectors, bank conflicts and the bytes of local memory also depend on the compiler, which may
  select, merge or spill differently. They are compared only under the version of NVRTC with which they were recorded.
- More of something is a regression. Less is an improvement, which is reported so that it can be recorded.

Counts depend on the tile, the target and, in some kernels, the random inputs; with another tile, target or seed nothing is
compared. :mod:`ptxkit.bench.recorded` runs cases with the recorded ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptxkit.bench.results import expectations
from ptxkit.bench.results.json_values import read_as
from ptxkit.bench.results.results import CaseResult, Results, Row
from ptxkit.errors import UsageError

SCHEMA = "ptxkit.counts/2"
EARLIER = "ptxkit.counts/1"
"""One seed for all variants of a case, and an absolute path to the description of a user."""
OF_KERNEL = ("flops", "load_bytes", "store_bytes", "copied_bytes", "shared_bytes")
"""Fields of :class:`~ptxkit.bench.results.results.Counted` that are compared under every compiler, besides the launches."""
OF_COMPILER = ("instructions", "load_sectors", "store_sectors", "bank_conflicts", "local_bytes")
"""Fields that are compared under the recorded version of NVRTC only."""

OTHER_COMPILER = 0.001
"""Relative difference of bytes and flops that another version of NVRTC may make. Between 13.0 and 13.5, of 153 variants of the
bundled kernels only the five of moe_routed differed, by at most 0.008%."""


@dataclass(frozen=True)
class ExpectedRow:
    """The recorded counts of a variant.

    Attributes:
        target: what it was compiled for. tile: its tile parameters. seed: of the inputs.
        launches: kernel launches of one call.
        counts: field of ``Counted`` -> count. by_class: instructions by class.
        nvrtc: version of NVRTC that compiled it.
    """

    target: str
    tile: Mapping[str, Any]
    seed: int
    launches: int
    counts: Mapping[str, int]
    by_class: Mapping[str, int]
    nvrtc: str


@dataclass(frozen=True)
class ExpectedCase:
    """A recorded case: how it is made again, and its variants.

    Attributes:
        description: of a user's kernel, its file, relative to the directory that holds ``expectations/`` if it is below it; ""
            for a kernel that is found by name.
    """

    kernel: str
    sizes: Mapping[str, int]
    options: Mapping[str, Any]
    rows: Mapping[str, ExpectedRow]
    description: str = ""


@dataclass(frozen=True)
class Expected:
    """The contents of a file.

    Attributes:
        target: of the file, for which variants are compiled unless they require another one.
        cases: key of the case -> the case.
    """

    target: str
    cases: Mapping[str, ExpectedCase]


def path_for(target: str, where: Path | None = None) -> Path:
    """The file of a target: ``sm_90a`` -> ``emulator-sm_90a.json``."""
    return (where or expectations.directory()) / f"emulator-{target}.json"


def load(path: Path) -> dict[str, Any]:
    """The recorded counts in a file, checked.

    Raises:
        UnavailableError: there is no such file. UsageError: it holds something else.
    """
    value = expectations.read_file(path, "this target in the emulator")
    if isinstance(value, dict) and value.get("schema") == EARLIER:
        value = {**value, "schema": SCHEMA, "cases": _with_a_seed_each(value.get("cases"))}
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise UsageError(f"{path} does not hold {SCHEMA}; restore it, or delete it and record again")
    try:
        parsed(value)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return value


def _with_a_seed_each(cases: Any) -> Any:
    """Cases of an earlier version, in which the variants get the seed of the case; :func:`parsed` refuses what is malformed."""
    if not isinstance(cases, dict):
        return cases
    found = {}
    for key, case in cases.items():
        rows = case.get("rows") if isinstance(case, dict) else None
        if not isinstance(rows, dict) or "seed" not in case:
            found[key] = case
            continue
        given = {n: {**row, "seed": case["seed"]} if isinstance(row, dict) else row for n, row in rows.items()}
        found[key] = {**{name: part for name, part in case.items() if name != "seed"}, "rows": given}
    return found


def parsed(value: Mapping[str, Any]) -> Expected:
    """The value of a file as an object.

    Raises:
        UsageError: a field or a count is missing, of the wrong type or negative.
    """
    found: Expected = read_as(Expected, value)
    for key, case in found.cases.items():
        for name, row in case.rows.items():
            _check_counts(row, f"cases.{key}.rows.{name}")
    return found


def _check_counts(row: ExpectedRow, where: str) -> None:
    """Raise UsageError for a count that is missing or that nothing can have."""
    for name in (*OF_KERNEL, *OF_COMPILER):
        if name not in row.counts:
            raise UsageError(f"{where}.counts.{name} is missing")
    counts = {f"counts.{name}": n for name, n in row.counts.items()} | {
        f"by_class.{n}": c for n, c in row.by_class.items()
    }
    for name, count in counts.items():
        if count < 0:
            raise UsageError(f"{where}.{name} must be 0 or more, not {count}")
    if row.launches < 1:
        raise UsageError(f"{where}.launches must be 1 or more, not {row.launches}")


def updated(
    known: Mapping[str, Any] | None,
    results: Results,
    target: str,
    gone: Iterable[tuple[str, str]] = (),
    base: Path | None = None,
) -> dict[str, Any]:
    """The recorded counts with those of these results entered; cases and variants that were not run stay.

    Args:
        known: the value of the file so far. target: the target of the file.
        gone: (key of a case, variant) of recorded variants that no longer exist, which are left out.
        base: the directory relative to which descriptions of users are recorded; None for absolute paths.

    Raises:
        UsageError: the results are not counts of the emulator, or the file is of another target.
    """
    if results.roofs is not None or not results.environment.get("nvrtc"):
        raise UsageError("counts are recorded from a run of bench run in the emulator")
    if known is not None and known["target"] != target:
        raise UsageError(f"the recorded counts are for {known['target']}, not for {target}")
    cases = dict((known or {}).get("cases", {}))
    dropped = set(gone)
    for case in results.cases:
        rows = {row.name: _record(row, case.seed, results.environment["nvrtc"]) for row in case.rows if _good(row)}
        if not rows:
            continue
        before = cases.get(case.key, {}).get("rows", {})
        description = _relative(case.description, base)
        cases[case.key] = {
            "kernel": case.kernel,
            "sizes": dict(case.sizes),
            "options": dict(case.options),
            **({"description": description} if description else {}),
            "rows": {**{name: row for name, row in before.items() if (case.key, name) not in dropped}, **rows},
        }
    return {"schema": SCHEMA, "target": target, "cases": dict(sorted(cases.items()))}


def _relative(description: str, base: Path | None) -> str:
    """The path of a description relative to ``base`` if it is below it, so that the record holds on other machines."""
    path = Path(description)
    return path.relative_to(base).as_posix() if description and base and path.is_relative_to(base) else description


def recordable(results: Results) -> bool:
    """Whether :func:`updated` enters any of these results."""
    return any(_good(row) for case in results.cases for row in case.rows)


def _good(row: Row) -> bool:
    return row.counted is not None and row.verified is not False and row.error is None


def _record(row: Row, seed: int, nvrtc: str) -> dict[str, Any]:
    assert row.counted is not None
    return {
        "target": row.target,
        "tile": dict(row.tile),
        "seed": seed,
        "launches": row.launches,
        "counts": {name: getattr(row.counted, name) for name in (*OF_KERNEL, *OF_COMPILER)},
        "by_class": dict(row.counted.by_class),
        "nvrtc": nvrtc,
    }


@dataclass(frozen=True)
class Difference:
    """One count that is not the recorded one.

    Attributes:
        case: its key. row: the variant. name: what was counted, in words: ``"load bytes"``.
        expected, found: the counts.
        detail: the classes of instructions that differ; "" for other counts.
    """

    case: str
    row: str
    name: str
    expected: int
    found: int
    detail: str = ""

    @property
    def more(self) -> bool:
        """Whether more was counted than is recorded."""
        return self.found > self.expected

    def __str__(self) -> str:
        if self.found == self.expected:
            return f"{self.name}: {self.found:,} as expected, of other classes{self.detail}"
        change = f" ({self.found / self.expected - 1:+.1%})" if self.expected else ""
        return f"{self.name}: {self.found:,}, expected {self.expected:,}{change}{self.detail}"


@dataclass(frozen=True)
class Check:
    """Results compared with recorded counts.

    Attributes:
        compared: how many variants were compared.
        of_kernel_only: how many of them without the counts that depend on the compiler. versions: the versions of NVRTC with
            which these were recorded.
        differences: the counts that differ.
        notes: variants and cases that were not compared, each with the reason.
    """

    compared: int
    of_kernel_only: int
    versions: tuple[str, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]


@dataclass
class _Found:
    compared: int = 0
    versions: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(expected: Mapping[str, Any], results: Results) -> Check:
    """Compare every variant that has recorded counts, and name those that have none."""
    known, found = parsed(expected).cases, _Found()
    nvrtc = results.environment.get("nvrtc", "")
    for case in results.cases:
        recorded = known.get(case.key)
        if recorded is None:
            found.notes.append(f"{case.key}: no expectations found")
        else:
            _check_case(case, recorded, nvrtc, found)
    versions = tuple(dict.fromkeys(found.versions))
    return Check(found.compared, len(found.versions), versions, tuple(found.differences), tuple(found.notes))


def _check_case(case: CaseResult, recorded: ExpectedCase, nvrtc: str, found: _Found) -> None:
    for row in case.rows:
        before = recorded.rows.get(row.name)
        if row.kind != "variant" or not _good(row):
            if before is not None and row.skipped:
                found.notes.append(f"{case.key} {row.name}: not compared, {row.skipped}")
            continue
        if before is None:
            found.notes.append(f"{case.key} {row.name}: no expectations found")
        elif before.target != row.target:
            found.notes.append(f"{case.key} {row.name}: not compared, the counts are recorded for {before.target}")
        elif before.seed != case.seed:
            found.notes.append(f"{case.key} {row.name}: not compared, the counts are recorded with --seed {before.seed}")
        elif dict(before.tile) != dict(row.tile):
            tile = " ".join(f"{name}={value}" for name, value in before.tile.items()) or "no tile"
            found.notes.append(f"{case.key} {row.name}: not compared, the counts are recorded with {tile}")
        else:
            found.compared += 1
            if before.nvrtc != nvrtc:
                found.versions.append(before.nvrtc)
            found.differences += _differences(case, row, before, compiler=before.nvrtc == nvrtc)


def _differences(case: CaseResult, row: Row, before: ExpectedRow, *, compiler: bool) -> Iterator[Difference]:
    if row.launches != before.launches:
        yield Difference(case.key, row.name, "launches", before.launches, row.launches)
    for name in (*OF_KERNEL, *(OF_COMPILER if compiler else ())):
        assert row.counted is not None
        now, then = getattr(row.counted, name), before.counts.get(name)
        detail = _classes(before.by_class, row.counted.by_class) if name == "instructions" else ""
        same = now == then if compiler or then is None else abs(now - then) <= OTHER_COMPILER * then
        if then is not None and (not same or detail):
            yield Difference(case.key, row.name, name.replace("_", " "), then, now, detail)


def _classes(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """``"; float32 +1,024, load.global -512"``: the classes that differ."""
    changes = {name: after.get(name, 0) - before.get(name, 0) for name in dict.fromkeys((*before, *after))}
    shown = ", ".join(f"{name} {change:+,}" for name, change in changes.items() if change)
    return f"; {shown}" if shown else ""
