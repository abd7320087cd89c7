"""The device code of a CUDA source: what a parser shows to be host code is replaced by blanks."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ptxkit.compiler.host_code.instances import may_name, names_of_scope, qualified, type_parameters
from ptxkit.compiler.host_code.preprocessor import DEVICE_WORDS, Finder, Inclusion, Segment, Unit, preprocess
from ptxkit.errors import UnavailableError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

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
CONDITIONS = ("if", "ifdef", "ifndef", "elif", "elifdef", "elifndef")
CLASSES = ("struct_specifier", "class_specifier", "union_specifier")
KEPT = (
    "comment",
    "using_declaration",
    "type_definition",
    "alias_declaration",
    "namespace_alias_definition",
    "static_assert_declaration",
    "concept_definition",
    "enum_specifier",
    *CLASSES,
)
HOST_TYPE = "struct type_of_the_host"
"""A type that nothing has, in place of types of the host."""

NOT_COMPILED = "does not compile as device code"
PARTS = {  # what a piece is called -> in a list
    "function_definition": "function",
    "template_declaration": "template",
    "ERROR": "declaration",
    "type_definition": "type",
    "alias_declaration": "type",
    "field_declaration": "member",
    "friend_declaration": "friend",
    "template_instantiation": "instantiation",
}


@dataclass(frozen=True)
class Dropped:
    """Something that was left out.

    Attributes:
        what: ``"function"``, ``"variable"``, ``"include"``, ``"declaration"``.
        name: its name, as far as it has one.
        line: where it begins, from 1.
        reason: why.
        file: the name of the header it is in; "" in the source itself.
    """

    what: str
    name: str
    line: int
    reason: str
    file: str = ""

    def __str__(self) -> str:
        place = f"{self.file}: line {self.line}" if self.file else f"line {self.line}"
        return (
            f"{place}: {self.what} {self.name}: {self.reason}" if self.name else f"{place}: {self.what}: {self.reason}"
        )


@dataclass
class Piece:
    """A declaration: offsets in the translation unit, and what becomes of it.

    Attributes:
        start, end: of the declaration. tail: where the body of a function or class begins, with its initialisers or bases, or
            the initialiser of a data member; -1.
        insert: where a qualifier can be inserted.
        what, name: as in :class:`Dropped`.
        kind: ``"function"``, ``"class"``, ``"data"`` (a data member, on which the layout depends) or ``"other"``.
        device: whether it is device code. member: whether of a class.
        special: ``"constructor"``, ``"destructor"``, ``"virtual"`` or "".
        state: ``"kept"``; ``"annotated"``: ``__device__`` is inserted; ``"declared"``: without its body, so that a use is an
            error; ``"gone"``; ``"instance"``: a static member function as one that is ``const`` instead; ``"constant"``: a
            floating-point variable that is ``constexpr`` instead of ``const``.
        reason: why it is not kept.
        fixed: it is part of a macro's expansion that holds other things, too, and cannot be changed alone.
        both: it is device code, and marked for the host, too.
        overrides: a virtual function says that it overrides one. shadows: without it, device code might take a variable of the
            same name in another namespace.
    """

    start: int
    end: int
    what: str
    name: str
    kind: str
    device: bool
    tail: int = -1
    insert: int = -1
    member: bool = False
    special: str = ""
    state: str = "kept"
    reason: str = ""
    fixed: bool = False
    both: bool = False
    overrides: bool = False
    shadows: bool = False
    owner: Piece | None = None


@dataclass(frozen=True)
class HostLaunch:
    """A launch in host code.

    Attributes:
        kernel: as it is written: ``"scale<float, 256>"``.
        grid, block, shared: the expressions of its configuration; "" where left out.
        line: from 1.
        arguments: the expressions that are passed.
        scope: the namespace in which it stands: ``"a::b"``.
    """

    kernel: str
    grid: str
    block: str
    shared: str
    line: int
    arguments: tuple[str, ...] = ()
    scope: str = ""

    @property
    def concrete(self) -> bool:
        """Whether it names an instance of a template by numbers and built-in types alone, which mean the same everywhere."""
        return self.names_instance(())

    def names_instance(self, known: Collection[str]) -> bool:
        """Whether it names an instance of a template by numbers, built-in types and these names alone."""
        arguments = re.fullmatch(r"[\w:]+\s*<(.*)>", self.kernel, re.DOTALL)
        if arguments is None:
            return False
        words = [word.strip() for word in arguments[1].split(",")]
        return all(word in known or re.fullmatch(_CONCRETE, word) for word in words)


_CONCRETE = (
    r"-?\d+|true|false|((un)?signed )?(char|short|int|long( long)?)|unsigned|float|double|bool|(__)?half2?|"
    r"u?int(8|16|32|64)_t|size_t|(__)?nv_bfloat162?|__nv_fp8_e(4m3|5m2)|(at|c10)::(Half|BFloat16)|uint|uchar|ushort|ulong|"
    r"(u?(char|short|int|long|longlong)|float|double)[1-4]"
)


@dataclass
class DevicePart:
    """A translation unit, its pieces, and what is left out of it.

    Attributes:
        unit: the translation unit. pieces: its declarations, outer ones first. launches: in its host code.
        inactive: host code in inactive branches: file, begin, end and what it is.
    """

    unit: Unit
    pieces: list[Piece] = field(default_factory=list)
    launches: list[HostLaunch] = field(default_factory=list)
    inactive: list[tuple[Inclusion, int, int, Dropped]] = field(default_factory=list)
    _known_words: tuple[tuple[str, ...], frozenset[str]] | None = None

    @property
    def source(self) -> Inclusion:
        """The source itself."""
        return self.unit.inclusions[0]

    @property
    def text(self) -> str:
        """The device code of the source, with blanks in place of what is left out."""
        return self.text_of(self.source)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """The declarations that are left out or only declared, in the order of the translation unit."""
        gone = [p for p in self.pieces if p.state in ("declared", "gone") and not _within_gone(p)]
        found = [Dropped(p.what, p.name, *self._line_and_file(p)) for p in gone]
        return tuple(dict.fromkeys((*found, *(dropped for *_, dropped in self.inactive))))

    @property
    def is_changed(self) -> bool:
        """Whether anything is not as it was."""
        return bool(self.inactive) or any(p.state != "kept" for p in self.pieces) or "__NVCC__" in self.source.text

    def _line_and_file(self, piece: Piece) -> tuple[int, str, str]:
        inclusion, start, _ = self.unit.places(piece.start, piece.end)[0]
        return inclusion.line(start), piece.reason, self.file_of(inclusion)

    def file_of(self, inclusion: Inclusion) -> str:
        """The name of a header; "" for the source."""
        return "" if inclusion is self.source else inclusion.path.rpartition("/")[2]

    def text_of(self, inclusion: Inclusion, names: Mapping[int, str | None] | None = None) -> str:
        """The device code of one file, with blanks in place of what is left out; directives stay.

        Args:
            names: offset of an ``#include`` -> what to write for the header's name, with quotes; None: leave the line out.
        """
        return "".join(self._characters(inclusion, names or {}))

    def _characters(self, inclusion: Inclusion, names: Mapping[int, str | None]) -> list[str]:
        """What stands for each character of a file."""
        out = list(inclusion.text)
        changes: list[tuple[int, str]] = []
        gone = [(a, b) for one, a, b, _ in self.inactive if one is inclusion]
        for piece in self.pieces:
            if piece.state == "kept" or _within_gone(piece):
                continue
            if piece.state == "annotated" or (piece.state == "declared" and piece.kind == "function"):
                where = self._exact(piece.insert)
                if where is not None and where[0] is inclusion:
                    changes.append((where[1], "__device__ "))
            if piece.state == "constant":
                where = self._exact(piece.start + self._word_const(piece))
                if where is not None and where[0] is inclusion:
                    out[where[1] : where[1] + len("const")] = ["constexpr", *[""] * (len("const") - 1)]
            if piece.state == "instance":
                changes += [(at, text) for where, at, text in self._as_instance(piece) if where is inclusion]
            if piece.state in ("gone", "declared"):
                start = piece.start if piece.state == "gone" else piece.tail
                ranges = [(a, b) for one, a, b in self.unit.places(start, piece.end) if one is inclusion]
                gone += ranges
                first = self.unit.places(start, piece.end)[0]
                if ranges and first[0] is inclusion:
                    changes.append((first[1], _replacement(piece)))
        for start, end in [*gone, *_other_branches(inclusion, gone)]:
            _blank(out, start, end)
        for at, text in changes:
            if not text:  # the word "static"
                _blank(out, at, at + len("static"))
        is_kept = {i.start for i in inclusion.includes if i.inclusion is not None}
        for start, end, keyword in inclusion.directives:
            inside = any(a <= start and end <= b for a, b in gone)
            stays = keyword not in ("include", "include_next", "pragma", "error", "line", "") or start in is_kept
            if inside and stays:
                out[start:end] = inclusion.text[start:end]
            if keyword in CONDITIONS and "__NVCC__" in inclusion.text[start:end]:
                # nvcc defines both, and NVRTC the second one
                out[start:end] = _in_place(inclusion.text[start:end], "__NVCC__", "__CUDACC__")
        for include in inclusion.includes:
            if include.start not in names:
                continue
            name = names[include.start]
            if name is None:
                _blank(out, include.start, include.end)
            else:
                _blank(out, include.name_start, include.name_end)
                out[include.name_start] = name
        for at, text in changes:
            _put(out, at, text)
        return out

    def _as_instance(self, piece: Piece) -> list[tuple[Inclusion, int, str]]:
        """The file, offset and text of two changes: no ``static``, and ``const`` after the parameters; [] if impossible."""
        head = _COMMENT_OR_STRING.sub(lambda m: " " * len(m[0]), self.unit.text[piece.start : piece.tail])
        word = re.search(r"\bstatic\b", head)
        arrow = head.rfind("->")
        end = piece.start + arrow if arrow >= 0 else piece.tail
        if piece.fixed or piece.tail < 0 or word is None:
            return []
        places = self._exact(piece.start + word.start()), self._exact(end)
        return [(*place, text) for place, text in zip(places, ("", " const "), strict=True) if place is not None]

    def overload(self, piece: Piece) -> bool:
        """Let a member function be overloaded by static ones with the same parameters, of which only one can be called.

        Compilers of the host accept such templates, whose results ``enable_if`` tells apart; NVRTC follows the standard
        ([over.load]). The static ones become member functions that do not use their object.

        Returns:
            Whether there was such a function.
        """
        found = False
        for one in self.pieces:
            same = one.owner is piece.owner and one.name == piece.name and one.kind == "function" and one.state == "kept"
            if same and len(self._as_instance(one)) == 2:
                one.state, found = "instance", True
        return found

    def _exact(self, at: int) -> tuple[Inclusion, int] | None:
        """The file and offset of a character of the translation unit; None inside an expansion."""
        found = self.unit.between(at, at + 1)
        if not found or not found[0].exact:
            return None
        return found[0].inclusion, found[0].start + at - found[0].at

    @property
    def words(self) -> frozenset[str]:
        """The words of what is left in the translation unit."""
        state = tuple(piece.state for piece in self.pieces)
        if self._known_words is None or self._known_words[0] != state:
            self._known_words = (state, self.remaining())
        return self._known_words[1]

    def remaining(self, without: Piece | None = None) -> frozenset[str]:
        """The words of what is left in the translation unit, except in one piece."""
        return frozenset(re.findall(r"\w+", self._bare(without)))

    def names_of(self, namespace: str) -> frozenset[str]:
        """The names behind ``namespace::`` in what is left in the translation unit."""
        return frozenset(re.findall(rf"\b{namespace}\s*::\s*(\w+)", self._bare()))

    def _bare(self, without: Piece | None = None) -> str:
        """What is left in the translation unit, without comments and strings."""
        out = list(self.unit.text)
        for piece in self.pieces:
            if piece is without or (piece.state == "gone" and not _within_gone(piece)):
                _blank(out, piece.start, piece.end)
            elif piece.state == "declared":
                _blank(out, piece.tail, piece.end)
        return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', " ", "".join(out), flags=re.DOTALL)

    def find(self, files: Collection[int], line: int, column: int) -> Piece | None:
        """The smallest piece at a place of the device code of one of the inclusions with these identities.

        Without a column (0), and where no piece is at the column: the smallest one with the line.
        """
        for inclusion in self.unit.inclusions:
            if id(inclusion) not in files:
                continue
            begin, end = _line_span(inclusion.text, line)
            ranges = [
                (b - a, piece, a, b)
                for piece in self.pieces
                for one, a, b in self.unit.places(piece.start, piece.end)
                if one is inclusion and a <= end and begin < b
            ]
            if column:
                at, seen = begin, 0
                characters = self._characters(inclusion, {})
                while at < end and seen + len(characters[at]) < column:
                    seen += len(characters[at])
                    at += 1
                exact = [found for found in ranges if found[2] <= at < found[3]]
                ranges = exact or ranges
            if ranges:
                return min(ranges, key=lambda found: found[0])[1]
        return None

    def instances(self) -> list[tuple[str, ...]]:
        """The instances that host code launches: those with expressions, and with names of the translation unit or of
        headers; then those with single names of the translation unit; then without these.

        A name of namespace scope may mean something else where the launch stands.
        """
        known = self._names_of_scope()
        parameters = type_parameters(self.unit.text)
        found = [
            [one.kernel for one in self.launches if may_name(one.kernel, known, parameters)],
            *([one.kernel for one in self.launches if one.names_instance(names)] for names in (known, ())),
        ]
        return list(dict.fromkeys(tuple(dict.fromkeys(names)) for names in found if names))

    def qualified_instances(self) -> dict[str, str]:
        """The kernels that are launched within a namespace -> how they are named outside of it."""
        known = self._names_of_scope()
        return {one.kernel: qualified(one.kernel, one.scope, known) for one in self.launches if one.scope}

    def _names_of_scope(self) -> frozenset[str]:
        own = {piece.name for piece in self.pieces if piece.owner is None and piece.name}
        return frozenset(own) | names_of_scope(self.unit.text)

    def make_constants(self) -> bool:
        """Let device code use constants in floating point, whose values nvcc knows. Returns whether there are such."""
        found = [p for p in self.pieces if p.kind == "other" and p.owner is None and p.state == "kept" and not p.device]
        found = [p for p in found if self._word_const(p) >= 0]
        for piece in found:
            piece.state = "constant"
        return bool(found)

    def _word_const(self, piece: Piece) -> int:
        """Where the word ``const`` stands in the declaration of a floating-point variable; -1 in any other declaration."""
        match = _CONSTANT.match(self.unit.text[piece.start : piece.end])
        return match.start("const") if match else -1

    def leave_out(self, piece: Piece, message: str) -> bool:
        """Leave out more of a piece that has an error. Returns whether that was possible.

        A use of something that was left out must be an error: functions become deleted ones, classes are only declared, and
        what cannot be declared goes only if nothing that is left names it.
        """
        if piece.fixed or piece.state == "gone" or _within_gone(piece):
            return False
        if piece.device:  # nvcc lets a function for both use the host's, unless device code calls it
            return piece.kind == "function" and piece.both and piece.tail >= 0 and self._leave_out_function(piece)
        if piece.kind == "function":
            return self._leave_out_function(piece)
        if piece.kind == "class":
            if piece.state == "kept" and piece.tail >= 0 and self._exact(piece.tail) is not None:
                return _set(piece, "declared")
            return self._if_unused(piece)
        if piece.kind == "data" and piece.state == "kept" and piece.tail >= 0 and self._exact(piece.tail) is not None:
            return _set(piece, "declared")
        if piece.kind == "data" and piece.owner is not None:
            return self.leave_out(piece.owner, message)
        if "static assertion failed" in message:
            return False
        if self._if_unused(piece):
            return True
        return piece.owner is not None and self.leave_out(piece.owner, message)

    def _leave_out_function(self, piece: Piece) -> bool:
        insertable = piece.device or self._exact(piece.insert) is not None  # device code needs no qualifier
        declarable = piece.tail >= 0 and self._exact(piece.tail) is not None and insertable
        if piece.state in ("kept", "annotated") and declarable:
            return _set(piece, "declared")
        if piece.state == "kept" and not piece.member:
            return self._if_unused(piece)
        return _set(piece, "gone")

    def _if_unused(self, piece: Piece) -> bool:
        if piece.what != "instantiation" and not piece.what.startswith("using"):
            names = set(re.findall(r"\w+", re.sub(r"<.*|\boperator\b", " ", piece.name)))
            if piece.name.startswith("{"):  # enumerators
                names = set(re.findall(r"(\w+)\s*(?:[,=}]|$)", piece.name))
            if names & self.remaining(piece):
                return False
        return _set(piece, "gone")


_CONSTANT = re.compile(r"\s*(?:(?:static|inline)\s+)*(?P<const>const)\s+(?:float|double)\s+\w+\s*=")
_FOR_HOSTS = re.compile(r"__host__|HOST_?DEVICE|DEVICE_?HOST", re.IGNORECASE)
"""In the qualifiers of a function for host and device, with the macros of libraries, which are not expanded."""


def _line_span(text: str, line: int) -> tuple[int, int]:
    """Where a line, from 1, begins and ends."""
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1 or len(text)
    end = text.find("\n", start)
    return start, len(text) if end < 0 else end


def _set(piece: Piece, state: str) -> bool:
    piece.state, piece.reason = state, piece.reason or NOT_COMPILED
    return True


def _within_gone(piece: Piece) -> bool:
    owner = piece.owner
    while owner is not None:
        if owner.state in ("gone", "declared"):
            return True
        owner = owner.owner
    return False


def _replacement(piece: Piece) -> str:
    """What stands in place of what is left out: a declaration that keeps the meaning of the rest, and permits no use."""
    if piece.state == "declared":
        plain = piece.kind in ("class", "data") or piece.special in ("virtual", "destructor")
        return ";" if plain else " = delete;"
    if piece.shadows:
        return f"__device__ void {piece.name}({HOST_TYPE}&) = delete;"
    if piece.special == "constructor":  # the class must not seem to have none; no expression has this type
        return f"{piece.name}({HOST_TYPE}&, char (*)[{piece.start + 1}]) = delete;"  # the place tells it from others
    if piece.special == "virtual" and not piece.overrides:  # the layout of the class has a place for it
        return f"__device__ virtual void of_the_host_{piece.start}({HOST_TYPE}&);"
    return ""


def _blank(out: list[str], start: int, end: int) -> None:
    out[start:end] = [one if one in "\r\n" else " " for one in out[start:end]]  # "" stays, too


def _put(out: list[str], at: int, text: str) -> None:
    """Write a text at an offset, over blanks as far as there are some."""
    if not text:
        return
    end = at
    while end < len(out) and end - at < len(text) and out[end] == " ":
        out[end] = ""
        end += 1
    if at < len(out):
        out[at] = text + out[at]
    else:
        out.append(text)


def _in_place(text: str, word: str, other: str) -> list[str]:
    """The characters of a text with another word in place of one; a list of the same length."""
    out = list(text)
    for match in re.finditer(rf"\b{word}\b", text):
        out[match.start() : match.end()] = [other, *[""] * (len(word) - 1)]
    return out


def _other_branches(inclusion: Inclusion, gone: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The inactive branches of conditions in which one branch holds a part of what is gone, such as the head of a function."""
    for group in inclusion.groups:
        for start, end in gone:
            cut = group.start < start < group.end < end or start < group.start < end < group.end
            if cut:
                yield from group.inactive


