"""Loads, stores and atomics of every type, vector and state space, executed on any device and compared bit for bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from either import Bench

THREADS = 64
_DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f16x2": np.float16, "bf16x2": ml_dtypes.bfloat16}


@pytest.fixture
def run(device) -> Bench:
    return Bench(device, "eager")


def bits(t: str) -> int:
    return 32 if t.endswith("x2") else int("".join(c for c in t if c.isdigit()))


def letter(n: int) -> str:
    return {8: "h", 16: "h", 32: "r", 64: "rd", 128: "q"}[n]


def registers(t: str, count: int, first: int) -> str:
    names = [f"%{letter(bits(t))}{first + k}" for k in range(count)]
    return names[0] if count == 1 else "{" + ", ".join(names) + "}"


SPACES = ["global", "shared", "shared::cta", "shared::cluster", "local", ""]
HEAD = (
    ".reg .b128 %q<32>; .shared .align 16 .b8 tile[{0}]; .local .align 16 .b8 own[64];"
    "mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 16; add.u64 %rd3, %rd0, %rd2; add.u64 %rd4, %rd1, %rd2;"
)


def place(space: str) -> str:
    """Puts the address of the thread's 16 bytes in the space into %rd5."""
    if space in ("shared", "shared::cta", "shared::cluster"):
        return "mov.u64 %rd5, tile; add.u64 %rd5, %rd5, %rd2;"
    if space == "local":
        return "mov.u64 %rd5, own;"
    if space == "":
        return "mov.u64 %rd5, tile; add.u64 %rd5, %rd5, %rd2; cvta.shared.u64 %rd5, %rd5;"
    return "mov.u64 %rd5, %rd4;"


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("t", "b8 u8 s8 b16 u16 s16 b32 u32 s32 f32 b64 u64 s64 f64 b128".split())
def test_what_is_stored_is_loaded(run, t, space):
    """Every vector length; with a second byte offset in the address."""
    size = bits(t) // 8
    name = f".{space}" if space else ""
    rng = np.random.default_rng(size)
    x = rng.integers(0, 256, (THREADS, 16)).astype(np.uint8)
    for count in (n for n in (1, 2, 4) if n * size <= 16):
        vector = f".v{count}" if count > 1 else ""
        body = HEAD.format(THREADS * 16) + place(space)
        moved = 16 // (count * size)
        for k in range(moved):
            at = k * count * size
            body += f"ld.global{vector}.{t} {registers(t, count, 8)}, [%rd3+{at}];"
            body += f"st{name}{vector}.{t} [%rd5+{at}], {registers(t, count, 8)};"
            body += f"ld{name}{vector}.{t} {registers(t, count, 16)}, [%rd5+{at}];"
            body += f"st.global{vector}.{t} [%rd4+{at}], {registers(t, count, 16)};"
        _, got = run(body, x, np.zeros_like(x), block=THREADS)
        np.testing.assert_array_equal(got, x, err_msg=f"{t} x{count}")


@pytest.mark.parametrize("space", ["global", "shared", "const", ""])
@pytest.mark.parametrize("t", "b8 u8 s8 b16 u16 s16 b32 u32 s32".split())
def test_a_wider_register_is_extended_as_the_type_says(run, t, space):
    """PTX ISA, "Operand Size Exceeding Instruction-Type Size": signed types extend the sign, others zeros."""
    size = bits(t) // 8
    x = np.random.default_rng(size).integers(0, 256, (THREADS, 16)).astype(np.uint8)
    constant = ", ".join(str(v) for v in x.reshape(-1))
    body = HEAD.format(THREADS * 16) + place("shared" if space == "shared" else "")
    body += "ld.global.v4.b32 {%r8, %r9, %r10, %r11}, [%rd3];"
    body += f"st{'.shared' if space == 'shared' else ''}.v4.b32 [%rd5], {{%r8, %r9, %r10, %r11}};"
    if space == "global":
        body += "mov.u64 %rd5, %rd3;"
    if space == "const":
        body += "mov.u64 %rd5, table; add.u64 %rd5, %rd5, %rd2;"
    body += f"ld{'.' + space if space else ''}.{t} %rd8, [%rd5+4]; st.global.b64 [%rd4], %rd8;"
    before = f".const .align 16 .b8 table[{THREADS * 16}] = {{{constant}}};"
    _, got = run(body, x, np.zeros((THREADS, 2), np.uint64), block=THREADS, before=before)
    value = x[:, 4 : 4 + size].copy().view(f"{'i' if t[0] == 's' else 'u'}{size}")[:, 0]
    np.testing.assert_array_equal(got[:, 0], value.astype(np.int64 if t[0] == "s" else np.uint64).view(np.uint64))


