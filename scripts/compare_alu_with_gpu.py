"""Run every arithmetic form that the GPU's target has on the emulator and on the GPU, and list those whose results differ.

    python scripts/compare_alu_with_gpu.py [PREFIX...]

With prefixes (``cvt.rn``, ``fma``) only the opcodes that start with one. Exits with 1 when something differs.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/emulator"))

import alu_forms
import gpu_comparison
import ptxas_oracle
from tabulate import tabulate

from ptxkit.errors import UnavailableError
from ptxkit.runtime.device import device

SHOWN = 60


def main(prefixes: list[str]) -> int:
    """Compare, print the table, and return the exit code."""
    try:
        gpu = device("gpu")
    except UnavailableError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    started = time.perf_counter()
    version = ptxas_oracle.newest_version()
    every = [f for f in alu_forms.forms() if not prefixes or f.opcode.startswith(tuple(prefixes))]
    forms = gpu_comparison.valid(every, gpu.target.name, version)
    differences: list[gpu_comparison.Difference] = []
    done = 0
    # spawned: a forked child would share the GPU's context
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        for count, found in gpu_comparison.compare_all(forms, gpu, pool, version):
            done += count
            differences += found
    rows = [(d.form, d.count, " ".join(d.operands), d.gpu, d.emulator) for d in differences[:SHOWN]]
    if rows:
        print(tabulate(rows, ("form", "threads", "operands", "GPU", "emulator"), disable_numparse=True))
    if len(differences) > SHOWN:
        print(f"... and {len(differences) - SHOWN} more forms")
    print(
        f"{gpu.name}, {gpu.target}: {done} of {len(every)} forms run with {alu_forms.THREADS} threads each, "
        f"{len(differences)} differ; {time.perf_counter() - started:.0f} s"
    )
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
