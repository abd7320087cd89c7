"""Compare the tensor cores' arithmetic with what other projects recorded on Blackwell GPUs, and list what differs.

    python scripts/compare_recorded_words.py [--matlab DIRECTORY] [--tcgen05 FILE] [--mma-kinds FILE]

DIRECTORY is ``model_validation/B200`` of github.com/north-numerical-computing/MATLAB-tensor-core (BSD-2-Clause): operands and
results of mma.sync, one dot product a line. The FILE of ``--tcgen05`` holds the words of ``tcgen05_model/validation.py`` of
github.com/sf-tensor/tcgen05 (MIT) as JSON: ``{"words": [...]}``, each with name, fa, fb, d (types of A, B, D), a, b (lists of
words), c, word (the result), kind, scale (type of scale factors), sa, sb (their bits), sat. The FILE of ``--mma-kinds`` has
lines "name hash" of mma.sync with ``.kind`` on an RTX PRO 6000 (sm_120), as ``mma_blockscale.txt`` of
github.com/pantheongpu/pantheonsim; its operands are computed here as there. None of these data are part of this project.
Exits with 1 when something differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/emulator/tensor_core"))

import matrix_programs

from ptxkit.emulator.tensor_core.accumulation import accumulation
from ptxkit.emulator.tensor_core.tcgen05_arithmetic import products
from ptxkit.runtime.device import device

B200 = 100


def main(arguments: list[str]) -> int:
    """Compare, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(
        description="Compare tensor core arithmetic with results recorded on Blackwell GPUs."
    )
    parser.add_argument("--matlab", type=Path, help="directory model_validation/B200 of MATLAB-tensor-core")
    parser.add_argument("--tcgen05", type=Path, help="JSON file of the words of sf-tensor/tcgen05")
    parser.add_argument("--mma-kinds", type=Path, help="file of names and hashes, mma_blockscale.txt of pantheonsim")
    given = parser.parse_args(arguments)
    rows: list[tuple[str, int, int]] = []
    if given.matlab:
        rows += matlab(given.matlab)
    if given.tcgen05:
        rows += tcgen05(json.loads(given.tcgen05.read_text())["words"])
    if given.mma_kinds:
        lines = [line.split() for line in given.mma_kinds.read_text().splitlines()]
        rows += mma_kinds({line[0]: line[1] for line in lines if len(line) == 2 and "_" in line[0]})
    if not rows:
        parser.error("name the data with --matlab, --tcgen05 or --mma-kinds")
    rows.append(("all", sum(r[1] for r in rows), sum(r[2] for r in rows)))
    print(tabulate(rows, headers=("words of", "compared", "different")))
    return 1 if rows[-1][2] else 0


def hexadecimal(path: Path) -> Any:
    """(rows, K) float32, written as hexadecimal words."""
    rows = [[int(word, 16) for word in line.split()] for line in path.read_text().splitlines()]
    return np.array(rows, np.uint32).view(np.float32)


def binary(path: Path) -> Any:
    """(rows,) float32, written as 32 binary digits."""
    return np.array([int(line, 2) for line in path.read_text().split()], np.uint32).view(np.float32)


def matlab(directory: Path) -> list[tuple[str, int, int]]:
    """Name, words and differences of each file of results of mma.sync."""
    rows = []
    for folder in sorted(p for p in directory.iterdir() if p.is_dir()):
        t = {"fp16": "f16"}.get(folder.name, folder.name.lower())
        a, b = (hexadecimal(next(folder.glob(f"{name}_*.txt"))) for name in "ab")
        c = binary(next(folder.glob("c_*.txt")))
        model = accumulation("mma", t, B200)
        for results in sorted(folder.glob("d_*.txt")):
            half = "fp16" in results.name
            addend = c.astype(np.float16 if half else np.float32)
            got = model.dot(a[:, None, :], b[:, :, None], addend[:, None, None], t, t)[:, 0, 0]
            want = binary(results)
            different = got.astype(np.float32).view(np.uint32) != want.view(np.uint32)
            rows.append((f"mma.sync {t} to {'f16' if half else 'f32'}", len(want), int(different.sum())))
    return rows


