"""suld, sust and sured: loads, stores and reductions of surfaces. PTX ISA, "Surface Instructions".

How coordinates outside of the surface and formatted stores behave was compared with an H200 (docs/emulator.md, "Textures and
surfaces").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes, Results
from ptxkit.emulator.simt.step import Binding, Step, Typed
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.texture.formats import toward_zero
from ptxkit.emulator.texture.operands import COUNTS, ObjectOperand, active_values, spread, vector
from ptxkit.emulator.texture.texels import TexelObject
from ptxkit.errors import MemoryFault, TrapError
from ptxkit.isa.types import TYPES

Offsets = NDArray[np.int64]


@dataclass
class _Hit:
    """The bytes of a surface that lanes access.

    Attributes:
        at: byte offset of each lane, and whether it is accessed at all.
    """

    data: NDArray[np.uint8]
    at: Offsets
    inside: NDArray[np.bool_]


class _Access:
    """A bound surface instruction.

    Args:
        samples: coordinates along x count texels and not bytes.
        size: bytes that a lane accesses; 0 for one texel.
    """

    def __init__(self, b: Binding, operand: int, size: int, samples: bool) -> None:
        form = b.form
        self.number, self.where = b.index, b.where
        self.geometry = form["geom"]
        self.clamp = form["clamp"]
        self.size, self.samples = size, samples
        self.object = ObjectOperand(b, b.operands[operand], self.geometry)

    def locate(self, x: Group, found: TexelObject, coordinates: list[NDArray[np.generic]]) -> _Hit:
        """Where lanes access a surface.

        Raises:
            TrapError: outside of it, with .trap. MemoryFault: not aligned.
        """
        texels = found.level(0, x.wave.launch.machine.memory)
        layers, depth, height, width, _ = texels.shape
        row = width * found.texel
        size = self.size or found.texel
        values = [c.astype(np.int64) for c in coordinates]
        layer = values.pop(0) if self.object.layered else np.zeros(len(values[0]), np.int64)
        along, y, z = [*values, np.zeros_like(layer), np.zeros_like(layer)][:3]
        scale = size if self.samples and self.size else found.texel if self.samples else 1
        start = along * scale
        misaligned = start % min(size, 16) != 0
        if misaligned.any():
            k = int(np.argmax(misaligned))
            raise MemoryFault(
                self.object.at(x, x.active(), f"accesses {size} bytes at byte {int(start[k])} of a row, misaligned")
            )
        inside = (start >= 0) & (start + size <= row)
        for value, limit in ((y, height), (z, depth), (layer, layers)):
            inside &= (value >= 0) & (value < limit)
        if self.clamp == "trap" and not inside.all():
            k = int(np.argmin(inside))
            at = ", ".join(str(int(c[k])) for c in coordinates)
            what = "texels" if self.samples else "bytes along x"
            raise TrapError(self.object.at(x, x.active(), f"({at}), in {what}, is outside of {found.describe()}"))
        start = np.clip(start, 0, max(0, row - size))
        y, z, layer = np.clip(y, 0, height - 1), np.clip(z, 0, depth - 1), np.clip(layer, 0, layers - 1)
        at = ((layer * depth + z) * height + y) * row + start
        data = texels.reshape(-1).view(np.uint8)
        return _Hit(data, at, np.ones(len(at), np.bool_) if self.clamp == "clamp" else inside)

    def each(
        self,
        x: Group,
        handles: Lanes,
        given: tuple[Lanes, ...],
        action: str,
        do: Callable[[TexelObject, _Hit, Offsets], None],
    ) -> None:
        """Call ``do`` for each surface, with the lanes' positions among the active ones, and count."""
        values = active_values(x, given[: COUNTS[self.geometry]])
        for found, chosen in self.object.objects(x, handles, surface=True):
            hit = self.locate(x, found, [v[chosen] for v in values])
            do(found, hit, chosen)
            x.tally.add(
                self.number, f"texture.{action}", int(np.count_nonzero(hit.inside)) * (self.size or found.texel)
            )


def _rows(hit: _Hit, size: int) -> NDArray[np.int64]:
    """The indices of the bytes of lanes that are inside, (n, size)."""
    return hit.at[hit.inside][:, None] + np.arange(size)


_GEOMETRY = "1d 2d 3d a1d a2d"
_CLAMP = "trap clamp zero"


@effect("suld.b.<geom>{.<cop>}{.<vec>}.<t>.<clamp>", geom=_GEOMETRY, cop="ca cg cs cv", vec="v2 v4", t="b8 b16 b32 b64",
        clamp=_CLAMP)  # fmt: skip
def _suld(b: Binding) -> Step:
    t = TYPES[b.form["t"]]
    count = int(b.form["vec"][1:]) if b.form["vec"] else 1
    _check_width(b, t.bytes * count)
    destinations: tuple[Typed, ...] = tuple((d, t) for d in vector(b, b.operands[0], count))
    access = _Access(b, 1, t.bytes * count, samples=False)

    def call(x: Group, handles: Lanes, *given: Lanes) -> Results:
        out = np.zeros((int(np.count_nonzero(x.active())), t.bytes * count), np.uint8)

        def load(found: TexelObject, hit: _Hit, chosen: Offsets) -> None:
            out[chosen[hit.inside]] = hit.data[_rows(hit, access.size)]

        access.each(x, handles, given, "load", load)
        return spread(x, out.view(t.dtype))

    return Step(call, access.object.sources, destinations)


