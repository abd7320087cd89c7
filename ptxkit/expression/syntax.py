"""Reads an expression: Python's syntax, with the functions of :mod:`ptxkit.expression.operations`."""

from __future__ import annotations

import ast
import difflib
import keyword
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ptxkit.errors import UsageError
from ptxkit.expression.operations import DROPOUT, OPERATIONS, REDUCTIONS

BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
FUNCTIONS = sorted(
    {name for name in OPERATIONS if name.isalpha() or name.isalnum()} | set(REDUCTIONS) | {DROPOUT, "clamp"}
)

COLUMN_NAMES = ("bias", "weight", "gamma", "beta")
SCALAR_NAMES = {"alpha": 0.5, "scale": 0.5, "zero_point": 3.0, "eps": 1e-6}
"""Names that are scalars unless an option says otherwise, with the default of the description's option."""
RESERVED = frozenset(
    """
    out n rows cols dtype seed p threshold keep_scale rng self np torch ptxkit source name tolerance activation random_words int
    """.split()
)
"""Names that the methods of a generated description use: an input is a parameter of some of these, and would hide them."""
OPERATORS = frozenset(("if", "else", "and", "or", "not", "in", "is"))
"""Keywords that an expression of Python may have."""
MOST_OPERATIONS = 200
SMALLEST_F32 = 2.0**-149  # smaller literals are out of range in CUDA


class Kind(Enum):
    """What a value depends on: nothing, the row, the column, or both."""

    SCALAR = (False, False)
    ROW = (True, False)
    COLUMN = (False, True)
    ELEMENT = (True, True)

    def with_(self, other: Kind) -> Kind:
        """The kind of an operation on values of both kinds."""
        return Kind((self.value[0] or other.value[0], self.value[1] or other.value[1]))


@dataclass(frozen=True)
class Value:
    """A value of the expression.

    Attributes:
        operation: a key of ``OPERATIONS`` or ``REDUCTIONS``, or ``input``, ``constant``, ``dropout``.
        operands: numbers of the values that it is computed from.
        kind: what it depends on.
        name: of an input. number: of a constant.
    """

    operation: str
    operands: tuple[int, ...]
    kind: Kind
    name: str = ""
    number: float = 0.0

    @property
    def computed(self) -> bool:
        """Whether it is the result of an operation."""
        return self.operation not in ("input", "constant")


@dataclass
class Expression:
    """An expression as a list of values, each computed from earlier ones; equal values occur once.

    Attributes:
        text: as written.
        values: the last one is the result.
        inputs: name -> kind, in the order of their appearance.
        rowwise: whether the elements form rows, because of a reduction or an input with one value for each column.
    """

    text: str
    values: list[Value] = field(default_factory=list)
    inputs: dict[str, Kind] = field(default_factory=dict)

    def temporary(self, number: int) -> str:
        """The name of a computed value, which no input has."""
        name = f"t{number}"
        while name in self.inputs:
            name += "_"
        return name

    @property
    def rowwise(self) -> bool:
        return any(v.operation in REDUCTIONS or v.kind is Kind.COLUMN for v in self.values)

    @property
    def reductions(self) -> list[int]:
        """Numbers of the values that are reductions, in order."""
        return [number for number, v in enumerate(self.values) if v.operation in REDUCTIONS]

    @property
    def dropouts(self) -> list[int]:
        """Numbers of the values that are results of dropout, in order."""
        return [number for number, v in enumerate(self.values) if v.operation == DROPOUT]

    @property
    def result(self) -> Value:
        return self.values[-1]


