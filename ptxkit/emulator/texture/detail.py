"""Levels of detail: which level of a mipmap a fetch reads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.texture.texels import DIMENSIONS, TexelObject

_WEIGHTS = 1, 11 / 32, 8 / 32


def level_of(mip: str, texture: TexelObject, extra: list[NDArray[np.generic]], count: int) -> NDArray[np.float64]:
    """The level of each of ``count`` fetches, before bias and limits.

    Args:
        mip: ``"level"``, ``"grad"``, or another string for level 0.
        extra: the level, or the gradients along x and y of the grid of pixels.
    """
    if mip == "level":
        level = np.where(np.isnan(extra[0]), 0.0, extra[0]).astype(np.float64)
        return np.clip(level, -1e6, 1e6)
    if mip != "grad":
        return np.zeros(count)
    sizes = texture.extent(0)[: DIMENSIONS[texture.kind]]
    half = len(extra) // 2
    scaled = [np.abs(extra[k].astype(np.float64)) * sizes[min(k % half, len(sizes) - 1)] for k in range(2 * half)]
    lengths = [_length(scaled[:half]), _length(scaled[half:])]
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.log2(np.maximum(*lengths))
    return np.clip(np.nan_to_num(level, nan=0.0, posinf=1e6, neginf=-1e6), -1e6, 1e6)


def _length(components: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The length of a gradient as a GPU estimates it: sums of the ordered components, with weights measured on an H200."""
    ordered = np.sort(np.stack(components), axis=0)[::-1]
    return sum(weight * component for weight, component in zip(_WEIGHTS, ordered, strict=False))
