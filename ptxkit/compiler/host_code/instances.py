"""Which instances of kernel templates the host code launches, as name expressions that may mean the same outside of it."""

from __future__ import annotations

import re
from collections.abc import Collection

from ptxkit.isa.comments import without_comments

_INSTANCE = re.compile(r"[\w:]+\s*<(?P<arguments>.*)>", re.DOTALL)
_NAME = re.compile(r"(?<![\w.])(?:::\s*)?[A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)*")
_CHARACTERS = re.compile(r"[\w\s:<>,.*/%+\-()?!~&|^=]*")
_TYPE_PARAMETER = re.compile(r"\b(?:typename|class)\s*(?:\.\.\.)?\s*(\w+)\s*(?=[,>=])")
_WORDS = frozenset(
    "true false nullptr sizeof alignof const volatile unsigned signed char short int long float double bool half half2 __half "
    "__half2 size_t uint uchar ushort ulong __nv_bfloat16 __nv_bfloat162 __nv_fp8_e4m3 __nv_fp8_e5m2".split()
)
_TYPES = re.compile(r"u?int(8|16|32|64)_t|(u?(char|short|int|long|longlong)|float|double)[1-4]")
_ENUMERATION = re.compile(r"\benum\s+(?:\w+\s*)?(?::[^{;]*)?\{([^{}]*)\}")
_NAMESPACE = re.compile(r"\bnamespace\s+(\w+)")


def names_of_scope(text: str) -> frozenset[str]:
    """The enumerators of unscoped enumerations, and the namespaces, that a text declares."""
    bare = without_comments(text)
    found = {m[1] for m in _NAMESPACE.finditer(bare)}
    for enumeration in _ENUMERATION.finditer(bare):
        found |= set(re.findall(r"(?:^|,)\s*(\w+)", enumeration[1]))
    return frozenset(found)


def type_parameters(text: str) -> frozenset[str]:
    """The names of the type parameters of templates in a text, which mean nothing outside of these."""
    return frozenset(m[1] for m in _TYPE_PARAMETER.finditer(without_comments(text)))


def may_name(kernel: str, known: Collection[str], parameters: Collection[str]) -> bool:
    """Whether a launched kernel, as it is written, may name an instance at namespace scope, too.

    Args:
        kernel: ``"scale<float, 2 * TILE>"``.
        known: names of namespace scope. A name with another scope in front may be in a header.
        parameters: names that mean something in a template alone.
    """
    found = _INSTANCE.fullmatch(kernel)
    if found is None or not found["arguments"].strip() or not _CHARACTERS.fullmatch(found["arguments"]):
        return False
    for name in _NAME.findall(found["arguments"]):
        first, _, rest = name.replace(" ", "").removeprefix("::").partition("::")
        if first in parameters or not (rest or first in known or first in _WORDS or _TYPES.fullmatch(first)):
            return False
    return True


def qualified(kernel: str, scope: str, known: Collection[str]) -> str:
    """A launched kernel with ``scope::`` in front of its name, and of the names in its arguments that are ``known``."""

    def add(name: re.Match[str]) -> str:
        first = name[0].partition("::")[0].strip()
        return f"{scope}::{name[0]}" if first in known else name[0]

    head, bracket, arguments = kernel.partition("<")
    return f"{scope}::{head}{bracket}{_NAME.sub(add, arguments)}"
