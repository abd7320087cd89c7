"""Compilation through the cache: the contents of a key, and how a hit is found without scanning the includes of all headers.

The cache has two kinds of entry. An *image* is stored under a hash of all its inputs: source, target, options, NVRTC,
and the path and contents of every header that may be included. A *manifest* is stored under the same hash without the
headers, and lists them. With a manifest, the listed files are hashed and not scanned. The list is still valid if these
hashes give the key of an existing image, and if no file has been created at a path that was searched without success.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from ptxkit.compiler import toolkit
from ptxkit.compiler.cache import Cache, default_cache, digest
from ptxkit.compiler.image import Image
from ptxkit.compiler.image_cache import content_key, load, store
from ptxkit.compiler.includes import Closure
from ptxkit.compiler.request import Request


def cached_compile(
    request: Request, build: Callable[[Request], Image], note: Callable[[Closure], object] | None = None
) -> Image:
    """The image of a request, from the cache, or built and stored there.

    Args:
        note: is given the headers that the request may include, before it is built.
    """
    if (image := find(request, note)) is not None:
        return image
    cache = default_cache()
    base = base_key(request)
    found = scan(request)
    if note is not None:
        note(found)
    key = image_key(base, found.headers)
    if not found.unresolved and (image := load(cache, key)):
        _write_manifest(cache, base, found)
        return image
    image = replace(build(request), key=key, sources=_sources(request, found))
    if not found.unresolved and _unchanged(
        found
    ):  # an image must not be stored under a header that was edited while NVRTC ran
        store(cache, image)
        _write_manifest(cache, base, found)
    return image


def find(request: Request, note: Callable[[Closure], object] | None = None) -> Image | None:
    """The cached image of a request with the current headers; None if it was not found this way, although it may be cached.

    Args:
        note: is given these headers, where the image was found.
    """
    cache = default_cache()
    base = base_key(request)
    known = _read_manifest(cache, base)
    image = load(cache, image_key(base, known.headers)) if known is not None else None
    if known is not None and image is not None and note is not None:
        note(known)
    return image


def key_of(request: Request) -> str:
    """The key under which the image of a request with the current headers is cached; compiles nothing."""
    base = base_key(request)
    known = _read_manifest(default_cache(), base)
    return image_key(base, (known or scan(request)).headers)


def base_key(request: Request) -> str:
    """Hash of all inputs of the compilation except headers."""
    return content_key(
        "nvrtc",
        toolkit.nvrtc_identity(),
        [tool.version for tool in toolkit.headers()],
        request.text,
        request.name,
        request.directory,
        request.target.name,
        request.include_dirs,
        request.options,
        request.names,
        *([request.headers] if request.headers else []),
    )


def image_key(base: str, headers: dict[str, str]) -> str:
    """Hash of everything: the base key with the path and contents of each header."""
    return content_key("image", base, sorted(headers.items()))


def scan(request: Request) -> Closure:
    """The headers that may enter a request's compile."""
    from ptxkit.compiler.includes import closure

    directories, pre_included, defines = _from_options(request.options)
    search = (*directories, *request.include_dirs)
    text = request.text + "".join(f'\n#include "{name}"' for name in pre_included)
    text += "".join(f"\n{header}" for _, header in request.headers)  # their own includes
    return closure(text, request.directory, search, defines, trusted=[str(tool.path) for tool in toolkit.headers()])


_TAKES_NEXT = ("-I", "--include-path", "-D", "--define-macro", "-include", "--pre-include")


def _from_options(options: Iterable[str]) -> tuple[list[str], list[str], str]:
    """Include directories, pre-included headers and ``#define`` lines that a caller gave as NVRTC options."""
    directories, pre_included, defines = [], [], ""
    previous = ""
    for option in options:
        joined = f"{previous}={option}" if previous in _TAKES_NEXT else option
        previous = option
        if match := re.match(r"(?:-I|--include-path=)=?(.+)", joined):
            directories.append(str(Path(match[1]).absolute()))
        elif match := re.match(r"(?:-include|--pre-include)=(.+)", joined):
            pre_included.append(match[1])
        elif match := re.match(r"(?:-D|--define-macro=)=?(\w+)=(.*)", joined):
            defines += f"#define {match[1]} {match[2]}\n"
    return directories, pre_included, defines


def _sources(request: Request, found: Closure) -> tuple[str, ...]:
    own = (request.name,) if Path(request.name).is_absolute() else ()
    return (*own, *found.headers)


def _unchanged(found: Closure) -> bool:
    return hashes(found.headers) == found.headers and not any(_path(path).exists() for path in found.absent)


@lru_cache(maxsize=4096)
def _path(text: str) -> Path:
    """The path of a header. All programs have the same ones, and making a path takes longer than asking for its file."""
    return Path(text)


def hashes(paths: Iterable[str]) -> dict[str, str] | None:
    """Path -> digest of the contents of each file; None if one of them cannot be read."""
    found = {}
    for path in paths:
        try:
            found[path] = digest(_path(path).read_bytes())
        except OSError:
            return None
    return found


def _read_manifest(cache: Cache, base: str) -> Closure | None:
    """The headers of the last compile with their present contents, or None when the list cannot be used."""
    data = cache.get(f"{base}-headers")
    if data is None:
        return None
    try:
        listed = json.loads(data)
        headers, absent = listed["headers"], listed["absent"]
    except (ValueError, KeyError, TypeError):
        cache.drop(f"{base}-headers")
        return None
    contents = hashes(headers)
    if contents is None or any(_path(path).exists() for path in absent):
        return None
    return Closure(contents, set(absent))


def _write_manifest(cache: Cache, base: str, found: Closure) -> None:
    listed = {"headers": list(found.headers), "absent": sorted(found.absent)}
    cache.put(f"{base}-headers", json.dumps(listed).encode())
