"""The value of a preprocessor condition, three-valued: names that are not known make it undecided where they matter.

Rules: C++ standard [cpp.cond]: integer constant expressions, in which unknown identifiers are 0.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence


class Undecided(Exception):
    """The condition depends on something unknown, or is no expression."""


_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
    {"<<": operator.lshift, ">>": operator.rshift},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.floordiv, "%": operator.mod},
)
_JOINED = frozenset("|| && == != <= >= << >>".split())
_ALTERNATIVE = {"and": "&&", "or": "||", "not": "!"}


def truth(words: Sequence[tuple[str, str]]) -> bool:
    """Whether an expression is not 0.

    Args:
        words: (text, kind) of its tokens, with macros expanded; ``"?"`` of kind ``"known"`` or ``"word"`` for what is unknown.

    Raises:
        Undecided: it depends on something unknown, or is no expression.
    """
    joined: list[tuple[str, str]] = []
    for text, kind in words:
        if text in _ALTERNATIVE:
            text, kind = _ALTERNATIVE[text], "joined"
        if joined and kind == "mark" and joined[-1][1] == "mark" and joined[-1][0] + text in _JOINED:
            joined[-1] = (joined[-1][0] + text, "joined" if text in "|&=<>" else "mark")
        else:
            joined.append((text, kind))
    reader = _Reader(joined)
    value = reader.choice()
    if value is None or reader.at != len(joined):
        raise Undecided
    return bool(value)


class _Reader:
    """Values are None where they are unknown."""

    def __init__(self, words: list[tuple[str, str]]) -> None:
        self.words = words
        self.at = 0

    def _next(self) -> str:
        return self.words[self.at][0] if self.at < len(self.words) else ""

    def _takes(self, text: str) -> bool:
        is_next = self._next() == text and self.words[self.at][1] not in ("known", "word")
        self.at += is_next
        return is_next

    def choice(self) -> int | None:
        condition = self._either()
        if not self._takes("?"):
            return condition
        first = self.choice()
        if not self._takes(":"):
            raise Undecided
        second = self.choice()
        if condition is None:
            return first if first == second else None
        return first if condition else second

    def _either(self) -> int | None:
        value = self._both()
        while self._takes("||"):
            other = self._both()
            value = 1 if value or other else (None if value is None or other is None else 0)
        return value

    def _both(self) -> int | None:
        value = self._binary(0)
        while self._takes("&&"):
            other = self._binary(0)
            if value == 0 or other == 0:
                value = 0
            else:
                value = None if value is None or other is None else 1
        return value

    def _binary(self, level: int) -> int | None:
        if level == len(_LEVELS):
            return self._unary()
        value = self._binary(level + 1)
        while (name := self._next()) in _LEVELS[level] and self._takes(name):
            other = self._binary(level + 1)
            if value is None or other is None:
                value = None
            elif (name in "/%" and not other) or (name in ("<<", ">>") and not 0 <= other < 64):
                raise Undecided
            else:
                value = int(_LEVELS[level][name](value, other))
        return value

    def _unary(self) -> int | None:
        if self.at >= len(self.words):
            raise Undecided
        text, kind = self.words[self.at]
        self.at += 1
        if text == "?" and kind in ("known", "word"):
            if self._next() == "(":  # a call of something unknown
                depth = 0
                while self.at < len(self.words):
                    depth += {"(": 1, ")": -1}.get(self.words[self.at][0], 0)
                    self.at += 1
                    if not depth:
                        break
            return None
        if kind in ("number", "known"):
            return _number(text)
        if kind == "string" and text.startswith("'"):
            return ord(text[1]) if len(text) == 3 else None
        if kind == "word":
            return 1 if text == "true" else 0
        if text == "(":
            value = self.choice()
            if not self._takes(")"):
                raise Undecided
            return value
        if text in ("!", "-", "+", "~"):
            value = self._unary()
            if value is None:
                return None
            return {"!": int(not value), "-": -value, "+": value, "~": ~value}[text]
        raise Undecided


def _number(text: str) -> int:
    match = re.fullmatch(r"(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uUlLzZ]*", text.replace("'", ""))
    if match is None:
        raise Undecided
    digits = match[1]
    if re.fullmatch(r"0\d+", digits):
        return int(digits, 8)
    return int(digits, 0)
