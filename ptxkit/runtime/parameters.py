"""The parameters of a kernel: offset, size and the kind of value that each accepts.

Several sources are combined. The PTX signature gives sizes and offsets. The mangled name, or for an ``extern "C"`` kernel the
source text or the debugging information of the PTX, gives C++ types where it agrees with the signature in number and sizes.
If none of them gives a type, the instructions that use a 64-bit value show whether it is a pointer
(:mod:`ptxkit.runtime.pointers`). The names come from the debugging information or the source text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ptxkit.isa.mangled import base_name
from ptxkit.isa.model import Function, Variable
from ptxkit.isa.parameter_types import CppType, parameter_types
from ptxkit.runtime.debug_types import debug_parameters
from ptxkit.runtime.elements import Element, element_of, numpy_dtype
from ptxkit.runtime.pointers import addresses, handles
from ptxkit.runtime.source_names import parameter_names
from ptxkit.runtime.source_types import source_types


@dataclass(frozen=True)
class Parameter:
    """One kernel parameter.

    Attributes:
        index: position, from 0.
        name: in the source, or in hand-written PTX; ``""`` when it is not known.
        kind: ``"pointer"``, ``"int"``, ``"float"``, ``"struct"`` (bytes), ``"bits"`` (a number of which only the width
            is known), or ``"word"`` (64 bits that may be either a pointer or a number).
        dtype: of an int or a float, else None.
        signed_known: whether the signedness of an int is certain; if not, both are accepted.
        size, offset, align: bytes, in the parameter buffer.
        cpp: the C++ type, ``""`` when it is not known.
        element: the elements of arrays that a pointer accepts; None if it accepts all.
        texels: ``"Texture"`` or ``"Surface"`` if the kernel uses it as the handle of such an object, else ``""``.
    """

    index: int
    name: str
    kind: str
    dtype: np.dtype[Any] | None
    size: int
    offset: int
    align: int
    signed_known: bool = True
    cpp: str = ""
    element: Element | None = None
    texels: str = ""

    @property
    def label(self) -> str:
        """For messages: ``argument 2 'x' (pointer)``."""
        return f"argument {self.index + 1}{f' {self.name!r}' if self.name else ''} ({self.wants})"

    @property
    def wants(self) -> str:
        """For messages: ``pointer``, ``float32``, ``struct of 12 bytes``."""
        if self.kind == "struct":
            return f"{self.cpp or 'struct'} of {self.size} bytes"
        if self.kind in ("word", "bits"):
            return f"{8 * self.size} bits"
        if self.kind == "pointer":
            return self.cpp or "pointer"
        return self.kind if self.dtype is None else self.dtype.name


def parameters_of(
    function: Function, source: str | None = None, macros: Mapping[str, str] | None = None, ptx: str = ""
) -> tuple[Parameter, ...]:
    """The parameters of a kernel.

    Args:
        function: the entry, from its PTX.
        source: the text it was compiled from, for the names and for the types that the kernel's name does not hold.
        macros: those that the compiler was given.
        ptx: the text that holds the function, for its debugging information.
    """
    debug = debug_parameters(function.name, len(function.params), ptx)
    reader = _Reader(function, source, macros or {}, debug)
    names = _names(function, source, tuple(name for name, _ in debug or ()))
    out, at = [], 0
    for index, variable in enumerate(function.params):
        align = max(variable.align, 1)
        at = -(-at // align) * align
        kind, dtype, known, cpp = reader.kind(index)
        element = reader.element(index) if kind == "pointer" else None
        texels = reader.texels.get(variable.name, "") if variable.bytes == 8 and kind in HANDLES else ""
        out.append(Parameter(index, names[index], kind, dtype, variable.bytes, at, align, known, cpp, element, texels))
        at += variable.bytes
    return tuple(out)


HANDLES = ("int", "bits", "word")
"""The kinds of 64 bits that may be the handle of a texture or surface object."""

Kind = tuple[str, "np.dtype[Any] | None", bool, str]


class _Reader:
    def __init__(
        self,
        function: Function,
        source: str | None,
        macros: Mapping[str, str],
        debug: tuple[tuple[str, CppType], ...] | None,
    ) -> None:
        self.function = function
        types = parameter_types(function.name) or ()
        if source and not function.name.startswith("_Z"):
            types = source_types(function.name, len(function.params), source, macros) or ()
        if debug is not None:
            known = types or (CppType("class"),) * len(debug)
            types = tuple(a if a.text else b for a, (_, b) in zip(known, debug, strict=True))
        agree = len(types) == len(function.params) and all(map(_fits, function.params, types))
        self.types = types if agree else None

    def element(self, index: int) -> Element | None:
        """Which arrays a pointer takes."""
        found = self.types[index] if self.types else None
        return element_of(found.pointee) if found is not None and found.kind == "pointer" else None

    @cached_property
    def addresses(self) -> tuple[frozenset[str], frozenset[str]]:
        """Determined only if the name and the signature leave it open."""
        return addresses(self.function)

    @cached_property
    def texels(self) -> dict[str, str]:
        """Determined only if a parameter has 64 bits and is no pointer."""
        return handles(self.function)

    def kind(self, index: int) -> Kind:
        """(kind, dtype, whether the signedness is known, C++ type)."""
        variable = self.function.params[index]
        declared = self.types[index] if self.types else CppType("class")
        if declared.kind == "pointer":
            return "pointer", None, True, declared.text
        if declared.kind == "number":
            dtype = numpy_dtype(declared.dtype)
            return ("float" if dtype.kind not in "iub" else "int"), dtype, True, declared.text
        return (*self.from_ptx(variable), declared.text)

    def from_ptx(self, v: Variable) -> tuple[str, np.dtype[Any] | None, bool]:
        """By the signature alone; an enumeration, too, is a number of its width."""
        if v.shape or v.vector > 1 or v.bytes > 8:
            return "struct", None, True
        if v.ptr is not None:
            return "pointer", None, True
        if v.type.kind == "f":
            return "float", v.type.dtype, True
        if v.bytes == 8:  # some compilers declare pointers as signed
            sure, unsure = self.addresses
            if v.name in sure:
                return "pointer", None, True
            if v.name in unsure:
                return "word", None, True
        if v.type.kind == "s":
            return "int", v.type.dtype, True
        if v.type.kind == "b":
            return "bits", None, False
        # compilers write .u32 for int, too
        return "int", np.dtype(f"i{v.bytes}"), False


def _fits(variable: Variable, declared: CppType) -> bool:
    """Whether a C++ type is compatible with the signature."""
    if declared.kind == "class":
        return True
    if declared.kind not in ("pointer", "number"):
        return False
    return variable.bytes == (8 if declared.kind == "pointer" else numpy_dtype(declared.dtype).itemsize)


def _names(function: Function, source: str | None, debug: tuple[str, ...]) -> tuple[str, ...]:
    """As hand-written PTX, the debugging information or the source text has them; "" where none does."""
    written = tuple(v.name for v in function.params)
    generated = re.compile(rf"{re.escape(function.name)}_param_\d+")
    if not all(generated.fullmatch(name) for name in written):
        return written
    if any(debug):
        return debug
    found = parameter_names(base_name(function.name), len(written), source) if source else None
    return found or ("",) * len(written)