def device_part(
    text: str,
    path: str = "source.cu",
    find: Finder = lambda name, quoted, path: None,
    predefined: Mapping[str, str] | None = None,
    prelude: str = "",
) -> DevicePart:
    """Parse a source with its headers, and leave out its host functions and host variables.

    Args:
        path, find, predefined, prelude: as for :func:`ptxkit.compiler.host_code.preprocessor.preprocess`.

    Raises:
        UnavailableError: tree-sitter is not installed.
    """
    predefined = predefined or {"__CUDACC__": "1", "__CUDACC_RTC__": "1"}
    part, qualifiers = _pieces(preprocess(path, text, find, predefined, prelude))
    if mixed := _mixed_expansions(part):
        # once more with these macro calls expanded in the files, so that each piece of an expansion can be changed alone
        written = _expanded_in_place(part, mixed)

        def find_expanded(name: str, quoted: bool, includer: str) -> tuple[str, str] | str | None:
            found = find(name, quoted, includer)
            return (found[0], written.get(found[0], found[1])) if isinstance(found, tuple) else found

        part, qualifiers = _pieces(preprocess(path, written.get(path, text), find_expanded, predefined, prelude))
    unit = part.unit
    _fix_shared(part)
    _delete_what_is_named(part)
    for inclusion in unit.inclusions:
        _read_inactive(part, inclusion, qualifiers)
    return part


