"""Compiling what takes long ahead of its use: several programs side by side, in processes of their own, into the cache.

A program of CUTLASS takes half a minute and 3 GB. Whoever is about to build several variants says so first; what is in the
cache then costs nothing. Each process compiles one program and ends, which gives its memory back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxkit.errors import PtxkitError
from ptxkit.workload import tuned
from ptxkit.workload.build import defines_of, generated_sources, target_for, unavailable
from ptxkit.workload.launch import Generated

if TYPE_CHECKING:
    from ptxkit.runtime.device import Device
    from ptxkit.targets import Target
    from ptxkit.workload.variant import Variant
    from ptxkit.workload.workload import Workload

PROGRAM_BYTES = 3.5e9
"""Memory for one compile; the largest of CUTLASS's took 3.2e9."""
POLL_S = 0.1

Wanted = tuple["Workload", "Variant", "Mapping[str, Any] | None"]
Say = Callable[[str], None]


def compile_ahead(
    wanted: Iterable[Wanted], target: Target | None, say: Say = lambda what: None, device: Device | None = None
) -> int:
    """Compile the slow programs of these builds that the cache lacks. One that fails is left to whoever builds it.

    Args:
        wanted: (workload, variant, tile parameters to hold).
        target: as for :func:`ptxkit.workload.build.build`.
        say: is told every second what is being compiled.
        device: whose tuned tiles are taken.

    Returns:
        How many were compiled.
    """
    missing: dict[str, dict[str, Any]] = {}
    for workload, variant, tile in wanted:
        if device and device.lacks.intersection(variant.requires):
            continue
        recorded = tuned.tile_for(workload, variant.name, device.name) if device else {}
        for request in _slow(workload, variant, target, {**recorded, **(tile or {})}):
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
    """How many large compiles fit side by side: processors and free memory allow so many, of at most ``most``."""
    from ptxkit.workload.memory import free_host_bytes

    free = free_host_bytes()
    fitting = most if free is None else int(free / PROGRAM_BYTES)
    return max(1, min(most, fitting, len(os.sched_getaffinity(0))))


def is_slow(workload: Workload, variant: Variant) -> bool:
    """Whether its programs take long to compile."""
    return any(source.slow for source in generated_sources(workload, variant))


def _slow(
    workload: Workload, variant: Variant, target: Target | None, tile: Mapping[str, Any]
) -> Iterable[dict[str, Any]]:
    """What :func:`ptxkit.compiler.nvrtc.compile_source` is to be given, as JSON values, for what the cache lacks."""
    from ptxkit.compiler.nvrtc import is_cached

    chosen = target_for(variant, target)
    if unavailable(variant, chosen, workload) is not None:
        return
    try:
        launches = variant.launches(workload, variant.select_tile(workload, chosen, tile))
        for launch in launches:
            source = variant.source_of(workload, launch)
            if not isinstance(source, Generated) or not source.slow:
                continue
            written = asdict(source.source())
            options = (*written["options"], *launch.options)
            defines = defines_of(workload, launch)
            request = {**written, "target": chosen.name, "defines": defines, "options": options}
            if not is_cached(request.pop("text"), **request):
                yield {**request, "text": written["text"]}
    except PtxkitError:
        return  # whoever builds it is told


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
    """What a compiling process does."""
    from ptxkit.compiler.nvrtc import compile_source

    request = json.load(sys.stdin)
    compile_source(request.pop("text"), **request)
