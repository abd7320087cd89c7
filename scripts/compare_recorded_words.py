"""Compare the tensor cores' arithmetic with words that other projects recorded on a B200, and list what differs.

    python scripts/compare_recorded_words.py [--matlab DIRECTORY] [--tcgen05 FILE]

DIRECTORY is ``model_validation/B200`` of github.com/north-numerical-computing/MATLAB-tensor-core (BSD-2-Clause): operands and
results of mma.sync, one dot product a line. FILE holds the words of ``tcgen05_model/validation.py`` of
github.com/sf-tensor/tcgen05 (MIT) as JSON: ``{"words": [...]}``, each with name, fa, fb, d (types of A, B, D), a, b (lists of
words), c, word (the result), kind, scale (type of scale factors), sa, sb (their bits), sat. Neither is part of this project.
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

from ptxkit.emulator.tensor_core.accumulation import accumulation
from ptxkit.emulator.tensor_core.tcgen05_arithmetic import products

B200 = 100


def main(arguments: list[str]) -> int:
    """Compare, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description="Compare tensor core arithmetic with words recorded on a B200.")
    parser.add_argument("--matlab", type=Path, help="directory model_validation/B200 of MATLAB-tensor-core")
    parser.add_argument("--tcgen05", type=Path, help="JSON file of the words of sf-tensor/tcgen05")
    given = parser.parse_args(arguments)
    rows: list[tuple[str, int, int]] = []
    if given.matlab:
        rows += matlab(given.matlab)
    if given.tcgen05:
        rows += tcgen05(json.loads(given.tcgen05.read_text())["words"])
    if not rows:
        parser.error("name the data with --matlab or --tcgen05")
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
