"""cp.async: sizes, zero fill, groups, arrival at mbarriers, and the effect of a missing wait."""

from __future__ import annotations

import numpy as np
import pytest
from either import MODES, bench, has_cccl  # noqa: F401  a fixture
from hypothesis import example, given, settings
from hypothesis import strategies as st
from programs import THREAD, Run, kernel

from ptxkit.compiler import compile_source
from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import MemoryFault, RaceError, TrapError, UnsupportedError
from ptxkit.isa.parser import parse

POISON = 0xCBCBCBCB
RNG = np.random.default_rng(9)
MOVE = {
    4: "ld.shared.b32 %q0, [%r6]; st.global.b32 [%rd24], %q0;",
    8: "ld.shared.v2.b32 {%q0, %q1}, [%r6]; st.global.v2.b32 [%rd24], {%q0, %q1};",
    16: "ld.shared.v4.b32 {%q0, %q1, %q2, %q3}, [%r6]; st.global.v4.b32 [%rd24], {%q0, %q1, %q2, %q3};",
}


def reverse(size: int, copy: str, wait: str) -> str:
    """Threads copy ``size`` bytes each through shared memory, in reverse order within the CTA of 128."""
    return (
        THREAD
        + f"""
    .shared .align 16 .b8 buf[{128 * size}]; .reg .b32 %q<4>;
    mov.u32 %r5, buf; mad.lo.u32 %r4, %r0, {size}, %r5; and.b32 %r8, %r0, 3; setp.eq.u32 %p1, %r8, 0;
    mul.wide.u32 %rd20, %r3, {size}; add.u64 %rd23, %rd0, %rd20; add.u64 %rd24, %rd1, %rd20;
    st.shared.b32 [%r4], 12345;
    createpolicy.fractional.L2::evict_last.b64 %rd25, 1.0;
    {copy}
    {wait}
    bar.sync 0;
    xor.b32 %r6, %r0, 127; mad.lo.u32 %r6, %r6, {size}, %r5;
    {MOVE[size]}
    """
    )


