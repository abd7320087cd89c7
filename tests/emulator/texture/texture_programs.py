"""Kernels of one texture or surface instruction each: lane i takes row i of a table of words, and stores what it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import ptxkit

USED = {"1d": 1, "2d": 2, "3d": 3, "a1d": 2, "a2d": 3, "cube": 3, "acube": 4}
WRITTEN = {"1d": 1, "2d": 2, "3d": 4, "a1d": 2, "a2d": 4, "cube": 4, "acube": 4}
GRADIENTS = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2, "cube": 3, "acube": 3}
LETTERS = {"f32": "f", "u32": "r", "s32": "r", "f16": "h", "f16x2": "r", "b8": "h", "b16": "h", "b32": "r", "b64": "rd"}


@dataclass(frozen=True)
class Form:
    """An instruction: the words that a lane takes (%r0, ..., also as %f0, ...) and stores (from %r16 on)."""

    body: str
    takes: int
    gives: int


def _vector(letter: str, numbers: range, count: int) -> str:
    names = [f"%{letter}{n}" for n in numbers]
    return "{" + ", ".join(names + [names[-1]] * (count - len(names))) + "}"


def coordinates(geometry: str, real: bool = False) -> str:
    """The operand ``[object, {x, y}]`` of the first words of a lane."""
    letter = "f" if real and not geometry.startswith("a") else "r"
    return f"[%rd0, {_vector(letter, range(USED[geometry]), WRITTEN[geometry])}]"


def tex(geometry: str, result: str = "f32", real: bool = True, mip: str = "", offset: tuple[int, ...] = ()) -> Form:
    """tex with its words in the order of the operands."""
    takes, extra = USED[geometry], ""
    if mip == "level":
        extra, takes = f", %{'f' if real else 'r'}{takes}", takes + 1
    elif mip == "grad":
        n = GRADIENTS[geometry]
        for _ in range(2):
            extra, takes = f"{extra}, {_vector('f', range(takes, takes + n), n if n < 3 else 4)}", takes + n
    if offset:
        extra += ", {" + ", ".join(map(str, (*offset, 0) if len(offset) == 3 else offset)) + "}"
    count = 2 if result == "f16x2" else 4
    first = 0 if result == "f16" else 16
    where = _vector(LETTERS[result], range(first, first + count), count)
    name = f"tex.{mip + '.' if mip else ''}{geometry}.v{count}.{result}.{'f32' if real else 's32'}"
    body = f"{name} {where}, {coordinates(geometry, real)}{extra};\n"
    if result == "f32":
        body += "".join(f"mov.b32 %r{n}, %f{n};\n" for n in range(16, 20))
    if result == "f16":
        body += "mov.b32 %r16, {%h0, %h1};\nmov.b32 %r17, {%h2, %h3};\n"
    return Form(body, takes, 2 if result.startswith("f16") else 4)


def tld4(component: str, geometry: str = "2d", result: str = "f32") -> Form:
    """tld4 of one component."""
    where = _vector(LETTERS[result], range(16, 20), 4)
    body = f"tld4.{component}.{geometry}.v4.{result}.f32 {where}, {coordinates(geometry, True)};\n"
    if result == "f32":
        body += "".join(f"mov.b32 %r{n}, %f{n};\n" for n in range(16, 20))
    return Form(body, USED[geometry], 4)


def query(name: str) -> Form:
    """A query without other operands, such as ``txq.width``."""
    return Form(f"{name}.b32 %r16, [%rd0];\n", 1, 1)


def suld(geometry: str, t: str = "b32", vec: str = "", clamp: str = "zero") -> Form:
    """suld.b."""
    count = int(vec[1:]) if vec else 1
    where = _vector(LETTERS[t], range(16, 16 + count), count)
    name = f"suld.b.{geometry}{'.' + vec if vec else ''}.{t}.{clamp}"
    body = f"{name} {where if vec else where[1:-1]}, {coordinates(geometry)};\n"
    if t == "b64":
        body += "".join(f"mov.b64 {{%r{16 + 2 * k}, %r{17 + 2 * k}}}, %rd{16 + k};\n" for k in range(count))
    if LETTERS[t] == "h":
        body += "".join(
            f"cvt.u32.u16 %r{n}, %h{n};\nand.b32 %r{n}, %r{n}, {(1 << int(t[1:])) - 1};\n"
            for n in range(16, 16 + count)
        )
    return Form(body, USED[geometry], count * (2 if t == "b64" else 1))


def sust(geometry: str, t: str = "b32", vec: str = "", clamp: str = "zero", mode: str = "b") -> Form:
    """sust.b and sust.p."""
    count, used = int(vec[1:]) if vec else 1, USED[geometry]
    body, values = "", []
    for k in range(count):
        if t == "b64":
            body += f"mov.b64 %rd{16 + k}, {{%r{used + 2 * k}, %r{used + 2 * k + 1}}};\n"
        elif LETTERS[t] == "h":
            body += f"cvt.u16.u32 %h{k}, %r{used + k};\n"
        values.append(f"%rd{16 + k}" if t == "b64" else f"%h{k}" if LETTERS[t] == "h" else f"%r{used + k}")
    given = ", ".join(values)
    name = f"sust.{mode}.{geometry}{'.' + vec if vec else ''}.{t}.{clamp}"
    body += f"{name} {coordinates(geometry)}, {'{' + given + '}' if vec else given};\n"
    return Form(body, used + count * (2 if t == "b64" else 1), 0)


def sured(mode: str, operation: str, geometry: str, t: str, clamp: str = "zero") -> Form:
    """sured.b and sured.p."""
    used, wide = USED[geometry], t.endswith("64")
    body = f"mov.b64 %rd16, {{%r{used}, %r{used + 1}}};\n" if wide else ""
    value = "%rd16" if wide else f"%r{used}"
    body += f"sured.{mode}.{operation}.{geometry}.{t}.{clamp} {coordinates(geometry)}, {value};\n"
    return Form(body, used + (2 if wide else 1), 0)


def program(form: Form) -> str:
    """The kernel ``k(object, table, results, lanes)`` of a form."""
    loads = "".join(f"ld.global.b32 %r{n}, [%rd1+{4 * n}];\nmov.b32 %f{n}, %r{n};\n" for n in range(form.takes))
    stores = "".join(f"st.global.b32 [%rd2+{4 * n}], %r{16 + n};\n" for n in range(form.gives))
    return f""".version 8.1
