"""Finds out which instructions ptxas (in nvJitLink) accepts. ptxas reports every error of a module, so one call tests
many.

nvJitLink runs in a process of its own that answers many calls: invalid code can corrupt its memory, which would show much later
as a crash of some other test.
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, lru_cache

import pytest

from ptxkit.compiler import toolkit

REGISTERS = (
    ".reg .pred %p<8>; .reg .b8 %c<8>; .reg .b16 %h<16>; .reg .b32 %r<16>; .reg .b64 %rd<16>; .reg .b128 %q<16>;"
    ".reg .f32 %f<16>; .reg .f64 %d<16>; .shared .align 16 .b8 buffer[64];"
)

TARGETS = ("sm_100a", "sm_103a", "sm_90a", "sm_120a", "sm_110a", "sm_107a", "sm_75")
"""What any target takes, one of these does."""


@lru_cache
def newest_version() -> str:
    """The newest ``.version`` that the installed nvJitLink reads."""
    match = re.search(
        r"current version is '([\d.]+)'", log_of(".version 99.0\n.target sm_90\n.address_size 64\n", "sm_90")
    )
    assert match is not None
    return match[1]


@cache
def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def log_of(text: str, target: str) -> str:
    """The message of nvJitLink about a module, "" if it accepts the module."""
    try:
        log = _process().submit(_answer, text, target).result()
    except BrokenProcessPool:
        _process.cache_clear()
        raise AssertionError(f"nvJitLink crashed when it assembled this for {target}:\n{text}") from None
    if log is None:
        pytest.skip(f"the nvJitLink that is installed does not know {target}")
    return log


def _answer(text: str, target: str) -> str | None:
    """The log, in the process that :func:`log_of` starts; None if the target is unknown."""
    toolkit.preload(toolkit.nvjitlink())
    from cuda.bindings import nvjitlink

    try:
        handle = nvjitlink.create(1, [f"-arch={target}"])
    except nvjitlink.nvJitLinkError as error:
        if "UNRECOGNIZED_ARCH" in str(error):
            return None
        raise
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, text.encode(), len(text), "forms")
        nvjitlink.complete(handle)
    except nvjitlink.nvJitLinkError:
        log = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, log)
        return bytes(log).decode(errors="replace")
    finally:
        nvjitlink.destroy(handle)
    return ""


FIRST_LINE = 6


def module(statements: Sequence[str], target: str, version: str) -> str:
    """A kernel of the statements, one a line from :data:`FIRST_LINE` on."""
    head = [f".version {version}", f".target {target}", ".address_size 64", ".entry k() {", REGISTERS]
    return "\n".join([*head, *statements, "ret;", "}", ""])


def refused(statements: Sequence[str], target: str, version: str = "", compiled: bool = True) -> dict[int, str]:
    """Index and message of the statements that ptxas refuses for ``target``.

    ``compiled=False`` stops it after its checks, with a last statement that it refuses always: code of hundreds of loads from
    undefined addresses crashes its back end.
    """
    sentinel = [] if compiled else ["add.f32 %f0, %d0, %d0;"]
    left = [*statements, *sentinel]
    found: dict[int, str] = {}
    while True:
        log = log_of(module(left, target, version or newest_version()), target)
        for number, message in re.findall(r"line (\d+); error\s*: (.*)", log):
            found.setdefault(int(number) - FIRST_LINE, message)
        syntax = re.search(r"line (\d+); fatal\s*: (.*)", log)
        if syntax is None:
            break
        number = int(syntax[1]) - FIRST_LINE  # ptxas stops at a syntax error: go on without the statement
        found.setdefault(number, syntax[2])
        assert left[number], log
        left[number] = ""
    if log and not found:
        raise AssertionError(f"{target}: {log}")
    if sentinel:
        del found[len(statements)]
    return found


def refused_everywhere(
    statements: Sequence[str], targets: Sequence[str] = TARGETS, compiled: bool = True
) -> dict[int, str]:
    """The same, for statements that no target accepts; the message is that of the first target."""
    left = dict.fromkeys(range(len(statements)), "")
    for target in targets:
        numbers = list(left)
        if not numbers:
            break
        judged = refused([statements[n] for n in numbers], target, compiled=compiled)
        left = {numbers[k]: left[numbers[k]] or message for k, message in judged.items()}
    return left
