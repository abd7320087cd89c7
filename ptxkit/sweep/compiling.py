"""Compiles one tile in a process without a GPU: the image is stored in the cache, and its resources are returned."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ptxkit.compiler.cache import default_cache
from ptxkit.compiler.elf import machine_code
from ptxkit.compiler.image_cache import load
from ptxkit.errors import PtxkitError
from ptxkit.inspect.residency import occupancy
from ptxkit.sweep.problem import Problem
from ptxkit.workload.build import build

if TYPE_CHECKING:
    from ptxkit.compiler.image import Image


@dataclass(frozen=True)
class Compiled:
    """The result of compiling one tile.

    Attributes:
        error: why it could not be compiled, or "".
        seconds: duration. cached: whether all images were in the cache.
        fingerprint: hash of machine code and launch geometry: tiles with equal fingerprints perform equally.
        registers, spill_bytes, shared_bytes: the maximum over its kernels.
        occupancy: the minimum over its kernels, 0 to 1. limiter: what limits the occupancy of that kernel.
        threads: of the largest CTA. ctas: of the largest grid.
        images: the keys of its images in the compile cache.
        loadable: whether the cache has all that a launch needs of its images: of a source with host code, for instance, they
            do not have the text that declares its parameters.
    """

    error: str = ""
    seconds: float = 0.0
    cached: bool = False
    fingerprint: str = ""
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    occupancy: float = 0.0
    limiter: str = ""
    threads: int = 0
    ctas: int = 0
    images: tuple[str, ...] = ()
    loadable: bool = False


def compile_tile(problem: Problem, tile: Mapping[str, Any]) -> Compiled:
    """Compile a tile; a compile error is returned as a result."""
    begin = time.perf_counter()
    try:
        built = build(problem.workload, problem.chosen, problem.parsed_target, tile)
    except PtxkitError as error:
        return Compiled(error=str(error), seconds=time.perf_counter() - begin)
    seconds = time.perf_counter() - begin
    digest = hashlib.sha256()
    registers = spills = shared = threads = ctas = 0
    least, limiter = 2.0, ""
    for step in built.steps:
        launch = step.launch
        resources = step.resources
        block, grid = _product(launch.block), _product(launch.grid)
        digest.update(machine_code(step.image.cubin) if step.image.cubin else step.image.ptx.encode())
        geometry = (
            step.entry,
            launch.grid,
            launch.block,
            launch.shared,
            launch.cluster,
            launch.cooperative,
            launch.args,
        )
        digest.update(repr(geometry).encode())
        registers = max(registers, resources.registers)
        spills = max(spills, resources.spill_store_bytes + resources.spill_load_bytes)
        shared = max(shared, resources.shared_bytes + launch.shared)
        threads, ctas = max(threads, block), max(ctas, grid)
        found = occupancy(
            target=built.target,
            block=block,
            registers=resources.registers,
            shared_bytes=resources.shared_bytes,
            dynamic_shared_bytes=launch.shared,
            barriers=resources.barriers,
            cluster=_product(launch.cluster or (1, 1, 1)),
        )
        if found.impossible:
            return Compiled(error=f"{launch.kernel}: {found.impossible}", seconds=seconds)
        if found.fraction < least:
            least, limiter = found.fraction, " and ".join(found.limiters)
    cached = all(image.from_cache for image in built.images)
    fingerprint = digest.hexdigest()[:16]
    keys = tuple(dict.fromkeys(image.key for image in built.images))
    of_kernels = (registers, spills, shared, least, limiter, threads, ctas)
    return Compiled("", seconds, cached, fingerprint, *of_kernels, keys, all(map(_is_stored, built.images)))


def _is_stored(image: Image) -> bool:
    """Whether the cache has all that a launch needs of an image."""
    stored = load(default_cache(), image.key) if image.key and not image.expanded else None
    return stored is not None and replace(stored, log="") == replace(image, log="", from_cache=True)


def _product(dims: Any) -> int:
    x, y, z = dims
    return int(x * y * z)
