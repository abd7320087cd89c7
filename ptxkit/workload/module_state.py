"""The variables of the modules that a variant launches kernels of: they outlive a launch, and variants share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxkit.runtime.module_variables import ModuleVariable


@dataclass(frozen=True)
class ModuleState:
    """Module variables, with what they held when the module was loaded.

    Attributes:
        variables: those that kernels can write.
    """

    variables: tuple[ModuleVariable, ...]

    def restore(self) -> None:
        """Give every variable that changed what it held when the module was loaded."""
        for variable in self.variables:
            variable.restore()

    def changed(self) -> bool:
        """Whether a variable holds something else than when the module was loaded."""
        return any(variable.changed() for variable in self.variables)
