"""The arrays that a pointer parameter accepts, by the C++ type that it points to.

A kernel with a ``const float*`` computes wrong results from an array of float64, without an error of the hardware. If the type
of the parameter is known, an array of another element type is therefore an error. Accepted arrays:

=========================================== ===========================================================================
the parameter points to                     arrays of
=========================================== ===========================================================================
``float``                                   float32; complex64, as pairs
``double``                                  float64; complex128, as pairs
``__half``, ``_Float16``                    float16; uint16 as its bits
``__nv_bfloat16``, ``__bf16``               bfloat16 of ml_dtypes; uint16 as its bits
``__nv_fp8_e4m3``, ``_e5m2``, ``_e8m0``     the same type of ml_dtypes; uint8 as its bits
``__nv_fp6_…``, ``__nv_fp4_…``              the same type of ml_dtypes; uint8 as its bits
``bool``                                    bool; uint8 and int8
``signed char``                             int8, uint8, bool
``short``                                   int16, uint16
``unsigned short``                          uint16, int16; float16 and bfloat16 as their bits
``int``, ``long``, ``long long``            signed and unsigned integers of that width
``unsigned int``                            uint32, int32; narrower numbers, packed: float16, int8, float8, ... (not bool)
``unsigned long``, ``unsigned long long``   uint64, int64
``char``, ``unsigned char``, ``std::byte``  everything: these are raw bytes
``void``, a structure, an enumeration       everything
a pointer                                   uint64 and int64: addresses
``float4``, ``__half2``, ``short2``, ...    the same as the element, and an unsigned integer as wide as the vector
``int2``, ``int4``, ``uint2``, ``uint4``    also all types up to 32 bits wide: raw accesses of 8 and 16 bytes
=========================================== ===========================================================================

The array of a vector type must contain whole vectors, and an array of packed numbers whole words. Arrays of records must
consist of such numbers only. If the type is known, byte orders other than the machine's are errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ptxkit.isa.parameter_types import CppType

_NARROW = (
    "uint8", "int8", "uint16", "int16", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
    "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3", "float8_e3m4", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn",
    "int4", "uint4",
)  # fmt: skip

# C++ type -> (bytes, dtypes of arrays that it accepts; messages recommend the first one)
_SCALARS: dict[str, tuple[int, tuple[str, ...]]] = {
    "float": (4, ("float32", "complex64")),
    "double": (8, ("float64", "complex128")),
    "half": (2, ("float16", "uint16")),
    "_Float16": (2, ("float16", "uint16")),
    "__half": (2, ("float16", "uint16")),
    "c10::Half": (2, ("float16", "uint16")),
    "c10::BFloat16": (2, ("bfloat16", "uint16")),
    "__bf16": (2, ("bfloat16", "uint16")),
    "__nv_bfloat16": (2, ("bfloat16", "uint16")),
    "__nv_fp8_e4m3": (1, ("float8_e4m3fn", "uint8")),
    "__nv_fp8_e5m2": (1, ("float8_e5m2", "uint8")),
    "__nv_fp8_e8m0": (1, ("float8_e8m0fnu", "uint8")),
    "__nv_fp6_e2m3": (1, ("float6_e2m3fn", "uint8")),
    "__nv_fp6_e3m2": (1, ("float6_e3m2fn", "uint8")),
    "__nv_fp4_e2m1": (1, ("float4_e2m1fn", "uint8")),
    "bool": (1, ("bool", "uint8", "int8")),
    "signed char": (1, ("int8", "uint8", "bool")),
    "short": (2, ("int16", "uint16")),
    "unsigned short": (2, ("uint16", "int16", "float16", "bfloat16")),
    "char16_t": (2, ("uint16", "int16")),
    "char32_t": (4, ("uint32", "int32")),
    "wchar_t": (4, ("int32", "uint32")),
    "int": (4, ("int32", "uint32")),
    "unsigned int": (4, ("uint32", "int32", *_NARROW)),
    "long": (8, ("int64", "uint64")),
    "unsigned long": (8, ("uint64", "int64")),
    "long long": (8, ("int64", "uint64")),
    "unsigned long long": (8, ("uint64", "int64")),
}

_ADDRESS = (8, ("uint64", "int64"))
_VECTOR = re.compile(r"(u?(?:char|short|int|long|longlong)|float|double)([1-4])(?:_16a|_32a)?")
_SMALL_VECTOR = re.compile(r"(__nv_fp[468])x([24])(_e\dm\d)")
_PAIRS = {"__half2": "__half", "__nv_bfloat162": "__nv_bfloat16"}
_OF_VECTOR = {"char": "signed char", "longlong": "long long", "uchar": "", "ulonglong": "unsigned long long"}
_RAW_ACCESS = ("int2", "int4", "uint2", "uint4")


@dataclass(frozen=True)
class Element:
    """What a pointer parameter points to, as far as that decides which arrays it takes.

    Attributes:
        dtypes: names of the element types, the recommended one first.
        nbytes: of one element as the kernel accesses it: a vector, or a word of packed numbers.
    """

    dtypes: tuple[str, ...]
    nbytes: int

    def objection(self, dtype: np.dtype[Any], nbytes: int | None) -> str | None:
        """What to pass instead of an array of ``nbytes`` bytes; None if it can be passed."""
        wanted = self.dtypes[0]
        numbers = tuple(_numbers(dtype))
        if not all(number.name in self.dtypes and number.isnative for number in numbers):
            fix = f"pass an array of {wanted} (dtype={_module(wanted)}.{_spelled(wanted)})"
            if len(numbers) == 1 and not numbers[0].isnative:
                return f"{fix}; its bytes are swapped"
            if numbers and all(n.itemsize * 8 == _bits(wanted) for n in numbers):
                return f"{fix}, or .view({_module(wanted)}.{_spelled(wanted)}) of it to pass the same bits"
            return fix
        if nbytes is not None and nbytes % self.nbytes:
            return f"pass a multiple of {self.nbytes} bytes; it has {nbytes:,}"
        return None


def element_of(pointee: CppType | None) -> Element | None:
    """The elements that a pointer to ``pointee`` accepts; None if it accepts all."""
    while pointee is not None and pointee.kind == "array":
        pointee = pointee.pointee
    if pointee is None:
        return None
    if pointee.kind == "pointer":
        return Element(_ADDRESS[1], _ADDRESS[0])
    name = pointee.bare
    if name in _SCALARS:
        size, dtypes = _SCALARS[name]
        return Element(dtypes, size)
    return _vector(name)


def _vector(name: str) -> Element | None:
    if name in _PAIRS:
        scalar, count = _PAIRS[name], 2
    elif match := _SMALL_VECTOR.fullmatch(name):
        scalar, count = match[1] + match[3], int(match[2])
    elif match := _VECTOR.fullmatch(name):
        kind, count = match[1], int(match[2])
        default = f"unsigned {kind[1:]}" if kind[0] == "u" else kind
        scalar = _OF_VECTOR.get(kind, default)
    else:
        return None
    if scalar not in _SCALARS:  # uchar4 is as raw as unsigned char
        return None
    size, dtypes = _SCALARS[scalar]
    if name.startswith("__nv_fp4"):
        size, count = 1, max(1, count // 2)  # two in a byte
    nbytes = size * count
    raw = (f"uint{8 * nbytes}",) if nbytes in (1, 2, 4, 8) else ()
    if name in _RAW_ACCESS:
        raw = (*raw, *_NARROW, "float32", "bool")
    return Element(tuple(dict.fromkeys((*dtypes, *raw))), nbytes)


def dtype_of(value: Any) -> np.dtype[Any] | None:
    """Element type of another library's array; None when it cannot be known."""
    interface = getattr(value, "__cuda_array_interface__", None)
    if isinstance(interface, dict):
        try:
            found: np.dtype[Any] = np.dtype(interface["typestr"])
        except (KeyError, TypeError):
            found = np.dtype("V1")
        if found.kind != "V":
            return found
    name = str(getattr(value, "dtype", "")).rpartition(".")[2]  # torch.float32
    try:
        return numpy_dtype(name) if name else None
    except (TypeError, AttributeError):
        return None


