"""Reads result files: schema ``ptxkit.bench/4``, and the three earlier ones, whose names are replaced by today's.

Versions 1 and 2 call cases ``targets``, and their ``roof_fraction`` refers to the copy bandwidth even where arithmetic is the
ceiling. Up to version 3 the peer ``ptxkit_gemm`` is called ``ladder``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ptxkit.bench.results.ceiling import Roofs, documented_peaks
from ptxkit.bench.results.derived import with_ceiling
from ptxkit.bench.results.json_values import read_as
from ptxkit.bench.results.results import SCHEMA, Results
from ptxkit.errors import UsageError
from ptxkit.files import read_text

WITHOUT_CEILINGS = ("ptxkit.bench/1", "ptxkit.bench/2")
EARLIER = (*WITHOUT_CEILINGS, "ptxkit.bench/3")
RENAMED_PEERS = {"ladder": "ptxkit_gemm"}
RENAMED_CONDITIONS = {"looks": "readings", "held_down": "throttle_reasons"}
RENAMED_SPAN = {"least": "minimum", "most": "maximum"}


def load(path: str | Path) -> Results:
    """Results from a file that ``bench run --json`` wrote.

    Raises:
        UsageError: no such file, no JSON, another schema, or a field that is missing or of the wrong type.
    """
    try:
        value = json.loads(read_text(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # no text, no JSON, a number of thousands of digits, or too deep
        raise UsageError(f"{path} is not JSON: {error}; pass a file written by ptxkit bench run --json") from None
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema is None:
        what = "JSON object without a schema" if isinstance(value, dict) else "JSON value that is no object"
        raise UsageError(f"{path} holds a {what}; pass a file written by ptxkit bench run --json")
    if schema != SCHEMA and schema not in EARLIER:
        readable = ", ".join((SCHEMA, *EARLIER))
        raise UsageError(f"{path} has the schema {schema!r}; this version of ptxkit reads {readable}")
    try:
        results: Results = read_as(Results, _renamed(value) if schema in EARLIER else value)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return _with_ceilings(results) if schema in WITHOUT_CEILINGS else results


def cuda_driver_named(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Versions with today's name for the driver's CUDA version, which ``ptxkit.bench/1`` calls ``driver``."""
    return {"cuda_driver" if name == "driver" else name: value for name, value in environment.items()}


def with_peers_renamed(by_name: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping from the names of candidates in an earlier file, with today's names of peers."""
    return {RENAMED_PEERS.get(name, name): value for name, value in by_name.items()}


def _with_ceilings(results: Results) -> Results:
    """Earlier results with the ceiling of each case; their ``roof_fraction`` was always of the copy."""
    if results.roofs is None:
        return results
    roofs: Roofs = dataclasses.replace(results.roofs, documented_tflops=documented_peaks(results.device))
    return dataclasses.replace(results, roofs=roofs, cases=tuple(with_ceiling(case, roofs) for case in results.cases))


def _renamed(value: dict[str, Any]) -> dict[str, Any]:
    """An earlier file's value with today's names; :func:`read_as` reports what is not an object or a list."""
    places: dict[str, Any] = {
        name: cuda_driver_named(v) for name in ("environment", "facts") if isinstance(v := value.get(name), dict)
    }
    cases = value.get("targets", value.get("cases"))
    if isinstance(cases, list):
        places["cases"] = [_renamed_case(case) for case in cases]
    elif "targets" in value:
        places["cases"] = cases
    if isinstance(absent := value.get("absent"), dict):
        places["absent"] = with_peers_renamed(absent)
    kept = {name: v for name, v in value.items() if name != "targets"}
    return {**kept, **places, "schema": SCHEMA}


def _renamed_case(case: Any) -> Any:
    if not isinstance(case, dict):
        return case
    places: dict[str, Any] = {}
    if isinstance(conditions := case.get("conditions"), dict):
        places["conditions"] = {RENAMED_CONDITIONS.get(name, name): _renamed_span(v) for name, v in conditions.items()}
    if isinstance(rows := case.get("rows"), list):
        places["rows"] = [_renamed_row(row) for row in rows]
    return {**case, **places}


def _renamed_row(row: Any) -> Any:
    if not isinstance(row, dict) or row.get("kind") != "peer" or not isinstance(name := row.get("name"), str):
        return row
    return {**row, "name": RENAMED_PEERS.get(name, name)}


def _renamed_span(value: Any) -> Any:
    if not isinstance(value, dict) or not RENAMED_SPAN.keys() <= value.keys():
        return value
    return {RENAMED_SPAN.get(name, name): v for name, v in value.items()}
