"""Reading result files: schema ``ptxkit.bench/3``, and the two earlier ones with today's names."""

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

EARLIER = ("ptxkit.bench/1", "ptxkit.bench/2")
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
    if schema != SCHEMA and schema not in EARLIER:
        readable = ", ".join((SCHEMA, *EARLIER))
        raise UsageError(f"{path} has the schema {schema!r}; this version of ptxkit reads {readable}")
    earlier = schema in EARLIER
    try:
        results: Results = read_as(Results, _renamed(value) if earlier else value)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return _with_ceilings(results) if earlier else results


def cuda_driver_named(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Versions with today's name for the driver's CUDA version, which ``ptxkit.bench/1`` calls ``driver``."""
    return {"cuda_driver" if name == "driver" else name: value for name, value in environment.items()}


def _with_ceilings(results: Results) -> Results:
    """Earlier results with the ceiling of each case; their ``roof_fraction`` was always of the copy."""
    if results.roofs is None:
        return results
    roofs: Roofs = dataclasses.replace(results.roofs, documented_tflops=documented_peaks(results.device))
    return dataclasses.replace(results, roofs=roofs, cases=tuple(with_ceiling(case, roofs) for case in results.cases))


def _renamed(value: dict[str, Any]) -> dict[str, Any]:
    """An earlier file's value in today's names; :func:`read_as` complains of what is not an object or a list."""
    places: dict[str, Any] = {
        name: cuda_driver_named(v) for name in ("environment", "facts") if isinstance(v := value.get(name), dict)
    }
    cases = value.get("targets")
    if "targets" in value:
        places["cases"] = [_renamed_case(case) for case in cases] if isinstance(cases, list) else cases
    kept = {name: v for name, v in value.items() if name != "targets"}
    return {**kept, **places, "schema": SCHEMA}


def _renamed_case(case: Any) -> Any:
    if not isinstance(case, dict) or not isinstance(case.get("conditions"), dict):
        return case
    conditions = {RENAMED_CONDITIONS.get(name, name): _renamed_span(v) for name, v in case["conditions"].items()}
    return {**case, "conditions": conditions}


def _renamed_span(value: Any) -> Any:
    if not isinstance(value, dict) or not RENAMED_SPAN.keys() <= value.keys():
        return value
    return {RENAMED_SPAN.get(name, name): v for name, v in value.items()}
