"""CUDA's math functions and intrinsics as NVRTC compiles them, in the emulator, against numpy and Python.

Limits in ulp are those of the CUDA programming guide, "Mathematical Functions", and one more where the reference is not exact.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import alu_oracle as oracle
import ml_dtypes
import numpy as np
import pytest

from ptxkit.compiler import compile_source
from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.isa.parser import parse

N = 256
SOURCE = Path(__file__).with_name("cuda_math.cu")


@pytest.fixture(scope="module", params=["sm_75", "sm_90a", "sm_100a"])
def program(request) -> Any:
    image = compile_source(SOURCE, target=request.param, options=["--device-int128"])
    return Machine(capacity=1 << 28).load(parse(image.ptx, "cuda_math.ptx"), request.param)


def functions(kernel: str) -> list[str]:
    """The expression of each output row of a kernel, as it is in the source."""
    body = SOURCE.read_text().split(f"void {kernel}(")[1].split("\n}\n")[0]
    return [m.strip() for m in re.findall(r"OUT\((.*?)\)(?=\s*(?:OUT|#|\n|$))", body)]


def launch(program: Any, kernel: str, dtype: Any, *inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Every function's results, by its text."""
    names = functions(kernel)
    machine = program.machine
    addresses = [machine.allocate(a.nbytes) for a in inputs]
    for address, a in zip(addresses, inputs, strict=True):
        machine.write(address, a)
    nbytes = len(names) * N * np.dtype(dtype).itemsize
    out = machine.allocate(nbytes)
    params = struct.pack(f"<{len(addresses) + 1}Qi", *addresses, out, N)
    program.launch(kernel, params, grid=(2, 1, 1), block=(128, 1, 1), settings=EmulatorSettings(counting=False))
    rows = machine.read(out, nbytes).view(dtype).reshape(len(names), N)
    for address in (*addresses, out):
        machine.free(address)
    return dict(zip(names, rows, strict=True))


def each(f: Callable[..., float]) -> Callable[..., np.ndarray]:
    return lambda *lanes: np.array([f(*map(float, row)) for row in zip(*lanes, strict=True)])


def arguments() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    x = rng.uniform(-12, 12, N)
    x[:8] = [0.5, -0.5, 1, -1, 2, 1e-3, -1e-3, 10]
    return x, rng.uniform(0.1, 9, N) * rng.choice([-1, 1], N)


UNARY = {
    "sin(a)": (np.sin, 2),
    "cos(a)": (np.cos, 2),
    "tan(a)": (np.tan, 4),
    "asin(a / 40)": (lambda a: np.arcsin(a / 40), 2),
    "acos(a / 40)": (lambda a: np.arccos(a / 40), 2),
    "atan(a)": (np.arctan, 2),
    "sinh(a)": (np.sinh, 3),
    "cosh(a)": (np.cosh, 2),
    "tanh(a)": (np.tanh, 2),
    "asinh(a)": (np.arcsinh, 3),
    "acosh(a * a + 1)": (lambda a: np.arccosh(a * a + 1), 4),
    "atanh(a / 40)": (lambda a: np.arctanh(a / 40), 3),
    "exp(a)": (np.exp, 2),
    "exp2(a)": (np.exp2, 2),
    "exp10(a)": (each(lambda a: 10.0**a), 2),
    "expm1(a)": (np.expm1, 1),
    "log(a * a)": (lambda a: np.log(a * a), 1),
    "log2(a * a)": (lambda a: np.log2(a * a), 1),
    "log10(a * a)": (lambda a: np.log10(a * a), 2),
    "log1p(a * a)": (lambda a: np.log1p(a * a), 1),
    "sqrt(a * a)": (lambda a: np.sqrt(a * a), 0),
    "cbrt(a)": (np.cbrt, 1),
    "erf(a)": (each(math.erf), 2),
    "erfc(a)": (each(math.erfc), 5),
    "lgamma(a * a + 0.5)": (each(lambda a: math.lgamma(a * a + 0.5)), 24),
    "tgamma(a / 10 + 5)": (each(lambda a: math.gamma(a / 10 + 5)), 10),
    "rsqrt(a * a)": (lambda a: 1 / np.sqrt(a * a), 2),
    "floor(a)": (np.floor, 0),
    "ceil(a)": (np.ceil, 0),
    "trunc(a)": (np.trunc, 0),
    "rint(a)": (np.rint, 0),
    "fabs(a)": (np.abs, 0),
    "round(a)": (lambda a: np.trunc(a + np.copysign(0.5, a)), 0),
    "sinpi(a)": (lambda a: np.sin(np.pi * np.fmod(a, 2)), 2),
    "cospi(a)": (lambda a: np.cos(np.pi * np.fmod(a, 2)), 2),
}


