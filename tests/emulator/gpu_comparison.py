"""Runs arithmetic forms on the emulator and on a GPU and reports where their results differ.

Bits are compared, except that one NaN is as good as another, and that an approximation may be as far from the emulator's
(which is nearly exact) as the manual allows. Results that PTX does not define are left out: division by zero,
``fns`` with a base above 31.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import alu_forms
import alu_oracle as oracle
import ml_dtypes
import numpy as np
import ptxas_oracle
from alu_forms import THREADS, Form

from ptxkit.compiler import assemble
from ptxkit.compiler.image import Image
from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.isa.parser import parse

INPUT_ROWS, OUTPUT_ROWS, BLOCK = 5, 3, 256


@dataclass(frozen=True)
class Difference:
    """One form whose results differ: in how many threads, and the first of them."""

    form: str
    count: int
    operands: tuple[str, ...]
    gpu: str
    emulator: str


def valid(forms: Sequence[Form], target: str, version: str) -> list[Form]:
    """The forms that ptxas takes for a target."""
    refused = ptxas_oracle.refused([alu_forms.statement(f) for f in forms], target, version)
    return [f for n, f in enumerate(forms) if n not in refused]


def words(form: Form) -> np.ndarray:
    """uint64 [INPUT_ROWS, THREADS]: the inputs of a form's kernel."""
    rows = alu_forms.inputs(form, THREADS)
    out = np.zeros((INPUT_ROWS, THREADS), np.uint64)
    out[: len(rows)] = rows
    return out


