"""The launches of a plan as a function that is written out for its numbers of tensors, results and values.

Loops over two or three tensors, and lists that are built for one launch, take a tenth of the host time of a call. This module
writes a function without either, from the numbers that do not change between the calls of a plan, as :mod:`dataclasses`
writes ``__init__``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ptxkit.runtime.kernel import OpenLaunch

Run: TypeAlias = Callable[[Sequence[torch.Tensor], int | None], Any]
"""The results for tensors and a seed."""


@dataclass(frozen=True)
class Parts:
    """What such a function is made of.

    Attributes:
        tensors: how many it takes.
        makes: shape, strides and type of each result, in the order of the kernel's arguments.
        values: how many numbers are passed by value, without the seed.
        seeded: whether a seed follows them.
        scratch: bytes of the memory of all temporaries, and the offset of each.
        launches: in their order; all take the addresses of tensors and results, values, seed and temporaries.
        alignment: of the tensors, in bytes, a power of two; a call with another one is given to ``otherwise``.
        empty: allocates a tensor on the current GPU: shape, strides, type.
        stream: the current stream of a GPU.
        current: the index of the current GPU; None where there is only one.
        index: of the GPU.
        otherwise: makes a function, from the numbers, for the calls that are not launched here.
    """

    tensors: int
    makes: Sequence[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]
    values: int
    seeded: bool
    scratch: tuple[int, tuple[int, ...]]
    launches: Sequence[OpenLaunch]
    alignment: int
    empty: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
    stream: Callable[[int], int]
    current: Callable[[], int] | None
    index: int
    otherwise: Callable[[Sequence[Any]], Run]


def written(parts: Parts, alone: bool) -> Callable[[Sequence[Any]], Run]:
    """A function of the numbers that are passed by value, which makes the function for calls with these numbers. That one
    returns the results, as a tuple, or the first one if it is ``alone``."""
    names: dict[str, Any] = {
        "empty": parts.empty,
        "stream": parts.stream,
        "current": parts.current,
        "otherwise": parts.otherwise,
    }
    exec(compile(_source(parts, alone, names), "<ptxkit.torch: launches of a plan>", "exec", dont_inherit=True), names)
    make: Callable[[Sequence[Any]], Run] = names["make"]
    return make


def _source(parts: Parts, alone: bool, names: dict[str, Any]) -> str:
    """The function; what it needs besides numbers is added to ``names``."""
    given, made = range(parts.tensors), range(len(parts.makes))
    addresses, numbers = [f"a{i}" for i in given], [f"value{i}" for i in range(parts.values)]
    apart = f"({' | '.join(addresses)}) & {parts.alignment - 1}"
    apart += f" or current() != {parts.index}" * (parts.current is not None)
    lines = [f"{', '.join(f't{i}' for i in given)}, = tensors"]
    lines += [f"a{i} = t{i}.data_ptr()" for i in given]
    lines += [f"if {apart}:", "    return elsewhere(tensors, seed)"]
    for i, (shape, strides, dtype) in enumerate(parts.makes):
        names[f"dtype{i}"] = dtype
        lines.append(f"r{i} = empty({shape}, {strides}, dtype{i})")
    size, offsets = parts.scratch
    if size:
        names["byte"] = torch.uint8
        lines += [f"scratch = empty(({size},), (1,), byte)", "base = scratch.data_ptr()"]
    arguments = [
        *addresses,
        *(f"r{i}.data_ptr()" for i in made),
        *numbers,
        *["seed"] * parts.seeded,
        *(f"base + {offset}" for offset in offsets),
    ]
    lines += [f"values = ({', '.join(arguments)},)", f"on = stream({parts.index})"]
    for i, launch in enumerate(parts.launches):
        names[f"launch{i}"] = launch
        lines.append(f"launch{i}(values, on)")
    lines.append("return r0" if alone else f"return ({', '.join(f'r{i}' for i in made)},)")
    opened = [f"{', '.join(numbers)}, = numbers"] * bool(numbers)
    body = [*opened, "elsewhere = otherwise(numbers)", "def run(tensors, seed):", *(f"    {line}" for line in lines)]
    return "\n    ".join(["def make(numbers):", *body, "return run"])
