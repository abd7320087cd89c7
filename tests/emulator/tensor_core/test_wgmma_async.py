"""Groups and waits of wgmma in both completion modes, and errors."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import test_sparse
import test_wgmma as dense
from matrix_programs import integers
from test_wgmma import Case

from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import ArithmeticTrap, MemoryFault, TrapError, UnsupportedError
from ptxkit.isa.parser import parse

CASE = Case(32, "f32", "bf16", "bf16")
ONE = "wgmma.commit_group.sync.aligned;\n    wgmma.wait_group.sync.aligned 0;"


def launch(source: str, case: Case, registers: np.ndarray, ctas: int, completion: str, block: int = 256, **settings) -> Any:
    """(D of each warpgroup, launch result) on an emulator."""
    machine = Machine(capacity=1 << 26, workers=1)
    given = np.ascontiguousarray(registers.astype(np.uint32))
    count = case.n * 64 // 128 if case.td != "f16" else case.n * 64 // 256
    first, second = machine.allocate(given.nbytes), machine.allocate(count * 256 * ctas * 4)
    machine.write(first, given)
    params = np.array([first, second], np.uint64).tobytes()
    program = machine.load(parse(source, "wgmma.ptx"), "sm_90a")
    result = program.launch(
        "k", params, grid=(ctas, 1, 1), block=(block, 1, 1), settings=EmulatorSettings(completion=completion, **settings)
    )
    words = machine.read(second, count * 256 * ctas * 4).view(np.uint32).reshape(count, -1).astype(np.uint64)
    return dense.unpacked(case, words), result


def check(case: Case, source: str, completion: str, times: int = 1) -> None:
    """D must be C + times * A B."""
    a, b, c = dense.matrices(case, 2)
    got, _ = launch(source, case, dense.inputs(case, a, b, c), 2, completion)
    product = dense.expected(case, a, b, np.zeros_like(c)).astype(np.float64)
    np.testing.assert_array_equal(got, (times * product + c).astype(c.dtype))


MODES = pytest.mark.parametrize("completion", ["eager", "latest-legal"])


@pytest.mark.parametrize("case", dense.cases()[::7], ids=str)
def test_results_do_not_depend_on_the_mode(case):
    a, b, c = dense.matrices(case, 2)
    got, _ = launch(dense.text(case), case, dense.inputs(case, a, b, c), 2, "latest-legal")
    np.testing.assert_array_equal(got, dense.expected(case, a, b, c))


def instruction(case: Case, source: str) -> str:
    return next(line for line in source.splitlines() if case.opcode in line)


@MODES
@pytest.mark.parametrize("in_registers", [False, True])
def test_a_chain_in_one_group(completion, in_registers):
    case = replace(CASE, in_registers=in_registers)
    source = dense.text(case)
    line = instruction(case, source)
    check(case, source.replace(line, "\n".join([line] * 3)), completion, 3)


@MODES
def test_a_chain_over_groups_with_some_left_in_flight(completion):
    source = dense.text(CASE)
    line = instruction(CASE, source)
    steps = []
    for _ in range(4):
        steps += [line, "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 1;"]
    check(CASE, source.replace(line, "\n".join(steps)), completion, 4)


@MODES
def test_a_loop_that_moves_accumulators_in_flight(completion):
    """The code that compilers generate for a loop: copies of the accumulators between the wgmma and its wait."""
    source = dense.text(CASE)
    line = instruction(CASE, source)
    there = "\n".join(f"mov.f32 %z{k}, %y{k};" for k in range(16))
    back = "\n".join(f"mov.f32 %y{k}, %z{k};" for k in range(16))
    loop = f"""
    mov.u32 %r30, 0;
    again: {line} wgmma.commit_group.sync.aligned; {there}
    add.u32 %r30, %r30, 1; wgmma.wait_group.sync.aligned 1; {back} setp.lt.u32 %p3, %r30, 5; @%p3 bra again;
    """
    source = source.replace(line, loop).replace(".reg .pred", ".reg .f32 %z<16>; .reg .pred", 1)
    check(CASE, source, completion, 5)


def test_two_tiles_in_flight_do_not_mix():
    """Two sets of accumulators, waited for in the order of issue."""
    case = Case(16, "f32", "bf16", "bf16")
    source = dense.text(case)
    line = instruction(case, source)
    other = line.replace("%y", "%z")
    copy = "\n".join(f"mov.f32 %z{k}, 0f00000000;" for k in range(8))
    add = "\n".join(f"add.f32 %y{k}, %y{k}, %z{k};" for k in range(8))
    source = source.replace(
        line, f"{copy}\n{line}\nwgmma.commit_group.sync.aligned;\n{other}\nwgmma.commit_group.sync.aligned;\n{other}"
    ).replace("wgmma.wait_group.sync.aligned 0;", f"wgmma.wait_group.sync.aligned 0;\n{add}")
    source = source.replace(".reg .pred", ".reg .f32 %z<8>; .reg .pred", 1)
    check(case, source, "latest-legal", 3)


@pytest.mark.parametrize("td", ["f32", "f16"])
def test_a_missing_wait_shows(td):
    case = Case(32, td, "f16", "f16")
    a, b, c = dense.matrices(case, 2)
    given = dense.inputs(case, a, b, c)
    source = dense.text(case).replace("wgmma.wait_group.sync.aligned 0;", "")
    eager, _ = launch(source, case, given, 2, "eager")
    np.testing.assert_array_equal(eager, dense.expected(case, a, b, c))
    late, _ = launch(source, case, given, 2, "latest-legal")
    assert np.isnan(late[..., 1::2]).all()


def test_a_wait_that_leaves_the_group_in_flight_shows():
    source = dense.text(CASE).replace("wait_group.sync.aligned 0", "wait_group.sync.aligned 1")
    a, b, c = dense.matrices(CASE, 2)
    late, _ = launch(source, CASE, dense.inputs(CASE, a, b, c), 2, "latest-legal")
    assert np.isnan(late).all()


def test_shared_memory_overwritten_ahead_of_the_wait_shows():
    case = replace(CASE, in_registers=True)
    a, b, c = dense.matrices(case, 2)
    spoil = f"add.u32 %r30, %r10, {dense.TILE_A}; st.shared.b32 [%r30], 0; st.shared.b32 [%r30+4], 0;"
    source = dense.text(case, extra=spoil)
    given = dense.inputs(case, a, b, c)
    want = dense.expected(case, a, b, c)
    eager, _ = launch(source, case, given, 2, "eager")
    np.testing.assert_array_equal(eager, want)
    late, _ = launch(source, case, given, 2, "latest-legal")
    np.testing.assert_array_equal(late[..., 1:], want[..., 1:])
    b[:, 0, :4] = 0  # the first elements of row 0 of B
    np.testing.assert_array_equal(late, dense.expected(case, a, b, c))


def test_flops_and_classes():
    a, b, c = dense.matrices(CASE, 2)
    _, result = launch(dense.text(CASE), CASE, dense.inputs(CASE, a, b, c), 2, "eager")
    counters = result.counters
    assert counters.flops_by_type == {"tensor.bf16": 4 * 2 * 64 * 32 * 16}
    assert counters.by_class["wgmma"] == 4 * 2 * 256


def modified(old: str, new: str, **options: Any) -> Any:
    a, b, c = dense.matrices(CASE, 1)
    source = dense.text(CASE)
    assert old in source
    return launch(source.replace(old, new), CASE, dense.inputs(CASE, a, b, c), 1, "eager", **options)


def test_a_descriptor_past_shared_memory_is_named():
    size = dense.TILE_A + dense.TILE_B
    with pytest.raises(
        MemoryFault,
        match=r"wgmma.ptx:\d+ wgmma.*B of the warpgroup of thread \(0, 0, 0\) of CTA \(0, 0, 0\) reaches 32768 bytes past "
        rf"the end of the CTA's {size:,} bytes.*stride dimension 1024 bytes, 128-byte swizzle",
    ):
        modified("setp.eq.u32 %p1", "add.u64 %rd14, %rd14, 3840; setp.eq.u32 %p1")


def test_a_descriptor_below_shared_memory_is_named():
    with pytest.raises(MemoryFault, match="A of the warpgroup .* starts below"):
        modified("setp.eq.u32 %p1", "and.b64 %rd13, %rd13, -16384; setp.eq.u32 %p1")


def test_a_descriptor_that_differs_between_threads_is_named():
    with pytest.raises(
        TrapError, match=r"A's descriptor is 0x\w+ in thread \(133, 0, 0\) .* and 0x\w+ in the first thread"
    ):
        modified("setp.eq.u32 %p1", "setp.eq.u32 %p4, %r0, 133; @%p4 add.u64 %rd13, %rd13, 2; setp.eq.u32 %p1")


def test_warpgroups_may_have_descriptors_of_their_own():
    """The second warpgroup multiplies with the tile shifted by one K step."""
    a, b, c = dense.matrices(CASE, 1)
    given = dense.inputs(CASE, a, b, c)
    source = dense.text(CASE).replace(
        "setp.eq.u32 %p1", "setp.ge.u32 %p4, %r0, 128; @%p4 add.u64 %rd14, %rd14, 2; setp.eq.u32 %p1"
    )
    got, _ = launch(source, CASE, given, 1, "eager")
    shifted = dense.text(replace(CASE, slice_b=1))
    other, _ = launch(shifted, CASE, given, 1, "eager")
    plain, _ = launch(dense.text(CASE), CASE, given, 1, "eager")
    np.testing.assert_array_equal(got[0], plain[0])
    np.testing.assert_array_equal(got[1], other[1])


def test_a_warpgroup_that_is_not_whole_is_an_error():
    guard = "setp.lt.u32 %p4, %r0, 96; @%p4 bra on; ret; on:\n    wgmma.fence"
    with pytest.raises(
        TrapError, match=r"executed by 3 of the 4 warps of the warpgroup that starts at thread \(0, 0, 0\)"
    ):
        modified("wgmma.fence", guard)


def test_a_missing_fence_is_an_error():
    with pytest.raises(
        TrapError, match=r"warpgroup of thread \(0, 0, 0\) of CTA \(0, 0, 0\) has not executed wgmma.fence"
    ):
        modified("wgmma.fence.sync.aligned;", "")
    with pytest.raises(TrapError, match=r"warpgroup of thread \(128, 0, 0\)"):
        modified(
            "wgmma.fence.sync.aligned;",
            "setp.ge.u32 %p4, %r0, 128; @%p4 bra on; wgmma.fence.sync.aligned; on:",
        )


def test_one_warpgroup_alone():
    """The other warpgroup has exited; its results are unchanged."""
    a, b, c = dense.matrices(CASE, 2)
    source = dense.text(CASE).replace(
        "wgmma.fence", "setp.ge.u32 %p4, %r0, 128; @%p4 bra on; ret; on:\n    wgmma.fence", 1
    )
    for completion in ("eager", "latest-legal"):
        got, _ = launch(source, CASE, dense.inputs(CASE, a, b, c), 2, completion)
        np.testing.assert_array_equal(got[1::2], dense.expected(CASE, a, b, c)[1::2])


def test_warps_that_arrive_one_by_one_wait_for_each_other():
    delay = """
    mov.u32 %r31, 0; shr.u32 %r32, %r0, 5;
    late: add.u32 %r31, %r31, 1; setp.le.u32 %p4, %r31, %r32; @%p4 bra late;
    wgmma.fence"""
    a, b, c = dense.matrices(CASE, 2)
    got, _ = launch(
        dense.text(CASE).replace("wgmma.fence", delay, 1), CASE, dense.inputs(CASE, a, b, c), 2, "latest-legal"
    )
    np.testing.assert_array_equal(got, dense.expected(CASE, a, b, c))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (", 1, 1, 1, 0, 0;", ", 1, 1, 1, 0;", "7 operands; this form takes 8"),
        (", 1, 1, 1, 0, 0;", ", 1, 2, 1, 0, 0;", "2 where 1 or -1 is expected"),
        (", 1, 1, 1, 0, 0;", ", 1, 1, 1, 0, 3;", "3 where 0 or 1 is expected"),
        ("%y15}, %rd13", "%y15, %y0}, %rd13", "d has 17 registers, this form takes 16"),
        (".m64n32k16", ".m64n36k16", "does not implement"),
        ("wait_group.sync.aligned 0", "wait_group.sync.aligned %r0", "%r0 where a number of groups"),
    ],
)
def test_bad_forms_are_refused(old, new, why):
    with pytest.raises(UnsupportedError, match=why):
        modified(old, new)


def test_base_offset():
    """A 128-byte swizzle pattern that starts 128 bytes after a multiple of 1024."""
    case = replace(CASE, n=8)
    rng = np.random.default_rng(1)
    a, b = integers(rng, (1, 64, 16), "bf16", 4), integers(rng, (1, 8, 16), "bf16", 4)
    c = np.zeros((2, 64, 8), np.float32)
    given = dense.inputs(case, a, b, c)
    memory = given[4:].reshape(-1)
    words = (dense.TILE_A + dense.TILE_B) // 4
    shifted = memory.copy()
    shifted[dense.TILE_A // 4 + 32 : words] = memory[dense.TILE_A // 4 : words - 32]
    given = np.concatenate([given[:4], shifted.reshape(-1, given.shape[1])])
    source = dense.text(case).replace("setp.eq.u32 %p1", f"add.u64 %rd14, %rd14, {8 | 1 << 49}; setp.eq.u32 %p1", 1)
    got, _ = launch(source, case, given, 1, "eager")
    np.testing.assert_array_equal(got, dense.expected(case, a, b, c))


@MODES
def test_traps_report_what_a_product_produces_and_not_what_it_is_given(completion):
    """A NaN of B in shared memory is an operand as any other value."""
    traps = {"completion": completion, "trap": ("nan", "inf")}
    a, b, c = dense.matrices(CASE, 2)
    launch(dense.text(CASE), CASE, dense.inputs(CASE, a, b, c), 2, **traps)
    for nan_or_infinity, kind in ((np.nan, "nan"), (np.inf, "inf")):
        given = b.copy()
        given[..., 1, 3] = nan_or_infinity
        launch(dense.text(CASE), CASE, dense.inputs(CASE, a, given, c), 2, **{**traps, "trap": (kind,)})
    a[..., 2, 3] = b[..., 1, 3] = 2.0**100
    with pytest.raises(ArithmeticTrap, match="wgmma.mma_async.*issued by thread .0, 0, 0. of CTA .0, 0, 0., computes an inf"):
        launch(dense.text(CASE), CASE, dense.inputs(CASE, a, b, c), 2, **traps)



AFTER_ISSUE = "wgmma.commit_group.sync.aligned;"
WRITE = "add.u32 {0}, {0}, 0x11111111;"
AFTER_WAIT = "wgmma.wait_group.sync.aligned 0;"
USE = "setp.eq.u32 %p7, {0}, 0x7fffffff; @%p7 trap;"  # without a use, the write has no effect


def written(source: str, after: str, register: str) -> str:
    """The program with a write to a register, which is used at the end."""
    use = source.replace(AFTER_WAIT, AFTER_WAIT + USE.format(register))
    return use.replace(after, after + WRITE.format(register))


def test_a_fragment_register_must_not_be_written_before_the_wait():
    case = replace(CASE, in_registers=True)
    source = dense.text(case)
    register = re.search(r"\}, \{(%\w+)", instruction(case, source))[1]
    check(case, written(source, AFTER_WAIT, register), "latest-legal")
    with pytest.raises(TrapError, match=f"register {register}, which this wgmma.mma_async reads .* is written before"):
        check(case, written(source, AFTER_ISSUE, register), "latest-legal")


def test_metadata_must_not_be_written_before_the_wait():
    """An H200 gives wrong results for metadata that is replaced while the tensor cores multiply."""
    case = test_sparse.WideCase(32, "f32", "bf16", "bf16")
    source = test_sparse.text(case)
    register = re.search(r"%rd14, (%\w+), 0", instruction(case, source))[1]
    rows = (dense.TILE_A + dense.TILE_B) // 4 // 256
    registers = np.zeros((16 + 1 + rows, 256), np.uint32)
    registers[16] = 0x44444444  # the first two elements of each four
    for changed in (source, written(source, AFTER_WAIT, register)):
        got, _ = launch(changed, case, registers, 1, "latest-legal")
        assert not got.any()
    with pytest.raises(TrapError, match=f"register {register}, which this wgmma.mma_async reads .* is written before"):
        launch(written(source, AFTER_ISSUE, register), case, registers, 1, "latest-legal")
