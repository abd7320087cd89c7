"""Images as entries of the disk cache, and the hashes that are their keys."""

from __future__ import annotations

import json

from ptxkit.compiler.cache import Cache, digest
from ptxkit.compiler.image import Image, from_bytes, to_bytes

# Goes into every key: raise it when the meaning of an entry or the way diagnostics are mapped changes.
FORMAT = 3


def load(cache: Cache, key: str) -> Image | None:
    """The image stored under ``key``; an entry that cannot be decoded is deleted."""
    data = cache.get(key)
    if data is None:
        return None
    try:
        return from_bytes(data, key)
    except (ValueError, KeyError, TypeError):
        cache.drop(key)
        return None


def store(cache: Cache, image: Image) -> None:
    """Store an image under its key."""
    cache.put(image.key, to_bytes(image))


def content_key(*parts: object) -> str:
    """Hash of anything that JSON can write, and of the format of the entries."""
    return digest(json.dumps([FORMAT, *parts]).encode())
