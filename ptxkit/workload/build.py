"""Compiles a resolved variant to images. Needs no device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptxkit.errors import CompileError
from ptxkit.workload.launch import Generated, Launch, Tile
from ptxkit.workload.partial_stores import WIDEST, smallest_store
from ptxkit.workload.resolve import ResolvedVariant, resolve

if TYPE_CHECKING:
    from ptxkit.compiler.image import FunctionResources, Image
    from ptxkit.targets import Target
    from ptxkit.workload.variant import Variant
    from ptxkit.workload.workload import Workload


@dataclass(frozen=True)
class Step:
    """One launch with the image that holds its kernel."""

    launch: Launch
    image: Image

    @property
    def entry(self) -> str:
        """The kernel's mangled name."""
        return self.image.entry(self.launch.entry)

    @property
    def resources(self) -> FunctionResources:
        """Registers and memory that the kernel uses."""
        return self.image.functions[self.entry]


@dataclass(frozen=True)
class Build:
    """A resolved variant, compiled.

    Attributes:
        resolved: what was compiled.
        steps: the launches in order.
    """

    resolved: ResolvedVariant
    steps: tuple[Step, ...]

    @property
    def workload(self) -> Workload:
        """With its sizes, and the facts of the device that the launches are for."""
        return self.resolved.workload

    @property
    def variant(self) -> Variant:
        """A variant of the workload."""
        return self.resolved.variant

    @property
    def target(self) -> Target:
        """The target of the programs."""
        return self.resolved.target

    @property
    def tile(self) -> Tile:
        """The chosen tile parameters."""
        return self.resolved.tile

    @property
    def images(self) -> tuple[Image, ...]:
        """The distinct images, in the order of their first launch."""
        return tuple({step.image.key: step.image for step in self.steps}.values())

    @property
    def smallest_store(self) -> int:
        """Bytes of the smallest write to global memory of the launches."""
        return min((smallest_store(image.ptx) for image in self.images), default=WIDEST)


def build(
    workload: Workload,
    variant: Variant,
    target: Target | None = None,
    tile: Mapping[str, Any] | None = None,
    *,
    cache: bool = True,
    debug_info: bool = False,
) -> Build:
    """Resolve a variant without a device, and compile it.

    Args:
        workload, variant, target, tile, debug_info: see :func:`ptxkit.workload.resolve.resolve`.
        cache: whether compiled programs may come from the cache.

    Raises:
        UnavailableError, UsageError, DescriptionError: as :func:`ptxkit.workload.resolve.resolve`.
        CompileError: a source does not compile, or does not define the kernel.
    """
    return compiled(resolve(workload, variant, target, tile, debug_info=debug_info), cache=cache)


def compiled(resolved: ResolvedVariant, *, cache: bool = True, images: Sequence[str] = ()) -> Build:
    """Compile the programs of a resolved variant.

    Args:
        cache: whether compiled programs may come from the cache.
        images: keys of the images of all programs in the cache, where another process has compiled them just now: they are
            taken from there, and no source and no header is read.

    Raises:
        CompileError: a source does not compile, or does not define the kernel.
    """
    if images and (stored := _stored(resolved, images)) is not None:
        return stored
    return with_images(resolved, _compiled(resolved, cache))


def _stored(resolved: ResolvedVariant, keys: Sequence[str]) -> Build | None:
    """The build from images of the cache; None where they are not there, or are not those of the programs."""
    from ptxkit.compiler.cache import default_cache
    from ptxkit.compiler.image_cache import load

    found = [image for key in keys if (image := load(default_cache(), key)) is not None]
    if not len(found) == len(keys) == len(resolved.programs):
        return None
    try:
        return with_images(resolved, found)
    except CompileError:
        return None


def _compiled(resolved: ResolvedVariant, cache: bool) -> list[Image]:
    from ptxkit.compiler.nvrtc import compile_source

    images = []
    for program in resolved.programs:
        source, how = program.request(resolved.target)
        images.append(compile_source(source, **how, cache=cache))
    return images


def with_images(resolved: ResolvedVariant, images: Sequence[Image]) -> Build:
    """The build of a resolved variant whose programs were compiled already.

    Args:
        images: one for each program.

    Raises:
        CompileError: an image has no such kernel.
    """
    paired = zip(resolved.launches, resolved.program_of, strict=True)
    steps = tuple(_step(launch, images[index]) for launch, index in paired)
    for step in steps:
        _ = step.entry  # reports a missing kernel now, not at the launch
    return Build(resolved, steps)


def _step(launch: Launch, image: Image) -> Step:
    return Step(launch.source.complete(launch, image) if isinstance(launch.source, Generated) else launch, image)
