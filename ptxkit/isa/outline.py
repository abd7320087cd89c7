"""PTX text as a module whose functions are read when they are used.

A GPU executes machine code; of the PTX it needs the declarations: the kernels with their parameters and directives, and the
variables of the module. Bodies are nearly all of the text. They are found by their braces, and left out; what remains is parsed
as usual. A function whose body is used after all, because an attribute of it is read, has it from the parser of the whole text.

The parser checks bodies, so that text from an unknown origin is to be parsed as a whole (:func:`ptxkit.isa.parser.parse`): an
error in a body is reported when that body is read, if at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any

from ptxkit.errors import PtxSyntaxError
from ptxkit.isa.collection import without_collection
from ptxkit.isa.model import Function, Module
from ptxkit.isa.parser import ModuleParser, parse

_BODY = ("registers", "variables", "instructions", "labels", "branch_targets", "prototypes")
"""The attributes of a function that its body has."""
_HEAD = tuple(f.name for f in fields(Function) if f.name not in _BODY)

# Comments, line markers and strings in the form that the lexer knows: a brace in them is none
_HIDDEN = r"""//[^\n]*|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/|\#[^\n]*|"[^"\\\n]*(?:\\.[^"\\\n]*)*\""""
_MARK = re.compile(rf"[{{}}]|{_HIDDEN}")
_NO_CODE = re.compile(_HIDDEN)
_KINDS = {
    "body": re.compile(r"(?<![\w.$%])\.(?:entry|func)(?![\w.:])"),
    "section": re.compile(r"\.section|\.nv_intermediate_source_section"),
    "values": re.compile("="),
}
_OPCODE = re.compile(r"[\w$%]+(?:\s*\.[\w:]+)*")
_WORD = frozenset("_$%.:")


class OutlinedFunction(Function):
    """A function whose body is parsed when it is used."""

    __slots__ = ("_code", "_whole")
    _code: str
    _whole: Callable[[], Module]

    def may_mention(self, words: Iterable[str]) -> bool:
        """See :meth:`Function.may_mention`; parses nothing."""
        return any(next(_places(self._code, word), None) is not None for word in words)

    def has_opcode(self, opcode: str) -> bool:
        """See :meth:`Function.has_opcode`; parses nothing."""
        name = opcode.partition(".")[0]
        if not self.may_mention((name,)):
            return False
        code = _NO_CODE.sub(" ", self._code)
        written = (_OPCODE.match(code, at) for at in _places(code, name))
        return any(found is not None and "".join(found[0].split()) == opcode for found in written)

    def __getattr__(self, name: str) -> Any:
        # called only for slots without a value
        if name not in _BODY:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        function = self._whole().functions[self.name]
        for attribute in _BODY:
            object.__setattr__(self, attribute, getattr(function, attribute))
        return object.__getattribute__(self, name)


def outline(text: str, path: str = "<ptx>") -> Module:
    """A PTX translation unit, of which the bodies are parsed when they are used.

    Args:
        text: the PTX, which ptxas accepts. path: where it came from, for messages.

    Raises:
        PtxSyntaxError: as :func:`ptxkit.isa.parser.parse`, of declarations. If a body is wrong, reading it raises the error.
    """
    parts = _without_bodies(text.partition("\0")[0])
    if parts is None:
        return parse(text, path)
    try:
        with without_collection():
            parser = _OutlineParser(parts[0], path, parts[1], cache(lambda: parse(text, path)))
            module = parser.parse()
    except PtxSyntaxError:
        return parse(text, path)  # raises an error with the right line of the text, and its column
    # what bodies decide or what is copied with them
    return parse(text, path) if parser.aliases or parser.of_threads else replace(module, text=text)


class _OutlineParser(ModuleParser):
    """Parses a text whose bodies are empty.

    Args:
        bodies: those that were left out, in order. whole: parses the complete text.
    """

    def __init__(self, text: str, path: str, bodies: list[str], whole: Callable[[], Module]) -> None:
        super().__init__(text, path)
        self._bodies = iter(bodies)
        self._whole = whole

    def _defined(self, header: Function, brace: int) -> Function:
        self.tokens.expect("}")
        function = object.__new__(OutlinedFunction)
        for name in _HEAD:
            object.__setattr__(function, name, getattr(header, name))
        object.__setattr__(function, "_code", next(self._bodies))
        object.__setattr__(function, "_whole", self._whole)
        return function


def _without_bodies(text: str) -> tuple[str, list[str]] | None:
    """The text with empty bodies and sections, in which each line has its number, and the bodies.

    None where the text does not show in a simple way which blocks these are.
    """
    rest, bodies = [], []
    depth = start = opened = kept = 0  # start: of the statements since the last block; kept: of what is not in ``rest`` yet
    for mark in _MARK.finditer(text):
        sign = mark[0]
        if sign == "{":
            if depth == 0:
                opened = mark.end()
            depth += 1
        elif sign == "}":
            depth -= 1
            if depth < 0:
                return None
            if depth == 0:
                kind = _kind(text[start : opened - 1])
                if kind is None:
                    return None
                if kind != "values":
                    inside = text[opened : mark.start()]
                    rest += [text[kept:opened], "\n" * inside.count("\n")]
                    kept = mark.start()
                    bodies += [inside] * (kind == "body")
                start = mark.end()
    return None if depth else ("".join([*rest, text[kept:]]), bodies)


def _kind(text: str) -> str | None:
    """What a block after these statements is: the ``"body"`` of a function, a ``"section"`` of debugging information, or
    initial ``"values"``; None where it is not sure."""
    head = _NO_CODE.sub(" ", text).rpartition(";")[2]
    found = [kind for kind, pattern in _KINDS.items() if pattern.search(head)]
    return found[0] if len(found) == 1 else None


def _places(code: str, word: str) -> Iterator[int]:
    """Where a name, a directive or the first part of an opcode is in a text, comments and strings included."""
    at = code.find(word)
    while at >= 0:
        before, after = code[at - 1 : at], code[at + len(word) : at + len(word) + 1]
        if not (before.isalnum() or before in _WORD) and not (after.isalnum() or after in ("_", "$", "%")):
            yield at
        at = code.find(word, at + 1)
