"""ldmatrix and stmatrix of 8-bit elements, and of narrower ones that are widened on the way (sm_100 and newer).

PTX ISA, "ldmatrix", "stmatrix". Where the manual has figures only, CuTe's ``copy_traits_sm100.hpp`` (SM100_U8x8_LDSM_T,
SM100_U8x4_STSM_T) and ``mma_traits_sm120.hpp`` (which bits of a byte a 4-bit element gets). With g = lane / 4, t = lane % 4:

- ldmatrix.m16n16.trans: 16 lanes give the rows of a matrix; register r holds, as bytes e, element (4 t + e, g + 8 r).
- ldmatrix.m8n16: 8 rows; a register holds elements 4 t to 4 t + 3 of row g.
- stmatrix.m16n8.trans: byte 2 v + u of a register goes to row 2 t + u, byte g + 8 v.

A row always takes 16 bytes: 4-bit elements lie in the first 8 and become the low halves of bytes, 6-bit ones in the first 12.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxkit.emulator.access.site import Loaded
from ptxkit.emulator.arrays import Bytes, Lanes
from ptxkit.emulator.simt.step import B32, Binding, Gated, Step
from ptxkit.emulator.simt.table import blocking
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.tensor_core.collective import collective, require_whole
from ptxkit.emulator.tensor_core.ldmatrix import RowSite, address_source, require_shared

_SPACES = "shared shared::cta"


def widened(rows: Bytes, source: str) -> Bytes:
    """(..., 16) bytes of elements from (..., 16) bytes of memory in format ``source``; ``""`` is 8 bits."""
    if source == "b4x16_p64":
        packed = rows[..., :8]
        return np.stack((packed & 15, packed >> 4), axis=-1).reshape(rows.shape)
    if source == "b6x16_p32":
        # four elements in three bytes, low bits first
        a, b, c = (rows[..., k:12:3].astype(np.uint32) for k in range(3))
        whole = a | b << 8 | c << 16
        return np.stack([(whole >> 6 * k & 63) for k in range(4)], axis=-1).reshape(rows.shape).astype(np.uint8)
    return rows


@blocking("ldmatrix.sync.aligned.m16n16.<num>.trans{.<space>}.b8", num="x1 x2", space=_SPACES)
@blocking(
    "ldmatrix.sync.aligned.m16n16.<num>.trans{.<space>}.b8x16.<source>",
    num="x1 x2",
    space=_SPACES,
    source="b6x16_p32 b4x16_p64",
)
def _square(b: Binding) -> Step | Gated:
    count = int(b.form["num"][1:])
    return _load(b, 2 * count, lambda rows: rows.reshape(*rows.shape[:2], count, 16, 16).swapaxes(-1, -2))


@blocking(
    "ldmatrix.sync.aligned.m8n16.<num>{.<space>}.b8x16.<source>",
    num="x1 x2 x4",
    space=_SPACES,
    source="b6x16_p32 b4x16_p64",
)
def _wide(b: Binding) -> Step | Gated:
    return _load(b, int(b.form["num"][1:]), lambda rows: rows)


def _load(b: Binding, registers: int, arrange: Callable[[Bytes], Bytes]) -> Step | Gated:
    destination, operand = b.operands
    outs = b.elements(destination)
    if len(outs) != registers:
        raise b.fail(f"{len(outs)} registers, this form takes {registers}")
    lanes, offset = address_source(b, operand)
    site, generic, where = RowSite(b, offset, registers, False), not b.form["space"], b.where
    source = b.form.get("source") or ""

    def load(x: Group, address: Lanes) -> Loaded:
        require_whole(x, where)
        if generic:
            require_shared(x, address, offset, where)
        rows = np.ascontiguousarray(site.read_rows(x, address)).view(np.uint8)
        elements = arrange(widened(rows.reshape(*x.shape[:2], 8 * registers, 16), source))
        words = np.ascontiguousarray(elements).view(np.uint32).reshape(*x.shape[:2], registers, 32)
        return tuple(words[:, :, k] for k in range(registers)) if registers > 1 else words[:, :, 0]

    return collective(b, Step(load, (lanes,), tuple((o, B32) for o in outs)))


@blocking("stmatrix.sync.aligned.m16n8.<num>.trans{.<space>}.b8", num="x1 x2 x4", space=_SPACES)
def _store(b: Binding) -> Step | Gated:
    operand, values = b.operands
    count = int(b.form["num"][1:])
    ins = b.elements(values)
    if len(ins) != count:
        raise b.fail(f"{len(ins)} registers, this form takes {count}")
    lanes, offset = address_source(b, operand)
    site, generic, where = RowSite(b, offset, count, True), not b.form["space"], b.where

    def store(x: Group, address: Lanes, *registers: Lanes) -> None:
        require_whole(x, where)
        if generic:
            require_shared(x, address, offset, where)
        words = np.empty((*x.shape[:2], count, 32), np.uint32)
        for k, v in enumerate(registers):
            words[:, :, k] = v
        # axes g, t, v, u of the bytes become t, u, v, g
        parts = words.view(np.uint8).reshape(-1, 8, 4, 2, 2).transpose(0, 2, 4, 3, 1)
        site.write_rows(x, address, np.ascontiguousarray(parts).view(np.uint32).reshape(words.shape))

    return collective(b, Step(store, (lanes, *((i, B32) for i in ins))))
