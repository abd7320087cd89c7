"""The program of a child process that assembles one PTX text with nvJitLink, which PTX written by hand can crash.

It answers one request of ``child.py``: ``library`` (path of nvJitLink), ``text``, ``name`` and ``options``. The answer is
``cubin`` and ``log``, or ``unavailable`` (why ``cuda.bindings`` cannot be imported), or ``unknown_target``.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
from contextlib import suppress
from typing import Any


def main() -> None:
    """Answer the request on stdin."""
    request = pickle.load(sys.stdin.buffer)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the library may print
    with answers:
        pickle.dump(_answer(request), answers)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    ctypes.CDLL(request["library"], mode=ctypes.RTLD_GLOBAL)  # so that cuda.bindings does not look for another
    try:
        from cuda.bindings import nvjitlink
    except ImportError as error:
        return {"unavailable": str(error)}
    options, data = request["options"], request["text"]
    try:
        handle = nvjitlink.create(len(options), options)
    except nvjitlink.nvJitLinkError:
        return {"unknown_target": True}
    try:
        with suppress(nvjitlink.nvJitLinkError):
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), request["name"])
            nvjitlink.complete(handle)
            cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
            nvjitlink.get_linked_cubin(handle, cubin)
            return {"cubin": bytes(cubin), "log": _log(nvjitlink, "info", handle)}
        return {"cubin": None, "log": _log(nvjitlink, "error", handle) + _log(nvjitlink, "info", handle)}
    finally:
        nvjitlink.destroy(handle)


def _log(nvjitlink: Any, kind: str, handle: Any) -> str:
    size = getattr(nvjitlink, f"get_{kind}_log_size")(handle)
    buffer = bytearray(size)
    if size:
        getattr(nvjitlink, f"get_{kind}_log")(handle, buffer)
    return bytes(buffer).rstrip(b"\0").decode(errors="replace")


if __name__ == "__main__":
    main()
