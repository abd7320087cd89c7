"""Loads and stores of every space, faults and their messages, traffic counts."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import THREAD, Run, kernel

import ptxkit
from ptxkit.emulator.engine.machine import Machine
from ptxkit.emulator.memory.address_table import AddressTable
from ptxkit.emulator.memory.allocations import GLOBAL_BASE
from ptxkit.emulator.memory.layout import plain
from ptxkit.emulator.memory.traffic import sectors, wavefronts
from ptxkit.errors import LaunchError, MemoryFault
from ptxkit.runtime.emulated import EmulatedDevice


@pytest.mark.parametrize(
    "t,dtype", [("u8", "u1"), ("s16", "i2"), ("u32", "u4"), ("f32", "f4"), ("b64", "u8"), ("f64", "f8")]
)
def test_scalars_of_every_width_come_and_go(t, dtype):
    register = {"u8": "%h1", "s16": "%h1", "u32": "%r5", "f32": "%f1", "b64": "%rd9", "f64": "%d1"}[t]
    size = np.dtype(dtype).itemsize
    run = Run(
        kernel(f"""
        mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, {size}; add.u64 %rd3, %rd0, %rd2; add.u64 %rd4, %rd1, %rd2;
        ld.global.{t} {register}, [%rd3]; st.global.{t} [%rd4], {register};
    """)
    )
    x = (np.arange(50) * 3 - 70).astype(dtype)
    _, out = run(x, np.zeros_like(x), block=50)
    assert (out == x).all()


def test_narrow_loads_extend_by_their_sign():
    run = Run(kernel("ld.global.s8 %r0, [%rd0]; ld.global.u8 %r1, [%rd0]; st.global.v2.u32 [%rd1], {%r0, %r1};"))
    _, out = run(np.array([-2], np.int8), np.zeros(2, np.int32), block=1)
    assert out.tolist() == [-2, 254]


def test_vectors_move_whole():
    run = Run(
        kernel("""
        mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 16; add.u64 %rd3, %rd0, %rd2; add.u64 %rd4, %rd1, %rd2;
        ld.global.nc.L1::no_allocate.v4.f32 {%f0, %f1, %f2, %f3}, [%rd3]; st.global.v4.f32 [%rd4], {%f3, %f2, %f1, %f0};
    """)
    )
    x = np.arange(128, dtype=np.float32).reshape(32, 4)
    _, out = run(x, np.zeros_like(x))
    assert (out == x[:, ::-1]).all()
    assert run.result.counters.global_load_sectors == 16 and run.result.counters.global_store_bytes == 512


def test_shared_memory_is_the_ctas_own_and_can_be_dynamic():
    run = Run(
        kernel(
            """
        mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, dyn; mad.lo.u32 %r3, %r0, 4, %r2;
        mad.lo.u32 %r4, %r1, 100, %r0; st.shared.u32 [%r3], %r4; bar.sync 0;
        sub.u32 %r5, 63, %r0; mad.lo.u32 %r6, %r5, 4, %r2; ld.shared.u32 %r7, [%r6];
        mad.lo.u32 %r8, %r1, 64, %r0; mul.wide.u32 %rd2, %r8, 4; add.u64 %rd3, %rd0, %rd2; st.global.u32 [%rd3], %r7;
    """,
            params=1,
            before=".extern .shared .align 16 .b8 dyn[];",
        )
    )
    (out,) = run(np.zeros((3, 64), np.uint32), grid=3, block=64, shared=256)
    assert (out == np.arange(3)[:, None] * 100 + np.arange(63, -1, -1)).all()


def test_generic_addresses_reach_every_space_even_mixed_in_a_warp():
    run = Run(
        kernel("""
        .shared .align 4 .b8 s[128]; .local .align 4 .b8 l[4];
        mov.u32 %r0, %tid.x; mov.u64 %rd2, s; cvta.shared.u64 %rd3, %rd2; mul.wide.u32 %rd4, %r0, 4; add.u64 %rd3, %rd3, %rd4;
        mov.u64 %rd5, l; cvta.local.u64 %rd6, %rd5; add.u64 %rd7, %rd0, %rd4;
        rem.u32 %r1, %r0, 3; setp.eq.u32 %p0, %r1, 0; setp.eq.u32 %p1, %r1, 1;
        selp.b64 %rd8, %rd3, %rd6, %p0; selp.b64 %rd8, %rd7, %rd8, %p1;
        st.u32 [%rd8], %r0; ld.u32 %r2, [%rd8]; add.u64 %rd9, %rd1, %rd4; st.global.u32 [%rd9], %r2;
        isspacep.shared %p2, %rd8; selp.u32 %r3, 1, 0, %p2; st.global.u32 [%rd9+128], %r3;
    """)
    )
    first, out = run(np.full(32, 9, np.uint32), np.zeros(64, np.uint32))
    lane = np.arange(32)
    assert (out[:32] == lane).all() and (out[32:] == (lane % 3 == 0)).all()
    assert (first == np.where(lane % 3 == 1, lane, 9)).all()


def test_globals_constants_and_their_initialisers():
    run = Run(
        kernel(
            """
        mov.u64 %rd2, table; mov.u32 %r0, %tid.x; mul.wide.u32 %rd3, %r0, 4; add.u64 %rd4, %rd2, %rd3;
        ld.const.u32 %r1, [%rd4]; ld.global.u64 %rd5, [pointer]; ld.u32 %r2, [%rd5]; add.u32 %r1, %r1, %r2;
        add.u64 %rd6, %rd0, %rd3; st.global.u32 [%rd6], %r1; st.global.u32 [counter], %r0;
    """,
            params=1,
            before="""
        .const .align 4 .u32 table[4] = {10, 20, 30, 40};
        .global .align 4 .u32 counter = 1000;
        .global .align 8 .u64 pointer = generic(table)+8;
    """,
        )
    )
    (out,) = run(np.zeros(4, np.uint32), block=4)
    assert out.tolist() == [40, 50, 60, 70]
    address, size = run.program.global_address("counter")
    assert size == 4 and run.machine.read(address, 4).view(np.uint32)[0] == 3


def test_out_of_bounds_names_everything():
    text = kernel(THREAD + "st.global.u32 [%rd21], %r3;")
    with pytest.raises(MemoryFault) as caught:
        Run(text)(np.zeros(100, np.uint32), np.zeros(1, np.uint32), grid=2, block=64)
    message = str(caught.value)
    assert "test.ptx:" in message and "st.global.u32" in message
    assert "lane 4 of warp 1 of CTA (1, 0, 0)" in message and "4 bytes past the end of 'arg0' (400 bytes)" in message


@pytest.mark.parametrize(("offset", "words"), [(2, "misaligned"), (-4, "before the start of 'arg0'")])
def test_misaligned_and_below(offset, words):
    with pytest.raises(MemoryFault, match=words):
        Run(kernel(f"add.u64 %rd2, %rd0, {offset}; ld.global.u32 %r0, [%rd2];"))(
            np.zeros(4, np.uint32), np.zeros(1), block=1
        )


def test_null_and_freed():
    with pytest.raises(MemoryFault, match="null pointer"):
        Run(kernel("mov.u64 %rd2, 0; ld.global.u32 %r0, [%rd2];"))(np.zeros(1), np.zeros(1))
    run = Run(kernel("ld.global.u32 %r0, [%rd0];"))
    address = run.machine.allocate(64, "gone")
    run.machine.free(address)
    with pytest.raises(MemoryFault, match="'gone' .*which was freed"):
        run(address, 0)


def test_shared_memory_ends_where_it_was_declared():
    run = Run(
        kernel(
            ".shared .b32 s[8]; mov.u32 %r0, %tid.x; shl.b32 %r0, %r0, 2; mov.u32 %r1, s; add.u32 %r1, %r1, %r0; "
            "ld.shared.u32 %r2, [%r1];"
        )
    )
    with pytest.raises(MemoryFault, match=r"thread \(8, 0, 0\).*past the end of the CTA's 32 bytes of shared memory"):
        run(np.zeros(1), np.zeros(1), block=9)


def test_a_launch_that_does_not_fit_the_kernel():
    run = Run(kernel("", directives=".maxntid 64"))
    with pytest.raises(LaunchError, match="128 threads a block; the kernel is bounded to 64"):
        run(np.zeros(1), np.zeros(1), block=128)
    with pytest.raises(LaunchError, match="shared memory"):
        run(np.zeros(1), np.zeros(1), shared=300_000)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3), st.data())
def test_sectors_are_the_distinct_ones_of_each_warp(shift, data):
    size = 4 << shift if shift < 3 else 4
    lanes = data.draw(st.lists(st.integers(0, 200), min_size=64, max_size=64))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=64, max_size=64))).reshape(2, 1, 32)
    addresses = (np.array(lanes, np.uint64) * np.uint64(size)).reshape(2, 1, 32)
    for m in (None, mask):
        want = sum(
            len(
                {
                    int(a) // 32
                    for a, on in zip(addresses[w, 0], (mask if m is not None else mask | True)[w, 0], strict=True)
                    if on
                }
            )
            for w in range(2)
        )
        assert sectors(addresses, size, m, (2, 1, 32)) == want


@pytest.mark.parametrize(
    ("stride", "size", "want"),
    [
        (4, 4, (1, 0)),
        (8, 4, (2, 1)),
        (128, 4, (32, 31)),
        (0, 4, (1, 0)),
        (8, 8, (2, 0)),
        (16, 16, (4, 0)),
        (132, 4, (1, 0)),
    ],
)
def test_wavefronts_by_stride(stride, size, want):
    addresses = (np.arange(32, dtype=np.uint64) * np.uint64(stride)).reshape(1, 1, 32)
    assert wavefronts(addresses, size, None, (1, 1, 32)) == want


@pytest.mark.parametrize("initcheck", [False, True])
@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("st.b32 [here+4], %r0; ld.b32 %r4, [here+4];", np.arange(32)),
        (
            "st.v2.b32 [here+8], {%r0, 5}; ld.local.v2.b32 {%r4, %r5}, [here+8]; add.u32 %r4, %r4, %r5;",
            np.arange(32) + 5,
        ),
        ("st.b32 [tile+8], 5; bar.sync 0; ld.b32 %r4, [tile+8];", 5),
        ("st.volatile.b32 [tile], 5; bar.sync 0; ld.relaxed.cta.b32 %r4, [tile];", 5),
        (
            "st.b32 [tile], 5; bar.sync 0; atom.max.u32 %r4, [tile], 6; bar.sync 0; red.add.u32 [tile], 0; ld.b32 %r4, [tile];",
            6,
        ),
        ("cp.async.ca.shared.global [tile], [table], 16; cp.async.wait_all; bar.sync 0; ld.b32 %r4, [tile+4];", 9),
        ("ld.b32 %r4, [table+4];", 9),
    ],
)
def test_a_variable_gives_its_state_space_where_the_opcode_names_none(body, want, initcheck):
    variables = ".shared .align 16 .b8 tile[64]; .global .align 16 .u32 table[4] = {8, 9, 10, 11};"
    text = kernel(THREAD + ".local .align 8 .b8 here[16];" + body + "st.global.u32 [%rd21], %r4;", before=variables)
    out, _ = Run(text)(np.zeros(32, np.uint32), np.zeros(1), initcheck=initcheck)
    assert (out == want).all()


LOCAL_COUNTER = """
    .local .align 8 .b8 here[16]; st.local.u32 [here], 5; mov.u64 %rd9, here; cvta.local.u64 %rd10, %rd9;
    setp.eq.u32 %p0, %r0, 3; @{guard} atom.add.u32 %r4, [%rd10], 2; ld.local.u32 %r5, [here]; st.global.u32 [%rd21], %r5;
