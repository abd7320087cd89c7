"""Loads in the modes im2col::w and im2col::w::128, on the emulator; a GPU needs sm_100. PTX ISA, "im2col::w" and following."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_boxes import HEAD, Boxed, for_rank

import ptxkit
from ptxkit.errors import FaultError, TrapError, UnsupportedError
from ptxkit.isa.parser import parse
from ptxkit.runtime.emulated import EmulatedDevice

LOAD = r"""
extern "C" __global__ void load~@(const __grid_constant__ CUtensorMap map, const int* c, u8* out, u32 bytes, u32 size) {
  __shared__ unsigned long long barrier;
  const u32 bar = shared(&barrier);
  init(bar);
  for (u32 i = threadIdx.x; i < size; i += blockDim.x) region[i] = 0xEE;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(bar, bytes);
    asm volatile("cp.async.bulk.tensor.@d.shared::cluster.global.im2col::w~.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {$$$}], [%2], {LOADED};"
                 :: "r"(shared(region + 128)), "l"(&map), "r"(bar)#, "h"(short(c[5])), "h"(short(c[6])) : "memory");
    asm volatile("cp.async.bulk.prefetch.tensor.@d.L2.global.im2col::w~ [%0, {$}], {PREFETCHED};"
                 :: "l"(&map)#, "h"(short(c[5])), "h"(short(c[6])) : "memory");
  }
  wait(bar);
  for (u32 i = threadIdx.x; i < size; i += blockDim.x) out[i] = region[i];
}
"""
SUFFIX = {"w": "", "w128": "::128"}


def source() -> str:
    parts = []
    for suffix in SUFFIX.values():
        for rank in (3, 4, 5):
            text = LOAD.replace("load~", f"load{suffix.replace('::', '')}").replace("~", suffix)
            text = text.replace("{LOADED}", f"{{%{3 + rank}, %{4 + rank}}}")
            parts.append(for_rank(text.replace("{PREFETCHED}", f"{{%{1 + rank}, %{2 + rank}}}"), rank))
    return HEAD + "".join(parts)


@cache
def device() -> EmulatedDevice:
    return EmulatedDevice()


@cache
def module():
    return ptxkit.compile(source(), device=device(), target="sm_100a")


@dataclass(frozen=True)
class AlongW(Boxed):
    """A walk along W, and on in the next image, pixel by pixel; ``box`` is (pixels, channels), of 2-byte elements.

    ``coordinates`` end with wHalo and wOffset.
    """

    lower: int = 0
    upper: int = 0
    mode: str = "w"
    halo: int = 0

    @property
    def counts(self) -> tuple[int, ...]:
        groups = 4 if self.mode == "w128" else 1
        return self.box[0] + groups * self.halo, self.box[1]

    def pixels(self, w: int, image: int):
        """(W, N) of the pixels in the order of shared memory, wOffset left out."""
        every = 32 if self.mode == "w128" else self.box[0]
        for _ in range(self.box[0] // every):
            restart = None
            for k in range(every + self.halo):
                if k == every:
                    restart = w, image
                yield w, image
                w += self.steps[-2]
                if w > self.shape[-2] - 1 + self.upper:
                    w, image = self.lower, image + 1
            w, image = restart or (w, image)

    def elements(self, coordinates, unit=1):
        """See :class:`Boxed`."""
        channel, first, *between, image, _, offset = coordinates
        for pixel, (w, n) in enumerate(self.pixels(first, image)):
            for k in range(self.box[1]):
                at = (n, *between[::-1], w + offset, channel + k)
                inside = all(0 <= a < size for a, size in zip(at, self.ends(unit), strict=True))
                place = sum(a * s for a, s in zip(at, self.strides, strict=True)) if inside else None
                yield pixel * self.pitch + k * self.itemsize, place


def load(boxed: AlongW, place: tuple[int, ...], offset: int = 0, mode: str = "", **changes):
    """What shared memory holds after the load, and what the model says."""
    rank = len(boxed.shape)
    numbers = np.zeros(7, np.int32)
    numbers[:rank], numbers[5:] = place, (boxed.halo, offset)
    buffer = np.random.default_rng(5).integers(0, 256, boxed.buffer_bytes, np.uint8)
    size = boxed.shared_bytes + 128
    out = np.zeros(size, np.uint8)
    corners = ((0,) * (rank - 3) + (n,) for n in (boxed.lower, boxed.upper))
    given = ptxkit.Im2col(*corners, channels=boxed.box[1], pixels=boxed.box[0], along_w=boxed.mode)
    tensor_map = ptxkit.TensorMap(
        device().upload(buffer, "array"),
        swizzle=boxed.swizzle,
        dtype="float16",
        **{
            "im2col": given,
            "shape": boxed.shape,
            "strides": boxed.strides,
            "element_strides": boxed.steps,
            "oob_fill": "nan" if boxed.nan else "zeros",
        }
        | changes,
    )
    kernel = module()[f"load{SUFFIX[mode or boxed.mode].replace('::', '')}{rank}"]
    kernel(tensor_map, numbers, out, np.uint32(boxed.nbytes), np.uint32(size), grid=1, block=64, shared=size)
    return out, boxed.load(buffer, (*place, boxed.halo, offset), 128, size)


@st.composite
def walks(draw):
    """An :class:`AlongW`, its coordinates, and wOffset."""
    mode = draw(st.sampled_from(sorted(SUFFIX)))
    spatial = draw(st.integers(1, 3))
    swizzle = draw(st.sampled_from(["64B", "128B", "128B_atom_32B"]))
    channels = 8 * draw(st.integers(1, 4 if swizzle == "64B" else 8))
    shape = (draw(st.integers(1, 4)), *draw(st.tuples(*[st.integers(2, 9)] * spatial)), channels + draw(st.integers(0, 5)))
    lower = draw(st.integers(-3, 1))
    upper = draw(st.integers(-1, 2))
    steps = (*[1] * spatial, draw(st.integers(1, 3)), 1)
    strides = [2]
    for n in reversed(shape[1:]):
        strides.insert(0, -(-strides[0] * n // 16) * 16)
    pixels = 128 if mode == "w128" else draw(st.integers(1, 60))
    nan = b"\xf7\x7f" if draw(st.booleans()) else None
    if shape[-2] - 1 + upper < lower:
        upper = lower
    halo = draw(st.integers(0, 5))
    boxed = AlongW(shape, tuple(strides), 2, (pixels, channels), steps, swizzle, nan, lower, upper, mode, halo)
    first = draw(st.integers(lower - 3, shape[-2] - 1 + upper))  # the first element may lie left of the bounding box
    others = draw(st.tuples(*[st.integers(-1, 3)] * (spatial - 1)))
    return boxed, (8 * draw(st.integers(0, 2)), first, *others, draw(st.integers(0, 3))), draw(st.integers(0, 3))


@given(walks())
@settings(max_examples=40, deadline=None)
def test_loads_are_walks_along_w(walk):
    boxed, place, offset = walk
    np.testing.assert_array_equal(*load(boxed, place, offset))


SIMPLE = AlongW((3, 5, 7, 64), (4480, 896, 128, 2), 2, (128, 64), (1, 1, 1, 1), "128B", halo=2, mode="w128")


@pytest.mark.parametrize("mode", SUFFIX)
def test_the_example_of_the_manual_in_small(mode):
    """Coordinates (W, H, N) = (3, 2, 0), a bounding box of the whole row, and a halo of 2 for a filter of 3."""
    boxed = AlongW(SIMPLE.shape, SIMPLE.strides, 2, (128, 64), (1, 1, 1, 1), "128B", halo=2, mode=mode)
    got, expected = load(boxed, (0, 3, 2, 0))
    np.testing.assert_array_equal(got, expected)
    assert len(got) == 128 + 128 * (128 + (2 if mode == "w" else 8))


@pytest.mark.parametrize(
    ("place", "offset", "halo", "mode", "along_w", "message"),
    [
        ((0, 7, 2, 0), 0, 0, "w128", "w128", "reads a box at W = 7; the bounding box ends at 6"),
        ((4, 0, 2, 0), 0, 0, "w128", "w128", "at column 4, 8 bytes into a row; it has to be a multiple of 16"),
        ((0, 0, 0, 0), 32, 0, "w128", "w128", "wOffset is 32; it must be less than 32"),
        ((0, 0, 0, 0), 0, 32, "w128", "w128", "wHalo is 32; it must be less than 32"),
        ((0, 0, 0, 0), 0, 512, "w", "w", "wHalo is 512; it must be less than 512"),
        ((0, 0, 0, 0), 0, 0, "w", "w128", "the instruction is for im2col::w, the tensor map for im2col::w::128"),
    ],
)
def test_wrong_operands_are_errors(place, offset, halo, mode, along_w, message):
    numbers = np.array([*place, 0, halo, offset], np.int32)
    given = ptxkit.Im2col((0, 0), (0, 0), channels=64, pixels=128, along_w=along_w)
    array = device().upload(np.zeros(SIMPLE.shape, np.float16), "array")
    kernel = module()[f"load{SUFFIX[mode].replace('::', '')}4"]
    with pytest.raises(FaultError, match=message):
        kernel(
            ptxkit.TensorMap(array, im2col=given, swizzle="128B"),
            numbers,
            np.zeros(64, np.uint8),
            np.uint32(0),
            np.uint32(64),
            grid=1,
            block=32,
            shared=96 * 1024,
        )


def test_a_map_of_another_mode_is_refused():
    given = ptxkit.Im2col((0, 0), (0, 0), channels=64, pixels=128)
    with pytest.raises(TrapError, match="the instruction is for im2col::w::128, the tensor map for im2col$"):
        load(SIMPLE, (0, 0, 0, 0), im2col=given)


@pytest.mark.parametrize(("target", "refused"), [("sm_90a", ["w", "w::128"]), ("sm_120a", ["w::128"])])
def test_targets_that_lack_the_modes(target, refused):
    ptx = module().image.ptx.replace("sm_100a", target)
    with pytest.raises(UnsupportedError) as found:
        device().machine.load(parse(ptx, "walks.ptx"), target).bind("load1283")
    assert "im2col::w::128 needs sm_100a, sm_103a or sm_110a" in str(found.value)
    if "w" in refused:
        with pytest.raises(UnsupportedError, match=r"im2col::w needs sm_100 or newer"):
            device().machine.load(parse(ptx, "walks.ptx"), target).bind("load3")
    else:
        device().machine.load(parse(ptx, "walks.ptx"), target).bind("load3")
