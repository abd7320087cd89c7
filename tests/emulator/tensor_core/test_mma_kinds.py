"""mma.sync with ``.kind`` (sm_120a): operands packed by the manual's formulas, results as for tcgen05.mma."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from matrix_programs import names, program, run
from test_mma import _a_two_blocks, _b, _c
from test_sparse import holder
from test_tcgen05_block_scaled import SELECTORS, expand_sparse

from ptxkit.emulator.tensor_core.tcgen05_arithmetic import products
from ptxkit.errors import PtxkitError, TrapError
from ptxkit.runtime.device import device as open_device

NARROW = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
PACKED = ("mxf4", "mxf4nvf4")


@dataclass(frozen=True)
class Case:
    kind: str
    a: str
    b: str
    d: str = "f32"
    scale: str | None = None
    count: int = 0
    default: bool = False
    sparse: bool = False

    @property
    def packed(self) -> bool:
        return self.kind in PACKED

    @property
    def k(self) -> int:
        return (64 if self.packed else 32) * (2 if self.sparse else 1)

    @property
    def opcode(self) -> str:
        vector = f".scale_vec::{self.count}X" if self.scale and not self.default else ""
        block = ".block_scale" if self.scale else ""
        types = f".{self.d}.{self.a}.{self.b}.{self.d}" + (f".{self.scale}" if self.scale else "")
        name = "mma.sp::ordered_metadata" if self.sparse else "mma"
        return f"{name}.sync.aligned.m16n8k{self.k}.row.col.kind::{self.kind}{block}{vector}{types}"

    def __str__(self) -> str:
        return self.opcode.removeprefix("mma.").replace("sync.aligned.", "")


def cases() -> list[Case]:
    found = [Case("f8f6f4", a, b) for a, b in itertools.product(NARROW, NARROW)]
    found += [Case("f8f6f4", "e2m1", "e5m2", "f16"), Case("mxf8f6f4", "e4m3", "e5m2", scale="ue8m0", count=1)]
    found += [Case("mxf8f6f4", a, "e2m1", scale="ue8m0", count=1, default=True) for a in ("e3m2", "e2m1")]
    found += [Case("mxf4", "e2m1", "e2m1", scale="ue8m0", count=2, default=d) for d in (False, True)]
    found += [Case("mxf4nvf4", "e2m1", "e2m1", scale=s, count=n) for s, n in (("ue8m0", 2), ("ue8m0", 4), ("ue4m3", 4))]
    dense = [found[0], found[4], found[25], *found[26:]]
    return found + [Case(**{**vars(c), "sparse": True}) for c in dense]


CASES = cases()
WARPS = 3


def packed_words(matrix: np.ndarray, bits: int, place: Any, elements: int) -> np.ndarray:
    """uint64 [register, lane]."""
    each = 32 // bits
    out = np.zeros((elements // each, 32), np.uint64)
    for lane, i in np.ndindex(32, elements):
        out[i // each, lane] |= np.uint64(int(matrix[place(lane, i)]) << bits * (i % each))
    return out


@pytest.fixture(scope="module")
def emulator() -> Any:
    return open_device("emulator")


def text(case: Case, ids: tuple[int, int, int, int]) -> str:
    nc = 4 if case.d == "f32" else 2
    nb = 4 if case.sparse else 2
    tc = "f32" if case.d == "f32" else "b32"
    at = 4 + nb + nc
    operands = [names("y", 0, nc), names("x", 0, 4), names("x", 4, nb), names("x", 4 + nb, nc)]
    if case.sparse:
        operands += [f"%x{at}", "0x0"]
        at += 1
    if case.scale:
        operands += [f"%x{at}", f"{{{ids[0]}, {ids[1]}}}", f"%x{at + 1}", f"{{{ids[2]}, {ids[3]}}}"]
        at += 2
    inputs = ["b32"] * (4 + nb) + [tc] * nc + ["b32"] * (at - 4 - nb - nc)
    return program(f"{case.opcode} {', '.join(operands)};", inputs, [tc] * nc, target="sm_120a", version="9.1")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products(emulator, case):
    rng = np.random.default_rng(CASES.index(case))
    bits, kept = (
        (4, case.k // 2 if case.sparse else case.k) if case.packed else (8, case.k // 2 if case.sparse else case.k)
    )
    per = 32 // bits
    step = {0: 1, 1: 1, 2: 2, 4: 4}[case.count]
    ids = int(rng.integers(0, 4 // step)) * step, int(rng.integers(2)), int(rng.integers(0, 4 // step)) * step, 3
    registers, wanted = [], []
    for _ in range(WARPS):
        a, b = (rng.integers(0, 1 << bits, (rows, size)).astype(np.uint8) for rows, size in ((16, kept), (8, case.k)))
        c = (rng.standard_normal((16, 8)) * 8).astype(np.float32 if case.d == "f32" else np.float16)
        c_bits = c.view(np.uint32 if case.d == "f32" else np.uint16)
        c_words = packed_words(c_bits, 8 * c.itemsize, _c, 4)
        parts = [
            packed_words(a, bits, _a_two_blocks(per), 16 * kept // 32),
            packed_words(b.T, bits, _b(per), case.k * 8 // 32),
            c_words,
        ]
        more: dict[str, Any] = {}
        if case.sparse:
            ordered = [s for s in SELECTORS if s != 6]
            nibbles = rng.choice(ordered, (16, case.k // (8 if case.packed else 4))).astype(np.uint8)
            words = np.zeros(32, np.uint64)
            for (row, chunk), nibble in np.ndenumerate(nibbles):
                lane, bit = holder("u4" if case.packed else "u8", case.k, 0, row, chunk)
                words[lane] |= np.uint64(int(nibble) << bit)
            parts.append(words[None])
            a, more["kept"] = expand_sparse(case.kind, a, nibbles)
        if case.scale:
            data = rng.integers(120, 135, (2, 32, 4)) if case.scale == "ue8m0" else rng.integers(0, 0x7F, (2, 32, 4))
            parts.append(data.astype(np.uint8).view(np.uint32).reshape(2, 32).astype(np.uint64))
            lanes = [4 * (row % 8) + 2 * ids[1] + row // 8 for row in range(16)]
            more["scale_a"] = data[0, lanes, ids[0] : ids[0] + case.count].astype(np.uint8)
            more["scale_b"] = data[1, 4 * np.arange(8) + ids[3], ids[2] : ids[2] + case.count].astype(np.uint8)
            more |= {"scale_type": case.scale, "block": kept // case.count}
        read = [("e2m3" if t == "e2m1" and not case.packed else t) for t in (case.a, case.b)]
        wanted.append(products(case.kind, a, b, c_bits, a_type=read[0], b_type=read[1], d_type=case.d, **more))
        registers.append(np.concatenate(parts))
    got = run(emulator, text(case, ids), np.concatenate(registers, axis=1), len(c_words), block=32 * WARPS)
    for w, want in enumerate(wanted):
        words = packed_words(want, 8 * want.itemsize, _c, 4)
        np.testing.assert_array_equal(got[:, 32 * w : 32 * w + 32], words)


def test_e2m1_in_a_container_is_its_central_four_bits():
    """Six times six, 0b0111 in bits 2 to 5."""
    six = np.full((1, 1), 0b0111 << 2, np.uint8)
    found = products("f8f6f4", six, six, None, a_type="e2m3", b_type="e2m3", d_type="f32")
    assert found.view(np.float32)[0, 0] == 36


MX = Case("mxf4", "e2m1", "e2m1", scale="ue8m0", count=2)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ((1, 0, 0, 0), "byte-id-a is 1; scale_vec::2X takes 0, 2"),
        ((0, 2, 0, 0), "thread-id-a is 2; scale_vec::2X takes 0, 1"),
        ((0, 0, 3, 0), "byte-id-b is 3; scale_vec::2X takes 0, 2"),
        ((0, 0, 0, 4), "thread-id-b is 4; scale_vec::2X takes 0, 1, 2, 3"),
    ],
)
def test_selectors_that_ptx_leaves_undefined(emulator, ids, message):
    with pytest.raises(TrapError, match=message):
        run(emulator, text(MX, ids), np.zeros((12, 32), np.uint64), 4)


def test_selectors_in_registers(emulator):
    """PTX also accepts 16-bit registers; their values must be the same in all lanes of a warp."""
    given = np.zeros((12, 32), np.uint64)
    given[:6], given[10:] = 0x22222222, 0x7F7F8180
    body = text(MX, (0, 0, 2, 0))
    fixed = run(emulator, body, given, 4)
    moved = body.replace("{2, 0};", "{%h0, %h1};").replace(
        "ld.param.u64 %rd0", "mov.u16 %h0, 2; mov.u16 %h1, 0; ld.param.u64 %rd0"
    )
    assert moved != body
    np.testing.assert_array_equal(run(emulator, moved, given, 4), fixed)
    mixed = moved.replace("mov.u32 %r0, %tid.x;", "mov.u32 %r0, %tid.x; cvt.u16.u32 %h1, %r0; and.b16 %h1, %h1, 1;")
    with pytest.raises(TrapError, match="thread-id-b differs between lanes of a warp"):
        run(emulator, mixed, given, 4)


def test_the_spelling_of_cutlass(emulator):
    """The kind before the shape, and scale data in braces."""
    rng = np.random.default_rng(8)
    given = rng.integers(0, 1 << 32, (12, 32)).astype(np.uint64)
    given[6:10], given[10:] = 0x3F800000, 0x7F7F8180
    body = text(MX, (2, 1, 0, 3))
    other = body.replace(
        ".m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X",
        ".kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col",
    )
    other = other.replace("%x10, {", "{%x10}, {").replace("%x11, {", "{%x11}, {")
    assert other.count("{%x1") > body.count("{%x1")
    np.testing.assert_array_equal(run(emulator, other, given, 4), run(emulator, body, given, 4))


@pytest.mark.parametrize("case", [Case("f8f6f4", "e2m1", "e3m2"), MX], ids=str)
def test_undefined_elements_make_their_rows_undefined(emulator, case):
    """The first register of A has elements of rows 0 to 7: results 0 and 1 of every lane."""
    body = text(case, (0, 0, 0, 0)).replace("{%x0, %x1, %x2, %x3}", "{%r60, %x1, %x2, %x3}")
    given = np.full((12, 32), 0x7F7F7F7F, np.uint64)
    upper = body
    for result in ("%y0", "%y1"):
        upper = upper.replace(f"[%rd5], {result};", "[%rd5], 0f00000000;")
    run(emulator, upper, given, 4)
    with pytest.raises(PtxkitError, match="%y0|undefined|uninitialised"):
        run(emulator, body, given, 4)


def test_selectors_and_metadata_of_warps_that_do_not_take_part(emulator):
    """The second warp jumps over the instruction, with selectors and metadata that would be errors."""
    case = Case("mxf4", "e2m1", "e2m1", scale="ue8m0", count=2, sparse=True)
    rng = np.random.default_rng(9)
    given = rng.integers(0, 1 << 32, (15, 64)).astype(np.uint64)
    given[8:12], given[13:], given[12] = 0x3F800000, 0x7F7F8180, 0x44444444
    body = text(case, (2, 1, 0, 0))
    alone = run(emulator, body, given[:, :32], 4)
    given[12, 32:] = 0
    jumping = body.replace("{2, 1}", "{%h0, %h1}").replace("mma.sp", "@%p0 bra over; mma.sp", 1)
    jumping = jumping.replace("st.global.f32 [%rd5], %y0;", "over: st.global.f32 [%rd5], %y0;", 1)
    start = "mov.f32 %y0, 0f00000000; mov.f32 %y1, %y0; mov.f32 %y2, %y0; mov.f32 %y3, %y0; setp.ge.u32 %p0, %r0, 32; "
    start += "mov.u16 %h1, 1; selp.b16 %h0, 7, 2, %p0; ld.global.b32 %x0"
    jumping = jumping.replace("ld.global.b32 %x0", start, 1)
    got = run(emulator, jumping, given, 4, block=64)
    np.testing.assert_array_equal(got[:, :32], alone)
    assert not got[:, 32:].any()