"""


def test_an_atomic_on_local_memory_is_for_one_lane_of_a_warp():
    out, _ = Run(kernel(THREAD + LOCAL_COUNTER.format(guard="%p0")))(np.zeros(32, np.uint32), np.zeros(1))
    assert (out == np.where(np.arange(32) == 3, 7, 5)).all()
    with pytest.raises(MemoryFault, match="atom.add.u32.*in local memory, where only one lane"):
        Run(kernel(THREAD + LOCAL_COUNTER.format(guard="!%p0")))(np.zeros(32, np.uint32), np.zeros(1))


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZZ1fvE3sum_$_1", "sum"),
        ("_ZN2ns4tileE", "tile"),
        ("_ZL5table", "table"),
        ("_ZN12_GLOBAL__N_14tileE", "tile"),
        ("_ZZN2ns1gIiEEvPT_E4ring", "ring"),
        ("_ZZ1kP13__nv_bfloat16N2ns4bf16EE3bar", "bar"),
        ("_ZZ1kILi128ELb1EEvPfE4tile", "tile"),
        ("_ZZ1kIL4Mode5EEvPA10_fE1x", "x"),
        ("_ZZ1kvE4bf16", "bf16"),
        ("_ZZ1kvE7stage_1_0", "stage_1"),
        ("_ZZ1kPDF16_E3row", "row"),
        ("plain_name", "plain_name"),
    ],
)
def test_variables_have_their_names_from_the_source(mangled, name):
    assert plain(mangled) == name


def test_addresses_of_parameters_fit_in_32_bits():
    """Addresses of parameters are offsets in a constant bank on hardware; Triton reads them with mov.b32."""
    run = Run(
        kernel("""
        mov.b32 %r0, k_param_1; cvt.u64.u32 %rd2, %r0; ld.param.u64 %rd3, [%rd2]; st.global.u64 [%rd0], %rd3;
        cvta.param.u64 %rd4, %rd2; ld.u64 %rd3, [%rd4]; st.global.u64 [%rd0+8], %rd3;
        isspacep.param %p0, %rd4; selp.u32 %r1, 1, 0, %p0; st.global.u32 [%rd0+16], %r1;
        isspacep.global %p0, %rd4; selp.u32 %r1, 1, 0, %p0; st.global.u32 [%rd0+20], %r1;
    """)
    )
    for _ in range(3):  # a launch uses other addresses than the previous one
        out, unused = run(np.zeros(6, np.uint32), np.zeros(1, np.uint32))
        assert out[0] == out[2] and out[1] == out[3] and out[1] == GLOBAL_BASE >> 32 and out[4:].tolist() == [1, 1]
        assert not unused.any()


def test_shared_memory_that_the_launch_does_not_give_is_named_with_its_option():
    source = "__global__ void k(int* x) { extern __shared__ int s[]; s[threadIdx.x] = 1; x[0] = s[0]; }"
    emulator = ptxkit.device("emulator")
    compiled = ptxkit.compile(source, device=emulator)["k"]
    with pytest.raises(MemoryFault, match=r"the launch gives it none \(shared=, or --shared BYTES\)"):
        compiled(emulator.upload(np.zeros(1, np.int32)), grid=1, block=1)


@pytest.mark.parametrize(
    "change",
    [
        lambda machine, base: machine.allocate(16),
        lambda machine, base: machine.allocate_all([16, 32], "heap"),
        lambda machine, base: machine.memory.free_all([base]),
        lambda machine, base: machine.free(base),
    ],
    ids=["allocate", "allocate_all", "free_all", "free"],
)
def test_the_collector_may_free_an_array_in_the_middle_of_a_change(monkeypatch, change):
    """A change of the memory makes objects, which lets the garbage collector run, and this frees arrays."""
    machine = Machine()
    device = EmulatedDevice(machine)
    base, before = machine.allocate(8), machine.memory.used
    cycle = [device.upload(np.zeros(1000, np.uint8))]
    cycle.append(cycle)
    address = cycle[0].address
    for name in ("extend", "remove", "remove_all"):
        done = getattr(AddressTable, name)
        monkeypatch.setattr(AddressTable, name, lambda *args, done=done: (gc.collect(), done(*args))[1])
    thread = threading.Thread(target=change, args=(machine, base), daemon=True)
    del cycle
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    machine.free(machine.allocate(8))
    assert machine.memory.owner(address) is None and machine.memory.used <= before + 48
