"""Cases that expectations record: run again with the recorded seed and tile, and what of them no longer exists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxkit.bench.cases import Plan, kernel_of, made_again
from ptxkit.bench.results.count_expectations import Expected, ExpectedCase, ExpectedRow, parsed
from ptxkit.bench.results.results import CaseResult
from ptxkit.errors import PtxkitError
from ptxkit.workload import registry
from ptxkit.workload.resolve import resolve

if TYPE_CHECKING:
    from ptxkit.runtime.device import Device
    from ptxkit.targets import Target
    from ptxkit.workload.workload import Workload


def every_plan(expected: Expected, base: Path) -> tuple[list[Plan], list[str]]:
    """The recorded cases, and a text for each kernel, case, variant or tile parameter that no longer exists.

    Args:
        base: the directory relative to which descriptions of users are recorded.
    """
    made: list[Plan] = []
    gone: list[str] = []
    for key, case in expected.cases.items():
        try:
            workload = made_again(_kernel(case, base), case.sizes, case.options)
        except PtxkitError as error:
            gone.append(f"{key}: is recorded, but {error}")
            continue
        plan = Plan(workload, tuple(name for name in case.rows if name in workload.variants()))
        if key_of(plan) != key:
            gone.append(f"{key}: is recorded, but this case is now {key_of(plan)}")
            continue
        gone += _gone(key, plan, case.rows)
        made += as_recorded(plan, expected) if plan.variants else ()
    return made, gone


def completed(value: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The value of a file of counts with tiles that have every parameter that their variants have now.

    A parameter that was declared after a variant was recorded has its declared default, the first of its values, with which a
    variant does what it did without the parameter. Cases of kernels that cannot be found stay as they are.

    Args:
        value: as :func:`ptxkit.bench.results.count_expectations.load` returns it.
        base: the directory relative to which descriptions of users are recorded.
    """
    cases = dict(value["cases"])
    for key, case in parsed(value).cases.items():
        with suppress(PtxkitError):  # every_plan and gone_of name what does not exist any more
            known, rows = _kernel(case, base).variants(), dict(cases[key]["rows"])
            for name in rows.keys() & known.keys():
                defaults = {parameter: values[0] for parameter, values in known[name].tile.items()}
                rows[name] = {**rows[name], "tile": {**defaults, **rows[name]["tile"]}}
            cases[key] = {**cases[key], "rows": rows}
    return {**value, "cases": cases}


def _kernel(case: ExpectedCase, base: Path) -> type[Workload]:
    return registry.find(str(base / case.description) if case.description else case.kernel)


def as_recorded(plan: Plan, expected: Expected, *, seed: bool = True, tile: bool = True) -> Iterator[Plan]:
    """A plan with the seeds and tiles of its recorded variants: one for each seed. Other variants take the first of them.

    Args:
        seed, tile: whether the recorded ones are used.
    """
    rows = _rows(plan, expected)
    names = plan.variants or tuple(plan.workload.variants())
    recorded = {name: rows[name].seed for name in names if seed and name in rows}
    seeds = {name: recorded.get(name, next(iter(recorded.values()), None)) for name in names}
    tiles = {name: rows[name].tile for name in names if name in rows and tile}
    for chosen in dict.fromkeys(seeds.values()):
        mine = tuple(name for name in names if seeds[name] == chosen)
        yield replace(plan, variants=plan.variants if mine == names else mine, tiles=tiles, seed=chosen)


def gone_of(plans: Iterable[Plan], expected: Expected) -> list[str]:
    """A text for each recorded variant or tile parameter of these cases that no longer exists."""
    return [text for plan in plans for text in _gone(key_of(plan), plan, _rows(plan, expected))]


def key_of(plan: Plan) -> str:
    """The key of a plan's case in results and expectations."""
    return CaseResult.key_of(plan.workload.name, plan.workload.sizes, plan.workload.options)


def _rows(plan: Plan, expected: Expected) -> Mapping[str, ExpectedRow]:
    case = expected.cases.get(key_of(plan))
    return case.rows if case is not None else {}


def _gone(key: str, plan: Plan, rows: Mapping[str, ExpectedRow]) -> Iterator[str]:
    known = plan.workload.variants()
    for name, row in rows.items():
        if name not in known:
            yield f"{key} {name}: is recorded, but {plan.workload.name} has no variant {name!r} any more"
            continue
        for parameter in row.tile:
            if parameter not in known[name].tile:
                yield f"{key} {name}: is recorded with {parameter}={row.tile[parameter]}, which is no tile parameter any more"


def gone_variants(expected: Mapping[str, Any], cases: Iterable[CaseResult]) -> list[tuple[str, str]]:
    """(key of the case, name) of recorded variants, of times or of counts, that were not run because their kernels do not have
    them any more."""
    found = []
    for case in cases:
        rows = expected["cases"].get(case.key, {}).get("rows", {})
        left = [n for n, row in rows.items() if case.row(n) is None and row.get("kind", "variant") == "variant"]
        if left:
            known = kernel_of(case).variants()
            found += [(case.key, name) for name in left if name not in known]
    return found


def other_defaults(plans: Iterable[Plan], device: Device, target: Target | None) -> Iterator[str]:
    """A text for each variant whose recorded tile is not the one that it has by default."""
    for plan in plans:
        for name, tile in plan.tiles.items():
            with suppress(PtxkitError):  # reported by the run
                default = resolve(plan.workload, plan.workload.variant(name), target, device=device).tile
                if dict(default) != dict(tile):
                    was, now = (" ".join(f"{n}={v}" for n, v in t.items()) or "no tile" for t in (tile, default))
                    yield (
                        f"{key_of(plan)} {name}: compared with the recorded {was}; the default is now {now}, whose counts "
                        "--update-expectations records"
                    )
