"""Tensor copies of 4-bit and 6-bit elements, against a model that moves one element after the other.

PTX ISA, "Sub-byte types": elements are packed in global memory, the first one in the lowest bits. In shared memory they are
packed as well (``.b4x16``), or each 16 of them occupy 16 bytes, of which the last 8 (``.b4x16_p64``) or 4 (``.b6x16_p32``) are
padding.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_boxes import POISON, source, swizzled

import ptxkit
from ptxkit.errors import FaultError, UsageError
from ptxkit.runtime.emulated import EmulatedDevice

DEVICE = EmulatedDevice()
BITS = {"16u4_align8b": 4, "16u4_align16b": 4, "16u6_align16b": 6}
PADDED_SWIZZLES = ("none", "128B", "128B_atom_32B")


@cache
def kernels():
    """One load and one store for each rank; the emulator executes the types of sm_100 for every target."""
    return ptxkit.compile(source(), device=DEVICE, target="sm_90a")


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """(rows, n) codes as (rows, n * bits / 8) bytes."""
    ones = codes[..., None] >> np.arange(bits) & 1
    return np.packbits(ones.reshape(len(codes), -1).astype(np.uint8), axis=1, bitorder="little")


@st.composite
def boxes(draw, stores: bool = False):
    name = draw(st.sampled_from(["16u4_align8b", "16u6_align16b"] if stores else sorted(BITS)))
    padded = name != "16u4_align8b"
    swizzle = draw(st.sampled_from(PADDED_SWIZZLES if padded else ("none", "32B", "64B", "128B")))
    if name == "16u6_align16b" and draw(st.booleans()):
        swizzle = draw(st.sampled_from((swizzle, "128B_atom_64B")))
    span = {"none": 256, "32B": 64, "64B": 128}.get(swizzle, 256)
    columns = 128 if padded else 32 * draw(st.integers(1, span // 32))
    box = draw(st.integers(1, 9)), columns
    unit = 128 if padded else 32
    shape = draw(st.integers(1, 20)), 128 * draw(st.integers(1, 3)) if padded else 2 * draw(st.integers(1, 200))
    lowest = 0 if stores else -2
    at = unit * draw(st.integers(lowest, 4)), draw(st.integers(5 * lowest, shape[0] + 1))
    return name, swizzle, box, shape, at


def places(name: str, swizzle: str, box: tuple[int, int], start: int) -> np.ndarray:
    """(rows, columns, bits): the place of each bit of each element of a box in shared memory, in bits."""
    rows, columns = box
    padded = name != "16u4_align8b"
    row_bytes = 128 if padded else columns // 2
    pitch = {"none": row_bytes, "32B": 32, "64B": 64}.get(swizzle, 128)
    found = np.empty((rows, columns, BITS[name]), np.int64)
    for r in range(rows):
        for c in range(columns):
            for k in range(BITS[name]):
                bit = c // 16 * 128 + c % 16 * BITS[name] + k if padded else c * 4 + k
                found[r, c, k] = 8 * swizzled(start + r * pitch + bit // 8, swizzle) + bit % 8
    return found


def array_of(name: str, shape: tuple[int, int], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Codes, and the bytes of rows that are padded to a multiple of 32 bytes."""
    codes = rng.integers(0, 1 << BITS[name], shape, np.uint8)
    rows = packed(codes, BITS[name])
    return codes, np.pad(rows, ((0, 0), (0, -rows.shape[1] % 32)))