def emulate_and_assemble(forms: Sequence[Form], target: str, version: str) -> tuple[Image, np.ndarray]:
    """The cubin of one module with these forms, and the results of the emulator: uint64 [form, OUTPUT_ROWS, THREADS]."""
    text = alu_forms.module(forms, target, version)
    image = assemble(text, target=target, name="alu_forms.ptx", lineinfo=False, cache=False)
    machine = Machine(capacity=1 << 28, workers=1)
    program = machine.load(parse(text, "alu_forms.ptx"), target)
    source, destination = machine.allocate(INPUT_ROWS * THREADS * 8), machine.allocate(OUTPUT_ROWS * THREADS * 8)
    results = np.zeros((len(forms), OUTPUT_ROWS, THREADS), np.uint64)
    params = np.array([source, destination], np.uint64).tobytes()
    for n, form in enumerate(forms):
        machine.write(source, words(form))
        machine.write(destination, results[n])
        program.launch(
            f"k{n}",
            params,
            grid=(THREADS // BLOCK, 1, 1),
            block=(BLOCK, 1, 1),
            settings=EmulatorSettings(counting=False),
        )
        results[n] = machine.read(destination, OUTPUT_ROWS * THREADS * 8).view(np.uint64).reshape(OUTPUT_ROWS, THREADS)
    return image, results


def compare_all(
    forms: Sequence[Form], gpu: Any, pool: Executor, version: str, batch: int = 64
) -> Iterator[tuple[int, list[Difference]]]:
    """(forms done, their differences) for each batch of ``forms``; the emulator and ptxas run in the pool's processes."""
    target = gpu.target.name
    batches = [forms[k : k + batch] for k in range(0, len(forms), batch)]
    jobs = [pool.submit(emulate_and_assemble, b, target, version) for b in batches]
    source, destination = gpu.empty((INPUT_ROWS, THREADS), np.uint64), gpu.empty((OUTPUT_ROWS, THREADS), np.uint64)
    zero = np.zeros((OUTPUT_ROWS, THREADS), np.uint64)
    for part, job in zip(batches, jobs, strict=True):
        image, emulated = job.result()
        loaded = gpu.load(image)
        found = []
        for n, form in enumerate(part):
            source.copy_from(words(form))
            destination.copy_from(zero)
            loaded[f"k{n}"](source, destination, grid=THREADS // BLOCK, block=BLOCK)
            found += compared(form, destination.numpy(), emulated[n])
        yield len(part), found


def compared(form: Form, gpu: np.ndarray, emulator: np.ndarray) -> list[Difference]:
    """At most one difference per form."""
    destinations, sources = form.types()
    given = words(form)
    defined = _defined(form, given)
    for row, t in enumerate(destinations):
        bits = 8 if t.name in ("byte", "e2m1x2") else max(t.bits, 16)
        stored = np.uint64((1 << bits) - 1)
        a, b = gpu[row] & stored, emulator[row] & stored
        wrong = np.flatnonzero((a != b) & defined)
        wrong = wrong[~_excused(form, t.name, given[:, wrong], a[wrong], b[wrong])]
        if wrong.size:
            at = int(wrong[0])
            real = [s for s in sources if s.name != "cc"]
            operands = tuple(hex(int(given[k][at]) & (1 << s.bits) - 1) for k, s in enumerate(real))
            return [Difference(str(form), int(wrong.size), operands, hex(int(a[at])), hex(int(b[at])))]
    return []


def _defined(form: Form, given: np.ndarray) -> np.ndarray:
    """Lanes in which PTX defines the result."""
    parts = form.opcode.split(".")
    if parts[0] in ("div", "rem") and parts[-1][0] in "us":
        return given[1] & np.uint64((1 << int(parts[-1][1:])) - 1) != 0
    if form.opcode.startswith("div.approx"):  # documented for divisors from 2^-126 upwards
        return given[1] & np.uint64(0x7FFFFFFF) >= np.uint64(0x00800000)
    if parts[0] == "fns":
        return given[1] & np.uint64(0xFFFFFFFF) < np.uint64(32)
    return np.ones(THREADS, np.bool_)


def _excused(form: Form, name: str, given: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Lanes whose difference is allowed: both results are NaN, or an approximation is within its error."""
    element = name.removesuffix("x2")
    if element not in oracle.FORMATS:
        return np.zeros(len(a), np.bool_)
    width = oracle.FORMATS[element].bits
    mask, infinity = np.uint64((1 << width) - 1), np.uint64(oracle.FORMATS[element].infinity)
    magnitude = mask >> np.uint64(1)
    fine = np.ones(len(a), np.bool_)
    for shift in (0, width) if name.endswith("x2") else (0,):
        x, y = ((v >> np.uint64(shift)) & mask for v in (a, b))
        both_nan = ((x & magnitude) > infinity) & ((y & magnitude) > infinity)
        fine &= (x == y) | both_nan | _close(form, element, (given[0] >> np.uint64(shift)) & mask, x, y)
    return fine


def values(bits: np.ndarray, t: str) -> np.ndarray:
    """Bits as float64."""
    kinds: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
    return bits.astype(f"u{oracle.FORMATS[t].bits // 8}").view(kinds[t]).astype(np.float64)


def _close(form: Form, t: str, source: np.ndarray, gpu: np.ndarray, emulator: np.ndarray) -> np.ndarray:
    """Whether an approximation is within the error that the manual documents, and half a unit for the emulator's rounding."""
    name, *modifiers = form.opcode.split(".")
    if "approx" not in modifiers and "full" not in modifiers:
        return np.zeros(len(gpu), np.bool_)
    x, y, a = values(gpu, t), values(emulator, t), values(source, t)
    with np.errstate(all="ignore"):
        size = np.abs(y)
        ulp = np.spacing(size.astype(np.float32)).astype(np.float64) if t == "f32" else size * 2.0**-52
        allowed = {
            "rcp": ulp if t == "f32" else size * 2.0**-20,
            "div": 2 * ulp,
            "sqrt": size * 2.0**-23,
            "rsqrt": size * (2.0**-22.9 if t == "f32" else 2.0**-20 if "ftz" in modifiers else 2.0**-50),
            "sin": _circular(a),
            "cos": _circular(a),
            "lg2": np.where((a > 0.5) & (a < 2), 2.0**-22, size * 2.0**-22),
            "ex2": {"f32": 2 * ulp, "f16": size * 2.0**-9.9, "bf16": size * 2.0**-7}.get(t, ulp),
            "tanh": {"f32": size * 2.0**-11, "f16": 2.0**-10.987, "bf16": 2.0**-8}.get(t, ulp),
        }[name]
        half = {"f32": ulp / 2, "f16": size * 2.0**-11, "bf16": size * 2.0**-8}.get(t, ulp)
        close = np.abs(x - y) <= allowed + half
        if name in ("sin", "cos"):
            close |= np.isinf(allowed) & np.isfinite(x)
        if "ftz" in modifiers and t == "f32":  # next to the smallest normal value, one may be flushed and the other not
            close |= (np.maximum(np.abs(x), size) <= 2.0**-126 * 1.001) & (np.signbit(x) == np.signbit(y))
    return close


def _circular(a: np.ndarray) -> np.ndarray:
    """Absolute error of sin and cos; none is defined beyond 100 pi."""
    return np.where(np.abs(a) <= 2 * np.pi, 2.0**-20.5, np.where(np.abs(a) <= 100 * np.pi, 2.0**-14.7, np.inf))
