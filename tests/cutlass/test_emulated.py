"""CUTLASS's own kernels in the emulator: emitted, compiled, laid out by their builder kernel, run, and exact.

Operands are small integers, so that every sum is exact whatever its order, and each completion mode has to give every bit.
These kernels are not part of this project: their waits and fences are assumed to be correct, and their warps free of races.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from ptxkit.cutlass.kernels.cutlass_gemm import CutlassGemm
from ptxkit.cutlass.params import notes
from ptxkit.cutlass.program import GemmProgram
from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import LaunchError, MemoryFault, RaceError
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.workload import execute
from ptxkit.workload.build import build

pytestmark = pytest.mark.sampled(5)

MODES = ("eager", "latest-legal")

SMALL = ({"m": 128, "n": 128, "k": 64}, {"m": 200, "n": 144, "k": 80, "alpha": 2.0, "beta": -1.0})
"""A multiple of every tile, and no multiple of any; a row is a multiple of 16 bytes in each type."""


@cache
def device(mode: str, sms: int = 132) -> EmulatedDevice:
    """An emulated GPU; persistent kernels launch as many CTAs as it has multiprocessors."""
    settings = EmulatorSettings(completion=mode, racecheck=mode == "eager")  # any race is an error
    return EmulatedDevice(Machine(capacity=1 << 30, sms=sms), settings)


def operands(w: CutlassGemm) -> dict[str, np.ndarray]:
    """Small integers, so that the product and c are exact before they are rounded to the type of the output."""
    rng = np.random.default_rng(w.m * w.n + w.k)
    given = w.inputs(rng)
    return {
        name: array if array.dtype == np.uint8 else rng.integers(-3, 4, array.shape).astype(array.dtype)
        for name, array in given.items()
    }


def check(w: CutlassGemm, variant: str, on: EmulatedDevice, tile: dict[str, int] | None = None) -> None:
    """Run one variant and compare every element; an element that no thread writes contains a sentinel value."""
    case = execute.Case(w, on, inputs=operands(w))
    execute.run(case, w.variant(variant), tile=tile)
    c = case.outputs()["c"]
    np.testing.assert_array_equal(c, case.expected["c"].astype(np.float32).astype(c.dtype))


def check_both_modes(sizes: tuple[dict, ...], variant: str, tile: dict[str, int] | None = None, **options: str) -> None:
    for given in sizes:
        for mode in MODES:
            check(CutlassGemm(**given, **options), variant, device(mode), tile)


def found_without(opcode: str, w: CutlassGemm, variant: str, tile: dict[str, int], mode: str = MODES[1]) -> bool:
    """Whether the result is wrong, or an error is raised, without any ``opcode``; operations complete as late as is legal."""
    built = build(w, w.variant(variant), tile=tile)
    (step,) = built.steps
    ptx, count = re.subn(rf"{re.escape(opcode)}[^;]*;", "", step.image.ptx)
    assert count
    step = replace(step, image=replace(step.image, ptx=ptx, key=f"{step.image.key} without {opcode}"))
    prepared = execute.bound(execute.Case(w, device(mode), inputs=operands(w)), replace(built, steps=(step,)))
    try:
        return not prepared.verify().verified
    except RaceError as error:
        return mode == "eager" or "the CTA exits before this store" in str(error)
    except MemoryFault as error:
        return "fence.proxy.async" in str(error)


@pytest.mark.slow
def test_on_cuda_cores():
    check_both_modes((*SMALL, {"m": 65, "n": 67, "k": 33}), "simt", dtype="f32", layout="tn")


@pytest.mark.parametrize(
    "variant,dtype,layout,epilogue",
    [
        ("multistage", "f16", "nt", "relu"),
        ("multistage", "tf32", "tt", "linear"),
        ("multistage", "s8", "tn", "linear"),
        ("multistage_f8", "e4m3", "tn", "linear"),
    ],
)
def test_mma_sync(variant, dtype, layout, epilogue):
    tile = {"BM": 64, "BN": 64, "WARPS_M": 2, "WARPS_N": 2}
    check_both_modes(SMALL, variant, tile, dtype=dtype, layout=layout, epilogue=epilogue)
    if dtype != "f16":  # the main loop of all four is one template
        return
    w = CutlassGemm(**SMALL[1], dtype=dtype, layout=layout, epilogue=epilogue)
    assert found_without("cp.async.wait_group", w, variant, tile)
    for opcode in ("cp.async.wait_group", "bar.sync"):
        assert found_without(opcode, w, variant, tile, "eager")


CLUSTER = {"BM": 128, "BN": 128, "CLUSTER_M": 2, "CLUSTER_N": 1}


@pytest.mark.slow
def test_cooperative_with_multicast():
    check_both_modes(SMALL, "cooperative", CLUSTER)
    for mode in MODES:  # a CTA computes several tiles, so that it uses each stage of its ring several times
        check(CutlassGemm(264, 264, 640, beta=1.0), "cooperative", device(mode, sms=4), CLUSTER)
    w = CutlassGemm(264, 264, 640)
    for opcode in ("wgmma.wait_group", "fence.proxy.async", "cp.async.bulk.wait_group"):
        assert found_without(opcode, w, "cooperative", CLUSTER)
    for opcode in ("bar.sync", "wgmma.wait_group"):
        assert found_without(opcode, w, "cooperative", CLUSTER, "eager")
    counters = execute.run(execute.Case(w, device("eager")), w.variant("cooperative"), tile=CLUSTER).counters
    # the operands inside the matrices: a once a column of tiles, b once a row of clusters; c once
    a, b, c = w.m * w.k * 2, w.n * w.k * 2, w.m * w.n * 2
    assert counters is not None
    assert counters.async_bytes == {"global_to_shared": 3 * a + 2 * b, "shared_to_global": c}


PINGPONG = {"BM": 64, "BN": 128, "CLUSTER_M": 1, "CLUSTER_N": 2}


@pytest.mark.slow
def test_pingpong_fp8():
    check_both_modes(SMALL, "pingpong", PINGPONG, dtype="e4m3")


@pytest.mark.slow
def test_builder_lays_out_the_launch():
    """With the program of the test above, because a compilation of CUTLASS takes longer than all other tests of this file."""
    w = CutlassGemm(520, 272, 640, dtype="e4m3")
    on = device("eager", sms=6)
    step = build(w, w.variant("pingpong"), tile=PINGPONG).steps[0]
    program = step.launch.source
    assert isinstance(program, GemmProgram)
    arrays = {
        name: on.empty(shape, dtype, name)
        for name, shape, dtype in (
            ("a", (520, 640), np.uint8),
            ("b", (272, 640), np.uint8),
            ("c", (520, 272), np.uint16),
        )
    }
    (launch,), _ = program.bind(step.launch, on.load(step.image), on, arrays.__getitem__)
    assert launch.block == (384, 1, 1) and np.prod(launch.grid) == 6 and launch.cluster == (1, 2, 1)
    (params,) = launch.args
    assert not list(notes(np.frombuffer(params, np.uint8)))  # all of them are encoded
    with pytest.raises(LaunchError, match="cannot compute m=520, n=272, k=648; rows must be multiples of 16 elements"):
        GemmProgram(program.description, 520, 272, 648).bind(step.launch, on.load(step.image), on, arrays.__getitem__)


@pytest.mark.slow
def test_stream_k():
    tile = {"BM": 128, "BN": 128, "CLUSTER_M": 1, "CLUSTER_N": 1}
    check_both_modes(SMALL[1:], "stream_k", tile, dtype="f16")
    for mode in MODES:
        # 5 tiles for 4 multiprocessors: partial sums over k are added in the workspace, with barriers that must be cleared
        w = CutlassGemm(600, 128, 1024, dtype="f16")
        on = device(mode, sms=4)
        check(w, "stream_k", on, tile)
        assert on.counters.by_class["atomic.global"] > 0
        prepared = execute.prepare(execute.Case(w, on, inputs=operands(w)), w.variant("stream_k"), tile=tile)
        assert len(prepared.launches) == 2
        assert all(prepared.verify().verified for _ in range(2))


@pytest.mark.slow
def test_stream_k_on_sm_100():
    """Without the race check: CUTLASS 4.2 loads sums that it has stored to tensor memory without tcgen05.wait::st."""
    on = EmulatedDevice(Machine(capacity=1 << 30, sms=4), EmulatorSettings())
    w = CutlassGemm(600, 128, 1024, dtype="f16")  # 5 tiles for 4 multiprocessors
    tile = {"BM": 128, "BN": 128, "CLUSTER_M": 1, "CLUSTER_N": 1}
    prepared = execute.prepare(execute.Case(w, on, inputs=operands(w)), w.variant("one_sm_stream_k"), tile=tile)
    assert len(prepared.launches) == 2  # the barriers in the workspace are cleared before each product
    assert all(prepared.verify().verified for _ in range(2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "variant", "columns", "mode"),
    [
        ("mxf8", "one_sm", 128, "latest-legal"),
        ("mxf4", "one_sm", 192, "latest-legal"),
        ("nvf4", "one_sm", 128, "latest-legal"),
        ("mxf8", "two_sm", 128, ""),
        ("nvf4", "two_sm", 256, ""),
    ],
)
def test_block_scaled_on_sm_100(dtype, variant, columns, mode):
    """Operands of 8 and 4 bits with scale factors in the layout that CUTLASS defines.

    Pairs in eager mode without the race check: they deallocate tensor memory without having waited for their last tcgen05.ld.
    """
    tile = {"BM": 256 if variant == "two_sm" else 128, "BN": columns, "CLUSTER_M": 2 if variant == "two_sm" else 1}
    on = device(mode) if mode else EmulatedDevice(Machine(capacity=1 << 30, sms=4), EmulatorSettings())
    w = CutlassGemm(200, 144, 160, dtype=dtype, alpha=2.0, beta=-1.0)
    check(w, variant, on, {**tile, "CLUSTER_N": 1})
