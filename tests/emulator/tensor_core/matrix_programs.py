"""Generated PTX around one matrix instruction, run on a device; elements packed into registers by the manual's formulas.

Every thread loads its registers from ``input[register][thread]``, executes the instruction, and stores its results to
``output[register][thread]``. Nothing here uses the emulator's own tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ptxkit.compiler import assemble

Place = Callable[[int, int], tuple[int, int]]
"""(lane, element) -> (row, column)."""

DTYPES: dict[str, Any] = {
    "f64": np.float64,
    "f32": np.float32,
    "tf32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
    "s4": np.int8,
    "u4": np.uint8,
    "b1": np.uint8,
    "s32": np.int32,
}
BITS = {"f64": 64, "f32": 32, "tf32": 32, "s32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}
BITS |= {"s4": 4, "u4": 4, "b1": 1}


def integers(rng: np.random.Generator, shape: tuple[int, ...], t: str, high: int = 8) -> np.ndarray:
    """Integer-valued data of an element type."""
    low, top = {"u8": (0, 256), "s8": (-128, 128), "s4": (-8, 8), "u4": (0, 16), "b1": (0, 2)}.get(t, (-high, high + 1))
    return rng.integers(low, top, shape).astype(DTYPES[t])


def as_float(matrix: np.ndarray) -> np.ndarray:
    """A matrix of any element type as float64."""
    return matrix.astype(np.float32).astype(np.float64) if matrix.dtype.itemsize < 4 else matrix.astype(np.float64)


def to_bits(matrix: np.ndarray, t: str) -> np.ndarray:
    """Elements as unsigned integers of their width, in uint64."""
    unsigned = np.ascontiguousarray(matrix).view(f"u{max(1, matrix.dtype.itemsize)}").astype(np.uint64)
    return unsigned & np.uint64((1 << BITS[t]) - 1 if BITS[t] < 64 else 0xFFFF_FFFF_FFFF_FFFF)


def pack(matrix: np.ndarray, t: str, place: Place, elements: int, lanes: int = 32) -> np.ndarray:
    """uint64 [register, lane]: the registers that hold ``elements`` elements a lane, the first in the low bits."""
    bits = BITS[t]
    each = max(1, 32 // bits)
    source = to_bits(matrix, t)
    out = np.zeros((-(-elements // each), lanes), np.uint64)
    for lane in range(lanes):
        for i in range(elements):
            out[i // each, lane] |= source[place(lane, i)] << np.uint64(bits * (i % each))
    return out


def unpack(registers: np.ndarray, t: str, place: Place, elements: int, shape: tuple[int, int]) -> np.ndarray:
    """The matrix that registers hold; the reverse of :func:`pack`."""
    bits = BITS[t]
    each = max(1, 32 // bits)
    out = np.zeros(shape, np.uint64)
    seen = np.zeros(shape, np.int64)
    for lane in range(registers.shape[1]):
        for i in range(elements):
            value = registers[i // each, lane] >> np.uint64(bits * (i % each))
            out[place(lane, i)] = value & np.uint64((1 << bits) - 1 if bits < 64 else 0xFFFF_FFFF_FFFF_FFFF)
            seen[place(lane, i)] += 1
    assert (seen == 1).all()
    return out.astype(f"u{max(1, bits // 8)}").view(DTYPES[t])


def program(
    body: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    target: str = "sm_90a",
    version: str = "8.7",
    shared: int = 0,
    before: str = "",
    wide: bool = False,
) -> str:
    """PTX of a kernel ``k(input, output)``: ``inputs`` are loaded, ``body`` runs, ``outputs`` are stored.

    Registers are %x0.. for inputs and %y0.. for outputs, of the types given (b32, f32, f64, ...). ``shared`` bytes are an
    array ``tile``, 1024-byte aligned. ``wide``: elements of the two arrays have 8 bytes instead of 4.
    """
    size = 8 if wide else 4
    declared = [f".reg .{t} %x{n};" for n, t in enumerate(inputs)] + [
        f".reg .{t} %y{n};" for n, t in enumerate(outputs)
    ]
    lines = [
        f".version {version}",
        f".target {target}",
        ".address_size 64",
        ".visible .entry k(.param .u64 source, .param .u64 destination) {",
        f".shared .align 1024 .b8 tile[{shared}];" if shared else "",
        ".reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<64>; .reg .b64 %rd<64>; .reg .f32 %f<16>;",
        *declared,
        "ld.param.u64 %rd0, [source]; ld.param.u64 %rd1, [destination];",
        "mov.u32 %r0, %tid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %nctaid.x; mul.lo.u32 %r3, %r1, %r2;",
        f"mov.u32 %r2, %ctaid.x; mad.lo.u32 %r2, %r2, %r1, %r0; mul.wide.u32 %rd2, %r2, {size};",
        f"mul.wide.u32 %rd3, %r3, {size}; add.u64 %rd4, %rd0, %rd2; add.u64 %rd5, %rd1, %rd2;",
        before,
    ]
    for n, t in enumerate(inputs):
        lines.append(f"ld.global.{t} %x{n}, [%rd4]; add.u64 %rd4, %rd4, %rd3;")
    lines.append(body)
    for n, t in enumerate(outputs):
        lines.append(f"st.global.{t} [%rd5], %y{n}; add.u64 %rd5, %rd5, %rd3;")
    return "\n".join([*lines, "ret;", "}", ""])


def names(letter: str, first: int, count: int) -> str:
    """``{%x0, %x1}``."""
    return "{" + ", ".join(f"%{letter}{first + n}" for n in range(count)) + "}"


def run(
    device: Any, text: str, registers: np.ndarray, outputs: int, *, grid: int = 1, block: int = 32, wide: bool = False
) -> np.ndarray:
    """uint64 [output, thread] after a launch on ``registers``, uint64 [input, thread]."""
    dtype = np.uint64 if wide else np.uint32
    target = next(line.split()[1] for line in text.splitlines() if line.startswith(".target"))
    image = assemble(text, target=target, name="matrix.ptx", cubin=device.kind == "gpu")
    source = device.upload(np.ascontiguousarray(registers.astype(dtype)))
    destination = device.upload(np.full((max(1, outputs), grid * block), 0xCBCBCBCB, dtype))
    device.load(image)["k"](source, destination, grid=grid, block=block)
    device.synchronize()
    return destination.numpy().astype(np.uint64)
