"""A preprocessor for sources with host code: which lines are active under NVRTC, what macros stand for, and the place of
each included file.

The result is one text, the translation unit, in which conditions are decided, macros expanded and the user's headers
included, together with the place in the files that each part of it comes from. CUDA's and ptxkit's own headers are not
entered: they have no host code. Conditions on macros that such headers may define are undecided; of these, all branches
with balanced braces count as active.

Rules: C++ standard [cpp]; the predefined macros are those of NVRTC (CUDA documentation, NVRTC, "Predefined Macros").
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ptxkit.compiler.host_code.conditions import Undecided, truth

MAX_TEXT = 1 << 22  # characters of a translation unit, against macros and includes that grow without end
MAX_DEPTH = 100  # nested includes
DEVICE_WORDS = ("__global__", "__device__", "__constant__", "__shared__", "__managed__", "__grid_constant__")

_LEX = re.compile(
    r"(?P<space>(?:[ \t\f\v\r]|\\\r?\n)+)|(?P<newline>\n)|"
    r"(?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z))|"
    r'(?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s"]{0,16})\(.*?\)(?P=delimiter)")|'
    r'(?P<string>(?:u8|[uUL])?"(?:\\\r?\n|\\.|[^"\\\n])*"|(?:u8|[uUL])?\'(?:\\.|[^\'\\\n])+\')|'
    r"(?P<number>\.?\d(?:[eEpP][+-]|'?\w|\.)*)|(?P<word>[^\W\d]\w*)|(?P<mark>\#\#|::|->|.)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Token:
    """A token of a file: its kind (a group of the lexer), text and offset."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.start + len(self.text)


def tokens(text: str) -> list[Token]:
    """The tokens of a text, blanks and comments included."""
    return [Token(_kind(m), m[0], m.start()) for m in _LEX.finditer(text)]


def _kind(match: re.Match[str]) -> str:
    return "raw" if match.lastgroup in (None, "delimiter") else str(match.lastgroup)


@dataclass(frozen=True)
class Macro:
    """A macro: the tokens of its value, its parameters (None: without parentheses), whether the last takes the rest."""

    value: tuple[Token, ...]
    parameters: tuple[str, ...] | None = None
    variadic: bool = False

    @property
    def text(self) -> str:
        """The value as text."""
        return "".join(token.text for token in self.value)


@dataclass(frozen=True)
class Include:
    """An active ``#include`` line.

    Attributes:
        name: of the header, with macros expanded. quoted: whether in quotes.
        line: from 1. start, end: of the directive. name_start, name_end: of the name with its quotes, or of the macro.
        inclusion: the header's inclusion, if it was entered.
    """

    name: str
    quoted: bool
    line: int
    start: int
    end: int
    name_start: int
    name_end: int
    inclusion: Inclusion | None


@dataclass
class Group:
    """``#if`` to ``#endif``: offsets, and the inactive stretches of text within."""

    start: int
    end: int = 0
    inactive: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Inclusion:
    """One inclusion of a file: the file's path, text, directives, groups and includes."""

    path: str
    text: str
    directives: list[tuple[int, int, str]] = field(default_factory=list)  # start, end, keyword
    groups: list[Group] = field(default_factory=list)
    includes: list[Include] = field(default_factory=list)
    is_once: bool = False

    def line(self, at: int) -> int:
        """The line of an offset, from 1."""
        return self.text.count("\n", 0, at) + 1


@dataclass(frozen=True)
class Segment:
    """A part of the translation unit, from offset ``at``, and where it comes from.

    ``exact``: character by character; otherwise the whole part is the expansion of the macro call there.
    """

    at: int
    length: int
    inclusion: Inclusion
    start: int
    end: int
    exact: bool


