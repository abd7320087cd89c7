"""Earlier times of a GPU: ``expectations/<gpu>.json``, written from runs on that GPU only, and compared with new ones.

The counts of the emulator are beside them: :mod:`ptxkit.bench.results.count_expectations`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptxkit.bench.results.files import cuda_driver_named, with_peers_renamed
from ptxkit.bench.results.json_values import NotNegative, Positive, read_as
from ptxkit.bench.results.judge import Judgement, judge
from ptxkit.bench.results.results import CaseResult, Mode, Results, Row, Timed
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.files import check_writable, locked, read_text, refused, stem_of, write_json
from ptxkit.runtime import registry

SCHEMA = "ptxkit.expectations/3"
EARLIER = ("ptxkit.expectations/1", "ptxkit.expectations/2")  # version 1 calls its cases targets
MACHINES = 0.03  # tolerated beside the spread for another GPU of the model, or another day; an estimate, not measured
MODES: tuple[Mode, ...] = ("cold", "hot")
CODE = 16  # digits of the hash of the machine code that are recorded


@dataclass(frozen=True)
class ExpectedTime:
    """A median, as it was recorded."""

    median_us: Positive
    spread_us: NotNegative
    samples: int


@dataclass(frozen=True)
class ExpectedRow:
    """A candidate's times, and the first digits of the hash of its machine code."""

    cold: ExpectedTime | None = None
    hot: ExpectedTime | None = None
    code: str | None = None


@dataclass(frozen=True)
class Expected:
    """The fields of a case that are checked when a file is read; the others are for readers of the file."""

    rows: Mapping[str, ExpectedRow]
    environment: Mapping[str, Any] = field(default_factory=dict)


def directory() -> Path:
    """The directory of the expectations: beside the package in a checkout, else in the working directory."""
    root = Path(__file__).resolve().parents[3]
    return (root if (root / "pyproject.toml").is_file() else Path.cwd()) / "expectations"


def path_for(gpu: str, where: Path | None = None) -> Path:
    """The file of a GPU: ``NVIDIA H200`` -> ``nvidia-h200.json``."""
    return (where or directory()) / f"{stem_of(gpu)}.json"


def updated(
    known: Mapping[str, Any] | None, results: Results, gone: Iterable[tuple[str, str]] = ()
) -> dict[str, Any]:
    """The expectations with the times of these results entered; cases and candidates that were not run stay.

    Rows that were wrong, raised an alarm or have no time are left out.

    Args:
        known: the value of the file so far.
        gone: (key of a case, variant) of recorded variants that no longer exist, which are left out.

    Raises:
        UsageError: the results are not of a GPU.
    """
    if not registry.measures_time(results.device_kind):
        raise UsageError("expectations come from a GPU; the emulator has no times")
    cases = dict((known or {}).get("cases", {}))
    dropped = set(gone)
    for case in results.cases:
        rows = {row.name: _record(row) for row in case.rows if _good(row)}
        if rows:
            before = cases.get(case.key, {}).get("rows", {})
            rows = {**{name: row for name, row in before.items() if (case.key, name) not in dropped}, **rows}
            cases[case.key] = {
                "created": results.created,
                "environment": dict(results.environment),
                "roof_gbs": results.roofs and results.roofs.copy_gbs,
                "rows": rows,
            }
    return {"schema": SCHEMA, "gpu": results.device, "cases": dict(sorted(cases.items()))}


def _good(row: Row) -> bool:
    return row.cold is not None and row.verified is not False and not row.alarms and row.error is None


def _record(row: Row) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": row.kind}
    for mode in MODES:
        timed = row.timed(mode)
        if timed:
            record[mode] = {
                "median_us": timed.median_us,
                "spread_us": timed.spread_us,
                "samples": timed.samples,
            }
    if row.version:
        record["version"] = row.version
    if row.code_sha256:
        record["code"] = row.code_sha256[:CODE]
    if row.tile:
        record["tile"] = dict(row.tile)
    return record


