"""Complete kernels with one mistake each: the report names both instructions by their source lines. Without a mistake, nothing
is reported and the results are right in every mode."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ptxkit
from ptxkit.cutlass.block_scaled import scale_places
from ptxkit.errors import PtxkitError
from ptxkit.runtime.emulated import EmulatedDevice

HERE = Path(__file__).parent
DEVICE = EmulatedDevice()
MODES = {
    "eager-warps": {"racecheck": "warps"},
    "eager-lanes": {"racecheck": "lanes"},
    "latest": {"completion": "latest-legal"},
    "latest-warps": {"completion": "latest-legal", "racecheck": "warps"},
    "random-warps": {"completion": "random", "completion_seed": 3, "racecheck": "warps"},
    "initcheck": {"initcheck": True},
}


def changed(name: str, mark: str, line: str) -> str:
    """The source with another line in place of the one marked ``[mark]``; "" deletes it."""
    text = (HERE / f"{name}.cu").read_text(encoding="utf-8")
    if not mark:
        return text
    old = re.search(rf"^.*// \[{mark}\]$", text, re.MULTILINE)
    assert old is not None
    return text.replace(old[0], line)


@cache
def operands(name: str):
    """The arrays of a kernel, and its result in float64."""
    rng = np.random.default_rng(1)
    if name == "pair_of_registers":
        a, b = (rng.integers(-8, 9, (rows, 320)).astype(ml_dtypes.bfloat16) for rows in (256, 128))
        return [a.view(np.uint16), b.view(np.uint16)], a.astype(np.float64) @ b.astype(np.float64).T
    a, b = (rng.integers(-8, 9, (4, rows, 128)).astype(ml_dtypes.float8_e4m3fn) for rows in (128, 64))
    scales = [rng.integers(125, 130, (4, 512), np.uint8) for _ in range(2)]
    left, right = (
        v.astype(np.float64) * np.repeat(np.ldexp(1.0, s[:, scale_places(v.shape[1], 128)].astype(int) - 127), 32, axis=2)
        for v, s in zip((a, b), scales, strict=True)
    )
    return [a.view(np.uint8), b.view(np.uint8), *scales], left @ right.transpose(0, 2, 1)


def run(name: str, mode: str, mark: str = "", line: str = "") -> bool:
    """Whether the result is right."""
    kernel = ptxkit.compile(changed(name, mark, line), device=DEVICE, target="sm_100a")[name]
    arrays, expected = operands(name)
    d = DEVICE.empty(expected.shape, np.float32)
    pair = name == "pair_of_registers"
    with DEVICE.settings(**MODES[mode]):
        kernel(*map(DEVICE.upload, arrays), d, grid=1 + pair, block=160, shared=16384 if pair else 53248)
    return bool((d.numpy() == expected).all())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["scaled_ring", "pair_of_registers"])
def test_right_kernels(name, mode):
    assert run(name, mode)


ONCE = "if (threadIdx.x == 0) stages[s].a_scales[5] = 3;"
RING = [
    ("PROXY", "", "eager-warps", "tcgen05.cp.*missing-proxy-fence: .*which warp 0 .*st.shared"),
    ("PROXY", "", "latest", "tcgen05.cp.* st.shared.* has written there with no fence.proxy.async after it"),
    ("READY", "", "eager-warps", "tcgen05.cp.*read-after-write: .* which warp 0 .* st.shared"),
    ("EARLY", ONCE, "eager-warps", r"tcgen05.cp.*, which warp 0 .* st.shared.*b8"),
    ("DONE", "", "latest-warps", "tcgen05.mma.*writes columns 0 to .* which warp 0 .*tcgen05.ld"),
    ("AFTER", "", "eager-warps", "tcgen05.ld.* that .*tcgen05.mma.* executed no tcgen05.fence::after_thread_sync"),
    ("BEFORE", "", "eager-warps", "tcgen05.mma.* that .*tcgen05.ld.* no tcgen05.fence::before_thread_sync"),
    ("LOADED", "", "latest-warps", "tcgen05.mma.* which .*tcgen05.ld.* put tcgen05.wait::ld after the load"),
    ("COLUMN", "if (u == 3) column += 192;", "eager-warps", "loads columns 256 to 287 .*column 256 is not allocated"),
    ("COLUMN", "if (u == 3) column += 80;", "initcheck", "uninitialised value: tensor memory .* loaded at .*tcgen05.ld"),
    ("INSTRUCTION", "instruction |= 1u << 6;", "latest", "descriptor 0x08900040: bit 6 is set, which is reserved"),
    ("DESCRIPTOR", "if (t == 3) left += 0x800;", "latest", "A, given by 0x4000404000010.* past the end of the CTA's 5"),
    ("DESCRIPTOR", "right &= ~(7ull << 46);", "latest", "of B: bits 46 to 48 are 0b000"),
    ("LAST", "", "eager-warps", "tcgen05.dealloc.* which .*tcgen05.mma.* writes; that is not known to be complete"),
    ("FREE", "", "latest", "tcgen05.alloc.* exits with 256 columns of tensor memory that it has allocated here"),
    ("FREE", "if (warp == 4) tcgen05_dealloc<1>(sums, 128);", "latest", "deallocates 128 .* where .*tcgen05.alloc.* 256"),
    ("AGAIN", "if (warp == 4) tcgen05_dealloc<1>(sums, 256);", "latest", "freed already, or never allocated"),
]
DEFAULT = "mbarrier_arrive_shared_cluster(of_first(&full[s]));"
ONE = "if (rank == 0) mbarrier_wait(cvta_to_shared(&done), 0);"
PAIR = [
    ("ARRIVE", DEFAULT, "eager-warps", "tcgen05.mma.*warp 0 of CTA .1.*arrive.release.cluster"),
    ("WAIT", "mbarrier_wait(cvta_to_shared(&full[s]), t / 2 & 1);", "latest-warps", "tcgen05.mma.*CTA .1.*acquire.cluster"),
    ("FIRST", "", "eager-warps", "mbarrier.arrive.*read-after-write.*which warp 0 of CTA .*mbarrier.init"),
    ("STORED", "", "latest-warps", "tcgen05.mma.*which .*tcgen05.st.*put tcgen05.wait::st after the store"),
    ("BEFORE", "", "eager-warps", "tcgen05.mma.*that .*tcgen05.st.*executed no tcgen05.fence::before_thread_sync"),
    ("AFTER", "", "eager-warps", "tcgen05.st.*that .*tcgen05.mma.*executed no tcgen05.fence::after_thread_sync"),
    ("OPERAND", "left = rows;", "eager-warps", "tcgen05.st.*which .*tcgen05.mma.*reads; that is not known to be complete"),
    ("DONE", ONE, "latest-warps", "tcgen05.ld.*CTA .1.*which .*tcgen05.mma"),
    ("FREE", "if (warp == 4 && rank == 0) tcgen05_dealloc<2>(sums, 256);", "latest", "CTA .1, 0, 0. exits with 256 columns"),
]


@pytest.mark.parametrize(
    ("name", "mark", "line", "mode", "message"),
    [*(("scaled_ring", *case) for case in RING), *(("pair_of_registers", *case) for case in PAIR)],
)
def test_mistakes_are_reported_with_both_places(name, mark, line, mode, message):
    with pytest.raises(PtxkitError) as found:
        run(name, mode, mark, line)
    assert re.search(message, str(found.value).replace("\n", " ")), str(found.value)
