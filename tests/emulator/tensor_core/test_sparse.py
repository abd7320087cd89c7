"""mma.sp and wgmma.mma_async.sp: a dense A with half of its elements zero, compressed here by the manual's description."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import test_wgmma as dense
from matrix_programs import BITS, DTYPES, as_float, integers, names, pack, program, run, unpack

from ptxkit.emulator import Machine
from ptxkit.emulator.tensor_core import sparse
from ptxkit.errors import TrapError, UnsupportedError
from ptxkit.isa.parser import parse


@dataclass(frozen=True)
class Case:
    opcode: str
    shape: tuple[int, int, int]
    types: tuple[str, str, str]
    selector: int

    def __str__(self) -> str:
        return f"{self.opcode.removeprefix('mma.').replace('.sync.aligned', '')}-{self.selector}"


def holder(t: str, k: int, selector: int, row: int, chunk: int) -> tuple[int, int]:
    """Lane and lowest bit of the metadata of one chunk of a row, as in the manual's figures ("Tk: [m..n]")."""
    g, upper = row % 8, row // 8
    bits = BITS[t]
    if (bits, k) in (
        (16, 16),
        (32, 8),
    ):  # figures 119, 127: one lane, row g in the lower 16 bits, row g + 8 in the upper
        return 4 * g + selector, 16 * upper + 4 * chunk
    if bits >= 16:  # figures 122, 125: the lower half of the columns in the first lane of the pair
        return 4 * g + 2 * selector + chunk // 4, 16 * upper + 4 * (chunk % 4)
    if (bits, k) in ((8, 32), (4, 64)):  # figures 129, 139: rows g in the first lane of the pair, g + 8 in the second
        return 4 * g + 2 * selector + upper, 4 * chunk
    # figures 136-137, 146-147: columns of the lower half in lanes 0 and 1 of a group, of the upper half in 2 and 3
    return 4 * g + 2 * (chunk // 8) + upper, 4 * (chunk % 8)


def compress(rng: np.random.Generator, rows: int, k: int, t: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A random sparse matrix: dense (rows, k), stored elements (rows, k / 2), and nibbles of metadata (rows, chunks)."""
    width = {32: 2, 16: 4, 8: 4, 4: 8}[BITS[t]]
    full = integers(rng, (rows, k), t, 4)
    mask = np.zeros((rows, k), bool)
    nibbles = np.zeros((rows, k // width), np.int64)
    for r, c in np.ndindex(nibbles.shape):
        if width == 2:
            keep = int(rng.integers(2))
            mask[r, 2 * c + keep] = True
            nibbles[r, c] = 0b1110 if keep else 0b0100
            continue
        first, second = sorted(rng.choice(4, 2, replace=False))
        nibbles[r, c] = first | second << 2
        for p in (first, second):
            unit = width // 4
            mask[r, width * c + unit * p : width * c + unit * (p + 1)] = True
    kept = full[mask].reshape(rows, k // 2)
    return np.where(mask, full, np.zeros((), full.dtype)), kept, nibbles


def metadata(rng: np.random.Generator, nibbles: np.ndarray, t: str, k: int, selector: int) -> np.ndarray:
    """uint64 [lane]: the metadata register of a warp; random bits in lanes whose register is not read."""
    asked = np.zeros(32, np.uint64)
    words = rng.integers(0, 2**32, 32).astype(np.uint64)
    for row, chunk in np.ndindex(nibbles.shape):
        lane, bit = holder(t, k, selector, row, chunk)
        asked[lane] |= np.uint64(15 << bit)
        words[lane] = words[lane] & ~np.uint64(15 << bit) | np.uint64(int(nibbles[row, chunk]) << bit)
    assert all(int(a) in (0, 0xFFFFFFFF) for a in asked)
    return words


def place_a(t: str, k: int) -> Any:
    """The compressed A has the layout of a dense matrix of k / 2 columns."""
    per = max(1, 32 // BITS[t])
    if k // 2 == 4 * per:
        return lambda lane, i: (lane // 4 + (8 if i >= per else 0), lane % 4 * per + i % per)
    return dense.place_a(dense.Case(8, "f32", t, t))


def place_b(t: str) -> Any:
    per = max(1, 32 // BITS[t])
    return lambda lane, i: (lane % 4 * per + i % per + 4 * per * (i // per), lane // 4)


def cases() -> list[Case]:
    found = []
    variants = ("sp", "sp::ordered_metadata")

    def add(k: int, d: str, ta: str, tb: str, infix: str = "") -> None:
        selectors = 4 if (BITS[ta], k) in ((16, 16), (32, 8)) else 1 if (BITS[ta], k) in ((8, 64), (4, 128)) else 2
        for s in range(selectors):
            variant = variants[(s + k) % 2]
            opcode = f"mma.{variant}.sync.aligned.m16n8k{k}.row.col{infix}.{d}.{ta}.{tb}.{d}"
            found.append(Case(opcode, (16, 8, k), (ta, tb, d), s))

    for k, d in itertools.product((16, 32), ("f16", "f32")):
        add(k, d, "f16", "f16")
    for k in (16, 32):
        add(k, "f32", "bf16", "bf16")
    for k in (8, 16):
        add(k, "f32", "tf32", "tf32")
    for ta, tb in itertools.product(("e4m3", "e5m2"), repeat=2):
        add(64, "f32", ta, tb)
    for k, ta, tb in itertools.product((32, 64), ("s8", "u8"), ("s8", "u8")):
        add(k, "s32", ta, tb, ".satfinite" if ta == tb else "")
    for k, ta, tb in itertools.product((64, 128), ("s4", "u4"), ("s4", "u4")):
        add(k, "s32", ta, tb, "" if ta == tb else ".satfinite")
    return found


def kernel(case: Case) -> str:
    _, n, k = case.shape
    ta, tb, td = case.types
    na, nb, nc = (16 * k // 64 * BITS[ta] // 32, k * n // 32 * BITS[tb] // 32, 4 * BITS[td] // 32)
    tc = "f32" if td == "f32" else "b32"
    operands = f"{names('y', 0, nc)}, {names('x', 0, na)}, {names('x', na, nb)}, {names('x', na + nb, nc)}"
    return program(
        f"{case.opcode} {operands}, %x{na + nb + nc}, {case.selector};",
        ["b32"] * (na + nb) + [tc] * nc + ["b32"],
        [tc] * nc,
    )


@pytest.mark.parametrize("case", cases(), ids=str)
def test_mma_sp(device, case):
    m, n, k = case.shape
    ta, tb, td = case.types
    rng = np.random.default_rng(k)
    columns, wanted = [], []
    for _ in range(2):
        full, kept, nibbles = compress(rng, m, k, ta)
        b = integers(rng, (k, n), tb, 4)
        c = rng.integers(-50, 50, (m, n)).astype(DTYPES[td])
        columns.append(
            np.concatenate(
                [
                    pack(kept, ta, place_a(ta, k), m * k // 64),
                    pack(b, tb, place_b(tb), k * n // 32),
                    pack(c, td, dense.place_d, 4),
                    metadata(rng, nibbles, ta, k, case.selector)[None],
                ]
            )
        )
        wanted.append((as_float(full) @ as_float(b) + as_float(c)).astype(DTYPES[td]))
    out = run(device, kernel(case), np.concatenate(columns, axis=1), 4 * BITS[td] // 32, block=64)
    for w in range(2):
        np.testing.assert_array_equal(unpack(out[:, 32 * w : 32 * w + 32], td, dense.place_d, 4, (m, n)), wanted[w])


def emulate(text: str, word: int) -> Any:
    machine = Machine(capacity=1 << 24, workers=1)
    buffers = [machine.allocate(1 << 16) for _ in range(2)]
    for address in buffers:
        machine.write(address, np.full(1 << 14, word, np.uint32))
    params = np.array(buffers, np.uint64).tobytes()
    return machine.load(parse(text, "m.ptx"), "sm_90a").launch("k", params, grid=(1, 1, 1), block=(32, 1, 1))


@pytest.mark.parametrize(
    ("opcode", "word", "why"),
    [
        (
            "sp.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
            0x4444_4044,
            "0b0000 for chunk 2 of row 0 .* must differ",
        ),
        ("sp.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 0x4F44_4444, "0b1111 for chunk 2 of row 8"),
        (
            "sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
            0x4444_4144,
            "the lower one in the lower bits",
        ),
        ("sp.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 0x4444_4844, "0b1000 .* 0b0100 and 0b1110"),
    ],
)
def test_undefined_metadata_is_an_error(opcode, word, why):
    _, n, k = 16, 8, int(opcode.split("m16n8k")[1].split(".")[0])
    t = opcode.split(".")[-2]
    with pytest.raises(TrapError, match=why):
        emulate(kernel(Case(f"mma.{opcode}", (16, n, k), (t, t, "f32"), 0)), word)


def test_unordered_metadata_is_fine_for_plain_sp():
    emulate(
        kernel(Case("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", (16, 8, 16), ("f16", "f16", "f32"), 0)),
        0x44444144,
    )


def test_flops_are_those_of_the_elements_that_are_kept():
    case = Case("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", (16, 8, 16), ("f16", "f16", "f32"), 0)
    assert emulate(kernel(case), 0x44444444).counters.flops_by_type == {"tensor.f16": 16 * 8 * 16}


def test_a_selector_out_of_range_is_refused():
    case = Case("mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", (16, 8, 32), ("f16", "f16", "f32"), 2)
    with pytest.raises(UnsupportedError, match="selector 2; this form takes 0 to 1"):
        emulate(kernel(case), 0x44444444)


SPARSE_F16 = (
    "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%y0, %y1, %y2, %y3}, {%x0, %x1, %x2, %x3}, "
    "{%x4, %x5, %x6, %x7}, {%x8, %x9, %x10, %x11}, %x12, 0;"
)


@pytest.mark.parametrize("left_out", [0x3C003C00, 0x7E007E00, 0x7C007C00], ids=["one", "nan", "infinity"])
def test_an_element_of_b_counts_only_where_a_is_stored(device, left_out):
    """Every chunk of A keeps elements 0 and 1, which are 1; B is 1 in those rows, and ``left_out`` in the two others."""
    text = program(SPARSE_F16, ["b32"] * 8 + ["f32"] * 4 + ["b32"], ["f32"] * 4, target="sm_90a", version="8.7")
    given = np.zeros((13, 32), np.uint64)
    given[:4] = 0x3C003C00
    given[4:8] = np.where(np.arange(32) % 2 == 1, left_out, 0x3C003C00)  # a word holds rows 2 t and 2 t + 1
    given[12] = 0x44444444
    assert set(run(device, text, given, 4).reshape(-1).tolist()) == {0x41800000}  # 16.0


def test_rows_of_a_leave_out_different_elements_of_b():
    a = np.array([[[1, 2, 0, 0], [0, 0, 3, 4]]], np.float32)
    b = np.array([[[np.nan], [1], [10], [np.inf]]], np.float32)
    found = sparse.product(lambda a, b, c: a @ b + c, a, a != 0, b, np.zeros((1, 2, 1), np.float32))
    assert np.isnan(found[0, 0, 0]) and found[0, 1, 0] == np.inf
    b[0, 0], b[0, 3] = 5, np.nan
    found = sparse.product(lambda a, b, c: a @ b + c, a, a != 0, b, np.ones((1, 2, 1), np.float32))
    assert found[0, 0, 0] == 8 and np.isnan(found[0, 1, 0])


# -- wgmma -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WideCase(dense.Case):
    selector: int = 0

    @property
    def k(self) -> int:
        return 512 // BITS[self.ta]

    @property
    def opcode(self) -> str:
        return super().opcode.replace("mma_async", "mma_async.sp")

    def __str__(self) -> str:
        return f"{super().__str__()}-s{self.selector}"


def wide_cases() -> list[WideCase]:
    bf16 = WideCase(32, "f32", "bf16", "bf16")
    found = [
        bf16,
        WideCase(32, "f32", "bf16", "bf16", selector=1),
        WideCase(16, "f32", "bf16", "bf16", in_registers=True, trans_b=1),
        WideCase(64, "f32", "bf16", "bf16", trans_a=1, trans_b=1, swizzle_a=64),
        WideCase(24, "f16", "f16", "f16", swizzle_a=32, swizzle_b=64, scale_d="%p2"),
        WideCase(24, "f16", "f16", "f16", in_registers=True, scale_a=-1, selector=1),
        WideCase(40, "f32", "tf32", "tf32", swizzle_a=0, swizzle_b=0),
        WideCase(40, "f32", "tf32", "tf32", in_registers=True, selector=1),
    ]
    for td, (ta, tb) in itertools.product(("f16", "f32"), itertools.product(("e4m3", "e5m2"), repeat=2)):
        found.append(WideCase(16, td, ta, tb, in_registers=ta == tb))
    for ta, tb in itertools.product(("s8", "u8"), repeat=2):
        found.append(WideCase(32, "s32", ta, tb, in_registers=ta == tb, satfinite=ta != tb))
    return found


@pytest.mark.parametrize("case", wide_cases(), ids=str)
def test_wgmma_sp(device, case):
    rng = np.random.default_rng(case.n)
    ctas = 2
    full, kept, words = [], [], []
    for _ in range(2 * ctas if case.in_registers else ctas):
        parts = [compress(rng, 16, case.k, case.ta) for _ in range(4)]
        full.append(np.concatenate([p[0] for p in parts]))
        kept.append(np.concatenate([p[1] for p in parts]))
        # one A for both warpgroups of a CTA where it is in shared memory, and then one set of metadata
        group = np.concatenate([metadata(rng, p[2], case.ta, case.k, case.selector) for p in parts])
        words += [group] if case.in_registers else [group, group]
    b = integers(rng, (ctas, case.n, case.k), case.tb, 4)
    c = rng.integers(-50, 50, (2 * ctas, 64, case.n)).astype(DTYPES[case.td])
    if case.in_registers:
        columns = []
        for g, w in np.ndindex(2 * ctas, 4):
            rows = slice(16 * w, 16 * w + 16)
            fragment = pack(kept[g][rows], case.ta, dense.place_a(case), 16 * case.k // 64)
            columns.append(np.concatenate([fragment, pack(c[g, rows], case.td, dense.place_d, case.n // 2)]))
        registers = np.concatenate(columns, axis=1)
    else:
        warps = [(g, slice(16 * w, 16 * w + 16)) for g, w in np.ndindex(2 * ctas, 4)]
        registers = np.concatenate([pack(c[g, r], case.td, dense.place_d, case.n // 2) for g, r in warps], axis=1)
    layout_a, layout_b = dense.layouts(case)
    memory = []
    for cta in range(ctas):
        left = np.zeros(dense.TILE_A, np.uint8)
        if not case.in_registers:
            left = dense.image(layout_a, kept[cta], case.ta, 0, dense.TILE_A)
        memory += [left, dense.image(layout_b, b[cta], case.tb, 0, dense.TILE_B)]
    tail = np.concatenate(memory).view(np.uint32).astype(np.uint64).reshape(-1, 256 * ctas)
    given = np.concatenate([registers, np.concatenate(words)[None], tail])
    got = dense.execute(device, text(case), case, given, ctas)
    a = np.stack(full)
    np.testing.assert_array_equal(got, dense.expected(case, a, b, c))


def text(case: WideCase) -> str:
    """The dense kernel with one more input, the metadata, and two more operands."""
    source = dense.text(case, more_inputs=1)
    at = (4 if case.in_registers else 0) + case.n * 64 * BITS[case.td] // (128 * 32)
    return source.replace(f"%rd14, {case.scale_d}", f"%rd14, %x{at}, {case.selector}, {case.scale_d}")
