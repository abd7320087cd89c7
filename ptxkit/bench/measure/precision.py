"""One kernel in each of its dtypes, compared with one float64 reference of the same random data.

The random inputs are drawn in the dtype with the most mantissa bits and rounded to the others, and the reference is
computed from the unrounded ones. The errors therefore include the rounding of the inputs, which verification, whose reference
is computed from the rounded inputs, leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import numpy as np

from ptxkit.bench.measure.candidates import accuracy_of, compiled_row
from ptxkit.bench.measure.counted import counted
from ptxkit.bench.results.results import CaseResult, Row
from ptxkit.errors import DescriptionError, PtxkitError, UsageError
from ptxkit.workload import execute
from ptxkit.workload.data import is_array
from ptxkit.workload.launch import array_spec
from ptxkit.workload.verify import compare_all
from ptxkit.workload.workload import suggestion

if TYPE_CHECKING:
    from ptxkit.runtime.device import Device
    from ptxkit.targets import Target
    from ptxkit.workload.workload import Workload

DTYPE = "dtype"
"""The option that selects the element type, in the bundled kernels."""


ROUNDINGS = 4
"""References that differ by more than this many rounding errors of their inputs compute different functions."""


@dataclass(frozen=True)
class OfDtype:
    """A kernel's variants in one dtype.

    Attributes:
        value: of the option: ``"bf16"``. workload: with this value.
        rows: a row for each variant: its accuracy is against the one reference, ``verified`` against that of its own inputs.
    """

    value: str
    workload: Workload
    rows: tuple[Row, ...]


def dtypes_of(kernel: type[Workload], option: str = DTYPE, wanted: Sequence[str] = ()) -> list[str]:
    """The values of the option to compare, in the order of the description, or those of ``wanted``.

    Raises:
        UsageError: the kernel has no such option, the option has no fixed values or only one, or lacks a wanted value.
    """
    known = kernel.option_types()
    if option not in known:
        raise UsageError(f"{kernel.name} has no option {option!r} to compare; {suggestion(option, known)}")
    if known[option] is bool:
        values = ["false", "true"]
    elif get_origin(known[option]) is Literal:
        values = [str(value) for value in get_args(known[option])]
    else:
        raise UsageError(f"option {option} of {kernel.name} has no fixed values; there is nothing to compare")
    for value in wanted:
        if value not in values:
            raise UsageError(f"option {option} of {kernel.name} has no value {value!r}; {suggestion(value, values)}")
    chosen = list(dict.fromkeys(wanted)) or values
    if len(values) == 1:
        raise UsageError(f"{kernel.name} exists in {values[0]} only; there is nothing to compare")
    return chosen


def compare_dtypes(
    workloads: Mapping[str, Workload],
    device: Device,
    *,
    variants: Sequence[str] = (),
    target: Target | None = None,
    tile: Mapping[str, Any] | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda what: None,
    leave_out: Callable[[str], None] | None = None,
) -> list[OfDtype]:
    """Run and verify every variant in each dtype, and compare all outputs with one reference.

    Args:
        workloads: dtype -> the workload, of one kernel and the same sizes.
        device: the device to run on; one that counts also counts. variants: names; empty for all.
        target: target to compile for; None for that of the device. tile: parameters to fix. seed: of the random inputs.
        say: called with a description of the current step.
        leave_out: called with the reason for each dtype that is left out, because its inputs are no roundings of the data; None
            for an error instead.

    Raises:
        UsageError: the inputs of two dtypes are not roundings of the same data, for instance because they are quantized, or
            two values compute different functions of them, for instance because the option is an activation.
        DescriptionError: the description of the kernel is wrong.
    """
    bound = {value: w.on(device.facts_for(target)) for value, w in workloads.items()}
    say("preparing inputs")
    drawn = {value: w.inputs(np.random.default_rng(seed)) for value, w in bound.items()}
    widest = max(drawn, key=lambda value: _mantissa_bits(drawn[value].values()))
    master = execute.Data(bound[widest], seed, drawn[widest])
    reference = _floating_outputs(bound[widest], master.expected)
    rounded, refused = dict[str, dict[str, Any]](), dict[str, UsageError]()
    for value, workload in bound.items():
        try:
            rounded[value] = _rounded(workload, value, drawn[value], widest, master.inputs)
        except UsageError as error:
            refused[value] = error
    if refused and (leave_out is None or len(rounded) < 2):
        raise next(iter(refused.values()))
    for value in refused:
        assert leave_out is not None
        leave_out(f"{value} is left out: its inputs are no roundings of those in {widest}")
    found = []
    for value, inputs in rounded.items():
        workload = bound[value]
        if value != widest:
            same = execute.Data(workload, seed, master.inputs)
            limit = ROUNDINGS * 2.0 ** -(_mantissa_bits(drawn[value].values()) + 1)
            _require_same_function(workload, value, widest, limit, same.expected, reference)
        case = execute.Case(workload, device, data=execute.Data(workload, seed, inputs), target=target)
        rows = []
        for name, variant in workload.variants().items():
            if not variants or name in variants:
                say(f"{value} {name}")
                fixed = {key: v for key, v in (tile or {}).items() if key in variant.tile}
                try:
                    rows.append(_row(case, variant, target, fixed, reference))
                except DescriptionError:
                    raise
                except PtxkitError as error:
                    rows.append(Row(name=name).failed(error))
        found.append(OfDtype(value, workload, tuple(rows)))
    return found


def _row(
    case: execute.Case,
    variant: Any,
    target: Target | None,
    tile: Mapping[str, Any],
    reference: Mapping[str, Any],
) -> Row:
    """The row of a variant: verified with its own inputs, compared with the one reference."""
    result = execute.run(case, variant, target, tile)
    if result.verdict is None or result.prepared is None:
        return Row(name=variant.name, skipped=result.skipped)
    outputs = {name: array for name, array in case.outputs().items() if name in reference}
    if {name: a.shape for name, a in outputs.items()} != {name: np.shape(a) for name, a in reference.items()}:
        raise UsageError("its outputs have other names or shapes than those of the dtype with the most bits")
    return replace(
        compiled_row(result.prepared, resources=False),
        accuracy=accuracy_of(compare_all(outputs, reference), outputs, reference),
        verified=result.verdict.verified,
        worst=result.verdict.worst,
        explanation=result.verdict.explanation,
        counted=counted(result.counters) if result.counters else None,
    )


def _floating_outputs(workload: Workload, expected: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs whose errors are compared: integers, such as quantized values and metadata, have another unit in each dtype.

    Raises:
        UsageError: there are none.
    """
    integers = {name for name, spec in workload.outputs().items() if not _is_floating(array_spec(spec)[1])}
    found = {name: a for name, a in expected.items() if name not in integers and _is_floating(np.asarray(a).dtype)}
    if not found:
        raise UsageError(f"{workload.name} has no floating-point output; there is no error to compare")
    return found