def words(size: int, ctas: int = 3) -> np.ndarray:
    return RNG.integers(0, 2**32, (ctas, 128, size // 4), np.uint32)


WAITS = {
    "all": "cp.async.wait_all;",
    "group": "cp.async.commit_group; cp.async.wait_group 0;",
    "empty groups": "cp.async.commit_group; cp.async.commit_group; cp.async.commit_group; cp.async.wait_group 2;",
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
@pytest.mark.parametrize(
    ("size", "opcode", "rest"),
    [
        (4, "cp.async.ca.shared.global", ""),
        (8, "cp.async.ca.shared::cta.global", ""),
        (16, "cp.async.ca.shared.global.L2::128B", ""),
        (16, "cp.async.cg.shared.global", ""),
        (16, "cp.async.cg.shared::cta.global.L2::cache_hint.L2::256B", ", %rd25"),
    ],
)
def test_copy(bench, size, opcode, rest, wait):  # noqa: F811
    source = words(size)
    body = reverse(size, f"{opcode} [%r4], [%rd23], {size}{rest};", wait)
    _, out = bench(body, source, np.zeros_like(source), grid=3, block=128)
    assert (out == source[:, ::-1]).all()


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("kept", ["constant", "register", "predicate"])
def test_what_is_not_copied_is_zero(bench, size, kept):  # noqa: F811
    source = words(size)
    copied = np.ones((128, size), np.bool_)
    match kept:
        case "constant":
            copy = f"cp.async.ca.shared.global [%r4], [%rd23], {size}, {size // 4 * 3};"
            copied[:, size // 4 * 3 :] = False
        case "register":
            copy = f"rem.u32 %r7, %r0, {size + 1}; cp.async.ca.shared.global [%r4], [%rd23], {size}, %r7;"
            copied = np.arange(size) < (np.arange(128) % (size + 1))[:, None]
        case _:
            copy = f"cp.async.ca.shared.global.L2::cache_hint [%r4], [%rd23], {size}, %p1, %rd25;"
            copied[::4] = False
    _, out = bench(reverse(size, copy, WAITS["all"]), source, np.zeros_like(source), grid=3, block=128)
    expected = np.where(copied, source.view(np.uint8).reshape(3, 128, size), 0)[:, ::-1]
    assert (out.view(np.uint8).reshape(3, 128, size) == expected).all()


def test_sources_that_are_not_read_may_be_anywhere(bench):  # noqa: F811
    copy = (
        "selp.b32 %r7, 0, 16, %p1; selp.b64 %rd23, 16, %rd23, %p1; cp.async.cg.shared.global [%r4], [%rd23], 16, %r7;"
    )
    source = words(16)
    _, out = bench(reverse(16, copy, WAITS["all"]), source, np.zeros_like(source), grid=3, block=128)
    expected = source.copy()
    expected[:, ::4] = 0
    assert (out == expected[:, ::-1]).all()


def test_a_predicated_copy_leaves_the_rest_alone(bench):  # noqa: F811
    source = words(4)
    body = reverse(4, "@%p1 cp.async.ca.shared.global [%r4], [%rd23], 4;", WAITS["all"])
    _, out = bench(body, source, np.zeros_like(source), grid=3, block=128)
    expected = np.where((np.arange(128) % 4 == 0)[:, None], source, 12345)[:, ::-1]
    assert (out == expected).all()


def test_sources_in_two_allocations(bench):  # noqa: F811
    copy = "selp.b64 %rd26, %rd2, %rd0, %p1; add.u64 %rd26, %rd26, %rd20; cp.async.ca.shared.global [%r4], [%rd26], 8;"
    a, b = words(8), words(8)
    _, out, _ = bench(reverse(8, copy, WAITS["all"]), a, np.zeros_like(a), b, grid=3, block=128)
    expected = np.where((np.arange(128) % 4 == 0)[:, None], b, a)[:, ::-1]
    assert (out == expected).all()


# -- groups ------------------------------------------------------------------------------------------------------------

STAGES = (
    THREAD
    + """
    .shared .align 16 .b32 buf[512]; mov.u32 %r5, buf; shl.b32 %r6, %r0, 2; add.u32 %r5, %r5, %r6;
    mov.u64 %rd10, %rd0; mul.wide.u32 %rd11, %r0, 4; add.u64 %rd10, %rd10, %rd11;
    mov.u32 %r7, 0; mov.u32 %r8, 0; mov.u32 %r9, 0;
    FILL: cp.async.ca.shared.global [%r5], [%rd10], 4; cp.async.commit_group;
    add.u32 %r5, %r5, 512; add.u64 %rd10, %rd10, 512; add.u32 %r7, %r7, 1; setp.lt.u32 %p0, %r7, 3; @%p0 bra FILL;
    mov.u32 %r5, buf; add.u32 %r5, %r5, %r6;
    STEP: cp.async.wait_group {pending};
    and.b32 %r10, %r8, 3; shl.b32 %r10, %r10, 9; add.u32 %r11, %r5, %r10; ld.shared.b32 %r12, [%r11];
    mad.lo.u32 %r9, %r9, 5, %r12;
    setp.ge.u32 %p1, %r7, 10; @%p1 bra EMPTY;
    and.b32 %r10, %r7, 3; shl.b32 %r10, %r10, 9; add.u32 %r11, %r5, %r10;
    cp.async.ca.shared.global [%r11], [%rd10], 4; add.u64 %rd10, %rd10, 512;
    EMPTY: cp.async.commit_group; add.u32 %r7, %r7, 1; add.u32 %r8, %r8, 1; setp.lt.u32 %p2, %r8, 10; @%p2 bra STEP;
    st.global.b32 [%rd22], %r9;
    """
)


def folded(rows: np.ndarray) -> np.ndarray:
    total = np.zeros(rows.shape[1], np.uint32)
    for row in rows:
        total = total * np.uint32(5) + row
    return total


@pytest.mark.parametrize("pending", [0, 1, 2])
def test_stages_in_flight(bench, pending):  # noqa: F811
    source = RNG.integers(0, 2**32, (10, 128), np.uint32)
    _, out = bench(STAGES.format(pending=pending), source, np.zeros(128, np.uint32), block=128)
    assert (out == folded(source)).all()


def test_one_group_too_many_in_flight_shows():
    source = RNG.integers(0, 2**32, (10, 128), np.uint32)
    program = Run(kernel(STAGES.format(pending=3)))
    _, eager = program(source, np.zeros(128, np.uint32), block=128)
    _, late = program(source, np.zeros(128, np.uint32), block=128, completion="latest-legal")
    assert (eager == folded(source)).all() and (late != eager).all()


@pytest.mark.parametrize("wait", ["", "cp.async.wait_group 0;", "cp.async.commit_group; cp.async.wait_group 1;"])
def test_a_missing_wait_shows(wait):
    source = words(16)
    program = Run(kernel(reverse(16, "cp.async.cg.shared.global [%r4], [%rd23], 16;", wait)))
    _, out = program(source, np.zeros_like(source), grid=3, block=128, completion="latest-legal")
    assert (out == POISON).all()
    _, out = program(source, np.zeros_like(source), grid=3, block=128, completion="eager")
    assert (out == source[:, ::-1]).all()


def test_each_thread_waits_for_its_own_copies_only():
    source = words(4, ctas=1)
    program = Run(kernel(reverse(4, "cp.async.ca.shared.global [%r4], [%rd23], 4;", "@%p1 cp.async.wait_all;")))
    _, out = program(source, np.zeros_like(source), block=128, completion="latest-legal")
    waited = (np.arange(128) % 4 == 0)[:, None]
    assert (out[0] == np.where(waited, source[0], POISON)[::-1]).all()


def test_a_source_that_changes_before_the_wait_shows():
    body = reverse(4, "cp.async.ca.shared.global [%r4], [%rd23], 4; st.global.b32 [%rd23], 5;", WAITS["all"])
    source = words(4, ctas=1)
    _, out = Run(kernel(body))(source, np.zeros_like(source), block=128, completion="latest-legal")
    assert (out == 5).all()


SLOTS = 4
steps = st.lists(
    st.one_of(
        st.tuples(st.just("copy"), st.integers(0, SLOTS - 1), st.integers(0, 2)),
        st.tuples(st.just("commit"), st.just(0), st.integers(0, 2)),
        st.tuples(st.just("wait"), st.integers(0, 3), st.integers(0, 2)),
        st.tuples(st.just("read"), st.integers(0, SLOTS - 1), st.just(0)),
    ),
    min_size=1,
    max_size=24,
)


@settings(max_examples=40, deadline=None)
@given(steps)
@example([("copy", 1, 0), ("commit", 0, 0), ("copy", 1, 0), ("commit", 0, 0), ("wait", 1, 0), ("read", 1, 0)])
def test_latest_legal_completes_what_was_waited_for_and_nothing_else(program):
    """Copies, commits, waits and reads at random; thirds of the warp leave some of them out.

    A read is a race where an earlier copy to the same place has been waited for and a later one has not: it finds a value,
    which the later copy may replace at any time. It is certain to be found where it is one for all lanes, because the order of
    accesses is followed for a warp as a whole.
    """
    body = THREAD + ".shared .align 16 .b32 buf[128]; mov.u32 %r4, buf; shl.b32 %r5, %r0, 4; add.u32 %r4, %r4, %r5;"
    body += "rem.u32 %r6, %r0, 3; setp.ne.u32 %p0, %r6, 9; setp.ne.u32 %p1, %r6, 1; setp.ne.u32 %p2, %r6, 2;"
    body += f"mul.wide.u32 %rd10, %r0, {4 * len(program)}; add.u64 %rd11, %rd0, %rd10; add.u64 %rd12, %rd1, %rd10;"
    lanes = np.arange(32) % 3
    memory = np.full((32, SLOTS), 7, np.uint32)
    pending: list[list] = [[] for _ in range(32)]  # (group, slot, value)
    groups = [0] * 32
    some_race = certain_race = False
    source = np.random.default_rng(1).integers(0, 2**32, (32, len(program)), np.uint32)
    expected = np.zeros((32, len(program)), np.uint32)
    body += "".join(f"st.shared.b32 [%r4+{4 * k}], 7;" for k in range(SLOTS))
    for n, (what, k, who) in enumerate(program):
        guard = f"@%p{who} "
        active = [t for t in range(32) if who == 0 or lanes[t] != who]
        match what:
            case "copy":
                body += f"{guard}cp.async.ca.shared.global [%r4+{4 * k}], [%rd11+{4 * n}], 4;"
                for t in active:
                    pending[t].append((groups[t], k, source[t, n]))
                    memory[t, k] = POISON
            case "commit":
                body += f"{guard}cp.async.commit_group;"
                for t in active:
                    groups[t] += 1
            case "wait":
                body += f"{guard}cp.async.wait_group {k};"
                for t in active:
                    for _, slot, value in [p for p in pending[t] if p[0] < groups[t] - k]:
                        memory[t, slot] = value
                    pending[t] = [p for p in pending[t] if p[0] >= groups[t] - k]
            case _:
                body += f"ld.shared.b32 %r7, [%r4+{4 * k}]; st.global.b32 [%rd12+{4 * n}], %r7;"
                expected[:, n] = memory[:, k]
                of_lane = [memory[t, k] != POISON and any(slot == k for _, slot, _ in pending[t]) for t in range(32)]
                some_race |= any(of_lane)
                certain_race |= all(of_lane)
    run = Run(kernel(body))
    try:
        _, out = run(source, np.zeros_like(source), completion="latest-legal")
    except RaceError:
        assert some_race
    else:
        assert not certain_race and (out == expected).all()


# -- mbarriers ---------------------------------------------------------------------------------------------------------


def through_mbarrier(noinc: str, count: int, arrive: str = "") -> str:
    copy = f"""
    .shared .align 8 .b64 bar; setp.eq.u32 %p2, %r0, 0; @%p2 mbarrier.init.shared::cta.b64 [bar], {count}; bar.sync 0;
    cp.async.ca.shared.global [%r4], [%rd23], 8;
    cp.async.mbarrier.arrive{noinc}.shared::cta.b64 [bar];
    {arrive}
    """
    wait = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [bar], 0; @!%p3 bra WAIT;"
    return reverse(8, copy, wait)


@pytest.mark.parametrize(
    ("noinc", "count", "arrive"),
    [
        (".noinc", 128, ""),
        ("", 128, "mbarrier.arrive.shared::cta.b64 _, [bar];"),
        (".noinc", 256, "mbarrier.arrive.b64 _, [%rd27];"),
    ],
)
def test_copies_arrive_at_an_mbarrier(bench, noinc, count, arrive):  # noqa: F811
    source = words(8)
    if "%rd27" in arrive:
        arrive = "cvta.shared.u64 %rd28, bar; mov.u64 %rd27, %rd28; " + arrive
    _, out = bench(through_mbarrier(noinc, count, arrive), source, np.zeros_like(source), grid=3, block=128)
    assert (out == source[:, ::-1]).all()


def test_an_mbarrier_that_does_not_track_the_copies_shows():
    body = through_mbarrier(".noinc", 128).replace(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [bar];", "mbarrier.arrive.shared::cta.b64 _, [bar];"
    )
    source = words(8)
    _, out = Run(kernel(body))(source, np.zeros_like(source), grid=3, block=128, completion="latest-legal")
    assert (out == POISON).all()


# -- mistakes and counts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copy", "error", "message"),
    [
        ("cp.async.ca.shared.global [%r4], [%rd23+2], 4;", MemoryFault, "reads 4 bytes.*misaligned"),
        ("cp.async.ca.shared.global [%r4+2], [%rd23], 4;", MemoryFault, "writes 4 bytes.*misaligned"),
        ("cp.async.ca.shared.global [%r4], [%rd23+512], 4;", MemoryFault, "past the end of 'arg0'"),
        ("cp.async.ca.shared.global [%r4+512], [%rd23], 4;", MemoryFault, "past the end of the CTA's .* shared memory"),
        ("cp.async.ca.shared.global [%r4], [%rd23+512], 4, 3;", MemoryFault, "past the end of 'arg0'"),
        ("cp.async.ca.shared.global [%r4], [%rd23], 4, 5;", TrapError, "src-size 5 of a 4-byte copy"),
    ],
)
@pytest.mark.parametrize("completion", MODES)
def test_mistakes_name_the_instruction_and_the_thread(copy, error, message, completion):
    source = words(4, ctas=1)
    with pytest.raises(error, match=rf"test.ptx:\d+ cp.async.ca.*thread \(0, 0, 0\).*{message}") as e:
        Run(kernel(reverse(4, copy, WAITS["all"])))(source, np.zeros_like(source), block=128, completion=completion)
    assert "\n" not in str(e.value)


def test_forms_that_do_not_exist_are_refused():
    with pytest.raises(UnsupportedError, match="copies 8 bytes; .cg takes 16"):
        Run(kernel(reverse(8, "cp.async.cg.shared.global [%r4], [%rd23], 8;", "")))(np.zeros(1), np.zeros(1), block=128)


def test_bytes_copied_are_counted():
    source = words(16)
    program = Run(kernel(reverse(16, "@%p1 cp.async.cg.shared.global [%r4], [%rd23], 16, 12;", WAITS["all"])))
    program(source, np.zeros_like(source), grid=3, block=128)
    counters = program.result.counters
    assert counters.async_bytes == {"global_to_shared": 3 * 32 * 12}
    assert counters.async_sectors == {"global_to_shared": 3 * 32}  # 16 of each 64 bytes
    program = Run(kernel(reverse(16, "cp.async.cg.shared.global [%r4], [%rd23], 16;", WAITS["all"])))
    program(source, np.zeros_like(source), grid=3, block=128)
    counters = program.result.counters
    assert counters.async_sectors == {"global_to_shared": 3 * 64} and counters.global_bytes == 2 * source.nbytes
    assert counters.global_load_bytes == 0


# -- CUDA C++ ----------------------------------------------------------------------------------------------------------

PIPELINE = r"""
#include <cuda/barrier>
#include <cuda_pipeline.h>
extern "C" __global__ void k(const int4* x, int4* y) {
    __shared__ int4 tile[2][64];
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    if (threadIdx.x == 0) init(&bar, blockDim.x);
    __syncthreads();
    int4 sum = make_int4(0, 0, 0, 0);
    for (int i = 0; i < 4; i++) {
        __pipeline_memcpy_async(&tile[i & 1][threadIdx.x], x + i * 64 + threadIdx.x, 16);
        __pipeline_commit();
        __pipeline_wait_prior(0);
        bar.arrive_and_wait();
        int4 v = tile[i & 1][threadIdx.x ^ 63];
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    y[threadIdx.x] = sum;
}
"""


@pytest.mark.skipif(not has_cccl(), reason="the CCCL headers are not installed")
@pytest.mark.parametrize("completion", MODES)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_what_libcudacxx_makes_of_it(completion, target):
    image = compile_source(PIPELINE, target=target, name="pipeline.cu")
    machine = Machine(capacity=1 << 26)
    program = machine.load(parse(image.ptx, "pipeline.ptx"), target)
    x = RNG.integers(0, 1000, (4, 64, 4)).astype(np.int32)
    source, out = machine.allocate(x.nbytes, "x"), machine.allocate(1024, "y")
    machine.write(source, x)
    program.launch(
        "k",
        np.array([source, out], np.uint64).tobytes(),
        grid=(1, 1, 1),
        block=(64, 1, 1),
        settings=EmulatorSettings(completion=completion),
    )
    assert (machine.read(out, 1024).view(np.int32).reshape(64, 4) == x.sum(0)[::-1]).all()
