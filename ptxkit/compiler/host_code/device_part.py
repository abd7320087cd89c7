"""The device code of a CUDA source: what a parser shows to be host code is replaced by blanks."""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ptxkit.errors import UnavailableError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

DEVICE_WORDS = ("__global__", "__device__", "__constant__", "__shared__", "__managed__")
COMPILE_TIME_WORDS = ("constexpr", "consteval")
DEVICE_MACROS = frozenset(
    "C10_DEVICE C10_HOST_DEVICE CUTE_DEVICE CUTE_HOST_DEVICE CUTLASS_DEVICE CUTLASS_HOST_DEVICE CUTLASS_GLOBAL "
    "THRUST_DEVICE CUB_RUNTIME_FUNCTION _CCCL_DEVICE _CCCL_HOST_DEVICE CUDA_CALLABLE_MEMBER".split()
)
"""Macros of well-known headers that expand to device qualifiers."""

HOST_TYPES = frozenset(
    "string vector map set list unordered_map ostream istream ofstream ifstream shared_ptr unique_ptr".split()
)

CONTAINERS = ("namespace_definition", "linkage_specification", "declaration_list")
CONDITIONS = ("preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif", "preproc_elifdef")
KEPT = (
    "comment",
    "preproc_def",
    "preproc_function_def",
    "preproc_call",
    "preproc_include",
    "using_declaration",
    "type_definition",
    "alias_declaration",
    "namespace_alias_definition",
    "static_assert_declaration",
    "concept_definition",
    "enum_specifier",
    "struct_specifier",
    "class_specifier",
    "union_specifier",
)


@dataclass(frozen=True)
class Dropped:
    """Something that was left out.

    Attributes:
        what: ``"function"``, ``"variable"``, ``"include"``, ``"declaration"``.
        name: its name, as far as it has one.
        line: where it begins, from 1.
        reason: why.
    """

    what: str
    name: str
    line: int
    reason: str

    def __str__(self) -> str:
        return (
            f"line {self.line}: {self.what} {self.name}: {self.reason}"
            if self.name
            else f"line {self.line}: {self.reason}"
        )


@dataclass(frozen=True)
class Piece:
    """A part of the text that can be left out without another one: byte offsets, lines, what it is."""

    start: int
    end: int
    first_line: int
    last_line: int
    what: str
    name: str
    device: bool


@dataclass(frozen=True)
class HostLaunch:
    """A launch in host code.

    Attributes:
        kernel: as it is written: ``"scale<float, 256>"``.
        grid, block, shared: the expressions of its configuration; "" where left out.
        line: from 1.
    """

    kernel: str
    grid: str
    block: str
    shared: str
    line: int

    @property
    def concrete(self) -> bool:
        """Whether it names an instance of a template by numbers and built-in types alone, which mean the same everywhere."""
        arguments = re.fullmatch(r"[\w:]+<(.*)>", self.kernel, re.DOTALL)
        return arguments is not None and all(re.fullmatch(_CONCRETE, word.strip()) for word in arguments[1].split(","))


_CONCRETE = (
    r"-?\d+|true|false|((un)?signed )?(char|short|int|long( long)?)|unsigned|float|double|bool|(__)?half2?|"
    r"u?int(8|16|32|64)_t"
)


@dataclass(frozen=True)
class Include:
    """An ``#include`` line: the name, whether in quotes, the line and the byte offsets."""

    name: str
    quoted: bool
    line: int
    start: int
    end: int


