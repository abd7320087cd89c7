"""PTX text to tokens.

A token is a plain string. A single ``re.findall`` splits the whole text, which takes well under a second for a megabyte of
PTX. The kind of a token follows from its first character, so it is not stored. Lines are stored, because instructions
carry them; a column is computed only for an error message.

An opcode with its modifiers, ``cp.async.bulk.tensor.2d.shared::cta.global``, is one token, as are ``%tid.x`` and
``%v.x``. Inside a constant expression a modulus needs a space after it (``7 % 3``): ``%3`` is an identifier.
"""

from __future__ import annotations

import re
import string

from ptxkit.errors import PtxSyntaxError

# PTX ISA, "Identifiers", "Integer Constants", "Floating-Point Constants". Ordered by how often each occurs.
# No possessive groups: early releases of Python 3.11 repeat them wrongly (CPython issue 106052).
_TOKEN = re.compile(
    r"""[ \t\r\f\v]*+(
      \n
    | [A-Za-z_$%][\w$]*(?:\.\w+(?:::\w+)*)*          # identifier or opcode, with its dotted parts
    | [,;\[\]{}()@+:]
    | 0[xXfFdDbB][0-9A-Za-z]*                        # hexadecimal, exact float, binary; a bad one is one bad token
    | \d+\.?\d*(?:[eE][+-]?\d+)?\w* | \.\d+(?:[eE][+-]?\d+)?(?!\w)
    | \.\w+(?:::\w+)*                                # directive, or an opcode part standing apart
    | //[^\n]*
    | /\*[^*]*\*+(?:[^/*][^*]*\*+)*/
    | \#[^\n]*                                       # line marker left by a preprocessor
    | "[^"\\\n]*(?:\\.[^"\\\n]*)*"
    | <<|>>|<=|>=|==|!=|&&|\|\|
    | \S
    )""",
    re.VERBOSE | re.ASCII,
)

_LETTERS = frozenset(string.ascii_letters)
_SENTINELS = 4  # the maximum look-ahead of a rule without a check for the end of the text


