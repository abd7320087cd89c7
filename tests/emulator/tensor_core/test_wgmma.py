"""wgmma compared with exact integer products; shared memory is filled by the manual's canonical layouts, element by element."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_programs import BITS, DTYPES, as_float, integers, names, pack, program, to_bits, unpack

from ptxkit.compiler import assemble
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import MemoryFault, RaceError
from ptxkit.runtime.emulated import EmulatedDevice

TILE_A, TILE_B = 16384, 32768
"""Bytes for A, and for B after it: together the most that static shared memory can be."""

SWIZZLE_BITS = {0: 0, 128: 1, 64: 2, 32: 3}


@dataclass(frozen=True)
class Case:
    """One instruction. ``swizzle_*`` in bytes, 0 for none; ``slice_*``: how many K steps after the start of the tile.

    ``offset``: bytes before the tile of A, for patterns that do not start at a multiple of their size.
    """

    n: int
    td: str
    ta: str
    tb: str
    swizzle_a: int = 128
    swizzle_b: int = 128
    trans_a: int = 0
    trans_b: int = 0
    slice_a: int = 0
    slice_b: int = 0
    in_registers: bool = False
    scale_a: int = 1
    scale_b: int = 1
    scale_d: str = "1"
    satfinite: bool = False

    @property
    def k(self) -> int:
        return 256 // BITS[self.ta]

    def __str__(self) -> str:
        left = "registers" if self.in_registers else f"{'mn' if self.trans_a else 'k'}{self.swizzle_a}+{self.slice_a}"
        right = f"{'mn' if self.trans_b else 'k'}{self.swizzle_b}+{self.slice_b}"
        return (
            f"n{self.n}-{self.td}-{self.ta}-{self.tb}-{left}-{right}-{self.scale_a}-{self.scale_b}-{self.scale_d}"
            + ("-sat" if self.satfinite else "")
        )

    @property
    def opcode(self) -> str:
        infix = ".satfinite" if self.satfinite else ""
        suffix = ".and.popc" if self.ta == "b1" else ""
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}{infix}.{self.td}.{self.ta}.{self.tb}{suffix}"


@dataclass(frozen=True)
class Layout:
    """Canonical layout of a tile of 16-byte chunks (PTX ISA, "Canonical Layouts"), with strides that fit its extent."""

    swizzle: int
    trans: int
    extent: int

    @property
    def strides(self) -> tuple[int, int]:
        """Leading and stride dimension byte offsets: neither is the smallest possible one."""
        w = self.swizzle
        if self.trans:
            if w == 0:
                return 16 * self.extent + 128, 128  # LBO between groups of 8 k, SBO between groups of 8 along M or N
            return 8 * w, 8 * w * (self.extent * 2 // w + 1)  # LBO between pattern columns, SBO between groups of 8 k
        if w == 0:
            return 128 * (self.extent // 8) + 128, 128
        return 16, 8 * w

    def byte(self, mn: int, k: int, bits: int) -> int:
        """Offset of element (mn, k) before swizzling; for elements smaller than a byte, that of its byte."""
        w, (leading, stride) = self.swizzle, self.strides
        t = 128 // bits  # elements in a chunk
        if self.trans:
            s = w // 16
            if w == 0:
                return mn % t * bits // 8 + mn // t * stride + k % 8 * 16 + k // 8 * leading
            return mn % t * bits // 8 + mn // t % s * 16 + mn // (t * s) * leading + k % 8 * w + k // 8 * stride
        if w == 0:
            return mn % 8 * 16 + mn // 8 * stride + k % t * bits // 8 + k // t * leading
        return mn % 8 * w + mn // 8 * stride + k * bits // 8

    def advance(self, steps: int, bits: int) -> int:
        """Start address of a K slice of 256 bits."""
        return self.byte(0, steps * 256 // bits, bits)

    def swizzled(self, address: int) -> int:
        if self.swizzle == 0:
            return address
        return address ^ ((address >> 7) & (self.swizzle // 16 - 1)) << 4

    def descriptor(self, address: int) -> int:
        leading, stride = self.strides
        return address >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | SWIZZLE_BITS[self.swizzle] << 62


def image(layout: Layout, matrix: np.ndarray, t: str, steps: int, size: int) -> np.ndarray:
    """uint8 [size]: shared memory with ``matrix``, (MN, K), as the K slice number ``steps``; random bytes elsewhere."""
    out = np.random.default_rng(7).integers(0, 256, size).astype(np.uint8)
    bits = BITS[t]
    values = to_bits(matrix, t)
    if bits == 1:
        values = np.packbits(matrix, axis=-1, bitorder="little").astype(np.uint64)
        bits = 8
    for mn, k in np.ndindex(values.shape):
        at = layout.byte(mn, k + steps * values.shape[1], bits)
        for byte in range(bits // 8):
            out[layout.swizzled(at + byte)] = int(values[mn, k]) >> 8 * byte & 255
    return out


COPY = """
mov.u32 %r10, tile; mov.u32 %r11, %r0; mov.u32 %r15, {words}; mov.u32 %r16, %ctaid.x; mul.lo.u32 %r16, %r15, %r16;
mul.lo.u32 %r17, %r3, {skip}; add.u32 %r16, %r16, %r17; mul.wide.u32 %rd10, %r16, 4; add.u64 %rd10, %rd10, %rd0;
fill: mul.wide.u32 %rd11, %r11, 4; add.u64 %rd11, %rd11, %rd10; ld.global.b32 %r12, [%rd11];
shl.b32 %r13, %r11, 2; add.u32 %r13, %r13, %r10; st.shared.b32 [%r13], %r12; add.u32 %r11, %r11, %r1;
setp.lt.u32 %p0, %r11, %r15; @%p0 bra fill;
fence.proxy.async.shared::cta; bar.sync 0;
shr.u32 %r18, %r10, 4; cvt.u64.u32 %rd12, %r18;
"""
"""Copies each CTA's words of shared memory from after the register inputs; %rd12 is the tile's encoded address."""


def text(case: Case, extra: str = "", more_inputs: int = 0) -> str:
    count = case.n * 64 * BITS[case.td] // (128 * 32)
    a, b = layouts(case)
    bits = BITS[case.ta] if case.ta != "b1" else 1
    inputs = 4 if case.in_registers else 0
    da = a.descriptor(a.advance(case.slice_a, bits))
    db = b.descriptor(TILE_A + b.advance(case.slice_b, bits))
    register = "f32" if case.td == "f32" else "b32"
    left = names("x", 0, 4) if case.in_registers else "%rd13"
    operands = [names("y", 0, count), left, "%rd14", case.scale_d]
    if case.td != "s32":
        operands += [str(case.scale_a), str(case.scale_b)]
    if case.ta in ("f16", "bf16"):
        operands += ([] if case.in_registers else [str(case.trans_a)]) + [str(case.trans_b)]
    loads = "\n".join(f"mov.b32 %y{k}, %x{inputs + k};" for k in range(count))
    body = f"""
    add.u64 %rd13, %rd12, {da}; add.u64 %rd14, %rd12, {db};
    setp.eq.u32 %p1, %r10, %r10; setp.ne.u32 %p2, %r10, %r10;
    {loads}
    wgmma.fence.sync.aligned;
    {case.opcode} {", ".join(operands)};
    {extra}
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    """
    before = COPY.format(words=(TILE_A + TILE_B) // 4, skip=inputs + count + more_inputs)
    source = ["b32"] * inputs + [register] * count + ["b32"] * more_inputs
    return program(body, source, [register] * count, shared=TILE_A + TILE_B, before=before, version="8.4")


def layouts(case: Case) -> tuple[Layout, Layout]:
    return Layout(case.swizzle_a, case.trans_a, 64), Layout(case.swizzle_b, case.trans_b, case.n)


def place_a(case: Case) -> Any:
    """Fragment of A for one warp: the mma.m16n8 layout (PTX ISA, "Matrix Fragments for wgmma.mma_async")."""
    per = max(1, 32 // BITS[case.ta])
    return lambda lane, i: (
        lane // 4 + (8 if i // per % 2 else 0),
        lane % 4 * per + i % per + (4 * per if i >= 2 * per else 0),
    )


def place_d(lane: int, i: int) -> tuple[int, int]:
    """d_i: row lane / 4, plus 8 for the second pair of each four; column 8 (i / 4) + 2 (lane % 4) + i % 2."""
    return lane // 4 + (8 if i % 4 >= 2 else 0), 8 * (i // 4) + lane % 4 * 2 + i % 2


def matrices(case: Case, ctas: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A per warpgroup when in registers, else per CTA; B, as (N, K), per CTA; C per warpgroup, two in each CTA."""
    rng = np.random.default_rng(case.n)
    count = 2 * ctas if case.in_registers else ctas
    a = integers(rng, (count, 64, case.k), case.ta, 4)
    b = integers(rng, (ctas, case.n, case.k), case.tb, 4)
    c = rng.integers(-50, 50, (2 * ctas, 64, case.n)).astype(DTYPES[case.td])
    if case.td == "s32":
        c[0, :8], c[1, :8] = 2**31 - 3, -(2**31) + 3
    return a, b, c


