"""Which pixels of an array a copy in im2col mode takes."""

from __future__ import annotations

from dataclasses import dataclass

from ptxkit.errors import UsageError
from ptxkit.runtime.tensor_map.limits import ALONG_W, CORNERS, MAX_BOX, MAX_PIXELS, choice, whole_numbers


@dataclass(frozen=True)
class Im2col:
    """The pixels that a load in im2col mode copies from an array of shape (N, [[D,] H,] W, C), in the order of a
    convolution.

    The corners bound where a filter's first element may stand: from ``lower`` to ``size - 1 + upper``. A convolution with
    padding p and a filter of f has ``lower=-p`` and ``upper=p - (f - 1)``.

    With ``along_w`` the map is for the load modes ``im2col::w`` and ``im2col::w::128`` of sm_100 and newer, which take the
    pixels of one D and H, those of the coordinates: W first, and then the next image. The instruction adds pixels of a halo.

    Attributes:
        lower, upper: ([D,] [H,] W); with ``along_w`` those of D and H are 0.
        channels: of each pixel, 1 to 256.
        pixels: 1 to 1024, without the halo; 128 for ``along_w="w128"``.
        along_w: None, ``"w"`` or ``"w128"``.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int
    along_w: str | None = None

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            object.__setattr__(self, name, whole_numbers(name, getattr(self, name)))
        if len(self.lower) != len(self.upper) or not 1 <= len(self.lower) <= 3:
            raise UsageError(
                f"TensorMap: im2col corners {self.lower} and {self.upper} need ([D,] [H,] W), one to three each"
            )
        if self.along_w is not None:
            choice("im2col along_w", self.along_w, ALONG_W)
            if any((*self.lower[:-1], *self.upper[:-1])):
                raise UsageError(
                    f"TensorMap: im2col corners {self.lower} and {self.upper} of D and H must be 0 with along_w: the "
                    "coordinates of the copy give D and H"
                )
            if self.along_w == "w128" and self.pixels != 128:
                raise UsageError(f"TensorMap: im2col pixels {self.pixels} must be 128 with along_w 'w128'")
        limit = CORNERS[len(self.lower) + 2 if self.along_w is None else 3]
        if not all(-limit <= n < limit for n in (*self.lower, *self.upper)):
            raise UsageError(
                f"TensorMap: im2col corners {self.lower} and {self.upper} must be {-limit} to {limit - 1} for an array of "
                f"{len(self.lower) + 2} dimensions"
            )
        if not 1 <= self.channels <= MAX_BOX:
            raise UsageError(f"TensorMap: im2col channels {self.channels} must be 1 to {MAX_BOX}")
        if not 1 <= self.pixels <= MAX_PIXELS:
            raise UsageError(f"TensorMap: im2col pixels {self.pixels} must be 1 to {MAX_PIXELS}")
