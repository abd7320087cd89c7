"""Errors of tcgen05 instructions, which name the instruction and the bits."""

from __future__ import annotations

import oracle
import pytest
import tensor_programs
from oracle import Matrix
from tensor_programs import BASE

from ptxkit.emulator import Machine
from ptxkit.errors import DeadlockError, MemoryFault, PtxkitError, RaceError, TrapError, UnsupportedError
from ptxkit.isa.parser import parse

A = Matrix("bf16", 128, 16, False).descriptor(BASE)
IDESC = 1 << 4 | 1 << 7 | 1 << 10 | (64 >> 3) << 17 | (128 >> 4) << 24


def mma(
    a: int = A, b: int = A, idesc: int = IDESC, d: int = 0, kind: str = "f16", extra: str = "", sizes: int = 65536
) -> None:
    body = f"""mov.u64 %rd30, {a}; mov.u64 %rd31, {b}; mov.u32 %r30, {d}; mov.u32 %r31, {idesc};
        tcgen05.mma.cta_group::1.kind::{kind} [%r30], %rd30, %rd31, %r31, %p7{extra};"""
    shared, memory = oracle.noise(1, sizes, 0)
    tensor_programs.run(body, shared, memory)


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        (IDESC | 1 << 6, "bit 6 is set, which is reserved"),
        (IDESC | 1 << 23, "bit 23 is set, which is reserved"),
        (IDESC | 1 << 29, "bit 29 is set, which is reserved"),
        (IDESC | 1 << 2, r"bit 2 \(sparse\) is 1, but the instruction is not tcgen05.mma.sp"),
        (IDESC | 1, r"bits 0 and 1 \(sparsity selector\) are 1"),
        (IDESC | 1 << 3, r"bit 3 \(saturate\) is set"),
        (IDESC | 1 << 30, r"bits 30 and 31 \(maximum shift\) are 1"),
        (IDESC | 2 << 4, r"bits 4 to 5 \(type of D\) are 3; .kind::f16 has 0 \(f16\), 1 \(f32\)"),
        (IDESC | 2 << 7, r"bits 7 to 9 \(type of A\) are 3"),
        (IDESC ^ 1 << 7, r"A is f16 and B is bf16 \(bits 7 to 12\)"),
        (IDESC ^ 1 << 4, r"bits 4 and 5 \(type of D\) are 0 \(f16\)"),
        (IDESC | 4 << 24, r"bits 24 to 28 give M = 192; .cta_group::1.kind::f16 has 64 or 128"),
        (IDESC & ~(63 << 17), r"bits 17 to 22 give N = 0; .*8 to 256 in steps of 8"),
        (IDESC | 63 << 17, r"bits 17 to 22 give N = 504"),
    ],
)
def test_instruction_descriptors(bits, message):
    with pytest.raises(TrapError, match=message):
        mma(idesc=bits)


@pytest.mark.parametrize(
    ("kind", "bits", "message"),
    [
        ("i8", 2 << 4 | 1 << 13 | 8 << 17 | 8 << 24, r"bit 13 \(negate A\) is set, which .kind::i8 does not have"),
        ("i8", 2 << 4 | 5 << 17 | 8 << 24, "give N = 40"),
        ("f8f6f4", 1 << 4 | 2 << 7 | 8 << 17 | 8 << 24, r"\(type of A\) are 2"),
        ("tf32", 1 << 4 | 2 << 7 | 1 << 10 | 8 << 17 | 8 << 24, r"\(type of B\) are 1; .kind::tf32 has 2 \(tf32\)"),
    ],
)
def test_instruction_descriptors_of_other_kinds(kind, bits, message):
    with pytest.raises(TrapError, match=message):
        mma(idesc=bits, kind=kind)


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        (A | 1 << 14, "bits 14 and 15 are 0b01, which are reserved; the start address has the 14 bits below them"),
        (A | 1 << 31, "bits 30 and 31 are 0b10, which are reserved; the leading dimension byte offset has the 14 bits"),
        (A & ~(7 << 46), "bits 46 to 48 are 0b000; a descriptor of tcgen05 has 0b001"),
        (A | 1 << 53, "bits 53 to 60 are 0x01; they must be 0"),
        (A | 1 << 61, "bits 61 to 63 are 3; swizzle modes are"),
        (A | 1 << 52, r"bit 52 \(absolute leading dimension\) is set, which needs sm_103a"),
    ],
)
def test_shared_memory_descriptors(bits, message):
    with pytest.raises(TrapError, match=f"descriptor 0x[0-9a-f]+ of [AB]: {message}"):
        mma(a=bits)
    with pytest.raises(TrapError, match=message):
        mma(b=bits)


