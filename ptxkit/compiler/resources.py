"""Registers, shared memory and spills of every kernel, from the output of ``ptxas -v``.

The relevant lines::

    ptxas info    : Compiling entry function 'k' for 'sm_90a'
    ptxas info    : Function properties for k
    ptxas         .     16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
    ptxas info    : Used 32 registers, used 1 barriers, 512 bytes smem, 16 bytes cmem[2]
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ptxkit.compiler.image import FunctionResources

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")
_CONSTANT = re.compile(r"(\d+) bytes cmem")


def read(log: str, entries: Iterable[str]) -> dict[str, FunctionResources]:
    """Resources of ``entries`` out of a log of ``ptxas -v``; a kernel that the log lacks has zeros."""
    found: dict[str, FunctionResources] = {}
    entry, subject = "", ""
    stack = (0, 0, 0)
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, stack = match[1], (0, 0, 0)
        elif match := _PROPERTIES.search(line):
            subject = match[1]
        elif (match := _STACK.search(line)) and subject == entry:
            stack = (int(match[1]), int(match[2]), int(match[3]))
        elif entry and (match := _USED.search(line)):
            found[entry] = FunctionResources(
                registers=int(match[1]),
                shared_bytes=_sum(_SHARED, line),
                local_bytes=stack[0],
                spill_store_bytes=stack[1],
                spill_load_bytes=stack[2],
                barriers=_sum(_BARRIERS, line),
                constant_bytes=_sum(_CONSTANT, line),
            )
            entry = ""
    return {name: found.get(name, FunctionResources()) for name in entries}


def _sum(pattern: re.Pattern[str], line: str) -> int:
    return sum(int(number) for number in pattern.findall(line))
