"""PTX text to a :class:`~ptxkit.isa.model.Module`: directives of module scope, function headers, and the entry point.

The parts: :mod:`~ptxkit.isa.lexer` (tokens), :mod:`~ptxkit.isa.constants`, :mod:`~ptxkit.isa.declarations` (variables),
:mod:`~ptxkit.isa.scopes` (names in a body), :mod:`~ptxkit.isa.operands`, :mod:`~ptxkit.isa.body` (statements).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ptxkit.isa.body import BodyParser
from ptxkit.isa.collection import without_collection
from ptxkit.isa.constants import parse_integer
from ptxkit.isa.declarations import (
    LINKAGES,
    SPACES,
    parse_attributes,
    parse_declaration,
    parse_linkage,
    parse_parameters,
    parse_range,
    parse_type,
)
from ptxkit.isa.lexer import Tokens, is_identifier, unescape
from ptxkit.isa.model import Function, Module, Variable
from ptxkit.isa.types import TYPES

_DEFINITIONS = LINKAGES | SPACES | {".entry", ".func", ".file", ".section", ".alias", ".tex"}
"""What follows a prototype of an older compiler, which has no semicolon."""
_EXTENTS = ("maxntid", "reqntid", "reqnctapercluster")  # one to three numbers; omitted ones are 1


def parse(text: str, path: str = "<ptx>") -> Module:
    """Parses one PTX translation unit.

    Args:
        text: the PTX.
        path: where it came from, for messages.

    Raises:
        PtxSyntaxError: with ``path:line:column``, what was found and what was expected; its log shows the line.
    """
    with without_collection():
        return ModuleParser(text, path).parse()


class ModuleParser:
    """Parses one text; :func:`parse` is the entry point."""

    def __init__(self, text: str, path: str) -> None:
        self.tokens = Tokens(text, path)
        self.blocks, self.labels = _blocks(self.tokens)
        self.files = _files(self.tokens)
        self.version: tuple[int, int] | None = None
        self.targets: tuple[str, ...] = ()
        self.address_size = 64  # the manual's default is 32, which no supported target has
        self.variables: dict[str, Variable] = {}
        self.functions: dict[str, Function] = {}
        self.aliases: list[tuple[str, str, int]] = []
        self.names: dict[str, object] = {}
        self.unknown: list[tuple[str, int]] = []
        self.of_threads: dict[str, int] = {}  # registers and local variables of module scope -> where their declaration starts

    def parse(self) -> Module:
        """See :func:`parse`."""
        tokens = self.tokens
        while tokens.text:
            self._statement()
        if self.version is None:
            raise tokens.expected("a .version directive")
        if not self.targets:
            raise tokens.expected("a .target directive")
        for alias, name, index in self.aliases:
            if name not in self.functions:
                raise tokens.error(f"'{name}', which '{alias}' stands for, is not a function of this module", index)
            self.functions[alias] = replace(self.functions[name], name=alias)
        self._check_names()
        return Module(
            version=self.version,
            target=self.targets[0],
            target_options=self.targets[1:],
            address_size=self.address_size,
            variables=self.variables,
            functions=self.functions,
            files=self.files,
            text=tokens.source,
            path=tokens.path,
        )

    def _check_names(self) -> None:
        """Names that no body declared must be functions or variables of the module, declared anywhere in it."""
        for name, index in self.unknown:
            if name not in self.names:
                what = "register" if name[0] == "%" else "register, variable, label or function"
                raise self.tokens.error(f"'{name}' is not declared: there is no {what} of that name here", index)

    def _statement(self) -> None:
        tokens = self.tokens
        text = tokens.text
        if text in LINKAGES or text in (".entry", ".func") or text in SPACES:
            self._definition()
        elif text == ".version":
            self._version()
        elif text == ".target":
            tokens.i += 1
            names = [tokens.take_identifier("a target such as sm_90a")]
            while tokens.skip(","):
                names.append(tokens.take_identifier("a target option"))
            self.targets += tuple(names)
        elif text == ".address_size":
            tokens.i += 1
            self.address_size = parse_integer(tokens, "an address size")
        elif text == ".file":
            self._skip_file()
        elif text == ".loc":
            self._skip_line()
        elif text in (".section", ".nv_intermediate_source_section"):
            self._skip_section()
        elif text == ".pragma":
            tokens.i += 1
            tokens.take_string()
            while tokens.skip(","):
                tokens.take_string()
            tokens.expect(";", "after .pragma")
        elif text == ".alias":
            self._alias()
        elif text == ".tex":
            self._texture()
        elif text == "@" and tokens.texts[tokens.i + 1] == "@":  # @@DWARF, debug information before .section existed
            self._skip_line()
        elif text == ";":
            tokens.i += 1
        else:
            raise tokens.expected("a directive of module scope such as '.visible' or '.global'")

    def _version(self) -> None:
        tokens = self.tokens
        tokens.i += 1
        major, _, minor = tokens.text.partition(".")
        if not (major.isdecimal() and minor.isdecimal()):
            raise tokens.expected("a version such as 9.0")
        tokens.i += 1
        self.version = (int(major), int(minor))

    def _skip_file(self) -> None:
        tokens = self.tokens  # read beforehand by _files
        tokens.i += 1
        parse_integer(tokens, "a file index")
        tokens.take_string()
        while tokens.skip(","):  # time of modification, size
            parse_integer(tokens, "a number")

    def _skip_line(self) -> None:
        tokens = self.tokens
        line = tokens.lines[tokens.i]
        while tokens.text and tokens.lines[tokens.i] == line:
            tokens.i += 1

    def _skip_section(self) -> None:
        tokens = self.tokens
        while tokens.text != "{":
            if not tokens.take():
                raise tokens.expected("'{' and the content of the section", tokens.i - 1)
        tokens.i = self.blocks[tokens.i] + 1

    def _texture(self) -> None:
        """Takes ``.tex .u32 name;``, which became ``.global .texref name;`` in version 1.5 of the language."""
        tokens = self.tokens
        if self.version is not None and self.version >= (1, 5):
            raise tokens.error("'.tex' does not exist since version 1.5: write '.global .texref'", tokens.i)
        tokens.i += 1
        parse_type(tokens)
        while True:
            line, name = tokens.lines[tokens.i], tokens.take_identifier("the name of a texture")
            count = parse_range(tokens)
            for each in [name] if count is None else [f"{name}{n}" for n in range(count)]:
                self.variables[each] = Variable(each, "global", TYPES["texref"], 8, line=line)
                self.names[each] = True
            if not tokens.skip(","):
                break
        tokens.expect(";", "after a declaration")

    def _alias(self) -> None:
        tokens = self.tokens
        tokens.i += 1
        alias = tokens.take_identifier("the new name")
        tokens.expect(",", "after the new name")
        index = tokens.i
        self.aliases.append((alias, tokens.take_identifier("a function"), index))
        tokens.expect(";", "after .alias")
        self.names[alias] = True

    def _definition(self) -> None:
        tokens = self.tokens
        linkage = parse_linkage(tokens)
        text = tokens.text
        if text in (".entry", ".func"):
            self._function(linkage)
        elif text in (".reg", ".local"):
            self._of_threads()
        elif text in SPACES:
            for variable in parse_declaration(tokens, linkage):
                before = self.variables.get(variable.name)
                if before is None or before.linkage == "extern":  # a definition completes a declaration
                    self.variables[variable.name] = variable
                self.names[variable.name] = True
        else:
            raise tokens.expected("'.entry', '.func' or a state space such as '.global'")

    def _of_threads(self) -> None:
        """Takes registers or local variables of module scope, of which each thread has its own, until version 3.0."""
        tokens = self.tokens
        start = tokens.i
        if self.version is not None and self.version >= (3, 0):
            what = "registers" if tokens.text == ".reg" else "local variables"
            raise tokens.error(f"{what} belong into a function: PTX 3.0 and later has none at module scope")
        for variable in parse_declaration(tokens):
            self.of_threads[variable.name] = start

    def _function(self, linkage: str) -> None:
        tokens = self.tokens
        line = tokens.lines[tokens.i]
        is_entry = tokens.take() == ".entry"
        directives: dict[str, tuple[int | str, ...]] = {}
        if tokens.skip(".attribute"):
            directives["attribute"] = parse_attributes(tokens)
        returns = () if is_entry else parse_parameters(tokens)
        name = tokens.take_identifier("the function's name")
        params = parse_parameters(tokens)
        self._function_directives(directives)
        self.names[name] = True
        header = Function(name, is_entry, params, returns, linkage=linkage, line=line, directives=directives)
        if tokens.skip(";") or tokens.text[:1] in ("", "."):  # older compilers write prototypes without a semicolon
            self.functions.setdefault(name, replace(header, declared_only=True))
            return
        brace = tokens.i
        tokens.expect("{", "or ';' after the header of the function")
        before = self.functions.get(name)
        if before is not None and not before.declared_only:
            raise tokens.error(f"'{name}' is defined twice (before at line {before.line})", brace)
        self.functions[name] = header  # keeps the order of the source; replaced after the body
        self.functions[name] = self._defined(header, brace)

    def _defined(self, header: Function, brace: int) -> Function:
        """Takes the body, after its opening ``brace``, and returns the function with it."""
        tokens = self.tokens
        body = BodyParser(
            tokens, (*header.returns, *header.params), self.labels, self.variables, self.names, self.files, self._note_unknown
        )
        if self.of_threads and header.is_entry:
            named = self.of_threads.keys() & set(tokens.texts[brace : self.blocks[brace]])
            body.declare(sorted({self.of_threads[name] for name in named}))
        body.parse()
        return replace(
            header,
            registers=body.registers,
            variables=body.variables,
            instructions=tuple(body.instructions),
            labels=body.labels,
            branch_targets=body.branch_targets,
            prototypes=body.prototypes,
        )

    def _note_unknown(self, name: str, index: int) -> None:
        if name in self.of_threads:
            what = "a kernel can use registers and local variables of module scope, a function that it calls cannot"
            raise self.tokens.error(f"'{name}' is declared at module scope: {what}", index)
        if name not in self.names:
            self.unknown.append((name, index))

    def _function_directives(self, directives: dict[str, tuple[int | str, ...]]) -> None:
        """Takes ``.maxntid 256, 1, 1``, ``.noreturn``, ``.pragma "nounroll";`` and their like."""
        tokens = self.tokens
        while tokens.text[:1] == "." and tokens.text not in _DEFINITIONS:
            name = tokens.take()[1:]
            values: list[int | str] = []
            while tokens.text[:1] == '"' or tokens.text[:1].isdecimal():
                values.append(tokens.take_string() if tokens.text[0] == '"' else parse_integer(tokens, "a number"))
                if not tokens.skip(","):
                    break
            if name in ("pragma", "minperctamemory"):  # these two end in a semicolon
                tokens.skip(";")
            if name in _EXTENTS:
                values += [1] * (3 - len(values))
            directives[name] = (*directives.get(name, ()), *values) if name == "pragma" else tuple(values)


def _files(tokens: Tokens) -> dict[int, str]:
    """``.file`` index -> path. NVRTC writes these at the end, so they are read before anything else."""
    files: dict[int, str] = {}
    texts = tokens.texts
    for i in [i for i, text in enumerate(texts) if text == ".file"]:
        if texts[i + 1].isdecimal() and texts[i + 2][:1] == '"':
            files[int(texts[i + 1])] = unescape(texts[i + 2])
    return files


def _blocks(tokens: Tokens) -> tuple[dict[int, int], Mapping[int, list[int]]]:
    """Opening brace -> closing brace, and opening brace -> the labels directly inside, all by token index.

    Braces around operands are blocks without labels here, which does no harm.

    Raises:
        PtxSyntaxError: braces do not pair up.
    """
    texts = tokens.texts
    pairs: dict[int, int] = {}
    labels: dict[int, list[int]] = {}
    opened: list[int] = []
    for i in [i for i, text in enumerate(texts) if text in ("{", "}", ":")]:
        text = texts[i]
        if text == "{":
            opened.append(i)
        elif text == "}":
            if not opened:
                raise tokens.error("found '}' with no '{' before it", i)
            pairs[opened.pop()] = i
        elif opened and is_identifier(texts[i - 1]) and texts[i - 2] != "?":
            labels.setdefault(opened[-1], []).append(i - 1)
    if opened:
        raise tokens.error("found '{', but its '}' is missing", opened[-1])
    return pairs, labels
