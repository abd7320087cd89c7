"""``assert_verified``: accepted values, and failures with the messages of the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ptxkit import Tolerance
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.elementwise.saxpy import Saxpy
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.runtime.device import device as open_device
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.testing import assert_verified
from ptxkit.workload import registry

DOCUMENT = Path(__file__).parents[1] / "docs" / "testing.md"

DESCRIPTION = """
import numpy as np
from ptxkit import Launch, Work, Workload, variant

class Broken(Workload):
    source = "broken.cu"
    n: int = 64
    def inputs(self, rng): return {"x": rng.uniform(1, 2, self.n).astype("f4")}
    def reference(self, x): return {"y": x}
    def work(self): return Work(0, 8 * self.n)
    @variant
    def good(self): return [Launch("good", 1, 64, ("x", "y", self.n))]
    @variant
    def wrong(self): return [Launch("wrong", 1, 64, ("x", "y", self.n))]
    @variant
    def faulty(self): return [Launch("faulty", 1, 64, ("x", "y", self.n))]
    @variant
    def racing(self): return [Launch("racing", 1, 64, ("x", "y", self.n))]
    @variant
    def absent(self): return [Launch("absent", 1, 64, ("x", "y", self.n))]
"""
SOURCE = """
#define KERNEL(name) extern "C" __global__ void name(const float* x, float* y, int n)
KERNEL(good) { y[threadIdx.x] = x[threadIdx.x]; }
KERNEL(wrong) { y[threadIdx.x] = x[threadIdx.x ^ 1]; }
KERNEL(faulty) { y[threadIdx.x + n] = 0; }
KERNEL(racing) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = x[threadIdx.x] + 0 * s[threadIdx.x ^ 32];
}
"""


@pytest.fixture
def broken(tmp_path):
    (tmp_path / "broken.py").write_text(DESCRIPTION)
    (tmp_path / "broken.cu").write_text(SOURCE)
    return registry.load_file(tmp_path / "broken.py")


def test_every_variant_is_returned(device):
    results = assert_verified(Saxpy(n=100), device=device, seed=range(2))
    assert set(results) == set(Saxpy.variants())
    assert all(result.verdict.verified for result in results.values())


@pytest.mark.parametrize("kernel", [Saxpy, "saxpy"])
def test_a_class_or_a_name_has_the_emulators_sizes(kernel):
    (result,) = assert_verified(kernel, device="emulator", variants="scalar").values()
    assert result.prepared.case.workload.n == Saxpy.emulator_sizes["n"]


@pytest.mark.parametrize(
    "variant, words",
    [
        ("wrong", ["wrong result: y[0] is", "64 of 64 elements", "tolerance: relative=1e-05"]),
        ("faulty", ["MemoryFault", "broken.cu:5"]),
        ("absent", ["no kernel 'absent'"]),
    ],
)
def test_a_failure_says_what_the_command_line_says(broken, variant, words):
    with pytest.raises(AssertionError) as failed:
        assert_verified(broken(), variants=["good", variant], device="emulator")
    for word in [f"broken:{variant} (n=64) on ptxkit emulator, seed 0", *words]:
        assert word in str(failed.value)


def test_a_race_is_found_only_when_asked_and_the_setting_ends_with_the_call(broken):
    assert_verified(broken(), variants="racing", device="emulator")
    with pytest.raises(AssertionError, match="RaceError"):
        assert_verified(broken(), variants="racing", device="emulator", racecheck=True)
    assert open_device("emulator").current_settings.racecheck is False


@pytest.mark.parametrize(
    "limit, words",
    [
        ("sectors", "sectors, more than 1"),
        ("instructions", "instructions, more than 1"),
        ("registers", "registers a thread, more than 1"),
    ],
)
def test_counts_have_limits(broken, limit, words):
    with pytest.raises(AssertionError, match=words):
        assert_verified(broken(), variants="good", device="emulator", **{limit: 1})


def test_limits_that_hold_pass(broken):
    assert_verified(broken(), variants="good", device="emulator", sectors=16, bank_conflicts=0, spills=0, registers=255)
    with pytest.raises(AssertionError, match="16 sectors, more than 15"):
        assert_verified(broken(), variants="good", device="emulator", sectors=15)


def test_a_limit_on_counts_is_refused_without_counting(broken):
    uncounted = EmulatedDevice(settings=EmulatorSettings(counting=False))
    with pytest.raises(UsageError, match="sectors: ptxkit emulator does not count with counting=False"):
        assert_verified(broken(), variants="good", device=uncounted, sectors=16)
    assert_verified(broken(), variants="good", device=uncounted)


def test_a_tolerance_of_the_test_replaces_the_descriptions(broken):
    assert_verified(broken(), variants="wrong", device="emulator", tolerance=Tolerance(absolute=2))


def test_nothing_verified_fails():
    with pytest.raises(AssertionError, match="nothing was verified, every variant was skipped"):
        assert_verified(MatmulWgmma(m=64, n=64, k=64), device="emulator", target="sm_80")


@pytest.mark.parametrize(
    "wrong",
    [
        {"variants": "nope"},
        {"variants": []},
        {"seed": []},
        {"tile": {"NOPE": 1}},
        {"completion": "late"},
        {"completion": []},
        {"racecheck": "x"},
        {"seed": -1},
        {"seed": "1"},
        {"seed": 1.5},
        {"tile": 5},
        {"tolerance": 1e-3},
        {"sectors": "many"},
        {"registers": -1},
        {"inputs": {}},
        {"inputs": {"x": None}},
    ],
)
def test_mistakes_in_the_call_are_usage_errors(wrong):
    with pytest.raises(UsageError):
        assert_verified(Saxpy(n=64), device="emulator", **wrong)


def test_the_documented_example_runs():
    (text,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    module = {}
    exec(text, module)
    for n in (1, 31, 5001):
        module["test_every_variant_is_verified"](n)
    module["test_counts_of_the_fused_traffic"]()
    module["test_copies_are_wide"]()
