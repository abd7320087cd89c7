"""From a workload and a variant to compiled images: tile, sources, targets. Needs no device."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxkit.errors import DescriptionError, UnavailableError
from ptxkit.workload.launch import Generated, Launch, Tile

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
        """What the kernel takes of an SM."""
        return self.image.functions[self.entry]


@dataclass(frozen=True)
class Build:
    """A variant, compiled for a target with one tile.

    Attributes:
        workload, variant, target, tile: what was compiled.
        steps: the launches in order.
    """

    workload: Workload
    variant: Variant
    target: Target
    tile: Tile
    steps: tuple[Step, ...]

    @property
    def images(self) -> tuple[Image, ...]:
        """The distinct images, in the order of their first launch."""
        return tuple({step.image.key: step.image for step in self.steps}.values())


def target_for(variant: Variant, target: Target | None) -> Target:
    """``target``, or the lowest that the variant can be compiled for when the device is none in particular."""
    from ptxkit.targets import lowest_target

    return target or lowest_target(variant.requires)


def unavailable(variant: Variant, target: Target | None, workload: Workload | None = None) -> str | None:
    """Why the variant cannot be compiled for ``target``, or has no tile for the workload, or None when it can."""
    from ptxkit.targets import missing

    reason = missing(variant.requires, target_for(variant, target))
    return reason or (variant.refusal(workload) if workload is not None else None)


def build(
    workload: Workload,
    variant: Variant,
    target: Target | None = None,
    tile: Mapping[str, Any] | None = None,
    *,
    cache: bool = True,
    debug_info: bool = False,
) -> Build:
    """Compile a variant; launches that share source, defines and options share one program.

    Args:
        workload: with its sizes, which choose among tiles and may choose among kernels.
        variant: one of its variants.
        target: None takes sm_90a, or the lowest newer target that has what the variant requires.
        tile: tile parameters to hold, by name, as typed or as declared; the others are chosen.
        cache: whether compiled programs may come from the cache.
        debug_info: compile CUDA C++ with ``-G``: unoptimised, with the locations of its variables.

    Raises:
        UnavailableError: the target lacks what the variant requires.
        UsageError: a tile parameter or value that is not offered.
        DescriptionError: a source that is not there, a template argument for a ``.ptx``.
        CompileError: a source does not compile, or has no such kernel.
    """
    chosen = target_for(variant, target)
    reason = unavailable(variant, chosen)
    if reason is not None:
        raise UnavailableError(f"variant {variant.name} of {workload.name}: {reason}")
    selected = variant.select_tile(workload, chosen, tile)
    launches = variant.launches(workload, selected)
    if debug_info:
        launches = tuple(_with_debug_info(workload, variant, launch) for launch in launches)
    programs: dict[tuple[Path | Generated, str], list[Launch]] = {}
    for launch in launches:
        programs.setdefault(_program(workload, variant, launch), []).append(launch)
    images = {key: _compile(workload, key[0], group, chosen, cache) for key, group in programs.items()}
    steps = tuple(_step(launch, images[_program(workload, variant, launch)]) for launch in launches)
    for step in steps:
        _ = step.entry  # a missing kernel is an error now, not at launch
    return Build(workload, variant, chosen, selected, steps)


def generated_sources(workload: Workload, variant: Variant) -> list[Generated]:
    """What writes the kernels of a variant, with its first tile; none for one whose kernels lie in files."""
    tile = next(variant.tiles(workload), None)
    launches = variant.launches(workload, tile) if tile is not None else ()
    sources = (variant.source_of(workload, launch) for launch in launches)
    return [source for source in sources if isinstance(source, Generated)]


def find_source(workload: type[Workload], source: str) -> Path:
    """The file ``source``: beside the description, or among the bundled ``cu/kernels/`` and ``ptx/``.

    Raises:
        DescriptionError: it is in neither place.
    """
    from ptxkit.compiler.paths import kernels_dir, ptx_dir

    bundled = ptx_dir() if source.endswith(".ptx") else kernels_dir()
    places = [directory for directory in (workload.directory(), bundled) if directory]
    for directory in places:
        if (directory / source).is_file():
            return directory / source
    raise DescriptionError(f"{workload.name}: there is no {source} in {' or '.join(map(str, places))}")


def _with_debug_info(workload: Workload, variant: Variant, launch: Launch) -> Launch:
    source = variant.source_of(workload, launch)
    if isinstance(source, str) and source.endswith(".ptx"):
        return launch
    return replace(launch, options=(*launch.options, "-G"))


def _step(launch: Launch, image: Image) -> Step:
    return Step(launch.source.complete(launch, image) if isinstance(launch.source, Generated) else launch, image)


def _program(workload: Workload, variant: Variant, launch: Launch) -> tuple[Path | Generated, str]:
    source = variant.source_of(workload, launch)
    how = repr((sorted(defines_of(workload, launch).items()), launch.options))
    if isinstance(source, Generated):
        return source, how
    path = find_source(type(workload), source)
    if path.suffix == ".ptx" and (launch.template or launch.defines or launch.options):
        raise DescriptionError(
            f"{path.name}: {launch.kernel} is PTX, which takes neither template arguments nor defines nor options"
        )
    return path, how


def include_directories(workload: Workload) -> tuple[Path, ...]:
    """Where the sources of a description look for headers first.

    Raises:
        DescriptionError: ``include_dirs`` is no list, or one of them is no directory.
    """
    given = workload.include_dirs
    if isinstance(given, (str, os.PathLike)) or not isinstance(given, Iterable):
        raise DescriptionError(f"{workload.name}: include_dirs must be a list of directories, not {given!r}")
    found = tuple((workload.directory() or Path()) / directory for directory in given)
    for directory in found:
        if not directory.is_dir():
            raise DescriptionError(f"{workload.name}: there is no directory {directory}, which include_dirs names")
    return found


def defines_of(workload: Workload, launch: Launch) -> dict[str, object]:
    """The macros of a launch's source: the description's, and the launch's own instead or besides."""
    if not isinstance(workload.defines, Mapping):
        raise DescriptionError(f"{workload.name}: defines must be a dict, not {workload.defines!r}")
    return {**workload.defines, **launch.defines}


def _compile(workload: Workload, source: Path | Generated, launches: list[Launch], target: Target, cache: bool) -> Image:
    from ptxkit.compiler.nvrtc import compile_source

    names = tuple(dict.fromkeys(launch.entry for launch in launches if launch.template))
    defines = defines_of(workload, launches[0])
    common: dict[str, Any] = {"target": target, "defines": defines, "instantiate": names, "cache": cache}
    options = launches[0].options
    if not isinstance(source, Generated):
        return compile_source(source, options=options, include_dirs=include_directories(workload), **common)
    s = source.source()
    return compile_source(
        s.text, name=s.name, options=(*s.options, *options), include_dirs=s.include_dirs, headers=s.headers, **common
    )
