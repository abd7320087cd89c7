"""The subject of a sweep: one variant at one size for one target, as plain values that can be sent to other
processes."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ptxkit.errors import UsageError
from ptxkit.targets.gpus import DeviceFacts, reference_facts
from ptxkit.workload import registry
from ptxkit.workload.launch import Tile

if TYPE_CHECKING:
    from ptxkit.targets import Target
    from ptxkit.workload.variant import Variant
    from ptxkit.workload.workload import Workload

COMBINATIONS = 200  # random combinations of values for each tile of a sample, above which all tiles are listed instead


@dataclass(frozen=True)
class Problem:
    """A variant whose tiles are explored.

    Attributes:
        kernel: its name, or the path of its description. variant: the name.
        sizes, options: of the workload.
        target: compiled for.
        fixed: values of tile parameters that are not explored.
        space: parameter -> values to explore instead of the declared ones, for some parameters.
        facts: of the device that the configurations are for; None takes those of the target's reference GPU.
    """

    kernel: str
    variant: str
    sizes: Mapping[str, int]
    options: Mapping[str, Any]
    target: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    space: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    facts: DeviceFacts | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # without the cached properties: a workload's methods cannot be pickled
        return Problem, tuple(getattr(self, f.name) for f in fields(self))

    @cached_property
    def workload(self) -> Workload:
        """The workload with its sizes."""
        kernel = registry.find(self.kernel)
        return kernel(**self.sizes, **self.options).on(self.facts or reference_facts(self.target))

    @cached_property
    def chosen(self) -> Variant:
        """The variant."""
        return self.workload.variant(self.variant)

    @cached_property
    def parsed_target(self) -> Target:
        """The target."""
        from ptxkit.targets import Target

        return Target.parse(self.target)

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Parameter -> values explored."""
        axes = {}
        for name, values in self.chosen.tile.items():
            if name in self.fixed:
                axes[name] = (self.fixed[name],)
            else:
                axes[name] = tuple(v for v in values if v in self.space.get(name, values))
        return axes

    @property
    def combinations(self) -> int:
        """Number of combinations of the values explored, with those that cannot be built."""
        return math.prod(len(set(values)) for values in self.axes.values())

    @property
    def key(self) -> str:
        """Short hash of everything that identifies a sweep; two sweeps with the same key are the same sweep."""
        said = json.dumps(
            [
                self.kernel,
                self.variant,
                dict(self.sizes),
                dict(self.options),
                self.target,
                dict(self.fixed),
                dict(self.space),
            ],
            sort_keys=True,
            default=str,
        )
        return hashlib.sha256(said.encode()).hexdigest()[:12]

    @property
    def title(self) -> str:
        """The kernel, variant and sizes, for messages."""
        return f"{self.workload.name}:{self.variant} {' '.join(f'{k}={v}' for k, v in self.sizes.items())}"


@dataclass(frozen=True)
class Space:
    """The tiles that can be built, and how many cannot and why.

    Attributes:
        tiles: those the constraints allow, preferred ones first.
        refused: reason -> number of tiles; sizes in a reason are those of the first such tile.
        size: of the whole product.
        complete: whether ``tiles`` are all that can be built; else they are some, and ``refused`` is empty.
    """

    tiles: tuple[Tile, ...]
    refused: Mapping[str, int]
    size: int
    complete: bool = True


