"""Types of a kernel's parameters from the source that defines it: the names of ``extern "C"`` kernels hold none.

The module reads the usual spellings of CUDA C++ types, and aliases of them that the source (``using``, ``typedef``,
``#define``) or a ``-D`` option defines. A type with another name is unknown, and so is an alias with two different
definitions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ptxkit.isa.comments import without_comments
from ptxkit.isa.parameter_types import BUILTIN, CppType, class_type
from ptxkit.runtime.source_conditions import active_text
from ptxkit.runtime.source_names import definitions

_UNKNOWN = CppType("class")
_IGNORED = frozenset(
    "__restrict__ __restrict restrict volatile __grid_constant__ struct class enum typename register static inline".split()
)
_INTEGER_WORDS = frozenset("signed unsigned char short int long".split())
_SPELLED = {
    **{f"{prefix}int{bits}_t": name for prefix in ("", "std::", "cuda::std::") for bits, name in (
        (8, "signed char"), (16, "short"), (32, "int"), (64, "long"))},
    **{f"{prefix}uint{bits}_t": f"unsigned {name}" for prefix in ("", "std::", "cuda::std::") for bits, name in (
        (8, "char"), (16, "short"), (32, "int"), (64, "long"))},
    **{f"{prefix}{name}": of for prefix in ("", "std::", "cuda::std::") for name, of in (
        ("size_t", "unsigned long"), ("ptrdiff_t", "long"), ("intptr_t", "long"), ("uintptr_t", "unsigned long"))},
    "half": "__half", "half2": "__half2", "nv_bfloat16": "__nv_bfloat16", "nv_bfloat162": "__nv_bfloat162",
    "nv_half": "__half", "nv_half2": "__half2",
    "cuFloatComplex": "float2", "cuComplex": "float2", "cuDoubleComplex": "double2",
    "__nv_fp8_storage_t": "unsigned char", "std::byte": "unsigned char", "cuda::std::byte": "unsigned char",
}  # fmt: skip
_BY_NAME = {text: CppType(kind, dtype, text) for kind, dtype, text in BUILTIN.values()}
_CLASSES = re.compile(
    r"__half2?|__nv_bfloat162?|__nv_fp[468](?:x[24])?_e\dm\d|u?(?:char|short|int|long|longlong)[1-4]|(?:float|double)[1-4]"
)
_DEPTH = 8  # the longest chain of aliases that is followed


def source_types(kernel: str, count: int, source: str, macros: Mapping[str, str]) -> tuple[CppType, ...] | None:
    """Types of the ``count`` parameters of ``kernel`` (its plain name), as far as they are certain.

    Args:
        source: the text that defines it.
        macros: those that the compiler was given by ``-D``.

    Returns:
        One type for each parameter, of kind ``"class"`` without text where it is unknown; None where no definition is
        found.
    """
    text, defined = active_text(without_comments(source), macros)
    found = definitions(kernel, count, text)
    if not found:
        return None
    aliases = _aliases(text, defined)
    read = [tuple(_declared(part, aliases) for part in parts) for parts in found]
    return tuple(types[0] if all(t == types[0] for t in types) else _UNKNOWN for types in zip(*read, strict=True))


def spelled_type(text: str) -> CppType:
    """The type that ``"const float*"`` spells, without aliases; of kind ``"class"`` without text where it is unknown."""
    return _type(re.findall(r"[\w:]+|\S", text), {}, _DEPTH)


def _aliases(text: str, macros: Mapping[str, str | None]) -> dict[str, str | None]:
    """Alias -> type; None if ambiguous."""
    out: dict[str, str | None] = dict(macros)
    found = [
        *re.findall(r"\busing\s+(\w+)\s*=\s*([^;{}]+);", text),
        *((name, type_) for type_, name in re.findall(r"\btypedef\s+([^;{}()]+?[\s*&])(\w+)\s*;", text)),
    ]
    for name, type_ in found:
        meaning = " ".join(type_.split())
        out[name] = meaning if out.get(name, meaning) == meaning else None
    for name in re.findall(r"\b(?:struct|class|enum|union)\s+(\w+)\s*[:{]", text):
        out[name] = None  # defined by the source, so it is not the CUDA type of the same name
    return out


def _declared(part: str, aliases: Mapping[str, str | None]) -> CppType:
    """The declared type of one parameter."""
    part = re.sub(r"\[\[.*?\]\]", " ", part.split("=")[0])
    part, arrays = re.subn(r"((?:\[[^\]]*\]\s*)+)$", "", part.strip())
    words = re.findall(r"[\w:]+|\S", part)
    if arrays:
        words = [*_without_name(words), "*"]
    elif words and _is_name(words[-1]) and len([w for w in words if _is_name(w) and w not in _IGNORED]) > 1:
        words = _without_name(words)
    return _type(words, aliases, _DEPTH)


def _without_name(words: list[str]) -> list[str]:
    known = {*_INTEGER_WORDS, *_BY_NAME, "const", *_IGNORED}
    return words[:-1] if words and _is_name(words[-1]) and words[-1] not in known else words


def _is_name(word: str) -> bool:
    return bool(re.fullmatch(r"[\w:]+", word)) and word != "const"


def _type(words: list[str], aliases: Mapping[str, str | None], depth: int) -> CppType:
    words = [word for word in words if word not in _IGNORED]
    if depth == 0 or not all(word in ("*", "&") or re.fullmatch(r"[\w:]+", word) for word in words):
        return _UNKNOWN  # templates, functions, PTX
    stars = [i for i, word in enumerate(words) if word in ("*", "&")]
    first = stars[0] if stars else len(words)
    base, rest = words[:first], words[first:]
    const = "const" in base
    base = [word for word in base if word != "const"]
    found = _base(base, aliases, depth)
    if const and found.text and found.kind != "pointer":
        found = CppType(found.kind, found.dtype, f"const {found.text}", found.pointee)
    for word in rest:
        if word in ("*", "&"):
            found = CppType("pointer", "", f"{found.text}{word}" if found.text else "", found)
    return found


def _base(words: list[str], aliases: Mapping[str, str | None], depth: int) -> CppType:
    if words and all(word in _INTEGER_WORDS for word in words):
        return _BY_NAME[_integer(words)]
    if len(words) != 1:
        return _UNKNOWN
    name = words[0]
    if name in aliases:
        meaning = aliases[name]
        return _type(re.findall(r"[\w:]+|\S", meaning), aliases, depth - 1) if meaning else _UNKNOWN
    spelled = _SPELLED.get(name, name)
    if spelled in _BY_NAME:
        return _BY_NAME[spelled]
    return class_type(spelled) if _CLASSES.fullmatch(spelled) else _UNKNOWN


def _integer(words: list[str]) -> str:
    """The usual spelling of ``long unsigned int``."""
    size = next((w for w in ("char", "short") if w in words), "")
    size = size or ("long long" if words.count("long") > 1 else "long" if "long" in words else "int")
    if "unsigned" in words:
        return f"unsigned {size}"
    return "signed char" if size == "char" and "signed" in words else size
