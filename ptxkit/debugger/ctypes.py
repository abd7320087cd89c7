"""The types of values in the debugger: scalars of C and PTX, pointers, arrays and structures, and their decoding from bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ptxkit.isa.types import PtxType


@dataclass(frozen=True)
class Field:
    """A member of a structure, at a byte offset."""

    name: str
    type: CType
    offset: int


@dataclass(frozen=True)
class CType:
    """A type.

    Attributes:
        kind: ``"int"``, ``"uint"``, ``"float"``, ``"bool"``, ``"char"``, ``"bits"`` (untyped PTX bits), ``"pointer"``,
            ``"array"``, ``"struct"``, ``"enum"`` or ``"void"``.
        name: as C or PTX writes it.
        size: in bytes.
        target: of a pointer or an array, the element.
        count: of an array.
        fields: of a structure or union.
        dtype: numpy's name of a scalar.
        space: state space of what a pointer points to: ``"global"``, ``"shared"``, ``"local"``; ``""`` for a generic address.
        values: of an enumeration, value -> name.
    """

    kind: str
    name: str
    size: int
    target: CType | None = None
    count: int = 0
    fields: tuple[Field, ...] = ()
    dtype: str = ""
    space: str = ""
    values: tuple[tuple[int, str], ...] = ()

    @property
    def scalar(self) -> bool:
        """Whether it is one number."""
        return self.kind not in ("array", "struct", "void")

    def decode(self, raw: bytes) -> Any:
        """The bytes as a Python value: int, float, bool, list of elements, or dict of members."""
        if self.kind == "array":
            assert self.target is not None
            size = self.target.size
            return [self.target.decode(raw[k * size : (k + 1) * size]) for k in range(self.count)]
        if self.kind == "struct":
            return {f.name: f.type.decode(raw[f.offset : f.offset + f.type.size]) for f in self.fields}
        if self.kind == "float":
            return float(np.frombuffer(raw[: self.size], numpy_type(self.dtype))[0])
        number = int.from_bytes(raw[: self.size], "little", signed=self.kind in ("int", "char", "enum"))
        return bool(number) if self.kind == "bool" else number

    def encode(self, value: Any) -> bytes:
        """A number in this type's bytes; integers wrap."""
        if self.kind == "float":
            with np.errstate(over="ignore"):  # an infinity
                return np.array([value], np.float64).astype(numpy_type(self.dtype)).tobytes()
        return (int(value) & ((1 << self.size * 8) - 1)).to_bytes(self.size, "little")


def numpy_type(name: str) -> np.dtype[Any]:
    """A numpy dtype, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def _number(kind: str, name: str, dtype: str) -> CType:
    return CType(kind, name, numpy_type(dtype).itemsize, dtype=dtype)


VOID = CType("void", "void", 0)
BOOL = _number("bool", "bool", "u1")
INT = _number("int", "int", "i4")
UINT = _number("uint", "unsigned int", "u4")
LONG = _number("int", "long", "i8")
ULONG = _number("uint", "unsigned long", "u8")
FLOAT = _number("float", "float", "f4")
DOUBLE = _number("float", "double", "f8")

C_TYPES: dict[str, CType] = {
    t.name: t
    for t in (
        VOID,
        BOOL,
        INT,
        UINT,
        LONG,
        ULONG,
        FLOAT,
        DOUBLE,
        _number("char", "char", "i1"),
        _number("char", "signed char", "i1"),
        _number("uint", "unsigned char", "u1"),
        _number("int", "short", "i2"),
        _number("uint", "unsigned short", "u2"),
        _number("uint", "unsigned", "u4"),
        _number("int", "long long", "i8"),
        _number("uint", "unsigned long long", "u8"),
        _number("float", "half", "f2"),
        _number("float", "__half", "f2"),
        _number("float", "__nv_bfloat16", "bfloat16"),
        _number("int", "int8_t", "i1"),
        _number("uint", "uint8_t", "u1"),
        _number("int", "int16_t", "i2"),
        _number("uint", "uint16_t", "u2"),
        _number("int", "int32_t", "i4"),
        _number("uint", "uint32_t", "u4"),
        _number("int", "int64_t", "i8"),
        _number("uint", "uint64_t", "u8"),
        _number("uint", "size_t", "u8"),
    )
}
"""The C types that an expression can name."""

for _base in (*C_TYPES.values(), *(_number("uint", n, "u1") for n in ("uchar",)), _number("uint", "uint", "u4")):
    if _base.name in ("char", "uchar", "short", "int", "uint", "long", "float", "double"):
        for _n in (1, 2, 3, 4):
            _members = tuple(Field("xyzw"[k], _base, k * _base.size) for k in range(_n))
            C_TYPES[f"{_base.name}{_n}"] = CType("struct", f"{_base.name}{_n}", _base.size * _n, fields=_members)

_PTX_FLOATS = {"f16": "f2", "bf16": "bfloat16", "f32": "f4", "f64": "f8"}


def ptx_type(t: PtxType) -> CType:
    """The type of a PTX register or variable element."""
    if t.name == "pred":
        return CType("bool", "pred", 1, dtype="u1")
    if t.name in _PTX_FLOATS:
        return _number("float", t.name, _PTX_FLOATS[t.name])
    kind = {"s": "int", "u": "uint"}.get(t.name[0], "bits")
    return CType(kind, t.name, t.bytes, dtype=f"{'i' if kind == 'int' else 'u'}{t.bytes}")


def named_ptx_type(name: str) -> CType | None:
    """The type that a part of an opcode names (``"f32"``, ``"s64"``); None for anything else."""
    if name in _PTX_FLOATS:
        return _number("float", name, _PTX_FLOATS[name])
    if name[:1] in ("s", "u", "b") and name[1:] in ("8", "16", "32", "64"):
        kind = {"s": "int", "u": "uint", "b": "bits"}[name[0]]
        return CType(kind, name, int(name[1:]) // 8, dtype=f"{'i' if kind == 'int' else 'u'}{int(name[1:]) // 8}")
    return None


def numpy_ctype(dtype: np.dtype[Any]) -> CType:
    """The type of an array's elements."""
    kind = {"f": "float", "i": "int", "u": "uint", "b": "bool"}.get(dtype.kind, "bits")
    if dtype == np.dtype(ml_dtypes.bfloat16):
        return _number("float", "__nv_bfloat16", "bfloat16")
    if kind == "bits":
        return CType("bits", dtype.name, dtype.itemsize, dtype=f"u{dtype.itemsize}")
    by_name = {
        "f2": "half",
        "f4": "float",
        "f8": "double",
        "i4": "int",
        "u4": "unsigned int",
        "i8": "long",
        "u8": "unsigned long",
    }
    short = f"{dtype.kind}{dtype.itemsize}"
    return CType(kind, by_name.get(short, dtype.name), dtype.itemsize, dtype="u1" if dtype.kind == "b" else short)


def pointer_to(target: CType, space: str = "") -> CType:
    """A pointer of 64 bits."""
    return CType("pointer", f"{f'@{space} ' if space else ''}{target.name}*", 8, target, space=space, dtype="u8")


def array_of(target: CType, count: int) -> CType:
    """An array; the new dimension is the outermost."""
    inner, bracket, rest = target.name.partition("[")
    return CType("array", f"{inner}[{count}]{bracket}{rest}", target.size * count, target, count)
