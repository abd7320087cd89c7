"""Names in a function body: nested scopes flattened to names that are unique in the function."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ptxkit.isa.lexer import Tokens
from ptxkit.isa.model import Operand, Register, SpecialRegister, Symbol, Vector
from ptxkit.isa.types import PtxType

_XYZW = tuple("xyzw")
_SPECIAL = re.compile(
    # PTX ISA, "Special Registers". The vectors may be read whole (mov.v4.u32 {...}, %tid).
    r"""%(?:
      (?:n?tid | n?ctaid | n?clusterid | cluster_n?ctaid)(?:\.[xyzwrgba])?
    | laneid | n?warpid | n?smid | gridid | is_explicit_cluster | cluster_n?ctarank
    | lanemask_(?:eq|le|lt|ge|gt)
    | clock | clock_hi | clock64 | globaltimer(?:_lo|_hi)?
    | pm[0-7](?:_64)? | envreg(?:[12]?\d|3[01])
    | total_smem_size | aggr_smem_size | dynamic_smem_size
    | reserved_smem_offset_(?:begin|end|cap|[01])
    | current_graph_exec | perctamemoryoffset | perctamemorysize
    )""",
    re.VERBOSE,
)


def special_register(name: str) -> SpecialRegister | None:
    """The predefined register of that name, with ``.r/.g/.b/.a`` written as ``.x/.y/.z/.w``; None for an unknown name."""
    if _SPECIAL.fullmatch(name) is None:
        return None
    stem, dot, part = name.partition(".")
    return SpecialRegister(stem + dot + part.translate(str.maketrans("rgba", "xyzw")))


class Scopes:
    """The meaning of each name at the current position in a function body.

    ``names`` maps every visible name, as written, to its operand. An open scope keeps a list of the names to restore when
    it closes. A look-up, which is far more frequent than a declaration, is therefore a single dict access.

    A name keeps its spelling if it is the first of its kind in the function; a later one gets a suffix (``%r1$1``).
    """

    def __init__(self, tokens: Tokens, reserved: Mapping[str, object]) -> None:
        self.names: dict[str, Operand] = {}
        self.registers: dict[str, PtxType] = {}
        self._tokens = tokens
        self._reserved = reserved  # module-scope names, which a body name must not collide with either
        self._taken: set[str] = set()
        self._suffixes: dict[str, int] = {}
        self._restore: list[list[tuple[str, Operand | None]]] = [[]]
        self._declared: list[set[str]] = [set()]

    def open(self) -> None:
        """Enters ``{``."""
        self._restore.append([])
        self._declared.append(set())

    def close(self) -> None:
        """Closes the scope at ``}``: removes its declarations and restores the names that they shadowed."""
        names = self.names
        for name, before in reversed(self._restore.pop()):
            if before is None:
                del names[name]
            else:
                names[name] = before
        self._declared.pop()

    def declare_register(self, name: str, ptx_type: PtxType, vector: int = 1) -> None:
        """``.reg``; a vector becomes one register per component, ``%v.x`` seen under the name ``%v$x``."""
        if vector == 1:
            unique = self._unique(name)
            self.registers[unique] = ptx_type
            self._bind(name, Register(unique))
            return
        unique = self._unique(name)
        parts: list[Register] = []
        for n in range(vector):
            part = Register(self._unique_part(f"{unique}${_XYZW[n] if vector <= 4 else n}"))
            self.registers[part.name] = ptx_type
            parts.append(part)
            if vector <= 4:
                self._bind(f"{name}.{'xyzw'[n]}", part)
                self._bind(f"{name}.{'rgba'[n]}", part)
        self._bind(name, Vector(tuple(parts)))

    def declare_registers(self, stem: str, count: int, ptx_type: PtxType) -> None:
        """``.reg .b32 %r<count>``: what :meth:`declare_register` does, many at a time."""
        names, registers, taken = self.names, self.registers, self._taken
        fresh = [name for n in range(count) if (name := f"{stem}{n}") not in names]
        if len(fresh) < count or not taken.isdisjoint(fresh) or not self._reserved.keys().isdisjoint(fresh):
            for n in range(count):
                self.declare_register(f"{stem}{n}", ptx_type)
            return
        taken.update(fresh)
        self._declared[-1].update(fresh)
        registers.update(dict.fromkeys(fresh, ptx_type))
        names.update(zip(fresh, map(Register, fresh)))
        self._restore[-1] += [(name, None) for name in fresh]

    def declare_symbol(self, name: str, index: int | None = None) -> str:
        """A variable or a label; returns its unique name. ``index`` is the token that an error about a duplicate points to."""
        unique = self._unique(name, index)
        self._bind(name, Symbol(unique))
        return unique

    def _bind(self, name: str, operand: Operand) -> None:
        self._restore[-1].append((name, self.names.get(name)))
        self.names[name] = operand

    def _unique(self, name: str, index: int | None = None) -> str:
        declared = self._declared[-1]
        if name in declared:
            at = self._tokens.i - 1 if index is None else index
            raise self._tokens.error(f"'{name}' is declared twice in the same scope", at)
        declared.add(name)
        return self._unique_part(name)

    def _unique_part(self, name: str) -> str:
        unique = name
        while unique in self._taken or unique in self._reserved:
            self._suffixes[name] = suffix = self._suffixes.get(name, 0) + 1
            unique = f"{name}${suffix}"
        self._taken.add(unique)
        return unique