def _pieces(unit: Unit) -> tuple[DevicePart, frozenset[str]]:
    """The declarations of a translation unit, and the words that make one device code."""
    part = DevicePart(unit)
    qualifiers = frozenset((*DEVICE_WORDS, *DEVICE_MACROS, *unit.device_macros))
    _Reader(part, qualifiers).read(unit.text)
    return part, qualifiers


def _shared(part: DevicePart) -> list[tuple[Segment, list[Piece]]]:
    """The expansions of macros that hold several pieces, or pieces and other things, of which some are not left out."""
    holders: dict[int, tuple[Segment, list[Piece]]] = {}
    for piece in part.pieces:
        for segment in part.unit.between(piece.start, piece.end):
            if segment.exact or (piece.start <= segment.at and segment.at + segment.length <= piece.end):
                continue
            inside = part.unit.text[segment.at : segment.at + segment.length]
            before = inside[: max(0, piece.start - segment.at)].strip()
            after = inside[max(0, piece.end - segment.at) :].strip() if piece.end < segment.at + segment.length else ""
            if before or after.strip(";"):
                holders.setdefault(segment.at, (segment, []))[1].append(piece)
    return [held for held in holders.values() if any(p.owner is not None or p.state != "gone" for p in held[1])]


def _fix_shared(part: DevicePart) -> None:
    """Fix the pieces that begin or end within the expansion of a macro that holds other pieces, too."""
    for _, pieces in _shared(part):
        for piece in pieces:
            piece.fixed, piece.state = True, "kept"


