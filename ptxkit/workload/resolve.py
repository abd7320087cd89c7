"""Resolves a variant: device facts, target, tile, launches and programs, everything that needs no compiler.

:func:`resolve` returns a :class:`ResolvedVariant`, which run, bench, inspect, sweep, testing and compilation ahead use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxkit.errors import DescriptionError, PtxkitError, UnavailableError, UsageError
from ptxkit.targets import lowest_target, missing
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload import tiling
from ptxkit.workload.blame import at
from ptxkit.workload.launch import Generated, Launch, Tile
from ptxkit.workload.tuned import lookup

if TYPE_CHECKING:
    from ptxkit.runtime.abilities import Device
    from ptxkit.targets import Target
    from ptxkit.workload.tuned.record import Record
    from ptxkit.workload.variant import Variant
    from ptxkit.workload.workload import Workload


@dataclass(frozen=True)
class Program:
    """A unit of compilation: the source, macros and options that some launches of a variant share.

    Attributes:
        source: a file, or the object that generates the source.
        defines: macros.
        options: further options of NVRTC.
        names: name expressions of the templates to instantiate.
        include_dirs: directories that are searched first for the headers of a file.
    """

    source: Path | Generated
    defines: Mapping[str, object] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    include_dirs: tuple[Path, ...] = ()

    @property
    def slow(self) -> bool:
        """Whether compilation takes long."""
        return isinstance(self.source, Generated) and self.source.slow

    def request(self, target: Target) -> tuple[str | Path, dict[str, Any]]:
        """The source and the keyword arguments of :func:`ptxkit.compiler.nvrtc.compile_source`.

        Raises:
            UnavailableError: the package that generates the source is not installed.
        """
        how: dict[str, Any] = {"target": target.name, "defines": dict(self.defines), "instantiate": self.names}
        if not isinstance(self.source, Generated):
            return self.source, {**how, "options": self.options, "include_dirs": self.include_dirs}
        s = self.source.source()
        how |= {"name": s.name, "options": (*s.options, *self.options), "include_dirs": s.include_dirs}
        return s.text, {**how, "headers": dict(s.headers)}


@dataclass(frozen=True)
class ResolvedVariant:
    """A variant at given sizes, for a target and a device.

    Attributes:
        workload: the workload with its sizes and the facts of the device for which the launches are made.
        variant: one of its variants.
        target: the target of the programs.
        tile: the chosen tile parameters.
        launches: the launches in order. Block and shared memory of a :class:`Generated` kernel are known after compilation.
        programs: the distinct programs, in the order of their first launch.
        program_of: for each launch the index of its program.
        tuned: the tile is that of a recorded winner for this device.
        tile_note: why the tile is not the declared default; "" if it is the default.
    """

    workload: Workload
    variant: Variant
    target: Target
    tile: Tile
    launches: tuple[Launch, ...]
    programs: tuple[Program, ...]
    program_of: tuple[int, ...]
    tuned: bool = False
    tile_note: str = ""


def resolve(
    workload: Workload,
    variant: Variant,
    target: Target | None = None,
    tile: Mapping[str, Any] | None = None,
    *,
    device: Device | None = None,
    debug_info: bool = False,
) -> ResolvedVariant:
    """Determine target, tile, launches and programs of a variant.

    Args:
        workload: the workload with its sizes, which determine the tile and may determine the kernels.
        variant: one of its variants.
        target: None for the target of the device, or without a device for sm_90a or the lowest newer target that meets the
            variant's requirements.
        tile: fixed tile parameters by name, as strings or values. The others are those of a winner that was recorded for the
            device at these sizes and options, or else those that the description prefers.
        device: the device of the launches; its SM count and L2 cache determine grids and tiles. None for the device facts of
            the workload, or if it has none for those of the target's reference GPU.
        debug_info: compile CUDA C++ with ``-G``: without optimisation, with the locations of variables.

    Raises:
        UnavailableError: the target lacks a feature that the variant requires.
        UsageError: an undeclared tile parameter or value, or no tile for these sizes.
        DescriptionError: a missing source, or a template argument for a ``.ptx``.
    """
    chosen = target_for(variant, target or (device.target if device else None))
    reason = missing(variant.requires, chosen)
    if reason is not None:
        raise UnavailableError(f"variant {variant.name} of {workload.name}: {reason}")
    if device is not None:
        workload = workload.on(device.facts_for(chosen))
    elif not workload.is_bound:
        workload = workload.on(reference_facts(chosen))
    recorded = _recorded(workload, variant, chosen, device, tile or {}) if device else None
    selected, launches = variant.select(workload, chosen, (recorded and recorded.tile) or tile)
    note = recorded.note(workload.sizes) if recorded else variant.why_not_default(workload, chosen, selected, tile)
    if not recorded and not tile and (faster := tiling.faster(workload, variant, chosen, selected)) is not None:
        instead = " ".join(f"{name}={value}" for name, value in selected.items() if faster[0][name] != value)
        note = f"predicted to be {faster[2]:.2g} times as fast as with the preferred {instead}"
        selected, launches = faster[:2]
    if debug_info:
        launches = tuple(_with_debug_info(workload, variant, launch) for launch in launches)
    programs, program_of = _programs(workload, variant, launches)
    return ResolvedVariant(workload, variant, chosen, selected, launches, programs, program_of, bool(recorded), note)


def _recorded(
    workload: Workload, variant: Variant, target: Target, device: Device, fixed: Mapping[str, Any]
) -> Record | None:
    """The recorded winner whose tile the variant takes: it applies, these sizes permit it, and it has the fixed values."""
    found = lookup.tile_of(workload, variant.name, device.name, target)
    if found is None or not found.tile:
        return None
    with suppress(UsageError):  # of an undeclared value, which selecting the tile reports, or of another size of its class
        held = variant.held(workload, fixed)
        if any(found.tile.get(name) != value for name, value in held.items()):
            return None
        if lookup.applies(found, workload, partial(as_recorded, target)):
            variant.select(workload, target, found.tile)
            return found
    return None


def as_recorded(target: Target, workload: Workload, name: str, tile: Mapping[str, Any]) -> ResolvedVariant:
    """A variant with a tile at the sizes of a record, for :mod:`ptxkit.workload.tuned.lookup`."""
    return resolve(workload, workload.variant(name), target, tile)


def resolvable(
    workload: Workload,
    variants: Iterable[Variant],
    target: Target | None = None,
    tile_of: Callable[[Variant], Mapping[str, Any] | None] = lambda variant: None,
) -> list[ResolvedVariant]:
    """The variants that can be built without a device, resolved; others are omitted."""
    found = []
    for variant in variants:
        with suppress(PtxkitError):
            found.append(resolve(workload, variant, target, tile_of(variant)))
    return found


def target_for(variant: Variant, target: Target | None) -> Target:
    """``target``; if it is None, the lowest target that the variant can be compiled for."""
    return target or lowest_target(variant.requires)


def unavailable(variant: Variant, target: Target | None, workload: Workload | None = None) -> str | None:
    """Why the variant cannot be compiled for ``target`` or has no tile for the workload; None if it can be compiled."""
    reason = missing(variant.requires, target_for(variant, target))
    return reason or (variant.refusal(workload) if workload is not None else None)


def generated_sources(workload: Workload, variant: Variant) -> list[Generated]:
    """The generators of the kernels of a variant, with its first tile; empty if all kernels are in files."""
    tile = next(variant.tiles(workload), None)
    launches = variant.launches(workload, tile) if tile is not None else ()
    sources = (variant.source_of(workload, launch) for launch in launches)
    return [source for source in sources if isinstance(source, Generated)]


def find_source(workload: type[Workload], source: str) -> Path:
    """The path of ``source``: in the directory of the description, or in the bundled ``cu/kernels/`` or ``ptx/``.

    Raises:
        DescriptionError: the file does not exist.
    """
    from ptxkit.compiler.paths import kernels_dir, ptx_dir

    bundled = ptx_dir() if source.endswith(".ptx") else kernels_dir()
    places = [directory for directory in (workload.directory(), bundled) if directory]
    for directory in places:
        if (directory / source).is_file():
            return directory / source
    place = at(workload, "source")
    raise DescriptionError(f"{place}{workload.name}: there is no {source} in {' or '.join(map(str, places))}")


def include_directories(workload: Workload) -> tuple[Path, ...]:
    """The directories that are searched first for the headers of a description's sources.

    Raises:
        DescriptionError: ``include_dirs`` is not a list of directories that exist.
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
    """The macros of a launch's source: those of the description, extended or replaced by those of the launch."""
    if not isinstance(workload.defines, Mapping):
        raise DescriptionError(f"{workload.name}: defines must be a dict, not {workload.defines!r}")
    return {**workload.defines, **launch.defines}


