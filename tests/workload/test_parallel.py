"""References that are computed in blocks of rows, and results in the order of their inputs."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ptxkit.errors import DescriptionError
from ptxkit.kernels.elementwise.philox import CHUNK, philox4x32_10, random_words
from ptxkit.workload import parallel, registry
from ptxkit.workload.data import Data
from ptxkit.workload.parallel import by_rows, in_threads

BY_ROWS = [
    ("add_activation", "1000", {"activation": "gelu", "dtype": "bf16"}),
    ("add_activation_backward", "1000", {}),
    ("add_gelu", "1000", {}),
    ("add_mul_exp", "1000", {}),
    ("bias_dropout_residual", "37x50", {}),
    ("compute_bound", "1000", {}),
    ("fused_l2norm", "37x50", {}),
    ("layernorm", "37x50", {"training": "true", "dtype": "f16"}),
    ("layernorm_backward", "37x50", {"activation": "gelu"}),
    ("layernorm_quantize", "37x50", {}),
    ("quantize_int8", "1000", {}),
    ("rmsnorm", "37x50", {"training": "true"}),
    ("rmsnorm_backward", "37x50", {}),
    ("saxpy", "1000", {}),
    ("scale_mask_softmax", "37x50", {}),
    ("softmax", "37x50", {"p": "0.25"}),
    ("softmax", "37x50", {}),
    ("softmax_backward", "37x50", {}),
    ("swiglu", "37x50", {}),
    ("swiglu_backward", "37x50", {}),
    ("two_stage_pipeline", "1000", {}),
]


@pytest.mark.parametrize(("kernel", "sizes", "options"), BY_ROWS)
def test_references_do_not_depend_on_the_blocks(monkeypatch, kernel, sizes, options):
    workload = registry.find(kernel).make(sizes.split("x"), options)
    whole = Data(workload, 3).expected
    monkeypatch.setattr(parallel, "BLOCK", 129)  # two and a half rows, or no multiple of a vector
    parts = Data(workload, 3).expected
    assert list(parts) == list(whole)
    for name, value in whole.items():
        np.testing.assert_allclose(parts[name], value, rtol=1e-13, atol=1e-13, err_msg=name)
        assert parts[name].dtype == value.dtype


class Sums:
    name = "sums"

    @by_rows("x", "y", summed=["total"])
    def reference(self, x, scale, y=None):
        scaled = x * scale if y is None else x * scale + y
        return {"z": scaled, "total": scaled.sum(0)}

    @by_rows("x")
    def mean(self, x):
        return {"mean": x.mean(0)}


def test_sums_of_rows_are_added_up(monkeypatch):
    monkeypatch.setattr(parallel, "BLOCK", 7)
    x = np.arange(30.0).reshape(10, 3)
    found = Sums().reference(x, scale=2)
    assert np.array_equal(found["z"], 2 * x)
    assert np.array_equal(found["total"], 2 * x.sum(0))
    assert np.array_equal(Sums().reference(x=x, y=x, scale=1)["z"], 2 * x)


def test_a_result_that_is_no_row_is_refused(monkeypatch):
    monkeypatch.setattr(parallel, "BLOCK", 7)
    with pytest.raises(DescriptionError, match="mean of 2 rows has shape"):
        Sums().mean(x=np.ones((10, 3)))


def test_inputs_of_other_lengths_are_refused():
    with pytest.raises(DescriptionError, match="'x': 3, 'y': 4"):
        Sums().reference(x=np.ones((3, 2)), y=np.ones((4, 2)), scale=1)


def test_results_are_in_order_and_an_error_is_raised():
    both = threading.Barrier(2, timeout=20)  # met by two calls only

    def call(i: int) -> int:
        if i < 2 and parallel.cores() > 1:
            both.wait()
        if i == 5:
            raise KeyError(i)
        return -i

    assert in_threads(call, range(5)) == [0, -1, -2, -3, -4]
    both.reset()
    with pytest.raises(KeyError):
        in_threads(call, range(6))


def test_random_words_do_not_depend_on_the_threads():
    words = random_words(4 * CHUNK + 4 * 10 + 3, 7)
    last = philox4x32_10(np.array([[CHUNK + 10], [0], [0], [0]], np.uint32), (7, 0))[:, 0]
    assert np.array_equal(words[-3:], last[:3])


def test_digests_see_every_byte_and_the_shape(monkeypatch):
    monkeypatch.setattr(parallel, "BLOCK", 7)
    x = np.arange(1000, dtype=np.uint16)
    first = parallel.digest_of({"x": x})
    assert parallel.digest_of({"x": x.copy()}) == first
    others = [{"y": x}, {"x": x.reshape(10, 100)}, {"x": x.view(np.int16)}, {"x": x[:-1]}]
    changed = np.tile(x, (1000, 1))
    np.fill_diagonal(changed, 7777)
    assert len({first, *map(parallel.digest_of, others), *(parallel.digest_of({"x": row}) for row in changed)}) == 1005
