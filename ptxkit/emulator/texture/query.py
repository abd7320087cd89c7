"""txq, suq and istypep: properties of textures and surfaces. PTX ISA, "txq", "suq", "istypep"."""

from __future__ import annotations

import numpy as np

from ptxkit.emulator.arrays import Lanes, Results
from ptxkit.emulator.simt.step import PRED, S32, U32, U64, Binding, Step
from ptxkit.emulator.simt.table import effect
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.texture.operands import ObjectOperand, active_values, spread
from ptxkit.emulator.texture.texels import TexelObject


def _size(found: TexelObject, query: str, level: int) -> int:
    """The answer of a GPU, in which layers are the last dimension."""
    if not 0 <= level < found.levels:
        return 0
    width, height, depth = found.extent(level)
    surface = found.sampler is None
    if query == "width":
        return width
    if query == "height":
        if found.kind == "1d_layered":
            return found.layers
        return {"linear": 0, "1d": 0 if surface else 1}.get(found.kind, height)
    if found.kind == "3d":
        return depth
    if found.kind in ("2d_layered", "cube_layered") or (surface and found.kind == "cube"):
        return found.layers if surface or found.kind == "2d_layered" else found.layers // 6
    return 0


def _sizes(b: Binding, surface: bool, by_level: bool) -> Step:
    query = b.form["query"]
    operand = ObjectOperand(b, b.operands[1])

    def call(x: Group, handles: Lanes, *level: Lanes) -> Results:
        out = np.zeros((int(np.count_nonzero(x.active())), 1), np.uint32)
        for found, chosen in operand.objects(x, handles, surface):
            levels = active_values(x, level)[0][chosen] if level else np.zeros(len(chosen), np.int32)
            out[chosen, 0] = [_size(found, query, int(n)) for n in levels]
        return spread(x, out)

    sources = (*operand.sources, *(((b.operands[2], S32),) if by_level else ()))
    return Step(call, sources, ((b.operands[0], U32),))


@effect("txq.<query>.b32", query="width height depth")
def _txq(b: Binding) -> Step:
    return _sizes(b, surface=False, by_level=False)


@effect("txq.level.<query>.b32", query="width height depth")
def _txq_level(b: Binding) -> Step:
    return _sizes(b, surface=False, by_level=True)


@effect("suq.<query>.b32", query="width height depth")
def _suq(b: Binding) -> Step:
    return _sizes(b, surface=True, by_level=False)


@effect("istypep.<type>", type="texref samplerref surfref")
def _istypep(b: Binding) -> Step:
    wanted = b.form["type"]
    declared = b.register_type(b.operands[1])
    if declared is not None and declared.bits != 64:
        raise b.fail(f"a {declared.bits}-bit register as a handle")

    def call(x: Group, handles: Lanes) -> Lanes:
        table = x.wave.launch.machine.texel_objects
        kinds = {int(h): table.get(int(h)) for h in np.unique(handles)}

        def is_one(found: object) -> bool:
            if not isinstance(found, TexelObject):
                return False
            return wanted == ("surfref" if found.sampler is None else "texref")

        return np.vectorize(lambda h: is_one(kinds[int(h)]), otypes=[np.bool_])(handles)

    return Step(call, ((b.operands[1], U64),), ((b.operands[0], PRED),))
