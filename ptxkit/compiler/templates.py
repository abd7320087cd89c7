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


def launched_instance(text: str, name: str) -> str:
    """An instance of a template as the first launch in a source names it; ``"scale<...>"`` if it has parameters of others."""
    bare = without_comments(text)
    heads = [m[1] for m in re.finditer(r"\btemplate\s*<([^;{}]*?)>", bare)]
    parameters = {word for head in heads for word in re.findall(r"(\w+)\s*(?:[,=]|$)", head)}
    example = f"{name}<...>"
    for found in re.finditer(rf"((?:\b\w+\s*::\s*)*\b{re.escape(name)})\s*<([^;{{}}]*?)>\s*\)?\s*<<<", bare):
        scoped, arguments = (" ".join(part.split()) for part in found.groups())
        if not parameters & set(re.findall(r"\w+", arguments)):
            return f"{scoped}<{arguments}>"
        example = f"{scoped}<...>"
    return example
