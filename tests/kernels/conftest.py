"""Fixtures of several kernels' tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ptxkit.targets.gpus import reference_facts
from ptxkit.workload.workload import Workload


@pytest.fixture
def few_ctas(monkeypatch):
    """A device on which persistent kernels launch two CTAs, or one cluster, so that each computes several tiles."""
    monkeypatch.setattr(Workload, "device", replace(reference_facts("sm_90a"), sms=2))
