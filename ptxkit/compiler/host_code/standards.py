"""Which C++ standard a source needs that does not compile as C++17, NVRTC's default."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ptxkit.compiler.image import Image

STANDARDS = ("--std=c++20", "--std=c++23")

_NAMED = re.compile(
    r"concept|requires|consteval|constinit|<=>|C\+\+2\d|char8_t|<compare>|structured binding cannot be captured|"
    r"nontype template parameter may not have class type"
)
"""In errors: what C++17 has not."""

_SYNTAX = re.compile(
    r"error: (expected an? |an operator name must be declared|too many parameters for this operator|\"auto\" is not allowed|"
    r"[^\n]*(not enabled|nonstandard) in this mode|[^\n]* has no member \"construct_at\")"
)
"""In errors: what may be syntax, or a member of the library, that C++17 has not."""


def is_given(options: Sequence[str]) -> bool:
    """Whether options name a standard."""
    return any("std=" in option for option in options)


def named(log: str) -> bool:
    """Whether errors are about something that C++17 certainly does not have."""
    return bool(_NAMED.search(log))


def may_help(log: str) -> bool:
    """Whether a newer standard may help against errors."""
    return named(log) or bool(_SYNTAX.search(log))


def newer(tried: set[str]) -> str:
    """The standard to try next; "" where all have been."""
    return next((option for option in STANDARDS if option not in tried), "")


def applied(options: set[str]) -> set[str]:
    """Options of which only the newest standard is left."""
    standards = sorted(options & set(STANDARDS))
    return options - set(standards[:-1])


def noted(image: Image, source: str, tried: set[str]) -> Image:
    """An image whose log says which standard was chosen, if one was."""
    for option in sorted(applied(tried) & set(STANDARDS)):
        remark = f"{Path(source).name}: note: compiled with {option}, because it does not compile as C++17"
        return replace(image, log=f"{image.log}\n{remark}".lstrip("\n"))
    return image


_THRUST = {
    "sort": "sort",
    "stable_sort": "sort",
    "sort_by_key": "sort",
    "reverse": "reverse",
    "unique": "unique",
    "reduce": "reduce",
    "transform": "transform",
    "transform_reduce": "transform_reduce",
    "inclusive_scan": "scan",
    "exclusive_scan": "scan",
    "partition": "partition",
    "stable_partition": "partition",
    "copy_if": "copy",
    "set_intersection": "set_operations",
    "set_union": "set_operations",
    "merge": "merge",
    "count_if": "count",
}
"""Algorithms of Thrust with the names of those of the standard library -> the header that has them."""


def absent(log: str) -> list[str]:
    """One sentence for each name of the standard library that errors say is not there."""
    names = dict.fromkeys(re.findall(r'namespace "(?:cuda::)?std(?:::ranges)?" has no member "(\w+)"', log))
    hints = []
    for name in names:
        header = _THRUST.get(name)
        other = "" if header is None else f"; use thrust::{name}(thrust::seq, ...) of <thrust/{header}.h>"
        hints.append(f"libcu++, the standard library of device code, has no std::{name}{other}")
    return hints[:4]
