"""Descriptions with one mistake each: one line that names the place in the user's file, and no traceback."""

from __future__ import annotations

import pytest

from ptxkit.errors import DescriptionError, PtxkitError
from ptxkit.runtime.device import device
from ptxkit.workload import registry

RIGHT = """import numpy as np
from typing import Literal
from ptxkit import Launch, Work, Workload, cdiv, variant

class Doubled(Workload):
    source = "doubled.cu"
    n: int = 64
    dtype: Literal["f32"] = "f32"
    emulator_sizes = {"n": 32}

    def inputs(self, rng):
        return {"x": rng.random(self.n, np.float32)}

    def reference(self, x):
        return {"y": 2.0 * x.astype(np.float64)}

    def temporaries(self):
        return {"t": (self.n, "f32")}

    def work(self):
        return Work(flops=self.n, bytes=8 * self.n)

    @variant(tile={"THREADS": [32, 64]})
    def unfused(self, t):
        return [Launch("copy", 2, t.THREADS, ("x", "t", self.n)), Launch("twice", 2, t.THREADS, ("t", "y", self.n))]

    @variant(tile={"THREADS": [32, 64]})
    def fused(self, t):
        return [Launch("twice", 2, t.THREADS, ("x", "y", self.n), shared=4 * self.n)]
"""
SOURCE = """
extern "C" __global__ void copy(const float* x, float* t, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) t[i] = x[i];
}
extern "C" __global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
"""


@pytest.fixture
def ran(tmp_path):
    """Run the description with something replaced; the report."""

    def run(old="", new="", **options):
        from ptxkit.bench.measure.run import Run

        assert old in RIGHT
        (tmp_path / "doubled.py").write_text(RIGHT.replace(old, new) if old else RIGHT)
        (tmp_path / "doubled.cu").write_text(SOURCE)
        kernel = registry.load_file(tmp_path / "doubled.py")
        return Run(kernel.make(options.pop("sizes", ()), small=True), device("emulator"), **options).run()

    return run


def test_without_a_mistake(ran):
    assert [v.verified for v in ran().cases[0].rows] == [True, True]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('{"t": (self.n, "f32")}', "np.float32", "doubled.py:17: temporaries() must return a dict, not <class"),
        ('{"t": (self.n, "f32")}', '{"t": np.float32}', "doubled.py:17: temporaries(): t: an array is (shape, dtype)"),
        ('{"t": (self.n, "f32")}', '{"t": (self.n / 2, "f32")}', "t: the shape of an array is whole numbers, not 16.0"),
        ('{"t": (self.n, "f32")}', '{"t": (4, "flaot")}', "doubled.py:17: temporaries(): t: there is no dtype 'flaot'"),
        ('{"t": (self.n, "f32")}', "{}", "is called 't'; there are x, y; temporaries() declares"),
        ("rng.random(", "rgn.random(", "doubled.py:12: NameError: name 'rgn' is not defined"),
        ("reference(self, x)", "reference(self, z)", "doubled.py:14: TypeError: "),
        ("x.astype(np.float64)}", "x.shap}", "doubled.py:15: AttributeError: "),
        ('{"y": 2.0 * x.astype(np.float64)}', "x", "doubled.py:14: reference() must return a dict, not "),
        ("Work(flops=self.n, bytes=8 * self.n)", "(1, 2)", "doubled.py:20: work() must return a Work, not (1, 2)"),
        ('{"n": 32}', '{"m": 32}', "emulator_sizes names 'm', which is not a field; "),
        ('{"n": 32}', '{"dtype": "f32"}', "emulator_sizes names dtype; sizes are the fields with type int: n"),
        ('emulator_sizes = {"n": 32}', 'benchmarks = ({"m": 3},)', "benchmarks names 'm', which is not a field"),
        ('{"THREADS": [32, 64]}', '{"THREADS": 32}', "doubled.py:23: tile parameter THREADS takes a list of values"),
        ('{"THREADS": [32, 64]}', '{"THREADS": "32"}', "tile parameter THREADS takes a list of values"),
        ("def unfused(self, t)", "def unfused(self)", "doubled.py:25: NameError: name 't' is not defined"),
        ("[32, 64]})", "[32, 64]}, constraint=lambda w, t: w.m)", "doubled.py:23: AttributeError: "),
        ("[32, 64]})", "[32, 64]}, prefer=lambda w: 3)", "doubled.py:23: TypeError: "),
        ("def work", "def wrok", "doubled: Doubled has no work()"),
        ('{"t": (self.n', '{"x": (self.n', "doubled: temporaries() has 'x', which is an input; choose another name"),
        ('{"t": (self.n', '{"y": (self.n', "doubled: temporaries() has 'y', which is an output; choose another name"),
        ('source = "doubled.cu"', "source = 3", "doubled: source is the path of a file, not 3"),
        (
            "    def work",
            "    def constraints(self):\n        return 'no'\n\n    def work",
            "doubled.py:20: constraints() must return a list of complaints, not 'no'",
        ),
        ("    def work", "    work = lambda self: 3\n\n    def wrok", "doubled.py:20: work() must return a Work, not 3"),
    ],
)
def test_a_mistake_is_a_line(ran, old, new, complaint):
    with pytest.raises(DescriptionError) as raised:
        ran(old, new)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