def load(path: Path) -> dict[str, Any]:
    """The expectations in a file.

    Raises:
        UnavailableError: there is no such file. UsageError: it holds something else.
    """
    value = read_file(path, "this GPU")
    earlier = isinstance(value, dict) and value.get("schema") in EARLIER
    if earlier:
        value = {{"targets": "cases"}.get(name, name): v for name, v in value.items()} | {"schema": SCHEMA}
    if not isinstance(value, dict) or value.get("schema") != SCHEMA or not isinstance(value.get("cases"), dict):
        raise UsageError(f"{path} does not hold {SCHEMA}; restore it, or delete it and record again")
    for key, case in value["cases"].items():
        try:
            read_as(Expected, case, f"cases[{key!r}]")
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
        case["environment"] = cuda_driver_named(case.get("environment", {}))
        if earlier:
            case["rows"] = with_peers_renamed(case["rows"])
    return value


def read_file(path: Path, whose: str) -> Any:
    """The JSON value of a file of expectations.

    Args:
        whose: what the expectations are of, for the message where there is no file: ``"this GPU"``.

    Raises:
        UnavailableError: there is no such file. UsageError: it is not JSON. FileAccessError: it cannot be read.
    """
    try:
        return json.loads(read_text(path))
    except FileNotFoundError:
        raise UnavailableError(
            f"no expectations found for {whose} ({path}); ptxkit bench run --update-expectations records them"
        ) from None
    except OSError as error:
        raise refused(path, error, "read") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} cannot be read as expectations: {error}; restore it, or delete it and record again"
        ) from None


def recordable(results: Results) -> bool:
    """Whether :func:`updated` enters any of these results."""
    return any(_good(row) for case in results.cases for row in case.rows)


def check_recordable(path: Path, reader: Callable[[Path], dict[str, Any]] = load) -> None:
    """Raise an error for a file that :func:`record` cannot change; called before measuring. Creates nothing.

    Args:
        reader: reads the file; :func:`load`, or that of the emulator's counts.

    Raises:
        UsageError, FileAccessError: the file is something else, or cannot be written.
    """
    there = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    check_writable(there / path.name)  # there record() creates the directories that are missing
    if path.is_file():
        reader(path)


def record(
    path: Path,
    change: Callable[[dict[str, Any] | None], Mapping[str, Any]],
    reader: Callable[[Path], dict[str, Any]] = load,
) -> None:
    """Replace the file by a change of what it holds now, while no other process changes it.

    Args:
        change: what the file holds, or None where there is none -> the new value. reader: reads the file.

    Raises:
        UsageError, FileAccessError: the file is something else, or cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path):
        save(path, change(reader(path) if path.is_file() else None))


def save(path: Path, value: Mapping[str, Any]) -> None:
    """Replace the file.

    Raises:
        UsageError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, value)


@dataclass(frozen=True)
class Checked:
    """One time compared with its expectation.

    Attributes:
        case: its key. row, mode: which time. expected_us, found_us: medians.
        judgement: of the difference.
        code: ``"same code"``, ``"changed code"``, or ``""`` where the expectation does not say which code it is of.
    """

    case: str
    row: str
    mode: Mode
    expected_us: float
    found_us: float
    judgement: Judgement
    code: str = ""


def check(expected: Mapping[str, Any], results: Results) -> Iterator[Checked]:
    """Compare every variant's times that have an expectation; peers are not checked."""
    for case in results.cases:
        recorded = expected["cases"].get(case.key, {}).get("rows", {})
        for row, mode, now in _times(case):
            before = recorded.get(row.name, {}).get(mode)
            if before:
                then = Timed(
                    before["median_us"], before["median_us"], 0.0, (0.0, 0.0), before["spread_us"], before["samples"]
                )
                code = _code(recorded[row.name].get("code"), row)
                yield Checked(case.key, row.name, mode, then.median_us, now.median_us, judge(then, now, MACHINES), code)


def _times(case: CaseResult) -> Iterator[tuple[Row, Mode, Timed]]:
    for row in case.rows:
        for mode in MODES:
            timed = row.timed(mode)
            if row.kind == "variant" and timed:
                yield row, mode, timed


def _code(recorded: str | None, row: Row) -> str:
    if not recorded or not row.code_sha256:
        return ""
    return "same code" if row.code_sha256.startswith(recorded) else "changed code"
