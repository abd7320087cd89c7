"""Pairs of programs, with and without a wait: the first is correct, the second is reported by latest-legal completion, by the
race check, or by both.

Tensor copies, and what is asynchronous in a cluster; those of cp.async, bulk copies and wgmma are in their own tests.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from programs import Run, kernel
from tensor_boxes import HEAD, Boxed, Columns, source
from test_bulk_copy import TO_NEIGHBOUR
from test_bulk_copy import WAIT as BULK_WAIT
from test_cluster import WAIT, async_reduction, async_store

import ptxkit
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import RaceError
from ptxkit.runtime.emulated import EmulatedDevice

SHAPE = (3, 3, 4, 5, 32)
BOXED = {
    n: Boxed(
        SHAPE[-n:], tuple(4 * int(np.prod(SHAPE[d + 1 :])) for d in range(5 - n, 5)), 4, (1, 2, 2, 2, 16)[-n:], (1,) * n
    )
    for n in range(1, 6)
}
"""Rank -> boxes of float32 that lie inside an array."""


def columns(rank: int) -> Columns:
    spatial = (4, 5, 6)[-(rank - 2) :]
    shape = (2, *spatial, 32)
    strides = tuple(4 * int(np.prod(shape[d + 1 :])) for d in range(rank))
    edges = (-1,) * (rank - 2), (-1,) * (rank - 2)
    return Columns(shape, strides, 4, (20, 16), (1,) * rank, lower=edges[0], upper=edges[1])


class Tried:
    """Whether the result of a program is right with completion as late as is legal, and whether its warps race."""

    def __init__(self) -> None:
        self.device = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))

    def check(self, run) -> tuple[bool, bool]:
        """``run(device)`` returns whether the result is right. (right, races)

        A copy to another CTA that the kernel does not wait for ends the first run with an error.
        """
        try:
            right = run(self.device)
        except RaceError:
            right = False
        try:
            with self.device.settings(racecheck=True):
                assert run(self.device) is right
        except RaceError:
            return right, True
        return right, False


@lru_cache(maxsize=1)
def programs(device, without: str):
    text = source()
    assert without in text
    instead = "const bool ok = true;" if "ok" in without else ""
    return ptxkit.compile(text.replace(without, instead) if without else text, device=device, target="sm_90a")


def bytes_of(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 100, count, np.uint8)


def loads(name: str, boxed: Boxed, m, without: str):
    """A box is loaded and copied to global memory by a program from which the text ``without`` is deleted."""

    def run(device) -> bool:
        buffer = bytes_of(1, boxed.buffer_bytes)
        size, place = boxed.shared_bytes, np.zeros((1, 8), np.int32)
        out, done = np.zeros(size, np.uint8), np.zeros(1, np.int32)
        array = device.upload(buffer)
        programs(device, without)[name](
            m(array),
            place,
            out,
            done,
            np.uint32(boxed.nbytes),
            np.uint32(0),
            np.uint32(size),
            grid=1,
            block=64,
            shared=size,
        )
        coordinates = (0,) * (len(boxed.shape) + (len(boxed.shape) - 2 if isinstance(boxed, Columns) else 0))
        return bool((out == boxed.load(buffer, coordinates, 0, size)).all())

    return run


def tiles(boxed: Boxed):
    return lambda array: ptxkit.TensorMap(
        array, box=boxed.box, shape=boxed.shape, strides=boxed.strides, dtype="float32"
    )


def filters(boxed: Columns):
    return lambda array: ptxkit.TensorMap(
        array,
        im2col=ptxkit.Im2col(boxed.lower, boxed.upper, channels=boxed.box[1], pixels=boxed.box[0]),
        shape=boxed.shape,
        strides=boxed.strides,
        dtype="float32",
    )


LOADS = [(f"load{n}", b, tiles(b)) for n, b in BOXED.items()]
LOADS += [(f"load_columns{n}", columns(n), filters(columns(n))) for n in (3, 4, 5)]


@pytest.mark.parametrize(("name", "boxed", "m"), LOADS, ids=[name for name, *_ in LOADS])
def test_tensor_loads(name, boxed, m):
    assert Tried().check(loads(name, boxed, m, "")) == (True, False)
    assert Tried().check(loads(name, boxed, m, "const bool ok = wait(bar);")) == (False, True)


@pytest.mark.parametrize("without", ["", "const bool ok = wait(bar);"])
def test_multicasts(without):
    """Four CTAs each copy a box to all of them."""

    def run(device) -> bool:
        x = np.random.default_rng(3).random((16, 32)).astype(np.float32)
        out, done = np.zeros((4, 4 * 512), np.uint8), np.zeros(4, np.int32)
        m = ptxkit.TensorMap(device.upload(x), box=(4, 32))
        masks = np.full(4, 15, np.uint16)
        programs(device, without)["multicast"](
            m, out, done, np.uint32(512), masks, grid=4, block=64, shared=4 * 512, cluster=4
        )
        return bool((out == x.view(np.uint8).ravel()).all())

    assert Tried().check(run) == (not without, bool(without))


STORES = [("store2", tiles(BOXED[2]), BOXED[2]), ("reduce_add", tiles(BOXED[2]), BOXED[2])]
STORES += [(f"store{n}", tiles(BOXED[n]), BOXED[n]) for n in (1, 3, 4, 5)]


@pytest.mark.parametrize(("name", "m", "boxed"), STORES, ids=[name for name, *_ in STORES])
@pytest.mark.parametrize("without", ["", 'asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");'])
def test_tensor_stores_that_the_cta_does_not_live_to_see(name, m, boxed, without):
    """A CTA must not exit before its stores have read its shared memory; their arrival in global memory needs no wait."""

    def run(device) -> bool:
        elements = (boxed.buffer_bytes - 16) // 4
        array = device.upload(np.arange(elements, dtype=np.float32))
        before = array.numpy().copy()
        region = np.full(boxed.nbytes // 4, 7, np.float32)
        programs(device, without)[name](
            m(array),
            np.zeros((1, 5), np.int32),
            region,
            np.uint32(0),
            np.uint32(region.nbytes),
            grid=1,
            block=64,
            shared=region.nbytes,
        )
        expected = before.copy()
        for _, offset in boxed.elements((0,) * len(boxed.shape)):
            expected[offset // 4] = 7 + (before[offset // 4] if "reduce" in name else 0)
        return bool((array.numpy() == expected).all())

    if not without:
        assert Tried().check(run) == (True, False)
        return
    assert run(EmulatedDevice())
    with pytest.raises(RaceError, match="the CTA exits before this store is known to have read its shared memory: thread"):
        run(EmulatedDevice(settings=EmulatorSettings(completion="latest-legal")))


OVERWRITTEN = """
extern "C" __global__ void overwritten(const __grid_constant__ CUtensorMap map) {
  float* values = reinterpret_cast<float*>(region);
  values[threadIdx.x] = 3;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("INSTRUCTION.bulk_group [%0, {%1, %2}], [%3];" :: "l"(&map), "r"(0), "r"(0), "r"(shared(region)) : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    asm volatile("cp.async.bulk.wait_group.read WAIT;" ::: "memory");
  }
  BARRIER
  values[threadIdx.x] = 50;
  if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}"""


@pytest.mark.parametrize("instruction", ["", "reduce."])
@pytest.mark.parametrize(
    ("wait", "barrier", "right", "races"),
    [("0", "__syncthreads();", True, False), ("1", "__syncthreads();", False, True), ("0", "", None, True)],
)
def test_a_source_that_is_overwritten(instruction, wait, barrier, right, races):
    """A barrier does not replace a wait, and a thread must wait even if another one has waited; right is None if the result
    depends on the order of execution."""
    opcode = f"cp.{instruction}async.bulk.tensor.2d.global.shared::cta" + (".add" if instruction else "")
    text = HEAD + OVERWRITTEN.replace("INSTRUCTION", opcode).replace("WAIT", wait).replace("BARRIER", barrier)

    def run(device) -> bool:
        array = device.upload(np.zeros((4, 16), np.float32))
        ptxkit.compile(text, device=device, target="sm_90a")["overwritten"](
            ptxkit.TensorMap(array, box=(4, 16)), grid=1, block=64, shared=256
        )
        return bool((array.numpy() == 3).all())

    assert Tried().check(run) in [(r, races) for r in (True, False) if right is None or r is right]


CLUSTER = [
    ("st.async", async_store("b32", 1), async_store("b32", 1, wait=""), 2),
    ("st.async.v4", async_store("b32", 4), async_store("b32", 4, wait=""), 2),
    ("red.async", async_reduction("add", "u32"), async_reduction("add", "u32").replace(WAIT, ""), 2),
    *(
        (
            copy.split(".mbarrier")[0],
            TO_NEIGHBOUR.format(copy=copy, wait=BULK_WAIT.format(parity=0)),
            TO_NEIGHBOUR.format(copy=copy, wait=""),
            2,
        )
        for copy in (
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
            "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32",
        )
    ),
]


@pytest.mark.parametrize(("waiting", "impatient", "cluster"), [c[1:] for c in CLUSTER], ids=[c[0] for c in CLUSTER])
def test_what_is_sent_through_a_cluster(waiting, impatient, cluster):
    """One of the programs races, and its receiver may exit before the data have arrived."""
    block = 128 if "bulk" in waiting else 64
    arrays = [np.arange(1, 1 + 4 * block * 4, dtype=np.uint32), np.arange(7, 7 + 4 * block * 4, dtype=np.uint32)]
    results = []
    for completion in ("eager", "latest-legal"):
        out = Run(kernel(waiting))(*arrays, grid=4, block=block, cluster=cluster, completion=completion)
        results.append(np.concatenate([a.ravel() for a in out]))
    assert (results[0] == results[1]).all()
    with pytest.raises(RaceError, match="access-after-exit"):
        Run(kernel(impatient))(*arrays, grid=4, block=block, cluster=cluster, completion="latest-legal")
    Run(kernel(waiting))(*arrays, grid=4, block=block, cluster=cluster, racecheck=True)
    with pytest.raises(RaceError, match="read-after-write"):
        Run(kernel(impatient))(*arrays, grid=4, block=block, cluster=cluster, racecheck=True)