def _mixed_expansions(part: DevicePart) -> list[Segment]:
    """The macro calls that expand to whole declarations, some of which are host code, in files that are entered once."""
    entered = [inclusion.path for inclusion in part.unit.inclusions]
    found = []
    for segment, pieces in _shared(part):
        outer = [p for p in pieces if p.owner is None]
        whole = all(segment.at <= p.start and p.end <= segment.at + segment.length for p in outer)
        is_mixed = whole and len(outer) > 1 and any(not p.device and p.kind == "function" for p in outer)
        name = re.match(r"\w+", segment.inclusion.text[segment.start :])
        again = name is None or re.search(rf"\b{name[0]}\b", part.unit.text[segment.at : segment.at + segment.length])
        if is_mixed and not again and entered.count(segment.inclusion.path) == 1:
            found.append(segment)
    return found


def _expanded_in_place(part: DevicePart, segments: list[Segment]) -> dict[str, str]:
    """Path -> text of each file that has the macro calls, with their expansions in place of them; lines keep their numbers."""
    texts: dict[str, str] = {}
    for one in sorted(segments, key=lambda s: s.start, reverse=True):
        text = texts.get(one.inclusion.path, one.inclusion.text)
        expansion = part.unit.text[one.at : one.at + one.length].replace("\n", " ")
        lines = "\n" * one.inclusion.text.count("\n", one.start, one.end)
        texts[one.inclusion.path] = f"{text[: one.start]}{expansion}{lines}{text[one.end :]}"
    return texts