def inputs(case: Case, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The kernel's input: registers [input, thread], then the shared memory of each CTA, as rows of threads."""
    columns = []
    for g in range(len(c)):
        for w in range(4):
            rows = slice(16 * w, 16 * w + 16)
            parts = []
            if case.in_registers:
                parts.append(pack(a[g, rows], case.ta, place_a(case), 16 * case.k // 32))
            parts.append(pack(c[g, rows], case.td, place_d, 16 * case.n // 32))
            columns.append(np.concatenate(parts))
    layout_a, layout_b = layouts(case)
    images = []
    for cta in range(len(b)):
        left = (
            np.zeros(TILE_A, np.uint8) if case.in_registers else image(layout_a, a[cta], case.ta, case.slice_a, TILE_A)
        )
        images += [left, image(layout_b, b[cta], case.tb, case.slice_b, TILE_B)]
    memory = np.concatenate(images).view(np.uint32).astype(np.uint64)
    return np.concatenate([np.concatenate(columns, axis=1), memory.reshape(-1, 128 * len(c))])


def execute(device: Any, source: str, case: Case, registers: np.ndarray, ctas: int) -> np.ndarray:
    """D of each warpgroup."""
    count = case.n * 64 * BITS[case.td] // (128 * 32)
    loaded = device.load(assemble(source, target="sm_90a", name="wgmma.ptx", cubin=device.kind == "gpu"))
    words = device.upload(np.ascontiguousarray(registers.astype(np.uint32)))
    out = device.upload(np.full((count, 256 * ctas), 0xCBCBCBCB, np.uint32))
    loaded["k"](words, out, grid=ctas, block=256)
    device.synchronize()
    return unpacked(case, out.numpy().astype(np.uint64))


def unpacked(case: Case, words: np.ndarray) -> np.ndarray:
    warps = [
        unpack(words[:, 32 * w : 32 * w + 32], case.td, place_d, case.n // 2, (16, case.n))
        for w in range(words.shape[1] // 32)
    ]
    return np.stack(warps).reshape(-1, 64, case.n)


def expected(case: Case, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    a = a if case.in_registers else np.repeat(a, 2, 0)
    b = np.repeat(b, 2, 0)
    product = as_float(a) @ as_float(b).transpose(0, 2, 1) * case.scale_a * case.scale_b
    total = product + (as_float(c) if case.scale_d in ("1", "%p1") else 0)
    if case.td != "s32":
        return total.astype(DTYPES[case.td])
    total = total.astype(np.int64)
    return np.clip(total, -(2**31), 2**31 - 1).astype(np.int32) if case.satfinite else total.astype(np.int32)


def cases() -> list[Case]:
    found = []
    plain = Case(64, "f32", "bf16", "bf16")
    for (wa, wb), (ta, tb) in itertools.product(
        [(128, 128), (64, 32), (32, 64), (0, 0), (0, 128)], itertools.product((0, 1), repeat=2)
    ):
        found.append(replace(plain, swizzle_a=wa, swizzle_b=wb, trans_a=ta, trans_b=tb))
    found += [replace(plain, slice_a=s, slice_b=3 - s) for s in range(4)]
    found += [replace(plain, swizzle_a=64, swizzle_b=64, slice_a=1, slice_b=1), replace(plain, swizzle_b=0, slice_b=2)]
    found += [replace(plain, trans_a=1, trans_b=1, slice_a=1, slice_b=2)]
    found += [replace(plain, n=n) for n in (8, 24, 128, 200, 256)]
    found += [replace(plain, n=256, trans_b=1), replace(plain, n=40, swizzle_b=0, trans_b=1)]
    found += [replace(plain, in_registers=True, trans_b=t, n=32) for t in (0, 1)]
    found += [replace(plain, n=16, scale_a=x, scale_b=y) for x, y in ((-1, 1), (1, -1), (-1, -1))]
    found += [replace(plain, n=16, scale_a=-1, in_registers=True)]
    found += [replace(plain, n=16, scale_d=p) for p in ("%p1", "%p2", "0")]
    for td in ("f16", "f32"):
        f16 = Case(48, td, "f16", "f16")
        found += [
            f16,
            replace(f16, in_registers=True),
            replace(f16, trans_a=1, trans_b=1, swizzle_a=64),
            replace(f16, scale_d="%p2"),
        ]
    found += [replace(Case(72, "f32", "tf32", "tf32"), in_registers=r, slice_a=1 - r) for r in (False, True)]
    for td, ta, tb in itertools.product(("f16", "f32"), ("e4m3", "e5m2"), ("e4m3", "e5m2")):
        found.append(Case(24, td, ta, tb, swizzle_b=32, in_registers=ta == tb))
    for ta, tb, sat in itertools.product(("s8", "u8"), ("s8", "u8"), (False, True)):
        found.append(Case(48 if sat else 24, "s32", ta, tb, in_registers=ta == tb, satfinite=sat, slice_b=1))
    found += [Case(32, "s32", "b1", "b1", swizzle_a=0), Case(8, "s32", "b1", "b1", in_registers=True, scale_d="%p2")]
    return found


@pytest.mark.parametrize("case", cases(), ids=str)
def test_integers_are_exact(device, case):
    a, b, c = matrices(case, 2)
    got = execute(device, text(case), case, inputs(case, a, b, c), 2)
    np.testing.assert_array_equal(got, expected(case, a, b, c))


KINDS = [("f16", "f16", "f16"), ("f32", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32")]
KINDS += [(d, a, b) for d in ("f16", "f32") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]
KINDS += [("s32", a, b) for a in ("s8", "u8") for b in ("s8", "u8")] + [("s32", "b1", "b1")]


@st.composite
def any_case(draw: Any) -> Case:
    """A random type, size, majorness, swizzle and K slice that fit the tiles."""
    td, ta, tb = draw(st.sampled_from(KINDS))
    n = draw(st.sampled_from((8, 16, 24, *range(32, 257, 16)) if td == "s32" else range(8, 257, 8)))
    both, number = ta in ("f16", "bf16"), td != "s32"
    case = Case(
        n,
        td,
        ta,
        tb,
        swizzle_a=draw(st.sampled_from((0, 32, 64, 128))),
        swizzle_b=draw(st.sampled_from((0, 32, 64, 128))),
        trans_b=draw(st.integers(0, both)),
        in_registers=draw(st.booleans()),
        scale_a=draw(st.sampled_from((1, -1))) if number else 1,
        scale_b=draw(st.sampled_from((1, -1))) if number else 1,
        scale_d=draw(st.sampled_from(("1", "0", "%p1", "%p2"))),
        satfinite=ta in ("s8", "u8") and draw(st.booleans()),
    )
    case = replace(case, trans_a=0 if case.in_registers else draw(st.integers(0, both)))

    def slices(layout: Layout, size: int) -> int:
        """How many K slices the tile has: those of a swizzled row if K is along it, else as many as fit."""
        bits = BITS[ta]
        if layout.swizzle and not layout.trans:
            return layout.swizzle // 32
        return sum(layout.byte(layout.extent - 1, s * case.k - 1, bits) + 1 + bits // 8 <= size for s in range(1, 8))

    a, b = layouts(case)
    return replace(
        case, slice_a=draw(st.integers(0, slices(a, TILE_A) - 1)), slice_b=draw(st.integers(0, slices(b, TILE_B) - 1))
    )


def test_any_case_is_exact(device):
    @settings(max_examples=30, deadline=None, derandomize=device.kind == "gpu")
    @given(any_case())
    def check(case):
        a, b, c = matrices(case, 1)
        got = execute(device, text(case), case, inputs(case, a, b, c), 1)
        np.testing.assert_array_equal(got, expected(case, a, b, c))

    check()


def test_a_missing_proxy_fence_is_named():
    case = Case(64, "f32", "bf16", "bf16")
    a, b, c = matrices(case, 2)
    emulator = EmulatedDevice(settings=EmulatorSettings(completion="latest-legal"))
    got = execute(emulator, text(case), case, inputs(case, a, b, c), 2)
    np.testing.assert_array_equal(got, expected(case, a, b, c))
    first_warp = text(case).replace("fence.proxy", "setp.lt.u32 %p0, %r0, 32; @%p0 fence.proxy")
    with pytest.raises(RaceError, match=r"wgmma.mma_async.*: missing-proxy-fence: .* which warp 1 .* wrote at .* st.shared"):
        execute(emulator, first_warp, case, inputs(case, a, b, c), 2)
    source = text(case).replace("fence.proxy.async.shared::cta;", "")
    with pytest.raises(MemoryFault, match=r"wgmma.mma_async.*: [AB] of .* st.shared.* no fence.proxy.async after it"):
        execute(emulator, source, case, inputs(case, a, b, c), 2)