@dataclass
class Unit:
    """A translation unit.

    Attributes:
        text: the active text, expanded. segments: where it comes from, in order.
        inclusions: the source, and each inclusion of a header.
        device_macros: macros that are device qualifiers, or contain some, in any definition.
        open_braces, extra_brace: the braces that are not closed, and the first that closes none: (inclusion, offset).
        is_certain: whether every condition that changes the balance of braces was decided.
    """

    text: str = ""
    segments: list[Segment] = field(default_factory=list)
    inclusions: list[Inclusion] = field(default_factory=list)
    device_macros: set[str] = field(default_factory=set)
    open_braces: list[tuple[Inclusion, int]] = field(default_factory=list)
    extra_brace: tuple[Inclusion, int] | None = None
    is_certain: bool = True
    _starts: list[int] = field(default_factory=list)
    _known: dict[tuple[int, int], list[tuple[Inclusion, int, int]]] = field(default_factory=dict)

    def between(self, start: int, end: int) -> list[Segment]:
        """The segments that overlap a range of the text."""
        if len(self._starts) != len(self.segments):
            self._starts = [segment.at for segment in self.segments]
        first = max(0, bisect.bisect_right(self._starts, start) - 1)
        last = bisect.bisect_left(self._starts, end)
        return [s for s in self.segments[first:last] if s.at < end and s.at + s.length > start]

    def places(self, start: int, end: int) -> list[tuple[Inclusion, int, int]]:
        """The range of each inclusion that a range of the text comes from; kept, because every compilation asks again."""
        known_places = self._known.get((start, end))
        if known_places is not None:
            return known_places
        out: dict[int, tuple[Inclusion, int, int]] = {}
        for s in self.between(start, end):
            a = s.start + max(0, start - s.at) if s.exact else s.start
            b = s.start + min(s.length, end - s.at) if s.exact else s.end
            known = out.get(id(s.inclusion))
            out[id(s.inclusion)] = (s.inclusion, min(a, known[1]), max(b, known[2])) if known else (s.inclusion, a, b)
        return self._known.setdefault((start, end), list(out.values()))


Finder = Callable[[str, bool, str], "tuple[str, str] | str | None"]
"""(name, quoted, path of the including file) -> (path, text) of a header to enter; the text of one that is only read for its
macros; None for no file."""


def preprocess(path: str, text: str, find: Finder, predefined: Mapping[str, str], prelude: str = "") -> Unit:
    """The translation unit of a source.

    Args:
        path: of the source. find: the text of a header. predefined: macro -> value. prelude: definitions before the source.
    """
    work = _Preprocessor(find)
    for name, value in predefined.items():
        work.macros[name] = Macro(tuple(tokens(value)))
    work.read_definitions(prelude)
    work.run(Inclusion(path, text), 0)
    work.unit.text = "".join(work.out)
    return work.unit


@dataclass
class _Condition:
    group: Group
    active: bool  # whether the current branch is
    taken: bool  # whether a branch was, for certain
    outer: bool  # whether the text around is active
    undecided: bool = False
    since: int = 0  # where the current inactive stretch began


OPAQUE = re.compile(r"_*(?:CUDA|CUDART|CU_|NV|CCCL|LIBCUDACXX|CUB|THRUST|CUTLASS|CUTE|CURAND|CG_|COOPERATIVE)\w*")
"""Macros that the CUDA headers may define. They are not read, so that conditions on these are undecided."""


