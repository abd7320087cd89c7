"""Modules beside a description are found from any directory, and those of two descriptions are not confused."""

from __future__ import annotations

import sys

import pytest

from ptxkit.errors import DescriptionError
from ptxkit.workload import helper_modules, registry

TEXT = """
import {helper}
from ptxkit import Launch, Work, Workload, variant
class D(Workload):
    source = "d.cu"
    n: int = {helper}.SIZE
    def inputs(self, rng): return {{}}
    def reference(self): return {{}}
    def work(self): return Work(flops=1, bytes=1)
    @variant()
    def only(self): return [Launch("d", 1, 1, ())]
    def later(self):
        import {helper}_later
        return {helper}_later.SIZE
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setattr(helper_modules, "_FINDER", helper_modules._Finder())
    before, path = set(sys.modules), list(sys.meta_path)

    def make(directory, helper, size):
        folder = tmp_path / directory
        folder.mkdir(exist_ok=True)
        (folder / f"{helper}.py").write_text(f"SIZE = {size}")
        (folder / f"{helper}_later.py").write_text(f"SIZE = {size + 1}")
        (folder / "d.py").write_text(TEXT.format(helper=helper))
        return folder / "d.py"

    yield make
    sys.meta_path[:] = path
    for name in set(sys.modules) - before:
        if name.startswith("helper_of_"):
            del sys.modules[name]


def test_a_module_beside_the_description_is_found_at_once_and_later(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper_of_one.py").write_text("SIZE = 99")  # of the current directory, which does not count
    monkeypatch.syspath_prepend(str(tmp_path))
    found = registry.load_file(write("one", "helper_of_one", 3))()
    assert (found.n, found.later()) == (3, 4)


def test_two_modules_of_one_name_are_refused(write):
    registry.load_file(write("one", "helper_of_two", 3))
    with pytest.raises(DescriptionError, match="helper_of_two is .*other.helper_of_two.py here, but another description"):
        registry.load_file(write("other", "helper_of_two", 5))
    registry.load_file(write("third", "helper_of_three", 5))


def test_a_module_of_the_standard_library_is_not_hidden(write):
    file = write("one", "helper_of_four", 3)
    (file.parent / "fractions.py").write_text("raise RuntimeError")
    file.write_text(file.read_text() + "from fractions import Fraction\n")
    sys.modules.pop("fractions", None)
    registry.load_file(file)
