"""What a group needs of a bundled kernel: its sizes and options, and the arrays that it reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Array: TypeAlias = tuple[tuple[int, ...], str]
"""Shape and type."""


@dataclass(frozen=True)
class Use:
    """A use of a bundled kernel.

    Attributes:
        kernel: its name. sizes: positional. options: by name.
        inputs: name in the formula -> shape and type of the array that the kernel reads. outputs: those of the results.
        inside: types that results within the kernel may have; it keeps them in f32.
        note: how constant inputs must be stored, as the end of a sentence; "" for as they are.
    """

    kernel: str
    sizes: Mapping[str, int]
    options: Mapping[str, Any]
    inputs: Mapping[str, Array]
    outputs: Sequence[Array]
    inside: frozenset[str] = field(default=frozenset(("f32",)))
    note: str = ""
