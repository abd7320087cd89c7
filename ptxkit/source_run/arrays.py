"""Arrays from their text form: random, constant, or read from a ``.npy`` file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ptxkit.errors import UsageError
from ptxkit.files import refused
from ptxkit.source_run.grammar import DTYPES, ArrayText, Number, number_text
from ptxkit.workload.inputs import dtype_of

Array = np.ndarray[Any, Any]

MAGIC = b"\x93NUMPY"  # the first bytes of a .npy file


def array_from(spec: ArrayText, rng: np.random.Generator, what: str) -> Array:
    """Make the array that a text describes; ``what`` begins error messages.

    Raises:
        UsageError: a number that the element type cannot hold, an initialiser that does not apply to it, an unusable file.
    """
    initialiser = spec.initialiser
    if initialiser.name == "file":
        return read_npy(initialiser.file, what, spec.dtype, spec.shape)
    dtype = dtype_of(spec.dtype)
    numbers = initialiser.numbers
    if initialiser.name == "zeros":
        return np.zeros(spec.shape, dtype)
    if initialiser.name == "ones":
        return np.full(spec.shape, 1, dtype)
    if initialiser.name == "constant":
        return np.full(spec.shape, scalar_of(numbers[0], dtype, what), dtype)
    if initialiser.name == "arange":
        return _arange(spec.shape, dtype, numbers, what)
    if initialiser.name == "integers":
        return _integers(spec.shape, dtype, numbers, rng, what)
    return _random(spec, dtype, rng, what)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether it is a floating-point type, those of ml_dtypes included, which numpy reports as raw bytes (kind ``"V"``)."""
    return dtype.kind not in "iub"


def scalar_of(value: Number, dtype: np.dtype[Any], what: str) -> Any:
    """A number as a numpy scalar of exactly this type; a float is rounded to it.

    Raises:
        UsageError: it is not a whole number where one is required, or does not fit.
    """
    text = number_text(value)
    if dtype.kind == "b":
        if value not in (0, 1):
            raise UsageError(f"{what}: {text} is not a bool; write true or false")
        return np.bool_(value)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if isinstance(value, float):
            whole = f"; write {int(value)}" if value.is_integer() else "; write a whole number"
            raise UsageError(f"{what}: {text} is a floating-point number and the type is {dtype.name}{whole}")
        if not limits.min <= value <= limits.max:
            raise UsageError(f"{what}: {dtype.name} holds {limits.min} to {limits.max}, not {text}")
        return dtype.type(value)
    with np.errstate(all="ignore"):
        try:
            made = dtype.type(float(value))
        except OverflowError:  # an int beyond float64
            made = None
    if made is None or (not np.isfinite(np.float64(made)) and np.isfinite(np.float64(value))):
        raise UsageError(f"{what}: {dtype.name} cannot hold {text}")
    return made


def _arange(shape: tuple[int, ...], dtype: np.dtype[Any], numbers: tuple[Number, ...], what: str) -> Array:
    start = numbers[0] if numbers else 0
    step = numbers[1] if len(numbers) > 1 else 1
    size = int(np.prod(shape, dtype=object))
    if dtype.kind == "b":
        raise UsageError(f"{what}: arange gives numbers, not bools; write integers for random ones")
    for value in (start, start + step * (size - 1)):
        scalar_of(value, dtype, f"{what}: arange over {size} elements ends at {number_text(start + step * (size - 1))}")
    if dtype.kind in "iu":
        counted = np.arange(size, dtype=np.int64 if dtype != np.uint64 else np.uint64)
        return (counted * counted.dtype.type(step) + counted.dtype.type(start)).astype(dtype).reshape(shape)
    return (np.arange(size, dtype=np.float64) * step + start).astype(dtype).reshape(shape)


def _integers(
    shape: tuple[int, ...], dtype: np.dtype[Any], numbers: tuple[Number, ...], rng: np.random.Generator, what: str
) -> Array:
    """Random whole numbers: low <= x < high; by default all of an integer type, and -8 to 7 of a floating-point one."""
    if any(isinstance(n, float) for n in numbers):
        raise UsageError(f"{what}: integers takes whole numbers, such as integers(0,10)")
    if is_float(dtype):
        low, high = -8, 8
    elif dtype.kind == "b":
        low, high = 0, 2
    else:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max) + 1
    if len(numbers) == 1:
        low, high = 0, int(numbers[0])
    elif numbers:
        low, high = int(numbers[0]), int(numbers[1])
    if low >= high:
        raise UsageError(f"{what}: integers({low},{high}) is empty; the first number is below the second")
    for bound in (low, high - 1):
        scalar_of(bound, dtype, what)
    if is_float(dtype):
        return rng.integers(low, high, shape).astype(dtype)
    return rng.integers(low, high, shape, dtype)


