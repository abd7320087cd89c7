"""tcgen05.cp and tcgen05.shift. PTX ISA, "Tensor Memory Data Movement Instructions".

Where the rows of shared memory go follows CuTe's ``atom/copy_traits_sm100.hpp`` (SM100_UTCCP_*, ``ValID``):

- ``.128x256b``, ``.128x128b``: row r to lane r.
- ``.4x256b``: row r to lane 32 r, from the lane of the address on.
- ``.64x128b.warpx2::02_13``: rows 0 to 63 to lanes 0 to 63, and again to lanes 64 to 127.
- ``.64x128b.warpx2::01_23``: rows 0 to 31 to partitions 0 and 1, rows 32 to 63 to partitions 2 and 3.
- ``.32x128b.warpx4``: rows 0 to 31 to each partition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxkit.emulator.arrays import Index, Lanes
from ptxkit.emulator.simt.step import U32, U64, Binding, Step
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.tensor_core.tcgen05.accesses import BAND, LANES, Region
from ptxkit.emulator.tensor_core.tcgen05.matrix_descriptors import k_major, refusal
from ptxkit.emulator.tensor_core.tcgen05.memory import PARTITION, TensorMemory, address
from ptxkit.emulator.tensor_core.tcgen05.pipeline import MECHANISM, Pipelines
from ptxkit.emulator.tensor_core.tcgen05.shared_matrix import elements, require_visible
from ptxkit.emulator.tensor_core.tcgen05.warps import Issuers, pair, require_target
from ptxkit.errors import MemoryFault, TrapError

_GROUPS = "cta_group::1 cta_group::2"
_FORMATS = {"": 0, "b6x16_p32": 6, "b4x16_p64": 4}
_SHIFTED = 8
"""Columns that tcgen05.shift moves: 32 bytes."""


@dataclass(frozen=True)
class _Shape:
    """A form of tcgen05.cp.

    Attributes:
        rows: number of rows in shared memory.
        nbytes: bytes of a row.
        lanes: the written lanes, relative to the lane of the address; ``row`` has the row of shared memory for each.
    """

    rows: int
    nbytes: int
    lanes: Index
    row: Index


def _shape(name: str, multicast: str) -> _Shape:
    rows, bits = (int(v) for v in name.removesuffix("b").split("x"))
    if rows == 4:
        return _Shape(rows, bits // 8, PARTITION * np.arange(4), np.arange(4))
    lanes = np.arange(LANES)
    row = lanes % 32 + lanes // 64 * 32 if multicast == "warpx2::01_23" else lanes % rows
    return _Shape(rows, bits // 8, lanes, row)


@effect("tcgen05.cp.<group>.<shape>", group=_GROUPS, shape="128x256b 4x256b 128x128b")
@effect(
    "tcgen05.cp.<group>.<shape>.b8x16.<source>",
    group=_GROUPS,
    shape="128x256b 4x256b 128x128b",
    source="b6x16_p32 b4x16_p64",
)
@effect(
    "tcgen05.cp.<group>.<shape>.<multicast>", group=_GROUPS, shape="64x128b", multicast="warpx2::02_13 warpx2::01_23"
)
@effect(
    "tcgen05.cp.<group>.<shape>.<multicast>.b8x16.<source>",
    group=_GROUPS,
    shape="64x128b",
    multicast="warpx2::02_13 warpx2::01_23",
    source="b6x16_p32 b4x16_p64",
)
@effect("tcgen05.cp.<group>.<shape>.<multicast>", group=_GROUPS, shape="32x128b", multicast="warpx4")
@effect(
    "tcgen05.cp.<group>.<shape>.<multicast>.b8x16.<source>",
    group=_GROUPS,
    shape="32x128b",
    multicast="warpx4",
    source="b6x16_p32 b4x16_p64",
)
def _copy(b: Binding) -> Step:
    require_target(b)
    if len(b.operands) != 2:
        raise b.fail("wrong number of operands: an address in tensor memory and a shared memory descriptor")
    base, offset = b.address(b.operands[0])
    shape = _shape(b.form["shape"], b.form.get("multicast", ""))
    narrow = _FORMATS[b.form.get("source", "")]
    where, group, target = b.where, int(b.form["group"][-1]), b.target

    def copy(x: Group, to: Lanes, descriptor: Lanes) -> None:
        issuers = Issuers(x)
        for e, (at, bits) in enumerate(zip(issuers.values(to), issuers.values(descriptor), strict=True)):
            one(x, issuers, e, at + offset, bits)
        x.wave.launch.machine.version += 1

    def one(x: Group, issuers: Issuers, e: int, at: int, bits: int) -> None:
        wave, who, cta = x.wave, issuers.name(e), int(issuers.cta[e])
        memory = wave.part(TensorMemory)
        memory.use_group(cta, group, where)
        why = refusal(bits, target)
        if why:
            raise TrapError(f"{where}: {who}: the descriptor {bits:#018x}: {why}")
        lane, column = address(at)
        if lane and not (shape.rows == 4 and lane < PARTITION):
            raise MemoryFault(
                f"{where}: {who} copies to lane {lane} of tensor memory on; this shape begins at lane 0"
                f"{' to 31' if shape.rows == 4 else ''}"
            )
        ctas = pair(x, cta, where) if group == 2 else [cta]
        tile, width = k_major(bits, shape.rows, shape.nbytes), shape.nbytes // 4
        lanes = lane + shape.lanes
        regions: tuple[Region, ...] = ()
        for home in ctas:
            memory.require_columns(home, column, width, where, who, "copies to")
            require_visible(wave, home, tile, f"the source, given by {bits:#018x}", bits, where, who)
            bands = np.unique(lanes // BAND).tolist()
            regions += memory.regions(home, bands, column, column + width)
            for races in wave.races:
                chunks = tile.chunks.reshape(1, -1) + home * (wave.shared_stride >> 4)
                races.operations.multiplied(MECHANISM, where, np.array([int(issuers.thread[e])]), chunks)
        x.tally.add(b.index, "shared_to_tensor", shape.rows * shape.nbytes * len(ctas))

        def perform() -> None:
            for home in ctas:
                chunks = tile.chunks + home * (wave.shared_stride >> 4)
                units = wave.shared.view(np.complex128).take(chunks).view(np.uint8)
                if narrow:
                    units = elements(units, narrow, True) << np.uint8(2 if narrow == 4 else 1)
                words = np.ascontiguousarray(units).view(np.uint32)
                memory.words[memory.sm[home], lanes, column : column + width] = words[shape.row]

        wave.part(Pipelines).issue(cta, int(issuers.thread[e]), where, who, regions, (), perform)

    return Step(copy, ((base, U32), (b.operands[1], U64)))


@effect("tcgen05.shift.<group>.down", group=_GROUPS)
def _shift(b: Binding) -> Step:
    """Each of 31 lanes takes 32 bytes of the next one; the last of the partition stays."""
    require_target(b)
    base, offset = b.address(b.operands[0])
    where, group = b.where, int(b.form["group"][-1])

    def shift(x: Group, to: Lanes) -> None:
        issuers = Issuers(x)
        for e, at in enumerate(issuers.values(to)):
            one(x, issuers, e, at + offset)
        x.wave.launch.machine.version += 1

    def one(x: Group, issuers: Issuers, e: int, at: int) -> None:
        who, cta = issuers.name(e), int(issuers.cta[e])
        memory = x.wave.part(TensorMemory)
        memory.use_group(cta, group, where)
        lane, column = address(at)
        if lane % PARTITION or lane >= LANES:
            raise MemoryFault(f"{where}: {who} shifts from lane {lane} on; it must be 0, 32, 64 or 96")
        ctas = pair(x, cta, where) if group == 2 else [cta]
        regions: tuple[Region, ...] = ()
        for home in ctas:
            memory.require_columns(home, column, _SHIFTED, where, who, "shifts")
            bands = range(lane // BAND, (lane + PARTITION) // BAND)
            regions += memory.regions(home, bands, column, column + _SHIFTED)

        def perform() -> None:
            for home in ctas:
                words = memory.words[memory.sm[home], :, column : column + _SHIFTED]
                words[lane : lane + PARTITION - 1] = words[lane + 1 : lane + PARTITION].copy()

        x.wave.part(Pipelines).issue(cta, int(issuers.thread[e]), where, who, regions, (), perform)

    return Step(shift, ((base, U32),))