class _Preprocessor:
    def __init__(self, find: Finder) -> None:
        self.find = find
        self.macros: dict[str, Macro] = {}
        self.quiet: dict[str, Macro] = {}  # of headers that are not entered
        self.unit = Unit()
        self.out: list[str] = []
        self.size = 0
        self.once: dict[str, Inclusion] = {}
        self.undecided = 0

    # -- macros

    def read_definitions(self, text: str) -> None:
        """Take over the macros of a text whose code is not wanted: they count in conditions, and are not expanded."""
        kept, self.macros = self.macros, self.quiet
        for line in re.findall(r"^[ \t]*#[ \t]*define[ \t]+(.*)", re.sub(r"\\\r?\n", " ", text), re.MULTILINE):
            self.define(line)
        self.macros = kept

    def define(self, text: str) -> None:
        """Carry out a ``#define``, given as the text after that word."""
        match = re.match(r"(\w+)(?:\(([^)]*)\))?[ \t]*(.*)", text, re.DOTALL)
        if match is None:
            return
        value = _on_one_line(tokens(match[3].strip()))
        while value and value[-1].kind == "space":
            value.pop()
        parameters: tuple[str, ...] | None = None
        variadic = False
        if match[2] is not None:
            words = [word.strip() for word in match[2].split(",") if word.strip()]
            variadic = bool(words) and words[-1].endswith("...")
            if variadic:
                words[-1] = words[-1][:-3].strip() or "__VA_ARGS__"
            parameters = tuple(words)
        name, macro = match[1], Macro(tuple(value), parameters, variadic)
        words_of_value = {t.text for t in value if t.kind == "word"}
        device = bool(words_of_value & {*DEVICE_WORDS, *self.unit.device_macros})
        if device:
            self.unit.device_macros.add(name)
        known = self.macros.get(name)
        if self.undecided and known is not None and self._is_device(known) and not device:
            return  # any definition that makes it device code counts
        self.macros[name] = macro

    def _is_device(self, macro: Macro) -> bool:
        return bool({t.text for t in macro.value} & {*DEVICE_WORDS, *self.unit.device_macros})

    def expand(self, given: Sequence[Token], hidden: frozenset[str]) -> list[Token]:
        """Tokens with their macros expanded."""
        out: list[Token] = []
        waiting: list[tuple[Token, frozenset[str]]] = [(token, hidden) for token in reversed(given)]
        budget = 200_000
        while waiting and budget:
            budget -= 1
            token, hide = waiting.pop()
            macro = self.macros.get(token.text) if token.kind == "word" and token.text not in hide else None
            if macro is None or token.text in DEVICE_WORDS:
                out.append(token)
                continue
            if macro.parameters is None:
                value = self._paste(macro.value)
            else:
                arguments = _arguments(waiting)
                if arguments is None:
                    out.append(token)
                    continue
                value = self._substituted(macro, arguments, hide)
            inner = hide | {token.text}
            waiting.extend((t, inner) for t in reversed(value))
        out.extend(token for token, _ in reversed(waiting))
        return out

    def _substituted(self, macro: Macro, arguments: list[list[Token]], hide: frozenset[str]) -> list[Token]:
        parameters = macro.parameters or ()
        if macro.variadic and len(arguments) >= len(parameters):
            rest: list[Token] = []
            for i, argument in enumerate(arguments[len(parameters) - 1 :]):
                rest += [Token("mark", ",", 0), *argument] if i else argument
            arguments = [*arguments[: len(parameters) - 1], rest]
        given = dict(zip(parameters, [*arguments, *([[]] * len(parameters))], strict=False))
        value = list(macro.value)
        out: list[Token] = []
        i = 0
        while i < len(value):
            token = value[i]
            after = next((t for t in value[i + 1 :] if t.kind != "space"), None)
            before = next((t for t in reversed(value[:i]) if t.kind != "space"), None)
            if token.text == "#" and after is not None and after.text in given:
                text = "".join(t.text for t in given[after.text]).strip()
                out.append(Token("string", '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"', 0))
                i = value.index(after, i + 1) + 1
                continue
            if token.text == "__VA_OPT__" and macro.variadic:
                depth, j = 0, i + 1
                while j < len(value):
                    depth += {"(": 1, ")": -1}.get(value[j].text, 0)
                    if value[j].text == ")" and not depth:
                        break
                    j += 1
                inside = value[i + 2 : j]
                if any(t.kind != "space" for t in given[parameters[-1]]):
                    value[i : j + 1] = inside
                else:
                    value[i : j + 1] = []
                continue
            if token.kind == "word" and token.text in given:
                raw = (after is not None and after.text == "##") or (before is not None and before.text == "##")
                out += given[token.text] if raw else self.expand(given[token.text], hide)
            else:
                out.append(token)
            i += 1
        return self._paste(out)

    @staticmethod
    def _paste(value: Sequence[Token]) -> list[Token]:
        """The tokens with ``##`` carried out."""
        if not any(t.text == "##" for t in value):
            return list(value)
        out: list[Token] = []
        joins = False
        for token in value:
            if token.text == "##":
                while out and out[-1].kind == "space":
                    out.pop()
                joins = True
            elif joins and token.kind == "space":
                continue
            elif joins and out:
                out[-1:] = tokens(out[-1].text + token.text)
                joins = False
            else:
                out.append(token)
                joins = False
        return out

    # -- conditions

    def decide(self, keyword: str, rest: list[Token]) -> bool | None:
        """Whether a condition holds; None if it is undecided."""
        words = [t for t in rest if t.kind not in ("space", "comment", "newline")]
        if keyword in ("ifdef", "ifndef", "elifdef", "elifndef"):
            name = words[0].text if words else ""
            is_known = self.defined(name)
            return is_known if is_known is None or keyword in ("ifdef", "elifdef") else not is_known
        prepared: list[Token] = []
        i = 0
        while i < len(words):
            if words[i].text == "defined":
                at = i + 2 if i + 2 < len(words) and words[i + 1].text == "(" else i + 1
                state = self.defined(words[at].text) if at < len(words) else False
                prepared.append(Token("known", {True: "1", False: "0", None: "?"}[state], 0))
                i = at + (2 if at == i + 2 else 1)
            elif words[i].text.startswith("__has_"):
                while i < len(words) and words[i].text != ")":
                    i += 1
                prepared.append(Token("known", "?", 0))
                i += 1
            else:
                prepared.append(words[i])
                i += 1
        kept, self.macros = self.macros, {**self.quiet, **self.macros}
        final = [t for t in self.expand(prepared, frozenset()) if t.kind != "space"]
        self.macros = kept
        text = [("?" if t.kind == "word" and OPAQUE.fullmatch(t.text) else t.text, t.kind) for t in final]
        try:
            return truth(text)
        except Undecided:
            return None

    def defined(self, name: str) -> bool | None:
        if name in self.macros or name in self.quiet or name in DEVICE_WORDS:
            return True
        return None if OPAQUE.fullmatch(name) else False

    # -- files

    def run(self, inclusion: Inclusion, depth: int) -> None:
        """Enter a file."""
        self.unit.inclusions.append(inclusion)
        found = tokens(inclusion.text)
        conditions: list[_Condition] = []
        i, at_start, active = 0, True, True
        run_start: int | None = None

        def flush(end: int) -> None:
            nonlocal run_start
            if run_start is not None and end > run_start:
                self.emit(inclusion, run_start, end, inclusion.text[run_start:end], exact=True)
            run_start = None

        while i < len(found):
            token = found[i]
            if token.kind in ("space", "newline", "comment"):
                if token.kind == "newline":
                    at_start = True
                if active and run_start is None:
                    run_start = token.start
                i += 1
                continue
            if token.text == "#" and at_start:
                j = i
                while j < len(found) and found[j].kind != "newline":
                    j += 1
                if active:
                    flush(token.start)
                self._directive(inclusion, found, i, j, conditions, depth)
                active = all(condition.active for condition in conditions)
                i = j
                continue
            at_start = False
            if not active or self.size > MAX_TEXT:
                i += 1
                continue
            if run_start is None:
                run_start = token.start
            if token.kind == "word" and token.text in self.macros and token.text not in DEVICE_WORDS:
                expanded, j = self._call(found, i)
                if expanded is not None:
                    flush(token.start)
                    end = found[j - 1].end
                    for t in expanded:
                        self._count(t, inclusion, token.start)
                    text = "".join(t.text for t in expanded)
                    self.emit(inclusion, token.start, end, f" {text} ", exact=False)
                    i = j
                    continue
            self._count(token, inclusion, token.start)
            i += 1
        flush(len(inclusion.text))
        for condition in conditions:  # not closed
            self._close_stretch(condition, len(inclusion.text))
            condition.group.end = len(inclusion.text)
            self.undecided -= condition.undecided
        self.emit(inclusion, len(inclusion.text), len(inclusion.text), "\n", exact=False)

    def emit(self, inclusion: Inclusion, start: int, end: int, text: str, exact: bool) -> None:
        self.unit.segments.append(Segment(self.size, len(text), inclusion, start, end, exact))
        self.out.append(text)
        self.size += len(text)

    def _call(self, found: list[Token], i: int) -> tuple[list[Token] | None, int]:
        """The expansion of the macro at token i, and the index after its call; None if it is no call."""
        end = i + 1
        macro = self.macros[found[i].text]
        if macro.parameters is not None:
            closing = _call_end(found, end)
            if closing is None:
                return None, i
            end = closing
        given = _on_one_line(found[i:end])
        expanded = self.expand(given, frozenset())
        # a macro whose value ends with the name of another one with parameters, which follow in the source
        tail = next((t for t in reversed(expanded) if t.kind != "space"), None)
        inner = self.macros.get(tail.text) if tail is not None and tail.kind == "word" else None
        if tail is None or inner is None or inner.parameters is None or tail.text in (t.text for t in given):
            return expanded, end
        closing = _call_end(found, end)
        if closing is None:
            return expanded, end
        return self.expand([*expanded, *_on_one_line(found[end:closing])], frozenset()), closing

    def _count(self, token: Token, inclusion: Inclusion, at: int) -> None:
        """Follow the braces."""
        if token.kind != "mark":
            return
        if token.text == "{":
            self.unit.open_braces.append((inclusion, at))
        elif token.text == "}":
            if self.unit.open_braces:
                self.unit.open_braces.pop()
            elif self.unit.extra_brace is None:
                self.unit.extra_brace = (inclusion, at)

    def _directive(
        self, inclusion: Inclusion, found: list[Token], i: int, j: int, conditions: list[_Condition], depth: int
    ) -> None:
        """Carry out the directive of tokens i to j."""
        start = found[i].start
        end = found[j - 1].end
        line = [t for t in found[i + 1 : j] if t.kind != "comment"]
        while line and line[0].kind == "space":
            line.pop(0)
        keyword = line[0].text if line else ""
        rest = line[1:]
        inclusion.directives.append((start, end, keyword))
        active = all(c.active for c in conditions)
        if keyword in ("if", "ifdef", "ifndef"):
            group = Group(start)
            inclusion.groups.append(group)
            holds = self.decide(keyword, rest) if active else False
            condition = _Condition(group, bool(active and holds is not False), holds is True, active, since=end)
            if active and holds is None:
                condition.undecided = self._all_balanced(found, j)
                self.unit.is_certain &= condition.undecided
                condition.taken = not condition.undecided  # of branches with open braces, the first one counts
                self.undecided += condition.undecided
            conditions.append(condition)
        elif keyword in ("elif", "else", "elifdef", "elifndef") and conditions:
            condition = conditions[-1]
            self._close_stretch(condition, start)
            around = condition.outer
            holds = (
                True if keyword == "else" else (self.decide(keyword, rest) if around and not condition.taken else False)
            )
            condition.active = around and not condition.taken and holds is not False
            if holds is None and not condition.undecided:
                condition.undecided = self._all_balanced(found, j)
                self.unit.is_certain &= condition.undecided
                condition.taken |= not condition.undecided
                self.undecided += condition.undecided
            condition.taken |= holds is True
            condition.since = end
        elif keyword == "endif" and conditions:
            condition = conditions.pop()
            self._close_stretch(condition, start)
            condition.group.end = end
            self.undecided -= condition.undecided
        elif not active:
            return
        elif keyword == "define":
            self.define(re.sub(r"\\\r?\n", " ", "".join(t.text for t in rest)).strip())
        elif keyword == "undef":
            name = "".join(t.text for t in rest if t.kind == "word")
            if not (self.undecided and name in self.unit.device_macros):
                self.macros.pop(name, None)
        elif keyword == "pragma" and "once" in (t.text for t in rest):
            inclusion.is_once = True
            self.once[inclusion.path] = inclusion
        elif keyword in ("include", "include_next", "import"):
            self._include(inclusion, [t for t in rest if t.kind != "newline"], start, end, depth)

    def _close_stretch(self, condition: _Condition, end: int) -> None:
        if not condition.active:
            condition.group.inactive.append((condition.since, end))

    def _all_balanced(self, found: list[Token], j: int) -> bool:
        """Whether each branch of the group that begins before token j has balanced braces."""
        depth, nested, at_start = 0, 0, False
        while j < len(found):
            token = found[j]
            if token.kind == "newline":
                at_start = True
            elif token.text == "#" and at_start:
                k = j + 1
                while k < len(found) and found[k].kind == "space":
                    k += 1
                word = found[k].text if k < len(found) else ""
                nested += word in ("if", "ifdef", "ifndef")
                if not nested and word in ("else", "elif", "elifdef", "elifndef", "endif"):
                    if depth:
                        return False
                    if word == "endif":
                        return True
                nested -= word == "endif" and nested > 0
                while k < len(found) and found[k].kind != "newline":
                    k += 1
                j = k
                continue
            elif token.kind not in ("space", "comment"):
                at_start = False
                depth += {"{": 1, "}": -1, "(": 1, ")": -1}.get(token.text, 0)
            j += 1
        return depth == 0

    def _include(self, inclusion: Inclusion, rest: list[Token], start: int, end: int, depth: int) -> None:
        written = "".join(t.text for t in rest).strip()
        words = [t for t in rest if t.kind != "space"]
        if not words:
            return
        name_start, name_end = words[0].start, words[-1].end
        if written[0] not in '"<':
            written = "".join(t.text for t in self.expand(words, frozenset())).strip()
        match = re.match(r'"([^"\n]+)"|<([^>\n]+)>', written)
        if match is None:
            return
        if words[0].text == "<":
            closing = next((t for t in words if t.text == ">"), words[-1])
            name_end = closing.end
        name, quoted = match[1] or match[2], match[1] is not None
        entered: Inclusion | None = None
        header = self.find(name, quoted, inclusion.path)
        if isinstance(header, str):
            self.read_definitions(header)
        elif header is not None and depth < MAX_DEPTH and self.size <= MAX_TEXT:
            entered = self.once.get(header[0])
            if entered is None:
                entered = Inclusion(*header)
                self.run(entered, depth + 1)
        inclusion.includes.append(
            Include(name, quoted, inclusion.line(start), start, end, name_start, name_end, entered)
        )


