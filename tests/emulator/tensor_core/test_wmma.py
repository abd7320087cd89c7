"""wmma and mma.m8n8k4.f16: matrices in memory, loaded, multiplied and stored by one warp each."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from matrix_programs import BITS, DTYPES, as_float, integers, names, pack, program, run, unpack

from ptxkit.compiler import assemble, compile_source, toolkit


@dataclass(frozen=True)
class Case:
    shape: tuple[int, int, int]
    t: str
    tc: str
    td: str
    layouts: tuple[str, str, str, str]
    space: str = ".global"
    suffix: str = ""
    op: str = ""
    extra_stride: int = 0

    @property
    def name(self) -> str:
        m, n, k = self.shape
        return f"m{m}n{n}k{k}"

    def __str__(self) -> str:
        return "-".join(
            [
                self.name,
                self.t,
                self.tc,
                self.td,
                *self.layouts,
                self.space,
                self.op,
                self.suffix,
                str(self.extra_stride),
            ]
        )


def cases() -> list[Case]:
    found = []
    layouts = list(itertools.product(("row", "col"), repeat=4))
    for n, shape in enumerate([(16, 16, 16), (8, 32, 16), (32, 8, 16)]):
        for j, (tc, td) in enumerate(itertools.product(("f16", "f32"), repeat=2)):
            found.append(Case(shape, "f16", tc, td, layouts[(5 * n + 3 * j) % 16], extra_stride=8 * (j % 2)))
        found += [Case(shape, "bf16", "f32", "f32", x) for x in (layouts[4 * n], layouts[15 - n])]
        found += [Case(shape, t, "s32", "s32", layouts[6 + n], suffix=s) for t, s in (("s8", ""), ("u8", ".satfinite"))]
    found += [
        Case((16, 16, 16), "f16", "f32", "f32", x, space=s)
        for x, s in zip(layouts[1::5], ("", ".shared", ".shared"), strict=False)
    ]
    found += [Case((16, 16, 8), "tf32", "f32", "f32", x) for x in (layouts[0], layouts[5], layouts[15])]
    found += [Case((8, 8, 4), "f64", "f64", "f64", x, suffix=s) for x, s in ((layouts[3], ""), (layouts[9], ".rz"))]
    found += [Case((8, 8, 32), t, "s32", "s32", ("row", "col", "row", "col")) for t in ("s4", "u4")]
    found += [Case((8, 8, 128), "b1", "s32", "s32", ("row", "col", "col", "row"), op=op) for op in ("and", "xor")]
    return found


def counts(case: Case) -> list[int]:
    """Registers of A, B, C and D (PTX ISA, "Matrix Fragments for WMMA")."""
    m, n, k = case.shape
    if case.t == "f16":
        left = [8, 8]
    else:
        per = 1 if case.t == "f64" else 32 // BITS[case.t]
        left = [m * k // 32 // per, k * n // 32 // per]
    return [*left, *(m * n // 32 // (2 if t == "f16" else 1) for t in (case.tc, case.td))]


def stored(matrix: np.ndarray, layout: str, t: str, extra: int) -> tuple[np.ndarray, int]:
    """The bytes of a matrix in memory, and its stride in elements."""
    lines = matrix if layout == "row" else matrix.T
    stride = lines.shape[1] + extra
    padded = np.zeros((lines.shape[0], stride), lines.dtype)
    padded[:, : lines.shape[1]] = lines
    if t == "b1":
        return np.packbits(padded, axis=-1, bitorder="little").reshape(-1), stride
    if BITS[t] == 4:
        nibbles = padded.view(np.uint8) & 15
        return (nibbles[:, ::2] | nibbles[:, 1::2] << 4).reshape(-1), stride
    return padded.reshape(-1).view(np.uint8), stride


AREA = 4096
"""Bytes for each of A, B, C and D, of a warp."""


def kernel(case: Case, strides: list[int]) -> str:
    a, b, c, d = counts(case)
    kinds = ["f64" if case.t == "f64" else "b32"] * 2 + [
        {"f32": "f32", "f64": "f64"}.get(t, "b32") for t in (case.tc, case.td)
    ]
    declared = " ".join(f".reg .{t} %{x}<{n}>;" for x, n, t in zip("abcd", (a, b, c, d), kinds, strict=True))
    la, lb, lc, ld = case.layouts
    at, types = case.space, ("" if case.t == "f16" else f".{case.t}.{case.t}")
    shared = case.space == ".shared"
    base = "%r9" if shared else "%rd2"
    copy = f"""
    mov.u32 %r9, tile; mov.u32 %r11, 0; mul.lo.u32 %r12, %r2, {4 * AREA}; add.u32 %r9, %r9, %r12;
    shl.b32 %r13, %r8, 2; add.u32 %r14, %r9, %r13; cvt.u64.u32 %rd5, %r13; add.u64 %rd5, %rd5, %rd2;
    in: ld.global.b32 %r15, [%rd5]; st.shared.b32 [%r14], %r15; add.u64 %rd5, %rd5, 128; add.u32 %r14, %r14, 128;
    add.u32 %r11, %r11, 1; setp.lt.u32 %p0, %r11, {4 * AREA // 128}; @%p0 bra in; bar.warp.sync -1;
    """
    back = f"""
    bar.warp.sync -1; mov.u32 %r11, 0; add.u32 %r14, %r9, %r13; cvt.u64.u32 %rd5, %r13; add.u64 %rd5, %rd5, %rd2;
    out: ld.shared.b32 %r15, [%r14]; st.global.b32 [%rd5], %r15; add.u64 %rd5, %rd5, 128; add.u32 %r14, %r14, 128;
    add.u32 %r11, %r11, 1; setp.lt.u32 %p0, %r11, {4 * AREA // 128}; @%p0 bra out;
    """
    operands = ", ".join(
        "{" + ", ".join(f"%{x}{k}" for k in range(n)) + "}" for x, n in zip("dabc", (d, a, b, c), strict=True)
    )
    vectors = ["{" + ", ".join(f"%{x}{k}" for k in range(n)) + "}" for x, n in zip("abcd", (a, b, c, d), strict=True)]
    third = f", {strides[2]}" if case.extra_stride else ""  # the default is what a matrix without gaps has
    infix = f".{case.op}.popc" if case.op else ""
    result = f".{case.td}.{case.tc}" if case.t == "f16" else f".{case.td}{types}.{case.tc}"
    return f"""
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 data) {{
{f".shared .align 128 .b8 tile[{8 * AREA}];" if shared else ""}
.reg .pred %p<4>; .reg .b32 %r<20>; .reg .b64 %rd<10>; {declared}
ld.param.u64 %rd0, [data]; mov.u32 %r0, %tid.x; shr.u32 %r2, %r0, 5; and.b32 %r8, %r0, 31;
mov.u32 %r3, %ctaid.x; shl.b32 %r3, %r3, 1; add.u32 %r3, %r3, %r2; mul.wide.u32 %rd1, %r3, {4 * AREA}; add.u64 %rd2, %rd0, %rd1;
{copy if shared else ""}
mov.u32 %r4, {strides[0]};
wmma.load.a.sync.aligned.{la}.{case.name}{at}.{case.t} {vectors[0]}, [{base}], %r4;
wmma.load.b.sync.aligned.{lb}.{case.name}{at}.{case.t} {vectors[1]}, [{base}+{AREA}], {strides[1]};
wmma.load.c.sync.aligned.{lc}.{case.name}{at}.{case.tc} {vectors[2]}, [{base}+{2 * AREA}]{third};
wmma.mma{infix}.sync.aligned.{la}.{lb}.{case.name}{result}{case.suffix} {operands};
wmma.store.d.sync.aligned.{ld}.{case.name}{at}.{case.td} [{base}+{3 * AREA}], {vectors[3]}, {strides[3]};
{back if shared else ""}
ret;
}}
"""


@pytest.mark.parametrize("case", cases(), ids=str)
def test_wmma(device, case):
    m, n, k = case.shape
    rng = np.random.default_rng(m)
    memory = np.zeros((4, 4, AREA), np.uint8)
    wanted: list[np.ndarray] = []
    strides: list[int] = []
    for w in range(4):
        a, b = integers(rng, (m, k), case.t, 4), integers(rng, (k, n), case.t, 4)
        c = rng.integers(-50, 50, (m, n)).astype(DTYPES[case.tc])
        if case.tc == "s32" and w == 3:
            c[:] = 2**31 - 3
        strides = []
        for at, (matrix, t, layout) in enumerate(
            zip((a, b, c, c), (case.t, case.t, case.tc, case.td), case.layouts, strict=True)
        ):
            data, stride = stored(matrix, layout, t, case.extra_stride)
            strides.append(stride)
            if at < 3:
                memory[w, at, : len(data)] = data
        if case.t == "b1":
            pairs = a[:, :, None].astype(np.int64), b[None].astype(np.int64)
            product = (pairs[0] & pairs[1] if case.op == "and" else pairs[0] ^ pairs[1]).sum(1).astype(np.float64)
        else:
            product = as_float(a) @ as_float(b)
        if case.td == "s32":
            total = product.astype(np.int64) + c
            wanted.append((np.clip(total, -(2**31), 2**31 - 1) if case.suffix else total).astype(np.int32))
        else:
            wanted.append((product + as_float(c)).astype(DTYPES[case.td]))
    text = kernel(case, strides)
    image = assemble(text, target="sm_90a", name="wmma.ptx", cubin=device.kind == "gpu")
    data = device.upload(memory)
    device.load(image)["k"](data, grid=2, block=64)
    device.synchronize()
    out = data.numpy()
    for w, want in enumerate(wanted):
        lines = want if case.layouts[3] == "row" else want.T
        raw = out[w, 3, : lines.shape[0] * strides[3] * lines.dtype.itemsize].view(lines.dtype).reshape(-1, strides[3])
        np.testing.assert_array_equal(raw[:, : lines.shape[1]], lines)
        assert not raw[:, lines.shape[1] :].view(np.uint8).any()


# -- mma.m8n8k4: PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type" --------------------------------------


def _half(lane: int) -> int:
    return 4 if lane >= 16 else 0


PLACES: dict[str, Any] = {
    "a.row": lambda lane, i: (lane % 4 + _half(lane), i),
    "a.col": lambda lane, i: (i % 4 + _half(lane), lane % 4),
    "b.row": lambda lane, i: (lane % 4, i + _half(lane)),
    "b.col": lambda lane, i: (i, lane % 4 + _half(lane)),
    "f16": lambda lane, i: (lane % 4 + _half(lane), i),
    "f32": lambda lane, i: ((lane & 1) + (i & 2) + _half(lane), (i & 4) + (lane & 2) + (i & 1)),
}


def spread(matrices: np.ndarray, t: str, place: Any, elements: int) -> np.ndarray:
    """Registers of a warp from its four matrices; product q has lanes 4 q.. and 16 + 4 q.."""
    out = np.zeros((elements * BITS[t] // 32, 32), np.uint64)
    for q in range(4):
        mine = [lane for lane in range(32) if lane % 16 // 4 == q]
        whole = pack(matrices[q], t, place, elements)
        out[:, mine] = whole[:, mine]
    return out


@pytest.mark.parametrize(("tc", "td"), [("f16", "f16"), ("f16", "f32"), ("f32", "f32")])
@pytest.mark.parametrize(("la", "lb"), list(itertools.product(("row", "col"), repeat=2)))
def test_mma_m8n8k4(device, la, lb, tc, td):
    rng = np.random.default_rng(3)
    a, b = integers(rng, (4, 8, 4), "f16"), integers(rng, (4, 4, 8), "f16")
    c = rng.integers(-50, 50, (4, 8, 8)).astype(DTYPES[tc])
    registers = np.concatenate(
        [spread(a, "f16", PLACES[f"a.{la}"], 4), spread(b, "f16", PLACES[f"b.{lb}"], 4), spread(c, tc, PLACES[tc], 8)]
    )
    nc, nd = (8 * BITS[t] // 32 for t in (tc, td))
    kc, kd = ("f32" if t == "f32" else "b32" for t in (tc, td))
    text = program(
        f"mma.sync.aligned.m8n8k4.{la}.{lb}.{td}.f16.f16.{tc} {names('y', 0, nd)}, {names('x', 0, 2)}, {names('x', 2, 2)}, "
        f"{names('x', 4, nc)};",
        ["b32"] * 4 + [kc] * nc,
        [kd] * nd,
    )
    out = run(device, text, registers, nd)
    want = (as_float(a) @ as_float(b) + as_float(c)).astype(DTYPES[td])
    for q in range(4):
        mine = [lane for lane in range(32) if lane % 16 // 4 == q]
        place = PLACES[td]
        got = unpack(out[:, mine], td, lambda n, i, m=mine, p=place: p(m[n], i), 8, (8, 8))
        np.testing.assert_array_equal(got, want[q])


SOURCE = r"""
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const half* a, const half* b, float* c) {
  __shared__ half tile[256];
  for (int i = threadIdx.x; i < 256; i += 32) tile[i] = a[i];
  __syncthreads();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 1.0f);
  wmma::load_matrix_sync(left, tile, 16);
  wmma::load_matrix_sync(right, b, 16);
  wmma::mma_sync(sum, left, right, sum);
  for (int i = 0; i < sum.num_elements; i++) sum.x[i] *= 2.0f;
  wmma::store_matrix_sync(c, sum, 16, wmma::mem_row_major);
}
"""


def has_crt() -> bool:
    """Whether <mma.h> can be included: it needs the crt headers, which are in another package."""
    return any((tool.path / "crt" / "mma.h").exists() for tool in toolkit.headers())


@pytest.mark.skipif(not has_crt(), reason="the crt headers are not installed")
def test_cuda_cpp_wmma(device):
    """The code that NVRTC generates from <mma.h>: generic addresses, and elements that are changed one by one."""
    rng = np.random.default_rng(1)
    a, b = integers(rng, (16, 16), "f16"), integers(rng, (16, 16), "f16")
    left, right, out = device.upload(a), device.upload(b), device.empty((16, 16), np.float32)
    device.load(compile_source(SOURCE, target="sm_90a"))["k"](left, right, out, grid=1, block=32)
    device.synchronize()
    np.testing.assert_array_equal(out.numpy(), 2 * (as_float(a) @ as_float(b).T + 1))
