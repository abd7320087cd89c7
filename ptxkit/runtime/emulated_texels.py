"""Texture and surface objects of the emulator."""

from __future__ import annotations

import weakref
from dataclasses import asdict
from typing import TYPE_CHECKING

from ptxkit.emulator.memory.footprint import READ, WRITE, Footprint
from ptxkit.emulator.texture.texels import Sampler, TexelObject, register

if TYPE_CHECKING:
    from ptxkit.emulator import Machine
    from ptxkit.runtime.texture.layout import Texels


class EmulatedTexels:
    """A texture or surface object of a machine, which forgets it when nothing refers to this any more.

    Attributes:
        handle: what a kernel takes.
    """

    def __init__(self, machine: Machine, texels: Texels) -> None:
        sampler = None if texels.sampling is None else Sampler(**asdict(texels.sampling))
        t = texels
        sizes = (t.width, t.height, t.depth, t.layers, t.levels, t.channels)
        self.object = TexelObject(t.kind, *sizes, t.dtype, t.address, sampler)
        self._machine, self._texels = machine, texels
        self._filled = False
        register(machine.texel_objects, self.object)
        self.handle = self.object.handle
        self._finalizer = weakref.finalize(self, machine.texel_objects.pop, self.handle, None)
        self._finalizer.atexit = False

    def refresh(self, stream: int) -> None:
        """Copy the texels of the array, if they may have changed since the last launch."""
        if self._texels.always or not self._filled:
            self._filled = True
            self.object.copy(self._machine.memory)

    def write_back(self, stream: int) -> None:
        """Copy the texels of a surface to the array."""
        if self.object.sampler is None:
            self.object.write_back(self._machine.memory)

    def mark(self, footprint: Footprint | None) -> None:
        """Note in the footprint of a launch that its copies read the array, and for a surface write it."""
        owner = self._machine.memory.owner(self._texels.address)
        if footprint is None or owner is None:
            return
        kind = READ if self.object.sampler is not None else WRITE
        footprint.span(owner, self._texels.address - owner.base, self._texels.nbytes, kind)
