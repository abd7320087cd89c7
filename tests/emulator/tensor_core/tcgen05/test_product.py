"""A product by tcgen05 from CUDA C++, end to end: allocation, mma, commit, load; and the report of a missing step."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ptxkit.compiler.nvrtc import compile_source
from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import ArithmeticTrap, DeadlockError, MemoryFault, RaceError, UninitialisedError, UnsupportedError
from ptxkit.isa.parser import parse

SOURCE = Path(__file__).parent / "product.cu"
SIZE = 128
UNINITIALISED = (
    "tensor memory that was never initialised, or a product of operands that were not, loaded at .*tcgen05.ld"
)


def bf16(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.fixture(scope="module")
def ptx() -> str:
    return compile_source(SOURCE, target="sm_100a").ptx


def launch(
    ptx: str, scale: float = 1.0, given: float = 0.0, rows: tuple[int, int] = (SIZE, SIZE), **settings
) -> tuple[np.ndarray, np.ndarray]:
    """(D, A B^T) of integers, which is exact in every order of summation; ``rows`` of A and B are initialised."""
    rng = np.random.default_rng(3)
    a, b = rng.integers(-8, 9, (2, SIZE, SIZE)).astype(np.float32)
    a *= np.float32(scale)
    b *= np.float32(scale)
    a[5, 7] += np.float32(given)
    machine = Machine(capacity=1 << 26, workers=1)
    addresses = []
    for data, count in zip((bf16(a), bf16(b), np.full((SIZE, SIZE), np.nan, np.float32)), (*rows, SIZE), strict=True):
        addresses.append(machine.allocate(data.nbytes))
        machine.write(addresses[-1], data[:count])
    program = machine.load(parse(ptx, "product.ptx"), "sm_100a")
    program.launch(
        "product",
        np.array(addresses, np.uint64).tobytes(),
        grid=(1, 1, 1),
        block=(SIZE, 1, 1),
        shared_bytes=2 * SIZE * SIZE * 2,
        settings=EmulatorSettings(**settings),
    )
    with np.errstate(all="ignore"):
        return machine.read(addresses[2], SIZE * SIZE * 4).view(np.float32).reshape(SIZE, SIZE), a @ b.T


SETTINGS = [
    {},
    {"initcheck": True},
    {"initcheck": True, "completion": "latest-legal"},
    {"initcheck": True, "completion": "random", "completion_seed": 3},
    {"completion": "latest-legal"},
    {"racecheck": "warps"},
    {"racecheck": "lanes"},
    {"completion": "latest-legal", "racecheck": "warps"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_product_is_exact(ptx, settings):
    got, expected = launch(ptx, **settings)
    np.testing.assert_array_equal(got, expected)


def without(ptx: str, opcode: str) -> str:
    lines = ptx.splitlines()
    found = [n for n, line in enumerate(lines) if opcode in line]
    assert found
    return "\n".join(line for n, line in enumerate(lines) if n not in found)


@pytest.mark.parametrize(
    ("opcode", "error", "message"),
    [
        ("tcgen05.wait::ld", RaceError, "tcgen05.dealloc.*put tcgen05.wait::ld after the load"),
        ("tcgen05.dealloc", MemoryFault, r"exits with 128 columns of tensor memory that it has allocated here"),
        ("tcgen05.alloc", MemoryFault, "is not allocated|tensor memory has columns 0 to 511|begins at lane"),
        ("tcgen05.commit", DeadlockError, "which lacks 1 of 1 arrivals"),
        ("fence.proxy.async", MemoryFault, "no fence.proxy.async"),
    ],
)
def test_a_missing_step_is_an_error(ptx, opcode, error, message):
    with pytest.raises(error, match=message):
        launch(without(ptx, opcode), completion="latest-legal")


def test_an_accumulator_that_is_read_too_early(ptx):
    with pytest.raises(RaceError, match=r"tcgen05.ld.*which .*tcgen05.mma.* writes; .*mbarrier of its tcgen05.commit"):
        launch(re.sub(r"mbarrier\.try_wait\S*\s+(\S+),[^;]*;", r"setp.eq.u32 \1, 0, 0;", ptx), completion="latest-legal")


def test_other_targets_are_refused(ptx):
    machine = Machine(capacity=1 << 20, workers=1)
    program = machine.load(parse(ptx.replace("sm_100a", "sm_120a"), "product.ptx"), "sm_120a")
    with pytest.raises(UnsupportedError, match=r"tcgen05.alloc.*needs sm_100a"):
        program.bind("product")


def test_initcheck_follows_tensor_memory(ptx):
    """The first product accumulates on tensor memory that was never written."""
    wrong = ptx.replace("tcgen05.mma.cta_group::1.kind::f16", "setp.eq.u32 p, 0, 0; tcgen05.mma.cta_group::1.kind::f16")
    with pytest.raises(UninitialisedError, match=UNINITIALISED):
        launch(wrong, initcheck=True)


@pytest.mark.parametrize(("rows", "thread", "completion"), [((100, 128), 100, "eager"), ((128, 100), 0, "random")])
def test_initcheck_follows_the_operands_of_a_product(ptx, rows, thread, completion):
    """A row of A that was never written makes a row of D undefined, and a row of B a column."""
    message = rf"st.global.*: thread \({thread}, 0, 0\) .* {UNINITIALISED}"
    with pytest.raises(UninitialisedError, match=message):
        launch(ptx, rows=rows, initcheck=True, completion=completion)


def test_a_commit_waits_for_the_operations_of_its_own_thread(ptx):
    """Another thread's commit arrives at once, so the accumulator is read too early."""
    lines = ptx.splitlines()
    commit = next(n for n, line in enumerate(lines) if "tcgen05.commit" in line)
    registers = "{ .reg .u32 t; .reg .pred q; mov.u32 t, %tid.x; setp.eq.u32 q, t, 64; @q "
    text = lines.pop(commit).strip()
    where = next(n for n in range(commit, len(lines)) if "mbarrier.try_wait" in lines[n])
    address = next(line for line in lines[where - 12 : where] if "cvt.u32.u64" in line or "mov.b32" in line)
    barrier = lines[where].split("[")[1].split("]")[0]
    lines.insert(where, f"{registers}{text.split('[')[0]}[{barrier}]; }}")
    assert address
    with pytest.raises(RaceError, match="mbarrier of its tcgen05.commit"):
        launch("\n".join(lines), completion="latest-legal")


def test_a_missing_fence_is_found_in_a_kernel_that_has_others(ptx):
    """A kernel without any of them is not reported: CUTLASS's kernels have none."""
    fence = "tcgen05.fence::after_thread_sync;"
    moved = without(ptx, fence).replace("tcgen05.wait::ld.sync.aligned;", f"tcgen05.wait::ld.sync.aligned; {fence}")
    with pytest.raises(RaceError, match="tcgen05.ld.*has executed no tcgen05.fence::after_thread_sync since"):
        launch(moved, racecheck="warps")
    none = without(without(ptx, fence), "tcgen05.fence::before_thread_sync;")
    got, expected = launch(none, racecheck="warps")
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
def test_traps_report_what_a_product_produces_and_not_what_it_is_given(ptx, completion):
    launch(ptx, trap=("nan", "inf"), completion=completion)
    launch(ptx, given=np.inf, trap=("inf",), completion=completion)
    launch(ptx, given=np.nan, trap=("nan", "inf"), completion=completion)
    with pytest.raises(ArithmeticTrap, match=r"tcgen05.mma.*issued by thread \(\d+, 0, 0\) of CTA .*computes an infinity"):
        launch(ptx, scale=2.0**100, trap=("inf",), completion=completion)
