"""Images as entries of the disk cache, and the hashes that they are filed under."""

from __future__ import annotations

import json

from ptxkit.compiler.cache import Cache, digest
from ptxkit.compiler.image import Image, from_bytes, to_bytes

# Goes into every key: raise it when the meaning of an entry or the way diagnostics are mapped changes.
FORMAT = 3


def load(cache: Cache, key: str) -> Image | None:
    """The image under ``key``; one that makes no sense is dropped."""
    data = cache.get(key)
    if data is None:
        return None
    try:
        return from_bytes(data, key)
    except (ValueError, KeyError, TypeError):
        cache.drop(key)
        return None


def store(cache: Cache, image: Image) -> None:
    """File an image under its key."""
    cache.put(image.key, to_bytes(image))


def content_key(*parts: object) -> str:
    """Hash of anything that JSON can write, and of the format of the entries."""
    return digest(json.dumps([FORMAT, *parts]).encode())
