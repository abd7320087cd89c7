"""Operands of products that are transposes of contiguous matrices are read as they lie in memory, and copied elsewhere."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import ptxkit.torch as pt
from ptxkit.errors import UsageError
from ptxkit.torch import plan, table
from ptxkit.torch.plan import Plan
from ptxkit.torch.table import OPERATIONS, padded, product
from ptxkit.workload.execute import lacking

BF16 = {"dtype": torch.bfloat16}


@pytest.fixture
def plans(monkeypatch):
    """The plans of matmul_nt and linear_gelu that a test makes, and the tensors of each of their calls."""
    for name in ("matmul_nt", "linear_gelu"):
        OPERATIONS[name]._plans.clear()
    found = []
    original = Plan.__init__

    def counted(self, *args):
        original(self, *args)
        if self.name in ("matmul_nt", "linear_gelu"):
            found.append(self)

    monkeypatch.setattr(Plan, "__init__", counted)
    return found


def close(found, expected):
    return (found.double() - expected).abs().max() <= 0.02 * expected.abs().max()


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([torch.bfloat16, torch.float16]),
    *(st.integers(1, 40) for _ in range(3)),
    st.booleans(),
    st.booleans(),
)
def test_products_of_any_operands(dtype, m, n, k, a_turned, b_turned):
    """Sizes with and without padding, and rows that TMA cannot copy."""
    a = torch.randn(k, m, dtype=dtype).t() if a_turned else torch.randn(m, k, dtype=dtype)
    b = torch.randn(k, n, dtype=dtype).t() if b_turned else torch.randn(n, k, dtype=dtype)
    found = product(a, b)
    assert found.is_contiguous() and found.shape == (m, n)
    assert close(found, a.double() @ b.double().t())


@pytest.mark.parametrize("turned", [(), (0,), (1,), (0, 1)])
def test_a_transpose_is_read_as_it_lies_in_memory(plans, turned):
    a = torch.randn(40, 48, **BF16)
    b = torch.randn(24, 48, **BF16)
    a, b = (x.t().contiguous().t() if i in turned else x for i, x in enumerate((a, b)))
    for _ in range(2):
        assert close(product(a, b), a.double() @ b.double().t())
    (made,) = plans
    assert made.layout.turned == turned
    shapes = [shape for shape, _ in made.layout.inputs.values()]
    assert shapes == [((48, 40) if 0 in turned else (40, 48)), ((48, 24) if 1 in turned else (24, 48))]


COPIED = {
    "rows that are no multiple of 16 bytes": lambda: torch.randn(48, 44, **BF16).t(),
    "an address that is no multiple of 16 bytes": lambda: torch.randn(48 * 40 + 1, **BF16)[1:].view(48, 40).t(),
    "rows with a gap": lambda: torch.randn(48, 80, **BF16)[:, :40].t(),
    "every second element": lambda: torch.randn(48, 80, **BF16)[:, ::2].t(),
    "the same row everywhere": lambda: torch.randn(1, 48, **BF16).expand(40, 48),
}


@pytest.mark.parametrize("layout", COPIED)
def test_other_strides_and_addresses_are_copied(plans, layout):
    a, b = COPIED[layout](), torch.randn(24, 48, **BF16)
    assert close(product(a, b), a.double() @ b.double().t())
    (made,) = plans
    assert made.layout.turned == ()


def test_matmul_takes_weights_of_both_layouts(plans):
    x = torch.randn(2, 5, 48, **BF16)
    weight = torch.randn(48, 24, **BF16)
    for w in (weight, weight.t().contiguous().t()):
        assert close(pt.matmul(x, w), x.double() @ w.double())
    assert [made.layout.turned for made in plans] == [(1,), ()]


def test_linear_with_gelu_takes_weights_of_both_layouts(plans):
    x, weight, bias = torch.randn(5, 48, **BF16), torch.randn(48, 24, **BF16).t(), torch.randn(24, **BF16)
    expected = F.gelu(F.linear(x.double(), weight.double(), bias.double()), approximate="tanh")
    assert close(pt.linear(x, weight, bias, "gelu"), expected)
    assert [made.layout.turned for made in plans] == [(1,)]


def test_gradients_of_a_product_copy_no_operand(plans):
    """da = dc b reads b (n, k) with its rows along k; db = dc^T a reads dc and a with rows along n and k."""
    a = torch.randn(40, 48, **BF16).requires_grad_()
    b = torch.randn(24, 48, **BF16).requires_grad_()
    dc = torch.randn(40, 24, **BF16)
    product(a, b).backward(dc)
    assert close(a.grad, dc.double() @ b.detach().double())
    assert close(b.grad, dc.double().t() @ a.detach().double())
    assert [made.layout.turned for made in plans] == [(), (1,), (0, 1)]


def without_wgmma(variant, device, name):
    return "not here" if name == "matmul_wgmma" else lacking(variant, device, name)


def test_a_device_without_a_kernel_for_the_layout_copies(plans, monkeypatch):
    monkeypatch.setattr(plan, "lacking", without_wgmma)
    a, b = torch.randn(48, 40, **BF16).t(), torch.randn(24, 48, **BF16)
    for _ in range(2):
        assert close(product(a, b), a.double() @ b.double().t())
    (made,) = plans
    assert made.layout.turned == ()


@pytest.mark.parametrize("wgmma", [True, False])
def test_rows_of_any_length_are_padded_only_where_no_kernel_reads_them(plans, monkeypatch, request, wgmma):
    if not wgmma:
        table.able.cache_clear()
        request.addfinalizer(table.able.cache_clear)
        monkeypatch.setattr(plan, "lacking", without_wgmma)
        monkeypatch.setattr(table, "lacking", without_wgmma)
    a, b, bias = (torch.randn(shape, **BF16) for shape in ((5, 13), (7, 13), (7,)))
    assert close(product(a, b), a.double() @ b.double().t())
    assert close(pt.linear(a, b, bias, "gelu"), F.gelu(F.linear(a.double(), b.double(), bias.double()), approximate="tanh"))
    shapes = [((5, 13), (7, 13)), ((5, 13), (7, 13), (7,))] if wgmma else [((5, 16), (8, 16))]
    assert [made.layout.shapes for made in plans] == shapes


def test_a_device_is_asked_once_whether_it_has_kernels_for_any_rows(monkeypatch):
    a, b = torch.randn(2, 8, **BF16), torch.randn(8, 8, **BF16)
    expected = pt.linear(a, b, b[0])
    monkeypatch.setattr(table.registry, "get", None)  # it reads the names of all kernels, which takes longer than a launch
    assert torch.equal(pt.linear(a, b, b[0]), expected)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("rows", "cols"), [(0, 0), (3, 0), (0, 5), (3, 5)])
def test_padding_keeps_the_layout(turned, rows, cols):
    x = torch.randn(4, 6).t() if turned else torch.randn(6, 4)
    found = padded(x, rows, cols)
    assert found.shape == (6 + rows, 4 + cols)
    assert torch.equal(found[:6, :4], x)
    assert not found[6:].any() and not found[:, 4:].any()
    assert (found.t() if turned else found).is_contiguous()


@pytest.mark.parametrize("shape", [(48,), (2, 40, 48)])
def test_an_operand_that_is_no_matrix_is_refused(shape):
    with pytest.raises(UsageError, match="must be"):
        OPERATIONS["matmul_nt"].execute([torch.randn(shape, **BF16), torch.randn(24, 48, **BF16)], (), False)