def far(got: np.ndarray, want: np.ndarray, dtype: Any) -> float:
    """Largest distance in ulp."""
    unit = np.spacing(np.abs(want).astype(dtype)).astype(np.float64)
    return float(np.max(np.abs(got.astype(np.float64) - want) / unit))


def check(
    results: dict[str, np.ndarray],
    table: dict[str, tuple[Any, float]],
    dtype: Any,
    *lanes: np.ndarray,
    spare: float = 0,
) -> int:
    """Compare the functions that both have, and return their number. Results near a root are left out, because the references
    are inaccurate there."""
    found = 0
    for name, got in results.items():
        key = re.sub(r"^(\w+?)f?\(", r"\1(", name).replace("0.5f", "0.5").replace("fabsf", "fabs")
        if key in table:
            f, ulp = table[key]
            with np.errstate(all="ignore"):
                want = f(*(v.astype(np.float64) for v in lanes))
            keep = np.isfinite(want) & (np.abs(want) > 0.2)
            error = far(got[keep], want[keep], dtype)
            assert error <= ulp + spare + 0.51, (name, error)
            found += 1
    return found


def test_float_unary(program):
    # squares of the argument are exact, so that their rounding is not counted as the function's error
    x = (np.round(arguments()[0] * 32) / 32).astype(np.float32)
    assert check(launch(program, "float_unary", np.float32, x), UNARY, np.float32, x, spare=1) == len(UNARY)


def test_double_unary(program):
    x = np.round(arguments()[0] * 32) / 32
    results = launch(program, "double_unary", np.float64, x)
    assert check(results, UNARY, np.float64, x, spare=1) == len(UNARY) - 3
    for name, mode in (("__dsqrt_rd(a * a)", "rm"), ("__dsqrt_ru(a * a)", "rp")):
        want = [oracle.arithmetic(f"sqrt.{mode}.f64", int(v)) for v in (x * x).view(np.uint64)]
        assert results[name].view(np.uint64).tolist() == want


BINARY = {
    "pow(fabs(a), b / 8)": (lambda a, b: np.abs(a) ** (b / 8), 4),
    "atan2(a, b)": (np.arctan2, 3),
    "fmod(a, b)": (np.fmod, 0),
    "hypot(a, b)": (np.hypot, 3),
    "remainder(a, b)": (each(math.remainder), 0),
    "fdim(a, b)": (lambda a, b: np.maximum(a - b, 0), 0),
    "fmax(a, b)": (np.maximum, 0),
    "fmin(a, b)": (np.minimum, 0),
    "copysign(a, b)": (np.copysign, 0),
    "__fdivide(a, b)": (np.divide, 2),
    "ldexp(a, (int)b)": (lambda a, b: np.ldexp(a, b.astype(int)), 0),
    "a / b": (np.divide, 0),
}


def test_float_binary(program):
    a, b = (v.astype(np.float32) for v in arguments())
    results = launch(program, "float_binary", np.float32, a, b)
    assert check(results, BINARY, np.float32, a, b) == len(BINARY)
    assert np.array_equal(results["nextafterf(a, b)"], np.nextafter(a, b))
    want = [
        oracle.arithmetic("fma.rn.f32", *map(int, row))
        for row in zip(*(v.view(np.uint32) for v in (a, b, a)), strict=True)
    ]
    assert results["fmaf(a, b, a)"].view(np.uint32).tolist() == want


