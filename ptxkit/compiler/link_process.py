"""The program of a child process that assembles or links with nvJitLink, which PTX written by hand can crash.

The request of ``child.py`` has ``kind`` (``"PTX"`` or ``"LTOIR"``), ``inputs`` (data and name of each) and ``options``. The
answer is ``output`` (a cubin; PTX if ``-ptx`` is among the options; None after an error) and ``log``, or ``unavailable`` (why
``cuda.bindings`` cannot be imported), or ``unknown_target``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Assemble one text, or link the code of several."""
    try:
        from cuda.bindings import nvjitlink
    except ImportError as error:
        return {"unavailable": str(error)}
    options, kind = request["options"], getattr(nvjitlink.InputType, request["kind"])
    made = "linked_ptx" if "-ptx" in options else "linked_cubin"
    try:
        handle = nvjitlink.create(len(options), options)
    except nvjitlink.nvJitLinkError:
        return {"unknown_target": True}
    try:
        with suppress(nvjitlink.nvJitLinkError):
            for data, name in request["inputs"]:
                nvjitlink.add_data(handle, kind, data, len(data), name)
            nvjitlink.complete(handle)
            output = bytearray(getattr(nvjitlink, f"get_{made}_size")(handle))
            getattr(nvjitlink, f"get_{made}")(handle, output)
            return {"output": bytes(output), "log": _log(nvjitlink, "info", handle)}
        return {"output": None, "log": _log(nvjitlink, "error", handle) + _log(nvjitlink, "info", handle)}
    finally:
        nvjitlink.destroy(handle)


def _log(nvjitlink: Any, kind: str, handle: Any) -> str:
    size = getattr(nvjitlink, f"get_{kind}_log_size")(handle)
    buffer = bytearray(size)
    if size:
        getattr(nvjitlink, f"get_{kind}_log")(handle, buffer)
    return bytes(buffer).rstrip(b"\0").decode(errors="replace")