def _delete_what_is_named(part: DevicePart) -> None:
    """Declare, as deleted, the host functions whose names are left in device code: a call of one must be an error.

    Without them overload resolution might take another function.
    """
    remaining = part.remaining()
    variables = {p.name for p in part.pieces if p.state == "kept" and p.what == "variable" and not p.member}
    for piece in part.pieces:
        if piece.state == "gone" and piece.what == "variable" and not piece.fixed:
            piece.shadows = re.fullmatch(r"\w+", piece.name) is not None and piece.name in variables
    defined = {p.name for p in part.pieces if p.state == "gone" and p.what == "function"}
    for piece in part.pieces:
        if piece.state != "gone" or piece.kind != "function" or piece.fixed or piece.member or piece.tail < 0:
            continue
        head = part.unit.text[piece.start : piece.tail]
        words = set(re.findall(r"\w+", head))
        if words & HOST_TYPES or "std" in words or "::" in piece.name or piece.name == "main":
            continue
        is_prototype = piece.tail == piece.end - 1
        operator_ = piece.name.startswith("operator")
        if not (operator_ or piece.name in remaining) or (is_prototype and piece.name in defined):
            continue
        if part._exact(piece.tail) is not None and part._exact(piece.insert) is not None:
            piece.state = "declared"


def _read_inactive(part: DevicePart, inclusion: Inclusion, qualifiers: frozenset[str]) -> None:
    """Leave out the host code of inactive branches, too, where they hold whole declarations."""
    outer = [
        (start, end)
        for piece in part.pieces
        if piece.owner is None
        for one, start, end in part.unit.places(piece.start, piece.end)
        if one is inclusion
    ]
    stretches = [stretch for group in inclusion.groups for stretch in group.inactive]
    for start, end in stretches:
        if any(a < end and start < b for a, b in outer) or any(
            a <= start and end <= b and (a, b) != (start, end) for a, b in stretches
        ):
            continue
        text = list(inclusion.text[start:end])
        for a, b, _ in inclusion.directives:
            _blank(text, max(0, a - start), min(b, end) - start) if a >= start else None
        bare = "".join(text)
        alone = DevicePart(Unit(bare, [Segment(0, len(bare), inclusion, start, end, exact=True)], [inclusion]))
        if bare.strip() and _Reader(alone, qualifiers).read(bare):
            for piece in alone.pieces:
                if piece.state == "gone":
                    line = inclusion.line(start + piece.start)
                    dropped = Dropped(piece.what, piece.name, line, piece.reason, part.file_of(inclusion))
                    part.inactive.append((inclusion, start + piece.start, start + piece.end, dropped))


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