.target sm_90
.address_size 64
.visible .entry k(.param .u64 o, .param .u64 .ptr t, .param .u64 .ptr r, .param .u32 n)
{{
.reg .b32 %r<64>; .reg .f32 %f<64>; .reg .b16 %h<64>; .reg .b64 %rd<64>; .reg .pred %p<4>;
ld.param.u64 %rd0, [o]; ld.param.u64 %rd1, [t]; ld.param.u64 %rd2, [r]; ld.param.u32 %r60, [n];
mov.u32 %r61, %ctaid.x; mov.u32 %r62, %ntid.x; mov.u32 %r63, %tid.x;
mad.lo.u32 %r61, %r61, %r62, %r63;
setp.ge.u32 %p0, %r61, %r60;
@%p0 ret;
mad.wide.u32 %rd1, %r61, {4 * form.takes}, %rd1;
mad.wide.u32 %rd2, %r61, {4 * max(form.gives, 1)}, %rd2;
{loads}{form.body}{stores}ret;
}}
"""


def table(*columns: Any) -> np.ndarray:
    """Columns of float32 or integers as rows of words."""
    words = []
    for column in columns:
        c = np.asarray(column)
        words.append(
            c.astype(np.float32).view(np.uint32) if c.dtype.kind == "f" else c.astype(np.int64).astype(np.uint32)
        )
    return np.stack(np.broadcast_arrays(*words), -1).reshape(-1, len(columns))


def run(
    device: Any, form: Form, image: ptxkit.Texture | ptxkit.Surface, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The words that the lanes get, (lanes, gives), and the array of the texture or surface after the launch."""
    assert rows.shape[1] == form.takes
    target = device.target.name if device.target else "sm_90a"
    kernel = ptxkit.compile(program(form), device=device, target=target)["k"]
    array = np.array(image.array)
    out = np.full((len(rows), max(form.gives, 1)), 0xABABABAB, np.uint32)
    kernel(
        image.with_array(array),
        np.ascontiguousarray(rows),
        out,
        np.uint32(len(rows)),
        grid=-(-len(rows) // 128),
        block=128,
    )
    return out, array


def numbers(seed: int, count: int) -> np.ndarray:
    """Random words that do not depend on numpy's version: the low bits of a 64-bit linear congruential generator, mixed."""
    state = np.uint64(seed * 2 + 1)
    out = np.empty(count, np.uint64)
    with np.errstate(over="ignore"):
        for k in range(count):
            state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
            out[k] = (state ^ (state >> np.uint64(29))) >> np.uint64(24)
    return out.astype(np.uint32)


def uniform(seed: int, count: int, low: float, high: float) -> np.ndarray:
    """Random float32 from ``low`` to ``high``."""
    return (low + (high - low) * (numbers(seed, count) / 2.0**32)).astype(np.float32)


def texels(seed: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Random texels: integers of the whole range, or floats of several magnitudes."""
    count = int(np.prod(shape))
    if not dtype.startswith("f"):
        return numbers(seed, count).astype(f"u{np.dtype(dtype).itemsize}").view(dtype).reshape(shape)
    magnitude = np.ldexp(1.0, numbers(seed + 1, count).astype(np.int64) % 14 - 7)
    return (uniform(seed, count, -1, 1).astype(np.float64) * magnitude).astype(dtype).reshape(shape)
