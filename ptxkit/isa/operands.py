"""Operands of instructions (PTX ISA, "Instruction Operands")."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ptxkit.isa.constants import parse_constant, parse_integer
from ptxkit.isa.lexer import Tokens, is_identifier
from ptxkit.isa.model import (
    Address,
    Negated,
    Operand,
    Pair,
    ParameterList,
    Register,
    Selection,
    SpecialRegister,
    Symbol,
    Vector,
)
from ptxkit.isa.scopes import special_register

_SELECTOR = re.compile(r"[bh][0-7]{1,4}")  # r2.b0, r3.h1, r1.b3210: video instructions
_SIGNS = frozenset(("+", "-"))


def _is_name(text: str) -> bool:
    return is_identifier(text) and text != "WARP_SZ"


class OperandParser:
    """Takes operands from ``tokens``; ``names`` maps the identifiers in scope to operands (see
    :class:`~ptxkit.isa.scopes.Scopes`).

    ``element_bytes`` gives the size of a variable's elements. An undeclared name is passed to ``unknown`` with its token
    index: it may be a function that is declared later. ``add`` gives a register with the sum of a register and a constant,
    which ptxas takes in place of a value; it gets their token index, too.
    """

    def __init__(
        self,
        tokens: Tokens,
        names: Mapping[str, Operand],
        element_bytes: Callable[[str], int],
        unknown: Callable[[str, int], None],
        add: Callable[[Register, int, int], Register],
    ) -> None:
        self._sum = add
        self._tokens = tokens
        self._names = names
        self._element_bytes = element_bytes
        self._unknown = unknown
        self._special: dict[str, SpecialRegister] = {}

    def parse(self, opcode: str) -> Operand | None:
        """Takes one operand; None is the sink ``_``."""
        operand = self._single(opcode)
        if self._tokens.text == "|":
            self._tokens.i += 1
            return Pair(operand, self._single(opcode))
        return operand

    def _single(self, opcode: str) -> Operand | None:
        tokens = self._tokens
        text = tokens.text
        first = text[:1]
        if first == "[":
            tokens.i += 1
            return self._address()
        if first == "{":
            tokens.i += 1
            return Vector(self._list("}", opcode))
        if text == "_":
            tokens.i += 1
            return None
        if text == "(" and opcode.startswith("call"):
            tokens.i += 1
            return ParameterList(self._list(")", opcode))
        if first in ("!", "-") and _is_name(tokens.texts[tokens.i + 1]):
            tokens.i += 1
            return Negated(self._named(opcode), first)
        if _is_name(text):
            return self._named(opcode)
        if not text or text == ";":
            raise tokens.expected("an operand")
        return parse_constant(tokens)

    def _list(self, end: str, opcode: str) -> tuple[Operand | None, ...]:
        tokens = self._tokens
        items: list[Operand | None] = []
        names = self._names
        while not tokens.skip(end):
            if items:
                tokens.expect(",", f"or '{end}'")
            known = names.get(tokens.text)
            if known is not None and tokens.texts[tokens.i + 1] in (",", end):
                tokens.i += 1
                items.append(known)
            else:
                items.append(self.parse(opcode))
        return tuple(items)

    def _name(self) -> Operand:
        """The operand that the next token, an identifier, names."""
        tokens = self._tokens
        index = tokens.i
        text = tokens.take()
        operand = self._names.get(text) or self._special.get(text)
        if operand is not None:
            return operand
        special = special_register(text)
        if special is not None:
            self._special[text] = special
            return special
        stem, dot, part = text.partition(".")
        if dot and stem in self._names:
            if _SELECTOR.fullmatch(part):
                return Selection(self._names[stem], part)
            raise tokens.error(f"'{stem}' has no component '.{part}'", index)
        if text == "generic" and tokens.text == "(":
            raise tokens.error(
                "generic() is only for initial values of variables; use mov and cvta in a function", index
            )
        self._unknown(text, index)
        return Symbol(text)

    def _named(self, opcode: str) -> Operand:
        """An identifier, or an address expression that begins with one."""
        tokens = self._tokens
        index = self._tokens.i
        operand = self._name()
        if isinstance(operand, Register) and tokens.text == "+":
            return self._sum(operand, self._offset(), index)
        if not isinstance(operand, Symbol):
            return operand
        if tokens.text in _SIGNS:
            return Symbol(operand.name, self._offset())
        if tokens.text == "[":  # a[2]: element of an array; its address in mov, its content anywhere else
            tokens.i += 1
            offset = parse_integer(tokens, "an array index") * self._element_bytes(operand.name)
            tokens.expect("]", "after the array index; an index in a register must be added to the address before")
            return Symbol(operand.name, offset) if opcode.startswith("mov") else Address(operand, offset)
        return operand

    def _offset(self) -> int:
        offset = parse_integer(self._tokens, "a byte offset")
        return offset - (1 << 64) if offset >> 63 == 1 else offset

    def _address(self) -> Address:
        tokens = self._tokens
        base: Register | Symbol | None = None
        offset = 0
        if _is_name(tokens.text):
            at = tokens.i
            named = self._name()
            if not isinstance(named, (Register, Symbol)):
                raise tokens.expected("a register or a variable as the base of an address", at)
            base = named
            if tokens.text in _SIGNS:
                if _is_name(tokens.texts[tokens.i + 1]):
                    raise tokens.expected("a constant offset: PTX adds no register to an address", tokens.i + 1)
                offset = self._offset()
        elif tokens.text in ("]", ",", ""):
            raise tokens.expected("an address")
        else:
            offset = parse_integer(tokens, "an address")
        coordinates: tuple[Operand | None, ...] = ()
        extra: tuple[Operand | None, ...] = ()
        while tokens.skip(","):
            if not tokens.skip("{"):
                extra += (self.parse(""),)
            elif not coordinates:
                coordinates = self._list("}", "")
            else:
                extra += self._list("}", "")
        tokens.expect("]", "after the address")
        # the suffix of [x].unified repeats the attribute of x's declaration
        tokens.skip(".unified")
        return Address(base, offset, coordinates, extra)