@dataclass
class DevicePart:
    """A source, its pieces, and what is left out of it.

    Attributes:
        source: the whole text, as bytes.
        pieces: what can be left out, smaller ones after those that contain them.
        dropped: what is left out.
        includes, launches: of the whole source.
    """

    source: bytes
    pieces: list[Piece] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    includes: list[Include] = field(default_factory=list)
    launches: list[HostLaunch] = field(default_factory=list)
    _gone: list[tuple[int, int]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The device code, with blanks in place of what is left out."""
        data = bytearray(self.source)
        for start, end in self._gone:
            for i in range(start, end):
                if data[i] not in b"\r\n":
                    data[i] = 0x20
        return data.decode(errors="replace")

    def drop(self, start: int, end: int, what: Dropped) -> None:
        """Leave out a range of bytes."""
        self._gone.append((start, end))
        self.dropped.append(what)

    def drop_at(self, line: int, reason: str) -> bool:
        """Leave out the smallest piece with this line that is no device code. Returns whether there was one."""
        found = [
            piece
            for piece in self.pieces
            if piece.first_line <= line <= piece.last_line
            and not piece.device
            and not any(start <= piece.start and piece.end <= end for start, end in self._gone)
        ]
        if not found:
            return False
        piece = min(found, key=lambda p: p.end - p.start)
        self.drop(piece.start, piece.end, Dropped(piece.what, piece.name, piece.first_line, reason))
        return True


def device_part(text: str, macros: Mapping[str, str] | None = None) -> DevicePart:
    """Parse a source, and leave out its host functions and host variables.

    Args:
        macros: macro -> value, of headers; those of the text are added. A function is device code if a macro before its
            name expands to ``__device__`` or ``__global__``.

    Raises:
        UnavailableError: tree-sitter is not installed.
    """
    data = text.encode(errors="replace")
    part = DevicePart(data)
    known = {**(macros or {}), **macro_values(text)}
    qualifiers = frozenset(_device_macros(known)) | DEVICE_MACROS
    parsed = bytearray(data)
    for start, end, name, device in _macro_calls(text, known, qualifiers):
        first, last = (len(text[:at].encode(errors="replace")) for at in (start, end))
        parsed[first:last] = b" " * (last - first)
        if not device:
            line = text.count("\n", 0, start) + 1
            part.drop(first, last, Dropped("macro call", name, line, "a macro that expands to a host function"))
    root = _parser().parse(bytes(parsed)).root_node
    for node in _walk(root):
        if node.type == "preproc_include":
            _note_include(part, node)
        elif node.type == "call_expression" and (launch := _launch(node)) is not None:
            part.launches.append(launch)
    _visit(part, root, qualifiers)
    return part


def macro_values(text: str) -> dict[str, str]:
    """Macro -> value, of the ``#define`` lines of a text; of function-like macros the value after the parameters."""
    joined = re.sub(r"\\\r?\n", " ", text)
    return {
        m[1]: m[2]
        for m in re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:\([^)\n]*\))?[ \t]*(.*)$", joined, re.MULTILINE)
    }


_CALL = re.compile(r"^[ \t]*([A-Za-z_]\w*)[ \t]*\(", re.MULTILINE)


def _macro_calls(
    text: str, macros: Mapping[str, str], qualifiers: frozenset[str]
) -> Iterator[tuple[int, int, str, bool]]:
    """Calls of macros at namespace scope that expand to functions: begin, end, the macro, and whether it is device code.

    A parser that does not expand macros cannot tell such a call from the beginning of a function.
    """
    depth_at = _brace_depths(text)
    directives = [m.span() for m in _TOKEN.finditer(text) if m[0].lstrip().startswith("#")]
    for match in _CALL.finditer(text):
        name, value = match[1], macros.get(match[1], "")
        if "{" not in value and "m.def" not in value:
            continue
        if any(word in value for word in ("struct", "class ", "enum", "typedef", "using ")) or depth_at(match.start(1)):
            continue
        at = bisect.bisect(directives, (match.start(1), len(text))) - 1
        if at >= 0 and match.start(1) < directives[at][1]:
            continue  # part of another macro
        end = _closing(text, match.end() - 1)
        if end is not None:
            end += 1 if text[end : end + 1] == ";" else 0
            yield match.start(1), end, name, name in qualifiers


_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|[{}()]|^[ \t]*#(?:\\\n|[^\n])*',
    re.DOTALL | re.MULTILINE,
)


def _brace_depths(text: str) -> Callable[[int], int]:
    """A function from an offset to the number of open braces there, without those of namespaces and ``extern "C"``."""
    offsets, depths, stack = [0], [0], list[bool]()
    for match in _TOKEN.finditer(text):
        if match[0] == "{":
            before = text[max(0, match.start() - 120) : match.start()]
            stack.append(not re.search(r'(\bnamespace\b[\w\s:]*|extern\s*"C"\s*)$', before))
        elif match[0] == "}" and stack:
            stack.pop()
        else:
            continue
        offsets.append(match.end())
        depths.append(sum(stack))
    return lambda at: depths[bisect.bisect_right(offsets, at) - 1]


