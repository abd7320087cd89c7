"""Finding kernels: bundled, in a user's file, offered by packages."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import types

import pytest

from ptxkit.errors import DescriptionError, UsageError
from ptxkit.workload import registry
from ptxkit.workload.launch import Generated
from ptxkit.workload.resolve import find_source

MINE = '''
import numpy as np
from ptxkit import Launch, Work, Workload, uniform, variant

class Mine(Workload):
    """Doubles."""
    source = "mine.cu"
    n: int = 8

    def inputs(self, rng): return {"x": uniform(rng, self.n)}
    def reference(self, x): return {"y": 2 * x.astype(np.float64)}
    def work(self): return Work(self.n, 8 * self.n)

    @variant
    def only(self): return [Launch("twice", 1, self.n, ("x", "y"))]
'''


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.fixture
def offered(monkeypatch):
    """Registers entry points for a test: name -> object."""
    registry._offered.cache_clear()
    modules = types.ModuleType("offered_kernels")
    monkeypatch.setitem(sys.modules, "offered_kernels", modules)
    points = []

    def offer(name, value):
        setattr(modules, name, value)
        points.append(importlib.metadata.EntryPoint(name, f"offered_kernels:{name}", registry.ENTRY_POINT_GROUP))

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    yield offer
    registry._offered.cache_clear()


def test_bundled_kernels_are_found_by_scanning():
    assert {"fused_l2norm", "saxpy"} <= set(registry.names())
    assert list(registry.names()) == sorted(registry.names())


def test_every_bundled_kernel_is_found_by_name_and_complete():
    for name in registry.names():
        workload = registry.get(name)
        assert workload.name == name
        assert workload.__doc__
        made = workload()
        assert made.bytes_needed() >= made.work().bytes > 0
        for variant in workload.variants().values():
            assert variant.description, f"{name}.{variant.name} says nothing"
            if reason := variant.refusal(made):
                assert made.options, f"{name}.{variant.name} never has a tile: {reason}"
                continue
            tile = next(variant.tiles(made))
            for launch in variant.launches(made, tile):
                source = variant.source_of(made, launch)
                assert isinstance(source, Generated) or find_source(workload, source).is_file()


@pytest.mark.parametrize("name", ["fused_l2nrm", "workload", "registry", "__init__", "no such", "../saxpy"])
def test_an_unknown_name_suggests_the_nearest(name):
    with pytest.raises(UsageError, match="there is no kernel"):
        registry.get(name)
    if name == "fused_l2nrm":
        with pytest.raises(UsageError, match="did you mean 'fused_l2norm'"):
            registry.get(name)


def test_a_users_file(mine):
    workload = registry.load_file(mine)
    assert workload.name == "mine"
    assert workload.directory() == mine.parent
    with pytest.raises(DescriptionError, match=r"mine: there is no mine\.cu in"):
        find_source(workload, "mine.cu")
    (mine.parent / "mine.cu").write_text("// beside it")
    assert find_source(workload, "mine.cu") == mine.parent / "mine.cu"
    assert find_source(workload, "saxpy.cu").name == "saxpy.cu"  # a bundled source may be used too


def test_two_files_of_one_name_stay_apart(mine, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.py").write_text(MINE.replace("n: int = 8", "n: int = 9"))
    assert (registry.load_file(mine)().n, registry.load_file(other / "mine.py")().n) == (8, 9)


def test_a_file_in_a_directory_whose_name_is_not_utf_8(tmp_path):
    directory = tmp_path / os.fsdecode(b"caf\xe9")
    directory.mkdir()
    (directory / "mine.py").write_text(MINE)
    assert registry.load_file(directory / "mine.py").name == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "must define one Workload; it defines none"),
        ("x = 1\nx +=\n", r"mine\.py:2: SyntaxError"),
        ("\n\nimport no_such_module_here", r"mine\.py:3: ModuleNotFoundError"),
        (MINE + MINE.replace("Mine", "Other"), "it defines Mine, Other"),
        (MINE.replace("n: int = 8", "n: list = 8"), None),
    ],
)
def test_a_broken_file_is_named_with_its_line(mine, text, message):
    mine.write_text(text)
    if message is None:
        with pytest.raises(DescriptionError, match="field n must be int"):
            registry.load_file(mine)()
    else:
        with pytest.raises(DescriptionError, match=message):
            registry.load_file(mine)


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        registry.load_file(tmp_path / "none.py")


def test_packages_offer_kernels(offered, mine):
    offered("mine", registry.load_file(mine))
    assert "mine" in registry.names()
    assert registry.get("mine").name == "mine"


def test_duplicates_and_strangers_raise(offered, mine):
    workload = registry.load_file(mine)
    offered("mine", workload)
    offered("again", workload)
    with pytest.raises(DescriptionError, match="two kernels are called mine"):
        registry.names()


def test_an_entry_point_that_is_no_workload(offered):
    offered("nothing", 5)
    with pytest.raises(DescriptionError, match="neither a Workload nor a module"):
        registry.names()


def test_an_entry_point_may_not_replace_a_bundled_kernel(offered, mine):
    mine.write_text(MINE.replace("class Mine", "class Saxpy"))
    offered("saxpy", registry.load_file(mine))
    with pytest.raises(DescriptionError, match="two kernels are called saxpy"):
        registry.names()