def explore(problem: Problem, most: int | None = None) -> Space:
    """Apply every rule that needs no compiler: the variant's constraint, its target, and the limits of a CTA.

    Args:
        most: maximum number of tiles; those after them are not listed. None for all.

    Raises:
        UsageError: the variant has no tile parameters, or nothing is left.
    """
    variant, workload = problem.chosen, problem.workload
    if not variant.tile:
        raise UsageError(f"{problem.title} declares no tile parameters; there is nothing to sweep")
    size, allowed = problem.combinations, 0  # there may be millions of combinations, which are not listed
    refused: Counter[str] = Counter()
    kept: list[Tile] = []
    for tile in _allowed(problem):
        allowed += 1
        reason = next(_objections(problem, tile), None)
        if reason is not None:
            refused[reason] += 1
        elif len(kept) == most:
            return Space(tuple(kept), {}, size, complete=False)
        else:
            kept.append(tile)
    if size > allowed:
        refused = Counter({"its constraint": size - allowed}) + refused
    if not kept:
        # raises an error with the reason, unless only the restricted values exclude all tiles
        variant.select_tile(workload, problem.parsed_target, problem.fixed)
        raise UsageError(f"{problem.title} has no tile for {problem.target}: {next(iter(refused), 'no values')}")
    return Space(tuple(kept), refused, size)


def drawn(problem: Problem, count: int, seed: int, *, preferred: bool) -> Space | None:
    """The first ``count`` different tiles among random combinations of values, without a list of all of them.

    A larger sample with the same seed begins with the smaller one.

    Args:
        preferred: whether the sample begins with the first tile of :func:`explore`.

    Returns:
        None if too few combinations can be built, so that a list of all takes less time.
    """
    variant, workload, axes = problem.chosen, problem.workload, problem.axes
    generator = random.Random(seed)
    kept = dict.fromkeys(explore(problem, 1).tiles if preferred else ())
    for _ in range(COMBINATIONS * count):
        tile = Tile({name: generator.choice(values) for name, values in axes.items()})
        if tile not in kept and variant.permits(workload, tile) and next(_objections(problem, tile), None) is None:
            kept[tile] = None
        if len(kept) >= count:
            return Space(tuple(kept), {}, problem.combinations, complete=False)
    return None


def with_known(problem: Problem, space: Space, known: Iterable[Tile]) -> Space:
    """An incomplete space with the tiles of an earlier sweep that can still be built, after its own."""
    if space.complete:
        return space
    axes, own = problem.axes, set(space.tiles)
    added = [
        tile
        for tile in dict.fromkeys(known)
        if tile not in own
        and tile.keys() == axes.keys()
        and all(tile[name] in values for name, values in axes.items())
        and problem.chosen.permits(problem.workload, tile)
        and next(_objections(problem, tile), None) is None
    ]
    return replace(space, tiles=(*space.tiles, *added))


def _allowed(problem: Problem) -> Iterator[Tile]:
    """The tiles that the variant's constraint allows, with the values that are explored."""
    axes = [frozenset(values) for values in problem.axes.values()]
    for tile in problem.chosen.tiles(problem.workload, problem.fixed):
        if all(value in axis for value, axis in zip(tile.values(), axes, strict=True)):
            yield tile


@dataclass(frozen=True)
class LaunchShape:
    """The largest of a tile's launches; see :class:`ptxkit.sweep.search.Shape`."""

    ctas: int
    threads: int
    shared_bytes: int


def shape_of(problem: Problem, tile: Tile) -> LaunchShape:
    """The shape of a tile's largest launch, from the description alone, before anything is compiled."""
    launches = problem.chosen.launches(problem.workload, tile)
    sizes = [(math.prod(launch.grid), math.prod(launch.block), launch.shared) for launch in launches]  # type: ignore[arg-type]
    return LaunchShape(*max(sizes, key=lambda size: size[0] * size[1]))


def _objections(problem: Problem, tile: Tile) -> Iterator[str]:
    from ptxkit.targets import missing

    launches = problem.chosen.launches(problem.workload, tile)
    reason = missing(problem.chosen.requirements(launches), problem.parsed_target)
    if reason is not None:
        yield reason
    limits = problem.parsed_target.limits
    for launch in launches:
        x, y, z = launch.block  # type: ignore[misc]  # a Launch makes it three
        if x * y * z > limits.threads_per_cta:
            yield f"more than {limits.threads_per_cta} threads"
        if launch.shared > limits.shared_bytes_per_cta:
            yield f"more than {limits.shared_bytes_per_cta} bytes of shared memory"