OPERATIONS = [
    *[("add", t) for t in "u32 s32 u64 f32 f64 f16 bf16 f16x2 bf16x2".split()],
    *[(op, t) for op in ("min", "max") for t in "u32 s32 u64 s64".split()],
    *[(op, t) for op in ("and", "or", "xor", "exch") for t in ("b32", "b64")],
    *[(op, "u32") for op in ("inc", "dec")],
    *[("cas", t) for t in ("b16", "b32", "b64", "b128")],
    ("exch", "b128"),
]
"""What sm_90 has, apart from vectors."""


def numpy_type(t: str) -> np.dtype:
    if t in _DTYPES:
        return np.dtype(_DTYPES[t])
    return np.dtype("V16" if t == "b128" else f"{ {'u': 'u', 'b': 'u', 's': 'i', 'f': 'f'}[t[0]] }{bits(t) // 8}")


def reference(op: str, old: np.ndarray, value: np.ndarray, compare: np.ndarray) -> np.ndarray:
    match op:
        case "add":
            return old + value
        case "min" | "max":
            return np.minimum(old, value) if op == "min" else np.maximum(old, value)
        case "and" | "or" | "xor":
            return {"and": old & value, "or": old | value, "xor": old ^ value}[op]
        case "inc":
            return np.where(old >= value, np.zeros_like(old), old + np.ones_like(old))
        case "dec":
            return np.where((old == 0) | (old > value), value, old - np.ones_like(old))
        case "exch":
            return value
        case _:
            return np.where(old == compare, value, old)


def atomic(op: str, t: str, space: str) -> tuple[str, str]:
    """``atom`` and ``red`` of the thread's cell at [%rd5]: the previous value goes to %x16, the operands are in %x8 and
    %x10."""
    middle = f"{'.' + space if space else ''}.{op}{'.noftz' if 'f16' in t else ''}.{t}"
    r = letter(bits(t))
    operands = f"%{r}8, %{r}10" if op == "cas" else f"%{r}10"
    return f"atom{middle} %{r}16, [%rd5], {operands};", f"red{middle} [%rd5], {operands};"


