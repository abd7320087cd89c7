"""The instruction table: which opcodes the emulator executes, filled by decorators.

There are three kinds of entries:

- ``@alu``: a pure function of the operands. The function gets one numpy lane array per source operand, viewed as its PTX
  type, and returns the lane array(s) of the destination(s). The engine reads the operands, applies predicates and masks, and
  writes the results. Arrays broadcast against each other: a value that is the same for many threads has axes of length 1, so
  that two sources may have different shapes.
- ``@effect``: accesses memory or other state. The function is called once, when the instruction is bound, and returns the step
  to execute.
- ``@blocking``: may have to wait for other threads. The function is called once as well, and returns a gate and a step.

An opcode pattern is written as in the PTX manual::

    "add{.<rnd>}{.ftz}{.sat}.f32"      {.x} optional literal, <name> one of the set given as keyword, {.<name>} optional one
    @alu("mad.<half>.<t>", half="hi lo", t="u16 s16 u32 s32 u64 s64")

A form that no pattern matches entirely is not implemented, and the program that holds it is refused before launch.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from types import CodeType
from typing import TypeVar, cast

from ptxkit.emulator.arrays import Results
from ptxkit.emulator.simt.opcode_patterns import PIECE, Form, Signature, expression_of, signature_of
from ptxkit.emulator.simt.orders import Pieces, name_of

LaneFunction = Callable[..., Results]
"""Computes the destinations of an arithmetic instruction from one lane array for each source."""

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True)
class Entry:
    """An entry of the table.

    Attributes:
        kind: ``"alu"``, ``"effect"`` or ``"blocking"``.
        pattern: as registered.
        function: the decorated function.
        expression: the pattern as a regular expression, whose named groups are the sets and the optional literals.
        signature: alu only; form -> (destination types, source types).
        bind: alu only; the function is called with the form and returns the lane function.
        group: heading under which the instruction reference lists it (module name).
        sets: members of each ``<name>`` of the pattern, blank separated.
        optional: alu only; how many trailing sources an instruction may leave out.
    """

    kind: str
    pattern: str
    function: Callable[..., object]
    expression: str
    signature: Signature | None
    bind: bool
    group: str
    sets: Mapping[str, str] = field(default_factory=dict)
    optional: int = 0

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The compiled expression. It is compiled at first use, because a program uses few of the several hundred rows."""
        return re.compile(self.expression)

    @cached_property
    def pieces(self) -> Pieces:
        """The pieces of the pattern, for opcodes with another order of modifiers."""
        return Pieces(self.pattern, self.sets)

    def opcodes(self) -> Iterator[str]:
        """Every opcode that the pattern matches, in the order in which the pattern and its sets are written."""
        choices: list[tuple[str, ...]] = []
        for m in PIECE.finditer(self.pattern):
            name = m["oset"] or m["rset"]
            if name:
                members = tuple(f".{member}" for member in self.sets[name].split())
                choices.append(("", *members) if m["oset"] else members)
            else:
                choices.append(("", f".{m['oflag']}") if m["oflag"] else (m["literal"],))
        for parts in itertools.product(*choices):
            yield "".join(parts)

    def match(self, opcode: str) -> Form | None:
        """The opcode's parts if the pattern matches all of it."""
        m = self.regex.fullmatch(opcode)
        if m is None:
            return None
        return Form(
            opcode, {name.removeprefix("flag_"): (m[name] or "").removeprefix(".") for name in self.regex.groupindex}
        )

    def lane_function(self, form: Form) -> LaneFunction:
        """The function over lane arrays for this form, its modifiers bound."""
        if self.bind:
            return cast(LaneFunction, self.function(form))
        function = cast(LaneFunction, self.function)
        flags = self.regex.groupindex
        chosen = {n: form.has(n) if f"flag_{n}" in flags else form[n] for n in _keyword_only(function)}
        return partial(function, **chosen) if chosen else function


_TABLE: dict[str, list[Entry]] = {}


def lookup(opcode: str) -> tuple[Entry, Form] | None:
    """The entry that implements ``opcode`` and the opcode's parts, or None.

    Raises:
        AssertionError: two patterns match; a mistake in the table that a test catches.
    """
    found = _lookup(opcode)
    return found


