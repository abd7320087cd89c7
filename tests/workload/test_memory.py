"""Memory that a workload needs, on the device and on the host."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ptxkit.errors import UnavailableError
from ptxkit.workload import memory, registry


def test_temporaries_of_a_gpu_are_no_memory_of_the_host(monkeypatch):
    workload = registry.find("attention").make(["1", "16", "4096", "4096", "128"], {})
    moved, needed = workload.work().bytes, workload.bytes_needed()
    assert needed > 10 * moved  # the scores
    monkeypatch.setattr(memory, "free_host_bytes", lambda: 3 * moved)
    memory.check_memory(workload, SimpleNamespace(name="GPU", times=True, memory_bytes=needed))
    with pytest.raises(UnavailableError, match="on the host"):
        memory.check_memory(workload, SimpleNamespace(name="emulator", times=False, memory_bytes=needed))
    with pytest.raises(UnavailableError, match="on GPU"):
        memory.check_memory(workload, SimpleNamespace(name="GPU", times=True, memory_bytes=needed - 1))
