"""The layout of the scale factors of block-scaled products."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.cutlass.block_scaled import scale_bytes, scale_places


@pytest.mark.parametrize("block", [32, 16])
@pytest.mark.parametrize(("rows", "k"), [(128, 128), (200, 160), (1, 32), (384, 640)])
def test_every_scale_factor_has_a_place_of_its_own(rows, k, block):
    places = scale_places(rows, k, block)
    assert places.shape == (rows, k // block)
    assert len(np.unique(places)) == places.size and places.min() >= 0 and places.max() < scale_bytes(rows, k, block)


def test_the_layout_is_that_of_cutlass():
    """An atom of 512 bytes is ((32, 4), 4):((16, 4), 1), rows by blocks; the atoms of a row of them follow each other."""
    places = scale_places(256, 256)
    assert places[:3, 0].tolist() == [0, 16, 32] and places[0, :4].tolist() == [0, 1, 2, 3]
    assert (places[32, 0], places[96, 3], places[0, 4], places[128, 0], places[128, 4]) == (4, 15, 512, 1024, 1536)
