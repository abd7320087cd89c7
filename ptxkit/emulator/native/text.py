"""LLVM text: the lines of a function, with names for values, and the types of values that all lanes of a warp have."""

from __future__ import annotations

from collections.abc import Callable

LANES = 32
"""Lanes of a warp; a value of machine code is a vector with an element for each."""

_SCALARS = {16: "half", 32: "float", 64: "double"}


def ints(bits: int) -> str:
    """The type of an integer, for all lanes."""
    return f"<{LANES} x i{bits}>"


def floats(bits: int) -> str:
    """The type of a floating-point number, for all lanes."""
    return f"<{LANES} x {_SCALARS[bits]}>"


def constant(value: int, bits: int) -> str:
    """An integer that is the same for all lanes."""
    if bits == 1:
        return "splat (i1 true)" if value else "splat (i1 false)"
    return f"splat (i{bits} {value})"


def one(bits: int) -> str:
    """The floating-point number 1, for all lanes."""
    return f"splat ({_SCALARS[bits]} 1.0)"


class Text:
    """The lines of a function. Values are the names of integers of all lanes, except where a function says otherwise."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0
        self._block = "entry"

    def name(self, stem: str = "t") -> str:
        """A new name, without its sigil."""
        self._count += 1
        return f"{stem}{self._count}"

    def put(self, line: str) -> None:
        """A line without a result."""
        self.lines.append(f"  {line}")

    def label(self, name: str) -> None:
        """Begin a block."""
        self.lines.append(f"{name}:")
        self._block = name

    def corrected(self, bits: int, value: str, wrong: str, correct: Callable[[], str]) -> str:
        """An integer of all lanes, computed once more where it is wrong for a lane, which is rare.

        Args:
            wrong: predicates of all lanes. correct: writes the code that computes the integer of all lanes.
        """
        rare, over, before = self.name("rare"), self.name("over"), self._block
        some = self.value(f"call i1 @llvm.vector.reduce.or.v{LANES}i1({ints(1)} {wrong})")
        self.put(f"br i1 {some}, label %{rare}, label %{over}")
        self.label(rare)
        other, after = correct(), self._block
        self.put(f"br label %{over}")
        self.label(over)
        return self.value(f"phi {ints(bits)} [{value}, %{before}], [{other}, %{after}]")

    def value(self, expression: str) -> str:
        """The value of an expression."""
        name = f"%{self.name()}"
        self.lines.append(f"  {name} = {expression}")
        return name

    def load(self, kind: str, pointer: str) -> str:
        """What is at an address."""
        return self.value(f"load {kind}, ptr {pointer}, align 1")

    def store(self, kind: str, value: str, pointer: str) -> None:
        """Write to an address."""
        self.put(f"store {kind} {value}, ptr {pointer}, align 1")

    def at(self, pointer: str, offset: str | int) -> str:
        """An address plus bytes."""
        return self.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def field(self, number: int) -> str:
        """A field of the context, an integer."""
        return self.value(f"call i64 @field(ptr %C, i64 {number})")

    def array(self, number: int) -> str:
        """An array of the context."""
        return self.value(f"call ptr @array(ptr %C, i64 {number})")

    def everywhere(self, scalar: str, bits: int) -> str:
        """An integer that one lane has, for all lanes."""
        first = self.value(f"insertelement {ints(bits)} poison, i{bits} {scalar}, i32 0")
        return self.value(f"shufflevector {ints(bits)} {first}, {ints(bits)} poison, <{LANES} x i32> zeroinitializer")

    def mask(self, lanes: str) -> str:
        """Predicates of all lanes as an i32."""
        return self.value(f"bitcast {ints(1)} {lanes} to i32")

    def lanes(self, mask: str) -> str:
        """An i32 as predicates of all lanes."""
        return self.value(f"bitcast i32 {mask} to {ints(1)}")

    def resized(self, value: str, have: int, want: int, signed: bool = False) -> str:
        """An integer in another width."""
        if have == want:
            return value
        operation = "trunc" if have > want else "sext" if signed else "zext"
        return self.value(f"{operation} {ints(have)} {value} to {ints(want)}")

    def floating(self, value: str, bits: int) -> str:
        """Bits as a float."""
        return self.value(f"bitcast {ints(bits)} {value} to {floats(bits)}")

    def bits(self, value: str, bits: int) -> str:
        """A float as bits."""
        return self.value(f"bitcast {floats(bits)} {value} to {ints(bits)}")

    def select(self, condition: str, bits: int, yes: str, no: str) -> str:
        """For each lane one of two integers."""
        return self.value(f"select {ints(1)} {condition}, {ints(bits)} {yes}, {ints(bits)} {no}")