def cells(rng: np.random.Generator, op: str, t: str) -> np.ndarray:
    """(THREADS, 3, 16) bytes: the value in memory, the value that it is compared with, the operand."""
    dtype = numpy_type(t)
    if dtype.kind in "fV" and t != "b128":
        numbers = rng.integers(-8, 8, (THREADS, 3, 16 // dtype.itemsize)).astype(np.float32).astype(dtype)
        x = numbers.view(np.uint8).reshape(THREADS, 3, 16).copy()
    else:
        x = rng.integers(0, 256, (THREADS, 3, 16)).astype(np.uint8)
        if op in ("inc", "dec"):
            x.view(np.uint32)[:] = rng.integers(0, 4, (THREADS, 3, 4))
    x[::2, 1] = x[::2, 0]  # every other comparison succeeds
    return x


@pytest.mark.parametrize("space", ["global", "shared", "shared::cta", "shared::cluster", ""])
@pytest.mark.parametrize(("op", "t"), OPERATIONS)
def test_an_atomic_of_each_thread(run, op, t, space):
    """Each thread has its own cell: the previous value and the new one are exact."""
    size, r = bits(t) // 8, letter(bits(t))
    x = cells(np.random.default_rng(size), op, t)
    found_and_left = np.zeros((THREADS, 2, 16), np.uint8)
    body = HEAD.format(THREADS * 16) + place(space if space != "global" else "shared")
    body += (
        "mul.wide.u32 %rd6, %r0, 48; add.u64 %rd6, %rd0, %rd6; mul.wide.u32 %rd7, %r0, 32; add.u64 %rd7, %rd1, %rd7;"
    )
    if space == "global":
        body += "add.u64 %rd5, %rd7, 16;"
    name = f".{space}" if space else ""
    b = f"b{bits(t)}"
    body += f"ld.global.{b} %{r}12, [%rd6]; ld.global.{b} %{r}8, [%rd6+16]; ld.global.{b} %{r}10, [%rd6+32];"
    body += f"st{name}.{b} [%rd5], %{r}12; {atomic(op, t, space)[0]}"
    body += f"ld{name}.{b} %{r}14, [%rd5]; st.global.{b} [%rd7], %{r}16; st.global.{b} [%rd7+16], %{r}14;"
    _, got = run(body, x, found_and_left, block=THREADS)
    typed = np.ascontiguousarray(x[..., :size]).view(numpy_type(t))
    old, compare, value = typed[:, 0], typed[:, 1], typed[:, 2]
    left = reference(op, old, value, compare)
    np.testing.assert_array_equal(got[:, 0, :size], np.ascontiguousarray(old).view(np.uint8).reshape(THREADS, size))
    np.testing.assert_array_equal(got[:, 1, :size], np.ascontiguousarray(left).view(np.uint8).reshape(THREADS, size))


@pytest.mark.parametrize("space", ["global", "shared", ""])
@pytest.mark.parametrize("name", ["atom", "red"])
@pytest.mark.parametrize(("op", "t"), [(op, t) for op, t in OPERATIONS if op not in ("exch", "cas")])
def test_all_threads_change_one_cell(run, op, t, space, name):
    """In any order, since the operations commute on integers (inc and dec have one bound)."""
    size, r = bits(t) // 8, letter(bits(t))
    x = cells(np.random.default_rng(1), op, t)
    if op in ("inc", "dec"):
        x[:, 2] = x[0, 2]
        x.view(np.uint32)[:, 2] = 5
    body = HEAD.format(THREADS * 16) + ("mov.u64 %rd5, %rd1;" if space == "global" else "mov.u64 %rd5, tile;")
    if space == "":
        body += "cvta.shared.u64 %rd5, %rd5;"
    spaced = f".{space}" if space else ""
    b = f"b{bits(t)}"
    body += f"mul.wide.u32 %rd6, %r0, 48; add.u64 %rd6, %rd0, %rd6; ld.global.{b} %{r}10, [%rd6+32];"
    body += f"ld.global.{b} %{r}12, [%rd0]; st{spaced}.{b} [%rd5], %{r}12; bar.sync 0;"
    body += atomic(op, t, space)[name == "red"]
    body += f"bar.sync 0; ld{spaced}.{b} %{r}14, [%rd5]; bar.sync 0; st.global.{b} [%rd1], %{r}14;"
    _, got = run(body, x, np.zeros(16, np.uint8), block=THREADS)
    typed = np.ascontiguousarray(x[..., :size]).view(numpy_type(t))
    total = typed[0, 0]
    for value in typed[:, 2]:
        total = reference(op, total, value, value).astype(typed.dtype)
    np.testing.assert_array_equal(got[:size], np.ascontiguousarray(total).view(np.uint8))
    assert not got[size:].any()


VECTORS = [("add", t, n) for t in ("f32", "f16", "bf16", "f16x2", "bf16x2") for n in (2, 4)]
VECTORS += [(op, t, n) for op in ("min", "max") for t in ("f16", "bf16", "f16x2", "bf16x2") for n in (2, 4)]
VECTORS += [(op, t, 8) for op in ("add", "min", "max") for t in ("f16", "bf16")]


@pytest.mark.parametrize("name", ["atom", "red"])
@pytest.mark.parametrize(("op", "t", "count"), VECTORS)
def test_vectors(run, op, t, count, name):
    n = count * bits(t) // 8
    x = cells(np.random.default_rng(count), op, t)
    half, size = "f16" in t, bits(t) // 8
    r = letter(bits(t)) if half else "f"
    values = "{" + ", ".join(f"%{r}{8 + k}" for k in range(count)) + "}"
    found = "{" + ", ".join(f"%{r}{16 + k}" for k in range(count)) + "}, "
    body = HEAD.format(16) + "mul.wide.u32 %rd6, %r0, 48; add.u64 %rd6, %rd0, %rd6; mul.wide.u32 %rd7, %r0, 32;"
    body += "add.u64 %rd7, %rd1, %rd7; add.u64 %rd5, %rd7, 16;"
    body += "".join(f"ld.global.b{bits(t)} %{r}{8 + k}, [%rd6+{32 + k * size}];" for k in range(count))
    body += "ld.global.v4.b32 {%r40, %r41, %r42, %r43}, [%rd6]; st.global.v4.b32 [%rd5], {%r40, %r41, %r42, %r43};"
    opcode = f"{name}.global.{op}{'.noftz' if half else ''}.v{count}.{t}"
    body += f"{opcode} {found if name == 'atom' else ''}[%rd5], {values};"
    if name == "atom":
        body += "".join(f"st.global.b{bits(t)} [%rd7+{k * size}], %{r}{16 + k};" for k in range(count))
    _, got = run(body, x, np.zeros((THREADS, 2, 16), np.uint8), block=THREADS)
    typed = x[..., :n].copy().view(numpy_type(t))
    left = reference(op, typed[:, 0], typed[:, 2], typed[:, 1])
    np.testing.assert_array_equal(got[:, 1, :n].copy().view(typed.dtype), left)
    np.testing.assert_array_equal(got[:, 1, n:], x[:, 0, n:])
    if name == "atom":
        np.testing.assert_array_equal(got[:, 0, :n], x[:, 0, :n])
