"""Products of references by a library: used where it saves time, checked, and replaced by numpy's if it fails."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ptxkit.errors import UnavailableError
from ptxkit.workload import products
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.products import LeftToLibrary, by_library, converted, difference, leave, of_library, product

M, N, K = 24, 40, 64


@pytest.fixture(autouse=True)
def every_product_is_worth_it(monkeypatch):
    monkeypatch.setattr(products, "WORTH_S", -1.0)
    monkeypatch.setattr(products, "BYTES_PER_S", np.inf)


@pytest.fixture
def operands():
    rng = np.random.default_rng(0)
    return [rng.uniform(-1, 1, shape).astype(ml_dtypes.bfloat16) for shape in ((M, K), (N, K))]


class Library:
    """numpy's product, with an error that is added to it; ``types`` are those of the operands."""

    def __init__(self, error=0.0):
        self.error, self.types, self.told = error, [], []

    def __call__(self, a, b):
        self.types.append((a.dtype, b.dtype))
        return a @ b.T + np.asarray(self.error, a.dtype)

    def used(self):
        return by_library(self, self.told.append)


@pytest.mark.parametrize("wide", [np.float32, np.float64])
def test_the_library_gets_operands_of_the_wide_type(operands, wide):
    library = Library()
    with library.used():
        found = product(*operands, wide)
    assert library.types == [(wide, wide)]
    assert found.dtype == wide
    np.testing.assert_allclose(found, product(*operands, wide), rtol=1e-5, atol=1e-5)


def test_without_a_library_numpy_computes_the_product(operands):
    assert of_library(*operands, np.float64) is None
    np.testing.assert_array_equal(product(*operands, np.float64), np.float64(operands[0]) @ np.float64(operands[1]).T)


def test_the_library_is_used_in_the_context_only(operands):
    library = Library()
    with library.used(), by_library(None, print):
        product(*operands, np.float64)
    product(*operands, np.float64)
    assert library.types == []


@pytest.mark.parametrize("wide", [np.float32, np.float64])
def test_after_a_wrong_product_numpy_computes_all(operands, wide):
    error = np.zeros((M, N))
    error[:, 17] = 1e-3  # in every row, so that each sample finds it
    library = Library(error)
    with library.used():
        first, second = product(*operands, wide), product(*operands, wide)
    assert len(library.types) == 1
    assert [line.startswith("numpy computes the products of references") for line in library.told] == [True]
    np.testing.assert_array_equal(first, second)


def test_a_product_that_the_library_refuses_is_numpys_and_the_next_is_the_librarys(operands):
    library, calls = Library(), []

    def first_fails(a, b):
        calls.append(1)
        if len(calls) == 1:
            raise UnavailableError("no memory")
        return library(a, b)

    with by_library(first_fails, library.told.append):
        assert of_library(*operands, np.float64) is None
        assert of_library(*operands, np.float64) is not None
    assert library.told == ["numpy computes a product of a reference: no memory"]


def test_a_process_that_leaves_products_computes_none(operands):
    with by_library(leave, print), pytest.raises(LeftToLibrary):
        product(*operands, np.float64)


@pytest.mark.parametrize(
    "sizes, by_the_library",
    [
        ((65536, 24576, 6144), True),
        ((2048, 28672, 4096), True),
        ((256, 4096, 7168), False),  # numpy takes some milliseconds
        ((1, 1 << 20, 1 << 14), False),  # sending b takes longer
    ],
)
def test_the_library_is_used_where_sending_takes_less_time(monkeypatch, sizes, by_the_library):
    monkeypatch.undo()
    assert products._is_worth_it(*sizes, itemsize=4) == by_the_library


def tf32(x):
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize("k", [64, 4096])
def test_a_product_with_truncated_operands_differs(k):
    rng = np.random.default_rng(1)
    a, b = (rng.uniform(-1, 1, (32, k)).astype(np.float32) for _ in range(2))
    assert difference(a, b, a @ b.T) == ""
    assert difference(a, b, tf32(a) @ tf32(b).T)


@pytest.mark.parametrize("change", [np.transpose, lambda c: c[:-1], lambda c: c * np.nan])
def test_a_product_of_another_shape_or_of_nan_differs(change):
    a = np.random.default_rng(2).uniform(-1, 1, (8, 16))
    b = a[:6]
    assert difference(a, b, change(a @ b.T))


@pytest.mark.filterwarnings("ignore:invalid value")  # of signalling NaNs
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("wide", [np.float32, np.float64])
def test_conversion_is_that_of_numpy_in_the_order_of_c(dtype, wide):
    bits = np.arange(1 << 12, dtype=np.uint16).reshape(64, 64) * 17
    a = (bits.view(dtype_of(dtype)) if dtype_of(dtype).itemsize == 2 else bits.astype(np.uint8).view(dtype_of(dtype))).T
    found = converted(a, wide)
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, a.astype(wide))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(a.astype(wide)))
