"""The kernel templates of a source, which its image lacks until they are instantiated."""

from __future__ import annotations

import re

from ptxkit.isa.comments import without_comments

_TEMPLATE = re.compile(
    r"template\s*<(?P<parameters>[^;{}]*?)>\s*(?:static\s+|inline\s+)*__global__[^;{}]*?\bvoid\b"
    r"(?:\s+__launch_bounds__\s*\([^;{}]*?\))?\s+(?P<name>\w+)\s*\("
)


def templates(text: str) -> list[tuple[str, str]]:
    """(name, template parameters) of the kernel templates that a source defines."""
    bare = without_comments(text)
    return [(m["name"], " ".join(m["parameters"].split())) for m in _TEMPLATE.finditer(bare)]
