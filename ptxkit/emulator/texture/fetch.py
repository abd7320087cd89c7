"""tex and tld4: fetches of texels. PTX ISA, "Texture Instructions"."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes, Results
from ptxkit.emulator.memory.footprint import READ
from ptxkit.emulator.simt.absent import DEPTH, MULTI_SAMPLE, OFFSETS, WHOLE_GRADIENTS
from ptxkit.emulator.simt.step import PRED, S32, Binding, Step, Typed, result_tuple
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.texture import cube
from ptxkit.emulator.texture.detail import level_of
from ptxkit.emulator.texture.operands import COUNTS, F32, ObjectOperand, active_values, spread, vector
from ptxkit.emulator.texture.sampling import Fetcher, Place
from ptxkit.emulator.texture.texels import IN_PLACE, TexelObject
from ptxkit.errors import TrapError
from ptxkit.isa.model import Immediate, Operand, Vector
from ptxkit.isa.types import TYPES

_GRADIENTS = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2, "cube": 3, "acube": 3}


class _Fetch:
    """A bound tex or tld4."""

    def __init__(self, b: Binding, geometry: str, real: bool, mip: str = "") -> None:
        if geometry in ("2dms", "a2dms"):
            raise b.fail(MULTI_SAMPLE.reason)
        if geometry in ("cube", "acube") and not real:
            raise b.fail(f".{geometry} takes float coordinates")
        self.b, self.geometry, self.real, self.mip = b, geometry, real, mip
        self.number = b.index
        self.object = ObjectOperand(b, b.operands[1], geometry, real)
        rest = list(b.operands[2:])
        self.extra: tuple[Typed, ...] = ()
        if mip == "level":
            level = self._next(rest, "a level")
            if real and isinstance(level, Immediate) and isinstance(level.value, int) and not level.width:
                raise b.fail(f"the level {level} is not a float")
            self.extra = ((level, F32 if real else S32),)
        elif mip == "grad":
            if not real:
                raise b.fail(WHOLE_GRADIENTS.reason)
            n = _GRADIENTS[geometry]
            for _ in range(2):
                gradient = self._next(rest, "a gradient")
                if not isinstance(gradient, Vector):
                    raise b.fail(f"a gradient is a vector, not {gradient}")
                items = gradient.items
                if len(items) not in ((n, 4) if n < 3 else (4,)):
                    raise b.fail(f"a gradient of {len(items)} numbers for .{geometry}")
                self.extra += tuple((item, F32) for item in items[:n])
        self.offsets = self._offsets(rest)
        if rest:
            raise b.fail(DEPTH.reason)

    def _next(self, rest: list[Operand | None], what: str) -> Operand | None:
        if not rest:
            raise self.b.fail(f"{what} is missing")
        return rest.pop(0)

    def _offsets(self, rest: list[Operand | None]) -> tuple[int, ...]:
        if not rest or not isinstance(rest[0], Vector):
            return ()
        items = self.b.elements(rest.pop(0))
        if self.geometry in ("cube", "acube"):
            raise self.b.fail(f".{self.geometry} takes no offsets")
        values = [int(item.value) for item in items if isinstance(item, Immediate) and -8 <= item.value <= 7]
        if len(values) < len(items):
            raise self.b.fail(OFFSETS.reason)
        count = _GRADIENTS[self.geometry]
        if len(items) not in ((count, 4) if count == 3 else (count,)):
            raise self.b.fail(f"{len(items)} offsets for .{self.geometry}, which takes {count}")
        return tuple(values[:count])

    @property
    def sources(self) -> tuple[Typed, ...]:
        """The sources of the step."""
        return *self.object.sources, *self.extra

    def place(self, found: TexelObject, values: list[NDArray[np.generic]]) -> Place:
        """Where the lanes are in a texture."""
        count = COUNTS[self.geometry]
        coordinates = list(values[:count])
        layer = np.zeros(len(values[0]), np.int64)
        if self.object.layered:
            layer = coordinates.pop(0).astype(np.int64)
            if self.real:  # a layer that does not exist is the last one
                layers = found.layers // 6 if self.geometry == "acube" else found.layers
                layer = np.minimum(layer, layers - 1)
        if self.geometry in ("cube", "acube"):
            x, y, z = (c.astype(np.float32) for c in coordinates)
            face, u, v = cube.project(x, y, z)
            layer = layer * 6 + face
            coordinates = [u, v]
        return Place(coordinates, layer, self.offsets)

    def run(self, x: Group, handles: Lanes, given: tuple[Lanes, ...], component: int | None) -> NDArray[np.uint32]:
        """The words of the active lanes, (n, 4)."""
        values = active_values(x, given)
        memory = x.wave.launch.machine.memory
        out = np.zeros((int(np.count_nonzero(x.active())), 4), np.uint32)
        for found, chosen in self.object.objects(x, handles, surface=False):
            fetcher = Fetcher(found, memory)
            place = self.place(found, [v[chosen] for v in values])
            self._check(x, found)
            extra = [v[chosen] for v in values[COUNTS[self.geometry] :]]
            if component is not None:
                words = fetcher.gathered(place, component)
            elif not self.real:
                level = extra[0].astype(np.int64) if self.mip == "level" else None
                words = fetcher.whole(place, level)
            else:
                words = fetcher.filtered(place, level_of(self.mip, found, extra, len(chosen)))
            out[chosen, : words.shape[1]] = words
            x.tally.add(self.number, "texture.fetch", fetcher.touched)
            self._mark(x, found)
        return out

    def _check(self, x: Group, found: TexelObject) -> None:
        """Raise TrapError for a fetch whose result is always 0."""
        if found.kind == "linear" and self.real:
            why = "a texture of linear memory is read by whole coordinates (tex1Dfetch); with others a GPU gives 0"
            raise TrapError(self.object.at(x, x.active(), why))
        if self.geometry == "1d" and not self.real and found.kind != "linear":
            why = "whole coordinates (tex1Dfetch) are for a texture of linear memory; a GPU gives 0 for this one"
            raise TrapError(self.object.at(x, x.active(), why))

    def _mark(self, x: Group, found: TexelObject) -> None:
        footprint = x.wave.launch.footprint
        owner = x.wave.launch.machine.memory.owner(found.address) if found.kind in IN_PLACE else None
        if footprint is not None and owner is not None:
            nbytes = found.width * found.height * found.texel
            footprint.span(owner, found.address - owner.base, nbytes, READ)


def _destinations(b: Binding, vec: str, t: str) -> tuple[tuple[Typed, ...], bool]:
    """Destinations of a fetch, and whether the last one is a predicate."""
    first, predicate = b.pair(b.operands[0])
    outs: tuple[Typed, ...] = tuple((d, TYPES[t]) for d in vector(b, first, int(vec[1:])))
    return (outs, False) if predicate is None else ((*outs, (predicate, PRED)), True)


def _results(x: Group, words: NDArray[np.uint32], t: str, resident: bool) -> Results:
    if t in ("f16", "f16x2"):
        with np.errstate(over="ignore", invalid="ignore"):
            halves = words.view(np.float32).astype(np.float16)
        columns: NDArray[np.generic] = halves if t == "f16" else halves.view(np.uint32)
    else:
        columns = words.view(TYPES[t].dtype)
    out = result_tuple(spread(x, columns))
    return (*out, np.ones((1, 1, 1), np.bool_)) if resident else out


_GEOMETRY = "1d 2d 3d a1d a2d cube acube 2dms a2dms"


@effect("tex{.<mip>}.<geom>.v4.<dtype>.<ctype>", mip="base level grad", geom=_GEOMETRY, dtype="u32 s32 f16 f32",
        ctype="s32 f32")  # fmt: skip
@effect("tex{.<mip>}.<geom>.v2.f16x2.<ctype>", mip="base level grad", geom=_GEOMETRY, ctype="s32 f32")
def _tex(b: Binding) -> Step:
    form = b.form
    t = form.get("dtype", "f16x2")
    fetch = _Fetch(b, form["geom"], form["ctype"] == "f32", form["mip"])
    outs, resident = _destinations(b, "v2" if t == "f16x2" else "v4", t)

    def call(x: Group, handles: Lanes, *given: Lanes) -> Results:
        return _results(x, fetch.run(x, handles, given, None), t, resident)

    return Step(call, fetch.sources, outs)


@effect("tld4.<comp>.<geom>.v4.<dtype>.f32", comp="r g b a", geom="2d a2d cube acube", dtype="u32 s32 f32")
def _tld4(b: Binding) -> Step:
    form = b.form
    fetch = _Fetch(b, form["geom"], real=True)
    outs, resident = _destinations(b, "v4", form["dtype"])
    component = "rgba".index(form["comp"])

    def call(x: Group, handles: Lanes, *given: Lanes) -> Results:
        return _results(x, fetch.run(x, handles, given, component), form["dtype"], resident)

    return Step(call, fetch.sources, outs)
