"""Fixtures of several kernels' tests."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ptxkit.inspect.disassembly import sass
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
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