def test_double_binary(program):
    a, b = arguments()
    results = launch(program, "double_binary", np.float64, a, b)
    assert check(results, BINARY, np.float64, a, b, spare=1) == 7
    for name, opcode, lanes in (
        ("__dadd_rz(a, b)", "add.rz.f64", (a, b)),
        ("__dmul_rd(a, b)", "mul.rm.f64", (a, b)),
        ("__fma_ru(a, b, b)", "fma.rp.f64", (a, b, b)),
        ("__ddiv_rz(a, b)", "div.rz.f64", (a, b)),
        ("__drcp_rn(b)", "rcp.rn.f64", (b,)),
    ):
        want = [
            oracle.arithmetic(opcode, *map(int, row)) for row in zip(*(v.view(np.uint64) for v in lanes), strict=True)
        ]
        assert results[name].view(np.uint64).tolist() == want, name


def test_float_rounding(program):
    a, b = (v.astype(np.float32) for v in arguments())
    results = launch(program, "float_rounding", np.float32, a, b)
    operations = {
        "fadd": ("add", (a, b)),
        "fmul": ("mul", (a, b)),
        "fdiv": ("div", (a, b)),
        "fmaf": ("fma", (a, b, b)),
        "fsqrt": ("sqrt", (a * a,)),
    }
    modes = {"rn": "rn", "rz": "rz", "rd": "rm", "ru": "rp"}
    for name, got in results.items():
        m = re.match(r"__(f\w+?)_(r\w)\(", name)
        if m is None:
            assert np.array_equal(got, np.clip(a, 0, 1))
            continue
        operation, lanes = operations[m[1]]
        rows = zip(*(v.view(np.uint32) for v in lanes), strict=True)
        want = [oracle.arithmetic(f"{operation}.{modes[m[2]]}.f32", *map(int, row)) for row in rows]
        assert got.view(np.uint32).tolist() == want, name


# -- integers ----------------------------------------------------------------------------------------------------------------


def signed(v: int, bits: int = 32) -> int:
    v &= (1 << bits) - 1
    return v - (1 << bits) if v >> (bits - 1) else v


def lanes(f: Callable[..., int], width: int, signs: bool = False) -> Callable[..., int]:
    """``f`` on the bytes or half-words of its operands."""

    def run(*words: int) -> int:
        out = 0
        for at in range(0, 32, width):
            fields = [w >> at & (1 << width) - 1 for w in words]
            out |= (f(*(signed(v, width) if signs else v for v in fields)) & (1 << width) - 1) << at
        return out

    return run


def pick(v: int, at: int, width: int, s: bool) -> int:
    v = v >> at & (1 << width) - 1
    return signed(v, width) if s else v


def clamp(v: int, low: int, high: int) -> int:
    return min(max(v, low), high)


