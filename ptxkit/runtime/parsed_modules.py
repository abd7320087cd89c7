"""PTX texts as modules: parsed once in a process, and kept on disk if that takes long.

A large module has many kernels, of which a launch needs one. What is on disk is read function by function
(:mod:`ptxkit.isa.stored`), so that a launch reads only the code that it reaches. Code that is bound to a launch consists of
Python functions and of addresses of this process, which cannot be stored; binding one kernel takes a fraction of the time
of parsing.
"""

from __future__ import annotations

import sys
from functools import cache, lru_cache
from pathlib import Path

import ptxkit.isa
from ptxkit.compiler.cache import default_cache, digest
from ptxkit.compiler.image_cache import content_key
from ptxkit.files import code_digest
from ptxkit.isa import stored
from ptxkit.isa.model import Module
from ptxkit.isa.parser import parse

STORED_BYTES = 1 << 17
"""Texts of this size and more are kept on disk; smaller ones are parsed in less than 0.1 s."""


@lru_cache(maxsize=64)
def parsed(ptx: str, path: str) -> Module:
    """A PTX text as a module.

    Args:
        ptx: the text. path: where it came from, for messages.

    Raises:
        PtxSyntaxError: as :func:`ptxkit.isa.parser.parse`.
    """
    if len(ptx) < STORED_BYTES:
        return parse(ptx, path)
    kept, key = default_cache(), content_key("parsed", digest(ptx.encode()), _identity())
    data = kept.get(key)
    if data is not None:
        try:
            return stored.from_bytes(data, ptx, path)
        except ValueError:
            kept.drop(key)
    module = parse(ptx, path)
    kept.put(key, stored.to_bytes(module))
    return module


@cache
def _identity() -> str:
    """What decides how a module is read and stored: the code of the parser, and the version of Python."""
    return f"{code_digest(Path(ptxkit.isa.__file__).parent)} {sys.version_info[:2]}"