_PARENTHESES = r"\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_ATTRIBUTES = re.compile(
    rf"\b(?:__align__|alignas|__launch_bounds__|__cluster_dims__|__maxnreg__|__attribute__|__declspec|__block_size__){_PARENTHESES}|"
    r"\b(?:__host__|__forceinline__|__noinline__|__inline__|__restrict__|__restrict|__extension__)\b"
)
_COMMENT = r"//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z)"
_STRING = r'"(?:\\.|[^"\\\n])*"'
_COMMENT_OR_STRING = re.compile(f"{_COMMENT}|{_STRING}", re.DOTALL)
_COMMENT_OR_LITERAL = re.compile(
    rf"(?P<comment>{_COMMENT})|"
    rf'R"(?P<end>[^()\\\s"]{{0,16}})\(.*?\)(?P=end)"|{_STRING}|\b\d(?:\'?\w)*|\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL,
)


class _Reader:
    """Reads the declarations of a text. Offsets of nodes are offsets of the text, since each character is one byte."""

    def __init__(self, part: DevicePart, qualifiers: frozenset[str]) -> None:
        self.part = part
        self.qualifiers = qualifiers
        self.text = ""
        words = "|".join(sorted(map(re.escape, qualifiers), key=len, reverse=True))
        self._words = re.compile(rf"\b(?:{words})\b")

    def read(self, text: str) -> bool:
        """Add the pieces and launches of a text. Returns whether the parser understood all of it."""
        self.text = text
        plain = re.sub(r"[^\x00-\x7f]", "_", text)
        # comments, qualifiers and attributes would confuse the parser where they stand; they are searched in the text
        plain = _COMMENT_OR_LITERAL.sub(lambda m: m[0] if m["comment"] is None else re.sub(r"[^\n]", " ", m[0]), plain)
        for pattern in (self._words, _ATTRIBUTES):
            plain = pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), plain)
        root = _parser().parse(plain.encode()).root_node
        for node in _walk(root):
            if node.type == "call_expression" and (launch := self._launch(node)) is not None:
                self.part.launches.append(launch)
        self._visit(root, 0)
        return not root.has_error

    def _of(self, start: int, end: int) -> str:
        return self.text[start:end]

    def _has_qualifier(self, text: str) -> bool:
        return bool(self._words.search(_COMMENT_OR_STRING.sub(" ", text)))

    def _visit(self, parent: Node, before: int) -> None:
        """Add the declarations below a node, which begins, with its qualifiers, after ``before``."""
        children = parent.children
        for i, node in enumerate(children):
            holds = any(c.type in ("function_definition", "template_declaration", "declaration") for c in node.children)
            if (node.type in CONTAINERS and _has_list(node)) or (node.type == "ERROR" and holds):
                self._visit(node, children[i - 1].end_byte if i else before)
                continue
            if not node.is_named or node.type in (
                "comment",
                "namespace_identifier",
                "string_literal",
                "identifier",
                "nested_namespace_specifier",
            ):
                continue
            end = node.end_byte
            if i + 1 < len(children) and children[i + 1].type == ";":
                end = children[i + 1].end_byte
            start = self._with_qualifiers(children[i - 1].end_byte if i else before, node.start_byte)
            self._add(node, start, end)

    def _with_qualifiers(self, before: int, start: int) -> int:
        """Where a declaration begins, with the qualifiers before it."""
        between = self._of(before, start)
        match = re.search(r"\S", _COMMENT_OR_STRING.sub(lambda m: " " * len(m[0]), between))
        return before + match.start() if match is not None else start

    def _add(self, node: Node, start: int, end: int) -> None:
        inner = _inner(node)
        head = self._head(node, start)
        device = self._has_qualifier(head)
        piece = Piece(start, end, self._what(node), self._name(node), "other", device)
        piece.both = device and _FOR_HOSTS.search(head) is not None
        self._classify(piece, node, inner)
        if not device:
            piece.reason = self._host_reason(inner, head)
            if piece.reason:
                piece.state = "gone"
            elif piece.kind == "function" and set(re.findall(r"\w+", head)) & set(COMPILE_TIME_WORDS):
                piece.state = "annotated"
        self.part.pieces.append(piece)
        if piece.state != "gone":
            self._classes(node, piece)

    def _classify(self, piece: Piece, node: Node, inner: Node) -> None:
        """Find out what can become of a piece."""
        if inner.type == "friend_declaration":
            inner = next((c for c in inner.children if c.type in ("function_definition", "declaration")), inner)
        if inner.type == "function_definition" and not _is_class(self._of(inner.start_byte, self._head_end(inner))):
            piece.kind, piece.tail = "function", self._body(inner)
            piece.insert = piece.start if inner is node else inner.start_byte
        elif inner.type in ("declaration", "field_declaration") and _declares_function(inner):
            piece.kind = "function"
            piece.tail = piece.end - 1 if self._of(piece.end - 1, piece.end) == ";" else -1
            piece.insert = piece.start if inner is node else inner.start_byte
        elif inner.type in CLASSES and (body := inner.child_by_field_name("body")) is not None:
            bases = next((c for c in inner.children if c.type == "base_class_clause"), body)
            piece.kind, piece.tail = "class", bases.start_byte

    @staticmethod
    def _body(inner: Node) -> int:
        for child in inner.children:
            if child.type in ("field_initializer_list", "compound_statement"):
                return child.start_byte
        return -1

    def _classes(self, node: Node, piece: Piece) -> None:
        """Add the members of the classes that a declaration defines."""
        inner = _inner(node)
        waiting = [inner] if inner.type in CLASSES else [c for c in inner.children if c.type in CLASSES]
        for one in waiting:
            body = one.child_by_field_name("body")
            if body is not None:
                self._members(body, piece, self._name(one))

    def _members(self, body: Node, owner: Piece, class_name: str) -> None:
        children = body.children
        for i, node in enumerate(children):
            if not node.is_named or node.type in ("comment", "access_specifier"):
                continue
            end = node.end_byte
            if i + 1 < len(children) and children[i + 1].type == ";":
                end = children[i + 1].end_byte
            start = self._with_qualifiers(children[i - 1].end_byte, node.start_byte)
            inner = _inner(node)
            head = self._head(node, start)
            words = set(re.findall(r"\w+", _COMMENT_OR_STRING.sub(" ", head)))
            piece = Piece(start, end, self._what(node), self._name(node), "other", self._has_qualifier(head))
            piece.member, piece.owner = True, owner
            piece.both = piece.device and _FOR_HOSTS.search(head) is not None
            self._classify(piece, node, inner)
            plain = re.sub(r"<.*", "", class_name)
            if piece.kind == "function":
                piece.what = "friend" if inner.type == "friend_declaration" else "member function"
                text = self._of(piece.start, piece.end)
                if piece.name == plain:
                    piece.special = "constructor"
                elif piece.name.startswith("~"):
                    piece.special = "destructor"
                if words & {"virtual", "override", "final"} or re.search(
                    r"\b(override|final)\b", text[len(head) :][:40]
                ):
                    piece.special = "virtual"
                    piece.overrides = re.search(r"\boverride\b", text) is not None
                settled = re.search(r"=\s*(default|delete)\s*;?\s*$", text) is not None
                pure = re.search(r"=\s*0\s*;?\s*$", text) is not None
                if not piece.device and not settled:
                    if words & set(COMPILE_TIME_WORDS) or pure:
                        piece.state = "annotated"
                    elif piece.tail >= 0:
                        piece.state, piece.reason = "declared", "a host function"
                        if words & HOST_TYPES and piece.special != "virtual":
                            piece.state = "gone"
            elif inner.type == "field_declaration" and "static" not in words:
                piece.kind, piece.tail = "data", self._default(inner)
            self.part.pieces.append(piece)
            self._classes(node, piece)

    def _default(self, inner: Node) -> int:
        """Where the initialiser of a data member begins, with its ``=``; -1 without one."""
        value = inner.child_by_field_name("default_value")
        if value is None:
            return -1
        before = self.text.rfind("=", inner.start_byte, value.start_byte)
        return value.start_byte if value.type == "initializer_list" and before < 0 else before

    def _what(self, node: Node) -> str:
        inner = _inner(node)
        if inner.type in CLASSES:
            return inner.type.partition("_")[0]
        if inner.type == "declaration" and not _declares_function(inner):
            return "variable"
        kind = PARTS.get(inner.type if node.type == "linkage_specification" else node.type, node.type)
        return kind.replace("_specifier", "").replace("_", " ")

    def _name(self, node: Node) -> str:
        inner = _inner(node)
        if inner.type == "enum_specifier" and (body := inner.child_by_field_name("body")) is not None:
            named = inner.child_by_field_name("name")
            if named is None:
                return self._of(body.start_byte, body.end_byte)
        for field_name in ("declarator", "name"):
            found = inner.child_by_field_name(field_name)
            while found is not None and (further := _further(found)) is not None:
                found = further
            if found is not None:
                return self._of(found.start_byte, found.end_byte).partition("(")[0].strip()[:60]
        if inner.type in ("friend_declaration", "using_declaration"):
            deeper = next((c for c in inner.children if c.type in ("function_definition", "declaration")), None)
            if deeper is not None:
                return self._name(deeper)
            words = re.findall(r"\w+", self._of(inner.start_byte, inner.end_byte))
            return words[-1] if words else ""
        return ""

    def _head_end(self, inner: Node) -> int:
        body = inner.child_by_field_name("body")
        end = body.start_byte if body is not None else inner.end_byte
        if inner.type in ("declaration", "field_declaration"):
            values = (child.child_by_field_name("value") for child in inner.children if child.type == "init_declarator")
            end = min((value.start_byte for value in values if value is not None), default=end)
            for child in inner.children:
                if child.type in CLASSES and child.child_by_field_name("body") is not None:
                    end = min(end, child.start_byte)
        if inner.type in CLASSES:
            end = inner.start_byte  # a class is no device code itself
        if inner.type == "friend_declaration":
            deeper = next((c for c in inner.children if c.type == "function_definition"), None)
            if deeper is not None:
                return self._head_end(deeper)
        return end

    def _head(self, node: Node, start: int) -> str:
        return self._of(start, max(start, self._head_end(_inner(node))))

    def _host_reason(self, inner: Node, head: str) -> str:
        """Why a piece at namespace scope is host code; "" for what stays."""
        if inner.type in KEPT or inner.text == b";":
            return ""
        words = set(re.findall(r"\w+", head))
        if inner.type == "function_definition" and _is_class(self._of(inner.start_byte, self._head_end(inner))):
            return ""  # the parser takes a class with unknown attributes for a function
        if inner.type == "function_definition":
            return "" if words & set(COMPILE_TIME_WORDS) else "a host function"
        if inner.type == "template_instantiation":
            return "an instantiation of a host function" if "class" not in words and "struct" not in words else ""
        if inner.type == "declaration":
            if _declares_function(inner):
                return "" if words & set(COMPILE_TIME_WORDS) else "a declaration of a host function"
            constant = words & {"const", *COMPILE_TIME_WORDS} and not words & HOST_TYPES
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

    def _launch(self, node: Node) -> HostLaunch | None:
        function = node.child_by_field_name("function")
        chevrons = next((child for child in node.children if child.type == "kernel_call_syntax"), None)
        if function is None or chevrons is None:
            return None
        words = [self._of(c.start_byte, c.end_byte).strip() for c in chevrons.named_children if c.type != "comment"]
        grid, block, shared = [*words, "", "", ""][:3]
        inclusion, start, _ = self.part.unit.places(node.start_byte, node.end_byte)[0]
        kernel = " ".join(self._of(function.start_byte, function.end_byte).split())
        kernel = re.sub(r"\s*(<|>|::)\s*", r"\1", kernel).removeprefix("(")
        kernel = kernel.removesuffix(")") if kernel.count(")") > kernel.count("(") else kernel  # (k<float>)<<<1, 32>>>
        given = node.child_by_field_name("arguments")
        passed = [c for c in given.named_children if c.type != "comment"] if given is not None else []
        arguments = tuple(" ".join(self._of(c.start_byte, c.end_byte).split()) for c in passed)
        return HostLaunch(kernel, grid, block, shared, inclusion.line(start), arguments, self._scope(node))

    def _scope(self, node: Node) -> str:
        """The namespaces around a node: ``"a::b"``."""
        names: list[str] = []
        around = node.parent
        while around is not None:
            named = around.child_by_field_name("name") if around.type == "namespace_definition" else None
            if named is not None:
                names.append(self._of(named.start_byte, named.end_byte).strip())
            around = around.parent
        return "::".join(reversed(names))