def permute(a: int, b: int, s: int) -> int:
    return sum(((b << 32 | a) >> 8 * (s >> 4 * k & 7) & 255) << 8 * k for k in range(4))


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGERS: dict[str, Callable[[int, int], int]] = {
    "__byte_perm(a, b, 0x5140)": lambda a, b: permute(a, b, 0x5140),
    "__byte_perm(a, b, b)": lambda a, b: permute(a, b, b),
    "__funnelshift_l(a, b, a)": lambda a, b: (b << 32 | a) << (a & 31) >> 32,
    "__funnelshift_r(a, b, a)": lambda a, b: (b << 32 | a) >> (a & 31),
    "__funnelshift_lc(a, b, 40)": lambda a, b: a,
    "__funnelshift_rc(a, b, 7)": lambda a, b: (b << 32 | a) >> 7,
    "__dp4a((int)a, (int)b, 5)": lambda a, b: (
        5 + sum(pick(a, k, 8, True) * pick(b, k, 8, True) for k in (0, 8, 16, 24))
    ),
    "__dp4a(a, b, 5u)": lambda a, b: 5 + sum(pick(a, k, 8, False) * pick(b, k, 8, False) for k in (0, 8, 16, 24)),
    "__dp2a_lo((int)a, (int)b, 5)": lambda a, b: (
        5 + sum(pick(a, 16 * k, 16, True) * pick(b, 8 * k, 8, True) for k in (0, 1))
    ),
    "__dp2a_hi(a, b, 5u)": lambda a, b: (
        5 + sum(pick(a, 16 * k, 16, False) * pick(b, 16 + 8 * k, 8, False) for k in (0, 1))
    ),
    "__brev(a)": lambda a, b: int(f"{a:032b}"[::-1], 2),
    "__ffs(a)": lambda a, b: (a & -a).bit_length(),
    "__clz(a)": lambda a, b: 32 - a.bit_length(),
    "__popc(a)": lambda a, b: a.bit_count(),
    "__mulhi((int)a, (int)b)": lambda a, b: signed(a) * signed(b) >> 32,
    "__umulhi(a, b)": lambda a, b: a * b >> 32,
    "__mul24(a, b)": lambda a, b: signed(a, 24) * signed(b, 24),
    "__umul24(a, b)": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "__sad(a, b, 3)": lambda a, b: abs(signed(a) - signed(b)) + 3,
    "__usad(a, b, 3)": lambda a, b: abs(a - b) + 3,
    "__hadd((int)a, (int)b)": lambda a, b: signed(a) + signed(b) >> 1,
    "__rhadd((int)a, (int)b)": lambda a, b: signed(a) + signed(b) + 1 >> 1,
    "__uhadd(a, b)": lambda a, b: a + b >> 1,
    "__urhadd(a, b)": lambda a, b: a + b + 1 >> 1,
    "a / (b | 1)": lambda a, b: a // (b | 1),
    "(int)a % (int)(b | 1)": lambda a, b: signed(a) - truncated(signed(a), signed(b | 1)) * signed(b | 1),
    "__vadd4(a, b)": lanes(lambda x, y: x + y, 8),
    "__vsub4(a, b)": lanes(lambda x, y: x - y, 8),
    "__vabsdiffu4(a, b)": lanes(lambda x, y: abs(x - y), 8),
    "__vsadu4(a, b)": lambda a, b: sum(abs(pick(a, k, 8, False) - pick(b, k, 8, False)) for k in (0, 8, 16, 24)),
    "__vmaxu4(a, b)": lanes(max, 8),
    "__vmins4(a, b)": lanes(min, 8, True),
    "__vaddus4(a, b)": lanes(lambda x, y: min(x + y, 255), 8),
    "__vaddss4(a, b)": lanes(lambda x, y: clamp(x + y, -128, 127), 8, True),
    "__vcmpltu4(a, b)": lanes(lambda x, y: -(x < y), 8),
    "__vseteq4(a, b)": lanes(lambda x, y: x == y, 8),
    "__vavgu4(a, b)": lanes(lambda x, y: x + y + 1 >> 1, 8),
    "__vneg4(a)": lambda a, b: lanes(lambda x: -x, 8)(a),
    "__vadd2(a, b)": lanes(lambda x, y: x + y, 16),
    "__vmaxs2(a, b)": lanes(max, 16, True),
    "__vminu2(a, b)": lanes(min, 16),
    "__vsubss2(a, b)": lanes(lambda x, y: clamp(x - y, -32768, 32767), 16, True),
    "__vabs2(a)": lambda a, b: lanes(abs, 16, True)(a),
    "__vcmpgts2(a, b)": lanes(lambda x, y: -(x > y), 16, True),
    "__viaddmax_s32(a, b, 7)": lambda a, b: max(signed(a + b), 7),
    "__vimax3_s32(a, b, 9)": lambda a, b: max(signed(a), signed(b), 9),
    "__vimin_s16x2_relu(a, b)": lanes(lambda x, y: max(min(x, y), 0), 16, True),
    "__vimax3_u16x2(a, b, 0x00400040)": lanes(lambda x, y: max(x, y, 64), 16),
}


