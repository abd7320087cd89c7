"""Block-scaled products and tcgen05.cp, which brings scale factors to tensor memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import oracle
import pytest
import tensor_programs
from oracle import Matrix
from tensor_programs import BASE

from ptxkit.emulator.tensor_core import tcgen05_arithmetic

D_AT, SFA_AT, SFB_AT = 0, 300, 330
A_SHARED, B_SHARED = BASE, BASE + 32768
SHARED = 98304


@dataclass(frozen=True)
class Case:
    """One instruction; ``count`` scale factors a row."""

    kind: str
    a: str
    b: str
    vector: str
    scale: str
    count: int
    m: int = 128
    n: int = 32
    group: int = 1
    sfa: int = 0
    sfb: int = 0
    k: int = 0
    target: str = "sm_100a"

    @property
    def depth(self) -> int:
        return self.k or oracle.K[self.kind]

    def matrix(self, name: str) -> Matrix:
        t, extent = (self.a, self.m) if name == "A" else (self.b, self.n)
        return Matrix(t, extent // self.group, self.depth, self.kind == "mxf8f6f4")

    @property
    def descriptor(self) -> int:
        codes = oracle.CODES if self.kind == "mxf8f6f4" else {"e2m1": 1}
        types = codes[self.a] << 7 | codes[self.b] << 10
        scales = self.sfb << 4 | (self.scale == "ue8m0") << 23 | self.sfa << 29
        return types | scales | self.n >> 3 << 17 | self.m >> 7 << 27 | (self.depth == 96) << 31

    def body(self) -> str:
        a, b = self.matrix("A").descriptor(A_SHARED), self.matrix("B").descriptor(B_SHARED)
        vector = f".{self.vector}" if self.vector else ""
        return f"""
        mov.u64 %rd30, {a}; mov.u64 %rd31, {b}; mov.u32 %r30, {D_AT}; mov.u32 %r31, {self.descriptor};
        mov.u32 %r33, {SFA_AT}; mov.u32 %r34, {SFB_AT};
        tcgen05.mma.cta_group::{self.group}.kind::{self.kind}.block_scale{vector}
            [%r30], %rd30, %rd31, %r31, [%r33], [%r34], %p6;"""


def put_factor(memory: np.ndarray, at: int, partition: int, row: int, byte: int, step: int, code: int) -> None:
    """A scale factor of ``row``: a byte of the word in lane row % 32 of a partition, column row / 32."""
    column = at + row // 32 + step * (byte // 4)
    word = int(memory[32 * partition + row % 32, column])
    shift = 8 * (byte % 4)
    memory[32 * partition + row % 32, column] = word & ~(255 << shift) | code << shift


def factor(code: int, t: str) -> float:
    if t == "ue8m0":
        return 2.0 ** (code - 127)
    return oracle.value(code, "e4m3")


def check(case: Case) -> None:
    rng = np.random.default_rng(11)
    shared, memory = oracle.noise(case.group, SHARED, 3)
    a = rng.choice(oracle.small(case.a), (case.m, case.depth))
    b = rng.choice(oracle.small(case.b), (case.n, case.depth))
    c = rng.integers(-16, 17, (case.m, case.n)).astype(np.float64)
    codes = [125, 126, 127, 128, 129] if case.scale == "ue8m0" else [0x30, 0x34, 0x38, 0x3C, 0x40]
    sfa, sfb = rng.choice(codes, (case.m, case.count)), rng.choice(codes, (case.n, case.count))
    where = list(oracle.places(case.m, case.n, case.group))
    oracle.scattered(memory, D_AT, oracle.bits(c, "f32"), where)
    halved = case.group == 2 and case.m == 128
    width = case.n // 2 if halved else case.n
    for cta in range(case.group):
        rows, columns = case.m // case.group, case.n // case.group
        case.matrix("A").put(shared[cta], A_SHARED, a[cta * rows : (cta + 1) * rows])
        case.matrix("B").put(shared[cta], B_SHARED, b[cta * columns : (cta + 1) * columns])
        for partition in range(4):
            for row, s in np.ndindex(rows, case.count):
                put_factor(memory[cta], SFA_AT, partition, row, case.sfa + s, 4, int(sfa[cta * rows + row, s]))
            first = width * (partition // 2) if halved else 0
            for n, s in np.ndindex(width, case.count):
                put_factor(
                    memory[cta], SFB_AT, partition, n, case.sfb + s, 4 * -(-width // 128), int(sfb[first + n, s])
                )
    decode = np.vectorize(lambda code: factor(int(code), case.scale))
    block = case.depth // case.count
    left = oracle.values(a, case.a) * np.repeat(decode(sfa), block, 1)
    right = oracle.values(b, case.b) * np.repeat(decode(sfb), block, 1)
    expected = memory.copy()
    oracle.scattered(expected, D_AT, oracle.bits(left @ right.T + c, "f32"), where)
    got = tensor_programs.run(case.body(), shared, memory, target=case.target)
    np.testing.assert_array_equal(got, expected)


CASES = [
    Case("mxf8f6f4", "e4m3", "e5m2", "", "ue8m0", 1),
    Case("mxf8f6f4", "e2m1", "e3m2", "scale_vec::1X", "ue8m0", 1, sfa=2, sfb=3),
    Case("mxf8f6f4", "e4m3", "e4m3", "block32", "ue8m0", 1, m=256, n=160, group=2, sfa=1),
    Case("mxf8f6f4", "e4m3", "e4m3", "block32", "ue8m0", 1, m=128, n=128, group=2, sfb=1),
    Case("mxf4", "e2m1", "e2m1", "", "ue8m0", 2),
    Case("mxf4", "e2m1", "e2m1", "block32", "ue8m0", 2, sfa=2),
    Case("mxf4nvf4", "e2m1", "e2m1", "scale_vec::2X", "ue8m0", 2, sfb=2),
    Case("mxf4nvf4", "e2m1", "e2m1", "scale_vec::4X", "ue4m3", 4),
    Case("mxf4nvf4", "e2m1", "e2m1", "block16", "ue8m0", 4, m=256, n=64, group=2),
    Case("mxf4nvf4", "e2m1", "e2m1", "block16", "ue4m3", 6, k=96, sfa=2, target="sm_103a"),
    Case("mxf4", "e2m1", "e2m1", "block32", "ue8m0", 3, k=96, sfb=3, target="sm_103a"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_scaled_products(case):
    if case.kind not in tcgen05_arithmetic.KINDS:
        pytest.skip("the arithmetic of this kind is not there")
    check(case)


COPIES = {
    "128x256b": (128, 32, lambda lane: lane),
    "128x128b": (128, 16, lambda lane: lane),
    "4x256b": (4, 32, lambda lane: (lane - 5) // 32 if lane % 32 == 5 else None),
    "64x128b.warpx2::02_13": (64, 16, lambda lane: lane % 64),
    "64x128b.warpx2::01_23": (64, 16, lambda lane: lane // 64 * 32 + lane % 32),
    "32x128b.warpx4": (32, 16, lambda lane: lane % 32),
}


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("narrow", ["", ".b8x16.b4x16_p64", ".b8x16.b6x16_p32"])
@pytest.mark.parametrize("shape", COPIES)
def test_copies(shape, narrow, group):
    rows, nbytes, row_of = COPIES[shape]
    shared, memory = oracle.noise(group, 16384, 8)
    t = {"": "u8", ".b8x16.b4x16_p64": "e2m1", ".b8x16.b6x16_p32": "e3m2"}[narrow]
    matrix = Matrix(t, rows, nbytes, True, swizzle=0 if rows == 32 else 32)
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 1 << oracle.BITS[t], (group, rows, nbytes))
    at = 40 | (5 << 16 if rows == 4 else 0)
    body = f"""mov.u64 %rd30, {matrix.descriptor(BASE)}; mov.u32 %r30, {at};
        tcgen05.cp.cta_group::{group}.{shape}{narrow} [%r30], %rd30;"""
    expected = memory.copy()
    for cta in range(group):
        matrix.put(shared[cta], BASE, codes[cta])
        held = codes[cta] << {"u8": 0, "e2m1": 2, "e3m2": 1}[t]
        words = np.ascontiguousarray(held.astype(np.uint8)).view(np.uint32)
        for lane in range(128):
            row = row_of(lane)
            if row is not None:
                expected[cta, lane, 40 : 40 + nbytes // 4] = words[row]
    got = tensor_programs.run(body, shared, memory)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("group", [1, 2])
def test_a_shift_moves_the_rows_of_one_partition(group):
    shared, memory = oracle.noise(group, 16, 8)
    got = tensor_programs.run(
        f"mov.u32 %r30, {64 << 16 | 8}; tcgen05.shift.cta_group::{group}.down [%r30];", shared, memory
    )
    expected = memory.copy()
    expected[:, 64:95, 8:16] = memory[:, 65:96, 8:16]
    np.testing.assert_array_equal(got, expected)