def _closing(text: str, opening: int) -> int | None:
    """The offset behind the parenthesis that closes the one at ``opening``."""
    depth = 0
    for match in _TOKEN.finditer(text, opening):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if not depth and match[0] == ")":
            return match.end()
    return None


def _device_macros(macros: Mapping[str, str]) -> Iterator[str]:
    """The macros that expand to text with a device qualifier, directly or through another macro."""
    device = {name for name, value in macros.items() if any(word in value for word in DEVICE_WORDS)}
    while True:
        more = {
            name for name, value in macros.items() if name not in device and device & set(re.findall(r"\w+", value))
        }
        if not more:
            return iter(device)
        device |= more


@functools.cache
def _parser() -> Parser:
    try:
        import tree_sitter
        import tree_sitter_cuda
    except ImportError as error:
        raise UnavailableError(
            f"a source with host code needs tree-sitter ({error}); run: pip install tree-sitter tree-sitter-cuda"
        ) from None
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))


def _walk(node: Node) -> Iterator[Node]:
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children))


def _visit(part: DevicePart, parent: Node, qualifiers: frozenset[str]) -> None:
    children = parent.children
    for i, node in enumerate(children):
        if node.type in CONDITIONS or (node.type in CONTAINERS and _has_list(node)):
            _visit(part, node, qualifiers)
            continue
        if not node.is_named or node.type in (
            "namespace_identifier",
            "string_literal",
            "identifier",
            "nested_namespace_specifier",
        ):
            continue
        if (
            node.parent is not None
            and node.parent.type in ("preproc_if", "preproc_elif")
            and node == node.parent.child_by_field_name("condition")
        ):
            continue
        end = node.end_byte
        if i + 1 < len(children) and children[i + 1].type == ";":
            end = children[i + 1].end_byte
        device = _has_device_word(node, qualifiers)
        piece = _piece(node, end, device)
        reason = "" if device else _host_reason(node)
        if reason:
            part.drop(piece.start, piece.end, Dropped(piece.what, piece.name, piece.first_line, reason))
            continue
        if node.type not in ("comment", "preproc_include", "preproc_def", "preproc_function_def", "preproc_call"):
            part.pieces.append(piece)
            part.pieces.extend(_members(node, qualifiers))


def _has_list(node: Node) -> bool:
    """Whether a namespace or a linkage specification holds several declarations, in braces."""
    return node.type == "declaration_list" or any(child.type == "declaration_list" for child in node.children)


def _piece(node: Node, end: int, device: bool) -> Piece:
    what = {"function_definition": "function", "declaration": "declaration", "template_declaration": "template"}
    kind = what.get(node.type, node.type.replace("_specifier", "").replace("_", " "))
    return Piece(node.start_byte, end, node.start_point[0] + 1, node.end_point[0] + 1, kind, _name(node), device)


def _members(node: Node, qualifiers: frozenset[str]) -> Iterator[Piece]:
    """The member functions of classes that have no device qualifiers, which can be left out."""
    for inner in _walk(node):
        if inner.parent is None or inner.parent.type != "field_declaration_list":
            continue
        declares = inner.type in ("field_declaration", "declaration") and b"(" in (inner.text or b"")
        if (inner.type == "function_definition" or declares) and not _has_device_word(inner, qualifiers):
            yield _piece(inner, inner.end_byte, device=False)


def _inner(node: Node) -> Node:
    """What a template declares, or a linkage specification specifies."""
    while node.type in ("template_declaration", "linkage_specification"):
        named = [
            child
            for child in node.children
            if child.is_named and child.type not in ("template_parameter_list", "string_literal", "requires_clause")
        ]
        if not named:
            return node
        node = named[-1]
    return node


def _has_device_word(node: Node, qualifiers: frozenset[str]) -> bool:
    words = set(re.findall(r"\w+", _head(node)))
    return bool(words & set(DEVICE_WORDS) or words & qualifiers)


