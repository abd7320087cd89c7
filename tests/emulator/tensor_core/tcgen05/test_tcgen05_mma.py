"""tcgen05.mma compared with exact products; shared memory is filled by the manual's canonical layouts, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import oracle
import pytest
import tensor_programs
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import BITS, CODES, Matrix
from tensor_programs import BASE

from ptxkit.errors import TrapError

D_AT, A_AT = 64, 400
"""Columns of D and of an A in tensor memory."""
A_SHARED, B_SHARED = BASE, BASE + 32768
SHARED = 98304


@dataclass(frozen=True)
class Case:
    """One instruction."""

    kind: str
    a: str
    b: str
    d: str
    m: int
    n: int
    group: int = 1
    ws: bool = False
    swizzle_a: int = 128
    swizzle_b: int = 128
    mn_a: bool = False
    mn_b: bool = False
    in_memory: bool = False
    accumulate: bool = True
    negate_a: bool = False
    negate_b: bool = False
    scale: int = 0
    disabled: tuple[int, ...] = ()
    lane: int = 0
    k_slice: int = 0

    @property
    def k(self) -> int:
        return oracle.K[self.kind]

    @property
    def padded(self) -> bool:
        return self.kind == "f8f6f4"

    def matrix(self, name: str) -> Matrix:
        t, extent, swizzle, mn = (
            (self.a, self.m, self.swizzle_a, self.mn_a) if name == "A" else (self.b, self.n, self.swizzle_b, self.mn_b)
        )
        atom32 = mn and t == "tf32"
        return Matrix(t, extent // self.group, self.k, self.padded, 128 if atom32 else swizzle, mn, atom32)

    @property
    def descriptor(self) -> int:
        dtype = {"f16": 0, "f32": 1, "s32": 2}[self.d]
        flags = self.negate_a << 13 | self.negate_b << 14 | self.mn_a << 15 | self.mn_b << 16
        types = dtype << 4 | CODES[self.a] << 7 | CODES[self.b] << 10
        return types | flags | self.n >> 3 << 17 | self.m >> 4 << 24

    def body(self) -> str:
        opcode = f"tcgen05.mma{'.ws' if self.ws else ''}.cta_group::{self.group}.kind::{self.kind}"
        a = self.matrix("A").descriptor(A_SHARED + 32 * self.k_slice)
        b = self.matrix("B").descriptor(B_SHARED + 32 * self.k_slice)
        lines = [
            f"mov.u64 %rd30, {a}; mov.u64 %rd31, {b}; mov.u32 %r30, {D_AT | self.lane << 16};",
            f"mov.u32 %r31, {self.descriptor}; mov.u32 %r32, {A_AT | self.lane << 16};",
        ]
        disabled = ""
        if self.disabled:
            disabled = "{" + ", ".join(f"%r{33 + k}" for k in range(len(self.disabled))) + "}, "
            lines += [f"mov.u32 %r{33 + k}, {word};" for k, word in enumerate(self.disabled)]
        left = "[%r32]" if self.in_memory else "%rd30"
        tail = f"{disabled}{'%p6' if self.accumulate else '%p7'}{f', {self.scale}' if self.scale else ''}"
        return "\n".join([*lines, f"{opcode} [%r30], {left}, %rd31, %r31, {tail};"])


def words(codes: np.ndarray, t: str, padded: bool) -> np.ndarray:
    """A in tensor memory, (rows, words)."""
    if BITS[t] >= 8:
        return np.ascontiguousarray(codes.astype(f"u{BITS[t] // 8}")).view(np.uint32)
    if padded:
        return np.ascontiguousarray((codes << (2 if BITS[t] == 4 else 1)).astype(np.uint8)).view(np.uint32)
    return np.ascontiguousarray((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)).view(np.uint32)


def check(case: Case, seed: int = 0, completion: str = "latest-legal") -> None:
    """Everything except D is unchanged, and D is exact."""
    rng = np.random.default_rng(seed)
    shared, memory = oracle.noise(case.group, SHARED, seed + 1)
    a = rng.choice(oracle.small(case.a), (case.m, case.k))
    b = rng.choice(oracle.small(case.b), (case.n, case.k))
    c = rng.integers(-16, 17, (case.m, case.n)).astype(np.float64)
    where = list(oracle.places(case.m, case.n, case.group, case.ws, lane=case.lane))
    oracle.scattered(memory, D_AT, oracle.bits(c, case.d), where)
    for cta in range(case.group):
        rows, columns = case.m // case.group, case.n // case.group
        mine = a[cta * rows : (cta + 1) * rows]
        case.matrix("A").put(shared[cta], A_SHARED + 32 * case.k_slice, mine)
        case.matrix("B").put(shared[cta], B_SHARED + 32 * case.k_slice, b[cta * columns : (cta + 1) * columns])
    if case.in_memory:
        packed = words(a, case.a, case.padded)
        for row, column, cta, lane, _ in where:
            if column % 8 == 0:  # each lane that computes with the row has a copy
                memory[cta, lane, A_AT : A_AT + packed.shape[1]] = packed[row]
    expected = memory.copy()
    signs = (-1 if case.negate_a else 1) * (-1 if case.negate_b else 1)
    d = signs * oracle.values(a, case.a) @ oracle.values(b, case.b).T
    if case.accumulate:
        d += c / 2**case.scale
    oracle.scattered(expected, D_AT, oracle.bits(d + 0.0, case.d), where)
    for k, word in enumerate(case.disabled):
        for lane in range(32):
            if word >> lane & 1:
                expected[k // 4, 32 * (k % 4) + lane] = memory[k // 4, 32 * (k % 4) + lane]
    got = tensor_programs.run(case.body(), shared, memory, completion=completion)
    np.testing.assert_array_equal(got, expected)


KINDS = [
    ("f16", "bf16", "bf16", "f32"),
    ("f16", "f16", "f16", "f32"),
    ("f16", "f16", "f16", "f16"),
    ("tf32", "tf32", "tf32", "f32"),
    ("f8f6f4", "e4m3", "e5m2", "f32"),
    ("f8f6f4", "e2m3", "e3m2", "f32"),
    ("f8f6f4", "e2m1", "e4m3", "f16"),
    ("i8", "s8", "u8", "s32"),
]


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_kinds(kind, completion):
    check(Case(*kind, 128, 32), completion=completion)


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize(
    "shape",
    [
        {"m": 64, "n": 16},
        {"m": 64, "n": 16, "lane": 16},
        {"m": 256, "n": 32, "group": 2},
        {"m": 128, "n": 64, "group": 2},
        {"m": 32, "n": 64, "ws": True},
        {"m": 64, "n": 64, "ws": True},
        {"m": 128, "n": 64, "ws": True},
    ],
    ids=str,
)
def test_data_paths(kind, shape):
    check(Case(*kind, **shape))
    check(Case(*kind, **shape, in_memory=True))


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_any_layout_of_shared_memory(data: Any) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    group = data.draw(st.sampled_from((1, 2)))
    swizzles = st.sampled_from((0, 32, 64, 128))
    case = Case(
        *kind,
        m=data.draw(st.sampled_from((64, 128) if group == 1 else (128, 256))),
        n=data.draw(st.sampled_from((32, 64))) * group,
        group=group,
        swizzle_a=data.draw(swizzles),
        swizzle_b=data.draw(swizzles),
        mn_a=data.draw(st.booleans()),
        mn_b=data.draw(st.booleans()),
        accumulate=data.draw(st.booleans()),
        negate_a=kind[0] != "i8" and data.draw(st.booleans()),
        negate_b=kind[0] != "i8" and data.draw(st.booleans()),
    )
    if not case.mn_a and not case.mn_b and case.swizzle_a == case.swizzle_b == 128:
        case = Case(**{**case.__dict__, "k_slice": data.draw(st.integers(0, 3))})
    check(case, data.draw(st.integers(0, 1000)))


def test_the_accumulator_is_scaled():
    check(Case("f16", "bf16", "bf16", "f32", 128, 16, scale=3))
    check(Case("tf32", "tf32", "tf32", "f32", 64, 16, scale=2))


def test_disabled_lanes_keep_what_they_have():
    check(Case("f16", "bf16", "bf16", "f32", 128, 16, disabled=(0x0000FFFF, 0, 0xFFFFFFFF, 0x80000001)))
    lanes = (1, 2, 4, 8, 16, 32, 64, 0xF0F0F0F0)
    check(Case("f16", "bf16", "bf16", "f32", 256, 32, group=2, disabled=lanes))


SPARSE_AT, LEGAL = 500, [0x4, 0x8, 0xC, 0x9, 0xD, 0x6, 0xE]


def put_metadata(
    memory: np.ndarray, case: Case, row: int, chunk: int, index: int, where: tuple[int, int], selector: int = 0
) -> None:
    """4 bits for a chunk of a row whose D is in lane ``where[1]`` of CTA ``where[0]``; the selector counts columns."""
    cta, lane = where
    if BITS[case.a] >= 16:
        # 16 rows share 16 lanes: a lane has half of K of two rows that are 8 apart
        at = lane // 16 * 16 + row % 8 + 8 * (chunk // 4)
        column, shift = SPARSE_AT + selector, 16 * (row // 8 % 2) + 4 * (chunk % 4)
    else:
        at, column, shift = lane, SPARSE_AT + chunk // 8, 4 * (chunk % 8)
    memory[cta, at, column] = int(memory[cta, at, column]) & ~(15 << shift) | index << shift


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@pytest.mark.parametrize(
    "shape",
    [
        {"m": 128, "n": 16},
        {"m": 64, "n": 16, "lane": 16},
        {"m": 256, "n": 32, "group": 2},
        {"m": 128, "n": 32, "group": 2},
        {"m": 32, "n": 64, "ws": True},
        {"m": 64, "n": 64, "ws": True},
    ],
    ids=str,
)
def test_sparse_products(kind, shape):
    check_sparse(Case(*kind, **shape))


@pytest.mark.parametrize("kind", ["f16", "tf32"])
@pytest.mark.parametrize("shape", [{"m": 64, "n": 16, "lane": 16}, {"m": 256, "n": 32, "group": 2}], ids=str)
def test_the_sparsity_selector_selects_a_column(kind, shape):
    """CUTLASS passes the even column of the metadata, and the lowest bit of its column as selector."""
    case = next(Case(*k, **shape) for k in KINDS if k[0] == kind)
    check_sparse(case, selector=1)
    with pytest.raises(TrapError, match=r"bits 0 and 1 \(sparsity selector\) are 2; only 0 and 1 are executed"):
        check_sparse(case, selector=2)
    with pytest.raises(TrapError, match="the metadata begins at column 501; with a selector it must begin at an even column"):
        check_sparse(case, selector=1, begin=SPARSE_AT + 1)


def check_sparse(case: Case, selector: int = 0, begin: int = SPARSE_AT) -> None:
    rng = np.random.default_rng(6)
    shared, memory = oracle.noise(case.group, SHARED, 9)
    depth = 2 * case.k
    stored = rng.choice(oracle.small(case.a), (case.m, case.k))
    b = rng.choice(oracle.small(case.b), (case.n, depth))
    c = rng.integers(-16, 17, (case.m, case.n)).astype(np.float64)
    where = list(oracle.places(case.m, case.n, case.group, case.ws, sparse=True, lane=case.lane))
    oracle.scattered(memory, D_AT, oracle.bits(c, case.d), where)
    single = case.kind == "tf32"
    chunks = depth // (2 if single else 4)
    indices = rng.choice([0x4, 0xE] if single else LEGAL, (case.m, chunks))
    homes = {(row, cta, lane) for row, _, cta, lane, _ in where}
    for row, cta, lane in homes:
        for chunk in range(chunks):
            put_metadata(memory, case, row, chunk, int(indices[row, chunk]), (cta, lane), selector)
    full = np.zeros((case.m, depth))
    numbers = oracle.values(stored, case.a)
    for row, chunk in np.ndindex(indices.shape):
        index = int(indices[row, chunk])
        if single:
            full[row, 2 * chunk + (index == 0xE)] = numbers[row, chunk]
        else:
            full[row, 4 * chunk + (index & 3)] = numbers[row, 2 * chunk]
            full[row, 4 * chunk + (index >> 2)] = numbers[row, 2 * chunk + 1]
    right = Matrix(case.b, case.n // case.group, depth, case.padded)
    for cta in range(case.group):
        rows, columns = case.m // case.group, case.n // case.group
        case.matrix("A").put(shared[cta], A_SHARED, stored[cta * rows : (cta + 1) * rows])
        right.put(shared[cta], B_SHARED, b[cta * columns : (cta + 1) * columns])
    expected = memory.copy()
    oracle.scattered(expected, D_AT, oracle.bits(full @ oracle.values(b, case.b).T + c, case.d), where)
    body = case.body().replace("tcgen05.mma.ws.", "tcgen05.mma.ws.sp.").replace("tcgen05.mma.cta", "tcgen05.mma.sp.cta")
    body = body.replace("%rd31, %r31,", "%rd31, [%r39], %r31,").replace(
        f"mov.u32 %r31, {case.descriptor};",
        f"mov.u32 %r31, {case.descriptor | 4 | selector}; mov.u32 %r39, {begin | case.lane << 16};",
    )
    np.testing.assert_array_equal(tensor_programs.run(body, shared, memory), expected)
