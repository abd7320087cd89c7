"""The program of a child process that assembles one PTX text with nvJitLink, which PTX written by hand can crash.

The request of ``child.py`` has ``text``, ``name`` and ``options``. The answer is ``cubin`` and ``log``, or ``unavailable`` (why
``cuda.bindings`` cannot be imported), or ``unknown_target``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Assemble one text."""
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
