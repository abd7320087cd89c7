"""Which variant and which tile matmul_fused takes, by the model and the shared programs of matmul_wgmma."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from ptxkit import Tile
from ptxkit.kernels.gemm import cluster_k, matmul_wgmma, multicast, programs, stream_k, stream_model, wgmma_tiles
from ptxkit.kernels.gemm.matmul_wgmma import BY_TMA, STAGED, MatmulWgmma
from ptxkit.kernels.gemm.product import Layout
from ptxkit.kernels.gemm.programs import Choice, Option, program
from ptxkit.kernels.gemm.stream_model import StreamWork
from ptxkit.kernels.measured import measured
from ptxkit.kernels.per_device import cached_per_device
from ptxkit.targets.wgmma import columns_refused
from ptxkit.workload.inputs import dtype_of

STAGED_ENDS = 6.0  # how many times as long as by TMA stores row by row take
LONE_BOX_ENDS = 2.0  # and stores of elements of four bytes, if each warp of the only consumer waits for its last one


class Fused(wgmma_tiles.Product, Protocol):
    """What the choice needs of a matmul_fused."""

    @property
    def batch(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def parts(self) -> tuple[str, ...]: ...
    @property
    def activation(self) -> str: ...
    @property
    def output_kind(self) -> str: ...
    @property
    def unfused_result(self) -> tuple[str, str]: ...

    def stored_tile(self, t: Tile, c: str) -> Tile:
        """The tile with its store of the array ``c``."""


def usable(w: Fused, t: Tile) -> bool | str:
    """The constraint of ``fused``."""
    simple = not w.parts and w.activation == "none"
    return storable(w, w.stored_tile(t, "c"), w.output_kind, pairs=w.activation == "silu_mul", simple=simple)


def usable_unfused(w: Fused, t: Tile) -> bool | str:
    """The constraint of ``unfused``, whose product may have f32 or s32 sums as its result."""
    c, kind = w.unfused_result
    return storable(w, w.stored_tile(t, c), kind, pairs=False, simple=True)


def storable(w: Any, t: Tile, kind: str, *, pairs: bool, simple: bool) -> bool | str:
    """Whether the product can have this tile, with its store, if it stores elements of type ``kind``.

    Args:
        pairs: two sums make one element. simple: the sums are stored unchanged, for which a thread needs few registers.
    """
    if (refused := columns_refused(w.kind, t.BN)) is not None:
        return f"BN={t.BN}: {refused}"
    element, columns = dtype_of(kind).itemsize, 2 if pairs else 1
    row_bytes = wgmma_tiles.box_row_bytes(t, element, columns)
    width = row_bytes // element * columns if t.STORE == BY_TMA else 64
    if t.BN % width:
        return f"a tile of BN={t.BN} columns has no whole boxes of {width}, which the epilogue stores"
    allowed = matmul_wgmma.whole_boxes(w, t)
    return matmul_wgmma.can_run(w, t, simple=simple, box_columns=width) if allowed is True else allowed


def alike(w: Fused) -> MatmulWgmma:
    """One product of 16-bit elements with as many tiles and steps along k, for the model of the tiles.

    An instruction multiplies 32 bytes of a row in the same time, whatever the type is.
    """
    return MatmulWgmma(m=w.m, n=w.n, k=max(1, w.k * w.itemsize // 2), layout=w.layout).on(w.device)


def stream_work(w: Fused, t: Mapping[str, int]) -> StreamWork:
    """What a launch of ``fused`` does: that of products that are alike, with the bytes of its own arrays and its own stores."""
    work = replace(wgmma_tiles.stream_work(alike(w), t, batch=w.batch), memory_bytes=w.work().bytes)
    if dtype_of(w.output_kind).itemsize > 2:
        work = replace(work, wide=work.ends)
    if w.stored_tile(Tile(t), "c").STORE == STAGED:
        return replace(work, ends=work.ends * STAGED_ENDS)
    if dtype_of(w.output_kind).itemsize > 2 and t["CONSUMERS"] * t["BOXES"] == 1:
        return replace(work, ends=work.ends * LONE_BOX_ENDS)
    return work


def predicted_us(w: Fused, t: Mapping[str, int]) -> float:
    """The time of ``fused`` with a tile, by the model."""
    entry = measured(w.device)
    own = entry.fused_ping_pong if t.get("PING_PONG") else entry.fused
    rates = (w.itemsize != 2 and own) or wgmma_tiles.rates_of(entry, t)
    return stream_model.predicted_us(rates, stream_work(w, t), w.device.sms / entry.sms)


def preferred(w: Fused) -> Iterator[Mapping[str, Any]]:
    """The tiles of step 8 of matmul_wgmma."""
    yield from wgmma_tiles.preferred(alike(w))


def usable_shares(w: Fused, t: Tile) -> bool | str:
    """The constraint of ``stream_k``."""
    return stream_k.fits(w, t, w.itemsize, w.batch)


def usable_clusters(w: Fused, t: Tile) -> bool | str:
    """The constraint of ``cluster_k``."""
    return cluster_k.usable(w, t, w.itemsize)


def usable_multicast(w: Fused, t: Tile) -> bool | str:
    """The constraint of ``multicast``."""
    return multicast.usable(w, t, w.itemsize)


def options(w: Fused) -> Iterator[Option]:
    """The tiles of all variants that may be the fastest; those of ``cluster_k`` and ``multicast`` once there are times."""
    product = alike(w)
    for t in (*wgmma_tiles.candidates(product), *wgmma_tiles.alternating_candidates(product, simple=True)):
        if usable(w, tile := Tile(t)) is True:
            staged = int(w.stored_tile(tile, "c").STORE == STAGED)
            if staged and t.get("PING_PONG"):
                continue  # such stores take longer than the products that would hide them
            yield Option("fused", t, predicted_us(w, t), (program("fused", t, STAGED=staged),))
    for t in stream_k.candidates(w, w.batch):
        if stream_k.usable(w, t, w.itemsize, w.batch) is True:
            us = stream_k.predicted_us(w, t, w.itemsize, w.batch)
            yield Option("stream_k", t, us, (program("stream_k", t),))
    if measured(w.device).cluster_k is not None:
        for t in cluster_k.candidates(w, w.itemsize, w.batch):
            us = cluster_k.predicted_us(w, t, w.itemsize, w.batch)
            yield Option("cluster_k", t, us, (program("cluster_k", t),))
    if multicast.was_timed(w):
        for t in multicast.candidates(w, w.itemsize, w.batch, many_sums=True):
            us = multicast.predicted_us(w, t, w.itemsize, w.batch)
            yield Option("multicast", t, us, (program("multicast", t),))


@cached_per_device
def choice(w: Fused) -> Choice:
    """The variant and the tile that are taken, and the predicted times of all variants."""
    return Choice.of(w, options(w))


ASKED_FOR = {"stream_k": stream_k.preferred, "cluster_k": cluster_k.preferred, "multicast": multicast.preferred}
"""The tiles of a variant for products for which it is not considered."""


def tiles_of(name: str) -> Callable[[Fused], Iterator[Mapping[str, Any]]]:
    """The tiles of a variant: that which is taken first, then the others by their predicted times."""

    def tiles(w: Fused) -> Iterator[Mapping[str, Any]]:
        found = choice(w)
        if name in found.times:
            yield from found.tiles(name, lambda: options(w))
        else:
            yield from ASKED_FOR[name](w, w.itemsize, w.batch)

    return tiles


def slower(w: Fused, name: str) -> str | None:
    """Why another variant is taken instead of this one; None if this one is."""
    found = choice(w)
    if found.taken.variant == name:
        return None
    if name not in found.times:
        unmeasured = {"cluster_k": measured(w.device).cluster_k is None, "multicast": not multicast.was_timed(w)}
        return "no times of it were measured" if unmeasured[name] else "no tile of it is for products of these sizes"
    return programs.objection(found.times[name], found.taken.variant, found.taken.predicted_us)
