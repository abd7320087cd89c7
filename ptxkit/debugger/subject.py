"""The debugged kernel on the emulator, with its parameters and its debugging information."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.debugger.breakpoints import chain, source_text
from ptxkit.debugger.ctypes import CType
from ptxkit.debugger.syntax import named_type
from ptxkit.debugger.variables import Variables

if TYPE_CHECKING:
    from ptxkit.isa.model import Module
    from ptxkit.runtime.kernel import Kernel
    from ptxkit.runtime.parameters import Parameter

_SHARED = re.compile(
    r"__shared__\s+(?:(?:__align__|alignas)\s*\([^)]*\)\s*)?((?:const\s+|volatile\s+|unsigned\s+|signed\s+|long\s+)*\w+)\s+(\w+)\s*[\[;=]"
)
_VARIABLES: dict[int, tuple[Any, Variables]] = {}


@dataclass(frozen=True, eq=False)
class Subject:
    """A kernel that is debugged.

    Attributes:
        entry: mangled name. readable: its readable name.
        module: its PTX.
        parameters: of the kernel.
        elements: index of a pointer parameter -> dtype of the array that is passed for it.
    """

    entry: str
    readable: str
    module: Module
    parameters: tuple[Parameter, ...]
    elements: Mapping[int, np.dtype[Any]] = field(default_factory=dict)

    @property
    def variables(self) -> Variables:
        """The module's C variables; false where it was compiled without ``-G``."""
        known = _VARIABLES.get(id(self.module))
        if known is None or known[0] is not self.module:
            known = _VARIABLES[id(self.module)] = self.module, Variables(self.module.text)
        return known[1]

    @cached_property
    def shared_types(self) -> dict[str, CType]:
        """Name of a ``__shared__`` variable in the source -> type of its elements, where that is a type of C."""
        files = {path for f in self.module.functions.values() for i in f.instructions for path, _ in chain(i)}
        found = {}
        for path in files:
            for kind, name in _SHARED.findall("\n".join(source_text(path) or ())):
                made = named_type(kind)
                if made is not None:
                    found[name] = made
        return found


def subject_of(kernel: Kernel, arguments: tuple[Any, ...] = ()) -> Subject:
    """The subject for a kernel on the emulator; ``arguments`` are those of its launch."""
    elements = {
        k: np.dtype(a.dtype) for k, a in enumerate(arguments) if hasattr(a, "dtype") and hasattr(a, "shape") and a.shape
    }
    return Subject(kernel.name, kernel.readable, kernel.handle.module, kernel.parameters, elements)
