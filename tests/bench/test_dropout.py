"""Dropout with other random numbers is verified by the possible values of each element and the share of kept
elements."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit import cli
from ptxkit.bench.measure import dropout
from ptxkit.workload import registry
from ptxkit.workload.verify import compare_all

CASES = [("bias_dropout_residual", "out"), ("softmax", "y")]


def made(name, output, dtype="f32", p=0.25, chance=None, factor=1.0):
    """The first rows of the output of another dropout implementation that keeps elements with probability ``chance``."""
    workload = registry.get(name)(rows=100, cols=500, p=p, dtype=dtype)
    inputs = workload.inputs(np.random.default_rng(1))
    kept = np.random.default_rng(2).random((100, 500)) < (1 - p if chance is None else chance)
    both = [workload.reference(**{**inputs, "threshold": t})[output] for t in (np.uint64(0), dropout.ALL_DROPPED)]
    values = np.where(kept, both[0] * factor, both[1]).astype(inputs["x"].dtype)
    small = dropout.reduced(workload)
    reduced = dropout.reduced_inputs(small, inputs)
    choices = dropout.Choices.of(small, reduced)
    assert dropout.applies(choices, small.reference(**reduced))
    return small, choices, dropout.reduced_outputs(small.reference(**reduced), {output: values})


def judged(*arguments, **options):
    workload, choices, outputs = made(*arguments, **options)
    expected, complaint = dropout.nearest(choices, outputs)
    assert all(value.shape == (dropout.ROWS, 500) for value in expected.values())
    return dropout.objected(compare_all(outputs, expected, workload.tolerance), complaint)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("name", "output"), CASES)
def test_another_mask_is_right(name, output, dtype):
    assert judged(name, output, dtype).verified


@pytest.mark.parametrize("chance", [0.0, 0.7, 0.8, 1.0])
@pytest.mark.parametrize(("name", "output"), CASES)
def test_too_few_or_too_many_kept_are_wrong(name, output, chance):
    verdict = judged(name, output, chance=chance)
    assert not verdict.verified
    assert "elements are kept, not 0.75" in verdict.worst


@pytest.mark.parametrize(("name", "output"), CASES)
def test_an_element_that_is_neither_kept_nor_dropped_is_wrong(name, output):
    verdict = judged(name, output, factor=0.9)
    assert not verdict.verified
    assert verdict.worst.startswith(f"{output}[")


@pytest.mark.parametrize(
    ("expression", "shape", "applies"),
    [
        ("dropout(gelu(x)) + residual", (100_000,), True),
        ("dropout(x) * y + bias", (100, 500), True),
        ("dropout(x) + dropout(y)", (100_000,), False),  # an element depends on two random numbers
        ("mean(dropout(x))", (100, 500), False),
    ],
)
def test_written_expressions_are_judged_where_elements_depend_on_one_number(tmp_path, monkeypatch, expression, shape, applies):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        cli.main(["new", "mine", "--expression", expression])
    workload = registry.find("./mine.py").make(shape, {})
    small = dropout.reduced(workload)
    inputs = dropout.reduced_inputs(small, workload.inputs(np.random.default_rng(1)))
    own = small.reference(**inputs)
    assert next(iter(own.values())).size < 100_000
    assert dropout.applies(dropout.Choices.of(small, inputs), own) is applies
