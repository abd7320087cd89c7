"""How texels become the results of a fetch: channels that are missing, the border, and the type of the destination."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.texture.filtering import fraction_of_one
from ptxkit.emulator.texture.texels import Sampler

Words = NDArray[np.uint32]


def as_words(texels: NDArray[np.generic], scaled: bool) -> Words:
    """Texels (..., channels) as the 32-bit words that a fetch returns."""
    dtype = texels.dtype
    if dtype.kind == "f":
        return texels.astype(np.float32).view(np.uint32)
    if scaled:
        return fraction_of_one(texels.astype(np.int64), dtype).view(np.uint32)
    return texels.astype(np.int32 if dtype.kind == "i" else np.uint32).view(np.uint32)


def toward_zero(values: NDArray[np.float32]) -> NDArray[np.float16]:
    """Floats rounded to float16 towards zero; what is too large becomes the largest number."""
    with np.errstate(over="ignore", invalid="ignore"):
        halves = values.astype(np.float16)
        farther = np.abs(halves.astype(np.float32)) > np.abs(values)
    return (halves.view(np.uint16) - farther.astype(np.uint16)).astype(np.uint16).view(np.float16)


def border_texel(sampler: Sampler, channels: int, dtype: np.dtype) -> NDArray[np.generic]:
    """The border as a texel of the texture's own type."""
    color = np.array(sampler.border[:channels], np.float32)
    if dtype.kind == "f":
        return color if dtype.itemsize == 4 else toward_zero(color)
    if sampler.scaled:
        exact = np.clip(color, -1.0 if dtype.kind == "i" else 0.0, 1.0).astype(np.float64) * np.iinfo(dtype).max
        eighths = np.floor(
            np.abs(exact) * 8
        )  # an H200 rounds what is left of eighths to the nearest, down in the middle
        return np.copysign(np.ceil(eighths / 8 - 0.5), exact).astype(dtype)
    return color.view(np.uint32).astype(f"u{dtype.itemsize}").view(dtype)  # the low bits of the floats