def parse(
    text: str, columns: tuple[str, ...] = (), scalars: tuple[str, ...] = (), arrays: tuple[str, ...] = ()
) -> Expression:
    """Read an expression.

    Args:
        text: in Python's syntax.
        columns: names of inputs with one value for each column.
        scalars: names of inputs that are one number.
        arrays: names of inputs with one value for each element, for names that are something else by default.

    Raises:
        UsageError: the text is no expression of the known operations, or a name is unsuitable.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = f" at column {error.offset}" if isinstance(error, SyntaxError) and error.offset else ""
        if isinstance(error, (RecursionError, MemoryError)) or "too many nested" in str(error):
            raise UsageError(
                f"--expression {_short(text)}: nested too deeply{place}; write it with fewer operations"
            ) from None
        advice = _keyword_in(text) or f"not an expression{place}; write a formula such as 'gelu(x + bias) * y'"
        raise UsageError(f"--expression {_short(text)}: {advice}") from None
    if "#" in text:
        column = text.strip().index("#") + 1
        raise UsageError(f"--expression {_short(text)}: '#' at column {column} begins a comment; leave it out")
    kinds = dict.fromkeys(COLUMN_NAMES, Kind.COLUMN) | dict.fromkeys(SCALAR_NAMES, Kind.SCALAR)
    stated: dict[str, Kind] = {}
    for names, kind in ((columns, Kind.COLUMN), (scalars, Kind.SCALAR), (arrays, Kind.ELEMENT)):
        for name in names:
            if stated.setdefault(name, kind) is not kind:
                raise UsageError(
                    f"{name} is given as both --{_OPTION[stated[name]]} and --{_OPTION[kind]}; give one of them"
                )
    reader = _Reader(text.strip(), kinds | stated)
    try:
        reader.read(tree.body)
    except RecursionError:
        raise UsageError(f"--expression {_short(text)}: nested too deeply; divide it into several kernels") from None
    expression = reader.expression
    for name, kind in stated.items():
        if name not in expression.inputs:
            raise UsageError(
                f"--{_OPTION[kind]} {name}: the expression has no input of this name{_similar(name, expression.inputs)}"
            )
    _check(expression)
    return expression


_OPTION = {Kind.COLUMN: "column", Kind.SCALAR: "scalar", Kind.ELEMENT: "array"}


def _check(expression: Expression) -> None:
    if not expression.result.computed:
        raise UsageError(
            f"--expression {_short(expression.text)}: no operation; write a formula such as 'gelu(x + bias) * y'"
        )
    if Kind.ELEMENT not in expression.inputs.values():
        raise UsageError(
            f"--expression {_short(expression.text)}: no input has a value for each element; name one by --array NAME"
        )
    if expression.result.kind not in (Kind.ELEMENT, Kind.ROW):
        raise UsageError(
            f"--expression {_short(expression.text)}: the result has no value for each element or each row"
        )


def _keyword_in(text: str) -> str:
    """What is wrong with a text that uses a keyword of Python as a name; "" if none is in it."""
    for found in re.finditer(r"\b[a-z]+\b", text.strip()):
        if keyword.iskeyword(found[0]) and found[0] not in OPERATORS:
            return f"{found[0]!r} at column {found.start() + 1} is a keyword of Python; choose another name for the input"
    return ""


def _short(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _similar(name: str, known: Mapping[str, object] | list[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


class _Reader:
    """Turns Python's syntax tree into values."""

    def __init__(self, text: str, kinds: dict[str, Kind]) -> None:
        self.expression = Expression(text)
        self._kinds = kinds
        self._numbers: dict[Value, int] = {}

    def read(self, node: ast.expr) -> int:
        """The number of the value of a node."""
        match node:
            case ast.Constant(value=bool() | complex() | str() | bytes() | None):
                raise self._error(node, "is not a number")
            case ast.Constant(value=int() | float() as number):
                return self._constant(node, number)
            case ast.Name(id=name):
                return self._input(node, name)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.read(operand)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._operation(node, "negative", [self.read(operand)])
            case ast.BinOp(op=ast.Pow(), left=left, right=right):
                return self._power(node, left, right)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
                return self._operation(node, BINARY[type(op)], [self.read(left), self.read(right)])
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
                return self._operation(node, COMPARISONS[type(op)], [self.read(left), self.read(right)])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._operation(node, "where", [self.read(test), self.read(body), self.read(orelse)])
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._call(node, name, args)
            case ast.Compare():
                raise self._error(node, "chains comparisons; write where(a < b, x, y) with one comparison")
        raise self._error(node, "is not supported: use + - * / **, comparisons, numbers, names and functions")

    def _error(self, node: ast.expr, message: str) -> UsageError:
        part = _short(ast.get_source_segment(self.expression.text, node) or self.expression.text)
        return UsageError(f"--expression: {part} at column {node.col_offset + 1} {message}")

    def _add(self, value: Value) -> int:
        if (known := self._numbers.get(value)) is not None:
            return known
        self.expression.values.append(value)
        if len(self.expression.values) > MOST_OPERATIONS:
            raise UsageError(f"--expression: more than {MOST_OPERATIONS} operations; divide it into several kernels")
        self._numbers[value] = len(self.expression.values) - 1
        return self._numbers[value]

    def _constant(self, node: ast.expr, number: float) -> int:
        try:
            exact = float(number)
        except OverflowError:
            exact = math.inf
        if not abs(exact) <= 3.4028234663852886e38 or 0 < abs(exact) < SMALLEST_F32:
            raise self._error(node, "does not fit in a float")
        return self._add(Value("constant", (), Kind.SCALAR, number=exact))

    def _input(self, node: ast.expr, name: str) -> int:
        if name in FUNCTIONS or name in RESERVED or keyword.iskeyword(name):
            raise self._error(node, "cannot name an input; choose another name")
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or "__" in name:
            raise self._error(node, "cannot name an input; use letters, digits and single _, first a letter")
        kind = self._kinds.get(name, Kind.ELEMENT)
        self.expression.inputs.setdefault(name, kind)
        return self._add(Value("input", (), kind, name))

    def _operation(self, node: ast.expr, name: str, operands: list[int]) -> int:
        values = [self.expression.values[number] for number in operands]
        if name == "/" and values[1].operation == "constant" and values[1].number == 0:
            raise self._error(node, "divides by zero")
        if all(v.operation == "constant" for v in values):
            return self._constant(node, self._folded(node, name, [v.number for v in values]))
        kind = Kind.SCALAR
        for value in values:
            kind = kind.with_(value.kind)
        return self._add(Value(name, tuple(operands), kind))

    def _folded(self, node: ast.expr, name: str, numbers: list[float]) -> float:
        """The result of an operation on constants."""
        import numpy as np

        from ptxkit.kernels.elementwise.elementwise import activation

        with np.errstate(all="ignore"):
            names = [f"v{index}" for index in range(len(numbers))]
            scope = {"np": np, "activation": activation} | {
                n: np.float64(number) for n, number in zip(names, numbers, strict=True)
            }
            return float(eval(OPERATIONS[name].numpy.format(*names), scope))  # a text of OPERATIONS

    def _power(self, node: ast.expr, left: ast.expr, right: ast.expr) -> int:
        base, exponent = self.read(left), self.read(right)
        power = self.expression.values[exponent]
        if power.operation != "constant":
            raise self._error(node, "has an exponent that is not a number; write exp(y * log(x))")
        roots = {0.5: ("sqrt",), -0.5: ("rsqrt",)}
        if power.number in roots:
            return self._operation(node, roots[power.number][0], [base])
        if power.number != int(power.number) or not 1 <= abs(power.number) <= 16:
            raise self._error(
                node,
                "has an exponent other than 0.5, -0.5 and whole numbers from -16 to 16 except 0; write exp(y * log(x))",
            )
        value = self._whole_power(node, base, int(abs(power.number)))
        return value if power.number > 0 else self._operation(node, "/", [self._constant(node, 1.0), value])

    def _whole_power(self, node: ast.expr, base: int, exponent: int) -> int:
        if exponent == 1:
            return base
        half = self._whole_power(node, base, exponent // 2)
        squared = self._operation(node, "square", [half])
        return squared if exponent % 2 == 0 else self._operation(node, "*", [squared, base])

    def _call(self, node: ast.Call, name: str, args: list[ast.expr]) -> int:
        if any(isinstance(a, ast.Starred) for a in args):
            raise self._error(node, "has a starred argument")
        if name in ("min", "max") and len(args) == 2:
            return self._operation(node, {"min": "minimum", "max": "maximum"}[name], [self.read(a) for a in args])
        if name == "clamp":
            self._expect(node, name, args, 3)
            value, low, high = (self.read(a) for a in args)
            return self._operation(node, "minimum", [self._operation(node, "maximum", [value, low]), high])
        if name in REDUCTIONS:
            self._expect(node, name, args, 1)
            return self._reduction(node, name, self.read(args[0]))
        if name == DROPOUT:
            self._expect(node, name, args, 1)
            return self._dropout(node, self.read(args[0]))
        if name not in FUNCTIONS:
            raise self._error(
                node, f"calls an unknown function{_similar(name, FUNCTIONS)}; functions: {', '.join(FUNCTIONS)}"
            )
        self._expect(node, name, args, OPERATIONS[name].operands)
        return self._operation(node, name, [self.read(a) for a in args])

    def _expect(self, node: ast.expr, name: str, args: list[ast.expr], count: int) -> None:
        if len(args) != count:
            either = "1 or 2" if name in ("min", "max") else count
            raise self._error(node, f"has {len(args)} arguments; {name} takes {either}")

    def _reduction(self, node: ast.expr, name: str, operand: int) -> int:
        if self.expression.values[operand].kind is not Kind.ELEMENT:
            raise self._error(node, "reduces a value that does not depend on both row and column")
        return self._add(Value(name, (operand,), Kind.ROW))

    def _dropout(self, node: ast.expr, operand: int) -> int:
        if self.expression.values[operand].kind is not Kind.ELEMENT:
            raise self._error(node, "applies dropout to a value that does not depend on the element")
        # the number of the value distinguishes two calls with the same operand, which drop different elements
        count = len(self.expression.dropouts)
        return self._add(Value(DROPOUT, (operand,), Kind.ELEMENT, number=float(count)))