def _on_one_line(given: Sequence[Token]) -> list[Token]:
    """Tokens with blanks in place of comments and ends of lines."""
    return [Token("space", " ", 0) if t.kind in ("newline", "comment") else t for t in given]


def _call_end(found: list[Token], at: int) -> int | None:
    """The index after the parentheses that begin at token ``at``, after blanks; None if there are none."""
    while at < len(found) and found[at].kind in ("space", "newline", "comment"):
        at += 1
    if at >= len(found) or found[at].text != "(":
        return None
    depth, at_start = 0, False
    for k in range(at, len(found)):
        token = found[k]
        if token.text == "#" and at_start:
            return None  # a directive between the arguments
        if token.kind == "newline":
            at_start = True
        elif token.kind not in ("space", "comment"):
            at_start = False
        if token.kind == "mark":
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if token.text == ")" and not depth:
                return k + 1
    return None


def _arguments(waiting: list[tuple[Token, frozenset[str]]]) -> list[list[Token]] | None:
    """Take the arguments of a macro call from the end of a stack of tokens; None, and nothing taken, if it is no call."""
    at = len(waiting) - 1
    while at >= 0 and waiting[at][0].kind == "space":
        at -= 1
    if at < 0 or waiting[at][0].text != "(":
        return None
    depth, arguments = 0, [[]]  # type: ignore[var-annotated]
    for k in range(at, -1, -1):
        token = waiting[k][0]
        if token.kind == "mark" and token.text in "()":
            depth += 1 if token.text == "(" else -1
            if not depth:
                del waiting[k:]
                return [_stripped(argument) for argument in arguments]
            if depth == 1 and token.text == "(":
                continue
        if token.text == "," and depth == 1 and token.kind == "mark":
            arguments.append([])
        else:
            arguments[-1].append(token)
    return None


def _stripped(given: list[Token]) -> list[Token]:
    first = next((i for i, t in enumerate(given) if t.kind != "space"), len(given))
    last = next((i for i in range(len(given), first, -1) if given[i - 1].kind != "space"), first)
    return given[first:last]
