"""Digests of arrays: every byte and its place count, on both devices; the GPU's kernel also in the emulator."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.runtime.device import device as open_device
from ptxkit.runtime.gpu.digest import Digests


@pytest.fixture(params=["device", "kernel"])
def digest(request, device):
    if request.param == "device":
        return lambda array: device.upload(array).digest()
    emulator = open_device("emulator")
    digests = Digests(emulator)

    def of(array):
        on = emulator.upload(array)
        return digests.of([(on.address, on.nbytes)])[0]

    return of


@pytest.mark.parametrize("nbytes", [1, 7, 8, 9, 64, 5001])
def test_every_byte_and_its_place_count(digest, nbytes):
    data = np.random.default_rng(nbytes).integers(1, 255, nbytes, np.uint8)
    before = digest(data)
    assert digest(data.copy()) == before
    for place in {0, nbytes // 2, nbytes - 1}:
        other = data.copy()
        other[place] ^= 1
        assert digest(other) != before
    if nbytes >= 16:
        assert digest(np.roll(data, 8)) != before
    assert digest(np.append(data, np.uint8(0))) != before
