"""Fixtures of several kernels' tests."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ptxkit.inspect.disassembly import sass
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.workload import Workload

sys.path.insert(0, str(Path(__file__).parent))  # for ptxkit_*.py; tests are imported without their directory


@pytest.fixture
def few_ctas(monkeypatch):
    """A device on which persistent kernels launch two CTAs, or one cluster, so that each computes several tiles."""
    monkeypatch.setattr(Workload, "device", replace(reference_facts("sm_90a"), sms=2))


@pytest.fixture
def maxima_between_waits():
    """A function of a workload and the name of a variant: the maxima in its machine code between each wait for scores, while a
    product with values is in flight, and the next wait for wgmma."""

    def count(workload, variant):
        image = build(workload, workload.variant(variant), Target.parse("sm_90a")).images[-1]
        function = max(sass(image).values(), key=lambda each: len(each.instructions))  # a small kernel may be beside it
        counts = []
        since = None  # maxima since the wait for scores
        for instruction in map(str, function.instructions):
            if "WARPGROUP.DEPBAR" in instruction:
                if since is not None:
                    counts.append(since)
                since = 0 if instruction.endswith("0x1") else None
            elif since is not None:
                since += "FMNMX" in instruction
        return counts

    return count


@pytest.fixture
def between_others(device):
    """A function of a workload of attention with three sequences and the name of a variant: the results of the second sequence
    must have the same bits if everything in the others is NaN or infinite."""
    tokens = {"query": 0, "do": 0, "o": 0, "dq": 0, "lse": 1, "key": 0, "value": 0, "dk": 0, "dv": 0}  # array -> their axis

    def compare(workload, variant):
        inputs = workload.inputs(np.random.default_rng(1))

        def part(name, array, sequence):
            rows = workload.rows(sequence)[name in ("key", "value", "dk", "dv")]
            return array[(slice(None),) * tokens[name] + (rows,)]

        def computed():
            case = execute.Case(workload, device, inputs=inputs)
            prepared = execute.prepare(case, workload.variant(variant))
            case.reset()
            prepared.launch()
            device.synchronize()
            return {name: part(name, array, 1).copy() for name, array in case.outputs().items()}

        clean = computed()
        assert all(np.isfinite(array.astype(np.float32)).all() for array in clean.values())
        for name in tokens.keys() & inputs.keys():
            part(name, inputs[name], 0)[...] = np.nan
            part(name, inputs[name], 2)[...] = np.inf
        found = computed()
        assert [name for name in clean if clean[name].tobytes() != found[name].tobytes()] == []

    return compare
