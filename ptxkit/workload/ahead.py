"""Compiles slow programs into the cache before they are needed, several at a time, each in its own process.

A program of CUTLASS takes half a minute and 3 GB to compile. A caller that builds several variants compiles them ahead, in
parallel; the builds then find them in the cache. Each process compiles one program and ends, which frees its memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxkit.errors import PtxkitError
from ptxkit.workload.resolve import ResolvedVariant, generated_sources

if TYPE_CHECKING:
    from ptxkit.workload.variant import Variant
    from ptxkit.workload.workload import Workload

PROGRAM_BYTES = 3.5e9
"""Memory for one compilation in bytes; the largest program of CUTLASS needed 3.2e9."""
POLL_S = 0.1

Say = Callable[[str], None]


def compile_ahead(wanted: Iterable[ResolvedVariant], say: Say = lambda what: None) -> int:
    """Compile the slow programs of resolved variants that are not cached; the build reports the error of one that fails.

    Args:
        wanted: the variants that will be built.
        say: called with a line about the progress every second.

    Returns:
        How many were compiled.
    """
    missing: dict[str, dict[str, Any]] = {}
    for resolved in wanted:
        for request in _slow(resolved):
            missing.setdefault(f"{request['name']} {request['target']}", request)
    requests = list(missing.values())
    waiting, running = list(requests), dict[str, subprocess.Popen[bytes]]()
    begin = time.monotonic()
    said = begin - 1
    side_by_side = processes(len(requests))
    try:
        while waiting or running:
            while waiting and len(running) < side_by_side:
                request = waiting.pop(0)
                running[request["name"]] = _start(request)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                del running[name]
            now = time.monotonic()
            left = len(waiting) + len(running)
            if left and now - said >= 1:
                said = now
                say(f"compiling {left} of {len(requests)} large programs, half a minute each, {now - begin:.0f} s")
            time.sleep(POLL_S)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return len(requests)


def processes(most: int) -> int:
    """Number of large programs to compile at a time, limited by CPU cores, free memory and ``most``."""
    from ptxkit.workload.memory import free_host_bytes

    free = free_host_bytes()
    fitting = most if free is None else int(free / PROGRAM_BYTES)
    return max(1, min(most, fitting, len(os.sched_getaffinity(0))))


def is_slow(workload: Workload, variant: Variant) -> bool:
    """Whether the variant's programs are slow to compile."""
    return any(source.slow for source in generated_sources(workload, variant))


def _slow(resolved: ResolvedVariant) -> Iterable[dict[str, Any]]:
    """The arguments of :func:`ptxkit.compiler.nvrtc.compile_source` as JSON values, for slow programs that are not cached."""
    from ptxkit.compiler.nvrtc import is_cached

    for program in resolved.programs:
        if not program.slow:
            continue
        try:
            text, how = program.request(resolved.target)
            del how["instantiate"]
            if not is_cached(text, **how):
                yield {**how, "text": text}
        except PtxkitError:
            return  # the build raises the error again


def _start(request: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, "-c", "from ptxkit.workload.ahead import compile_from_stdin; compile_from_stdin()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(request).encode())
    process.stdin.close()
    return process


def compile_from_stdin() -> None:
    """Entry point of a compiling process: compile the program whose arguments are on stdin."""
    from ptxkit.compiler.nvrtc import compile_source

    request = json.load(sys.stdin)
    compile_source(request.pop("text"), **request)
