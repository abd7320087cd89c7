"""C++ and PTX without comments."""

from __future__ import annotations

import re


def without_comments(text: str) -> str:
    """The text with comments blanked and every line still on its number."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
