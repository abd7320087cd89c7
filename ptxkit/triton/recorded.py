"""Records the launches of a Triton function, instead of executing them.

While :func:`recording` is active, a launch ``function[grid](...)`` is bound to its parameters and kept with a copy of the
arrays that it was given. No kernel runs: what an earlier launch would have computed is not in the arrays of a later one. An
autotuned function is launched in its first configuration, because there is nothing to measure.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ptxkit.errors import UsageError
from ptxkit.workload.inputs import dtype_of

Grid = tuple[int, int, int]
_NUMBERS = (bool, int, float, np.generic)


@dataclass(frozen=True)
class Launch:
    """One launch of a function.

    Attributes:
        function: Triton's JITFunction.
        arguments: name of each parameter -> an array, a number, None, or what a constant is.
        same: parameters whose array is that of an earlier parameter, with its name.
        options: num_warps and other options of the compiler.
        grid: CTAs.
        divisible: parameters whose address is a multiple of 16.
    """

    function: Any
    arguments: Mapping[str, Any]
    same: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    grid: Grid = (1, 1, 1)
    divisible: frozenset[str] = frozenset()


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """A context in which launches of Triton functions are appended to the list instead of being executed."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    launches: list[Launch] = []

    def record(function: Any, *args: Any, grid: Any, warmup: bool = False, **keywords: Any) -> None:
        launches.append(launch_of(function, args, keywords, grid))

    def first_configuration(tuner: Any, *args: Any, **keywords: Any) -> Any:
        return tuner.fn.run(*args, **{**keywords, **tuner.configs[0].all_kwargs()})

    before = JITFunction.run, Autotuner.run
    JITFunction.run, Autotuner.run = record, first_configuration
    try:
        yield launches
    finally:
        JITFunction.run, Autotuner.run = before


def launch_of(function: Any, args: Sequence[Any], keywords: Mapping[str, Any], grid: Any) -> Launch:
    """A launch from what ``function[grid](*args, **keywords)`` was given.

    Raises:
        UsageError: an argument is missing, is no array or number, or overlaps another array.
    """
    name = name_of(function)
    parameters = [p.name for p in function.params]
    own = {n: v for n, v in keywords.items() if n in parameters}
    try:
        bound = inspect.signature(function.fn).bind(*args, **own)
    except TypeError as error:
        raise UsageError(f"the launch of {name}: {error}") from None
    bound.apply_defaults()
    options = {n: v for n, v in keywords.items() if n not in parameters and v is not None}
    constants = {p.name for p in function.params if p.is_constexpr}
    arguments: dict[str, Any] = {}
    same: dict[str, str] = {}
    extents: dict[str, tuple[int, int]] = {}
    for key, value in bound.arguments.items():
        what = f"the launch of {name}: {key}"
        if key not in constants and not (value is None or _is_array(value) or isinstance(value, _NUMBERS)):
            raise UsageError(f"{what} must be a tensor or a number, not a {type(value).__name__}")
        if key in constants or not _is_array(value):
            arguments[key] = value
            continue
        address, array = _contents(value, what)
        extent = (address, address + array.nbytes)
        for other, (low, high) in extents.items():
            if extent == (low, high):
                same[key] = other
            elif address < high and low < extent[1] and array.size:
                raise UsageError(f"{what} overlaps {other} in memory without being the same array; launch on a copy")
        extents.setdefault(key, extent)
        arguments[key] = array
    divisible = frozenset(n for n, (address, _) in extents.items() if address % 16 == 0)
    return Launch(function, arguments, same, options, _grid(grid, dict(bound.arguments), name), divisible)


def name_of(function: Any) -> str:
    """The name of a function of Triton."""
    return str(function.fn.__name__)


def _grid(grid: Any, arguments: Mapping[str, Any], name: str) -> Grid:
    made = grid(dict(arguments)) if callable(grid) else grid
    try:
        sizes = [int(n) for n in (made if isinstance(made, Sequence) else (made,))]
    except (TypeError, ValueError):
        raise UsageError(f"the launch of {name}: the grid must be one to three whole numbers, not {made!r}") from None
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0:
        raise UsageError(f"the launch of {name}: the grid must be one to three whole numbers, not {made!r}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _is_array(value: Any) -> bool:
    return hasattr(value, "data_ptr") or isinstance(value, np.ndarray)


def _contents(value: Any, what: str) -> tuple[int, np.ndarray[Any, Any]]:
    """The address of an array and a copy of its memory: in its shape if it is contiguous, else up to the end of its storage."""
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous:
            raise UsageError(f"{what} is an array of numpy that is not contiguous; pass a contiguous one, or a tensor")
        return int(value.ctypes.data), value.copy()
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        raise UsageError(f"{what} must be a tensor of torch or an array of numpy, not a {type(value).__name__}")
    plain = value.detach()
    elements = plain.untyped_storage().nbytes() // max(1, plain.element_size()) - plain.storage_offset()
    flat = plain.as_strided((elements,), (1,)).cpu()
    kept = flat.view(torch.uint8).numpy().copy() if elements else np.zeros(0, np.uint8)
    array = kept.view(dtype_of(str(plain.dtype).removeprefix("torch.")))
    if plain.is_contiguous() and plain.dim() and plain.numel() == elements:
        array = array.reshape(tuple(plain.shape))
    return int(plain.data_ptr()), array
