"""Operands of texture and surface instructions: the object, and the coordinates."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.arrays import Lanes, Mask, Results
from ptxkit.emulator.simt.absent import REFERENCES, SAMPLER
from ptxkit.emulator.simt.step import S32, U32, U64, Binding, Typed
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.texture.texels import GEOMETRIES, TexelObject
from ptxkit.errors import TrapError
from ptxkit.isa.model import Address, Operand, Symbol, Vector
from ptxkit.isa.types import TYPES

F32 = TYPES["f32"]
COUNTS = {"1d": 1, "2d": 2, "3d": 3, "a1d": 2, "a2d": 3, "cube": 3, "acube": 4}
"""Geometry -> the coordinates that are used, the layer included."""
_WRITTEN = {"1d": (1, 4), "2d": (2, 4), "3d": (4,), "a1d": (2, 4), "a2d": (4,), "cube": (4,), "acube": (4,)}
"""Geometry -> how many coordinates an instruction may have."""


class ObjectOperand:
    """The operand ``[object, {x, y}]``, or ``[object]`` of a query.

    Args:
        geometry: of the instruction; "" for a query.
        real: whether coordinates are floats.

    Attributes:
        sources: of the step: the handle, followed by the coordinates.
    """

    def __init__(self, b: Binding, operand: Operand | None, geometry: str = "", real: bool = False) -> None:
        if not isinstance(operand, Address):
            raise b.fail(f"expected a texture or surface in brackets, found {operand}")
        self.where = b.where
        self.geometry = geometry
        base, offset = b.address(operand)
        if offset:
            raise b.fail("a texture or surface has no offset")
        if isinstance(base, Symbol):
            raise b.fail(f"{base.name} is one of the {REFERENCES.forms}; {REFERENCES.reason}")
        coordinates = operand.coordinates
        if geometry and not coordinates and len(operand.extra) == 1:
            coordinates = operand.extra  # a single coordinate may stand without braces
        elif operand.extra:
            raise b.fail(SAMPLER.reason)
        if geometry and len(coordinates) not in _WRITTEN[geometry]:
            wanted = " or ".join(map(str, _WRITTEN[geometry]))
            raise b.fail(f"{len(coordinates)} coordinates for .{geometry}, which takes {wanted}")
        kinds = [F32 if real else S32] * len(coordinates)
        self.layered = geometry.startswith("a")
        if self.layered:
            kinds[0] = U32
        used = COUNTS.get(geometry, 0)
        self.sources: tuple[Typed, ...] = (
            (base, U64),
            *((c, t) for c, t in zip(coordinates[:used], kinds[:used], strict=True)),
        )

    def at(self, x: Group, lanes: Mask, why: str) -> str:
        """A message with the first thread of ``lanes``."""
        cta, thread = x.first(lanes)
        x.wave.flush_output()
        return f"{self.where}: thread {thread} of CTA {cta}: {why}"

    def objects(
        self, x: Group, handles: Lanes, surface: bool | None
    ) -> Iterator[tuple[TexelObject, NDArray[np.int64]]]:
        """The objects that the active lanes name, each with the lanes' positions among the active ones.

        Args:
            surface: whether surfaces are expected, or textures; None for either.

        Raises:
            TrapError: a handle that is none, or of an object of another kind.
        """
        active = x.active()
        named = np.broadcast_to(handles, x.shape)[active]
        table = x.wave.launch.machine.texel_objects
        for handle in np.unique(named):
            chosen = np.flatnonzero(named == handle)
            found = table.get(int(handle))
            wrong = ""
            if not isinstance(found, TexelObject):
                found = None
                wrong = f"{int(handle):#x} is no texture or surface object"
            elif surface is not None and (found.sampler is None) != surface:
                wrong = f"the handle is that of {found.describe()}"
            elif self.geometry and not self._fits(found):
                wrong = f"the instruction is for .{self.geometry}, and the handle that of {found.describe()}"
            if wrong or found is None:
                lanes = np.zeros(x.shape, np.bool_)
                lanes[tuple(k[chosen] for k in np.nonzero(active))] = True
                raise TrapError(self.at(x, lanes, wrong))
            yield found, chosen

    def _fits(self, found: TexelObject) -> bool:
        if found.sampler is None and found.kind in ("cube", "cube_layered"):
            return self.geometry == "a2d"
        return found.kind in GEOMETRIES[self.geometry]


def active_values(x: Group, values: tuple[Lanes, ...]) -> list[NDArray[np.generic]]:
    """The values of the active lanes, each (n,)."""
    active = x.active()
    return [np.broadcast_to(v, x.shape)[active] for v in values]


def spread(x: Group, columns: NDArray[np.generic]) -> Results:
    """The lane arrays of columns (n, k) of values of the active lanes; one alone if there is one column."""
    active = x.active()
    out = []
    for k in range(columns.shape[1]):
        lanes = np.zeros(x.shape, columns.dtype)
        lanes[active] = columns[:, k]
        out.append(lanes)
    return out[0] if len(out) == 1 else tuple(out)


def vector(b: Binding, operand: Operand | None, count: int) -> tuple[Operand | None, ...]:
    """The elements of a vector operand of ``count`` elements."""
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != count:
        raise b.fail(f"{len(items)} registers instead of {count}")
    return items
