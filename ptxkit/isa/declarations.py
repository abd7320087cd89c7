"""Variable declarations and their initialisers (PTX ISA, "Variables")."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, replace

from ptxkit.isa.constants import parse_constant, parse_integer
from ptxkit.isa.lexer import Tokens, is_identifier
from ptxkit.isa.model import Immediate, Variable
from ptxkit.isa.types import TYPES, PtxType

SPACES = frozenset((".global", ".const", ".shared", ".shared::cta", ".local", ".param", ".reg"))
LINKAGES = frozenset((".extern", ".visible", ".weak", ".common"))
_POINTEE_SPACES = frozenset((".global", ".const", ".shared", ".local", ".generic", ".param"))
_VECTOR = re.compile(r"\.v(\d+)")
_DECIMAL_BYTE = re.compile(r"0|[1-9]\d|[1-9]|1\d\d|2[0-4]\d|25[0-5]")
MAX_RANGE = 1 << 20  # `%r<N>` declares N names; a mistyped N must not exhaust the memory

Relocation = tuple[int, str, int, bool, int]


def parse_linkage(tokens: Tokens) -> str:
    """Takes any linkage directives and returns the one that decides the linkage (``.visible .weak`` is weak)."""
    linkage = ""
    while tokens.text in LINKAGES:
        word = tokens.take()[1:]
        if linkage in ("", "visible"):
            linkage = word
    return linkage


def parse_declaration(tokens: Tokens, linkage: str = "") -> list[Variable]:
    """Takes ``.space [.align n] [.vN] .type name[dims] [= init], ... ;`` with its semicolon."""
    head = _parse_head(tokens, linkage)
    variables: list[Variable] = []
    while True:
        variables += _parse_declarator(tokens, head)
        if not tokens.skip(","):
            break
    tokens.expect(";", "after a declaration")
    return variables


def parse_parameters(tokens: Tokens) -> tuple[Variable, ...]:
    """Takes a parenthesised parameter list, if one is here. Unnamed parameters are called ``_`` or ``""``."""
    parameters: list[Variable] = []
    if not tokens.skip("("):
        return ()
    while not tokens.skip(")"):
        if parameters:
            tokens.expect(",", "or ')' in the parameter list")
        if tokens.text not in (".param", ".reg"):
            raise tokens.expected("a parameter, '.param' or '.reg'")
        parameters += _parse_declarator(tokens, _parse_head(tokens, ""))
    return tuple(parameters)


def parse_attributes(tokens: Tokens) -> tuple[str, ...]:
    """Takes ``.attribute(.managed, .unified(a, b))`` after its keyword and returns the names without dots."""
    names: list[str] = []
    tokens.expect("(", "after .attribute")
    while True:
        if tokens.text[:1] != ".":
            raise tokens.expected("an attribute such as '.managed'")
        names.append(tokens.take()[1:])
        if tokens.skip("("):
            parse_integer(tokens, "a uuid half")
            while tokens.skip(","):
                parse_integer(tokens, "a uuid half")
            tokens.expect(")", "after the attribute's arguments")
        if not tokens.skip(","):
            break
    tokens.expect(")", "after the attributes")
    return tuple(names)


def parse_type(tokens: Tokens) -> PtxType:
    """Takes one ``.type``."""
    ptx_type = TYPES.get(tokens.text[1:]) if tokens.text[:1] == "." else None
    if ptx_type is None:
        raise tokens.expected("a type such as '.b32'")
    tokens.i += 1
    return ptx_type


def parse_range(tokens: Tokens) -> int | None:
    """Takes ``<N>`` and returns N, or returns None if there is none."""
    if not tokens.skip("<"):
        return None
    start = tokens.i
    count = parse_range_count(tokens)
    if not 0 <= count <= MAX_RANGE:
        raise tokens.error(f"a range of {count} names; at most {MAX_RANGE} are taken", start)
    tokens.expect(">", "after the number of names")
    return count


def parse_range_count(tokens: Tokens) -> int:
    """Takes the number in ``<N>``: a literal, because ``>`` would continue an expression."""
    text = tokens.text
    if not text.isdecimal():
        raise tokens.expected("the number of names")
    tokens.i += 1
    return int(text)


@dataclass(frozen=True, slots=True)
class _Head:
    """What all names of one declaration share."""

    space: str
    type: PtxType
    vector: int
    align: int | None
    ptr: tuple[str, int] | None
    linkage: str
    attributes: tuple[str, ...]


def _parse_head(tokens: Tokens, linkage: str) -> _Head:
    space = tokens.take()[1:].split("::", 1)[0]
    if space == "const" and tokens.skip("["):  # .const[2]: banks, deprecated since PTX 2.2
        parse_integer(tokens, "a constant bank")
        tokens.expect("]", "after the constant bank")
    ptx_type: PtxType | None = None
    vector = 1
    align: int | None = None
    ptr: tuple[str, int] | None = None
    attributes: tuple[str, ...] = ()
    while tokens.text[:1] == ".":
        text = tokens.text
        if text == ".align":
            align = _parse_align(tokens)
        elif text == ".attribute":
            tokens.i += 1
            attributes += parse_attributes(tokens)
        elif text == ".ptr":
            tokens.i += 1
            pointee = tokens.take()[1:] if tokens.text in _POINTEE_SPACES else ""
            ptr = (pointee, _parse_align(tokens) if tokens.text == ".align" else 1)
        elif match := _VECTOR.fullmatch(text):
            tokens.i += 1
            vector = int(match[1])
        elif ptx_type is None:
            ptx_type = parse_type(tokens)
        else:
            raise tokens.expected("a name")
    if ptx_type is None:
        raise tokens.expected("a type such as '.b32'")
    return _Head(space, ptx_type, vector, align, ptr, linkage, attributes)


def _parse_align(tokens: Tokens) -> int:
    tokens.i += 1
    start = tokens.i
    align = parse_integer(tokens, "an alignment in bytes")
    if align <= 0 or align & align - 1:
        raise tokens.error(f"an alignment of {align} bytes is not a power of two", start)
    return align


def _parse_declarator(tokens: Tokens, head: _Head) -> list[Variable]:
    line = tokens.lines[tokens.i]
    if tokens.text == "_" or is_identifier(tokens.text):
        name = "_" if tokens.skip("_") else tokens.take_identifier("a name")
    elif head.space in ("param", "reg") and tokens.text in (",", ")", "["):
        name = ""
    else:
        raise tokens.expected("a name")
    count = parse_range(tokens)
    shape: list[int] = []
    while tokens.skip("["):
        start = tokens.i
        size = 0 if tokens.text == "]" else parse_integer(tokens, "an array size")
        if size < 0:
            raise tokens.error(f"an array of {size} elements", start)
        shape.append(size)
        tokens.expect("]", "after the array size")
    variable = Variable(
        name=name,
        space=head.space,
        type=head.type,
        align=head.align or head.type.bytes * head.vector,
        shape=tuple(shape),
        vector=head.vector,
        linkage=head.linkage,
        line=line,
        ptr=head.ptr,
        attributes=head.attributes,
    )
    if count is not None:
        return [replace(variable, name=f"{name}{n}") for n in range(count)]
    if tokens.skip("="):
        variable = _initialised(tokens, variable)
    return [variable]


def _initialised(tokens: Tokens, variable: Variable) -> Variable:
    """Takes an initialiser; the size of an unsized first dimension follows from it."""
    start = tokens.i
    dims = list(variable.shape) + ([variable.vector] if variable.vector > 1 else [])
    data, relocations = _Initialiser(tokens, variable.type, dims).parse()
    shape = variable.shape
    row = variable.type.bytes * variable.vector * math.prod(shape[1:])
    if shape and shape[0] == 0 and row:
        shape = (-(-len(data) // row), *shape[1:])
    if len(data) > row * (shape[0] if shape else 1):
        raise tokens.error(f"more initial values than '{variable.name}' has room for", start)
    return replace(variable, shape=shape, init=bytes(data), relocations=tuple(relocations))


class _Initialiser:
    """Fills bytes in the order of the elements; braces skip to the next row, as in C."""

    def __init__(self, tokens: Tokens, element: PtxType, dims: list[int]) -> None:
        self.tokens = tokens
        self.element = element
        self.dims = dims
        self.data = bytearray()
        self.relocations: list[Relocation] = []

    def parse(self) -> tuple[bytearray, list[Relocation]]:
        tokens = self.tokens
        if tokens.text == "{":
            if not self._parse_flat_bytes():
                self._parse_list(0)
        else:
            self._parse_scalar()
        return self.data, self.relocations

    def _parse_flat_bytes(self) -> bool:
        """Takes a whole ``{1, 2, 3}`` of an 8-bit array; faster than element by element for long tables and printf
        formats."""
        tokens = self.tokens
        if self.element.bits != 8:
            return False
        end = tokens.texts.index("}", tokens.i)  # exists, because the parser has paired all braces
        numbers, commas = tokens.texts[tokens.i + 1 : end : 2], tokens.texts[tokens.i + 2 : end : 2]
        if commas.count(",") != len(commas) or not all(map(_DECIMAL_BYTE.fullmatch, numbers)):
            return False  # negative, hexadecimal, nested or symbolic: element by element
        self.data += bytes(map(int, numbers))
        tokens.i = end + 1
        return True

    def _parse_list(self, depth: int) -> None:
        tokens = self.tokens
        block = self.element.bytes * math.prod(self.dims[depth + 1 :])
        tokens.expect("{")
        while not tokens.skip("}"):
            start = len(self.data)
            if tokens.text == "{":
                if depth + 1 >= len(self.dims):
                    raise tokens.error("initial values are nested deeper than the variable has dimensions")
                self._parse_list(depth + 1)
                if len(self.data) - start > block:
                    raise tokens.error(f"more than the {block} bytes of a row in nested braces", tokens.i - 1)
                self.data += bytes(start + block - len(self.data))
            else:
                self._parse_scalar()
            if not tokens.skip(",") and tokens.text != "}":
                raise tokens.expected("',' or '}' in the initial values")

    def _parse_scalar(self) -> None:
        tokens = self.tokens
        start = tokens.i
        if tokens.text[:1] == '"':
            raise tokens.error("PTX has no string initial values; write the bytes")
        if tokens.texts[start + 1] == "(" and tokens.text[:1].isdigit():  # 0xFF00(symbol): some bits of an address
            mask = parse_integer(tokens, "a mask of address bits")
            if mask <= 0:
                raise tokens.error("a mask without bits", start)
            tokens.expect("(", "after the mask")
            if not is_identifier(tokens.text):
                value = parse_integer(tokens, "the masked value") & mask
                self._append(Immediate(value >> (mask & -mask).bit_length() - 1), start)
            else:
                self._parse_relocation(mask)
            tokens.expect(")", "after the masked value")
        elif is_identifier(tokens.text) and tokens.text != "WARP_SZ":
            self._parse_relocation(0)
        else:
            self._append(parse_constant(tokens), start)

    def _parse_relocation(self, mask: int) -> None:
        tokens = self.tokens
        generic = tokens.text == "generic" and tokens.texts[tokens.i + 1] == "("
        if generic:
            tokens.i += 2
        name = tokens.take_identifier("a symbol")
        if generic:
            if tokens.text in ("+", "-"):
                raise tokens.error("ptxas accepts an offset only after generic(): write generic(symbol)+offset")
            tokens.expect(")", "after the symbol of generic()")
        addend = self._parse_addend()
        self.relocations.append((len(self.data), name, addend, generic, mask))
        self.data += bytes(self.element.bytes)

    def _parse_addend(self) -> int:
        if self.tokens.text == "-":
            raise self.tokens.error("ptxas accepts only + before the offset of a symbol: write symbol+-offset")
        return parse_integer(self.tokens, "an offset") if self.tokens.text == "+" else 0

    def _append(self, value: Immediate, at: int) -> None:
        self.data += encode(value, self.element, self.tokens, at)


_FORMATS = {"f16": "<e", "f32": "<f", "f64": "<d"}


def encode(value: Immediate, ptx_type: PtxType, tokens: Tokens, at: int) -> bytes:
    """The little-endian bytes of a constant in a type. Exact floats keep their bits; integers wrap."""
    number = value.value
    if ptx_type.kind == "f":
        if value.width == ptx_type.bits:
            return value.bits.to_bytes(ptx_type.bytes, "little")
        try:
            return struct.pack(_FORMATS[ptx_type.name], number)
        except OverflowError:
            raise tokens.error(f"{number} does not fit .{ptx_type.name}", at) from None
    if value.width:
        number = value.bits
    if isinstance(number, float):
        raise tokens.error(f"a float initialises .{ptx_type.name}", at)
    return (number & (1 << ptx_type.bytes * 8) - 1).to_bytes(ptx_type.bytes, "little")