@lru_cache(maxsize=4096)
def _lookup(opcode: str) -> tuple[Entry, Form] | None:
    hits = []
    for entry in _TABLE.get(opcode.split(".", 1)[0], ()):
        form = entry.match(opcode)
        if form is not None:
            hits.append((entry, form))
    if len(hits) > 1:
        raise AssertionError(f"{opcode} matches several patterns: {', '.join(e.pattern for e, _ in hits)}")
    if hits:
        return hits[0]
    return _reordered(opcode)


def _reordered(opcode: str) -> tuple[Entry, Form] | None:
    """The entry that implements ``opcode`` with its modifiers in another order: ptxas takes ``add.ftz.rn.f32`` too."""
    parts = opcode.split(".")
    name = name_of(opcode)
    for entry in _TABLE.get(parts[0], ()):
        found = entry.pieces.match(parts, name.count(".") + 1)
        if found is not None and name_of(found[0]) == name:
            return entry, Form(*found)
    return None


def entries() -> Iterator[Entry]:
    """Every entry, by opcode in the order of registration."""
    for rows in _TABLE.values():
        yield from rows


def alu(pattern: str, *, sig: str | None = None, bind: bool = False, **sets: str) -> Callable[[F], F]:
    """Register a pure instruction.

    Args:
        pattern: opcode pattern, see the module's text.
        sig: operand types as ``"d = a, b"``; each is a PTX type name, ``pred``, ``cc``, the name of a set (the member is
            the type) or ``wide(name)`` for the type of twice its width. Default: every operand has the opcode's last part as
            its type, one destination, and as many sources as the function has positional parameters.
            Two destinations, ``"pred, pred = t, t"``, stand for ``p|q``; the second may be absent in the instruction, a
            trailing source written ``t?`` too (the function is then called without it).
        bind: the decorated function takes the Form and returns the lane function; for instructions that pick among
            algorithms once, at bind time.
        **sets: the members of each ``<name>`` in the pattern, blank separated.

    The function's keyword-only parameters receive the parts of the pattern of the same name: bool for an optional literal,
    str for a set.
    """

    def decorate(function: F) -> F:
        arity = None if bind else len(_positional(function))
        signature = signature_of(pattern, sig, arity)
        _register("alu", pattern, function, sets, signature, bind, (sig or "").count("?"))
        return function

    return decorate


def effect(pattern: str, **sets: str) -> Callable[[F], F]:
    """Register an instruction with side effects; :mod:`ptxkit.emulator.simt.step` says what the function gets."""

    def decorate(function: F) -> F:
        _register("effect", pattern, function, sets, None, True)
        return function

    return decorate


def blocking(pattern: str, **sets: str) -> Callable[[F], F]:
    """Register an instruction that can wait; :mod:`ptxkit.emulator.simt.step` has what the function gets and returns."""

    def decorate(function: F) -> F:
        _register("blocking", pattern, function, sets, None, True)
        return function

    return decorate


def _register(
    kind: str,
    pattern: str,
    function: Callable[..., object],
    sets: Mapping[str, str],
    signature: Signature | None,
    bind: bool,
    optional: int = 0,
) -> None:
    expression, groups = expression_of(pattern, sets)
    if kind == "alu" and not bind:
        unknown = [n for n in _keyword_only(function) if n not in groups and f"flag_{n}" not in groups]
        if unknown:
            raise TypeError(f"{function.__name__}: {', '.join(unknown)} not in the pattern {pattern!r}")
    rows = _TABLE.setdefault(re.split(r"[.{<]", pattern, maxsplit=1)[0], [])
    if any(r.pattern == pattern and r.expression == expression for r in rows):
        raise ValueError(f"{pattern!r} is registered twice")
    rows.append(Entry(kind, pattern, function, expression, signature, bind, function.__module__, dict(sets), optional))
    _lookup.cache_clear()


def _positional(function: Callable[..., object]) -> tuple[str, ...]:
    code = _code(function)
    return code.co_varnames[: code.co_argcount]


def _keyword_only(function: Callable[..., object]) -> tuple[str, ...]:
    code = _code(function)
    return code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]


def _code(function: Callable[..., object]) -> CodeType:
    """The code of the undecorated function. inspect.signature would take 10% of the emulator's start-up time."""
    code: CodeType = inspect.unwrap(function).__code__
    return code
