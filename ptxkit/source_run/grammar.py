"""The text form of kernel arguments: ``x=float32[128x64]:uniform(-1, 1)``, ``n=1024``, ``y=data.npy``, ``#2=null``.

::

    argument    = KEY "=" value
    KEY         = parameter name | ["#"] position from 0
    value       = array | FILE.npy | scalar | "null"
    array       = DTYPE "[" dimension { ("," | "x") dimension } "]" [ ":" initialiser ]
    initialiser = NAME [ "(" number { "," number } ")" ] | number | FILE.npy
    scalar      = number | "true" | "false" | DTYPE "(" number ")" | "bytes(" hexadecimal digits ")"

This module neither allocates arrays nor opens files; :mod:`ptxkit.source_run.arrays` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from ptxkit.errors import UsageError
from ptxkit.workload.workload import suggestion

Number: TypeAlias = int | float | bool

DTYPES = {
    "float16": ("f16", "half", "__half"),
    "bfloat16": ("bf16", "__nv_bfloat16"),
    "float32": ("f32", "float"),
    "float64": ("f64", "double"),
    "float8_e4m3fn": ("e4m3", "__nv_fp8_e4m3"),
    "float8_e5m2": ("e5m2", "__nv_fp8_e5m2"),
    "int8": ("s8", "i8", "char", "int8_t"),
    "int16": ("s16", "i16", "short", "int16_t"),
    "int32": ("s32", "i32", "int", "int32_t"),
    "int64": ("s64", "i64", "long", "int64_t"),
    "uint8": ("u8", "uchar", "uint8_t"),
    "uint16": ("u16", "ushort", "uint16_t"),
    "uint32": ("u32", "uint", "unsigned", "uint32_t"),
    "uint64": ("u64", "ulong", "size_t", "uint64_t"),
    "bool": (),
}
"""numpy's name of each element type -> its other names: of PTX and of CUDA C++, where ``float`` has 32 bits."""

ELEMENT_TYPES = {other: name for name, others in DTYPES.items() for other in (name, *others)}

INITIALISERS = {
    "empty": (0,),
    "zeros": (0,),
    "ones": (0,),
    "constant": (1,),
    "uniform": (0, 2),
    "normal": (0, 2),
    "arange": (0, 1, 2),
    "integers": (0, 1, 2),
}
"""Initialiser -> the permitted counts of numbers in its parentheses."""

FORMS = "empty, zeros, ones, constant(3), uniform(-1,1), normal(0,1), arange(0,1), integers(0,10), FILE.npy"

LARGEST_DIMENSION = 2**47  # more than any address space has; larger numbers would only fill the message

_ARRAY = re.compile(r"(?P<dtype>[^\[\]:=]*)\[(?P<shape>[^\]]*)\](?::(?P<initialiser>.*))?", re.DOTALL)
_CALL = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*\((?P<inside>.*)\)", re.DOTALL)
_FLOAT = re.compile(r"[+-]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(e[+-]?\d+)?f?", re.IGNORECASE)


@dataclass(frozen=True)
class Initialiser:
    """The initial content of an array.

    Attributes:
        name: a key of :data:`INITIALISERS`, or ``"file"``.
        numbers: those in its parentheses.
        file: path of a ``.npy`` file, else ``""``.
    """

    name: str
    numbers: tuple[Number, ...] = ()
    file: str = ""

    def __str__(self) -> str:
        if self.file:
            return self.file
        return f"{self.name}({','.join(map(number_text, self.numbers))})" if self.numbers else self.name


@dataclass(frozen=True)
class ArrayText:
    """An array argument.

    Attributes:
        dtype: numpy's name; ``""`` to take the file's.
        shape: at least one dimension of at least 1; ``()`` to take the file's.
        initialiser: how it is filled.
    """

    dtype: str
    shape: tuple[int, ...]
    initialiser: Initialiser

    def __str__(self) -> str:
        if not self.shape:
            return str(self.initialiser)
        return f"{self.dtype}[{'x'.join(map(str, self.shape))}]:{self.initialiser}"


