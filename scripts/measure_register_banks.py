"""Measures the register-bank conflicts of FFMA on the GPU of this machine, and compares them with ptxkit.inspect.banks.

    python scripts/measure_register_banks.py

A loop of 256 FFMA is compiled once; its register numbers and scheduling fields are then patched in the cubin, a pattern at a
time, and the loop is timed by the SM's clock with one and with two warps a sub-partition. Values mean nothing: they are all
zero, and dependences are not waited for. Prints measured and modelled cycles an FFMA, and how well the model fits.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import numpy as np
from tabulate import tabulate

import ptxkit
from ptxkit.bench.measure.environment import require_gpu
from ptxkit.compiler.elf import Cubin
from ptxkit.compiler.image import Image
from ptxkit.compiler.nvrtc import compile_source
from ptxkit.errors import PtxkitError
from ptxkit.inspect.banks import bank_stalls
from ptxkit.inspect.disassembly import sass
from ptxkit.runtime.device import Device
from ptxkit.targets import Target

COUNT = 256
ROUNDS = (50, 250)
OPCODE_FFMA = 0x223
REGISTERS = 96
SOURCE = r"""
extern "C" __global__ __launch_bounds__(256, 1) void banks(float* out, long long* cycles, int rounds) {
    float v[96];
#pragma unroll
    for (int i = 0; i < 96; ++i) v[i] = out[threadIdx.x + i * 256];
    __syncthreads();
    long long start = clock64();
#pragma unroll 1
    for (int k = 0; k < rounds; ++k) {
#pragma unroll
        for (int i = 0; i < 256; ++i) v[i % 96] = fmaf(v[i % 96], v[(i * 7 + 3) % 96], v[(i * 5 + 1) % 96]);
    }
    __syncthreads();
    long long stop = clock64();
#pragma unroll
    for (int i = 0; i < 96; ++i) out[threadIdx.x + i * 256] = v[i];
    if (threadIdx.x == 0) cycles[blockIdx.x] = stop - start;
}
"""
Row = tuple[int, int, int, int, int]  # destination, three operands, bits of the slots that are kept


def patterns(registers: list[int]) -> Iterator[tuple[str, list[Row]]]:
    """Names and operands of COUNT instructions, of these registers."""
    by = [[r for r in registers if r % 4 == k] for k in range(4)]
    even, odd = by[0] + by[2], by[1] + by[3]

    def rows(a: list[int], b: list[int], c: list[int], run: int) -> list[Row]:
        def row(i: int) -> Row:
            kept = int(run > 1 and i % run != run - 1)
            return c[(i + 9) % len(c)], a[i // run % len(a)], b[(i + 3) % len(b)], c[(i + 6) % len(c)], kept

        return [row(i) for i in range(COUNT)]

    for run in (1, 16, 8):
        for a, b, c in ((0, 0, 0), (0, 2, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 0), (1, 2, 3)):
            held = f", the first held for {run}" if run > 1 else ""
            yield f"registers of remainders {a} {b} {c}{held}", rows(by[a], by[b], by[c], run)
    same = [(even[(i + 5) % len(even)], *[even[i % len(even)]] * 3, 0) for i in range(COUNT)]
    yield "one register three times", same  # type: ignore[misc]
    turns = [rows((even, odd)[i % 2], (even, odd)[i % 2], (even, odd)[i % 2], 1)[i] for i in range(COUNT)]
    yield "one bank, then the other", turns
    generator = random.Random(0)
    for number in range(6):
        pick: Callable[[], int] = lambda: generator.choice(registers)  # noqa: E731
        yield f"random {number}", [(pick(), pick(), pick(), pick(), 0) for _ in range(COUNT)]
        kept = [pick() for _ in range(COUNT // 8)]
        held_rows = [(pick(), kept[i // 8], pick(), pick(), int(i % 8 != 7)) for i in range(COUNT)]
        yield f"random {number}, the first held for 8", held_rows


class Patched:
    """The compiled loop, and copies of it with other registers."""

    def __init__(self, target: Target | str) -> None:
        self.image = compile_source(SOURCE, target=target, lineinfo=False, name="banks.cu")
        cubin = Cubin(self.image.cubin or b"")
        self.encodings = cubin.encodings("banks")
        self.offset = cubin.texts["banks"].offset
        self.places = [n for n, word in enumerate(self.encodings) if word & 0xFFF == OPCODE_FFMA]
        if len(self.places) != COUNT:
            raise SystemExit(
                f"the compiler made {len(self.places)} FFMA of {COUNT}; this script needs its loop as it is"
            )
        self.registers = sorted({self.encodings[n] >> 16 & 0xFF for n in self.places})

    def with_rows(self, rows: list[Row]) -> Image:
        """The image with these registers."""
        data = bytearray(self.image.cubin or b"")
        for place, (d, a, b, c, kept) in zip(self.places, rows, strict=True):
            control = 1 | 1 << 4 | 7 << 5 | 7 << 8 | kept << 17  # stall 1, no scoreboards: ptxkit/inspect/control.py
            fields = 0xFF << 16 | 0xFF << 24 | 0xFF << 32 | 0xFF << 64
            word = self.encodings[place] & (1 << 105) - 1 & ~fields
            word |= d << 16 | a << 24 | b << 32 | c << 64 | control << 105
            at = self.offset + 16 * place
            data[at : at + 16] = word.to_bytes(16, "little")
        key = hashlib.sha256(data).hexdigest()
        return dataclasses.replace(self.image, cubin=bytes(data), key=key)


def measured(device: Device, image: Image, threads: int) -> float:
    """Cycles per FFMA of a sub-partition, from the difference of two runs, so that the time outside the loop cancels."""
    kernel = device.load(image)["banks"]
    values = device.upload(np.zeros(REGISTERS * 256, np.float32))
    found = []
    for rounds in ROUNDS:
        cycles = device.upload(np.zeros(device.multiprocessors, np.int64))
        kernel(values, cycles, np.int32(rounds), grid=device.multiprocessors, block=threads)
        found.append(median(cycles.numpy().tolist()))
    return float(found[1] - found[0]) / ((ROUNDS[1] - ROUNDS[0]) * COUNT * threads / 128)


def modelled(image: Image) -> float:
    """Cycles per FFMA by the model."""
    code = [i for i in sass(image)["banks"].instructions if i.opcode == "FFMA"]
    return 1 + sum(bank_stalls(code, fma_cycles=1)) / len(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(arguments)
    try:
        report(ptxkit.device())
    except PtxkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def report(device: Device) -> None:
    """Measure every pattern and print the table."""
    require_gpu(device, "measuring")
    patched = Patched(device.target or "sm_90a")
    rows = []
    for name, operands in patterns(patched.registers):
        image = patched.with_rows(operands)
        rows.append((name, measured(device, image, 128), measured(device, image, 256), modelled(image)))
    print(tabulate(rows, ["pattern", "one warp", "two warps", "model"], floatfmt=".3f"))
    ranks = [np.argsort(np.argsort([row[k] for row in rows])) for k in (2, 3)]
    off = sum(abs(row[3] - row[2]) for row in rows) / len(rows)
    ranked = np.corrcoef(*ranks)[0, 1]
    print(f"\n{device.name}: {len(rows)} patterns, {off:.3f} cycles off on average, rank correlation {ranked:.2f}")


if __name__ == "__main__":
    sys.exit(main())
