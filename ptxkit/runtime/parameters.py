"""Kernel parameters: sizes and offsets from the PTX, kinds from the mangled name and from how the code uses them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxkit.isa.model import Address, Function, Instruction, Register, Symbol, Variable


@dataclass(frozen=True)
class Parameter:
    """One kernel parameter.

    Attributes:
        index: position.
        name: in the PTX; NVRTC does not keep the source's names.
        kind: ``"pointer"``, ``"int"``, ``"float"``, ``"struct"``, or ``"word"``: 64 bits, a pointer or an integer.
        dtype: of a number; None for pointers, structs and words.
        signed_known: whether the signedness of an integer is certain; if not, both are accepted.
        size, offset, align: bytes, in the parameter buffer.
    """

    index: int
    name: str
    kind: str
    dtype: np.dtype[Any] | None
    size: int
    offset: int
    align: int
    signed_known: bool = True

    @property
    def label(self) -> str:
        """For messages: ``"argument 2 (pointer)"``."""
        text = self.kind if self.dtype is None else str(self.dtype)
        text = {"struct": f"struct of {self.size} bytes", "word": "64 bits"}.get(self.kind, text)
        own = "" if re.search(r"_param_\d+$", self.name) else f" '{self.name}'"
        return f"argument {self.index + 1}{own} ({text})"


_BUILTIN = {
    "b": "?",
    "c": "i1",
    "a": "i1",
    "h": "u1",
    "s": "i2",
    "t": "u2",
    "i": "i4",
    "j": "u4",
    "l": "i8",
    "m": "u8",
    "x": "i8",
    "y": "u8",
    "f": "f4",
    "d": "f8",
}  # Itanium C++ ABI, "builtin types"; char is signed in CUDA


class _Mangled:
    """Reads parameter types off an Itanium-mangled function name, as far as kinds go."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def kinds(self) -> list[str] | None:
        """One of "P", a dtype string, or "?" a parameter; None when the name is not understood."""
        try:
            template = self._name()
            if template:
                self._type()  # template functions carry their return type
            out = []
            while self.at < len(self.text):
                if self.text[self.at] == ".":
                    break
                out.append(self._type())
            return [] if out == ["void"] else out
        except (IndexError, ValueError):
            return None

    def _name(self) -> bool:
        if not self.text.startswith("_Z"):
            raise ValueError
        self.at = 2
        nested = self._take("N")
        if nested:
            while self._take("V") or self._take("K"):
                pass
        template = False
        while True:
            self._take("L")
            number = re.compile(r"\d+").match(self.text, self.at)
            if number:
                self.at = number.end() + int(number[0])
                template = False
            elif self.text[self.at] == "I":
                self._template_arguments()
                template = True
            elif self.text[self.at] == "S":
                self._substitution()
            elif nested and self._take("E"):
                return template
            else:
                raise ValueError
            if not nested and (self.at >= len(self.text) or self.text[self.at] != "I"):
                return template

    def _take(self, c: str) -> bool:
        if self.text.startswith(c, self.at):
            self.at += len(c)
            return True
        return False

    def _template_arguments(self) -> None:
        if not self._take("I") and not self._take("J"):
            raise ValueError
        while not self._take("E"):
            if self.text[self.at] in "IJ":
                self._template_arguments()
            elif self._take("L"):
                self._type()
                self.at = self.text.index("E", self.at) + 1
            elif self._take("X"):
                raise ValueError  # an expression
            else:
                self._type()

    def _substitution(self) -> None:
        m = re.compile(r"S[0-9A-Z]*_|S[tabsiod]").match(self.text, self.at)
        if not m:
            raise ValueError
        self.at = m.end()

    def _type(self) -> str:
        c = self.text[self.at]
        if c in "PRO":
            self.at += 1
            self._type()
            return "P"
        if c in "KVr":
            self.at += 1
            return self._type()
        if c == "v":
            self.at += 1
            return "void"
        if c in _BUILTIN:
            self.at += 1
            return _BUILTIN[c]
        if c in "ST":
            if c == "T":
                m = re.compile(r"T\d*_").match(self.text, self.at)
                if not m:
                    raise ValueError
                self.at = m.end()
            else:
                self._substitution()
            if self.at < len(self.text) and self.text[self.at] == "I":
                self._template_arguments()
            return "?"
        if c.isdigit():
            number = re.compile(r"\d+").match(self.text, self.at)
            assert number
            self.at = number.end() + int(number[0])
            if self.at < len(self.text) and self.text[self.at] == "I":
                self._template_arguments()
            return "struct"
        if c == "N":
            depth_start = self.at
            self.at += 1
            while not self._take("E"):
                if self.text[self.at].isdigit():
                    number = re.compile(r"\d+").match(self.text, self.at)
                    assert number
                    self.at = number.end() + int(number[0])
                elif self.text[self.at] == "I":
                    self._template_arguments()
                elif self.text[self.at] == "S":
                    self._substitution()
                else:
                    raise ValueError(depth_start)
            return "struct"
        raise ValueError(c)


def mangled_kinds(name: str) -> list[str] | None:
    """Kinds of a kernel's parameters by its mangled name; None for extern "C" names and for what is not understood."""
    return _Mangled(name).kinds() if name.startswith("_Z") else None


def _used_as_address(function: Function) -> set[str]:
    """Parameters whose loaded value is converted to an address, or dereferenced: proof that they are pointers."""
    holds: dict[Register, str] = {}
    proven: set[str] = set()
    for i in function.instructions:
        if (
            i.opcode.startswith("ld.param")
            and isinstance(i.operands[0], Register)
            and isinstance(i.operands[1], Address)
        ):
            base = i.operands[1].base
            if isinstance(base, Symbol):
                holds[i.operands[0]] = base.name
        for register in _addresses(i):
            if register in holds:
                proven.add(holds[register])
    return proven


def _addresses(i: Instruction) -> list[Register]:
    found = [o.base for o in i.operands if isinstance(o, Address) and isinstance(o.base, Register)]
    if i.name == "cvta" and isinstance(i.operands[1], Register):
        found.append(i.operands[1])
    return found


def parameters_of(function: Function) -> tuple[Parameter, ...]:
    """The parameters of a kernel, from its PTX."""
    kinds = mangled_kinds(function.name)
    if kinds is None or len(kinds) != len(function.params):
        kinds = ["?"] * len(function.params)
    proven = _used_as_address(function)
    out, at = [], 0
    for index, (v, told) in enumerate(zip(function.params, kinds, strict=True)):
        align = max(v.align, 1)
        at = -(-at // align) * align
        kind, dtype, known = _kind(v, told, v.name in proven)
        out.append(Parameter(index, v.name, kind, dtype, v.bytes, at, align, known))
        at += v.bytes
    return tuple(out)


def _kind(v: Variable, told: str, proven: bool) -> tuple[str, np.dtype[Any] | None, bool]:
    if v.shape:
        return "struct", None, True
    if v.ptr is not None or told == "P" or (proven and v.bytes == 8):
        return "pointer", None, True
    if told not in ("?", "struct", "void", "P"):
        dtype = np.dtype(told)
        if dtype.itemsize == v.bytes or told == "?":
            return ("float" if dtype.kind == "f" else "int"), dtype, True
    if v.type.kind == "f":
        return "float", v.type.dtype, True
    if v.bytes == 8:
        return ("word", None, True) if v.type.kind != "s" else ("int", np.dtype("i8"), True)
    if v.type.kind == "s":
        return "int", v.type.dtype, True
    return "int", np.dtype(f"i{v.bytes}"), False