def test_methods_may_be_lambdas(ran):
    old = "    def work(self):\n        return Work(flops=self.n, bytes=8 * self.n)"
    rows = ran(old, "    work = lambda self: Work(flops=self.n, bytes=8 * self.n)").cases[0].rows
    assert [v.verified for v in rows] == [True, True]


def test_constraints_may_fail_while_they_are_asked(ran):
    with pytest.raises(DescriptionError, match=r"doubled\.py:12: ZeroDivisionError"):
        ran(
            "    def inputs(self, rng):",
            "    def constraints(self):\n        yield 1 / 0\n\n    def inputs(self, rng):",
        )


def test_a_variant_that_these_sizes_do_not_suit_leaves_the_others(ran):
    unfused, fused = ran(sizes=(1_000_000,)).cases[0].rows
    assert unfused.error is None
    assert "has no tile for n=1000000" in str(fused.error)
    for asked in ({"variants": ["fused"]}, {"tile": {"THREADS": "64"}}):
        with pytest.raises(PtxkitError, match="has no tile"):
            ran(sizes=(1_000_000,), **asked)


def test_an_interrupt_is_not_blamed_on_a_description(ran):
    with pytest.raises(KeyboardInterrupt):
        ran("return Work(", "raise KeyboardInterrupt\n        return Work(")


def test_a_mistake_in_a_bundled_description_keeps_its_traceback(monkeypatch):
    saxpy = registry.get("saxpy")
    monkeypatch.setattr(saxpy, "work", lambda self: self.nothing)
    with pytest.raises(AttributeError):
        saxpy().bytes_needed()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            "    def work",
            "    def outputs(self):\n        return {'y': ((self.n, 2), 'f32')}\n\n    def work",
            r"^doubled\.py:14: doubled: the reference of y has shape \(32,\), the output \(32, 2\)",
        ),
        ("2.0 * x.astype(np.float64)}", "'hello'}", r"^doubled\.py:14: .*dtype <U5; outputs are compared as real numbers$"),
        ("Work(flops=self.n", "Work(flops=-1", r"^doubled\.py:21: flops of a Work"),
        ('{"t": (self.n', '{"x": (self.n', r"^doubled\.py:17: doubled: temporaries\(\) has 'x'"),
        ('source = "doubled.cu"', 'source = "no.cu"', r"^doubled\.py:\d+: doubled: there is no no\.cu in"),
    ],
)
def test_a_mistake_that_is_found_later_has_its_place(ran, old, new, complaint):
    with pytest.raises(DescriptionError, match=complaint):
        ran(old, new)