def _programs(
    workload: Workload, variant: Variant, launches: Iterable[Launch]
) -> tuple[tuple[Program, ...], tuple[int, ...]]:
    """The distinct programs of the launches, and for each launch the index of its program."""
    groups: dict[tuple[Path | Generated, str], list[Launch]] = {}
    keys = []
    for launch in launches:
        defines = sorted(defines_of(workload, launch).items())
        key = _source(workload, variant, launch), repr((defines, launch.options))
        groups.setdefault(key, []).append(launch)
        keys.append(key)
    order = list(groups)
    programs = tuple(_program(workload, source, group) for (source, _), group in groups.items())
    return programs, tuple(order.index(key) for key in keys)


def _program(workload: Workload, source: Path | Generated, launches: list[Launch]) -> Program:
    launched = (launch.entry for launch in launches if launch.template)
    # the same program in any order of launches
    names = tuple(sorted({*launched, *(name for launch in launches for name in launch.instantiate)}))
    include_dirs = () if isinstance(source, Generated) else include_directories(workload)
    return Program(source, defines_of(workload, launches[0]), launches[0].options, names, include_dirs)


def _source(workload: Workload, variant: Variant, launch: Launch) -> Path | Generated:
    source = variant.source_of(workload, launch)
    if isinstance(source, Generated):
        return source
    path = find_source(type(workload), source)
    if path.suffix == ".ptx" and (launch.template or launch.defines or launch.options):
        raise DescriptionError(
            f"{path.name}: {launch.kernel} is PTX, which takes neither template arguments nor defines nor options"
        )
    return path


def _with_debug_info(workload: Workload, variant: Variant, launch: Launch) -> Launch:
    source = variant.source_of(workload, launch)
    if isinstance(source, str) and source.endswith(".ptx"):
        return launch
    return replace(launch, options=(*launch.options, "-G"))
