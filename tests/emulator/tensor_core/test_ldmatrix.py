"""ldmatrix, stmatrix and movmatrix compared with the manual's figures, their shared-memory passes, and their errors."""

from __future__ import annotations

import numpy as np
import pytest
from matrix_programs import names, program, run

from ptxkit.emulator import Machine
from ptxkit.errors import MemoryFault, TrapError
from ptxkit.isa.parser import parse

WORDS = 512  # shared memory of a CTA, 4-byte words
FILL = """
mov.u32 %r10, tile; mov.u32 %r11, %r0;
fill: shl.b32 %r12, %r11, 2; add.u32 %r12, %r12, %r10; st.shared.b32 [%r12], %r11; add.u32 %r11, %r11, %r1;
setp.lt.u32 %p0, %r11, 512; @%p0 bra fill;
bar.sync 0;
"""
"""Word w of the tile holds w, so its 16-bit elements are (w, 0)."""
DUMP = """
bar.sync 0;
mov.u32 %r10, tile; mov.u32 %r11, %r0;
"""


def element(row: int, column: int, pitch: int) -> int:
    """16-bit element of the filled tile whose rows are ``pitch`` bytes apart."""
    at = row * pitch + 2 * column
    return (at // 4) & 0xFFFF if at % 4 == 0 else 0


@pytest.mark.parametrize("pitch", [16, 48, 32])
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("num", [1, 2, 4])
def test_ldmatrix(device, num, trans, pitch):
    """Rows of all matrices one after the other, ``pitch`` bytes apart; lanes beyond the last row have an invalid address."""
    body = f"""
    mul.lo.u32 %r13, %x0, {pitch}; add.u32 %r13, %r13, %r10;
    ldmatrix.sync.aligned.m8n8.x{num}{trans}.shared.b16 {names("y", 0, num)}, [%r13];
    """
    text = program(body, ["b32"], ["b32"] * num, shared=4 * WORDS, before=FILL)
    rows = np.arange(32, dtype=np.uint64)[None].copy()
    rows[:, 8 * num :] = 0
    got = run(device, text, np.tile(rows, (1, 4)), num, grid=2, block=64)
    want = np.zeros((num, 32), np.uint64)
    for i in range(num):
        for lane in range(32):
            pairs = [(lane // 4, lane % 4 * 2 + e) for e in range(2)]
            if trans:
                pairs = [(c, r) for r, c in pairs]
            low, high = (element(8 * i + r, c, pitch) for r, c in pairs)
            want[i, lane] = low | high << 16
    np.testing.assert_array_equal(got, np.tile(want, (1, 4)))


@pytest.mark.parametrize("space", ["", ".shared::cta"])
def test_ldmatrix_generic_and_64_bit_addresses(device, space):
    body = f"""
    mov.u64 %rd10, tile; mul.wide.u32 %rd11, %x0, 16; add.u64 %rd10, %rd10, %rd11;
    {"" if space else "cvta.shared.u64 %rd10, %rd10;"}
    ldmatrix.sync.aligned.m8n8.x4{space}.b16 {names("y", 0, 4)}, [%rd10+1024];
    """
    text = program(body, ["b32"], ["b32"] * 4, shared=4 * WORDS, before=FILL)
    got = run(device, text, np.arange(32, dtype=np.uint64)[None], 4)
    np.testing.assert_array_equal(got, 256 + np.arange(128).reshape(4, 32))


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("num", [1, 2, 4])
def test_stmatrix(device, num, trans):
    """Matrix i goes to rows 8 i of a tile with 48-byte rows; the whole tile is read back."""
    pitch = 48
    dump = "\n".join(f"ld.shared.b32 %y{n}, [%r14+{n * 128}];" for n in range(16))
    lanes = [f"%x{n + 1}" for n in range(num)]
    body = f"""
    mul.lo.u32 %r13, %x0, {pitch}; add.u32 %r13, %r13, %r10;
    stmatrix.sync.aligned.m8n8.x{num}{trans}.shared.b16 [%r13], {{{", ".join(lanes)}}};
    bar.sync 0; shl.b32 %r14, %r0, 2; add.u32 %r14, %r14, %r10;
    {dump}
    """
    text = program(body, ["b32"] * (num + 1), ["b32"] * 16, shared=4 * WORDS, before=FILL)
    rng = np.random.default_rng(num)
    data = rng.integers(0, 2**32, (num, 32)).astype(np.uint64)
    rows = np.arange(32, dtype=np.uint64)[None] % (8 * num)
    got = run(device, text, np.concatenate([rows, data]), 16)
    want = np.arange(512, dtype=np.uint32).view(np.uint16)
    for i in range(num):
        for lane in range(32):
            for e in range(2):
                r, c = lane // 4, lane % 4 * 2 + e
                r, c = (c, r) if trans else (r, c)
                want[(8 * i + r) * pitch // 2 + c] = int(data[i, lane]) >> 16 * e & 0xFFFF
    np.testing.assert_array_equal(got.reshape(-1), want.view(np.uint32))


@pytest.fixture
def blackwell(device):
    """A device that has the 8-bit forms."""
    if device.kind == "gpu" and device.target.cc < 100:
        pytest.skip(f"{device.name} has no 8-bit ldmatrix")
    return device


NOISE = np.random.default_rng(5).integers(0, 256, 512).astype(np.uint8)


def on_noise(device, body: str, outputs: int) -> np.ndarray:
    """Registers [output, lane] after ``body``, with 512 random bytes in the tile and %r13 the lane's row of 16 bytes."""
    fill = """
    mov.u32 %r10, tile; shl.b32 %r12, %r0, 4; add.u32 %r13, %r10, %r12;
    st.shared.v4.b32 [%r13], {%x0, %x1, %x2, %x3}; bar.sync 0;
    """
    text = program(fill + body, ["b32"] * 4, ["b32"] * outputs, shared=512, target="sm_100a", version="8.7")
    words = NOISE.view(np.uint32).reshape(32, 4).T.astype(np.uint64)
    return run(device, text, words, outputs).astype(np.uint32)


def elements_of(source: str) -> np.ndarray:
    """(32, 16) elements of the tile's rows: 4-bit and 6-bit ones are packed from the low bits on."""
    rows = NOISE.reshape(32, 16)
    if source == "b8":
        return rows
    bits = {"b4x16_p64": 4, "b6x16_p32": 6}[source]
    whole = np.unpackbits(rows, axis=1, bitorder="little")[:, : 16 * bits].reshape(32, 16, bits)
    return (whole * (1 << np.arange(bits))).sum(-1).astype(np.uint8)


@pytest.mark.parametrize("source", ["b8", "b4x16_p64", "b6x16_p32"])
@pytest.mark.parametrize("num", [1, 2])
def test_ldmatrix_m16n16(blackwell, num, source):
    suffix = "b8" if source == "b8" else f"b8x16.{source}"
    body = f"ldmatrix.sync.aligned.m16n16.x{num}.trans.shared.{suffix} {names('y', 0, 2 * num)}, [%r13];"
    got = on_noise(blackwell, body, 2 * num).view(np.uint8).reshape(2 * num, 32, 4)
    given = elements_of(source)
    for matrix, r, lane, e in np.ndindex(num, 2, 32, 4):
        row, column = lane // 4 + 8 * r, lane % 4 * 4 + e  # of the transposed matrix
        assert got[2 * matrix + r, lane, e] == given[16 * matrix + column, row]


@pytest.mark.parametrize("source", ["b4x16_p64", "b6x16_p32"])
@pytest.mark.parametrize("num", [1, 2, 4])
def test_ldmatrix_m8n16(blackwell, num, source):
    body = f"ldmatrix.sync.aligned.m8n16.x{num}.shared.b8x16.{source} {names('y', 0, num)}, [%r13];"
    got = on_noise(blackwell, body, num).view(np.uint8).reshape(num, 8, 16)
    np.testing.assert_array_equal(got, elements_of(source)[: 8 * num].reshape(num, 8, 16))


@pytest.mark.parametrize("num", [1, 2, 4])
def test_stmatrix_m16n8(blackwell, num):
    """The registers hold 16x8 matrices: bytes 0 and 1 are two neighbours of row lane / 4, bytes 2 and 3 of row lane / 4 + 8."""
    body = f"""
    stmatrix.sync.aligned.m16n8.x{num}.trans.shared.b8 [%r13], {names("x", 0, num)};
    bar.sync 0; ld.shared.v4.b32 {{%y0, %y1, %y2, %y3}}, [%r13];
    """
    got = on_noise(blackwell, body, 4).T
    tile = np.ascontiguousarray(got).view(np.uint8).reshape(32, 16)
    registers = NOISE.view(np.uint32).reshape(32, 4)
    want = NOISE.reshape(32, 16).copy()
    for matrix, lane, e in np.ndindex(num, 32, 4):
        row, column = lane // 4 + 8 * (e // 2), lane % 4 * 2 + e % 2
        want[8 * matrix + column, row] = int(registers[lane, matrix]) >> 8 * e & 255
    np.testing.assert_array_equal(tile, want)


def test_movmatrix(device):
    text = program("movmatrix.sync.aligned.m8n8.trans.b16 %y0, %x0;", ["b32"], ["b32"])
    matrix = np.random.default_rng(1).integers(0, 2**16, (2, 8, 8)).astype(np.uint16)
    registers = np.ascontiguousarray(matrix).reshape(2, 64).view(np.uint32).reshape(1, 64)
    got = run(device, text, registers, 1, block=64).astype(np.uint32)
    np.testing.assert_array_equal(got.view(np.uint16).reshape(2, 8, 8), matrix.transpose(0, 2, 1))


def emulate(text: str, *, block: int = 32, words: int = 1024):
    """Launch on an emulator of its own; the input is each thread's index."""
    machine = Machine(capacity=1 << 24, workers=1)
    source, destination = machine.allocate(4 * words), machine.allocate(16 * words)
    machine.write(source, np.arange(words, dtype=np.uint32))
    params = np.array([source, destination], np.uint64).tobytes()
    return machine.load(parse(text, "m.ptx"), "sm_90a").launch("k", params, grid=(1, 1, 1), block=(block, 1, 1))


@pytest.mark.parametrize(
    ("num", "pitch", "passes", "conflicts"),
    [(4, 16, 4, 0), (4, 128, 32, 28), (2, 16, 2, 0), (1, 32, 2, 1), (4, 144, 4, 0), (2, 64, 8, 6)],
)
def test_passes_are_counted_by_eight_rows(num, pitch, passes, conflicts):
    body = f"""
    and.b32 %r12, %x0, {8 * num - 1}; mul.lo.u32 %r13, %r12, {pitch}; mov.u32 %r10, tile; add.u32 %r13, %r13, %r10;
    ldmatrix.sync.aligned.m8n8.x{num}.shared.b16 {names("y", 0, num)}, [%r13];
    """
    counters = emulate(program(body, ["b32"], ["b32"] * num, shared=8192), block=64).counters
    assert counters.shared_load_wavefronts == 2 * passes
    assert counters.shared_bank_conflicts == 2 * conflicts
    assert counters.shared_load_bytes == 2 * num * 128
    assert counters.by_class["matrix.move"] == 64


def loads(address: str, guard: str = "") -> str:
    zero = " ".join(f"mov.b32 %y{n}, 0;" for n in range(4))
    body = f"mov.u32 %r10, tile; {zero} {address} {guard} ldmatrix.sync.aligned.m8n8.x4.shared.b16 {names('y', 0, 4)}, [%r13];"
    return program(body, ["b32"], ["b32"] * 4, shared=1024)


def test_misaligned_row_is_named():
    with pytest.raises(MemoryFault, match=r"m\.ptx:\d+ ldmatrix.*lane 3 .*misaligned, 16-byte"):
        emulate(
            loads(
                "mul.lo.u32 %r13, %x0, 16; setp.eq.u32 %p0, %x0, 3; @%p0 add.u32 %r13, %r13, 8; add.u32 %r13, %r13, %r10;"
            )
        )


def test_row_outside_shared_memory_is_named():
    with pytest.raises(MemoryFault, match=r"lane 31 .*past the end of the CTA's 1,024 bytes"):
        emulate(loads("mul.lo.u32 %r13, %x0, 34; and.b32 %r13, %r13, -16; add.u32 %r13, %r13, %r10;"))


def test_generic_address_of_global_memory_is_refused():
    text = program("ldmatrix.sync.aligned.m8n8.x1.b16 {%y0}, [%rd0];", ["b32"], ["b32"])
    with pytest.raises(MemoryFault, match="not in shared memory"):
        emulate(text)


def test_lanes_that_are_missing_are_an_error():
    half = loads("mov.u32 %r13, %r10; setp.lt.u32 %p1, %x0, 16; @%p1 bra on; ret; on:")
    with pytest.raises(TrapError, match=r"ldmatrix.*16 of 32 lanes"):
        emulate(half)
    with pytest.raises(TrapError, match=r"lanes 0-15 of warp 0 .* are here, but lanes 16-31 have gone on to"):
        emulate(loads("mov.u32 %r13, %r10; setp.lt.u32 %p1, %x0, 16;", guard="@%p1"))


def test_a_predicate_that_is_the_same_for_a_warp_is_fine():
    result = emulate(
        loads(
            "mul.lo.u32 %r13, %x0, 16; and.b32 %r13, %r13, 511; add.u32 %r13, %r13, %r10; setp.lt.u32 %p1, %x0, 32;",
            "@%p1",
        ),
        block=96,
    )
    assert result.counters.by_class["matrix.move"] == 32


def test_lanes_that_took_different_ways_meet_again():
    """The collective waits for the other half of the warp, which has not reached it yet."""
    text = loads(
        """
        mul.lo.u32 %r13, %x0, 16; add.u32 %r13, %r13, %r10; setp.lt.u32 %p1, %x0, 16; mov.u32 %r20, 0;
        @%p1 bra far;
        bra.uni here;
        far: add.u32 %r20, %r20, 1; setp.lt.u32 %p2, %r20, 50; @%p2 bra far;
        here:
        """
    )
    assert emulate(text).counters.by_class["matrix.move"] == 32