def tensor_map(array, name, swizzle, box, shape, stride):
    return ptxkit.TensorMap(array, box=box, swizzle=swizzle, shape=shape, strides=(stride, 1), dtype=name)


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
@settings(max_examples=40, deadline=None)
@given(boxes(), st.integers(0, 9))
def test_loads(completion, drawn, to):
    name, swizzle, box, shape, at = drawn
    to *= 128
    codes, memory = array_of(name, shape, np.random.default_rng(to))
    size = to + box[0] * 128 + 256
    out, done = np.zeros((1, size), np.uint8), np.zeros(1, np.int32)
    nbytes = box[0] * box[1] * BITS[name] // 8
    with DEVICE.settings(completion=completion):
        kernels()["load2"](
            tensor_map(DEVICE.upload(memory.reshape(-1)), name, swizzle, box, shape, memory.shape[1]),
            np.array([*at, 0, 0, 0], np.int32),
            *(out, done, np.uint32(nbytes), np.uint32(to), np.uint32(size)),
            grid=1,
            block=128,
            shared=size,
        )
    assert done.all(), "the mbarrier counts the bytes of the packed elements"
    bits = np.unpackbits(np.full(size, POISON, np.uint8), bitorder="little")
    r, c = np.arange(box[0])[:, None] + at[1], np.arange(box[1])[None] + at[0]
    inside = (r >= 0) & (r < shape[0]) & (c >= 0) & (c < shape[1])
    values = np.where(inside, codes[np.clip(r, 0, shape[0] - 1), np.clip(c, 0, shape[1] - 1)], 0)
    bits[places(name, swizzle, box, to)] = values[..., None] >> np.arange(BITS[name]) & 1
    np.testing.assert_array_equal(out[0], np.packbits(bits, bitorder="little"))


@settings(max_examples=40, deadline=None)
@given(boxes(stores=True), st.integers(0, 9))
def test_stores(drawn, start):
    name, swizzle, box, shape, at = drawn
    start *= 128
    rng = np.random.default_rng(start)
    codes, memory = array_of(name, shape, rng)
    region = rng.integers(0, 256, start + box[0] * 128, np.uint8)
    array = DEVICE.upload(memory.reshape(-1))
    kernels()["store2"](
        tensor_map(array, name, swizzle, box, shape, memory.shape[1]),
        np.array([*at, 0, 0, 0], np.int32),
        *(region, np.uint32(start), np.uint32(len(region))),
        grid=1,
        block=128,
        shared=len(region),
    )
    bits = np.unpackbits(region, bitorder="little")[places(name, swizzle, box, start)]
    given_codes = (bits << np.arange(BITS[name])).sum(-1)
    for r in range(box[0]):
        for c in range(box[1]):
            if at[1] + r < shape[0] and at[0] + c < shape[1]:
                codes[at[1] + r, at[0] + c] = given_codes[r, c]
    row = packed(codes, BITS[name]).shape[1]
    np.testing.assert_array_equal(array.numpy().reshape(memory.shape)[:, :row], packed(codes, BITS[name]))


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        ("16u4_align8b", 16, "multiple of 32"),
        ("16u4_align16b", 64, "multiple of 128"),
        ("16u6_align16b", 32, "multiple of 128"),
    ],
)
def test_columns_at_which_no_box_starts(name, column, words):
    codes, memory = array_of(name, (4, 256), np.random.default_rng(0))
    with pytest.raises(FaultError, match=words):
        kernels()["load2"](
            tensor_map(DEVICE.upload(memory.reshape(-1)), name, "none", (4, 128), codes.shape, memory.shape[1]),
            np.array([column, 0, 0, 0, 0], np.int32),
            *(np.zeros(1024, np.uint8), np.zeros(1, np.int32), np.uint32(4 * 128 * BITS[name] // 8)),
            *(np.uint32(0), np.uint32(1024)),
            grid=1,
            block=128,
            shared=1024,
        )


def test_padded_elements_of_4_bits_are_not_stored():
    codes, memory = array_of("16u4_align16b", (4, 256), np.random.default_rng(0))
    with pytest.raises(FaultError, match="b4x16_p64"):
        kernels()["store2"](
            tensor_map(DEVICE.upload(memory.reshape(-1)), "16u4_align16b", "none", (4, 128), codes.shape, 128),
            np.zeros(5, np.int32),
            *(np.zeros(512, np.uint8), np.uint32(0), np.uint32(512)),
            grid=1,
            block=128,
            shared=512,
        )


def test_a_row_of_padded_elements_has_128():
    with pytest.raises(UsageError, match="must be 128"):
        tensor_map(DEVICE.upload(np.zeros(1024, np.uint8)), "16u4_align16b", "none", (4, 64), (4, 256), 128).encode(DEVICE)
