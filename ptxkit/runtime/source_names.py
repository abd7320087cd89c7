"""Names of a kernel's parameters, from the source it was compiled from: PTX and cubin have only numbers for them."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ptxkit.errors import UsageError
from ptxkit.files import read_text
from ptxkit.isa.comments import without_comments

if TYPE_CHECKING:
    from ptxkit.compiler.image import Image

_NAME = re.compile(r"[\w>*&\]]\s*[\s*&>]\s*(\w+)\s*(?:\[[^\]]*\]\s*)*$")  # after a type; "int" alone is not a name
_NESTED_NAME = re.compile(r"\(\s*[*&]\s*(?:const\s+)?(\w+)\s*\)\s*[\[(]")  # float (*rows)[16], void (*f)(int)


@lru_cache(maxsize=64)
def parameter_names(kernel: str, count: int, source: str) -> tuple[str, ...] | None:
    """Names of the ``count`` parameters where the source text defines ``kernel`` (its plain name).

    ``""`` for a parameter without a name; None when the text has no such definition, or not with so many parameters.
    """
    parts = parameter_declarations(kernel, count, source)
    if parts is None:
        return None
    names = [_NAME.search(part) or _NESTED_NAME.search(part) for part in parts]
    return tuple(name[1] if name else "" for name in names)


def parameter_declarations(kernel: str, count: int, source: str) -> tuple[str, ...] | None:
    """The ``count`` parameters as the source text declares them, ``"const float *x"``, without default arguments.

    None when the text has no definition of ``kernel`` (its plain name), or not with so many parameters.
    """
    joined = source.replace("\\\n", "")  # lines that end in a backslash go on, also comments
    return next(iter(definitions(kernel, count, without_comments(joined))), None)


def definitions(kernel: str, count: int, bare: str) -> list[tuple[str, ...]]:
    """The declarations of the ``count`` parameters, at each place where a text without comments defines ``kernel``."""
    found = []
    for match in re.finditer(rf"\b{re.escape(kernel)}\s*\(", bare):
        inside, after = enclosed(bare, match.end())
        if not after.lstrip().startswith("{"):
            continue  # a call, or only a declaration
        parts = at_commas(inside)
        if len(parts) == count:
            found.append(tuple(part.split("=")[0].strip() for part in parts))
    return found


def enclosed(text: str, start: int) -> tuple[str, str]:
    """(the text inside the parenthesis or brace that opens before ``start``, the beginning of the text after it)."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start:at], text[at + 1 : at + 200]
    return "", ""


def at_commas(text: str, brackets: str = "()<>[]{}") -> list[str]:
    """The parts between commas that stand outside brackets.

    Args:
        brackets: pairs of brackets; in an expression, ``<`` and ``>`` are none.
    """
    depths = {c: -1 if i % 2 else 1 for i, c in enumerate(brackets)}
    parts, depth = [""], 0
    for c in text:
        depth += depths.get(c, 0)
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part for part in parts if part.strip() not in ("", "void")]


def source_text(image: Image, given: str | None = None) -> str | None:
    """The text that declares an image's kernels; None when it is not a file, or does not exist any more.

    Args:
        given: the text that the image was compiled from, if it is no file.
    """
    if image.expanded or given:
        return image.expanded or given
    if not image.sources:
        return None
    try:
        return read_text(Path(image.sources[0]), legacy=True)
    except (OSError, UsageError):
        return None
