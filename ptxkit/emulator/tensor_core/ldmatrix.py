"""ldmatrix, stmatrix, movmatrix: 8x8 matrices of 16-bit elements between shared memory and fragments.

PTX ISA, "ldmatrix", "stmatrix", "movmatrix". Lane 8 i + r gives the address of row r of matrix i, 16 bytes; register i of lane
l then holds word l % 4 of row l / 4. So the 8 rows of a matrix, word after word, are a register's 32 lanes.
"""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.access.generic import by_space
from ptxkit.emulator.access.shared_memory import SharedSite
from ptxkit.emulator.access.site import Loaded, widen
from ptxkit.emulator.arrays import Addresses, Lanes, Mask, Shape, Words
from ptxkit.emulator.memory.traffic import wavefronts
from ptxkit.emulator.simt.step import B32, Binding, Gated, Step, Typed
from ptxkit.emulator.simt.table import blocking
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.tensor_core.collective import acts_together, collective, require_whole
from ptxkit.errors import MemoryFault
from ptxkit.isa.model import Operand
from ptxkit.isa.types import TYPES

acts_together(1, "ldmatrix", "stmatrix", "movmatrix")

_U32, _U64 = TYPES["u32"], TYPES["u64"]


def transposed(rows: Words) -> Words:
    """Register words of 8x8 matrices of 16-bit elements, (..., 32), with rows and columns exchanged."""
    halves = np.ascontiguousarray(rows).view(np.uint16).reshape(*rows.shape[:-1], 8, 8)
    flipped = np.ascontiguousarray(halves.swapaxes(-1, -2))
    return flipped.reshape(*rows.shape[:-1], 64).view(np.uint32)


class RowSite(SharedSite):
    """Rows of 16 bytes whose addresses the lanes of a warp give, 8 for each matrix.

    With one or two matrices the addresses of the other lanes are ignored. They are replaced by copies of the used addresses,
    and the counts are divided accordingly.
    """

    def __init__(self, b: Binding, offset: int, matrices: int, write: bool) -> None:
        super().__init__(b.where, b.index, offset, np.uint32, 4, write)
        self.matrices = matrices
        self.nbytes = self.size * matrices // 4  # average for each lane: lanes beyond the rows provide no address
        self.givers = np.arange(32) % (8 * matrices)

    def addresses(self, base: Lanes) -> Addresses:
        """The addresses as an array with 32 lanes."""
        base = widen(base)
        if base.shape[2] != 32:
            return np.ascontiguousarray(np.broadcast_to(base, (*base.shape[:2], 32)))
        return base if self.matrices == 4 else base.take(self.givers, axis=2)

    def read_rows(self, x: Group, base: Lanes) -> Words:
        """(C, W, matrices, 32) words: the registers."""
        base = self.addresses(base)
        index, p, start = self._flat(x, base)
        for races in x.wave.races:
            races.read(x, self, index, start)
        rows = self.rows(x.wave.shared.view(self.dtype))
        got = rows[start:].take(index.reshape(-1), axis=0).reshape(*index.shape, 4)
        self._count(x, p, index, start)
        if index.shape != x.shape:
            got = np.broadcast_to(got, (*x.shape, 4))
        return got.reshape(x.shape[0], x.shape[1], 4, 32)[:, :, : self.matrices]

    def write_rows(self, x: Group, base: Lanes, words: Words) -> None:
        """Write rows from the registers ``words``, (C, W, matrices, 32)."""
        lanes = words.reshape(*x.shape[:2], 8 * self.matrices, 4).take(self.givers, axis=2)
        self.store(x, self.addresses(base), tuple(np.moveaxis(lanes, -1, 0)))

    def wavefronts(self, addresses: Addresses, mask: Mask | None, shape: Shape) -> tuple[int, int]:
        """Wavefronts of one execution, and those beyond the minimum, which is one for each matrix."""
        passes, conflicts = wavefronts(addresses, self.size, mask, shape)
        return passes * self.matrices // 4, conflicts * self.matrices // 4


def address_source(b: Binding, operand: Operand | None) -> tuple[Typed, int]:
    """The register that gives addresses, with its type, and the constant offset."""
    base, offset = b.address(operand)
    t = b.register_type(base)
    return (base, _U32 if t is not None and t.bits == 32 else _U64), offset


def require_shared(x: Group, address: Lanes, offset: int, where: Where) -> None:
    """Check that a generic address is in shared memory."""
    for space, part, _ in by_space(x, widen(address), offset):
        if space != "shared":
            cta, thread = part.first(part.active())
            raise MemoryFault(f"{where}: thread {thread} of CTA {cta} gives an address that is not in shared memory")


@blocking("ldmatrix.sync.aligned.m8n8.<num>{.trans}{.<space>}.b16", num="x1 x2 x4", space="shared shared::cta")
def _ldmatrix(b: Binding) -> Step | Gated:
    destination, operand = b.operands
    n = int(b.form["num"][1:])
    outs = b.elements(destination)
    if len(outs) != n:
        raise b.fail(f"{len(outs)} registers for .x{n}")
    source, offset = address_source(b, operand)
    site, trans, generic, where = RowSite(b, offset, n, False), b.form.has("trans"), not b.form["space"], b.where

    def load(x: Group, address: Lanes) -> Loaded:
        require_whole(x, where)
        if generic:
            require_shared(x, address, offset, where)
        words = site.read_rows(x, address)
        if trans:
            words = transposed(words)
        return tuple(words[:, :, k] for k in range(n)) if n > 1 else words[:, :, 0]

    return collective(b, Step(load, (source,), tuple((o, B32) for o in outs)))


@blocking("stmatrix.sync.aligned.m8n8.<num>{.trans}{.<space>}.b16", num="x1 x2 x4", space="shared shared::cta")
def _stmatrix(b: Binding) -> Step | Gated:
    operand, values = b.operands
    n = int(b.form["num"][1:])
    ins = b.elements(values)
    if len(ins) != n:
        raise b.fail(f"{len(ins)} registers for .x{n}")
    source, offset = address_source(b, operand)
    site, trans, generic, where = RowSite(b, offset, n, True), b.form.has("trans"), not b.form["space"], b.where

    def store(x: Group, address: Lanes, *lanes: Lanes) -> None:
        require_whole(x, where)
        if generic:
            require_shared(x, address, offset, where)
        words = np.empty((*x.shape[:2], n, 32), np.uint32)
        for k, v in enumerate(lanes):
            words[:, :, k] = v
        site.write_rows(x, address, transposed(words) if trans else words)

    return collective(b, Step(store, (source, *((i, B32) for i in ins))))


@blocking("movmatrix.sync.aligned.m8n8.trans.b16")
def _movmatrix(b: Binding) -> Step | Gated:
    destination, source = b.operands
    where = b.where

    def move(x: Group, words: Words) -> Words:
        require_whole(x, where)
        return transposed(np.broadcast_to(words, x.shape))

    return collective(b, Step(move, ((source, B32),), ((destination, B32),)))
