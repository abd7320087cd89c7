"""Parameter types of a kernel, read from its mangled C++ name.

PTX knows a parameter's width and little else: ``.u64`` is a pointer or a ``long long``, ``.u32`` an ``int`` or an ``unsigned``.
The Itanium-mangled name of a ``__global__`` function spells the types out. This module reads the part of the
grammar that parameter types of kernels use (Itanium C++ ABI, "External Names (a.k.a. Mangling)"), including
substitutions and template parameters. For a name with other constructs (a ``decltype``, an expression, a parameter
pack) it returns None, and types are derived from the PTX alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

BUILTIN = {  # code -> (kind, dtype, text) of a CppType
    "b": ("number", "?", "bool"),
    "a": ("number", "i1", "signed char"),
    "c": ("number", "i1", "char"),  # signed in CUDA
    "h": ("number", "u1", "unsigned char"),
    "s": ("number", "i2", "short"),
    "t": ("number", "u2", "unsigned short"),
    "i": ("number", "i4", "int"),
    "j": ("number", "u4", "unsigned int"),
    "l": ("number", "i8", "long"),
    "m": ("number", "u8", "unsigned long"),
    "x": ("number", "i8", "long long"),
    "y": ("number", "u8", "unsigned long long"),
    "w": ("number", "i4", "wchar_t"),
    "n": ("class", "", "__int128"),
    "o": ("class", "", "unsigned __int128"),
    "f": ("number", "f4", "float"),
    "d": ("number", "f8", "double"),
    "v": ("void", "", "void"),
    "Dn": ("pointer", "", "std::nullptr_t"),
    "Dh": ("number", "f2", "half"),
    "Di": ("number", "u4", "char32_t"),
    "Ds": ("number", "u2", "char16_t"),
    "Du": ("number", "u1", "char8_t"),
    "DF16_": ("number", "f2", "_Float16"),
    "DF16b": ("number", "bfloat16", "__bf16"),
}
_BUILTIN_LENGTHS = sorted({len(code) for code in BUILTIN})
_CLASSES = {  # structures around one number
    "__half": "f2",
    "c10::Half": "f2",
    "c10::BFloat16": "bfloat16",
    "__nv_bfloat16": "bfloat16",
    "__nv_fp8_e4m3": "float8_e4m3fn",
    "__nv_fp8_e5m2": "float8_e5m2",
    "__nv_fp8_e8m0": "float8_e8m0fnu",
}
_STD = {"a": "allocator", "b": "basic_string", "s": "string", "i": "istream", "o": "ostream", "d": "iostream"}


@dataclass(frozen=True)
class CppType:
    """A type as far as passing an argument needs it.

    Attributes:
        kind: ``"pointer"`` (references too), ``"number"``, or ``"class"``: a class or an enumeration, which a mangled
            name does not distinguish.
        dtype: of a number: numpy's name, or that of ml_dtypes, such as ``"bfloat16"``.
        text: the type as written, roughly; for messages.
        pointee: the type that a pointer or a reference points to, or the element type of an array.
    """

    kind: str
    dtype: str = ""
    text: str = ""
    pointee: CppType | None = None

    @property
    def bare(self) -> str:
        """``text`` without its own qualifiers: ``"float"`` of ``"const float"``."""
        return re.sub(r"^(?:(?:const|volatile) )+", "", self.text)


class _UnreadableError(Exception):
    pass


def parameter_types(mangled: str) -> tuple[CppType, ...] | None:
    """Types of the parameters of a mangled function; None when it is not mangled or has unsupported constructs."""
    if not mangled.startswith("_Z"):
        return None
    try:
        return _Reader(mangled).encoding()
    except (_UnreadableError, RecursionError):
        return None


def template_arguments(mangled: str) -> tuple[str, ...]:
    """The template arguments of a mangled function, as written: ``("float", "256", "true")``.

    () where it has none, or they cannot be read.
    """
    if not mangled.startswith("_Z"):
        return ()
    reader = _Reader(mangled)
    try:
        reader.function_name()
    except (_UnreadableError, RecursionError):
        return ()
    texts = tuple(argument.text for argument in reader.arguments)
    return texts if all(texts) else ()


class _Reader:
    def __init__(self, mangled: str) -> None:
        self.text = mangled
        self.at = 2
        self.substitutions: list[CppType] = []
        self.arguments: list[CppType] = []  # of the function template, for T_, T0_, ...

    def encoding(self) -> tuple[CppType, ...]:
        if self.function_name():
            self.type()  # templates alone have their return type in the name
        types = []
        while self.peek() not in ("", ".", "$"):  # a suffix that the compiler adds to a clone of the function
            types.append(self.type())
        if not types:
            raise _UnreadableError
        return () if [t.kind for t in types] == ["void"] else tuple(types)

    # -- names -------------------------------------------------------------------------------------------------------

    def function_name(self) -> bool:
        """Reads the function's name; returns whether it ends in template arguments."""
        self.accept("L")
        if self.accept("N"):
            return self.nested(is_type=False)
        name = self.unscoped()
        if self.peek() != "I":
            return False
        self.substitutions.append(name)
        self.arguments = self.template_arguments()
        return True

    def nested(self, *, is_type: bool) -> bool:
        """Reads a nested name after its ``N``, including its ``E``; the name of a type becomes a substitution
        candidate."""
        while self.accept("r") or self.accept("V") or self.accept("K"):
            pass
        name, ends_in_arguments = "", False
        while not self.accept("E"):
            ends_in_arguments = False
            if self.accept("St"):
                name = "std"  # not a substitution candidate by itself
                continue
            if self.peek() == "S":
                name = self.substitution().text  # is a candidate already
                continue
            if self.peek() == "I":
                arguments = self.template_arguments()
                ends_in_arguments = True
                if not is_type:
                    self.arguments = arguments
            elif self.peek() == "T":
                name = self.template_parameter().text
            else:
                name = f"{name}::{self.source_name()}" if name else self.source_name()
            if is_type or self.peek() != "E":  # the function itself is not a candidate; the scopes around it are
                self.substitutions.append(class_type(name))
        return ends_in_arguments

    def unscoped(self) -> CppType:
        scope = "std::" if self.accept("St") else ""
        return class_type(scope + self.source_name())

    def source_name(self) -> str:
        self.accept("L")
        start = self.at
        while self.peek().isdigit():
            self.at += 1
        if start == self.at:
            raise _UnreadableError
        length = int(self.text[start : self.at])
        self.at += length
        if length == 0 or self.at > len(self.text):
            raise _UnreadableError
        return self.text[self.at - length : self.at]

    def template_arguments(self) -> list[CppType]:
        self.expect("I")
        found = []
        while not self.accept("E"):
            if self.accept("L"):
                kind = self.type()
                end = self.text.find("E", self.at)
                if end < 0:
                    raise _UnreadableError
                found.append(replace(kind, text=_literal(kind, self.text[self.at : end])))
                self.at = end + 1
            elif self.accept("XT"):  # an expression that is only a template parameter: Box<T, N>
                found.append(self.pick(self.arguments, 10))
                self.expect("E")
            else:
                found.append(self.type())  # other expressions (X) and packs (J) are no types
        return found

    # -- types -------------------------------------------------------------------------------------------------------

    def type(self) -> CppType:
        for length in _BUILTIN_LENGTHS:  # no code is the beginning of another one
            code = self.text[self.at : self.at + length]
            if (builtin := BUILTIN.get(code)) is not None:
                self.at += length
                return CppType(*builtin)
        code = self.peek()
        if code in ("r", "V", "K"):
            self.at += 1
            inner = self.type()
            text = inner.text
            if code == "K":
                text = f"{text} const" if inner.kind == "pointer" else f"const {text}"
            return self.remember(CppType(inner.kind, inner.dtype, text, inner.pointee))
        if code in ("P", "R", "O"):
            self.at += 1
            inner = self.type()
            mark = {"P": "*", "R": "&", "O": "&&"}[code]
            text = inner.text.replace("[]", f"({mark})[]", 1) if inner.kind == "array" else inner.text + mark
            return self.remember(CppType("pointer", "", text, inner))
        if code == "F":
            return self.function_type()
        if code == "A":
            return self.array_type()
        if code == "M":
            self.at += 1
            self.type()
            return self.candidate("class", "", f"pointer to member {self.type().text}")
        if code == "u":
            self.at += 1
            return self.remember(class_type(self.source_name()))
        if code == "T":
            return self.maybe_instance(self.remember(self.template_parameter()))
        if code == "N":
            self.at += 1
            known = len(self.substitutions)
            self.nested(is_type=True)
            if len(self.substitutions) == known:  # no name stands between N and E
                raise _UnreadableError
            return self.substitutions[-1]
        if code == "S" and not self.text.startswith("St", self.at):
            return self.maybe_instance(self.substitution())
        return self.maybe_instance(self.remember(self.unscoped()))

    def maybe_instance(self, template: CppType) -> CppType:
        """A class template may be followed by its arguments."""
        if self.peek() != "I":
            return template
        self.template_arguments()
        return self.candidate("class", "", template.text)

    def function_type(self) -> CppType:
        self.expect("F")
        self.accept("Y")
        while not self.accept("E"):
            self.type()
        return self.candidate("function", "", "function")

    def array_type(self) -> CppType:
        self.expect("A")
        while self.peek().isdigit():
            self.at += 1
        self.expect("_")
        element = self.type()
        return self.remember(CppType("array", "", element.text + "[]", element))

    def template_parameter(self) -> CppType:
        self.expect("T")
        return self.pick(self.arguments, 10)

    def substitution(self) -> CppType:
        self.expect("S")
        if (code := self.peek()) in _STD:
            self.at += 1
            return CppType("class", text=f"std::{_STD[code]}")
        return self.pick(self.substitutions, 36)

    def pick(self, candidates: list[CppType], base: int) -> CppType:
        """``_`` is the first, ``0_`` the second, ``1_`` the third, ... counted in the base."""
        end = self.text.find("_", self.at)
        digits, self.at = self.text[self.at : end], end + 1
        try:
            return candidates[int(digits, base) + 1 if digits else 0]
        except (ValueError, IndexError):
            raise _UnreadableError from None

    # -- characters --------------------------------------------------------------------------------------------------

    def candidate(self, kind: str, dtype: str, text: str) -> CppType:
        return self.remember(CppType(kind, dtype, text))

    def remember(self, found: CppType) -> CppType:
        self.substitutions.append(found)
        return found

    def peek(self) -> str:
        """The next character, ``""`` at the end."""
        return self.text[self.at : self.at + 1]

    def accept(self, code: str) -> bool:
        if not self.text.startswith(code, self.at):
            return False
        self.at += len(code)
        return True

    def expect(self, code: str) -> None:
        if not self.accept(code):
            raise _UnreadableError


def class_type(name: str) -> CppType:
    """A class by its name; classes of CUDA that wrap one number, such as ``__half``, count as that number."""
    return CppType("number", _CLASSES[name], name) if name in _CLASSES else CppType("class", text=name)


def _literal(kind: CppType, digits: str) -> str:
    """A template argument that is a value, as written: ``-3``, ``true``, ``(Mode)1``; that of another kind by its type."""
    value = digits.replace("n", "-", 1)
    if not re.fullmatch(r"-?\d+", value):
        return kind.text
    if kind.dtype == "?":
        return "false" if value == "0" else "true"
    return value if kind.kind == "number" else f"({kind.text}){value}"
