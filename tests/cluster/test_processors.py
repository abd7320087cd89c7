"""Which processors compile, and which are left to the processes that measure."""

from __future__ import annotations

import os

import pytest

from ptxkit.cluster import processors
from ptxkit.cluster.processors import compiling_processors


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A function that pretends a machine: for each processor, the list of those that share its core."""

    def pretend(*siblings):
        for number, text in enumerate(siblings):
            folder = tmp_path / f"cpu{number}" / "topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{text}\n")
        monkeypatch.setattr(processors, "TOPOLOGY", tmp_path)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(len(siblings))))

    return pretend


def test_one_core_is_left_to_each_gpu_with_all_its_threads(machine):
    machine(*(f"{number % 8},{number % 8 + 8}" for number in range(16)))
    assert compiling_processors(2) == [n for n in range(16) if n % 4]
    assert compiling_processors(1) == [n for n in range(16) if n % 8]


def test_siblings_may_be_a_range(machine):
    machine(*(f"{number // 2 * 2}-{number // 2 * 2 + 1}" for number in range(8)))
    assert compiling_processors(1) == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("gpus", [0, 3])
def test_all_processors_compile_without_a_gpu_and_where_there_are_few(machine, gpus):
    machine(*map(str, range(8)))
    assert compiling_processors(gpus) == list(range(8))


def test_a_processor_is_a_core_where_the_system_does_not_say(machine):
    machine(*[""] * 8)
    assert compiling_processors(2) == [1, 2, 3, 5, 6, 7]
