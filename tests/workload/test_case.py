"""Faults that a verdict must detect: overwritten inputs, outputs that are not written, state that outlives a launch."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ptxkit import variant
from ptxkit.errors import DescriptionError
from ptxkit.workload import execute, registry
from ptxkit.workload.launch import Tolerance
from ptxkit.workload.mismatch import holds

DESCRIPTION = """
import numpy as np
from ptxkit import Launch, TensorMap, Tolerance, Work, Workload, cdiv, uniform, variant

class Sample(Workload):
    source = "sample.cu"
    n: int = 100

    def inputs(self, rng): return {"x": uniform(rng, self.n), "z": uniform(rng, self.n)}
    def reference(self, x, z): return {"y": 1.0 * x, "z": 2.0 * z}
    def work(self): return Work(self.n, 8 * self.n)

    @variant
    def good(self): return self.launch("good")
    @variant
    def overwrites(self): return self.launch("overwrites")
    @variant
    def first_only(self): return self.launch("first_only")
    @variant
    def spoils_state(self): return self.launch("spoils_state")
    @variant
    def needs_state(self): return self.launch("needs_state")

    def launch(self, name): return [Launch(name, 1, 128, ("x", "y", "z", self.n))]
"""

SOURCE = """
__device__ int launched;
__device__ float factor = 1.0f;
#define KERNEL(name) extern "C" __global__ void name(float* x, float* y, float* z, int n)
#define INDEX int i = threadIdx.x; if (i >= n) return;
KERNEL(good) { INDEX y[i] = x[i]; z[i] *= 2; }
KERNEL(overwrites) { INDEX y[i] = x[i]; z[i] *= 2; if (i % 3 == 1) x[i] = -5; }
KERNEL(first_only) { INDEX if (!launched) y[i] = x[i]; z[i] *= 2; __syncthreads(); if (i == 0) launched = 1; }
KERNEL(spoils_state) { INDEX y[i] = x[i]; z[i] *= 2; factor = 3; }
KERNEL(needs_state) { INDEX y[i] = factor * x[i]; z[i] *= 2; }
"""


@pytest.fixture
def sample(tmp_path):
    def made(*replacements):
        text = DESCRIPTION
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "sample.py").write_text(text)
        (tmp_path / "sample.cu").write_text(SOURCE)
        return registry.load_file(tmp_path / "sample.py")

    return made


def verdict(case, name):
    return execute.run(case, case.workload.variant(name)).verdict


def test_an_overwritten_input_is_wrong_and_does_not_affect_the_next_variant(device, sample):
    case = execute.Case(sample()(), device)
    assert verdict(case, "good").verified
    wrong = verdict(case, "overwrites")
    assert not wrong.verified
    assert wrong.worst.startswith(
        "input x, which is not an output, was overwritten: 33 of 100 elements, first x[1], which was"
    )
    assert "and is -5; every 3rd element from 1" in wrong.worst
    assert verdict(case, "good").verified


def test_an_input_that_later_launches_overwrite_is_found_after_them(device, sample):
    case = execute.Case(sample()(), device)
    prepared = execute.prepare(case, case.workload.variant("good"))
    assert prepared.verify().verified
    assert prepared.again() is None
    case.array("x").fill(0)
    assert "after several launches, input x" in prepared.again().worst
    assert prepared.verify().verified


def test_a_kernel_that_writes_on_its_first_launch_only_is_wrong(device, sample):
    case = execute.Case(sample()(), device)
    for _ in range(2):  # detected, because the variables of its module are restored
        wrong = verdict(case, "first_only")
        assert not wrong.verified and wrong.worst.startswith("on a launch after the first: y[0] is")
        assert "never written" in wrong.explanation


def test_module_variables_that_a_variant_changes_do_not_affect_the_next(device, sample):
    case = execute.Case(sample()(), device)
    assert verdict(case, "spoils_state").verified
    assert verdict(case, "needs_state").verified


@pytest.mark.parametrize("dtype", ["s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"])
def test_an_integer_output_holds_the_extremes_of_its_type_in_some_launch(device, sample, dtype):
    """With these sentinels a minimum or maximum with an uninitialised element is wrong, whatever the other operands are."""
    from ptxkit.workload.inputs import dtype_of

    real = dtype_of(dtype)
    for beside in (1, 255):  # an output with bytes 0xFF has another sentinel
        kind = sample(
            (
                "\n    def launch",
                f'\n    def outputs(self): return {{"y": (self.n, "{dtype}"), "z": (self.n, "f32")}}\n    def launch',
            ),
            ('"y": 1.0 * x', f'"y": np.full(self.n, {beside if dtype == "u8" else 1})'),
        )
        case = execute.Case(kind(), device)
        held = []
        for poison in (None, execute.HIGH, execute.LOW):
            array = case.array("y")
            case.reset(poison)
            value = array.numpy()[0]
            assert (array.numpy() == value).all() and holds(array.numpy(), case.poisons["y"]).all()
            held.append(int(value))
        assert len(set(held)) == 3
        assert {np.iinfo(real).min, np.iinfo(real).max} <= set(held)


@pytest.mark.parametrize("dtype", ["u8", "s8", "f16", "f32", "e4m3", "bool"])
def test_an_element_that_is_right_by_the_poison_alone_is_found(device, sample, dtype):
    """An output that no thread writes is never verified, whatever the sentinel of the first launch is."""
    from ptxkit.workload.inputs import dtype_of

    real = dtype_of(dtype)
    for poison in (execute.POISON, execute.HIGH, execute.LOW, 0x00, 0x01, 0xCB):  # 0xCB: uninitialised memory of the emulator
        value = np.frombuffer(bytes([poison]) * real.itemsize, real)[0]
        if np.isnan(float(value)):
            continue  # a reference of NaN alone is refused
        kind = sample(
            (
                "\n    def launch",
                f'\n    def outputs(self): return {{"y": (self.n, "{dtype}"), "z": (self.n, "f32")}}\n    def launch',
            ),
            ('"y": 1.0 * x', f'"y": np.full(self.n, {float(value)!r})'),
            ('Launch(name, 1, 128, ("x", "y", "z", self.n))', 'Launch(name, 1, 128, ("x", "x", "z", self.n))'),
        )
        found = verdict(execute.Case(kind(), device), "good")
        assert not found.verified and found.worst


@pytest.mark.parametrize(
    "change, message",
    [
        ('return {"y": 1.0 * x, "z": 2.0 * z}', "return {}"),
        ('"y": 1.0 * x', '"y": 1.0 * x + 0j'),
        ('"y": 1.0 * x', '"y": np.array(list("abc"))'),
        ('"y": 1.0 * x', '"y": np.full(self.n, np.nan)'),
        ('return {"y"', 'x *= 2; return {"y"'),
        ('return {"y"', 'x[0] = 1; return {"y"'),
        ('return {"y"', 'np.negative(x, out=x); return {"y"'),
        ('return {"y": 1.0 * x, "z": 2.0 * z}', 'return {"y": x[:0], "z": z[:0]}'),
    ],
)
def test_a_reference_that_verifies_nothing_or_changes_its_inputs_is_refused(device, sample, change, message):
    kind = sample((change, message))
    with pytest.raises(DescriptionError):
        verdict(execute.Case(kind(), device), "good")


def test_outputs_and_reference_must_name_the_same(device, sample):
    three = '{"y": (self.n, "f32"), "z": (self.n, "f32"), "w": (self.n, "f32")}'
    outputs = f"\n    def outputs(self): return {three}\n    def launch"
    kind = sample(("\n    def launch", outputs))
    with pytest.raises(DescriptionError, match=r"reference\(\) lacks w, which outputs\(\) declares"):
        verdict(execute.Case(kind(), device), "good")


def test_a_reference_of_another_shape_is_refused(device, sample):
    outputs = '\n    def outputs(self): return {"y": (self.n, "f32"), "z": (self.n, "f32")}\n    def launch'
    kind = sample(("\n    def launch", outputs), ('"y": 1.0 * x', '"y": x[:1] * x[:, None]'))
    with pytest.raises(DescriptionError, match="shape"):
        verdict(execute.Case(kind(), device), "good")


def test_integers_as_reference_of_floats_are_compared_as_numbers(device, sample):
    kind = sample(
        ('"y": 1.0 * x', '"y": np.arange(self.n)'), ('"x": uniform(rng, self.n)', '"x": np.arange(self.n, dtype="f4")')
    )
    assert verdict(execute.Case(kind(), device), "good").verified


@pytest.mark.parametrize(
    "stated, relative",
    [("tolerance = Tolerance(relative=1e-3)", 1e-3), ("def tolerance(self): return Tolerance(relative=2e-3)", 2e-3)],
)
def test_a_description_states_its_tolerance_as_attribute_or_method(sample, stated, relative):
    kind = sample(("    n: int = 100", f"    n: int = 100\n    {stated}"))
    rule = execute.Data(kind()).tolerance_rule(kind.variant("good"))
    assert rule.given.relative == relative and rule.origin == "stated by the description"


def test_a_tolerance_may_be_stated_for_single_outputs(sample):
    kind = sample(("    n: int = 100", '    n: int = 100\n    tolerance = {"y": Tolerance(relative=0.5)}'))
    rule = execute.Data(kind()).tolerance_rule()
    dtype, expected = np.dtype(np.float32), np.ones(4)
    assert rule.resolved(dtype, expected, "y") == (Tolerance(relative=0.5), "stated by the description")
    other, origin = rule.resolved(dtype, expected, "z")
    assert other.relative < 0.5 and origin.startswith("the default for float32")


def test_a_tolerance_of_an_output_that_does_not_exist_is_refused(sample):
    kind = sample(("    n: int = 100", '    n: int = 100\n    tolerance = {"nosuch": Tolerance()}'))
    with pytest.raises(DescriptionError, match="tolerance names 'nosuch'; the outputs are "):
        execute.Data(kind()).tolerance_rule()


def test_a_tolerance_that_is_a_number_is_refused(sample):
    kind = sample(("    n: int = 100", "    n: int = 100\n    tolerance = 1e-3"))
    with pytest.raises(DescriptionError, match="tolerance must be a Tolerance, not 0.001"):
        execute.Data(kind()).tolerance_rule()


def test_the_tolerance_of_a_variant_may_depend_on_the_workload(sample):
    data = execute.Data(sample()(n=64))
    by_size = dataclasses.replace(VARIANT, tolerance=lambda w: Tolerance(relative=w.n))
    rule = data.tolerance_rule(by_size)
    assert rule.given == Tolerance(relative=64)
    for wrong in (lambda w: 1e-3, lambda w: None, 0.5):
        with pytest.raises(DescriptionError, match="tolerance of a variant must be a Tolerance, not "):
            data.tolerance_rule(dataclasses.replace(VARIANT, tolerance=wrong))
    with pytest.raises(DescriptionError, match="ZeroDivisionError"):
        data.tolerance_rule(dataclasses.replace(VARIANT, tolerance=lambda w: Tolerance(relative=1 / 0)))


VARIANT = variant(lambda self: [])


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "1e-3", True])
def test_parts_of_a_tolerance_that_would_accept_or_refuse_everything_are_refused(value):
    with pytest.raises(DescriptionError):
        Tolerance(relative=value)


def test_known_results_are_those_with_the_same_bytes_on_the_same_inputs():
    from ptxkit.runtime.device import device

    workload = registry.find("saxpy").make(["100"], {})
    case = execute.Case(workload, device("emulator"))
    variant = workload.variant("scalar")
    y, expected = case.array("y"), case.expected["y"].astype(np.float32)
    assert case.known_verdict(variant) is None
    y.copy_from(expected)
    assert case.known_verdict(variant) is None
    assert case.verify(variant).verified
    assert case.known_verdict(variant).verified
    wrong = expected.copy()
    wrong[99] += 1
    y.copy_from(wrong)
    assert case.known_verdict(variant) is None
    assert not case.verify(variant).verified
    assert case.known_verdict(variant) is None  # wrong results are described each time
    y.copy_from(expected)
    case.array("x").copy_from(wrong)
    assert case.known_verdict(variant) is None  # an input has changed
    case.data.renew(1)
    case.upload()
    y.copy_from(expected)
    assert case.known_verdict(variant) is None
