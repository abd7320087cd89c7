"""Sectors, wavefronts and bank conflicts of every kind of access, as the counters of the hardware define them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Run, kernel

from ptxkit.emulator import Counters
from ptxkit.emulator.memory.traffic import atomic_wavefronts, local_sectors, wavefronts

SHARED = ".shared .align 128 .b8 s[8192]; mov.u32 %r5, s;"
LOCAL = ".local .align 16 .b8 stack[256]; mov.u64 %rd10, stack;"
HEAD = "mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 31; mov.u32 %r6, 1;"
OWN = "mul.wide.u32 %rd20, %r0, 4; add.u64 %rd21, %rd0, %rd20;"


def counted(body: str, grid: int = 1, block: int = 32, **options) -> Counters:
    """The counters of a kernel with this body; its argument is an array of 64 KB of ones."""
    run = Run(kernel(f"{HEAD}\n{body}", params=1))
    run(np.ones(16384, np.uint32), grid=grid, block=block, **options)
    assert run.result.counters is not None
    total = Counters()
    for line in run.result.lines:
        total += line.counters
    assert total == run.result.counters  # the counts of the lines add up to those of the kernel
    return run.result.counters


def shared(instruction: str, index: str = "%r1", scale: int = 4, guard: str = "") -> Counters:
    """The counters of an access to shared memory at ``scale`` times a register, by one warp."""
    return counted(f"{SHARED} {guard} mul.lo.u32 %r9, {index}, {scale}; add.u32 %r9, %r9, %r5; {instruction}")


@pytest.mark.parametrize(
    ("instruction", "index", "scale", "wavefronts", "conflicts"),
    [
        ("atom.shared.add.u32 %r10, [%r9], %r0;", "%r1", 4, 1, 0),
        ("atom.shared.add.u32 %r10, [%r9], %r0;", "%r1", 8, 2, 1),
        ("red.shared.add.u32 [%r9], %r0;", "%r1", 128, 32, 31),
        ("atom.shared.max.s32 %r10, [%r9], %r0;", "%r6", 4, 32, 31),
        ("atom.shared.exch.b32 %r10, [%r9], %r0;", "%r6", 4, 32, 31),
        ("atom.shared.cas.b32 %r10, [%r9], %r0, %r1;", "%r1", 128, 64, 31),
        ("atom.shared.cas.b64 %rd10, [%r9], %rd0, %rd0;", "%r1", 8, 4, 0),
        ("atom.shared.exch.b64 %rd10, [%r9], %rd0;", "%r1", 16, 4, 2),
        # one address for all lanes: ptxas combines their values first, where it has an instruction for that
        ("red.shared.add.u32 [%r9], %r0;", "%r6", 4, 1, 0),
        ("atom.shared.add.u32 %r10, [%r9], %r0;", "%r6", 4, 1, 0),
        ("red.shared.max.s32 [%r9], %r0;", "%r6", 4, 1, 0),
        ("red.shared.inc.u32 [%r9], %r0;", "%r6", 4, 32, 31),
    ],
)
def test_atomics_on_shared_memory(instruction, index, scale, wavefronts, conflicts):
    got = shared(instruction, index, scale)
    assert (got.shared_atomic_wavefronts, got.shared_bank_conflicts) == (wavefronts, conflicts)
    assert got.shared_wavefronts == wavefronts
    assert got.shared_atomics == 32 and got.shared_atomic_bytes == 32 * (8 if "64" in instruction else 4)
    assert not got.loop_atomics and not got.global_atomics


def test_atomics_of_some_lanes():
    got = shared("@%p1 red.shared.add.u32 [%r9], %r0;", "%r1", 128, "setp.lt.u32 %p1, %r1, 5;")
    assert (got.shared_atomic_wavefronts, got.shared_bank_conflicts, got.shared_atomic_bytes) == (5, 4, 20)


@pytest.mark.parametrize(
    ("instruction", "space"),
    [
        ("red.shared.add.f32 [%r9], %f0;", "shared"),
        ("red.shared.add.f64 [%r9], %d0;", "shared"),
        ("red.shared.add.u64 [%r9], %rd0;", "shared"),
        ("red.shared.max.s64 [%r9], %rd0;", "shared"),
        ("red.shared.add.noftz.f16x2 [%r9], %r0;", "shared"),
        ("atom.shared.cas.b16 %h1, [%r9], %h2, %h3;", "shared"),
        ("red.global.add.noftz.f16 [%rd0], %h2;", "global"),
        ("atom.global.cas.b16 %h1, [%rd0], %h2, %h3;", "global"),
    ],
)
def test_what_the_gpu_does_in_a_loop_has_no_traffic(instruction, space):
    """The number of iterations of such a loop is not known before it runs, so the loop is named and left out."""
    start = "mov.f32 %f0, 0f00000000; mov.f64 %d0, 0d0000000000000000; mov.b16 %h2, 0; mov.b16 %h3, 0;"
    got = shared(instruction, "%r1", 8, start)
    assert got.loop_atomics == {space: 32}
    assert getattr(got, f"{space}_atomics") == 32 and getattr(got, f"{space}_atomic_bytes") > 0
    assert got.shared_wavefronts == got.shared_bank_conflicts == got.global_atomic_sectors == 0


@pytest.mark.parametrize(
    ("instruction", "scale", "sectors", "size"),
    [
        ("red.global.add.u32 [%rd9], %r0;", 4, 4, 4),
        ("red.global.add.u32 [%rd9], %r0;", 128, 32, 4),
        ("atom.global.add.f32 %f1, [%rd9], %f0;", 8, 8, 4),
        ("atom.global.cas.b64 %rd11, [%rd9], %rd0, %rd0;", 8, 8, 8),
        ("atom.global.exch.b128 %bb, [%rd9], %bb;", 16, 16, 16),
        ("red.global.add.f64 [%rd9], %d0;", 16, 16, 8),
        ("red.global.add.noftz.f16x2 [%rd9], %r0;", 4, 4, 4),
        ("red.global.add.v4.f32 [%rd9], {%f0, %f0, %f0, %f0};", 16, 16, 16),
        ("red.global.add.v2.f32 [%rd9], {%f0, %f0};", 64, 32, 8),
        ("red.add.u32 [%rd9], %r0;", 4, 4, 4),
    ],
)
def test_atomics_on_global_memory(instruction, scale, sectors, size):
    start = ".reg .b128 %bb; mov.b128 %bb, {%rd0, %rd0}; mov.f32 %f0, 0f00000000; mov.f64 %d0, 0d0000000000000000;"
    got = counted(f"{start} mul.wide.u32 %rd9, %r1, {scale}; add.u64 %rd9, %rd9, %rd0; {instruction}")
    assert (got.global_atomics, got.global_atomic_sectors, got.global_atomic_bytes) == (32, sectors, 32 * size)
    assert got.global_sectors == sectors and got.global_bytes == got.written_bytes == 32 * size


@pytest.mark.parametrize(
    ("body", "unwritten"),
    [
        ("red.global.max.u32 [%rd0], %r0;", 1),
        ("red.global.max.u32 [%rd0], %r0; red.global.max.u32 [%rd0], %r0;", 2),  # the sentinel is the maximum
        ("red.global.min.u32 [%rd0], %r0; red.global.max.u32 [%rd0], %r0;", 1),
        ("red.max.u32 [%rd0], %r0;", 1),
        ("st.global.u32 [%rd0], %r0; red.global.max.u32 [%rd0], %r0;", 0),
        ("st.global.u32 [%rd0], %r0; red.global.max.u64 [%rd0], %rd0;", 1),
        ("st.global.u64 [%rd0], %rd0; red.global.max.u64 [%rd0], %rd0;", 0),
        ("st.global.u16 [%rd0], %r0; red.global.add.noftz.f16x2 [%rd0], %r0;", 1),
        ("st.global.u32 [%rd0], %r0; red.global.add.v2.f32 [%rd0], {%f0, %f0};", 1),
    ],
)
def test_atomics_on_what_no_thread_has_written_are_counted(body, unwritten):
    run = Run(kernel(f"mov.u32 %r0, 0; mov.f32 %f0, 0f00000000; {body}", params=1))
    address = run.machine.allocate(256, "y")
    run.machine.poison(address, 256, 0xFF)
    run(address, block=1)
    assert run.result.counters.unwritten_loads == unwritten


UNKNOWN = "mul.wide.u32 %rd9, %r1, 4; add.u64 %rd9, %rd9, %rd0; ld.global.u32 %r2, [%rd9]; sub.u32 %r2, %r2, 1;"
"""0 for all lanes, which ptxas does not know: each lane loads its own."""
PAIRS, HALVES, MODULO = "shr.u32 %r2, %r1, 1;", "shr.u32 %r2, %r1, 4;", "and.b32 %r2, %r1, 15;"


@pytest.mark.parametrize(
    ("index", "instruction", "metric", "expected"),
    [
        ("mov.u32 %r2, 0;", "red.global.add.u32 [%rd9], %r0;", "global_atomic_sectors", 1),
        (UNKNOWN, "red.global.add.u32 [%rd9], %r0;", "global_atomic_sectors", 32),
        (UNKNOWN, "atom.global.add.u32 %r10, [%rd9], %r0;", "global_atomic_sectors", 32),
        ("mov.u32 %r2, 0;", "red.global.add.f32 [%rd9], 0f3f800000;", "global_atomic_sectors", 32),
        (PAIRS, "red.global.add.f32 [%rd9], 0f3f800000;", "global_atomic_sectors", 4),
        ("mov.u32 %r2, 0;", "atom.global.cas.b32 %r10, [%rd9], %r0, %r1;", "global_atomic_sectors", 32),
        ("mov.u32 %r2, 0;", "atom.global.exch.b32 %r10, [%rd9], %r0;", "global_atomic_sectors", 32),
        (UNKNOWN, "red.shared.add.u32 [%r9], 1;", "shared_atomic_wavefronts", 1),
        (UNKNOWN, "red.shared.add.u32 [%r9], %r0;", "shared_atomic_wavefronts", 32),
        ("mov.u32 %r2, 0;", "atom.shared.cas.b32 %r10, [%r9], %r0, %r1;", "shared_atomic_wavefronts", 64),
        ("mov.u32 %r2, 0;", "ld.shared.v2.u32 {%r10, %r11}, [%r9];", "shared_load_wavefronts", 1),
        (PAIRS, "ld.shared.v2.u32 {%r10, %r11}, [%r9];", "shared_load_wavefronts", 1),
        (HALVES, "ld.shared.v2.u32 {%r10, %r11}, [%r9];", "shared_load_wavefronts", 1),
        (MODULO, "ld.shared.v2.u32 {%r10, %r11}, [%r9];", "shared_load_wavefronts", 2),
        (PAIRS, "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r9];", "shared_load_wavefronts", 2),
        (PAIRS, "st.shared.v2.u32 [%r9], {%r0, %r0};", "shared_store_wavefronts", 2),
    ],
)
def test_what_an_h200_counted(index, instruction, metric, expected):
    """Per warp, as Nsight Compute reports on an H200: whether lanes with one address share, combine or repeat an access."""
    size = 16 if ".v4" in instruction else 8 if ".v2" in instruction else 4
    got = counted(
        f"{SHARED} {index} mul.lo.u32 %r9, %r2, {size}; add.u32 %r9, %r9, %r5; mul.wide.u32 %rd9, %r2, {size};"
        f"add.u64 %rd9, %rd9, %rd0; {instruction}"
    )
    assert getattr(got, metric) == expected


def test_atomics_over_two_allocations():
    text = kernel(
        "mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; selp.b64 %rd9, %rd0, %rd1, %p1; "
        "mul.wide.u32 %rd8, %r1, 4; add.u64 %rd9, %rd9, %rd8; red.global.add.u32 [%rd9], %r1;"
    )
    run = Run(text)
    run(np.zeros(32, np.uint32), np.zeros(32, np.uint32))
    assert run.result.counters.global_atomic_sectors == 8 and run.result.counters.global_atomic_bytes == 128


@pytest.mark.parametrize(
    ("access", "loaded", "stored"),
    [
        ("st.local.u32 [%rd10], %r0; ld.local.u32 %r2, [%rd10];", 4, 4),
        ("st.local.u8 [%rd10+3], %r0;", 0, 4),
        ("st.local.u64 [%rd10+8], %rd0;", 0, 8),
        ("st.local.v4.u32 [%rd10+16], {%r0, %r0, %r0, %r0}; ld.local.u64 %rd2, [%rd10+16];", 8, 16),
        ("setp.lt.u32 %p1, %r1, 9; @%p1 st.local.u32 [%rd10], %r0;", 0, 2),
        ("mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd2, %rd10; st.local.u32 [%rd2], %r0;", 0, 32),
        ("and.b32 %r2, %r1, 1; mul.wide.u32 %rd2, %r2, 4; add.u64 %rd2, %rd2, %rd10; st.local.u32 [%rd2], %r0;", 0, 8),
        ("cvta.local.u64 %rd2, %rd10; st.u32 [%rd2], %r0; ld.u32 %r3, [%rd2];", 4, 4),  # a generic address
    ],
)
def test_local_memory(access, loaded, stored):
    got = counted(f"{LOCAL} {access}")
    assert (got.local_load_sectors, got.local_store_sectors) == (loaded, stored)
    assert (got.local_load_bytes > 0) == (loaded > 0)
    assert got.global_sectors == got.global_bytes == got.shared_wavefronts == 0


def test_one_generic_instruction_in_three_spaces():
    """Each third of the lanes of a warp accesses another state space, and is counted for it."""
    got = counted(
        f"{SHARED} {LOCAL} cvta.shared.u64 %rd11, s; cvta.local.u64 %rd12, %rd10; rem.u32 %r2, %r1, 3;"
        "setp.eq.u32 %p1, %r2, 0; setp.eq.u32 %p2, %r2, 1; selp.b64 %rd13, %rd11, %rd12, %p1;"
        "selp.b64 %rd13, %rd0, %rd13, %p2; st.u32 [%rd13], %r0; ld.u32 %r3, [%rd13];"
    )
    assert (got.shared_store_bytes, got.global_store_bytes, got.local_store_bytes) == (44, 44, 40)
    assert (got.shared_load_bytes, got.global_load_bytes, got.local_load_bytes) == (44, 44, 40)
    assert (got.shared_wavefronts, got.global_load_sectors, got.global_store_sectors) == (2, 1, 1)


def test_a_generic_atomic_in_shared_memory():
    got = counted(
        f"{SHARED} cvta.shared.u64 %rd11, s; mul.wide.u32 %rd2, %r1, 8; add.u64 %rd11, %rd11, %rd2; red.add.u32 [%rd11], %r0;"
    )
    assert (got.shared_atomic_wavefronts, got.shared_bank_conflicts, got.global_atomics) == (2, 1, 0)


@pytest.mark.parametrize(
    ("access", "action"),
    [
        ("st.shared::cluster.u32 [%r9], %r0;", "store"),
        ("ld.shared::cluster.u32 %r10, [%r9];", "load"),
        ("red.shared::cluster.add.u32 [%r9], %r0;", "atomic"),
    ],
)
def test_shared_memory_of_another_cta_is_counted_apart(access, action):
    """Both CTAs access the shared memory of rank 0, which for one of them is its own."""
    got = counted(
        f"{SHARED} mapa.shared::cluster.u32 %r9, %r5, 0; shl.b32 %r8, %r1, 3; add.u32 %r9, %r9, %r8; {access}",
        grid=2,
        cluster=2,
    )
    assert got.remote_shared_bytes == {action: 128}
    assert getattr(got, f"shared_{action}_bytes") == 128
    assert (got.shared_wavefronts, got.shared_bank_conflicts) == (2, 1)


def test_constants_and_parameters_are_not_global_loads():
    text = kernel("ld.const.u32 %r1, [c]; mov.u64 %rd2, c; ld.const.u32 %r2, [%rd2];", before=".const .u32 c[4];", params=1)
    run = Run(text)
    run(np.zeros(4, np.uint32))
    assert run.result.counters.global_load_bytes == run.result.counters.global_sectors == 0


@pytest.mark.parametrize(
    ("instruction", "flops"),
    [
        ("add.f32 %f1, %f0, %f0;", {"f32": 1}),
        ("fma.rn.f32 %f1, %f0, %f0, %f0;", {"f32": 2}),
        ("mad.rn.f64 %d1, %d0, %d0, %d0;", {"f64": 2}),
        ("fma.rn.f16x2 %r2, %r0, %r0, %r0;", {"f16": 4}),
        ("mul.bf16x2 %r2, %r0, %r0;", {"bf16": 2}),
        ("add.f16 %h1, %h0, %h0;", {"f16": 1}),
        ("setp.lt.u32 %p1, %r1, 8; @%p1 mul.f32 %f1, %f0, %f0;", {"f32": 0.25}),
        ("max.f32 %f1, %f0, %f0; neg.f32 %f1, %f1; abs.f32 %f1, %f1; mad.lo.u32 %r2, %r0, %r0, %r0;", {}),
        ("red.global.add.f32 [%rd0], %f0;", {}),  # the addition in the memory system is not an instruction of the SM
    ],
)
def test_flops(instruction, flops):
    start = "mov.f32 %f0, 0f3F800000; mov.f64 %d0, 0d3FF0000000000000; mov.b16 %h0, 0;"
    assert counted(f"{start} {instruction}").flops_by_type == {t: 32 * n for t, n in flops.items()}


@given(
    size=st.sampled_from([4, 8]),
    words=st.lists(st.integers(0, 255), min_size=32, max_size=32),
    active=st.lists(st.booleans(), min_size=32, max_size=32),
)
@settings(max_examples=100, deadline=None)
def test_atomic_wavefronts_are_the_fullest_bank_of_each_phase(size, words, active):
    total = conflicts = 0
    half = 32 * 4 // size
    for start in range(0, 32, half):
        lanes = [n for n in range(start, start + half) if active[n]]
        fullest = max(Counter(words[n] % half for n in lanes).values(), default=0)
        total, conflicts = total + fullest, conflicts + max(0, fullest - 1)
    addresses = np.array(words, np.uint64).reshape(1, 1, 32) * np.uint64(size)
    mask = np.array(active).reshape(1, 1, 32)
    assert atomic_wavefronts(addresses, size, mask, (1, 1, 32)) == (total, conflicts)


@given(
    size=st.sampled_from([1, 2, 4, 8, 16]),
    places=st.lists(st.integers(0, 15), min_size=32, max_size=32),
    active=st.lists(st.booleans(), min_size=32, max_size=32),
)
@settings(max_examples=100, deadline=None)
def test_local_sectors_are_those_of_interleaved_words(size, places, active):
    """Word ``w`` of lane ``n`` lies at byte ``128 * w + 4 * n``."""
    touched = {
        (128 * (place * size // 4 + k) + 4 * n) // 32
        for n, place in enumerate(places)
        if active[n]
        for k in range(max(1, size // 4))
    }
    offsets = np.array(places, np.int64).reshape(1, 1, 32) * size
    assert local_sectors(offsets, size, np.array(active).reshape(1, 1, 32), (1, 1, 32)) == len(touched)


SNIPPETS = (
    "shl.b32 %r9, %r1, 3; add.u32 %r9, %r9, %r5; st.shared.u32 [%r9], %r0;",
    "shl.b32 %r9, %r1, 3; add.u32 %r9, %r9, %r5; red.shared.add.u32 [%r9], %r0;",
    "red.shared.add.u32 [s+64], %r0;",
    "red.global.add.u32 [%rd21], %r0;",
    "ld.global.u32 %r2, [%rd21+4096];",
    "st.local.u32 [%rd10], %r0; ld.local.u32 %r2, [%rd10];",
    "cvt.rn.f32.u32 %f1, %r0; fma.rn.f32 %f2, %f1, %f1, %f1;",
    "setp.lt.u32 %p1, %r1, 7;\n@%p1 bra L{n};\nred.global.add.u32 [%rd0+8192], %r0;\nL{n}: mov.u32 %r8, 1;",
    "setp.lt.u32 %p1, %r1, 3; @%p1 ld.shared.u32 %r2, [s+128];",
)


@given(chosen=st.lists(st.sampled_from(SNIPPETS), min_size=1, max_size=6), grid=st.integers(2, 5))
@settings(max_examples=25, deadline=None)
def test_counts_add_up(chosen, grid):
    """Sums over lines (in ``counted``), over the parts of a program, and over the CTAs of a grid."""
    start = f"{SHARED} {LOCAL} {OWN} mov.u32 %r7, 0;"
    nothing = counted(start, block=64)
    whole = counted("\n".join([start, *(s.format(n=n) for n, s in enumerate(chosen))]), block=64)
    parts = [counted(f"{start}\n{s.format(n=0)}", block=64) for s in chosen]
    summed, expected = whole, nothing
    for part in parts:
        summed, expected = summed + nothing, expected + part
    assert summed == expected
    total = Counters()
    for _ in range(grid):
        total += whole
    assert counted("\n".join([start, *(s.format(n=n) for n, s in enumerate(chosen))]), grid=grid, block=64) == total


@pytest.mark.parametrize("size", [1, 2])
def test_the_words_of_small_elements_depend_on_the_position_of_the_first(size):
    """The same pattern of addresses at each position in a word: which elements share a word, and thus a bank, differs."""
    stride = 33 * size
    loop = f"mov.u32 %r11, 0; LOOP: ld.shared.u{8 * size} %r10, [%r9]; add.u32 %r9, %r9, {size}; add.u32 %r11, %r11, 1;"
    got = shared(f"{loop} setp.lt.u32 %p1, %r11, 8; @%p1 bra LOOP;", "%r1", stride)
    lanes = np.arange(32, dtype=np.uint64)[None, None] * np.uint64(stride)
    expected = [wavefronts(lanes + np.uint64(1024 + k * size), size, None, (1, 1, 32)) for k in range(8)]
    assert len(set(expected)) > 1
    assert [got.shared_load_wavefronts, got.shared_bank_conflicts] == np.sum(expected, axis=0).tolist()
