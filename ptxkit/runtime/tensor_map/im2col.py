"""Which pixels of an array a copy in im2col mode takes."""

from __future__ import annotations

from dataclasses import dataclass

from ptxkit.errors import UsageError
from ptxkit.runtime.tensor_map.limits import CORNERS, MAX_BOX, MAX_PIXELS, whole_numbers


@dataclass(frozen=True)
class Im2col:
    """The pixels that a load in im2col mode copies from an array of shape (N, [[D,] H,] W, C), in the order of a
    convolution.

    The corners bound where a filter's first element may stand: from ``lower`` to ``size - 1 + upper``. A convolution with
    padding p and a filter of f has ``lower=-p`` and ``upper=p - (f - 1)``.

    Attributes:
        lower, upper: ([D,] [H,] W).
        channels: of each pixel, 1 to 256.
        pixels: 1 to 1024.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            object.__setattr__(self, name, whole_numbers(name, getattr(self, name)))
        if len(self.lower) != len(self.upper) or not 1 <= len(self.lower) <= 3:
            raise UsageError(
                f"TensorMap: im2col corners {self.lower} and {self.upper} need ([D,] [H,] W), one to three each"
            )
        limit = CORNERS[len(self.lower) + 2]
        if not all(-limit <= n < limit for n in (*self.lower, *self.upper)):
            raise UsageError(
                f"TensorMap: im2col corners {self.lower} and {self.upper} must be {-limit} to {limit - 1} for an array of "
                f"{len(self.lower) + 2} dimensions"
            )
        if not 1 <= self.channels <= MAX_BOX:
            raise UsageError(f"TensorMap: im2col channels {self.channels} must be 1 to {MAX_BOX}")
        if not 1 <= self.pixels <= MAX_PIXELS:
            raise UsageError(f"TensorMap: im2col pixels {self.pixels} must be 1 to {MAX_PIXELS}")