def _further(node: Node) -> Node | None:
    further = node.child_by_field_name("declarator")
    if further is None and node.type in ("reference_declarator", "parenthesized_declarator"):
        further = next(iter(node.named_children), None)
    return further


def _walk(node: Node) -> Iterator[Node]:
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children))


def _has_list(node: Node) -> bool:
    """Whether a namespace or a linkage specification holds several declarations, in braces."""
    return node.type == "declaration_list" or any(child.type == "declaration_list" for child in node.children)


def _inner(node: Node) -> Node:
    """What a template declares, or a linkage specification specifies."""
    while node.type in ("template_declaration", "linkage_specification"):
        named = [
            child
            for child in node.children
            if child.is_named
            and child.type not in ("template_parameter_list", "string_literal", "requires_clause", "comment")
        ]
        if not named:
            return node
        node = named[-1]
    return node


def _is_class(head: str) -> bool:
    """Whether the head of a "function" begins with struct, class or union, and has no parameters before its body."""
    return bool(re.match(r"\s*(struct|class|union)\b(\s*\w+\s*\([^;{]*\))*\s*\w*\s*(:[^{]*)?$", head))


def _declares_function(node: Node) -> bool:
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type in ("pointer_declarator", "reference_declarator"):
        declarator = declarator.child_by_field_name("declarator") or next(iter(declarator.named_children), None)
    if declarator is None or declarator.type != "function_declarator":
        return False
    named = declarator.child_by_field_name("declarator")
    return named is not None and named.type != "parenthesized_declarator"


def summary(dropped: Iterable[Dropped]) -> str:
    """``"3 functions, 2 includes"``."""
    counts: dict[str, int] = {}
    for one in dropped:
        counts[one.what] = counts.get(one.what, 0) + 1
    return ", ".join(f"{n} {_plural(what) if n > 1 else what}" for what, n in counts.items())


def _plural(what: str) -> str:
    return f"{what}es" if what.endswith("s") else f"{what}s"
