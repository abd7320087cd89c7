r"""Names with letters outside of ASCII, which nvcc takes in UTF-8, and NVRTC as universal character names only (``\u00f6``).

Names of functions and of variables of namespace scope are refused by both compilers in either form.
"""

from __future__ import annotations

import re

# What is no code: comments, strings with their escapes, raw strings, characters (C++, [lex.pptoken])
_PARTS = re.compile(
    r"//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z)"
    r'|R"(?P<end>[^()\\\s]{0,16})\(.*?(?:\)(?P=end)"|\Z)'
    r'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    r"|(?P<name>[^\W\d]\w*)|\d(?:'?[\w.])*|.",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")
_CARET = re.compile(r"\s*\^\s*$")


def escaped(text: str) -> str:
    """A source with universal character names in place of the letters in names that are not in ASCII."""
    if text.isascii():
        return text
    return _PARTS.sub(lambda part: "".join(map(_escape, part[0])) if part["name"] else part[0], text)


def _escape(letter: str) -> str:
    code = ord(letter)
    return letter if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unescaped(log: str) -> str:
    """A log of NVRTC about such a source, with the letters in place of their names, and carets under the same places.

    NVRTC counts the bytes up to a caret, not the letters.
    """
    if log.isascii() and not _ESCAPE.search(log):
        return log
    lines = log.split("\n")
    for n, (line, following) in enumerate(zip(lines, [*lines[1:], ""], strict=True)):
        if _CARET.match(following):
            before = line.encode(errors="surrogateescape")[: following.index("^")].decode(errors="ignore")
            lines[n + 1] = " " * len(_unescaped(before)) + "^"
    return "\n".join(map(_unescaped, lines))


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1] or match[2], 16)), text)
