"""The data model of PTX, as immutable values: a Module contains Functions, a Function contains Instructions.

The parser (:mod:`ptxkit.isa.parser`) resolves scopes: a register or label declared inside ``{ }`` gets a name that is
unique in its function, so all code after the parser works on one flat list of instructions and one flat set of names.
The model is independent of execution.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TypeAlias

from ptxkit.isa.types import PtxType


@dataclass(frozen=True, slots=True)
class Loc:
    """A source position from a ``.loc`` directive.

    ``inlined_at`` is the call site when the code was inlined (NVRTC's ``inlined_at`` attribute), else None.
    """

    file: str
    line: int
    column: int = 0
    inlined_at: Loc | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Register:
    """A declared virtual register, by its unique name in the function."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class SpecialRegister:
    """A predefined read-only register: ``%tid.x``, ``%laneid``, ``%clock64``, ..."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal. ``value`` is an int, or a float for decimal literals.

    A hexadecimal float (``0f3F800000``, ``0d...``) keeps its exact bits in ``bits`` with ``width`` 32 or 64; an integer
    literal or a decimal float has ``width`` 0 and takes the type of the instruction.
    """

    value: int | float
    width: int = 0
    bits: int = 0

    def __str__(self) -> str:
        return f"0{'f' if self.width == 32 else 'd'}{self.bits:0{self.width // 4}X}" if self.width else str(self.value)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, function or label name used as a value, with a byte offset (``mov.u64 %rd1, table+16``)."""

    name: str
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.name}+{self.offset}" if self.offset else self.name


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, c, d}``: registers, immediates, or None for the sink ``_``."""

    items: tuple[Operand | None, ...]

    def __str__(self) -> str:
        return "{" + ", ".join("_" if i is None else str(i) for i in self.items) + "}"


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``; base None means an absolute immediate address, kept in ``offset``.

    ``coordinates`` holds the second part of a tensor address, ``[tensorMap, {x, y}]``; ``extra`` anything else,
    flattened: im2col offsets ``[map, {x, y}, {i, j}]``, a sampler ``[tex, sampler, {x}]``. Empty otherwise.
    """

    base: Register | Symbol | None
    offset: int = 0
    coordinates: tuple[Operand | None, ...] = ()
    extra: tuple[Operand | None, ...] = ()

    def __str__(self) -> str:
        inner = str(self.offset) if self.base is None else f"{self.base}" + (f"+{self.offset}" if self.offset else "")
        for part in (self.coordinates, self.extra):
            if part:
                inner += ", {" + ", ".join("_" if i is None else str(i) for i in part) + "}"
        return f"[{inner}]"


@dataclass(frozen=True, slots=True)
class Negated:
    """``!p`` or ``-a`` written on an operand; ``sign`` is ``"!"`` or ``"-"``."""

    operand: Operand
    sign: str = "!"

    def __str__(self) -> str:
        return f"{self.sign}{self.operand}"


@dataclass(frozen=True, slots=True)
class Pair:
    """``d|p``: a destination with a second destination, as setp, shfl, match and elect have. None is the sink."""

    first: Operand | None
    second: Operand | None

    def __str__(self) -> str:
        return "|".join("_" if i is None else str(i) for i in (self.first, self.second))


@dataclass(frozen=True, slots=True)
class ParameterList:
    """``(a, b)``: the parenthesised lists of a call. Empty is allowed.

    A call has, in this order: the returned values (if any), the function or the register that points to one, the arguments
    (may be missing), and for an indirect call the label of its prototype or target list.
    """

    items: tuple[Operand | None, ...]

    def __str__(self) -> str:
        return "(" + ", ".join("_" if i is None else str(i) for i in self.items) + ")"


@dataclass(frozen=True, slots=True)
class Selection:
    """``r2.b0``, ``r3.h1``, ``r1.b3210``: bytes or half-words picked from a register by the video instructions."""

    operand: Operand
    part: str

    def __str__(self) -> str:
        return f"{self.operand}.{self.part}"


Operand: TypeAlias = (
    Register | SpecialRegister | Immediate | Symbol | Vector | Address | Negated | Pair | ParameterList | Selection
)
"""A sink ``_`` standing alone is represented by None in ``Instruction.operands``."""


_PARTS: dict[type, tuple[str, ...]] = {
    kind: tuple(f.name for f in fields(kind)) for kind in (Address, Vector, Negated, Pair, ParameterList, Selection)
}
"""The operands that contain others, with the names of their attributes."""


def symbols_in(operand: object) -> tuple[str, ...]:
    """Names of the variables, functions and labels in an operand, wherever they stand in it."""
    kind = type(operand)
    if kind is Register or kind is Immediate:  # most operands
        return ()
    if isinstance(operand, Symbol):
        return (operand.name,)
    if isinstance(operand, tuple):
        return tuple(name for part in operand for name in symbols_in(part))
    return tuple(name for part in _PARTS.get(kind, ()) for name in symbols_in(getattr(operand, part)))


@dataclass(frozen=True, slots=True)
class Predicate:
    """``@p`` or ``@!p``; ``%pt``-style constants do not exist in PTX."""

    register: Register
    negated: bool = False

    def __str__(self) -> str:
        return f"@{'!' if self.negated else ''}{self.register}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        opcode: the whole dotted opcode as written: ``"ld.global.nc.v4.f32"``, ``"cp.async.bulk.commit_group"``.
        operands: in order; None is the sink ``_``.
        predicate: guard, or None.
        line: 1-based line in the PTX text. Several instructions may share one (inline asm).
        loc: the last ``.loc`` before it in the same function, or None.
    """

    opcode: str
    operands: tuple[Operand | None, ...]
    predicate: Predicate | None = None
    line: int = 0
    loc: Loc | None = None

    @property
    def name(self) -> str:
        """The part before the first dot."""
        return self.opcode.split(".", 1)[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        """The parts after the first dot. ``::`` stays inside its part (``shared::cta``)."""
        return tuple(self.opcode.split(".")[1:])

    def __str__(self) -> str:
        guard = f"{self.predicate} " if self.predicate else ""
        text = ", ".join("_" if o is None else str(o) for o in self.operands)
        return f"{guard}{self.opcode} {text};" if text else f"{guard}{self.opcode};"


@dataclass(frozen=True, slots=True)
class Variable:
    """A declared variable in a state space.

    Attributes:
        space: ``"global"``, ``"const"``, ``"shared"``, ``"local"``, ``"param"``.
        type: element type (``b8`` for structs and by-value aggregates).
        align: bytes.
        shape: array dimensions; ``()`` for a scalar; a first dimension of 0 means unsized (``extern .shared x[]``).
        vector: 1, 2 or 4 (``.v2``, ``.v4`` elements).
        init: bytes of the initialiser (little endian; the rest of the variable is zero), or None.
        relocations: byte offset in the variable -> symbol whose generic or state-space address belongs there
            (``{generic(x), y+4}`` and ``mask(x)`` initialisers): (symbol, addend, generic, mask or 0).
        linkage: ``"extern"``, ``"visible"``, ``"weak"``, ``"common"`` or ``""``.
        line: PTX line of the declaration.
        ptr: for kernel parameters, the ``.ptr`` attribute: (space or "", alignment), else None.
        attributes: ``.attribute`` names without dot: ``"managed"``, ``"unified"``.
    """

    name: str
    space: str
    type: PtxType
    align: int
    shape: tuple[int, ...] = ()
    vector: int = 1
    init: bytes | None = None
    relocations: tuple[tuple[int, str, int, bool, int], ...] = ()
    linkage: str = ""
    line: int = 0
    ptr: tuple[str, int] | None = None
    attributes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Size in bytes; 0 when unsized."""
        size = self.type.bytes * self.vector
        for n in self.shape:
            size *= n
        return size


@dataclass(frozen=True, slots=True)
class Prototype:
    """``.callprototype``: the functions that an indirect call may call.

    Attributes:
        returns, params: as those of a function; their names are ``"_"`` or ``""``.
        noreturn: the functions do not return.
    """

    returns: tuple[Variable, ...] = ()
    params: tuple[Variable, ...] = ()
    noreturn: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """An ``.entry`` or ``.func`` with its flat body.

    Attributes:
        name: mangled name, as in the PTX.
        is_entry: a kernel.
        params: formal parameters (space ``"param"``; for ``.reg`` parameters of a .func, space ``"reg"``).
        returns: return parameters of a .func.
        registers: unique register name -> type, every ``.reg`` of the body.
        variables: ``.local``, ``.shared``, ``.param``, ``.global``, ... variables declared in the body, by unique name.
        instructions: the body, in order.
        labels: unique label name -> index into ``instructions`` (may equal their number: the end).
        branch_targets: ``.branchtargets`` / ``.calltargets`` lists by their label.
        prototypes: ``.callprototype`` by label.
        directives: ``.maxntid``, ``.reqntid``, ``.minnctapersm``, ``.maxnreg``, ``.reqnctapercluster``,
            ``.maxclusterrank``, ``.explicitcluster``, ``.noreturn``, ``.pragma``... as name (without dot) -> integers
            or strings. ``maxntid``, ``reqntid`` and ``reqnctapercluster`` always hold three numbers.
        declared_only: a prototype with no body (``.extern .func``).
        line: PTX line of its header.
    """

    name: str
    is_entry: bool
    params: tuple[Variable, ...]
    returns: tuple[Variable, ...] = ()
    registers: Mapping[str, PtxType] = field(default_factory=dict)
    variables: Mapping[str, Variable] = field(default_factory=dict)
    instructions: tuple[Instruction, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    branch_targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prototypes: Mapping[str, Prototype] = field(default_factory=dict)
    directives: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    linkage: str = ""
    declared_only: bool = False
    line: int = 0

    def symbols(self) -> frozenset[str]:
        """The names of variables, functions and labels that its instructions use."""
        return frozenset(name for i in self.instructions for operand in i.operands for name in symbols_in(operand))

    def may_mention(self, words: Iterable[str]) -> bool:
        """Whether its body may contain one of these names, directives or instructions, given without modifiers.

        False is certain. True says nothing where the body was parsed already; a function whose body is not
        (:mod:`ptxkit.isa.outline`) looks for the words in its text, so that a caller reads the body only if they are there.
        """
        return True

    def has_opcode(self, opcode: str) -> bool:
        """Whether one of its instructions has this opcode, given with all modifiers."""
        return any(i.opcode == opcode for i in self.instructions)


@dataclass(frozen=True, slots=True)
class Module:
    """One PTX translation unit.

    Attributes:
        version: ``(9, 0)``.
        target: ``"sm_90a"``, with any further ``.target`` options in ``target_options``.
        variables: module-scope variables by name.
        functions: entries and functions by name.
        files: ``.file`` index -> path as written.
        text: the PTX itself.
        path: where it came from, for messages (``"<nvrtc>"`` when compiled in memory).
    """

    version: tuple[int, int]
    target: str
    target_options: tuple[str, ...]
    address_size: int
    variables: Mapping[str, Variable]
    functions: Mapping[str, Function]
    files: Mapping[int, str]
    text: str
    path: str = "<ptx>"

    @property
    def entries(self) -> dict[str, Function]:
        """The kernels."""
        return {n: f for n, f in self.functions.items() if f.is_entry}