def integers(bits: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    dtype = np.dtype(f"u{bits // 8}")
    x, y = (rng.integers(0, 1 << bits, N, dtype) >> rng.integers(0, bits, N).astype(dtype) for _ in range(2))
    x[:6] = [0, 1, (1 << bits) - 1, 1 << bits - 1, (1 << bits - 1) - 1, 0x80]
    return x, y


def test_integers(program):
    x, z = integers(32)
    results = launch(program, "integers", np.uint32, x, z)
    assert list(results) == list(INTEGERS)
    for name, got in results.items():
        want = [INTEGERS[name](int(a), int(b)) & 0xFFFFFFFF for a, b in zip(x, z, strict=True)]
        assert got.tolist() == want, name


def float_below(v: int) -> int:
    """The largest f32 that is not above v, as u64; of a negative one that conversion gives 0."""
    f = oracle.FORMATS["f32"]
    return max(int(f.decode(f.encode(oracle.Fraction(v), "rm"))), 0)


LONG: dict[str, Callable[[int, int], int]] = {
    "__brevll(a)": lambda a, b: int(f"{a:064b}"[::-1], 2),
    "__ffsll(a)": lambda a, b: (a & -a).bit_length(),
    "__clzll(a)": lambda a, b: 64 - a.bit_length(),
    "__popcll(a)": lambda a, b: a.bit_count(),
    "__mul64hi(a, b)": lambda a, b: signed(a, 64) * signed(b, 64) >> 64,
    "__umul64hi(a, b)": lambda a, b: a * b >> 64,
    "a / (b | 1)": lambda a, b: a // (b | 1),
    "(long long)a % (long long)(b | 1)": lambda a, b: (
        signed(a, 64) - truncated(signed(a, 64), signed(b | 1, 64)) * signed(b | 1, 64)
    ),
    "(u64)w": lambda a, b: a * b + (a ^ b),
    "(u64)(w >> 64)": lambda a, b: a * b + (a ^ b) >> 64,
    "(u64)(w / (b | 1))": lambda a, b: (a * b + (a ^ b)) // (b | 1),
    "(u64)(w % ((a >> 3) | 1))": lambda a, b: (a * b + (a ^ b)) % (a >> 3 | 1),
    "(u64)__double2ll_rz((double)a)": lambda a, b: min(int(float(a)), (1 << 63) - 1),
    "(u64)__ll2float_rd(a)": lambda a, b: float_below(signed(a, 64)),
    "a >> (b & 63)": lambda a, b: a >> (b & 63),
    "a << (b & 63)": lambda a, b: a << (b & 63),
}


def test_long_integers(program):
    x, z = integers(64)
    results = launch(program, "long_integers", np.uint64, x, z)
    assert list(results) == list(LONG)
    for name, got in results.items():
        want = [LONG[name](int(a), int(b)) & (1 << 64) - 1 for a, b in zip(x, z, strict=True)]
        assert got.tolist() == want, name


# -- halves ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["halves", "bfloats"])
def test_halves(program, kernel):
    kind: Any = np.float16 if kernel == "halves" else ml_dtypes.bfloat16
    t = "f16" if kernel == "halves" else "bf16"
    rng = np.random.default_rng(8)
    x, z = ((np.round(rng.standard_normal(2 * N) * 64) / 16).astype(kind).view(np.uint32) for _ in range(2))
    results = launch(program, kernel, np.uint32, x, z)
    a, b = (v.view(np.uint16).view(kind).astype(np.float64).reshape(N, 2) for v in (x, z))
    c, d = a[:, 0], b[:, 0]
    with np.errstate(all="ignore"):
        pairs = {
            "__hadd2(a, b)": a + b,
            "__hsub2(a, b)": a - b,
            "__hmul2(a, b)": a * b,
            "__hfma2(a, b, a)": a * b + a,
            "__h2div(a, b)": a / b,
            "__hmax2(a, b)": np.maximum(a, b),
            "__hneg2(a)": -a,
            "__habs2(a)": np.abs(a),
            "__heq2(a, b)": a == b,
            "h2exp2(a)": np.exp2(a),
        }
        single = {
            "__hadd_sat(c, d)": np.clip(c + d, 0, 1),
            "__hmin_nan(c, d)": np.minimum(c, d),
            "hsqrt(c)": np.sqrt(c),
            "hrint(c)": np.rint(c),
            "hfloor(c)": np.floor(c),
            "hexp(c)": np.exp(c),
            "hlog2(c)": np.log2(c),
            "hsin(c)": np.sin(c),
            "hrcp(c)": 1 / c,
            "__hfma_relu(c, d, c)": np.maximum(c * d + c, 0),
        }
        narrow = {k: v.astype(kind).astype(np.float64) for k, v in {**pairs, **single}.items()}
    loose = {"h2exp2(a)", "hexp(c)", "hlog2(c)", "hsin(c)", "hrcp(c)", "hsqrt(c)", "__h2div(a, b)"}
    seen = 0
    for name, got in results.items():
        inner = re.sub(r"^bits\((.*)\)$", r"\1", name)
        if inner not in narrow or (
            ("relu" in inner or ("hfma2" in inner and t == "bf16")) and program.target == "sm_75"
        ):
            continue
        want = narrow[inner]
        have = (
            got.view(np.uint16).view(kind).reshape(N, 2) if inner in pairs else got.astype(np.uint16).view(kind)
        ).astype(np.float64)
        unit = np.spacing(np.abs(want).astype(np.float32)).astype(np.float64) * 2.0 ** (13 if t == "f16" else 16)
        with np.errstate(all="ignore"):
            near = np.abs(want - have) <= (1.01 * unit if inner in loose else 0)
        fine = (want == have) | (np.isnan(want) & np.isnan(have)) | near
        assert fine.all(), (name, want[~fine][:3], have[~fine][:3])
        seen += 1
    assert seen >= 18
    assert results["__hlt(c, d)"].tolist() == (c < d).astype(int).tolist()
    assert results["__hbgt2(a, b)"].tolist() == (a > b).all(1).astype(int).tolist()
    integer = results["__half2int_rn(c)" if t == "f16" else "__bfloat162int_rn(c)"].view(np.int32)
    assert integer.tolist() == np.rint(c).astype(int).tolist()
    rounded = next(v for n, v in results.items() if "_rz(i * 977)" in n)
    assert rounded.tolist() == [oracle.FORMATS[t].encode(oracle.Fraction(k * 977), "rz") for k in range(N)]
    down = next(v for n, v in results.items() if "_rd(" in n)
    product = (c.astype(np.float32) * np.float32(1.37)).view(np.uint32)
    assert down.tolist() == [oracle.FORMATS[t].encode(oracle.FORMATS["f32"].decode(int(v)), "rm") for v in product]


def test_narrow(program):
    x = (arguments()[0] * 40).astype(np.float32)
    results = list(launch(program, "narrow", np.uint32, x).values())
    e4m3, e5m2 = (
        np.clip(x, -m, m).astype(t).view(np.uint8)
        for t, m in ((ml_dtypes.float8_e4m3fn, 448), (ml_dtypes.float8_e5m2, 57344))
    )
    assert np.array_equal(results[0], e4m3) and np.array_equal(results[1], e5m2)
    second = np.clip(x * np.float32(0.7), -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(results[2], e4m3 | second.astype(np.uint32) << 8)
    for row, t in ((3, ml_dtypes.float8_e4m3fn), (4, ml_dtypes.float8_e5m2)):
        want = np.arange(N, dtype=np.uint8).view(t).astype(np.float32)
        for half in (results[row] & 0xFFFF, results[row] >> 16):
            assert np.array_equal(half.astype(np.uint16).view(np.float16).astype(np.float32), want, equal_nan=True)
    assert np.array_equal(results[5].view(np.float32), e4m3.view(ml_dtypes.float8_e4m3fn).astype(np.float32))


def test_complex_numbers(program):
    x, z = (v.astype(np.float32) for v in arguments())
    p_real, p_imaginary, q_real, q_imaginary, size = launch(program, "complex_numbers", np.float32, x, z).values()
    a, b = x.astype(complex) + 1j * z, z.astype(complex) + 1j * x[::-1]
    assert np.allclose(p_real + 1j * p_imaginary, a * b, rtol=1e-6, atol=1e-5)
    assert np.allclose(q_real + 1j * q_imaginary, a / b, rtol=1e-5, atol=1e-6)
    assert np.allclose(size, np.abs(a), rtol=1e-6)


def test_printf(program):
    printed: list[str] = []
    program.launch("say", b"", grid=(1, 1, 1), block=(1, 1, 1), settings=EmulatorSettings(write_output=printed.append))
    values = (-7, 7, -1 << 40, 1 << 40, 2 / 3, 1e-7, 1e20, "x", "text", 0xBEEF)
    first = "%d %u %d %x %5.2f %e %g %c %s %% %08x\n" % values  # noqa: UP031  # printf is what is tested
    text = "".join(printed)
    assert text.startswith(first)
    assert text[len(first) :].startswith("3 -2    42|42   |+42 10 ")