@dataclass(frozen=True)
class ScalarText:
    """An argument passed by value.

    Attributes:
        value: the number.
        dtype: numpy's name where it is given, else ``""``: the parameter decides.
    """

    value: Number
    dtype: str = ""

    def __str__(self) -> str:
        text = number_text(self.value)
        return f"{self.dtype}({text})" if self.dtype else text


@dataclass(frozen=True)
class BytesText:
    """A structure passed by value, as bytes."""

    data: bytes

    def __str__(self) -> str:
        return f"bytes({self.data.hex()})"


@dataclass(frozen=True)
class NullText:
    """A null pointer."""

    def __str__(self) -> str:
        return "null"


Value: TypeAlias = ArrayText | ScalarText | BytesText | NullText


@dataclass(frozen=True)
class ArgumentText:
    """One ``--arg``.

    Attributes:
        key: the parameter's name, or ``"#3"`` for a position from 0.
        value: the value to pass.
    """

    key: str
    value: Value

    @property
    def position(self) -> int | None:
        """The position from 0, or None for a name."""
        return int(self.key[1:]) if self.key.startswith("#") else None

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


def parse_argument(text: str) -> ArgumentText:
    """One argument, such as ``x=float32[1024]:uniform``.

    Raises:
        UsageError: one line with the text and what to write instead.
    """
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not (key and equals and value):
        raise UsageError(f"--arg takes NAME=VALUE such as x=float32[1024]:uniform or n=1024, not {text!r}")
    if re.fullmatch(r"#?[0-9]{1,9}", key):
        key = f"#{int(key.removeprefix('#'))}"
    elif not re.fullmatch(r"[A-Za-z_$%][\w$%.]*", key):
        raise UsageError(f"--arg {text}: {key!r} is neither the name of a parameter nor a position such as #0")
    return ArgumentText(key, parse_value(value, f"--arg {text}"))


def parse_value(text: str, what: str) -> Value:
    """The value after the ``=``; ``what`` begins error messages."""
    if text.lower() in ("null", "nullptr", "none"):
        return NullText()
    if match := _ARRAY.fullmatch(text):
        dtype = parse_dtype(match["dtype"].strip(), what)
        shape = parse_shape(match["shape"], what, f"{dtype}[1024]")
        return ArrayText(dtype, shape, parse_initialiser(match["initialiser"], what))
    if text.endswith(".npy"):
        return ArrayText("", (), Initialiser("file", file=text))
    if match := _CALL.fullmatch(text):
        if match["name"] == "bytes":
            return BytesText(_hexadecimal(match["inside"], what))
        if match["name"] in INITIALISERS:
            raise UsageError(f"{what}: an initialiser follows an element type and a shape: float32[1024]:{text}")
        return ScalarText(parse_number(match["inside"], what), parse_dtype(match["name"], what))
    if text in INITIALISERS:
        raise UsageError(f"{what}: an initialiser follows an element type and a shape: float32[1024]:{text}")
    if text.split(":")[0] in ELEMENT_TYPES:
        raise UsageError(f"{what}: an array needs a shape, such as {text.split(':')[0]}[1024]")
    number = _number(text)
    if number is None:
        raise UsageError(
            f"{what}: {text!r} is neither a number nor an array; write 1024, 2.5, true, null, float32[1024]:uniform or FILE.npy"
        )
    return ScalarText(number)


def parse_dtype(text: str, what: str) -> str:
    """numpy's name of an element type."""
    if text not in ELEMENT_TYPES:
        raise UsageError(f"{what}: unknown element type {text!r}; {suggestion(text, DTYPES)}")
    return ELEMENT_TYPES[text]


def parse_shape(text: str, what: str, example: str) -> tuple[int, ...]:
    """``1024``, ``128x64`` or ``128,64``: dimensions of at least 1; ``example`` goes into the message."""
    parts = [part.strip() for part in re.split(r"[,x]", text)]
    if not all(re.fullmatch(r"[+-]?\d[\d_]*", part) for part in parts) or any(part.endswith("_") for part in parts):
        raise UsageError(f"{what}: {text!r} is not a shape; write whole numbers, as in {example}")
    shape = tuple(int(part) if len(part) < 30 else LARGEST_DIMENSION + 1 for part in parts)
    if min(shape) < 1:
        raise UsageError(f"{what}: every dimension must be at least 1, not {min(shape)}")
    if max(shape) > LARGEST_DIMENSION or len(shape) > 32:
        raise UsageError(f"{what}: {text!r} is too large a shape; no device has that much memory")
    return shape


