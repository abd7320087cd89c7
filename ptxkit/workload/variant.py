"""Variants of a kernel, their requirements and their tile parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, overload

from ptxkit.errors import DescriptionError, UsageError
from ptxkit.workload.blame import at, blamed, short
from ptxkit.workload.launch import Generated, Launch, Tile, Tolerance
from ptxkit.workload.tile_space import permitted

if TYPE_CHECKING:
    from ptxkit.targets import Target

StatedTolerance = Tolerance | Mapping[str, Tolerance] | Callable[[Any], Tolerance | Mapping[str, Tolerance]]
"""Of all outputs or of those that it names, or a function that returns this for a workload."""

Constraint = Callable[[Any, Tile], "bool | str | None"]
Preference = Callable[[Any], Iterable[Mapping[str, Any]]]
Remark = Callable[[Any], str | None]


class Described(Protocol):
    """The attributes of a :class:`~ptxkit.workload.workload.Workload` that its variants read."""

    name: ClassVar[str]
    source: ClassVar[str]

    def size_text(self) -> str:
        """The sizes, for messages."""


@dataclass(frozen=True)
class Variant:
    """One way to compute a workload: a method that returns the launches, and its declarations.

    Attributes:
        name: the method's name.
        function: the method; called with the workload and, if it has a second parameter, the tile.
        tile: tile parameter -> permitted values, of which the first is the default.
        requires: targets or features that it needs: ``("sm_90a",)``, ``("clusters", "tma")``.
        constraint: (workload, tile) -> True or None if the tile can be used, else False or the reason. The answer depends on
            nothing but these, because the answer for one tile is used for others with the same values of what it reads.
        prefer: workload -> tiles to try first, best first; each may omit parameters.
        source: the file with its kernels, if it is not that of the workload.
        tolerance: replaces that of the workload.
        slower: workload -> why an earlier variant is faster at these sizes, or None if that is not known. The variant can
            still be run, but :func:`ptxkit.workload.choice.choose` takes another one.
        blocks: of a product with the sizes m, n and k, the tile parameters that state how many rows and columns of the output a
            CTA computes at a time, ``("BM", "BN")``. The tile then follows from a model where it expects another one to be much
            faster than the preferred one (:mod:`ptxkit.workload.tiling`).
    """

    name: str
    function: Callable[..., Sequence[Launch]]
    tile: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    constraint: Constraint | None = None
    prefer: Preference | None = None
    source: str | None = None
    tolerance: StatedTolerance | None = None
    slower: Remark | None = None
    blocks: tuple[str, str] | tuple[()] = ()

    @property
    def description(self) -> str:
        """First line of the method's docstring, or ""."""
        return (self.function.__doc__ or "").strip().split("\n", 1)[0]

    def launches(self, workload: Described, tile: Mapping[str, Any]) -> tuple[Launch, ...]:
        """The launches, in order, for these sizes and this tile.

        Raises:
            DescriptionError: the method did not return a list of Launch.
        """
        takes_tile = self.function.__code__.co_argcount > 1
        chosen = tile if isinstance(tile, Tile) else Tile(tile)
        with blamed(self.function):
            result = self.function(workload, chosen) if takes_tile else self.function(workload)
        if not isinstance(result, (list, tuple)) or not result or not all(isinstance(i, Launch) for i in result):
            raise DescriptionError(
                f"{at(type(workload), self.name)}variant {self.name} of {workload.name} must return a list of Launch, not "
                f"{short(result)}"
            )
        return tuple(result)

    def source_of(self, workload: Described, launch: Launch) -> str | Generated:
        """Name of the file that contains the kernel of ``launch``, or the object that generates it."""
        source = launch.source or self.source or workload.source
        if not source:
            raise DescriptionError(
                f"{workload.name} names no source for {launch.kernel}: set source = '{workload.name}.cu'"
            )
        return source

    def requirements(self, launches: Iterable[Launch]) -> tuple[str, ...]:
        """The variant's requirements, including clusters if a launch uses them."""
        clustered = any(launch.cluster not in (None, (1, 1, 1)) for launch in launches)
        return (*self.requires, "clusters") if clustered and "clusters" not in self.requires else self.requires

    def tiles(self, workload: Described, fixed: Mapping[str, Any] | None = None) -> Iterator[Tile]:
        """All tiles that the constraint allows and that have the values in ``fixed``, preferred ones first."""
        held = {name: value for name, value in (fixed or {}).items() if name in self.tile}
        space = {name: (held[name],) if name in held else values for name, values in self.tile.items()}
        # a preference decides nothing where all values are fixed, and may take longer to compute than the rest
        preferred = () if len(held) == len(self.tile) else (values | held for values in self._preferred(workload))
        yield from permitted(preferred, space, partial(self.permits, workload))

    def select_tile(self, workload: Described, target: Target, overrides: Mapping[str, Any] | None = None) -> Tile:
        """The tile of :meth:`select`."""
        return self.select(workload, target, overrides)[0]

    def select(
        self, workload: Described, target: Target, overrides: Mapping[str, Any] | None = None
    ) -> tuple[Tile, tuple[Launch, ...]]:
        """The first tile for these sizes that ``target`` can run, with its launches.

        Args:
            workload: the workload with its sizes.
            target: the target that the variant will be compiled for.
            overrides: parameter -> value, as a string (``"256"``) or as declared (``256``).

        Raises:
            UsageError: an override names an unknown parameter or value, or there is no usable tile with it.
        """
        from ptxkit.targets import missing

        held = self.held(workload, overrides or {})
        reason = None
        for tile in self.tiles(workload, held):
            launches = self.launches(workload, tile)
            reason = missing(self.requirements(launches), target) or _too_large(launches, target)
            if reason is None:
                return tile, launches
        if reason is None:
            first = Tile({name: held.get(name, values[0]) for name, values in self.tile.items()})
            reason = self._objection(workload, first)
        where = f" with {Tile(held)}" if held else ""
        raise UsageError(
            f"variant {self.name} of {workload.name} has no tile{where} for {workload.size_text()}: {reason}"
        )

    def why_not_default(
        self, workload: Described, target: Target, chosen: Tile, overrides: Mapping[str, Any] | None = None
    ) -> str:
        """Why a tile was chosen instead of the declared default; "" if it is the default.

        Args:
            overrides: parameters that the caller has fixed.
        """
        from ptxkit.targets import missing

        held = self.held(workload, overrides or {})
        default = Tile({name: held.get(name, values[0]) for name, values in self.tile.items()})
        different = [name for name in self.tile if chosen[name] != default[name]]
        if not different:
            return ""
        instead = ", ".join(f"{name}={default[name]}" for name in different)
        reason = self._objection(workload, default)
        if reason is None:
            launches = self.launches(workload, default)
            reason = missing(self.requirements(launches), target) or _too_large(launches, target)
        return (
            f"not the default {instead}: {reason}" if reason else f"preferred to the default {instead} for these sizes"
        )

    def refusal(self, workload: Described) -> str | None:
        """Why the constraint allows no tile for these sizes and options; None if it allows one."""
        if self.constraint is None or next(self.tiles(workload), None) is not None:
            return None
        return self._objection(workload, Tile(next(self._preferred(workload), self._default())))

    def held(self, workload: Described | type[Described], overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Tile parameters with the types of the declared values, from strings or values.

        Raises:
            UsageError: an unknown parameter or value.
        """
        return {name: self._value(workload, name, value) for name, value in overrides.items()}

    def _preferred(self, workload: Described) -> Iterator[dict[str, Any]]:
        """The tiles to try first, with the default values of the parameters that the preference omits."""
        if self.prefer is None:
            return
        with blamed(self.prefer):
            found = list(self.prefer(workload))
        for values in found:
            for name, value in values.items():
                if value not in self.tile.get(name, ()):
                    raise DescriptionError(
                        f"variant {self.name} of {workload.name} prefers {name}={value}, which it does not declare"
                    )
            yield {**self._default(), **values}

    def _default(self) -> dict[str, Any]:
        return {name: values[0] for name, values in self.tile.items()}

    def permits(self, workload: Described, tile: Tile) -> bool:
        """Whether the constraint allows a tile."""
        return _is_permission(self._verdict(workload, tile))

    def _objection(self, workload: Described, tile: Tile) -> str | None:
        verdict = self._verdict(workload, tile)
        if _is_permission(verdict):
            return None
        return verdict if isinstance(verdict, str) else f"its constraint refuses {tile}"

    def _verdict(self, workload: Described, tile: Tile) -> bool | str | None:
        if self.constraint is None:
            return None
        with blamed(self.constraint):
            return self.constraint(workload, tile)

    def _value(self, workload: Described | type[Described], name: str, value: Any) -> Any:
        if name not in self.tile:
            known = ", ".join(self.tile) or "none"
            raise UsageError(f"variant {self.name} of {workload.name} has no tile parameter {name}; it has {known}")
        for offered in self.tile[name]:
            if value == offered or str(value).lower() == str(offered).lower():
                return offered
        known = ", ".join(map(str, self.tile[name]))
        raise UsageError(f"tile {name}={value}: variant {self.name} of {workload.name} offers {known}")


def _too_large(launches: Iterable[Launch], target: Target) -> str | None:
    """Why ``target`` does not support the dynamic shared memory or the cluster of a launch; None if it does."""
    for launch in launches:
        if launch.shared > (most := target.limits.shared_bytes_per_cta):
            return f"{launch.shared:,} bytes of shared memory; a CTA of {target} may have {most:,}"
        ctas = prod(launch.cluster) if isinstance(launch.cluster, tuple) else 1  # Launch converts it to a tuple
        if ctas > (most := target.limits.largest_cluster):
            return f"a cluster of {ctas} CTAs; {target} supports {most}"
    return None


@overload
def variant(function: Callable[..., Sequence[Launch]], /) -> Variant: ...


@overload
def variant(
    *,
    tile: Mapping[str, Sequence[Any]] | None = None,
    requires: Sequence[str] = (),
    constraint: Constraint | None = None,
    prefer: Preference | None = None,
    source: str | None = None,
    tolerance: StatedTolerance | None = None,
    slower: Remark | None = None,
    blocks: tuple[str, str] | tuple[()] = (),
) -> Callable[[Callable[..., Sequence[Launch]]], Variant]: ...


def variant(
    function: Callable[..., Sequence[Launch]] | None = None,
    /,
    *,
    tile: Mapping[str, Sequence[Any]] | None = None,
    requires: Sequence[str] = (),
    constraint: Constraint | None = None,
    prefer: Preference | None = None,
    source: str | None = None,
    tolerance: StatedTolerance | None = None,
    slower: Remark | None = None,
    blocks: tuple[str, str] | tuple[()] = (),
) -> Variant | Callable[[Callable[..., Sequence[Launch]]], Variant]:
    """Declare a method of a :class:`Workload` as a variant; :class:`Variant` describes the arguments.

    ::

        @variant(tile={"THREADS": [256, 128, 512]}, requires=["sm_80"])
        def fused(self, t): return [Launch("saxpy", cdiv(self.n, t.THREADS), t.THREADS, ("a", "x", "y", self.n))]
    """
    if isinstance(requires, str):
        requires = (requires,)
    for name, offered in (tile or {}).items():
        if isinstance(offered, str) or not isinstance(offered, Iterable):
            raise DescriptionError(f"tile parameter {name} takes a list of values, the default first, not {offered!r}")
    values = {name: tuple(offered) for name, offered in (tile or {}).items()}
    for name, offered in values.items():
        if not offered:
            raise DescriptionError(f"tile parameter {name} offers no values")
    if blocks and not (isinstance(blocks, tuple) and len(blocks) == 2 and set(blocks) <= set(values)):
        raise DescriptionError(f"blocks takes the names of two tile parameters, rows and columns, not {blocks!r}")

    def declare(method: Callable[..., Sequence[Launch]]) -> Variant:
        name = method.__name__
        return Variant(name, method, values, tuple(requires), constraint, prefer, source, tolerance, slower, blocks)

    return declare if function is None else declare(function)


def require_tile_parameters(
    workload: Described | type[Described], variants: Sequence[Variant], names: Iterable[str], *, every: bool
) -> None:
    """Check that each name is a tile parameter of at least one of the variants.

    Args:
        every: whether these are all variants of the workload; else the message names them, because others may have it.

    Raises:
        UsageError: a name is not.
    """
    for name in names:
        if not any(name in variant.tile for variant in variants):
            known = ", ".join(dict.fromkeys(n for v in variants for n in v.tile)) or "none"
            owner = f"{workload.name} has no"
            if not every:
                listed = ", ".join(v.name for v in variants)
                one = len(variants) == 1
                owner = f"variant {listed} of {owner}" if one else f"none of the variants {listed} of {workload.name} has the"
            raise UsageError(f"{owner} tile parameter {name}; there are {known}")


def _is_permission(verdict: bool | str | None) -> bool:
    return verdict is None or verdict is True