def _check_width(b: Binding, size: int) -> None:
    if size > 16:
        raise b.fail(f"{size * 8}-bit accesses do not exist")


def _stored(b: Binding, count: int) -> tuple[Typed, ...]:
    t = TYPES[b.form["t"]]
    return tuple((v, t) for v in vector(b, b.operands[1], count))


@effect("sust.b.<geom>{.<cop>}{.<vec>}.<t>.<clamp>", geom=_GEOMETRY, cop="wb cg cs wt", vec="v2 v4", t="b8 b16 b32 b64",
        clamp=_CLAMP)  # fmt: skip
def _sust_b(b: Binding) -> Step:
    t = TYPES[b.form["t"]]
    count = int(b.form["vec"][1:]) if b.form["vec"] else 1
    _check_width(b, t.bytes * count)
    access = _Access(b, 0, t.bytes * count, samples=False)
    used = COUNTS[access.geometry]

    def call(x: Group, handles: Lanes, *given: Lanes) -> None:
        values = np.stack(active_values(x, given[used:]), -1)
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)

        def store(found: TexelObject, hit: _Hit, chosen: Offsets) -> None:
            hit.data[_rows(hit, access.size)] = raw[chosen[hit.inside]]

        x.wave.launch.machine.version += 1
        access.each(x, handles, given, "store", store)

    return Step(call, (*access.object.sources, *_stored(b, count)))


@effect(
    "sust.p.<geom>{.<cop>}{.<vec>}.<t>.<clamp>", geom=_GEOMETRY, cop="wb cg cs wt", vec="v2 v4", t="b32", clamp=_CLAMP
)
def _sust_p(b: Binding) -> Step:
    """Formatted stores: 32-bit components become those of the surface, and components that are not given become 0."""
    count = int(b.form["vec"][1:]) if b.form["vec"] else 1
    access = _Access(b, 0, 0, samples=True)
    used = COUNTS[access.geometry]

    def call(x: Group, handles: Lanes, *given: Lanes) -> None:
        values = np.stack(active_values(x, given[used:]), -1).astype(np.uint32)

        def store(found: TexelObject, hit: _Hit, chosen: Offsets) -> None:
            texels = np.zeros((int(np.count_nonzero(hit.inside)), found.channels), found.dtype)
            components = min(count, found.channels)
            texels[:, :components] = _formatted(values[chosen[hit.inside], :components], found.dtype)
            hit.data[_rows(hit, found.texel)] = texels.view(np.uint8).reshape(len(texels), -1)

        x.wave.launch.machine.version += 1
        access.each(x, handles, given, "store", store)

    return Step(call, (*access.object.sources, *_stored(b, count)))


def _formatted(words: NDArray[np.uint32], dtype: np.dtype) -> NDArray[np.generic]:
    """Words as components of a surface: integers are limited to their range, and float16 is rounded towards 0."""
    words = np.ascontiguousarray(words)
    if dtype.kind == "u":
        return np.minimum(words, np.iinfo(dtype).max).astype(dtype)
    if dtype.kind == "i":
        return np.clip(words.view(np.int32), np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)
    values = words.view(np.float32)
    return values if dtype.itemsize == 4 else toward_zero(values)


_REDUCTIONS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}
_TYPES_OF = {
    "add": "u32 s32 u64",
    "min": "u32 s32 u64 s64",
    "max": "u32 s32 u64 s64",
    "and": "b32",
    "or": "b32",
}


@effect(
    "sured.b.<op>.<geom>.<t>.<clamp>", op="add min max and or", geom="1d 2d 3d", t="u32 s32 b32 u64 s64", clamp=_CLAMP
)
@effect("sured.p.<op>.<geom>.<t>.<clamp>", op="add min max and or", geom="1d 2d 3d", t="b32 b64", clamp=_CLAMP)
def _sured(b: Binding) -> Step:
    form = b.form
    op, t = form["op"], TYPES[form["t"]]
    samples = form.opcode.startswith("sured.p") or ".p." in form.opcode
    if samples:
        if t.bits == 64 and op not in ("min", "max"):
            raise b.fail(f".{op} of .b64 does not exist")
    elif form["t"] not in _TYPES_OF[op].split():
        raise b.fail(f".{op} is for {_TYPES_OF[op]}")
    access = _Access(b, 0, t.bytes, samples=samples)
    used = COUNTS[access.geometry]

    def call(x: Group, handles: Lanes, *given: Lanes) -> None:
        values = active_values(x, given[used:])[0]

        def reduce(found: TexelObject, hit: _Hit, chosen: Offsets) -> None:
            dtype = np.dtype(np.int32) if samples and found.dtype.kind == "i" and t.bits == 32 else t.dtype
            words = hit.data[: len(hit.data) // t.bytes * t.bytes].view(dtype)
            operand = np.ascontiguousarray(values[chosen[hit.inside]]).view(dtype)
            with np.errstate(over="ignore"):
                _REDUCTIONS[op].at(words, hit.at[hit.inside] // t.bytes, operand)

        machine = x.wave.launch.machine
        machine.version += 1
        with machine.atomic_lock:
            access.each(x, handles, given, "atomic", reduce)

    return Step(call, (*access.object.sources, (b.operands[1], t)))
