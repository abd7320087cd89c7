"""The variables of the modules of a variant. They persist between launches, and variants share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxkit.runtime.module_variables import ModuleVariable


@dataclass(frozen=True)
class ModuleState:
    """Module variables and their values when the module was loaded.

    Attributes:
        variables: the variables that kernels can write.
    """

    variables: tuple[ModuleVariable, ...]

    def restore(self) -> None:
        """Restore all variables that have changed since the module was loaded."""
        for variable in self.variables:
            variable.restore()

    def changed(self) -> bool:
        """Whether a variable has changed since the module was loaded."""
        return any(variable.changed() for variable in self.variables)