def tcgen05(words: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Name, words and differences of each kind of tcgen05.mma."""
    counts: dict[str, list[int]] = {}
    for word in words:
        kind = word["kind"] or {"tf32": "tf32", "f16": "f16", "bf16": "f16"}.get(word["fa"], "f8f6f4")
        a, b = (np.array([word[name]], np.uint32) for name in "ab")
        if word["fa"] == "bf16" and max(word["a"] + word["b"]) > 0xFFFF:  # the upper half of an f32
            a, b = a >> 16, b >> 16
        more: dict[str, Any] = {}
        if word["sa"]:
            more = {"scale_" + name: np.array([word["s" + name]], np.uint8) for name in "ab"}
            more |= {"scale_type": word["scale"], "block": len(word["a"]) // len(word["sa"])}
        types = {"a_type": word["fa"], "b_type": word["fb"], "d_type": word["d"]}
        accumulator = np.array([[word["c"]]], np.uint32)
        got = int(products(kind, a, b, accumulator, saturate=bool(word["sat"]), **types, **more)[0, 0])
        count = counts.setdefault(f"tcgen05.mma {kind}", [0, 0])
        count[0] += 1
        if got != word["word"]:
            count[1] += 1
            print(f"{word['name']}: {got:#010x}, recorded {word['word']:#010x}")
    return [(name, *count) for name, count in counts.items()]


def mma_kinds(hashes: dict[str, str]) -> list[tuple[str, int, int]]:
    """Name, hashes and differences of mma.sync with .kind; each hash covers the 128 words of one instruction."""
    emulator = device("emulator")
    given = blockscale_operands()
    different = 0
    for name, recorded in hashes.items():
        got = blockscale_hash(emulator, name, given)
        if got != recorded:
            different += 1
            print(f"{name}: {got}, recorded {recorded}")
    return [("mma.sync .kind, sm_120 (hashes)", len(hashes), different)]


def blockscale_operands() -> Any:
    """(11, 32) uint64: registers of A, B, scale factors of A and B, metadata and the rest of a sparse form's B."""
    words = [(i * 2654435761 & 0xFFFFFFFF) ^ (i >> 3) * 40503 for i in range(352)]
    for i in range(192, 256):
        words[i] = sum(123 + (i * 7 + b * 3) % 8 << 8 * b for b in range(4))
    for i in range(256, 288):
        words[i] = 0x44444444 if i & 1 else 0x4E4E4E4E
    return np.array(words, np.uint64).reshape(11, 32)


def blockscale_hash(emulator: Any, name: str, given: Any) -> str:
    """The hash of one instruction's results, whose name is like ``mx8_e4m3_e2m1_s1123``: types and selectors."""
    family, *parts = name.split("_")
    selectors = next((p[1:] for p in parts if p.startswith("s") and p[1:].isdigit()), "")
    sparse = family == "sp"
    if family == "f8f6f4":
        modifiers = f"m16n8k32.row.col.kind::f8f6f4.f32.{parts[0]}.{parts[1]}.f32"
    elif family in ("mx8", "sp"):
        a, b = ("e4m3", "e4m3") if sparse else parts[:2]
        modifiers = (
            f"m16n8k{64 if sparse else 32}.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.{a}.{b}.f32.ue8m0"
        )
    else:
        kind, vector, t = ("mxf4", "2X", "ue8m0") if family == "mxf4" else ("mxf4nvf4", parts[0], parts[1])
        modifiers = f"m16n8k64.row.col.kind::{kind}.block_scale.scale_vec::{vector}.f32.e2m1.e2m1.f32.{t}"
    b_registers = [4, 5, 9, 10] if sparse else [4, 5]
    a_text, b_text = (", ".join(f"%x{i}" for i in r) for r in (range(4), b_registers))
    operands = f"{{%y0, %y1, %y2, %y3}}, {{{a_text}}}, {{{b_text}}}, {{%x11, %x12, %x13, %x14}}"
    operands += ", %x8, 0" if sparse else ""
    if selectors:
        operands += f", %x6, {{{selectors[0]}, {selectors[1]}}}, %x7, {{{selectors[2]}, {selectors[3]}}}"
    opcode = "mma.sp::ordered_metadata" if sparse else "mma"
    body = f"{opcode}.sync.aligned.{modifiers} {operands};"
    text = matrix_programs.program(body, ["b32"] * 11 + ["f32"] * 4, ["f32"] * 4, target="sm_120a", version="9.0")
    lane = np.arange(32, dtype=np.float32)
    c = np.stack([lane / 2, np.full(32, 1), np.full(32, -2), np.full(32, 0.25)]).astype(np.float32).view(np.uint32)
    found = matrix_programs.run(emulator, text, np.concatenate([given, c.astype(np.uint64)]), 4)
    total = 1469598103934665603
    for results in found.T.tolist():
        word = 2166136261
        for result in results:
            word = (word ^ result) * 16777619 & 0xFFFFFFFF
        total = (total ^ word) * 1099511628211 & 0xFFFFFFFFFFFFFFFF
    return f"{total:016x}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
