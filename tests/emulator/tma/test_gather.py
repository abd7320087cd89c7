"""Tensor copies of four rows: tile::gather4 and tile::scatter4, on the emulator; a GPU needs sm_100."""

from __future__ import annotations

import numpy as np
import pytest
from tensor_boxes import HEAD

import ptxkit
from ptxkit.errors import TrapError, UnsupportedError
from ptxkit.runtime.emulated import EmulatedDevice

SOURCE = """
extern "C" __global__ void rows(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to,
                                const int* at, u8* out) {
  __shared__ unsigned long long barrier;
  const u32 bar = shared(&barrier);
  init(bar);
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(bar, 512);
    asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];"
                 :: "r"(shared(region)), "l"(&from),
                    "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(bar) : "memory");
  }
  wait(bar);
  for (u32 i = threadIdx.x; i < 512; i += blockDim.x) out[i] = region[i];
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];"
                 :: "l"(&to), "r"(at[5]), "r"(at[6]), "r"(at[7]), "r"(at[8]), "r"(at[9]), "r"(shared(region)) : "memory");
    commit_and_wait();
  }
}
"""


def launch(swizzle: str, at: list[int], box: tuple[int, int] = (1, 32), completion: str = "eager"):
    device = EmulatedDevice()
    kernel = ptxkit.compile(HEAD + SOURCE, device=device, target="sm_100a")["rows"]
    matrix = np.arange(10 * 64, dtype=np.float32).reshape(10, 64)
    source, target = device.upload(matrix, "source"), device.upload(np.zeros_like(matrix), "target")
    maps = [ptxkit.TensorMap(m, box=box, swizzle=swizzle) for m in (source, target)]
    out = np.zeros(512, np.uint8)
    with device.settings(completion=completion):
        kernel(*maps, np.array(at, np.int32), out, grid=1, block=32, shared=512)
    return matrix, out, target.numpy()


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
@pytest.mark.parametrize("swizzle", ["none", "128B"])
def test_four_rows_are_gathered_and_scattered(swizzle, completion):
    """Rows outside the matrix are filled with zeros, and not written."""
    matrix, out, after = launch(swizzle, [8, 7, 2, 12, 2, 16, 0, 9, 4, 11], completion=completion)
    expected = np.zeros((4, 32), np.float32)
    expected[[0, 1, 3]] = matrix[[7, 2, 2], 8:40]
    chunks = out.reshape(4, 8, 16)
    if swizzle == "128B":
        chunks = np.stack([chunks[r, np.arange(8) ^ r] for r in range(4)])
    np.testing.assert_array_equal(np.ascontiguousarray(chunks).view(np.float32).reshape(4, 32), expected)
    written = np.zeros_like(matrix)
    written[[0, 9, 4], 16:48] = expected[:3]
    np.testing.assert_array_equal(after, written)


def test_the_box_has_one_row():
    with pytest.raises(TrapError, match="take a tensor map of 2 dimensions with boxes of one row; .* boxes of 4 rows"):
        launch("none", [0] * 10, box=(4, 32))


def test_older_targets_are_refused():
    device = EmulatedDevice()
    ptx = ptxkit.compile(HEAD + SOURCE, device=device, target="sm_100a").image.ptx
    text = ptx.replace("sm_100a", "sm_90a")
    with pytest.raises(UnsupportedError, match="tile::gather4 needs sm_100a"):
        from ptxkit.isa.parser import parse

        device.machine.load(parse(text, "rows.ptx"), "sm_90a").bind("rows")
