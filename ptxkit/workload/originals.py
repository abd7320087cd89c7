"""The inputs of cases as they were uploaded: their digests, and arrays on the device from which they are copied again.

Cases that share their data have the same inputs in arrays of their own. An input is copied from the host once. The arrays of
the other cases, and inputs that launches update in place, are copied on the device, which is a hundred times as fast. A copy is
made only of an array that still has the digest of the upload: a kernel that writes to it by mistake spoils no other input.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.runtime.abilities import is_emulating

if TYPE_CHECKING:
    from ptxkit.runtime.device import Device, DeviceArray
    from ptxkit.workload.data import Data

SMALLEST = 1 << 20  # bytes of an array below which a copy from the host takes no longer


class Originals:
    """The inputs of one workload, for all cases that share their data on one device.

    Args:
        device: the device of the cases. data: their data.

    Attributes:
        digests: input name -> digest of its bytes as they were uploaded.
    """

    def __init__(self, device: Device, data: Data) -> None:
        self._device = device
        self._data = data
        self._renewals = data.renewals
        self._sources: dict[str, DeviceArray] = {}
        self.digests: dict[str, int] = {}

    def write(self, name: str, value: np.ndarray[Any, Any], to: DeviceArray, *, updated: bool) -> None:
        """Write an input to an array of a case.

        Args:
            value: the input on the host. updated: whether launches update it in place, so that it is written again and again.
        """
        if self._data.renewals != self._renewals:
            self._renewals = self._data.renewals
            self.digests.clear()
        source = self._sources.get(name)
        if source is not None and source is not to and name in self.digests and source.digest() == self.digests[name]:
            to.copy_from(source)
            return
        to.copy_from(np.ascontiguousarray(value))
        if name not in self.digests:
            self.digests[name] = to.digest()
        if to.nbytes < SMALLEST or is_emulating(self._device):
            return
        if not updated:
            self._sources.setdefault(name, to)
            return
        if source is None and 2 * to.nbytes < self._device.memory_bytes:
            source = self._sources[name] = self._device.empty(to.shape, to.dtype, f"{name}: original")
        if source is not None:
            source.copy_from(to)


def differing(originals: Originals, arrays: Sequence[tuple[str, DeviceArray]]) -> list[bool]:
    """Whether each of these arrays, with the names of their inputs, differs from what was uploaded."""
    if not arrays:
        return []
    now = digests_of(array for _, array in arrays)
    return [digest != originals.digests.get(name) for digest, (name, _) in zip(now, arrays, strict=True)]


def digests_of(arrays: Iterable[DeviceArray]) -> list[int]:
    """The digest of each of these arrays of one device, computed together."""
    every = list(arrays)
    held = [array for array in every if array.nbytes]
    found = iter(held[0].memory.digests([(array.address, array.nbytes) for array in held]) if held else [])
    return [next(found) if array.nbytes else 0 for array in every]