def parse_initialiser(text: str | None, what: str) -> Initialiser:
    """The initialiser after the shape; without one the array is left uninitialised."""
    if text is None:
        return Initialiser("empty")
    text = text.strip()
    if text.endswith(".npy"):
        return Initialiser("file", file=text)
    number = _number(text)
    if number is not None:
        return Initialiser("constant", (number,))
    match = _CALL.fullmatch(text)
    name = match["name"] if match else text
    if name not in INITIALISERS:
        near = suggestion(name, INITIALISERS) if name else "write one"
        raise UsageError(f"{what}: unknown initialiser {text!r}; {near if 'did you' in near else f'write {FORMS}'}")
    inside = match["inside"].strip() if match else ""
    numbers = tuple(parse_number(part, what) for part in inside.split(",")) if inside else ()
    counts = INITIALISERS[name]
    if len(numbers) not in counts:
        wanted = " or ".join(map(str, counts)) + (" number" if counts == (1,) else " numbers")
        raise UsageError(f"{what}: {name} takes {wanted}, not {len(numbers)}; write {FORMS}")
    return Initialiser(name, numbers)


def parse_number(text: str, what: str) -> Number:
    """A number of C or Python: ``-3``, ``0x1f``, ``1_000``, ``2.5f``, ``1e-3``, ``inf``, ``nan``, ``true``."""
    number = _number(text.strip())
    if number is None:
        raise UsageError(f"{what}: {text.strip()!r} is not a number; write 3, 0x1f, 2.5, 1e-3, inf, nan, true or false")
    return number


def _number(text: str) -> Number | None:
    lower = text.lower()
    if lower in ("true", "false"):
        return lower == "true"
    if re.fullmatch(r"[+-]?(inf|infinity|nan)", lower):
        return float(lower)
    if len(text) > 400:
        return None
    try:
        if re.fullmatch(r"[+-]?(0x[0-9a-f_]+|0b[01_]+|[0-9][0-9_]*)", lower):
            return int(lower, 0 if re.match(r"[+-]?0[xb]", lower) else 10)
        if _FLOAT.fullmatch(lower):
            return float(lower.removesuffix("f"))
    except ValueError:  # underscores in the wrong places
        return None
    return None


def number_text(value: Number) -> str:
    """A number as :func:`parse_number` reads it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _hexadecimal(text: str, what: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise UsageError(f"{what}: bytes() takes pairs of hexadecimal digits, such as bytes(00ff3c00)") from None


def parse_dim3(text: str, option: str) -> tuple[int, int, int]:
    """``4``, ``4,2,1`` or ``4x2x1`` as (x, y, z).

    Raises:
        UsageError: something else, or a number below 1.
    """
    parts = [part.strip() for part in re.split(r"[,x]", text)]
    if not all(re.fullmatch(r"[+-]?\d{1,18}", part) for part in parts) or len(parts) > 3:
        raise UsageError(
            f"{option} takes one to three whole numbers, such as {option} 4 or {option} 4,2,1, not {text!r}"
        )
    numbers = [int(part) for part in parts]
    if min(numbers) < 1:
        raise UsageError(f"{option} {text}: every number must be at least 1")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def parse_files(pairs: Iterable[str], option: str) -> dict[str, str]:
    """``("y=out.npy",)`` -> ``{"y": "out.npy"}``; a position is written ``#1`` in the result.

    Raises:
        UsageError: not KEY=FILE.npy, or a key twice.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, file = pair.partition("=")
        if not (key and equals and file.endswith(".npy")):
            raise UsageError(f"{option} takes NAME=FILE.npy, such as y=out.npy, not {pair!r}")
        key = f"#{int(key.removeprefix('#'))}" if re.fullmatch(r"#?[0-9]{1,9}", key) else key
        if key in found:
            raise UsageError(f"{option} {key} is given twice")
        found[key] = file
    return found
