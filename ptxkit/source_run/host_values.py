"""What host code computes before a launch, as Python expressions: sizes, grids, blocks and the lengths of arrays.

This is a translation of simple expressions, not an evaluation of host code: integers, names with one known value, ``+ - * / %
<< >>``, parentheses, ``sizeof`` and ``dim3``. Everything else has no translation, and the caller says so.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from ptxkit.isa.comments import without_comments
from ptxkit.runtime.source_names import at_commas, enclosed
from ptxkit.source_run.element_types import components, element_type
from ptxkit.source_run.grammar import ELEMENT_TYPES
from ptxkit.workload.inputs import dtype_of

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|\d[\d']*)[uUlL]*(?![\w.])|(?P<float>\d*\.\d+(?:[eE][+-]?\d+)?|\d+\.?[eE]?[+-]?\d*)[fF]?(?!\w)|"
    r"(?P<name>[A-Za-z_]\w*(?:\.[xyz])?)|(?P<operator><<|>>|[-+*/%(),]))"
)
_TYPES = r"(?:unsigned |signed )?(?:long long|long|int|short|char)(?: int)?|unsigned|size_t|float|double|u?int(?:8|16|32|64)_t"
_CAST = re.compile(rf"\(\s*(?:{_TYPES})\s*\)|static_cast\s*<\s*(?:{_TYPES})\s*>")
_SIZEOF = re.compile(r"sizeof\s*\(\s*([\w:]+(?:\s+[\w:]+)*)\s*\)")
_SIZEOF_ELEMENT = re.compile(r"sizeof\s*(?:\(\s*\*\s*(\w+)\s*\)|\*\s*(\w+)|\(\s*(\w+)\s*\[\s*0\s*\]\s*\))")
_OF_ARGUMENTS = re.compile(r"\bargv\b|\b(?:std::)?(?:ato|sto|strto)\w+\s*\(")
_LOOP = re.compile(r"\bfor\s*\((?:[^()]|\([^()]*\))*\)")
DEPTH = 8  # names that are defined by other names


@dataclass(frozen=True)
class HostText:
    """The host code of a source.

    Attributes:
        text: the source without comments, in which every line has its number.
        known: names whose meaning is given, such as host variables that are passed as sizes -> Python expression.
    """

    text: str
    known: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, source: str, known: Mapping[str, str] | None = None) -> HostText:
        """The host code of a source text."""
        return cls(without_comments(source), known or {})

    def value(self, expression: str, line: int = 0, depth: int = DEPTH) -> str:
        """A number as a Python expression; "" if it has no translation.

        Args:
            expression: C++.
            line: where it stands; of several definitions of a name the last one before it counts. 0: the last of all.
        """
        expression = _SIZEOF_ELEMENT.sub(self._size_of_element, expression)
        expression = _CAST.sub(" ", _SIZEOF.sub(_size_of, expression))
        parts = []
        at = 0
        while at < len(expression.rstrip()):
            token = _TOKEN.match(expression, at)
            if token is None:
                return ""
            at = token.end()
            if token["name"]:
                found = self._named(token["name"], line, depth)
                if not found:
                    return ""
                parts.append(found if re.fullmatch(r"[\w.]+", found) else f"({found})")
            elif token["number"]:
                digits = token["number"].replace("'", "")
                is_octal = re.fullmatch(r"0[0-7]+", digits)
                parts.append(str(int(digits, 8)) if is_octal else digits)
            elif token["float"]:
                parts.append(token["float"])
            else:
                parts.append({"/": "//"}.get(token["operator"], token["operator"]))
        return _checked(" ".join(parts))

    def extent(self, expression: str, line: int = 0, depth: int = DEPTH) -> str:
        """A grid or block as a Python expression, a number or a tuple; "" if it has no translation."""
        text = expression.strip()
        made = (
            re.fullmatch(r"(?:dim3\s*)?(?:\((.*)\)|\{(.*)\})", text, re.DOTALL)
            if text.startswith(("dim3", "{"))
            else None
        )
        if made is not None:
            values = [self.value(part, line, depth) for part in _parts(made[1] if made[1] is not None else made[2])]
            if not values or len(values) > 3 or not all(values):
                return ""
            return values[0] if len(values) == 1 else f"({', '.join(values)})"
        if re.fullmatch(r"[A-Za-z_]\w*", text) and depth:
            parts = self._dim3(text, line)
            if parts is not None:
                return self.extent(f"dim3({parts})", line, depth - 1)
        return self.value(text, line, depth)

    def allocation(self, name: str, line: int = 0) -> str:
        """The bytes that a pointer of the host is allocated with, as a Python expression; "" if that is not found."""
        cast = r"(?:\([^()]*\)\s*)?(?:reinterpret_cast\s*<[^()]*>\s*\(\s*)?"
        call = rf"\bcudaMalloc(?:Managed|Async|Host)?\s*\(\s*{cast}&\s*{name}\s*\)?\s*,"
        found = self._last(call, line)
        if found is None:
            return ""
        arguments = _parts(enclosed(self.text, found.end())[0])
        return self.value(arguments[0], line) if arguments else ""

    def is_written(self, name: str) -> bool:
        """Whether host code writes to an array of the device before the launch: ``cudaMemcpy`` to it, or ``cudaMemset``."""
        return re.search(rf"\bcuda(?:Memcpy|Memset)\w*\s*\(\s*{name}\s*,", self.text) is not None

    def lines(self, pattern: str) -> list[tuple[int, str]]:
        """(number, text) of the lines in which a pattern occurs."""
        found = enumerate(self.text.split("\n"), 1)
        return [(number, " ".join(text.split())) for number, text in found if re.search(pattern, text)]

    def _named(self, name: str, line: int, depth: int) -> str:
        if name in self.known:
            return self.known[name]
        if not depth:
            return ""
        plain, _, component = name.partition(".")
        if component:
            parts = self._dim3(plain, line)
            if parts is None:
                return ""
            values = [*_parts(parts), "1", "1"]
            return self.value(values["xyz".index(component)], line, depth - 1)
        macro = self._last(rf"^[ \t]*#[ \t]*define[ \t]+{name}[ \t]+([^\n]+)$", 0)
        if macro is not None:
            return self.value(macro[1], line, depth - 1)
        variable = self._last(
            rf"\b(?:{_TYPES}|auto)\s+(?:[\w\s=,+*/-]*,\s*)?{name}\s*(?:=|\{{)\s*([^;,{{}}]+)\s*[;,}}]", line
        )
        if variable is None or self._changes(name, variable.end(), line):
            return ""
        return self.value(variable[1], line, depth - 1)

    def _changes(self, name: str, start: int, line: int) -> bool:
        """Whether a variable may have another value in a line than that of its definition, which ends at ``start``.

        A value from the arguments of the program does not count, so that the default remains. Neither does the header of a
        loop: in the first iteration the variable has the value that it begins with.
        """
        between = self._up_to(line)[start:]
        variable = rf"(?<![\w.>]){name}\b"
        changed = rf"{variable}\s*(?:[-+*/%&|^]|<<|>>)=|(?:\+\+|--)\s*{variable}|{variable}\s*(?:\+\+|--)"
        read = rf"[(,]\s*&\s*{name}\s*[,)]|>>\s*{name}\s*(?:>>|;)"
        parameter = rf"\b(?:{_TYPES})\s+{name}\s*[,)]"  # of a function that begins after the definition
        assigned = re.findall(rf"{variable}\s*=(?!=)([^;]*)", between)
        return bool(re.search(f"{changed}|{read}|{parameter}", between)) or not all(map(_OF_ARGUMENTS.search, assigned))

    def _size_of_element(self, match: re.Match[str]) -> str:
        """``sizeof(*p)`` -> ``sizeof(float)`` for ``float *p``; unchanged if no such variable is found."""
        name = match[1] or match[2] or match[3]
        others = r"(?:\w+\s*(?:=[^,;()]*)?,\s*\*\s*)*"
        declared = rf"([A-Za-z_][\w:]*(?:[ \t]+(?:char|short|int|long))*)\s*\*\s*{others}{name}\s*[;,=)\[{{]"
        types = [found for found in re.findall(declared, self.text) if element_type(found) or found in ELEMENT_TYPES]
        return f"sizeof({types[-1]})" if types else match[0]

    def _dim3(self, name: str, line: int) -> str | None:
        """The expressions of ``dim3 name(...)``; None if there is no such variable, or one that is changed afterwards."""
        found = self._last(rf"\bdim3\s+(?:[^;]*?,\s*)?{name}\s*(?:=\s*(?:dim3\s*)?)?[({{]", line)
        if found is None:
            return None
        if re.search(rf"(?<![\w.>]){name}(?:\s*\.\s*[xyz])?\s*[-+*/]?=(?!=)", self._up_to(line)[found.end() :]):
            return None
        return enclosed(self.text, found.end())[0]

    def _up_to(self, line: int) -> str:
        """The text to the end of a line; all of it for 0. Headers of loops are blank."""
        text = _without_loops(self.text)
        return "\n".join(text.split("\n", line)[:line]) if line else text

    def _last(self, pattern: str, line: int) -> re.Match[str] | None:
        """The last match, or the last one that begins at or before a line, where there is one."""
        matches = list(re.finditer(pattern, self.text, re.MULTILINE))
        before = [m for m in matches if self.text.count("\n", 0, m.start()) < line] if line else matches
        return next(reversed(before or matches), None)


@lru_cache(maxsize=8)
def _without_loops(text: str) -> str:
    """A text of the same length, with blanks for the headers of loops; line breaks remain."""
    return _LOOP.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def _size_of(match: re.Match[str]) -> str:
    name = element_type(match[1]) or ELEMENT_TYPES.get(match[1], "")
    return str(dtype_of(name).itemsize * components(match[1])) if name else match[0]


def _parts(arguments: str) -> list[str]:
    return [part.strip() for part in at_commas(arguments, "(){}")]


def _checked(expression: str) -> str:
    """The expression in Python's own form; "" if it is none, or a tuple."""
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError:
        return ""
    permitted = (
        ast.Expression,
        ast.BinOp,
        ast.UnaryOp,
        ast.Constant,
        ast.Name,
        ast.Attribute,
        ast.operator,
        ast.unaryop,
        ast.Load,
    )
    return ast.unparse(tree) if all(isinstance(node, permitted) for node in ast.walk(tree)) else ""


def number_of(expression: str) -> int | None:
    """The value of an expression of numbers alone; None for another one, and for a division by zero."""
    if not re.fullmatch(r"[\d\s()+*/%<>-]+", expression):
        return None
    try:
        value = eval(expression, {"__builtins__": {}})  # numbers and operators alone
    except (ArithmeticError, ValueError, SyntaxError):
        return None
    return int(value)


def pointer_name(given: str) -> str:
    """The host variable that an argument of a launch consists of: ``d_x``, ``(float*)d_x``, ``v.data()``; "" for others."""
    variable = re.sub(r"^\(.*?\)\s*|\.data\(\).*|^thrust::raw_pointer_cast\(|[)&]", "", given).strip()
    return variable if re.fullmatch(r"\w+", variable) else ""
