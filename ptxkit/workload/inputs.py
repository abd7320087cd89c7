"""Random inputs and the dtype names that descriptions use."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ptxkit.arguments import SHAPE, instance, takes
from ptxkit.errors import UsageError

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
    target = dtype_of(dtype)
    values: npt.NDArray[Any]
    if target == np.float64:
        values = rng.random(shape, dtype=np.float64)
    else:
        values = rng.random(shape, dtype=np.float32)
    values *= 2
    values -= 1
    return values.astype(target, copy=False)