def test_matrices_outside_shared_memory():
    with pytest.raises(MemoryFault, match="A, given by .* bytes past the end of the CTA's"):
        mma(a=A + (65536 - 1024 >> 4))
    with pytest.raises(MemoryFault, match="starts below the CTA's shared memory"):
        mma(b=Matrix("bf16", 64, 16, False).descriptor(0))


@pytest.mark.parametrize(
    ("d", "error", "message"),
    [
        (480, MemoryFault, "writes D to columns 480 to 543 of tensor memory; tensor memory has columns 0 to 511"),
        (1 << 16, MemoryFault, "D begins at lane 1 of tensor memory; with M = 128 it begins at lane 0"),
        (16 << 16, MemoryFault, "D begins at lane 16"),
    ],
)
def test_addresses_of_d(d, error, message):
    with pytest.raises(error, match=message):
        mma(d=d)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "tcgen05.mma.cta_group::1.kind::f16 [%r30], %rd30, %rd31, %r31, %p7, 16;",
            "scale-input-d is a constant from 0 to 15",
        ),
        ("tcgen05.mma.cta_group::1.kind::i8 [%r30], %rd30, %rd31, %r31, %p7, 1;", "kind::i8 has no scale-input-d"),
        ("tcgen05.mma.cta_group::1.kind::f16 [%r30], %rd30, %rd31, %r31, {%r1, %r2}, %p7;", "has 2 words; .* takes 4"),
        (
            "tcgen05.mma.cta_group::1.kind::f16.ashift [%r30], %rd30, %rd31, %r31, %p7;",
            "ashift needs A in tensor memory",
        ),
        ("tcgen05.mma.cta_group::1.kind::f64 [%r30], %rd30, %rd31, %r31, %p7;", "kind::f64"),
        ("tcgen05.ld.sync.aligned.16x256b.x64.b32 {%r1, %r2}, [%r30];", "it would have 256 registers"),
        ("tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r1, %r2}, [%r30];", "2 registers; this form has 4"),
        ("tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {%r1}, [%r30], %r2;", "takes a constant"),
        ("tcgen05.cp.cta_group::1.32x128b [%r30], %rd30;", "tcgen05.cp.cta_group::1.32x128b"),
    ],
)
def test_forms_are_refused_before_anything_runs(line, message):
    shared, memory = oracle.noise(1, 65536, 0)
    with pytest.raises(UnsupportedError, match=message):
        tensor_programs.run(line, shared, memory)


