"""Random inputs: large arrays are drawn by all cores, with the numbers that one core draws."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.workload import inputs
from ptxkit.workload.inputs import dtype_of, scaled_uniform, uniform


@pytest.fixture
def in_small_blocks(monkeypatch):
    monkeypatch.setattr(inputs, "IN_THREADS", 16)
    monkeypatch.setattr(inputs, "DRAWN", 6)


@pytest.mark.parametrize("drawn_before", [0, 1])
@pytest.mark.parametrize("size", [16, 17, 30, 31])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "e4m3", "f64"])
def test_the_numbers_are_those_that_one_core_draws(in_small_blocks, dtype, size, drawn_before):
    ours, numpys = np.random.default_rng(5), np.random.default_rng(5)
    for rng in (ours, numpys):
        rng.random(drawn_before, dtype=np.float32)  # of an odd number, the generator keeps half a step
    found = uniform(ours, size, dtype)
    wanted = numpys.random(size, dtype=np.float64 if dtype == "f64" else np.float32) * 2 - 1
    assert found.tobytes() == wanted.astype(dtype_of(dtype)).tobytes()
    assert ours.random(3, dtype=np.float32).tobytes() == numpys.random(3, dtype=np.float32).tobytes()
    assert ours.random(3).tobytes() == numpys.random(3).tobytes()


def test_a_factor_comes_before_the_rounding(in_small_blocks):
    ours, numpys = np.random.default_rng(5), np.random.default_rng(5)
    found = scaled_uniform(ours, (5, 7), "bf16", 0.3)
    np.testing.assert_array_equal(found, (uniform(numpys, (5, 7)) * np.float32(0.3)).astype(dtype_of("bf16")))


def test_another_generator_draws_its_own_numbers(in_small_blocks):
    ours, numpys = (np.random.Generator(np.random.MT19937(5)) for _ in range(2))
    np.testing.assert_array_equal(uniform(ours, 40), numpys.random(40, dtype=np.float32) * 2 - 1)
