"""LLVM text: the lines of a function, with names for values."""

from __future__ import annotations


class Text:
    """The lines of a function. Values are the names of integers, except where a function says that they are floats."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0

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

    def at(self, pointer: str, offset: str) -> str:
        """An address plus bytes."""
        return self.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def field(self, number: int) -> str:
        """A field of the context."""
        return self.value(f"call i64 @field(ptr %C, i64 {number})")

    def array(self, number: int) -> str:
        """An array of the context."""
        return self.value(f"call ptr @array(ptr %C, i64 {number})")

    def resized(self, value: str, have: int, want: int, signed: bool = False) -> str:
        """An integer in another width."""
        if have == want:
            return value
        if have > want:
            return self.value(f"trunc i{have} {value} to i{want}")
        return self.value(f"{'sext' if signed else 'zext'} i{have} {value} to i{want}")

    def floating(self, value: str, bits: int) -> str:
        """Bits as a float."""
        return self.value(f"bitcast i{bits} {value} to {FLOATS[bits]}")

    def bits(self, value: str, bits: int) -> str:
        """A float as bits."""
        return self.value(f"bitcast {FLOATS[bits]} {value} to i{bits}")

    def select(self, condition: str, kind: str, yes: str, no: str) -> str:
        """One of two values."""
        return self.value(f"select i1 {condition}, {kind} {yes}, {kind} {no}")


FLOATS = {16: "half", 32: "float", 64: "double"}
