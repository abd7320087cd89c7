"""mma.sync, every dense form: matrices packed by the manual's per-element formulas, products checked in exact integers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from matrix_programs import BITS, DTYPES, Place, as_float, integers, names, pack, program, run, unpack

from ptxkit.emulator import Machine
from ptxkit.errors import TrapError, UnsupportedError
from ptxkit.isa.parser import parse

# PTX ISA, "Matrix Fragments for mma.<shape>": one line per figure, a/b/c as functions of lane and element


def _a_one_block(per: int) -> Place:
    """Two rows of ``per`` neighbours: a_i with i < per in row g, the others in row g + 8."""
    return lambda lane, i: (lane // 4 + (8 if i >= per else 0), lane % 4 * per + i % per)


def _a_two_blocks(per: int) -> Place:
    """Row g for 0 <= i < per or 2 per <= i < 3 per; columns from 4 per on for i >= 2 per."""

    def place(lane: int, i: int) -> tuple[int, int]:
        low = i < per or 2 * per <= i < 3 * per
        return lane // 4 + (0 if low else 8), lane % 4 * per + i % per + (4 * per if i >= 2 * per else 0)

    return place


def _a_eight_rows(per: int) -> Place:
    return lambda lane, i: (lane // 4, lane % 4 * per + i)


def _a_f64_k16(lane: int, i: int) -> tuple[int, int]:
    return (lane // 4, 2 * i + lane % 4) if i % 2 == 0 else (lane // 4 + 8, 2 * i - 2 + lane % 4)


def _b(per: int) -> Place:
    """Rows t per + i % per, another 4 per for each further register; column g."""
    return lambda lane, i: (lane % 4 * per + i % per + 4 * per * (i // per), lane // 4)


def _c(lane: int, i: int) -> tuple[int, int]:
    return lane // 4 + (0 if i < 2 else 8), lane % 4 * 2 + (i & 1)


@dataclass(frozen=True)
class Case:
    opcode: str
    shape: tuple[int, int, int]
    types: tuple[str, str, str]
    a: Place
    b: Place

    def __str__(self) -> str:
        return self.opcode.removeprefix("mma.sync.aligned.")


def cases() -> list[Case]:
    found = []

    def add(m: int, k: int, d: str, ta: str, tb: str, suffix: str = "", infix: str = "") -> None:
        per = max(1, 32 // BITS[ta])
        opcode = f"mma.sync.aligned.m{m}n8k{k}.row.col{infix}.{d}.{ta}.{tb}.{d}{suffix}"
        blocks = k // (4 * per)
        a = _a_eight_rows(per) if m == 8 else _a_one_block(per) if blocks == 1 else _a_two_blocks(per)
        if blocks == 4:
            a = _a_f64_k16
        found.append(Case(opcode, (m, 8, k), (ta, tb, d), a, _b(per)))

    for k in (8, 16):
        for d in ("f16", "f32"):
            add(16, k, d, "f16", "f16")
        add(16, k, "f32", "bf16", "bf16")
    for k in (4, 8):
        add(16, k, "f32", "tf32", "tf32")
    for k, d, ta, tb in itertools.product((16, 32), ("f16", "f32"), ("e4m3", "e5m2"), ("e4m3", "e5m2")):
        add(16, k, d, ta, tb)
    for m, k in ((8, 4), (16, 4), (16, 8), (16, 16)):
        add(m, k, "f64", "f64", "f64")
    add(16, 8, "f64", "f64", "f64", suffix=".rz")
    for (m, k), ta, tb, infix in itertools.product(
        ((8, 16), (16, 16), (16, 32)), ("s8", "u8"), ("s8", "u8"), ("", ".satfinite")
    ):
        add(m, k, "s32", ta, tb, infix=infix)
    for (m, k), ta, tb, infix in itertools.product(
        ((8, 32), (16, 32), (16, 64)), ("s4", "u4"), ("s4", "u4"), ("", ".satfinite")
    ):
        add(m, k, "s32", ta, tb, infix=infix)
    for (m, k), op in itertools.product(((8, 128), (16, 128), (16, 256)), ("and", "xor")):
        add(m, k, "s32", "b1", "b1", suffix=f".{op}.popc")
    return found


def kernel(case: Case, count: tuple[int, int, int]) -> str:
    tc = {"f32": "f32", "f64": "f64"}.get(case.types[2], "b32")
    ta = "f64" if case.types[0] == "f64" else "b32"
    na, nb, nc = count
    operands = ", ".join(
        (names("y", 0, nc), names("x", 0, na), names("x", na, nb), names("x", na + nb, nc)),
    )
    return program(
        f"{case.opcode} {operands};", [ta] * (na + nb) + [tc] * nc, [tc] * nc, wide=ta == "f64", target="sm_90a"
    )


def multiply(device, case: Case, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """D of one instruction on W warps; the matrices are (W, rows, columns)."""
    m, n, k = case.shape
    ta, tb, td = case.types
    ea, eb, ec = m * k // 32, k * n // 32, m * n // 32
    parts = [
        np.concatenate([pack(a[w], ta, case.a, ea), pack(b[w], tb, case.b, eb), pack(c[w], td, _c, ec)])
        for w in range(len(a))
    ]
    per = [max(1, 32 // BITS[t]) for t in case.types]
    counts = (ea // per[0], eb // per[1], ec // per[2])
    wide = ta == "f64"
    out = run(
        device, kernel(case, counts), np.concatenate(parts, axis=1), counts[2], grid=2, block=16 * len(a), wide=wide
    )
    return np.stack([unpack(out[:, 32 * w : 32 * w + 32], td, _c, ec, (m, n)) for w in range(len(a))])


def expected(case: Case, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    td = case.types[2]
    if case.types[0] == "b1":
        pairs = a[..., :, :, None].astype(np.int64), b[..., None, :, :].astype(np.int64)
        product = (pairs[0] & pairs[1] if ".and." in case.opcode else pairs[0] ^ pairs[1]).sum(-2)
    else:
        product = as_float(a) @ as_float(b)
    if td != "s32":
        return (product + as_float(c)).astype(DTYPES[td])
    total = product.astype(np.int64) + c
    return (
        np.clip(total, -(2**31), 2**31 - 1).astype(np.int32) if "satfinite" in case.opcode else total.astype(np.int32)
    )


@pytest.mark.parametrize("case", cases(), ids=str)
def test_integers_are_exact(device, case):
    m, n, k = case.shape
    ta, tb, td = case.types
    rng = np.random.default_rng(k)
    a, b = integers(rng, (4, m, k), ta, 4), integers(rng, (4, k, n), tb, 4)
    c = rng.integers(-50, 50, (4, m, n)).astype(DTYPES[td])
    if td == "s32":  # two warps next to overflow
        c[2], c[3] = 2**31 - 3, -(2**31) + 3
    got = multiply(device, case, a, b, c)
    want = expected(case, a, b, c)
    np.testing.assert_array_equal(got, want)


def emulate(text: str, block: int = 64):
    machine = Machine(capacity=1 << 24, workers=1)
    buffers = [machine.allocate(1 << 16) for _ in range(2)]
    for address in buffers:
        machine.write(address, np.zeros(1 << 16, np.uint8))
    return machine.load(parse(text, "m.ptx"), "sm_90a").launch(
        "k", np.array(buffers, np.uint64).tobytes(), grid=(1, 1, 1), block=(block, 1, 1)
    )


BF16 = next(c for c in cases() if "m16n8k16" in c.opcode and "bf16" in c.opcode)


def test_flops_are_counted():
    counters = emulate(kernel(BF16, (4, 2, 4)), block=96).counters
    assert counters.flops_by_type == {"tensor.bf16": 3 * 2 * 16 * 8 * 16}
    assert counters.flops == 3 * 4096
    assert counters.by_class["mma"] == 96


def test_flops_of_a_predicated_instruction():
    zero = " ".join(f"mov.b32 %y{n}, 0;" for n in range(4))
    text = kernel(BF16, (4, 2, 4)).replace("mma.sync", f"{zero} setp.lt.u32 %p0, %r0, 32; @%p0 mma.sync")
    assert emulate(text, block=96).counters.flops == 4096


def test_a_warp_that_is_not_whole_is_an_error():
    with pytest.raises(TrapError, match=r"16 of 32 lanes execute it in the warp of thread \(32, 0, 0\)"):
        emulate(kernel(BF16, (4, 2, 4)), block=48)


@pytest.mark.parametrize(
    ("opcode", "why"),
    [
        ("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f16", "type of the result"),
        ("mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32", "does not implement"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.f16.f32", "does not implement"),
    ],
)
def test_other_forms_are_refused_before_launch(opcode, why):
    text = program(
        f"{opcode} {names('y', 0, 4)}, {names('x', 0, 4)}, {names('x', 0, 2)}, {names('y', 0, 4)};",
        ["b32"] * 4,
        ["f32"] * 4,
    )
    with pytest.raises(UnsupportedError, match=why):
        emulate(text)


@pytest.mark.parametrize("count", [(3, 2, 4), (4, 1, 4), (4, 2, 2)])
def test_a_wrong_number_of_registers_is_refused(count):
    with pytest.raises(UnsupportedError, match="registers, this form takes"):
        emulate(kernel(BF16, count))


def test_f32_sums_are_truncated_once(device):
    """1 + 3 * 2^-25 is nearer to the next float32 after 1, but the tensor core returns 1."""
    a, b, c = np.zeros((2, 16, 16), np.float32), np.zeros((2, 16, 8), np.float32), np.zeros((2, 16, 8), np.float32)
    a[0, 0, :4], b[:, :4, 0] = [1, 2**-25, 2**-25, 2**-25], 1
    a[1] = -a[0]
    got = multiply(device, BF16, a.astype(DTYPES["bf16"]), b.astype(DTYPES["bf16"]), c)
    assert got[0, 0, 0] == 1.0 and got[1, 0, 0] == -1.0