def numpy_dtype(name: str) -> np.dtype[Any]:
    """A dtype by its name in numpy, or in ml_dtypes: ``bfloat16``, ``float8_e4m3fn``.

    Raises:
        TypeError, AttributeError: there is none.
    """
    if name.startswith(("bfloat", "float8_", "float6_", "float4_", "int4", "uint4")):
        import ml_dtypes

        name = getattr(ml_dtypes, name)
    dtype: np.dtype[Any] = np.dtype(name)
    return dtype


def _numbers(dtype: np.dtype[Any]) -> list[np.dtype[Any]]:
    """The numbers that an element consists of; none of raw bytes."""
    if dtype.subdtype is not None:
        return _numbers(dtype.subdtype[0])
    if dtype.names:
        return [number for name in dtype.names for number in _numbers(dtype.fields[name][0])]  # type: ignore[index]
    if dtype.type is np.void:
        return []
    if dtype.kind in "mM":  # times are 64-bit integers
        return [np.dtype(np.int64).newbyteorder(dtype.byteorder)]
    return [dtype]


def _bits(name: str) -> int:
    return numpy_dtype(name).itemsize * 8


def _module(name: str) -> str:
    return "np" if hasattr(np, _spelled(name)) else "ml_dtypes"


def _spelled(name: str) -> str:
    return "bool_" if name == "bool" else name
