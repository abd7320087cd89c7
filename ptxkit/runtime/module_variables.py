"""Variables of loaded modules in global memory, which persist between launches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.emulator.memory.layout import plain
from ptxkit.errors import UsageError
from ptxkit.isa.mangled import qualified_name, spellings
from ptxkit.runtime.buffers import DeviceArray, Memory

if TYPE_CHECKING:
    from ptxkit.isa.model import Module, Variable

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


class ModuleGlobals(Mapping[str, DeviceArray]):
    """The ``__device__`` and ``__constant__`` variables of a loaded module as device arrays, by name.

    A name is the mangled one, or the plain one (``table``), with all or some of its namespaces (``ns::table``), if that is
    unique. Scalars have the type of the PTX and the shape (). Arrays and structures are bytes in the PTX of NVRTC:
    ``.view(dtype, shape)`` gives them their type. ``copy_from`` or an assignment writes, ``numpy`` reads.

    Args:
        memory: the device.
        variables: of the module's PTX.
        locate: address and size in bytes of a variable; None if the driver does not know its name.
    """

    def __init__(
        self, memory: Memory, variables: Iterable[Variable], locate: Callable[[str], tuple[int, int] | None]
    ) -> None:
        self._memory = memory
        self._variables = {
            v.name: v for v in variables if v.space in ("global", "const") and v.bytes and not v.name.startswith(STRING)
        }
        self._locate = locate

    def __getitem__(self, name: str) -> DeviceArray:
        """The variable.

        Raises:
            UsageError: there is none of that name, or there are several; the message names them.
        """
        variable = self._variables[self._resolve(name)]
        found = self._locate(variable.name)
        if found is None:
            raise UsageError(
                f"the driver does not give the address of the variable {name!r}, which has internal linkage; declare it "
                "without static and outside of unnamed namespaces and functions"
            )
        address, _ = found
        shape = variable.shape if variable.vector == 1 else (*variable.shape, variable.vector)
        return DeviceArray.at(self._memory, address, shape, variable.type.dtype, plain(variable.name), self)

    def __setitem__(self, name: str, value: Any) -> None:
        """Write the variable: an array of its size in bytes, or for a scalar a number that its type holds.

        Raises:
            UsageError: as for reading; the size is another one, or the scalar cannot hold the number.
        """
        variable = self[name]
        if isinstance(value, (int, float, np.number)) and variable.shape == ():
            kind = np.min_scalar_type(value)
            if not np.can_cast(kind, variable.dtype, "same_kind") or (
                kind.kind in "iu" and kind.itemsize > variable.dtype.itemsize
            ):
                raise UsageError(f"{name!r} is {variable.dtype} and cannot hold {value!r}")
            value = np.array(value, variable.dtype)
        variable.copy_from(value)

    def _resolve(self, name: object) -> str:
        if isinstance(name, str):
            if name in self._variables:
                return name
            matches = [v for v in self._variables if name in (*spellings(v), plain(v))]
            if len(matches) > 1 and name in (whole := [qualified_name(v) for v in matches]) and whole.count(name) == 1:
                return matches[whole.index(name)]  # that of no namespace, if there is one
            if len(matches) == 1:
                return matches[0]
            if matches:
                raise UsageError(f"several variables are called {name!r}: {', '.join(map(self._shown, matches))}")
        listed = ", ".join(map(self._shown, self._variables)) or "none"
        near = get_close_matches(str(name), [plain(v) for v in self._variables], n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has: {listed}"
        raise UsageError(f"there is no variable {name!r} in global or constant memory of this module; {hint}")

    def __contains__(self, name: object) -> bool:
        try:
            return bool(self._resolve(name))
        except UsageError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)

    def __repr__(self) -> str:
        return f"ModuleGlobals({', '.join(map(self._shown, self._variables)) or 'none'})"

    def _shown(self, name: str) -> str:
        """The shortest name of a variable that no other one has."""
        for kind in (plain, qualified_name):
            if [kind(v) for v in self._variables].count(kind(name)) == 1:
                return kind(name)
        return name


def module_globals(memory: Memory, module: Module, locate: Callable[[str], tuple[int, int] | None]) -> ModuleGlobals:
    """The variables of a module at module scope and in its functions."""
    return ModuleGlobals(memory, _variables(module), locate)


def _variables(module: Module) -> list[Variable]:
    """Those at module scope, and those of functions that persist between launches."""
    functions = (f for f in module.functions.values() if f.may_mention((".global", ".const")))
    return [*module.variables.values(), *(v for f in functions for v in f.variables.values())]


def written_variables(module: Module) -> list[Variable]:
    """The variables of a module, and of its functions, that kernels can write: those that code or an initialiser names."""
    every = _variables(module)
    found = [v for v in every if v.space == "global" and v.bytes and not v.name.startswith(STRING)]
    if not found:
        return []
    names = [*(v.name for v in found), ".global"]  # a variable of a function may have another name there
    named = {name for f in module.functions.values() if f.may_mention(names) for name in f.symbols()}
    named.update(symbol for variable in every for _, symbol, *_ in variable.relocations)
    return [v for v in found if v.name in named]