def _rounded(
    workload: Workload, value: str, own: Mapping[str, Any], widest: str, master: Mapping[str, Any]
) -> dict[str, Any]:
    """The data of the widest dtype, rounded to the dtypes of a workload's own inputs.

    Raises:
        UsageError: a name, a shape or a value that is not floating point differs.
    """
    if own.keys() != master.keys():
        raise UsageError(_not_the_same(workload, value, widest, min(own.keys() ^ master.keys())))
    made = {}
    for name, mine in own.items():
        data, like = np.asarray(master[name]), np.asarray(mine)
        both_floating = _is_floating(data.dtype) and _is_floating(like.dtype)
        if data.shape != like.shape or not (both_floating or np.array_equal(data, like)):
            raise UsageError(_not_the_same(workload, value, widest, name))
        made[name] = data.astype(like.dtype) if both_floating and is_array(mine) else mine
    return made


def _require_same_function(
    workload: Workload,
    value: str,
    widest: str,
    limit: float,
    expected: Mapping[str, Any],
    reference: Mapping[str, Any],
) -> None:
    """Check that the references of two values agree on the same inputs, except for the rounding of intermediate results.

    Args:
        limit: the largest difference, relative to the largest element.

    Raises:
        UsageError: they do not.
    """
    for name, wanted in reference.items():
        mine, data = (np.asarray(a, np.float64) for a in (expected.get(name, np.nan), wanted))
        finite = np.isfinite(data)
        scale = np.abs(data[finite]).max(initial=0)
        alike = mine.shape == data.shape and bool((np.isfinite(mine) == finite).all())
        if not alike or (np.abs(mine[finite] - data[finite]) > limit * scale).any():
            raise UsageError(
                f"{workload.name} computes another {name} with {value} than with {widest}, from the same data; compare values "
                "that compute the same function, by --over and --values"
            )


def _not_the_same(workload: Workload, value: str, widest: str, name: str) -> str:
    return (
        f"the input {name} of {workload.name} in {value} is no rounding of that in {widest}; compare values whose inputs are "
        "the same data, by --values"
    )


def _is_floating(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def _mantissa_bits(values: Iterable[Any]) -> int:
    """Explicit mantissa bits of the floating-point array among the inputs that has fewest; 0 without one."""
    import ml_dtypes

    kinds = [v.dtype for v in values if is_array(v) and _is_floating(v.dtype)]
    return min((int(ml_dtypes.finfo(kind).nmant) for kind in kinds), default=0)  # type: ignore[no-untyped-call]


def with_times(case: CaseResult, measured: CaseResult) -> CaseResult:
    """The case with the times and the figures that follow from them of a measurement of the same variants.

    A variant that failed in one of the two has failed.
    """
    rows = []
    for row in case.rows:
        timed = measured.row(row.name)
        if timed is None or row.error or row.skipped:
            rows.append(row)
        else:
            verified = False if timed.verified is False else row.verified
            accuracy, worst = row.accuracy, row.worst or timed.worst
            rows.append(replace(timed, accuracy=accuracy, verified=verified, worst=worst))
    return replace(measured, rows=tuple(rows))