def _random(spec: ArrayText, dtype: np.dtype[Any], rng: np.random.Generator, what: str) -> Array:
    """``uniform(low, high)`` or ``normal(mean, deviation)``, drawn in float32 (float64 for float64) and rounded."""
    name, numbers = spec.initialiser.name, spec.initialiser.numbers
    if not is_float(dtype):
        raise UsageError(f"{what}: {name} is for floating-point types; write {dtype.name}[...]:integers(0,10)")
    first, second = (float(n) for n in (*numbers, *((-1, 1) if name == "uniform" else (0, 1))[len(numbers) :]))
    for bound in (first, second):
        scalar_of(bound, dtype, what)
        if not np.isfinite(bound):
            raise UsageError(f"{what}: {name} takes finite numbers")
    drawn = np.float64 if dtype == np.float64 else np.float32
    if name == "uniform":
        if first >= second:
            raise UsageError(f"{what}: uniform({first:g},{second:g}) is empty; the first number is below the second")
        values: Array = rng.random(spec.shape, dtype=drawn)
        values *= drawn(second - first)
    else:
        if second < 0:
            raise UsageError(f"{what}: the standard deviation must be at least 0, not {second:g}")
        values = rng.standard_normal(spec.shape, dtype=drawn)
        values *= drawn(second)
    values += drawn(first)
    return values.astype(dtype, copy=False)


def read_npy(file: str, what: str, dtype: str = "", shape: tuple[int, ...] = ()) -> Array:
    """A ``.npy`` file as a C-contiguous array of the machine's byte order.

    Args:
        file: its path.
        what: begins error messages.
        dtype: numpy's name of the required type; ``""`` takes the file's.
        shape: the required shape; ``()`` takes the file's.

    Raises:
        UsageError: no such file, no array in it, another type or shape.
    """
    if not Path(file).is_file():
        raise UsageError(f"{what}: there is no file {file}")
    try:
        array: Array = np.load(file, allow_pickle=False)
    except OSError as error:
        raise refused(file, error, "read") from None
    except (ValueError, EOFError) as error:
        raise UsageError(f"{what}: cannot read {file}: {_unreadable(file, str(error))}") from None
    if not isinstance(array, np.ndarray) or array.ndim == 0 or array.size == 0:
        raise UsageError(f"{what}: {file} holds no array of at least one element; write it with np.save")
    array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
    if array.dtype.kind == "V" and array.dtype.names is None:
        array = _typed(array, dtype, file, what)
    if array.dtype.name not in DTYPES:
        raise UsageError(f"{what}: {file} holds {array.dtype}; save one of {', '.join(DTYPES)}")
    if dtype and array.dtype.name != dtype:
        raise UsageError(f"{what}: {file} holds {array.dtype.name}, not {dtype}; save it as array.astype({dtype!r})")
    if shape and array.shape != shape:
        raise UsageError(f"{what}: {file} has the shape {shape_text(array.shape)}, not {shape_text(shape)}")
    return array


def _unreadable(file: str, error: str) -> str:
    """The reason why np.load refuses a file, and the fix."""
    if Path(file).read_bytes()[: len(MAGIC)] != MAGIC:
        return "it is not written by np.save; write it with np.save of an array of numbers"
    if "Object arrays" in error:
        return "it holds Python objects; save an array of numbers"
    if "descr" in error:  # as for float8_e5m2, which np.save writes as a float of one byte
        return "numpy does not know its element type; save array.view('V1')"
    return "it is cut short or damaged; write it again with np.save"


def _typed(array: Array, dtype: str, file: str, what: str) -> Array:
    """Give the elements of a file that has no element type the type ``dtype``: np.save writes types of ml_dtypes as
    plain bytes."""
    size = array.dtype.itemsize
    if not dtype:
        kinds = {1: "float8_e4m3fn or float8_e5m2", 2: "bfloat16"}.get(size, "it")
        raise UsageError(
            f"{what}: {file} holds {size}-byte elements without a type, as np.save writes {kinds}; "
            f"name the type: {kinds.split(' ')[0]}[{shape_text(array.shape)}]:{file}"
        )
    if dtype_of(dtype).itemsize != size:
        raise UsageError(f"{what}: {file} holds elements of {size} bytes; {dtype} has {dtype_of(dtype).itemsize}")
    return array.view(dtype_of(dtype))


def shape_text(shape: tuple[int, ...]) -> str:
    """``128x64``, as the arguments' text writes it."""
    return "x".join(map(str, shape))
