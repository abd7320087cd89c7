"""The lines of a C++ source that the compiler sees: ``#if`` and its like, as far as the known macros decide them."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(ifdef|ifndef|if|elif|else|endif|define|undef)\b(.*)")


def active_text(text: str, macros: Mapping[str, str]) -> tuple[str, dict[str, str | None]]:
    """The text without the lines that conditions exclude, and the macros without parameters that it defines.

    A condition that cannot be decided here (it names a macro that a header may define) keeps all of its branches, and a macro
    that they define differently has the value None: unknown.

    Args:
        text: without comments.
        macros: those that the compiler was given.
    """
    return _Scan(text, macros).run()


class _Scan:
    def __init__(self, text: str, macros: Mapping[str, str]) -> None:
        self.text = text.replace("\\\n", " ")
        self.macros: dict[str, str | None] = dict(macros)
        self.closed = not re.search(r"#[ \t]*include", self.text)  # whether no header can define anything
        self.levels: list[
            list[bool | None]
        ] = []  # for each open #if, the values of the conditions of its branches so far

    def run(self) -> tuple[str, dict[str, str | None]]:
        kept = []
        for line in self.text.splitlines():
            match = _DIRECTIVE.match(line)
            if match:
                self.directive(match[1], match[2].strip())
            elif self.state is not False:
                kept.append(line)
        return "\n".join(kept), self.macros

    @property
    def state(self) -> bool | None:
        """Whether the current line is compiled; None if unknown."""
        branches = [level[-1] for level in self.levels]
        if False in branches:
            return False
        return None if None in branches else True

    def directive(self, name: str, rest: str) -> None:
        if name in ("if", "ifdef", "ifndef"):
            self.levels.append([self.condition(name, rest)])
        elif name in ("elif", "else") and self.levels:
            level = self.levels[-1]
            found = True if name == "else" else self.condition("if", rest)
            if True in level:
                found = False
            elif None in level and found is not False:
                found = None
            level.append(found)
        elif name == "endif" and self.levels:
            self.levels.pop()
        elif name in ("define", "undef") and self.state is not False:
            self.define(rest if name == "define" else f"{rest} ", self.state is True and name == "define")

    def define(self, rest: str, certain: bool) -> None:
        match = re.match(r"(\w+)(\(?)(.*)", rest)
        if not match or match[2]:
            return
        name, value = match[1], match[3].strip()
        if certain:
            self.macros[name] = value
        elif self.macros.get(name, None) != value:
            self.macros[name] = None

    def condition(self, name: str, rest: str) -> bool | None:
        if name != "if":
            found = self.defined(rest.split()[0]) if rest else None
            return found if name == "ifdef" or found is None else not found
        value = self.value(rest)
        return None if value is None else bool(value)

    def defined(self, name: str) -> bool | None:
        if name in self.macros:
            return True if self.macros[name] is not None else None
        return False if self.closed and not name.startswith("__") else None

    def value(self, expression: str) -> int | None:
        """The value of the expression of an ``#if``; None if unknown."""
        unknown = False

        def defined(match: re.Match[str]) -> str:
            nonlocal unknown
            found = self.defined(match[1] or match[2])
            unknown = unknown or found is None
            return str(int(bool(found)))

        def name(match: re.Match[str]) -> str:
            nonlocal unknown
            found = self.macros.get(match[0], "0" if self.defined(match[0]) is False else None)
            if found is None or not re.fullmatch(r"\d+", found.strip("()uUlL ")):
                unknown = True
                return "0"
            return found.strip("()uUlL ")

        text = re.sub(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))", defined, expression)
        text = re.sub(r"\b[A-Za-z_]\w*", name, text)
        text = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or "))
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except SyntaxError:
            return None
        if unknown or not all(isinstance(node, _ALLOWED) for node in ast.walk(tree)):
            return None
        try:
            return int(eval(compile(tree, "#if", "eval"), {"__builtins__": {}}))
        except (ArithmeticError, TypeError, ValueError):
            return None


_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.Eq, ast.NotEq, ast.Lt,
    ast.LtE, ast.Gt, ast.GtE, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Mod, ast.Constant,
)  # fmt: skip
