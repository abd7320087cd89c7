"""Keeps on disk what became of a source with host code, so that it is neither parsed nor compiled again.

The cache has the image of the device part already (:mod:`ptxkit.compiler.incremental`); to find it, the source would have to be
parsed with all its headers, and compiled once for each round in which something more is left out. An entry of this module
names the image, and the files that the rounds depend on: the headers that were read, with digests of their contents, and the
paths at which headers were looked for. It holds while all of these are as they were.
"""

from __future__ import annotations

import importlib.util
import json
import zlib
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ptxkit.compiler import image_cache
from ptxkit.compiler.cache import Cache, default_cache
from ptxkit.compiler.image import Image
from ptxkit.compiler.image_cache import content_key
from ptxkit.compiler.incremental import base_key, hashes
from ptxkit.compiler.request import Request
from ptxkit.files import code_digest

if TYPE_CHECKING:
    from ptxkit.compiler.host_code.headers import Headers
    from ptxkit.compiler.includes import Closure


@dataclass
class Files:
    """What the result of a source depends on.

    Attributes:
        read: path -> digest of the contents of a header when it was read.
        looked_up: path -> whether something was there.
        is_complete: whether these are all headers.
    """

    read: dict[str, str] = field(default_factory=dict)
    looked_up: dict[str, bool] = field(default_factory=dict)
    is_complete: bool = True

    def note(self, found: Closure) -> None:
        """Add the headers of one compilation."""
        for path, contents in found.headers.items():
            self.is_complete &= self.read.setdefault(path, contents) == contents  # a header was edited in between
        self.looked_up |= dict.fromkeys(found.absent, False)
        self.is_complete &= not found.unresolved

    def note_entered(self, headers: Headers) -> None:
        """Add the headers of the parser, and the places where it looked for others."""
        for path, contents in headers.read.items():
            self.is_complete &= self.read.setdefault(path, contents) == contents
        self.looked_up |= headers.looked_up

    def still_hold(self) -> bool:
        """Whether every file is as it was."""
        if any(Path(path).exists() != there for path, there in self.looked_up.items()):
            return False
        return hashes(self.read) == self.read


def find(request: Request) -> Image | None:
    """The image of a source with host code, with what was left out of it; None if it is not kept, or a header has changed."""
    kept, key = default_cache(), _key(request)
    data = kept.get(key)
    if data is None:
        return None
    try:
        line, _, body = data.partition(b"\n")
        entry = json.loads(line)
        files = Files(entry["read"], entry["looked_up"])
        expanded, left_out, name, log = zlib.decompress(body).decode(), entry["left_out"], entry["image"], entry["log"]
    except (ValueError, KeyError, TypeError, zlib.error):
        kept.drop(key)
        return None
    if not files.still_hold():
        return None
    image = image_cache.load(kept, name)
    return None if image is None else replace(image, expanded=expanded, left_out=left_out, log=log)


def store(request: Request, image: Image, files: Files) -> None:
    """Keep the result of a source with host code.

    Args:
        image: as :func:`find` shall return it. files: it depends on them; nothing is kept if one of them has changed.
    """
    kept: Cache = default_cache()
    if not image.key or not files.is_complete or not files.still_hold():
        return
    entry = {
        "image": image.key,
        "read": files.read,
        "looked_up": files.looked_up,
        "left_out": image.left_out,
        "log": image.log,
    }
    kept.put(_key(request), json.dumps(entry).encode() + b"\n" + zlib.compress(image.expanded.encode(), 1))


def _key(request: Request) -> str:
    return content_key("host code", base_key(request), _identity())


@cache
def _identity() -> str:
    """What decides which code is left out: this version of ptxkit, and the parser."""
    spec = importlib.util.find_spec("tree_sitter_cuda")
    parser = ""
    if spec is not None and spec.origin is not None:
        site = Path(spec.origin).parent.parent
        parser = " ".join(sorted(path.name for path in site.glob("tree_sitter*.dist-info")))
    return f"{code_digest(Path(__file__).parent.parent)} {parser}"
