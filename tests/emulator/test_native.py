"""Machine code gives the same results and the same counts as numpy, bit for bit."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ptxkit
from ptxkit.emulator.engine import wave as engine_wave
from ptxkit.emulator.native import machine_code as compiler
from ptxkit.emulator.native import wave as native_wave
from ptxkit.emulator.native.forms import Destination, frame_form, parameter_form
from ptxkit.emulator.native.scalar import emitter
from ptxkit.errors import DeadlockError, FaultError, MemoryFault, UninitialisedError

pytest.importorskip("llvmlite", reason="machine code needs llvmlite")

SOURCE = """
__device__ int paths(int n) { return n < 2 ? 1 : paths(n - 1) + paths(n - 2); }
extern "C" __global__ void diverge(int* y, float* f, const int* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, s = 0;
    if (i >= n) return;
    for (int v = x[i]; v != 1 && s < 200; s++) v = v & 1 ? 3 * v + 1 : v >> 1;
    float a = f[i];
    for (int k = 0; k < (i & 7); k++) { a = a * 1.5f + k; if (a > 3) a /= 3.f; a = fminf(a, 2.5f); }
    y[i] = s;
    f[i] = a;
}
extern "C" __global__ void recurse(int* y, const int* x) { y[threadIdx.x] = paths(x[threadIdx.x] % 6); }
__device__ void merge(int* a, int n) {
    if (n < 2) return;
    int h = n / 2, i = 0, j = h, k = 0;
    merge(a, h);
    merge(a + h, n - h);
    int* t = (int*)malloc(n * sizeof(int));
    while (i < h && j < n) t[k++] = a[i] <= a[j] ? a[i++] : a[j++];
    while (i < h) t[k++] = a[i++];
    while (j < n) t[k++] = a[j++];
    for (i = 0; i < n; i++) a[i] = t[i];
    free(t);
}
__device__ __noinline__ int descend(int* y, int n, int depth) {
    int a[4];
    a[n & 3] = n;
    if (depth == 0) { int* p = (int*)malloc(8); p[n & 1] = a[n & 3]; int r = p[n & 1]; free(p); return r; }
    if (n & 1) return descend(y, n >> 1, depth - 1) + a[n & 3];
    int r = n % 5 == 4 ? descend(y, n + 3, depth - 1) : 1;
    return r * 3 + descend(y, n >> 1, depth - 1) + __popc(__activemask()) * 0;
}
extern "C" __global__ void calls(int* y, const int* x, int depth) {
    int s = 0;
    for (int k = 0; k < (threadIdx.x & 3) + 1; k++) s += descend(y, x[threadIdx.x] + k, depth);
    y[threadIdx.x] = s;
}
extern "C" __global__ void sort(int* x, int n) { merge(x + threadIdx.x * n, n); }
extern "C" __global__ void heap(int* y) {
    int i = threadIdx.x, s = 0;
    int* p = (int*)malloc(4 * (i + 1));
    for (int k = 0; k <= i; k++) p[k] = k * i;
    for (int k = 0; k <= i; k++) s += p[k];
    y[i] = s;
    free(p);
}
extern "C" __global__ void stack(int* y, const int* x) {
    int a[16], s = 0;
    for (int k = 0; k < 16; k++) a[(k * x[threadIdx.x]) & 15] = k;
    for (int k = 0; k < 16; k++) s = s * 3 + a[(k * x[threadIdx.x]) & 15];
    y[threadIdx.x] = s;
}
extern "C" __global__ void below_zero(int* y, const int* x, int n) {
    __shared__ int tile[64];
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(tile)) - 4 * threadIdx.x - 4096;
    for (int k = 0; k < n; k++) {
        int a, b;
        asm volatile("st.shared.b32 [%0+4348], %1;" :: "r"(address), "r"(x[threadIdx.x] + k) : "memory");
        __syncthreads();
        asm volatile("ld.shared.b32 %0, [%1+4348];" : "=r"(a) : "r"(address) : "memory");
        asm volatile("atom.shared.add.u32 %0, [%1+4348], 1;" : "=r"(b) : "r"(address) : "memory");
        y[threadIdx.x] += a * b + tile[63 - threadIdx.x];
        __syncthreads();
    }
}
extern "C" __global__ void banks(float* y) {
    __shared__ float t[33 * 32];
    __shared__ double d[256];
    int x = threadIdx.x, w = threadIdx.y;
    t[x * 33 + w] = x * w;
    d[(x * 5 + w) % 256] = x;
    __syncthreads();
    for (int k = 0; k < 8; k++) y[w * 32 + x] += t[x * 32 + k] + t[k * 33 + x] + float(d[(x / 2 + k) % 256] + d[x * 2 + k]);
}
extern "C" __global__ void small_banks(int* y, int n) {
    __shared__ unsigned char b[32 * 37 + 16];
    __shared__ unsigned short h[32 * 33 + 16];
    int x = threadIdx.x, s = 0;
    for (int k = 0; k < n; k++) { b[x * 37 + k] = x + k; h[x * 33 + k] = x * k; s += b[x * 37 + k / 2] + h[x * 33 + k / 2]; }
    y[x] = s;
}
extern "C" __global__ void reduce(float* y, const float* x, int n) {
    float s = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) s += x[i];
    for (int o = 16; o; o /= 2) s += __shfl_xor_sync(~0u, s, o);
    if (threadIdx.x % 32 == 0) atomicAdd(y, s);
}
struct Shape {
    int a;
    __device__ virtual int area(int s) const { return a + s; }
    __device__ virtual ~Shape() {}
};
struct Square : Shape { __device__ int area(int s) const override { return a * a * s; } };
struct Nested : Shape {
    Shape* inner;
    __device__ int area(int s) const override { return inner->area(s + 1) * 2 + a; }
};
extern "C" __global__ void shapes(int* y, const int* x, int n) {
    int s = 0;
    for (int k = 0; k < n; k++) {
        int v = x[threadIdx.x] + k;
        Shape *p = v % 3 ? v % 3 == 1 ? new Square : new Shape : nullptr, *q = p;
        if (p) p->a = v & 15;
        else {
            Nested* o = new Nested;
            o->inner = v & 4 ? new Square : new Shape;
            o->inner->a = v & 7;
            o->a = 3;
            q = o;
        }
        s = s * 5 + q->area(k);
        if (!p) delete ((Nested*)q)->inner;
        delete q;
    }
    y[threadIdx.x] = s;
}
extern "C" __global__ void collectives(unsigned* y, const int* x, int n) {
    unsigned s = threadIdx.x, all = ~0u;
    for (int k = 0; k < n + (threadIdx.x / 32); k++) {
        int v = x[threadIdx.x] + k;
        s = s * 3 + __shfl_xor_sync(all, v, 5) + __shfl_up_sync(all, v, k & 7) + __shfl_down_sync(all, v, 3, 8);
        s += __shfl_sync(all, v, v, 16) + __ballot_sync(all, v & 1) + __any_sync(all, v > 4990) + __all_sync(all, v > 9);
        s ^= __reduce_add_sync(all, v) + __reduce_min_sync(all, v - 3000) + __reduce_max_sync(all, (unsigned)v);
        s ^= __reduce_and_sync(all, v) ^ __reduce_or_sync(all, v) ^ __reduce_xor_sync(all, v) ^ __match_any_sync(all, v & 3);
        if (threadIdx.x & 1) s += __shfl_xor_sync(0xAAAAAAAAu, s, 2) + __activemask();
        else if (threadIdx.x % 32 < 16) s -= __shfl_sync(0x5555u, s, v & 14) + __uni_sync(0x5555u, v & 1);
        __syncwarp();
    }
    y[threadIdx.x] = s;
}
extern "C" __global__ void guards(int* y, float* f, const int* x, int n) {
    int i = threadIdx.x, never = n >> 20, v = 7;
    for (int k = 0; k < n; k++) {
        int some = x[i] & k;
        asm volatile("{ .reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.u32 [%1], %2; @!p add.u32 %3, %3, 1; }"
                     :: "r"(some), "l"(y + i), "r"(k), "r"(v));
        asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 0; @p ld.global.u32 %0, [%2]; }" : "+r"(v) : "r"(never), "l"(y + k));
        f[i] += __expf(x[i] * 1e-4f) + __sinf(float(k));
        asm volatile("mov.v2.u32 {%0, %1}, {%1, %0};" : "+r"(v), "+r"(never));
        asm volatile("mov.v2.u32 {%0, %1}, {%1, %0};" : "+r"(v), "+r"(never));
    }
    y[i] += v;
}
__device__ __noinline__ int claim(unsigned* table, unsigned key, unsigned mask) {
    for (unsigned at = key * 2654435769u >> 5 & mask;; at = (at + 1) & mask) {
        unsigned old = atomicCAS(&table[at], 0, key);
        if (old == 0 || old == key) return at;
    }
}
extern "C" __global__ void locks(unsigned* table, int* counts, const int* x, int* sum, volatile int* flag, int n) {
    __shared__ int lock, total;
    int i = threadIdx.x;
    if (i == 0) { lock = 0; total = 0; }
    __syncthreads();
    for (int k = 0; k < n; k++) {
        counts[claim(table, x[i] % 37 + 1 + k, 127)] += i + 1;
        for (bool done = false; !done;)
            if (atomicCAS(&lock, 0, 1) == 0) {
                total = total * 3 + x[i];
                __threadfence_block();
                atomicExch(&lock, 0);
                done = true;
            }
        __syncthreads();
    }
    if (i == 64) { flag[0] = total; __threadfence(); flag[1] = 1; }
    if (i == 3) { while (!flag[1]) ; sum[0] = flag[0]; }
}
extern "C" __global__ void barriers(int* y, const int* x, int n) {
    __shared__ int t[96];
    int i = threadIdx.x, at = blockIdx.x * 96 + i;
    t[i] = x[at];
    if (i >= 90) return;
    for (int k = 0; k < n + blockIdx.x; k++) {
        __syncthreads();
        int v = t[(i + 7 * k) % 90];
        if (v & 1) v = 3 * v + 1;
        __syncthreads();
        t[i] = v + k;
    }
    y[at] = t[i];
}
extern "C" __global__ void exponents(float* y, const float* x, int n) {
    for (int k = threadIdx.x; k < n; k += 64) {
        float v = x[k], w = v;
        if (k % 7 < 5) asm volatile("ex2.approx.f32 %0, %0;" : "+f"(v));
        asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(w));
        y[2 * k] = v;
        y[2 * k + 1] = w;
    }
}
extern "C" __global__ void leaving(int* y, const int* x) {
    int s = x[threadIdx.x];
    for (int k = 0; k < 8; k++) {
        if (s % 11 == k && threadIdx.x % 32) break;
        s += __popc(__ballot_sync(__activemask(), s & 1)) + 1;
    }
    y[threadIdx.x] = s;
}
"""


def numbers(kind, count, seed=1):
    rng = np.random.default_rng(seed)
    return rng.random(count, np.float32) if kind == "f4" else rng.integers(1, 5000, count).astype(np.int32)


def exponents():
    """Numbers of all sizes, with infinities, NaNs of both signs, subnormal numbers, integers, and limits of the result."""
    rng = np.random.default_rng(2)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-40, 127.99999, 128, -126, -126.00001, -149, -150], "f4")
    odd = np.array([0x7F800001, 0xFFC12345], np.uint32).view(np.float32)
    other = [rng.uniform(-160, 135, 900), rng.integers(-151, 129, 90), rng.normal(0, 1e-3, 90)]
    return np.concatenate([special, odd, *(v.astype(np.float32) for v in other)])


CASES = {
    "exponents": (1, 64, lambda: [np.zeros(2400, np.float32), exponents(), np.int32(len(exponents()))]),
    "locks": (1, 96, lambda: [np.zeros(128, np.uint32), np.zeros(128, np.int32), numbers("i4", 96),
                              np.zeros(1, np.int32), np.zeros(2, np.int32), np.int32(3)]),
    "guards": (1, 96, lambda: [np.zeros(96, np.int32), numbers("f4", 96), numbers("i4", 96), np.int32(40)]),
    "diverge": (3, 128, lambda: [np.zeros(300, np.int32), numbers("f4", 300), numbers("i4", 300), np.int32(300)]),
    "recurse": (1, 32, lambda: [np.zeros(32, np.int32), np.arange(32, dtype=np.int32)]),
    "calls": (1, 70, lambda: [np.zeros(70, np.int32), numbers("i4", 70), np.int32(6)]),
    "sort": (1, 40, lambda: [numbers("i4", 40 * 12), np.int32(12)]),
    "heap": (1, 40, lambda: [np.zeros(40, np.int32)]),
    "stack": (1, 40, lambda: [np.zeros(40, np.int32), np.arange(40, dtype=np.int32) * 2 + 1]),
    "below_zero": (1, 64, lambda: [np.zeros(64, np.int32), numbers("i4", 64), np.int32(4)]),
    "banks": (2, (32, 8), lambda: [np.zeros(256, np.float32)]),
    "small_banks": (1, 32, lambda: [np.zeros(32, np.int32), np.int32(9)]),
    "shapes": (1, 40, lambda: [np.zeros(40, np.int32), numbers("i4", 40), np.int32(5)]),
    "collectives": (1, 96, lambda: [np.zeros(96, np.uint32), numbers("i4", 96), np.int32(4)]),
    "barriers": (3, 96, lambda: [np.zeros(288, np.int32), numbers("i4", 288), np.int32(4)]),
    "leaving": (1, 96, lambda: [np.zeros(96, np.int32), numbers("i4", 96)]),
    "reduce": (1, 96, lambda: [np.zeros(1, np.float32), numbers("f4", 1000), np.int32(1000)]),
}


@pytest.fixture
def machine_code(monkeypatch):
    """Every block that can be machine code is, from the first on. Returns a list that gets an entry for each execution."""
    runs = []
    run = native_wave.NativeWave._run

    def compile_all(self, code):
        self.program.compile(code, [b.index for b in self._usable(code)])
        return True

    monkeypatch.setattr(engine_wave, "NATIVE_AFTER", 1)
    monkeypatch.setattr(native_wave, "HOT", 1)
    monkeypatch.setattr(native_wave.NativeWave, "_compile", compile_all)
    monkeypatch.setattr(native_wave.NativeWave, "_run", lambda self, *given: runs.append(1) or run(self, *given))
    return runs


def measured(source, name, make, grid, block):
    emulator = ptxkit.device("emulator")
    kernel = ptxkit.compile(source, device=emulator)[name]
    given = [emulator.upload(a) if isinstance(a, np.ndarray) and a.ndim else a for a in make()]
    found = emulator.measure(kernel.prepare(*given, grid=grid, block=block), samples=1)
    arrays = [g.numpy().tobytes() for g in given if hasattr(g, "numpy")]
    return arrays, found.counters, found.lines


@pytest.mark.parametrize("name", CASES)
def test_results_and_counts_are_those_of_numpy(name, machine_code, monkeypatch):
    grid, block, make = CASES[name]
    found = measured(SOURCE, name, make, grid, block)
    assert machine_code, "no machine code was executed"
    monkeypatch.setattr(native_wave, "is_installed", lambda: False)
    count = len(machine_code)
    assert measured(SOURCE, name, make, grid, block) == found
    assert len(machine_code) == count


OUT_OF_TURN = """
extern "C" __global__ void polls(const unsigned* flag, int* count) {
    if (threadIdx.x < 4) {
        unsigned found;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(flag + threadIdx.x) : "memory");
        if (found > threadIdx.x) atomicAdd(count, found);
    }
    asm volatile("barrier.sync 1, 64;" ::: "memory");
    count[1 + threadIdx.x] = 7;
}
"""


def test_lanes_that_the_order_does_not_select_are_executed_once(machine_code, monkeypatch):
    """Four lanes have yielded with their load, and the others are at a barrier, about which machine code does not decide."""
    monkeypatch.setattr(engine_wave, "PATIENCE", 0)
    count = np.zeros(65, np.int32)
    make = lambda: [np.full(4, 5, np.uint32), count]  # noqa: E731
    (_, found), _, _ = measured(OUT_OF_TURN, "polls", make, 1, 64)
    assert np.frombuffer(found, np.int32).tolist() == [20] + [7] * 64
    assert machine_code, "no machine code was executed"


def atomic_kernels():
    """A kernel for each operation: with and without a result, on global, shared and generic addresses, in four patterns."""
    kinds = {"add": "u32 s32 u64 f32 f64", "min": "u32 s32 u64 s64", "max": "u32 s32 u64 s64", "inc": "u32", "dec": "u32",
             "and": "b32 b64", "or": "b32 b64", "xor": "b32 b64", "exch": "b32 b64", "cas": "b32 b64"}
    for op, types in kinds.items():
        for t in types.split():
            letter = {"f32": "f", "f64": "d"}.get(t, "r" if t[1:] == "32" else "l")
            c = {"f": "float", "d": "double", "r": "unsigned", "l": "unsigned long long"}[letter]
            more, given = (", %3", f', "{letter}"(v + 1)') if op == "cas" else ("", "")
            lines = []
            for space, pointer in (("global", "a"), ("shared", "s"), ("", "(i & 2 ? a : s)")):
                place = '"l"(__cvta_generic_to_shared(p + at))' if space == "shared" else '"l"(p + at)'
                name = f"{op}.{t}" if not space else f"{space}.{op}.{t}"
                values = f'{place}, "{letter}"(v)'
                body = f'asm volatile("atom.{name} %0, [%1], %2{more};" : "={letter}"(old) : {values}{given});'
                body += "y[i] = y[i] * 3 + old;"
                if op not in ("exch", "cas"):
                    body += f'if (i % 5) {{ asm volatile("red.{name} [%0], %1;" :: {values}); }}'
                for at in ("i % 7", "i", "(i * 3) & 31", "at0"):
                    lines.append(f"{{ {c}* p = {pointer}; int at = {at}; {body} __syncthreads(); }}")
            yield f"{op}_{t}", f"""extern "C" __global__ void {op}_{t}({c}* y, {c}* a, const int* x, int n, int at0) {{
    __shared__ {c} s[128];
    int i = threadIdx.x;
    y += blockIdx.x * 96;
    s[i] = x[i];
    __syncthreads();
    for (int k = 0; k < n; k++) {{
        {c} v = x[i] * k % 11, old;
        if (i % 3 == k % 3) {{ y[i] += atomicExch((int*)a + (i & 3), i); }}
        if (k & 1) atomicAdd((int*)s + (i & 3), 1);
        atomicAdd((int*)a + k, 1);
        __syncthreads();
        {" ".join(lines)}
    }}
    y[i] += s[i] + s[i & 3];
}}
""", np.dtype({"f": "f4", "d": "f8", "r": "u4", "l": "u8"}[letter])


ATOMICS = {name: (text, dtype) for name, text, dtype in atomic_kernels()}


@pytest.mark.parametrize("name", ATOMICS)
def test_atomics_give_the_results_and_counts_of_numpy(name, machine_code, monkeypatch):
    text, dtype = ATOMICS[name]
    given = (text, name, lambda: [np.zeros(96, dtype), np.arange(128).astype(dtype), numbers("i4", 128), np.int32(2),
                                  np.int32(5)], 1, 96)
    found = measured(*given)
    assert machine_code
    monkeypatch.setattr(native_wave, "is_installed", lambda: False)
    assert measured(*given) == found


OPCODES = [
    *(f"{op}.{t}" for op in ("add", "sub", "mul.lo", "div", "rem", "min", "max") for t in ("s32", "u32", "s64", "u64", "s16")),
    *(f"mul.hi.{t}" for t in ("s32", "u32", "s64", "u64")),
    *(f"{op}.{t}" for op in ("add", "sub", "mul", "min", "max") for t in ("f32", "f64")),
    *(f"div.{t}" for t in ("rn.f32", "rn.f64", "full.f32", "full.ftz.f32")),
    *(f"{op}.{how}.f32" for op in ("add", "sub", "mul", "fma") for how in ("rz", "rm", "rp", "rn.ftz", "rm.ftz", "rn.sat")),
    *(f"{op}.ftz.f32" for op in ("min", "max", "rcp.approx", "sqrt.approx", "rsqrt.approx", "neg", "abs")),
    *("fma.rz.ftz.sat.f32", "fma.rn.f32", "fma.rn.f64"),
    *(f"{op}.b{n}" for op in ("and", "or", "xor") for n in (32, 64)),
]
BITS = {"16": np.uint16, "32": np.uint32, "64": np.uint64}
SPECIAL = {
    16: [0, 1, 0x7FFF, 0x8000, 0xFFFF],
    32: [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x3F800000, 0x7F800000, 0xFF800000, 0x7FC00001, 0x00000001, 0x80000000,
         0xBF800001, 0x00800000, 0x80FFFFFF],
    64: [0, 1, 1 << 63, (1 << 64) - 1, 0x3FF0 << 48, 0x7FF0 << 48, 0xFFF0 << 48, 0x7FF8000000000001],
}


def operands(bits):
    return st.one_of(st.sampled_from(SPECIAL[bits]), st.integers(0, (1 << bits) - 1))


@pytest.mark.parametrize("opcode", OPCODES)
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_instructions_give_the_bits_of_numpy(opcode, data):
    """The machine code of one instruction, for 32 lanes, against the function that the numpy back end calls."""
    from ptxkit.emulator.native.forms import Destination, Source, pure_form
    from ptxkit.emulator.native.machine_code import addresses
    from ptxkit.emulator.native.records import InstructionRecord
    from ptxkit.emulator.simt.table import lookup
    from ptxkit.isa.types import TYPES

    t = TYPES[opcode.rsplit(".", 1)[1]]
    bits = t.dtype.itemsize * 8
    entry, form = lookup(opcode)
    count = len(entry.signature(form)[1]) - entry.optional
    given = [np.array(data.draw(st.lists(operands(bits), min_size=32, max_size=32)), f"u{bits // 8}") for _ in range(count)]
    with np.errstate(all="ignore"):
        expected = entry.lane_function(form)(*(v.view(t.dtype)[None, None] for v in given))
    both_nan = np.zeros(32, np.bool_)
    if t.kind == "f":  # which of several NaNs is the result depends on the host's numpy
        both_nan = np.sum([np.isnan(v.view(t.dtype)) for v in given], 0) > 1
    emit = emitter(opcode)
    assert emit is not None
    form = pure_form(emit, (Source(bits, bits),) * count, (Destination(bits, bits),))
    size = bits // 8
    memory = np.concatenate([*given, np.zeros_like(given[0])])
    places = [word for n in range(count + 1) for word in (-1, 32 * n * size)]
    record = np.array([0] * InstructionRecord.OPERANDS + places, np.int64)
    function = ctypes.CFUNCTYPE(ctypes.c_bool, *[ctypes.c_void_p] * 3, ctypes.c_uint32, *[ctypes.c_int64] * 2)
    execute = function(addresses({form.name: form}, True)[form.name])
    assert execute(None, record.ctypes.data, memory.ctypes.data, 0xFFFFFFFF, 0, 0)
    found = memory[32 * count :]
    want = np.ascontiguousarray(np.broadcast_to(expected, (1, 1, 32))).view(found.dtype).reshape(-1)
    assert (found == want)[~both_nan].all()


def test_a_fault_has_the_message_of_numpy(machine_code, monkeypatch):
    text = 'extern "C" __global__ void k(int* y, int n) { for (int i = threadIdx.x; i < n; i += 32) y[i] = i; }'

    def message():
        with pytest.raises(MemoryFault) as fault:
            ptxkit.compile(text, device="emulator")["k"](np.zeros(100, np.int32), np.int32(128), grid=1, block=32)
        return re.sub(r"at 0x\w+", "at an address", str(fault.value))

    found = message()
    assert machine_code and "4 bytes past the end" in found
    monkeypatch.setattr(native_wave, "is_installed", lambda: False)
    assert message() == found


def test_uninitialised_local_memory_is_reported(machine_code):
    text = (
        'extern "C" __global__ void k(int* y, int n) { int a[8]; for (int i = 0; i < n; i++) a[i & 7] = i; '
        "if (a[(n + 1) & 7] > 2) y[0] = 1; }"
    )
    kernel = ptxkit.compile(text, device="emulator")["k"]
    with pytest.raises(UninitialisedError, match="uninitialised"):
        kernel(np.zeros(1, np.int32), np.int32(3), grid=1, block=32)
    assert machine_code


def test_a_loop_that_waits_for_ever_is_a_deadlock(machine_code):
    text = 'extern "C" __global__ void k(int* y, int n) { for (int i = 0; y[n]; ) { if (i > 5) y[1] = i; } }'
    with pytest.raises(DeadlockError):
        ptxkit.compile(text, device="emulator")["k"](np.ones(4, np.int32), np.int32(2), grid=1, block=32)


def test_a_bounded_wait_for_a_barrier_ends(machine_code):
    """The wait is executed by numpy, the count of the tries by machine code, in the same arrays: they are compared by value."""
    text = """extern "C" __global__ void k(int* y, int most) {
      __shared__ unsigned long long barrier;
      const unsigned b = __cvta_generic_to_shared(&barrier);
      if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 40;" :: "r"(b) : "memory");
      __syncthreads();
      int done = 0, tries = 0;
      for (; !done && tries < most; ++tries)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(b) : "memory");
      y[threadIdx.x] = tries * 2 + done;
    }"""
    y = np.zeros(32, np.int32)
    ptxkit.compile(text, device="emulator", target="sm_90a")["k"](y, np.int32(4096), grid=1, block=32)
    assert (y == 8192).all()
    assert machine_code


def test_short_launches_compile_nothing(monkeypatch):
    monkeypatch.setattr(native_wave.NativeProgram, "compile", lambda *given: pytest.fail("compiled"))
    kernel = ptxkit.compile(SOURCE, device="emulator")["stack"]
    kernel(np.zeros(8, np.int32), np.ones(8, np.int32), grid=1, block=8)


@pytest.mark.parametrize(
    "llvm", [ImportError("no libLLVM"), SimpleNamespace(llvm_version_info=(15, 0, 7))], ids=["broken", "old"]
)
def test_numpy_executes_everything_where_llvmlite_cannot_be_used(llvm, monkeypatch, caplog):
    def load():
        if isinstance(llvm, Exception):
            raise llvm
        return llvm

    monkeypatch.setattr(native_wave, "AFTER_S", 0.0)
    monkeypatch.setattr(engine_wave, "NATIVE_AFTER", 1)
    monkeypatch.setattr(native_wave, "HOT", 1)
    monkeypatch.setattr(compiler, "_llvm", load)
    monkeypatch.setattr(native_wave, "can_compile", cache(compiler.can_compile.__wrapped__))
    x = np.ones(8, np.int32)
    source = f"{SOURCE}// {type(llvm)}"  # no other test has machine code of it
    ptxkit.compile(source, device="emulator")["recurse"](y := np.zeros(8, np.int32), x * 5, grid=1, block=8)
    assert y.tolist() == [8] * 8
    found = [r.getMessage() for r in caplog.records]
    assert len(found) == 1 and "llvmlite cannot be used" in found[0] and ("libLLVM" in found[0] or "LLVM 15" in found[0])


class Entries(dict):
    put = dict.__setitem__


def test_an_object_file_that_was_kept_is_loaded_once(monkeypatch):
    """A process that needs its forms one after the other has one copy of them."""
    entries, both = Entries(), [frame_form(), parameter_form(32, (Destination(32, 32),))]
    monkeypatch.setattr(compiler, "_stores", [lambda: entries])
    compiler._Level(compiler.QUICK).load(both, compiles=True)
    level = compiler._Level(compiler.QUICK)
    for form in both:
        level.load([form], compiles=False)
    assert len(level._engines) == 1 and all(level.forms[form.name] for form in both)


def test_the_message_of_an_interrupted_launch_counts_what_machine_code_has_executed(machine_code, monkeypatch):
    run = native_wave.NativeWave._run

    def interrupted(self, *given):
        if len(machine_code) == 3:
            raise KeyboardInterrupt
        return run(self, *given)

    monkeypatch.setattr(native_wave.NativeWave, "_run", interrupted)
    source = "__global__ void loop(int* x, int n) { for (int i = 0; i < n; i++) x[threadIdx.x] += i; }"
    with pytest.raises(KeyboardInterrupt) as stopped:
        measured(source, "loop", lambda: [np.zeros(32, np.int32), np.int32(1 << 20)], 1, 32)
    count = int(re.search(r"after ([0-9,]+) thread instructions", str(stopped.value))[1].replace(",", ""))
    assert count > 3 * 32 * 64  # an execution of machine code ends after at least 64 blocks


def test_a_fault_in_a_call_by_machine_code_names_the_thread_and_the_line(machine_code, monkeypatch):
    text = """
