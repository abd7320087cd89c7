"""multimem with one device: its loads, stores and reductions are those of ordinary memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from programs import kernel

from ptxkit.compiler import assemble
from ptxkit.errors import UnsupportedError
from ptxkit.runtime.emulated import EmulatedDevice

LANE = "mov.u32 %r0, %tid.x; mul.wide.u32 %rd8, %r0, {0}; add.u64 %rd2, %rd0, %rd8; add.u64 %rd3, %rd1, %rd8;"


def run(body: str, width: int, *arrays: np.ndarray) -> EmulatedDevice:
    device = EmulatedDevice()
    image = assemble(kernel(LANE.format(width) + body, params=2), name="test.ptx", cubin=False, cache=False)
    device.load(image)["k"](*arrays, grid=1, block=32)
    return device


@pytest.mark.parametrize("operation", ["add", "min", "max"])
def test_a_load_that_reduces_gives_the_only_value(operation):
    x, y = np.arange(32, dtype=np.uint32) * 7 + 5, np.zeros(32, np.uint32)
    device = run(
        f"multimem.ld_reduce.relaxed.gpu.global.{operation}.u32 %r1, [%rd2]; st.global.u32 [%rd3], %r1;", 4, x, y
    )
    assert (y == x).all()
    assert device.counters.global_load_bytes == 128 and device.counters.by_class["load.global"] == 32


def test_vectors_of_floats():
    x, y = np.random.default_rng(1).random((32, 4), np.float32), np.zeros((32, 4), np.float32)
    body = (
        "multimem.ld_reduce.add.v4.f32 {%f0, %f1, %f2, %f3}, [%rd2]; multimem.st.v4.f32 [%rd3], {%f0, %f1, %f2, %f3};"
    )
    device = run(body, 16, x, y)
    assert (y == x).all()
    assert device.counters.global_store_bytes == 512


def test_reductions_update_memory():
    x, y = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    run("ld.global.u32 %r1, [%rd2]; multimem.red.relaxed.sys.global.add.u32 [%rd1], %r1;", 4, x, y)
    assert y[0] == x.sum() and (y[1:] == 0).all()
    halves, sums = np.ones((32, 2), ml_dtypes.bfloat16), np.full((32, 2), 2, ml_dtypes.bfloat16)
    run(
        "ld.global.b32 %r1, [%rd2]; multimem.red.add.bf16x2 [%rd3], %r1;",
        4,
        halves.view(np.uint32),
        sums.view(np.uint32),
    )
    assert (sums.astype(np.float32) == 3).all()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("multimem.ld_reduce.acquire.add.u32 %r1, [%rd2];", ".acquire needs a scope"),
        ("multimem.ld_reduce.add.s64 %rd4, [%rd2];", ".add does not take .s64"),
        ("multimem.ld_reduce.min.f32 %f1, [%rd2];", ".min does not take .f32"),
        ("multimem.ld_reduce.add.f16 %h1, [%rd2];", ".f16 goes"),
    ],
)
def test_combinations_that_do_not_exist(statement, message):
    with pytest.raises(UnsupportedError, match=message):
        run(statement, 4, np.zeros(32, np.uint32), np.zeros(32, np.uint32))