HEAD = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k()
{
    .reg .pred %p<4>; .reg .b32 %r<16>; .shared .b32 where; .shared .b32 other;
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
"""
ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [where], {}; ld.shared.b32 %r3, [where];"
FREE = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, {};"


def launch(body: str, grid: int = 1, block: int = 32, sms: int = 1, cluster: int = 1) -> None:
    machine = Machine(capacity=1 << 22, workers=1, sms=sms)
    program = machine.load(parse(f"{HEAD}{body}\nret;\n}}\n", "alloc.ptx"), "sm_100a")
    program.launch("k", b"", grid=(grid, 1, 1), block=(block, 1, 1), cluster=(cluster, 1, 1))


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (ALLOC.format(48), TrapError, "allocates 48 columns; it must be a power of two from 32 to 512"),
        (ALLOC.format(16), TrapError, "allocates 16 columns"),
        (ALLOC.format(1024), TrapError, "allocates 1024 columns"),
        (ALLOC.format(64), MemoryFault, r"alloc.ptx:\d+ tcgen05.alloc.*: CTA \(0, 0, 0\) exits with 64 columns"),
        (ALLOC.format(64) + FREE.format(64) * 2, MemoryFault, "which are not allocated: freed already"),
        (ALLOC.format(64) + FREE.format(32), MemoryFault, "where .*tcgen05.alloc.* has allocated 64"),
        (ALLOC.format(64) + "add.u32 %r3, %r3, 32;" + FREE.format(32), MemoryFault, "not where an allocation begins"),
        (
            ALLOC.format(64) + "add.u32 %r3, %r3, 0x200000;" + FREE.format(64),
            MemoryFault,
            "tcgen05.dealloc.*: warp 0 of CTA .* deallocates the address 0x00200000, which names lane 32",
        ),
        (
            "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" + ALLOC.format(64),
            TrapError,
            "after its CTA gave up the right to at .*relinquish_alloc_permit",
        ),
        (
            ALLOC.format(64) + FREE.format(64).replace("group::1", "group::2"),
            TrapError,
            "must have the same .cta_group",
        ),
        (ALLOC.format(64).replace("group::1", "group::2"), TrapError, "needs clusters of an even number of CTAs"),
        (
            ALLOC.format(512) + ALLOC.format(32),
            DeadlockError,
            "waits for 32 columns of tensor memory; allocated on its SM: 512",
        ),
        (
            ALLOC.format(64)
            + "mov.u32 %r4, 40; tcgen05.ld.sync.aligned.32x32b.x32.b32 {"
            + ", ".join(["%r5"] * 32)
            + "}, [%r4];",
            MemoryFault,
            "loads columns 40 to 71 of tensor memory; column 64 is not allocated",
        ),
        (
            ALLOC.format(64) + "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r3], {%r5};" + FREE.format(64),
            RaceError,
            "put tcgen05.wait::st after the store",
        ),
    ],
)
def test_allocation(body, error, message):
    """``RaceError`` occurs in latest-legal mode only; the other errors are the same in both modes."""
    machine = Machine(capacity=1 << 22, workers=1, sms=1)
    program = machine.load(parse(f"{HEAD}{body}\nret;\n}}\n", "alloc.ptx"), "sm_100a")
    from ptxkit.emulator.settings import EmulatorSettings

    with pytest.raises(error, match=message):
        program.launch("k", b"", grid=(1, 1, 1), block=(32, 1, 1), settings=EmulatorSettings(completion="latest-legal"))


def test_a_second_cta_on_the_sm_waits_for_columns():
    launch(ALLOC.format(512) + FREE.format(512), grid=5, sms=2)


def test_foreign_columns_name_their_owner():
    body = (
        ALLOC.format(64)
        + """
    mov.u32 %r4, 0; setp.eq.u32 %p0, %r2, 1; @!%p0 bra keep;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {%r5};
keep: nanosleep.u32 100;
    """
    )
    with pytest.raises(MemoryFault, match=r"column 0 belongs to CTA \(0, 0, 0\) on the same SM"):
        launch(body, grid=2, sms=1)


def test_the_pair_allocates_together():
    two = (ALLOC.format(64) + FREE.format(64)).replace("group::1", "group::2")
    launch(two, grid=4, cluster=2, sms=2)
    with pytest.raises(DeadlockError, match="for the other CTA of its pair to allocate them too"):
        launch(f"setp.eq.u32 %p0, %r2, 1; @%p0 bra end; {two} end:", grid=2, cluster=2, sms=2)
    different = f"setp.eq.u32 %p0, %r2, 1; selp.u32 %r9, 32, 64, %p0; {two}".replace("[where], 64", "[where], %r9")
    with pytest.raises(TrapError, match="allocate 64 and 32 columns|allocate 32 and 64 columns"):
        launch(different, grid=2, cluster=2, sms=2)


def test_alloc_by_part_of_a_warp_is_an_error():
    with pytest.raises(PtxkitError):
        launch("setp.lt.u32 %p0, %r1, 8; @!%p0 bra end;" + ALLOC.format(32) + FREE.format(32) + "end:")


def test_every_warp_reaches_its_own_lanes():
    """Lane 0 denotes the first lane of the warp's partition. Other partitions are errors; bits above 127 are ignored."""
    body = ALLOC.format(32) + "mov.u32 %r4, 0; tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r5}, [%r4];" + FREE.format(32)
    for lane in (0, 128, 1024):
        launch(body.replace("%r4, 0;", f"%r4, {lane << 16};"))
    for lane in (32, 96, 160):
        with pytest.raises(MemoryFault, match=f"loads from lane {lane} on; it can access lanes 0 to 31 only"):
            launch(body.replace("%r4, 0;", f"%r4, {lane << 16};"))
    with pytest.raises(MemoryFault, match="loads from lane 3 on; this shape begins at a multiple of 32 lanes"):
        launch(body.replace("%r4, 0;", f"%r4, {3 << 16};"))
