"""Which programs products share, and the choice of a step and a tile among them.

A tile of a step is a template argument of its kernel, while the sizes, leading dimensions, numbers of stages, of parts and of
sharing CTAs are arguments, so that one program (a cubin) serves many sizes. ``scripts/choose_programs.py`` finds from measured
times and predictions a few programs of each kernel and type that serve nearly all sizes well, and writes them to
``product_programs.json``. They are taken unless another program is predicted to be faster by a margin: a special program is
compiled only where it gains as much.
The margin is a share of the time, for large products and programs of one step a time, and for small products at least a time.

The same file has the measured exceptions of a GPU: sizes whose choice by the model was slower than the fastest measured tile.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from ptxkit import Launch

FILE = Path(__file__).parent / "product_programs.json"
"""Written by ``scripts/choose_programs.py``."""

STEP_8 = ("BM", "BN", "CONSUMERS", "STAGES", "CLUSTER_M", "CLUSTER_N")
STREAM_K = ("CONSUMERS", "ROWS", "COLUMNS")
MULTICAST = ("CONSUMERS", "ROWS", "TOKENS")
TEMPLATES = {
    "step8_tma_store": ("step8", STEP_8),
    "fused": ("step8", STEP_8),
    "step9_swapped": ("step9", ("CONSUMERS", "ROWS", "TOKENS")),
    "step10_split_k": ("step10", STEP_8),
    "step11_unaligned": ("step11", ("BM", "BN", "CONSUMERS", "STAGES")),
    "step12_aligned_copy": ("step8", STEP_8),
    "step13_stream_k": ("step13", STREAM_K),
    "stream_k": ("step13", STREAM_K),
    "step14_cluster_k": ("step14", STREAM_K),
    "cluster_k": ("step14", STREAM_K),
    "step15_multicast": ("step15", MULTICAST),
    "multicast": ("step15", MULTICAST),
    "step16_direct": ("step16", ("TOKENS", "ROWS", "STAGES")),
    "step17_shifted": ("step17", ("CONSUMERS", "COLUMNS")),
    "step18_row_classes": ("step18", MULTICAST),
    "step19_short_k": ("step19", ("DOWN", "ACROSS", "DEEP", "WM", "WN", "STAGED")),
    "step20_dot": ("step20", ("TOKENS", "BATCH")),
}
"""Variant -> its kernel, and the tile parameters that are template arguments. GROUP, REGISTERS and BOXES follow from these."""
ALTERNATING = ("PING_PONG",)
"""Template arguments that are 0 in most tiles, which do not name them."""
ALIKE = {"bf16": "f16", "f16": "bf16"}
"""Types whose products take as long: the same tile in both, of 66 that were measured, differs by 1.2% in the median."""
NO_EPILOGUE = {"epilogue": "none", "scale": "none", "bias": False, "activation": "none", "residual": False, "amax": False}
"""Options of products that select the epilogue, other than alpha and beta -> their values in a product without one."""
COPIES = "align_rows"
"""How the names of programs begin that copy operands which TMA cannot read."""
COPIES_OF_CLASSES = f"{COPIES} of classes"


def program(variant: str, tile: Mapping[str, int], **flags: object) -> str:
    """The name of the program of a tile, in ``product_programs.json``.

    Args:
        flags: other template arguments that depend on the sizes.
    """
    kernel, names = TEMPLATES[variant]
    values = {**{name: tile[name] for name in names}, **{name: 1 for name in ALTERNATING if tile.get(name)}, **flags}
    return " ".join([kernel, *(f"{name}={value}" for name, value in values.items())])


def of_launches(launches: Iterable[Launch]) -> tuple[str, ...]:
    """The names of the programs of launches: the instances of templates that are compiled together."""
    found: dict[tuple[object, ...], list[str]] = {}
    for launch in launches:
        if launch.template:
            found.setdefault((launch.source, launch.options), []).append(launch.entry)
    return tuple(" + ".join(dict.fromkeys(entries)) for entries in found.values())


@dataclass(frozen=True)
class Option:
    """A variant with a tile, its predicted microseconds, and the programs that it needs."""

    variant: str
    tile: Mapping[str, Any] = field(compare=False)
    predicted_us: float
    programs: tuple[str, ...]


@dataclass(frozen=True)
class SharedPrograms:
    """The programs of a kernel.

    Another one is taken if its prediction, times 1 + ``margin``, is smaller, and smaller by more than ``least_us``. One of the
    same variant, with which the comparison has less error, is also taken if its prediction is smaller by ``margin_us``.
    """

    programs: frozenset[str] = frozenset()
    margin: float = 0.0
    margin_us: float = math.inf
    least_us: float = 0.0

    def has(self, option: Option) -> bool:
        """Whether the option needs no other program than these and, of which each type has one, that of copies."""
        return all(name in self.programs or name.startswith(COPIES) for name in option.programs)

    def best(self, options: Sequence[Option]) -> Option:
        """The option that is taken."""
        fastest = min(options, key=lambda option: option.predicted_us)
        shared = [option for option in options if self.has(option)]
        if not shared:
            return fastest
        best = min(shared, key=lambda option: option.predicted_us)
        if max(fastest.predicted_us * (1 + self.margin), fastest.predicted_us + self.least_us) < best.predicted_us:
            return fastest
        alike = min((o for o in options if o.variant == best.variant), key=lambda option: option.predicted_us)
        return alike if alike.predicted_us + self.margin_us < best.predicted_us else best


@dataclass(frozen=True)
class ProductPrograms:
    """The contents of ``product_programs.json``.

    Attributes:
        gpu: on which the times were measured. shared: kernel and type of the operands -> its programs.
        exceptions: kernel, m, n, k and type of the operands -> variant and tile, for a single product.
    """

    gpu: str
    shared: Mapping[tuple[str, str], SharedPrograms]
    exceptions: Mapping[tuple[str, int, int, int, str], tuple[str, Mapping[str, int]]]

    @classmethod
    def of(cls, path: Path) -> ProductPrograms:
        """Those of a file."""
        read = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            read["measured_on"]["gpu"],
            {
                (of["kernel"], dtype): SharedPrograms(
                    frozenset(of["programs"]), of["margin"], of.get("margin_us", math.inf), of.get("least_us", 0.0)
                )
                for of in read["shared"]
                for dtype in of["dtypes"]
            },
            {(e["kernel"], e["m"], e["n"], e["k"], e["dtype"]): (e["variant"], e["tile"]) for e in read["exceptions"]},
        )

    def of_product(self, w: Any) -> SharedPrograms:
        """Those of a product: of its type, or where there are none of its own, of all types of its kernel."""
        own = self.shared.get((w.name, dtype_of(w)))
        if own is not None:
            return own
        others = [shared for (kernel, _), shared in self.shared.items() if kernel == w.name]
        return replace(others[0], programs=frozenset().union(*(o.programs for o in others))) if others else SharedPrograms()


@cache
def product_programs() -> ProductPrograms:
    """Those of :data:`FILE`."""
    return ProductPrograms.of(FILE)


def dtype_of(w: Any) -> str:
    """The type of the operands of a product."""
    return str(getattr(w, "dtype", "f32"))


def keys_of_exceptions(w: Any) -> Iterator[tuple[str, int, int, int, str]]:
    """The keys of the exceptions that count for a product: its own, then that of the other type that takes as long."""
    for dtype in (dtype_of(w), ALIKE.get(dtype_of(w))):
        if dtype is not None:
            yield w.name, w.m, w.n, w.k, dtype


def chosen(w: Any, options: Iterable[Option]) -> Option:
    """The option that is taken for a product: a measured exception of its GPU, or the best one by the shared programs.

    The programs are those of products of contiguous operands along k, ``layout="tn"``, of which there are times, and of f32.
    Other layouts and products of :func:`has_epilogue` have other programs in any case: they take the fastest option by the
    model.
    """
    found = list(options)
    if getattr(w, "layout", "tn") != "tn":
        return SharedPrograms().best(found)
    programs = product_programs()
    if w.device.gpu == programs.gpu and getattr(w, "batch", 1) == 1:  # those of single products were measured
        for exception in map(programs.exceptions.get, keys_of_exceptions(w)):
            for option in found if exception else ():
                if (option.variant, dict(option.tile)) == exception:
                    return option
    shared = SharedPrograms() if has_epilogue(w) else programs.of_product(w)
    return shared.best(found)


def has_epilogue(w: Any) -> bool:
    """Whether a product has a part of an epilogue other than alpha and beta."""
    return any(getattr(w, name, none) != none for name, none in NO_EPILOGUE.items())


@dataclass(frozen=True)
class Choice:
    """The option that is taken, and the smallest predicted time of each variant, in microseconds."""

    taken: Option
    times: Mapping[str, float]

    @classmethod
    def of(cls, w: Any, options: Iterable[Option]) -> Choice:
        """That of a product."""
        found = list(options)
        times: dict[str, float] = {}
        for option in found:
            times[option.variant] = min(option.predicted_us, times.get(option.variant, option.predicted_us))
        return cls(chosen(w, found), times)

    def tiles(self, variant: str, options: Callable[[], Iterable[Option]]) -> Iterator[Mapping[str, Any]]:
        """The tiles of a variant: that which is taken first, then those of its ``options`` by their predicted times."""
        first = dict(self.taken.tile) if self.taken.variant == variant else None
        if first is not None:
            yield first
        own = (option for option in options() if option.variant == variant and dict(option.tile) != first)
        yield from (option.tile for option in sorted(own, key=lambda option: option.predicted_us))


def objection(predicted_us: float, taken: str, taken_us: float) -> str:
    """Why ``taken`` is taken instead of what is predicted to take ``predicted_us``."""
    if predicted_us >= taken_us:
        return f"predicted to take {predicted_us:.3g} us, and {taken} {taken_us:.3g} us"
    shared = f"{taken}, {taken_us:.3g} us, was measured to be the fastest or shares its program with other sizes"
    return f"predicted to take {predicted_us:.3g} us; {shared}"
