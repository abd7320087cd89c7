"""PTX and C++ without comments, which have the same form in both."""

from __future__ import annotations

import re

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def without_comments(text: str) -> str:
    """The text with a space in place of each comment, and every line still on its number."""
    return _COMMENT.sub(lambda match: " " + "\n" * match[0].count("\n"), text)