__device__ __noinline__ int walk(const int* next, int at, int n) { return n == 0 ? at : walk(next, next[at], n - 1) + 1; }
extern "C" __global__ void k(int* y, const int* next, int n) { y[threadIdx.x] = walk(next, threadIdx.x, n); }
"""
    step = np.arange(40, dtype=np.int32) + 1

    def message():
        with pytest.raises(MemoryFault) as fault:
            ptxkit.compile(text, device="emulator")["k"](np.zeros(32, np.int32), step, np.int32(30), grid=1, block=32)
        return re.sub(r"0x\w+", "an address", str(fault.value))

    found = message()
    assert machine_code and "thread (31, 0, 0)" in found
    monkeypatch.setattr(native_wave, "is_installed", lambda: False)
    assert message() == found


def test_endless_recursion_in_machine_code_is_a_stack_overflow(machine_code):
    text = """
__device__ __noinline__ int deep(int n) { volatile int a[512]; a[n & 511] = n; return n < 0 ? 0 : deep(n + 1) + a[n & 511]; }
extern "C" __global__ void k(int* y) { y[threadIdx.x] = deep(threadIdx.x); }
"""
    with pytest.raises(FaultError, match=r"thread \(0, 0, 0\) of CTA .* calls deep .*stack overflow"):
        ptxkit.compile(text, device="emulator")["k"](np.zeros(4, np.int32), grid=1, block=4)
    assert machine_code


EXPRESSIONS = [
    "{a} + {b}",
    "{a} - {b} * 3",
    "{a} ^ ({b} >> 2)",
    "({a} & 15) * {b}",
    "min({a}, {b})",
    "h({a}, {b})",
    "t[{a} & 7] + {b}",
]


@st.composite
def bodies(draw, depth=0):
    """Statements over the variables a, b and c, with branches, loops, stores to local and shared memory, and calls."""
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        to, one, two = (draw(st.sampled_from("abc")) for _ in range(3))
        value = draw(st.sampled_from(EXPRESSIONS)).format(a=one, b=two)
        kind = draw(st.sampled_from(["set", "if", "loop", "local", "shared"] if depth < 2 else ["set", "local", "shared"]))
        if kind == "set":
            lines.append(f"{to} = {value};")
        elif kind == "if":
            lines.append(f"if (({value}) & {draw(st.integers(1, 5))}) {{ {draw(bodies(depth + 1))} }}")
        elif kind == "loop":
            lines.append(f"for (int i = 0; i < ({one} & 3); i++) {{ {draw(bodies(depth + 1))} }}")
        elif kind == "local":
            lines.append(f"t[{one} & 7] = {value};")
        else:
            lines.append(f"s[threadIdx.x] = (unsigned char)({value}); {to} += s[threadIdx.x];")
    return " ".join(lines)


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(main=bodies(), inner=bodies(depth=1), seed=st.integers(0, 99))
def test_random_programs_give_the_results_and_counts_of_numpy(machine_code, main, inner, seed):
    text = f"""
__device__ __noinline__ int h(int a, int b, int depth = 0) {{
    __shared__ unsigned char s[96];
    int c = a - b, t[8] = {{0}};
    if ((a & 7) < 2 || depth > 20) return b;
    {inner.replace("h(", "min(")}
    return c + ((a & 1) ? h(a >> 1, b, depth + 1) : t[b & 7]);
}}
extern "C" __global__ void k(int* y, const int* x) {{
    __shared__ unsigned char s[96];
    int n = threadIdx.x, a = x[n] & 255, b = n, c = 0, t[8] = {{1}};
    {main}
    y[n] = a + 3 * b + 5 * c + t[n & 7];
}}
"""
    given = (text, "k", lambda: [np.zeros(96, np.int32), numbers("i4", 96, seed)], 1, 96)
    count = len(machine_code)
    found = measured(*given)
    assert len(machine_code) > count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_wave, "is_installed", lambda: False)
        assert measured(*given) == found