class Tokens:
    """The tokens of one PTX text, and a position among them.

    Attributes:
        texts: the tokens; the last few are ``""``, which stands for the end of the text.
        lines: the 1-based line of each.
        i: index of the next token to read.
    """

    __slots__ = ("i", "lines", "path", "source", "texts")

    def __init__(self, source: str, path: str = "<ptx>") -> None:
        self.source = source
        self.path = path
        self.i = 0
        texts: list[str] = []
        lines: list[int] = []
        line = 1
        for text in _TOKEN.findall(
            source.partition("\0")[0]
        ):  # text saved with the NUL at its end; ptxas stops there, too
            if text == "\n":
                line += 1
            elif text[0] == "/" and len(text) > 1:
                line += text.count("\n")
            elif text[0] != "#":
                texts.append(text)
                lines.append(line)
        self.texts = texts + [""] * _SENTINELS
        self.lines = lines + [line] * _SENTINELS

    @property
    def text(self) -> str:
        """The next token, without taking it."""
        return self.texts[self.i]

    def take(self) -> str:
        """Takes the next token, whatever it is."""
        text = self.texts[self.i]
        self.i += 1
        return text

    def skip(self, text: str) -> bool:
        """Takes the next token if it is ``text``."""
        if self.texts[self.i] == text:
            self.i += 1
            return True
        return False

    def expect(self, text: str, where: str = "") -> None:
        """Takes ``text``, or raises PtxSyntaxError."""
        if self.texts[self.i] != text:
            raise self.expected(f"'{text}'{where and ' ' + where}")
        self.i += 1

    def take_identifier(self, what: str) -> str:
        """Takes an identifier without dotted parts; ``what`` says in error messages what was expected."""
        text = self.texts[self.i]
        if not is_identifier(text) or "." in text:
            raise self.expected(what)
        self.i += 1
        return text

    def take_string(self) -> str:
        """Takes a string literal and returns its content with escapes resolved."""
        text = self.texts[self.i]
        if len(text) < 2 or text[0] != '"':
            raise self.expected("a string")
        self.i += 1
        return unescape(text)

    def position(self, index: int) -> tuple[int, int]:
        """1-based line and column of token ``index``."""
        seen = -1
        for match in _TOKEN.finditer(self.source):
            text = match[1]
            if text == "\n" or text[0] == "#" or (text[0] == "/" and len(text) > 1):
                continue
            seen += 1
            if seen == index:
                start = match.start(1)
                return self.lines[index], start - self.source.rfind("\n", 0, start)
        last = self.source[self.source.rfind("\n") + 1 :]
        return self.lines[-1], len(last) + 1

    def error(self, message: str, index: int | None = None) -> PtxSyntaxError:
        """An error at token ``index`` (the next one by default); its log has the offending line with a caret below, too."""
        line, column = self.position(self.i if index is None else index)
        source_line = self.source.split("\n")[line - 1].rstrip("\r")
        caret = "".join("\t" if c == "\t" else " " for c in source_line[: column - 1]) + "^"
        text = f"{self.path}:{line}:{column}: {message}"
        return PtxSyntaxError(text, log=f"{text}\n  {source_line}\n  {caret}")

    def expected(self, what: str, index: int | None = None) -> PtxSyntaxError:
        """An error that names the token at ``index`` and what was expected there."""
        text = self.texts[self.i if index is None else index]
        found = f"'{text if len(text) <= 60 else text[:57] + '...'}'" if text else "the end of the text"
        if text == '"':
            found = "a string without its closing quote"
        elif text == "/" and self.texts[(self.i if index is None else index) + 1] == "*":
            found = "a comment without its closing */"
        return self.error(f"found {found}, expected {what}", index)


def is_identifier(text: str) -> bool:
    """Whether a token is an identifier (or an opcode; both begin alike)."""
    first = text[:1]
    return first in _LETTERS or (first in ("_", "$", "%") and len(text) > 1)


_ESCAPE = re.compile(r"\\([0-7]{1,3}|x[0-9A-Fa-f]+|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}


def unescape(literal: str) -> str:
    """The content of a string literal, quotes removed and C escapes resolved; escaped bytes are UTF-8, as in NVRTC's paths."""
    body, data, start = literal[1:-1], bytearray(), 0
    for match in _ESCAPE.finditer(body):
        data += body[start : match.start()].encode(errors="surrogatepass")
        start, code = match.end(), match[1]
        if code[0] == "x" and len(code) > 1:
            data.append(int(code[1:], 16) & 0xFF)
        elif code[0] in "01234567":
            data.append(int(code, 8) & 0xFF)
        else:
            data += _ESCAPED.get(code, code).encode(errors="surrogatepass")
    data += body[start:].encode(errors="surrogatepass")
    return data.decode(errors="replace")


_ESCAPED_BYTES = re.compile(r"(?:\\[23][0-7]{2})+(?:/[23][0-7]{2})?")


def unescape_path(path: str) -> str:
    r"""Decodes a path of a line table, in which ptxas writes non-ASCII characters as octal escapes: ``\303\274`` for ``ü``.

    ptxas replaces the last backslash of a file name by a slash, so that the table has ``/\303/251.cu`` for ``/é.cu``.
    """

    def one(match: re.Match[str]) -> str:
        codes = re.findall("[0-7]{3}", match[0])
        for kept in range(len(codes), 0, -1):  # digits after a slash may also begin a file name
            if kept < len(codes) and "/" not in match[0]:
                break
            try:
                text = bytes(int(code, 8) for code in codes[:kept]).decode()
            except UnicodeDecodeError:
                continue
            return text + match[0][4 * kept :]
        return match[0]

    return _ESCAPED_BYTES.sub(one, path)
