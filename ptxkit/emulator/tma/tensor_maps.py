"""Instructions that modify tensor maps. PTX ISA, "tensormap.replace", "tensormap.cp_fenceproxy"."""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.access.generic import by_space
from ptxkit.emulator.access.site import widen
from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.simt.step import U32, U64, Binding, Step
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.sync.mbarrier_instructions import address_type
from ptxkit.emulator.tma.spans import Runs, Side, copy
from ptxkit.emulator.tma.tensor_map import ALIGNMENT, BYTES, LAYOUT, MAGIC
from ptxkit.isa.model import Immediate, Operand

_ORDINALS = {"box_dim": 5, "global_dim": 5, "global_stride": 4, "element_stride": 5}
"""Fields with a value for each dimension -> number of values."""

_CHOICES = {"elemtype": 16, "interleave_layout": 3, "swizzle_mode": 5, "swizzle_atomicity": 4, "fill_mode": 2}
"""Fields whose value is a constant -> number of valid values."""


def _runs(b: Binding, x: Group) -> Runs:
    return Runs(b.where, x, np.full(np.count_nonzero(x.active()), BYTES, np.int64))


def _find(runs: Runs, addresses: Lanes, space: str, verb: str) -> Side:
    """Find the tensor maps at these addresses.

    Raises:
        MemoryFault: misaligned or out of bounds.
    """
    bad = np.not_equal(addresses % np.uint64(ALIGNMENT), 0)
    if bad.any():
        runs.fail(bad, f"the tensor map at {int(addresses[np.argmax(bad)]):#x} is not aligned to {ALIGNMENT} bytes")
    return (
        runs.in_global(addresses, verb)
        if space == "global"
        else runs.in_shared(addresses, verb, remote=False, generic_proxy=True)
    )


@effect(
    "tensormap.replace.tile.<field>{.<space>}.b1024.<t>",
    field="global_address rank box_dim global_dim global_stride element_stride elemtype interleave_layout swizzle_mode "
    "swizzle_atomicity fill_mode",
    space="global shared::cta",
    t="b32 b64",
)
def _replace(b: Binding) -> Step:
    field, space = b.form["field"], b.form["space"].partition("::")[0]
    wide = field in ("global_address", "global_stride")
    if wide != (b.form["t"] == "b64"):
        raise b.fail(f"{field} is {'.b64' if wide else '.b32'}")
    operands = list(b.operands)
    pointer, offset = b.address(operands.pop(0))
    shift = np.uint64(offset & 0xFFFF_FFFF_FFFF_FFFF)
    ordinal = 0
    if field in _ORDINALS:
        ordinal = _constant(b, operands.pop(0), _ORDINALS[field], "ordinal")
    if len(operands) != 1:
        raise b.fail("wrong number of operands")
    if field in _CHOICES:
        _constant(b, operands[0], _CHOICES[field], "new value")

    def replace(x: Group, base: Lanes, value: Lanes) -> None:
        address = widen(base) + shift
        for where, part in [(space, x)] if space else [(s, p) for s, p, _ in by_space(x, address)]:
            runs = _runs(b, part)
            side = _find(runs, runs.lanes(address), where, "writes")
            for k, new in enumerate(runs.lanes(value).tolist()):
                _set(runs, side, k, field, ordinal, new)
        x.wave.launch.machine.version += 1

    return Step(replace, ((pointer, address_type(b, pointer)), (operands[0], U64 if wide else U32)))


def _constant(b: Binding, operand: Operand | None, count: int, what: str) -> int:
    value = operand.value if isinstance(operand, Immediate) else None
    if not isinstance(value, int) or not 0 <= value < count:
        raise b.fail(f"the {what} of {b.form['field']} is a constant from 0 to {count - 1}, not {operand}")
    return value


def _set(runs: Runs, side: Side, element: int, field: str, ordinal: int, value: int) -> None:
    record = side.run(element, BYTES).view(LAYOUT)
    if not record["magic"][0]:
        record["magic"] = MAGIC  # makes a map of zeroed memory, which a kernel then fills field by field
    elif record["magic"][0] != MAGIC:
        bad = np.arange(len(runs.sizes)) == element
        runs.fail(bad, "there is no tensor map to change; copy one here first, or zero the 128 bytes")
    if field in _ORDINALS:
        record[field][0, ordinal] = value - 1 & 0xFFFF_FFFF if field == "global_dim" else value
    else:
        record[field] = value + 1 if field == "rank" else value


@effect(
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.<scope>.sync.aligned",
    scope="cta cluster gpu sys",
)
def _copy_fence(b: Binding) -> Step:
    to, to_offset = b.address(b.operands[0])
    source, source_offset = b.address(b.operands[1])
    if getattr(b.operands[2], "value", None) != BYTES:
        raise b.fail(f"copies {b.operands[2]} bytes; a tensor map has {BYTES}")

    def run(x: Group, destination: Lanes, origin: Lanes) -> None:
        runs = _runs(b, x)
        targets = runs.lanes(widen(destination)) + np.uint64(to_offset & 0xFFFF_FFFF_FFFF_FFFF)
        sources = runs.lanes(widen(origin)) + np.uint64(source_offset & 0xFFFF_FFFF_FFFF_FFFF)
        target, read = _find(runs, targets, "global", "writes"), _find(runs, sources, "shared", "reads")
        copy(target, read, runs.sizes, slice(None))
        x.wave.launch.machine.version += 1

    return Step(run, ((to, address_type(b, to)), (source, address_type(b, source))))