def _head(node: Node) -> str:
    """The text of a function or a declaration before its body or its initial value."""
    inner = _inner(node)
    body = inner.child_by_field_name("body")
    end = body.start_byte if body is not None else inner.end_byte
    if inner.type == "declaration":
        values = (child.child_by_field_name("value") for child in inner.children if child.type == "init_declarator")
        end = min((value.start_byte for value in values if value is not None), default=end)
    if inner.type in ("struct_specifier", "class_specifier", "union_specifier"):
        end = inner.start_byte  # a class is no device code itself
    text = (node.text or b"")[: end - node.start_byte]
    return text.decode(errors="replace")


def _host_reason(node: Node) -> str:
    """Why a piece at namespace scope is host code; "" for what stays."""
    inner = _inner(node)
    if inner.type in KEPT or inner.text == b";":
        return ""
    head = set(re.findall(r"\w+", _head(node)))
    if inner.type == "function_definition" and _is_class(inner):
        return ""  # the parser takes a class with attributes, such as struct __align__(8) pair {...}, for a function
    if inner.type == "function_definition":
        return "" if head & set(COMPILE_TIME_WORDS) else "a host function"
    if inner.type == "template_instantiation":
        return "an instantiation of a host function" if "class" not in head and "struct" not in head else ""
    if inner.type == "declaration":
        if _declares_function(inner):
            return "" if head & set(COMPILE_TIME_WORDS) else "a declaration of a host function"
        constant = head & {"const", *COMPILE_TIME_WORDS} and not head & HOST_TYPES
        return "" if constant else "a host variable"
    if inner.type in (
        "expression_statement",
        "call_expression",
        "compound_statement",
        "for_statement",
        "if_statement",
        "return_statement",
    ):
        return "a statement of the host"
    return ""


def _is_class(node: Node) -> bool:
    """Whether a "function" begins with struct, class or union, and has no parameters before its body."""
    head = _head(node)
    return bool(
        re.match(
            r"\s*(struct|class|union)\b(\s*(__align__|alignas|__attribute__)\s*\([^;{]*\))*\s*\w*\s*(:[^{]*)?$", head
        )
    )


def _declares_function(node: Node) -> bool:
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type in ("pointer_declarator", "reference_declarator"):
        declarator = declarator.child_by_field_name("declarator") or next(iter(declarator.named_children), None)
    if declarator is None or declarator.type != "function_declarator":
        return False
    named = declarator.child_by_field_name("declarator")
    return named is not None and named.type != "parenthesized_declarator"


def _name(node: Node) -> str:
    inner = _inner(node)
    for field_name in ("declarator", "name"):
        named = inner.child_by_field_name(field_name)
        while named is not None and (further := named.child_by_field_name("declarator")) is not None:
            named = further
        if named is not None:
            return (named.text or b"").decode(errors="replace").partition("(")[0].strip()[:60]
    return ""


def _note_include(part: DevicePart, node: Node) -> None:
    path = node.child_by_field_name("path")
    text = (path.text or b"").decode(errors="replace") if path is not None else ""
    if len(text) > 2 and text[0] in '"<':
        part.includes.append(
            Include(text[1:-1], text[0] == '"', node.start_point[0] + 1, node.start_byte, node.end_byte)
        )


def _launch(node: Node) -> HostLaunch | None:
    function = node.child_by_field_name("function")
    chevrons = next((child for child in node.children if child.type == "kernel_call_syntax"), None)
    if function is None or chevrons is None:
        return None
    words = [
        (child.text or b"").decode(errors="replace") for child in chevrons.named_children if child.type != "comment"
    ]
    grid, block, shared = [*words, "", "", ""][:3]
    return HostLaunch((function.text or b"").decode(errors="replace"), grid, block, shared, node.start_point[0] + 1)


def summary(dropped: Iterable[Dropped]) -> str:
    """``"3 functions, 2 includes"``."""
    counts: dict[str, int] = {}
    for one in dropped:
        counts[one.what] = counts.get(one.what, 0) + 1
    return ", ".join(f"{n} {what}{'s' if n > 1 else ''}" for what, n in counts.items())
