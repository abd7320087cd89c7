"""The syntax of expressions: C's operators over registers, variables and memory, as a tree of small tuples.

``%r3``, ``%tid.x``          registers and special registers (``$r3`` is ``%r3``)
``x[i]``, ``x[0:8]``         an element; elements 0 to 7 as an array
``*p``, ``&v``, ``s.x``, ``p->x``  as in C
``p@8``                      an array of 8 elements that begins at ``p``
``(float*)p``, ``(@shared float*)0x400``  casts; ``@shared``, ``@local`` and ``@global`` name the state space pointed to
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ptxkit.debugger.ctypes import C_TYPES, CType, named_ptx_type, pointer_to
from ptxkit.errors import UsageError

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+[uUlL]*|(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?|\d+[eE][+-]?\d+[fF]?|\d+[uUlL]*)"
    r"|(?P<register>[%$][A-Za-z_]\w*(?:\.[xyzw]\b)?)"
    r"|(?P<name>[A-Za-z_]\w*(?:::\w+)*)"
    r"|(?P<char>'(?:[^'\\]|\\.)')"
    r"|(?P<op><<|>>|<=|>=|==|!=|&&|\|\||->|[-+*/%&|^~!<>()\[\].:?@,]))"
)
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("@",),
    ("+", "-"),
    ("*", "/", "%"),
)
_TYPE_WORDS = frozenset(("const", "volatile", "struct", "unsigned", "signed", "long", "short", "int", "char"))


MAX_TOKENS = 200
"""Maximum number of names, numbers and operators of an expression."""


@dataclass(frozen=True)
class Node:
    """An expression: ``op`` with its operands, or a leaf whose value is in ``value``."""

    op: str
    operands: tuple[Node, ...] = ()
    value: Any = None


def parse(text: str) -> Node:
    """The tree of an expression.

    Raises:
        UsageError: the text is not an expression; the message shows where.
    """
    parser = _Parser(text)
    if len(parser.tokens) > MAX_TOKENS:
        raise UsageError(
            f"the expression has {len(parser.tokens)} parts, more than {MAX_TOKENS}; print its parts one by one"
        )
    try:
        node = parser.ternary()
    except RecursionError:
        raise UsageError("the expression is nested too deeply; print its parts one by one") from None
    if parser.at < len(parser.tokens):
        raise parser.unexpected()
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text.strip()
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(self.text):
            match = _TOKEN.match(self.text, at)
            if match is None or match.end() == at:
                if not self.text[at:].strip():
                    break
                raise UsageError(f"{self.text!r}: {self.text[at:].strip()[0]!r} has no meaning in an expression")
            kind = str(match.lastgroup)
            self.tokens.append((kind, match[kind]))
            at = match.end()
        self.at = 0
        if not self.tokens:
            raise UsageError("an expression is missing, such as %r3, i + 1 or x[0:8]")

    def peek(self, offset: int = 0) -> str:
        at = self.at + offset
        return self.tokens[at][1] if at < len(self.tokens) else ""

    def skip(self, text: str) -> bool:
        if self.peek() == text and self.tokens[self.at][0] == "op":
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.skip(text):
            raise self.unexpected(f"; expected {text!r}")

    def unexpected(self, more: str = "") -> UsageError:
        found = repr(self.peek()) if self.peek() else "its end"
        return UsageError(f"{self.text!r}: {found} is not expected here{more}")

    def ternary(self) -> Node:
        condition = self.binary(0)
        if not self.skip("?"):
            return condition
        yes = self.ternary()
        self.expect(":")
        return Node("?", (condition, yes, self.ternary()))

    def binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _LEVELS[level] and self.tokens[self.at][0] == "op":
            op = self.peek()
            self.at += 1
            left = Node(op, (left, self.binary(level + 1)))
        return left

    def unary(self) -> Node:
        for op in ("-", "+", "!", "~", "*", "&"):
            if self.skip(op):
                return Node(f"unary{op}", (self.unary(),))
        if self.peek() == "(":
            start = self.at
            self.at += 1
            made = self._type()
            if made is not None and self.skip(")"):
                return Node("cast", (self.unary(),), made)
            self.at = start
        return self.postfix()

    def postfix(self) -> Node:
        node = self.primary()
        while True:
            if self.skip("["):
                first = self.ternary()
                if self.skip(":"):
                    node = Node("slice", (node, first, self.ternary()))
                else:
                    node = Node("index", (node, first))
                self.expect("]")
            elif self.peek() in (".", "->"):
                arrow = self.peek() == "->"
                self.at += 1
                if self.at >= len(self.tokens) or self.tokens[self.at][0] != "name":
                    raise self.unexpected("; expected the name of a member")
                node = Node("member", (Node("unary*", (node,)) if arrow else node,), self.peek())
                self.at += 1
            else:
                return node

    def primary(self) -> Node:
        if self.at >= len(self.tokens):
            raise self.unexpected()
        kind, text = self.tokens[self.at]
        self.at += 1
        match kind:
            case "number":
                return Node("number", (), text)
            case "register":
                return Node("register", (), "%" + text[1:])
            case "name":
                return Node("name", (), text)
            case "char":
                return Node("number", (), str(ord(text[1:-1].encode().decode("unicode_escape"))))
        if text == "(":
            node = self.ternary()
            self.expect(")")
            return node
        if text == "@" and self.peek() in ("shared", "local", "global", "param", "const") and self.peek(1):
            self.at += 1  # @shared array: the space is the variable's own
            return self.postfix()
        self.at -= 1
        raise self.unexpected()

    def _type(self) -> CType | None:
        """Takes a type name as in a cast. Returns None if there is none; the position is then undefined."""
        space = ""
        if self.peek() == "@" and self.peek(1) in ("shared", "local", "global", "const", "param"):
            space = self.peek(1)
            self.at += 2
        words: list[str] = []
        while self.at < len(self.tokens) and self.tokens[self.at][0] == "name":
            word = self.peek()
            if words and word not in _TYPE_WORDS and words[-1] not in ("const", "volatile", "struct"):
                break
            words.append(word)
            self.at += 1
        made = named_type(" ".join(words))
        if made is None:
            return None
        while self.peek() in ("*", "const"):
            if self.peek() == "*":
                made = pointer_to(made, space)
            self.at += 1
        return made


def named_type(text: str) -> CType | None:
    """A type by its C name (``"unsigned int"``) or its PTX name (``"b32"``); None where there is none."""
    words = [w for w in text.split() if w not in ("const", "volatile", "struct", "signed")]
    if "long" in words or "short" in words:
        words = [w for w in words if w != "int"]
    if words[:1] == ["unsigned"] and len(words) == 1:
        words.append("int")
    name = " ".join(words)
    if not name and "signed" in text.split():
        name = "int"
    return C_TYPES.get(name) or named_ptx_type(name)
