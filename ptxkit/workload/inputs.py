"""Random inputs and the dtype names that descriptions use."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ptxkit.arguments import SHAPE, instance, takes
from ptxkit.errors import UsageError
from ptxkit.workload.parallel import in_threads

IN_THREADS = 1 << 22  # elements from which drawing them takes longer than starting threads
DRAWN = 1 << 17  # elements that a thread draws at a time, an even number

_NAMES = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "s8": "int8",
    "s16": "int16",
    "s32": "int32",
    "s64": "int64",
}
_NAMES |= {"u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64"}
_ML_DTYPES = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


def dtype_of(name: npt.DTypeLike) -> np.dtype[Any]:
    """The numpy dtype of a PTX type name (``"f16"``, ``"bf16"``, ``"f32"``, ``"s8"``, ``"e4m3"``) or of anything numpy takes.

    Raises:
        UsageError: no such type.
    """
    if isinstance(name, str):
        if name in _ML_DTYPES or name in _ML_DTYPES.values():
            import ml_dtypes

            found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES.get(name, name)))
            return found
        name = _NAMES.get(name, name)
    try:
        return np.dtype(name)
    except TypeError:
        known = ", ".join([*_NAMES, *_ML_DTYPES])
        raise UsageError(f"there is no dtype {name!r}; known are {known} and numpy's own") from None


@takes(rng=instance(np.random.Generator, "a numpy Generator, such as np.random.default_rng(0)"), shape=SHAPE)
def uniform(
    rng: np.random.Generator, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32
) -> npt.NDArray[Any]:
    """Uniform random numbers in [-1, 1), drawn as float32 (float64 for float64) and rounded to ``dtype``.

    Inputs are never zeros or constants: data that does not toggle bits draws less power, so that clocks and speeds are higher.
    """
    return scaled_uniform(rng, shape, dtype, None)


def scaled_uniform(
    rng: np.random.Generator, shape: int | tuple[int, ...], dtype: npt.DTypeLike, factor: Any
) -> npt.NDArray[Any]:
    """:func:`uniform` times ``factor``, before it is rounded to ``dtype``; None for 1. Large arrays are drawn by all CPU cores.

    The numbers are those that one core draws, and so is the state of the generator afterwards: the generator of each block is
    advanced to its first number. One step of PCG64 makes two numbers of float32.
    """
    target = dtype_of(dtype)
    drawn: Any = np.dtype(np.float64 if target == np.float64 else np.float32)
    bits = rng.bit_generator
    size = int(np.prod(shape))
    found: npt.NDArray[Any] = np.empty(shape, target)
    flat = found.reshape(-1)

    def fill(part: slice, generator: np.random.Generator) -> None:
        direct = target == drawn
        values: npt.NDArray[Any] = flat[part] if direct else np.empty(part.stop - part.start, drawn)
        generator.random(dtype=drawn, out=values)
        values *= 2
        values -= 1
        if factor is not None:
            values *= factor
        if not direct:
            flat[part] = values

    if size < IN_THREADS or drawn != np.float32 or type(bits) is not np.random.PCG64 or bits.state["has_uint32"]:
        fill(slice(0, size), rng)
        return found
    state = bits.state

    def fill_from_state(part: slice) -> None:
        own = np.random.PCG64(0)
        own.state = state
        own.advance(part.start // 2)
        fill(part, np.random.Generator(own))

    even = size // 2 * 2
    in_threads(fill_from_state, (slice(first, min(first + DRAWN, even)) for first in range(0, even, DRAWN)))
    bits.advance(even // 2)
    fill(slice(even, size), rng)
    return found
