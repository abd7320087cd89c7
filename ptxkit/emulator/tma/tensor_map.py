"""The emulator's own encoding of a tensor map in 128 bytes. (NVIDIA does not publish that of a GPU.)

======  =====  =======================================================================================================
offset  bytes  field
======  =====  =======================================================================================================
0       8      the text ``ptxkitTM``: anything else is no tensor map
8       8      address of the first element in global memory
16      1      number of dimensions
17      1      element type, as numbered by tensormap.replace
18      1      interleave layout: 0 none
19      1      swizzle mode: 0 none, 1 32B, 2 64B, 3 128B, 4 96B
20      1      swizzle atomicity: 0 16B, 1 32B, 2 32B with 8-byte halves flipped, 3 64B
21      1      fill: 0 zeros, 1 NaN
22      1      L2 promotion, of no effect here
23      1      mode: 0 tiles, 1 im2col, 2 im2col::w, 3 im2col::w::128
24      20     elements of each dimension, less one so that 2^32 fits, 5 of 32 bits, innermost first
44      10     elements of the box in each dimension, 5 of 16 bits
54      5      element stride of each dimension, 5 of 8 bits
64      32     bytes from one element to the next in dimensions 1 to 4, 4 of 64 bits
96      6      im2col: lower corner, 3 of 16 bits, W first
102     6      im2col: upper corner
108     2      im2col: channels of a pixel
110     2      im2col: pixels of a column
======  =====  =======================================================================================================

All other bytes are 0. The fields are those that tensormap.replace can write (PTX ISA, "tensormap.replace").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAGIC = b"ptxkitTM"
BYTES = 128
ALIGNMENT = 64

LAYOUT = np.dtype(
    {
        "names": [
            "magic",
            "global_address",
            "rank",
            "elemtype",
            "interleave_layout",
            "swizzle_mode",
            "swizzle_atomicity",
            "fill_mode",
            "l2_promotion",
            "mode",
            "global_dim",
            "box_dim",
            "element_stride",
            "global_stride",
            "lower_corner",
            "upper_corner",
            "channels",
            "pixels",
        ],
        "formats": [
            "S8",
            "<u8",
            *["u1"] * 8,
            *[("<u4", 5), ("<u2", 5), ("u1", 5), ("<u8", 4)],
            *[("<i2", 3)] * 2,
            "<u2",
            "<u2",
        ],
        "offsets": [0, 8, 16, 17, 18, 19, 20, 21, 22, 23, 24, 44, 54, 64, 96, 102, 108, 110],
        "itemsize": BYTES,
    }
)
"""The fields by their names in tensormap.replace."""

SWIZZLES = ((0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3))
"""CUtensorMapSwizzle -> (swizzle mode, atomicity)."""


Convert = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]


@dataclass(frozen=True)
class Element:
    """A type of tensor map elements.

    Attributes:
        nbytes: size in bytes. Elements of 4 and 6 bits are copied as numbers of this size, which contain several of them.
        dtype: numpy type for reductions; None for types without reductions. bfloat16 is represented by its bits.
        nan: the fill value NaN for elements outside of the array, as bits.
        convert: the conversion that a load applies to the dense bytes; None for no conversion.
        narrow: bits of an element of less than 8 bits; 0 for other types.
        padded: in shared memory each 16 elements occupy 16 bytes, the last ones of which are not written.
    """

    name: str
    nbytes: int
    dtype: np.dtype | None = None
    nan: int = 0
    convert: Convert | None = None
    narrow: int = 0
    padded: bool = False

    @property
    def unit(self) -> int:
        """The number of elements that the first coordinate of a box of narrow elements is a multiple of; 0 for other types."""
        return 128 if self.padded else 128 // self.narrow if self.narrow else 0

    @property
    def bits(self) -> np.dtype:
        """Unsigned integers of the element's size."""
        return np.dtype(f"u{self.nbytes}")


def _tf32(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """float32 rounded to the nearest tf32, which has 10 bits of mantissa; ties to even, one NaN."""
    bits = data.view(np.uint32)
    rounded = bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1)) & np.uint32(0xFFFF_E000)
    nan = bits & np.uint32(0x7FFF_FFFF) > np.uint32(0x7F80_0000)
    return np.where(nan, np.uint32(0x7FFF_E000), rounded).view(np.uint8)


def _nan(nbytes: int) -> int:
    return int.from_bytes(b"\xf7\x7f" * (nbytes // 2), "little")


ELEMENTS = (
    Element("u8", 1),
    Element("u16", 2),
    Element("u32", 4, np.dtype("u4")),
    Element("s32", 4, np.dtype("i4")),
    Element("u64", 8, np.dtype("u8")),
    Element("s64", 8, np.dtype("i8")),
    Element("f16", 2, np.dtype("f2"), _nan(2)),
    Element("f32", 4, np.dtype("f4"), _nan(4)),
    Element("f32.ftz", 4, np.dtype("f4"), _nan(4)),
    Element("f64", 8, np.dtype("f8"), _nan(8)),
    Element("bf16", 2, np.dtype("u2"), _nan(2)),
    Element("tf32", 4, np.dtype("f4"), _nan(4), _tf32),
    Element("tf32.ftz", 4, np.dtype("f4"), _nan(4), _tf32),
    Element("b4x16", 1, narrow=4),
    Element("b4x16_p64", 4, narrow=4, padded=True),
    Element("b6x16_p32", 4, narrow=6, padded=True),
)
"""Element types by their numbers in tensormap.replace.

The behaviour is that of an H200: the fill value NaN is 0x7ff7 in every two bytes; a load only rounds tf32; ``.ftz`` affects
reductions only; a store changes no bits.
"""

ELEMENT_NUMBERS = (0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 8, 11, 12, 13, 14, 15)
"""CUtensorMapDataType -> number in :data:`ELEMENTS`."""


def encode(
    element: int,
    address: int,
    dimensions: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    element_strides: Sequence[int],
    swizzle: int = 0,
    l2_promotion: int = 0,
    oob_fill: int = 0,
    im2col: tuple[Sequence[int], Sequence[int], int, int] | None = None,
    along_w: int | None = None,
) -> bytes:
    """The 128 bytes. Arguments are those of cuTensorMapEncodeTiled, innermost dimension first, and already checked.

    Args:
        im2col: lower and upper corner, channels of a pixel, pixels of a column (cuTensorMapEncodeIm2col), instead of a box.
        along_w: 0 for im2col::w and 1 for im2col::w::128 (cuTensorMapEncodeIm2colWide); None for im2col.
    """
    record = np.zeros((), LAYOUT)
    rank = len(dimensions)
    record["magic"] = MAGIC
    record["global_address"] = address
    record["rank"] = rank
    record["elemtype"] = ELEMENT_NUMBERS[element]
    record["swizzle_mode"], record["swizzle_atomicity"] = SWIZZLES[swizzle]
    record["fill_mode"] = oob_fill
    record["l2_promotion"] = l2_promotion
    record["global_dim"][:rank] = [n - 1 for n in dimensions]
    record["box_dim"][: len(box)] = box
    record["element_stride"][:rank] = element_strides
    record["global_stride"][: rank - 1] = strides
    if im2col is not None:
        record["mode"] = 1 if along_w is None else 2 + along_w
        record["lower_corner"][: rank - 2], record["upper_corner"][: rank - 2] = im2col[:2]
        record["channels"], record["pixels"] = im2col[2:]
    return record.tobytes()
