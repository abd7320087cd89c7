"""Variables of loaded modules in global memory, which persist between launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxkit.isa.model import symbols_in

if TYPE_CHECKING:
    from ptxkit.isa.model import Module, Variable
    from ptxkit.runtime.buffers import Memory

STRING = "$str"  # how NVRTC names string literals, which no kernel writes


class ModuleVariable:
    """A variable of a loaded module in global memory.

    Args:
        memory: its device. name: for messages. address, nbytes: its address and size.
    """

    def __init__(self, memory: Memory, name: str, address: int, nbytes: int) -> None:
        self.memory = memory
        self.name = name
        self.address = address
        self._initial = np.empty(nbytes, np.uint8)
        memory.read(address, self._initial)
        self._digest = memory.digest(address, nbytes)

    def changed(self) -> bool:
        """Whether it holds something else than when the module was loaded."""
        return self.memory.digest(self.address, self._initial.nbytes) != self._digest

    def restore(self) -> None:
        """Restore the value that it had when the module was loaded."""
        if self.changed():
            self.memory.write(self.address, self._initial)


def written_variables(module: Module) -> list[Variable]:
    """The variables of a module, and of its functions, that kernels can write: those that code or an initialiser names."""
    inside = (variable for function in module.functions.values() for variable in function.variables.values())
    every = [*module.variables.values(), *inside]
    found = [v for v in every if v.space == "global" and v.bytes and not v.name.startswith(STRING)]
    if not found:
        return []
    instructions = (i for function in module.functions.values() for i in function.instructions)
    named = {name for i in instructions for operand in i.operands for name in symbols_in(operand)}
    named.update(symbol for variable in every for _, symbol, *_ in variable.relocations)
    return [v for v in found if v.name in named]
