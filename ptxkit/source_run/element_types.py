"""The type of the elements that a declaration of a pointer names."""

from __future__ import annotations

import re

from ptxkit.source_run.grammar import ELEMENT_TYPES

_QUALIFIERS = re.compile(r"\b(const|volatile|__restrict__|__restrict|restrict|struct)\b")
_VECTOR = re.compile(r"(?P<base>char|uchar|short|ushort|int|uint|long|ulong|longlong|ulonglong|float|double)(?P<count>[1-4])")
_WORDS = {
    "unsigned char": "uint8",
    "signed char": "int8",
    "unsigned short": "uint16",
    "unsigned int": "uint32",
    "unsigned long": "uint64",
    "unsigned long long": "uint64",
    "long long": "int64",
    "longlong": "int64",
    "ulonglong": "uint64",
    "__half2": "float16",
    "half2": "float16",
    "__nv_bfloat162": "bfloat16",
}


def element_type(declaration: str) -> str:
    """The element type that a pointer's declaration names, ``"const float *x"`` -> ``"float32"``; ``""`` if unknown."""
    text = " ".join(re.split(r"[*&\[]", _QUALIFIERS.sub(" ", declaration))[0].split())
    if match := _VECTOR.fullmatch(text):
        text = match["base"]
    return _WORDS.get(text, ELEMENT_TYPES.get(text, ""))


def components(declaration: str) -> int:
    """How many numbers one element has: 4 of a ``float4``, 2 of a ``half2``; 1 of others."""
    text = " ".join(re.split(r"[*&\[]", _QUALIFIERS.sub(" ", declaration))[0].split())
    if match := _VECTOR.fullmatch(text):
        return int(match["count"])
    return 2 if text.endswith(("half2", "nv_bfloat162")) else 1
