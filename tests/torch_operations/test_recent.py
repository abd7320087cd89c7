"""A call like a recent one is recognised, and one that differs in anything that matters is not."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import numpy as np
import torch

import ptxkit.torch as pt
from ptxkit.torch import calls, operations, recent
from ptxkit.torch.table import OPERATIONS

if recent._Guards is None:
    pytest.skip("this torch has no TensorGuards", allow_module_level=True)


@pytest.fixture
def quick(monkeypatch):
    """Calls that are recognised, in the emulator, whose tensors count as those of a GPU here."""
    monkeypatch.setattr(calls, "is_on_gpu", lambda tensor: True)
    for operation in OPERATIONS.values():
        for kept in operation.recent.calls:
            kept.clear()
    prepared = operations.Operation.prepared
    missed = []

    def counted(self, *args):
        missed.append(self.name)
        return prepared(self, *args)

    monkeypatch.setattr(operations.Operation, "prepared", counted)
    return missed


def rows(*shape, **options):
    return torch.randn(*(shape or (3, 33)), **options)


def test_the_same_kind_of_call_is_recognised(quick):
    x, weight = rows(), rows(33)
    for _ in range(3):
        y = pt.rmsnorm(x, weight)
        x = rows()
    assert quick == ["rmsnorm"]
    expected = torch.nn.functional.rms_norm(x, (33,), weight, 1e-6)
    assert torch.allclose(pt.rmsnorm(x, weight), expected, atol=1e-5)
    assert y.shape == expected.shape


@pytest.mark.parametrize(
    "other",
    [
        lambda x: (rows(4, 33), {}),
        lambda x: (x.half(), {}),
        lambda x: (rows(33, 3).t(), {}),
        lambda x: (x.clone().requires_grad_(), {}),
        lambda x: (torch.nn.Parameter(x.clone()), {}),
        lambda x: (x, {"eps": 0.5}),
    ],
    ids=["shape", "type", "strides", "gradient", "class", "option"],
)
def test_another_kind_is_not(quick, other):
    x = rows()
    pt.l2norm(x)
    given, options = other(x)
    if given.dtype == torch.float16:
        with pytest.raises(operations.UsageError, match="float16"):
            pt.l2norm(given)
        return
    found = pt.l2norm(given, **options)
    assert quick == ["l2norm", "l2norm"]
    norm = (given.square().sum(1, keepdim=True) + options.get("eps", 1e-12)).sqrt()
    assert torch.allclose(found, given / norm, atol=1e-6)
    assert found.requires_grad == given.requires_grad


def test_gradients_that_are_switched_off_and_on(quick):
    x = rows().requires_grad_()
    with torch.no_grad():
        for _ in range(2):
            assert not pt.softmax(x).requires_grad
    for _ in range(2):
        y = pt.softmax(x)
        assert y.requires_grad
        (found,) = torch.autograd.grad(y.square().sum(), x)
        (expected,) = torch.autograd.grad(x.softmax(1).square().sum(), x)
        assert torch.allclose(found, expected, atol=1e-6)
    assert quick == ["softmax", "softmax", "softmax_backward"]


def test_zeros_of_both_signs_are_not_the_same_option(quick):
    x, y = torch.ones(8), torch.full((8,), -0.0)
    for a in (0.0, -0.0, 0.0, np.float32(-0.0)):
        assert torch.equal(pt.saxpy(a, x, y).signbit(), (a * x + y).signbit()), a
    scores = rows(2, 8)
    for scale in (0.0, -0.0):
        kept = pt.softmax_backward(scores.softmax(1), torch.ones(2, 8), scale)
        assert not kept.abs().any()
    assert quick.count("saxpy") == 3  # the second 0.0 is recognised


def test_a_call_under_autocast_is_recognised(quick):
    x, weight = torch.randn(3, 32), torch.randn(32)
    q = torch.randn(1, 4, 1, 64)
    plain = pt.attention(q.bfloat16(), q.bfloat16(), q.bfloat16())
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(pt.attention(q, q, q), plain)
            assert pt.rmsnorm(x.bfloat16(), weight).dtype == torch.float32
        with torch.autocast("cpu", torch.float16):
            assert pt.attention(q, q, q).dtype == torch.float16
    assert pt.rmsnorm(x.bfloat16(), weight.bfloat16()).dtype == torch.bfloat16
    # two given tensors are one: that is never recognised
    assert quick.count("rmsnorm") == 2


def test_a_gradient_through_a_call_under_autocast(quick):
    x, weight = torch.randn(3, 32, requires_grad=True), torch.randn(32, requires_grad=True)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            y = pt.rmsnorm(x.bfloat16(), weight)
            (y * y).sum().backward()
    found, x.grad = x.grad, None
    torch.nn.functional.rms_norm(x.bfloat16().float(), (32,), weight, 1e-6).square().sum().mul(2).backward()
    assert found.dtype == torch.float32
    assert torch.allclose(found, x.grad, rtol=2e-2, atol=2e-2)
    assert quick.count("rmsnorm") == 1


def test_what_observes_a_call_is_not_bypassed(quick):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x = rows()
    for _ in range(2):
        pt.softmax(x)
    with Mode():
        pt.softmax(x)
    assert any("ptxkit.softmax" in name for name in seen)
    with torch.autocast("cpu", torch.bfloat16):
        assert pt.softmax(x.bfloat16()).dtype == torch.float32
    with pytest.raises(NotImplementedError, match="vmap"):
        torch.vmap(pt.softmax)(rows(2, 3, 33))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda x: torch.nested.nested_tensor([x, x]), "softmax: x is a nested tensor"),
        (lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged), "softmax: x is a nested tensor"),
        (lambda x: x.to_sparse(), "softmax: x is a tensor with the layout torch.sparse_coo"),
        (lambda x: x.to_sparse_csr(), "softmax: x is a tensor with the layout torch.sparse_csr"),
        (lambda x: x.tolist(), "softmax: x must be a tensor, not list"),
    ],
    ids=["nested", "jagged", "coo", "csr", "list"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_without_strides_are_refused_after_a_recognised_call(quick, made, message):
    """torch's guards read sizes and strides, and end the process where a tensor has none."""
    x = rows()
    for _ in range(2):
        pt.softmax(x)
    with pytest.raises(operations.UsageError, match=message):
        pt.softmax(made(x))
    if "nested" in message:
        with pytest.raises(NotImplementedError, match="vmap"):
            torch.vmap(pt.softmax)(made(x))


def test_batched_gradients_take_the_dispatcher(quick):
    """A tensor with a batch dimension that nobody sees has no address; the dispatcher calls the operation for each part."""
    x = rows(2, 16).requires_grad_()
    grads = rows(3, 2, 16)
    for _ in range(2):
        (found,) = torch.autograd.grad(pt.softmax(x), x, grads, is_grads_batched=True)
    (expected,) = torch.autograd.grad(x.softmax(1), x, grads, is_grads_batched=True)
    assert torch.allclose(found, expected, atol=1e-6)


def test_a_number_as_text_is_refused(quick):
    with pytest.raises(operations.UsageError, match="option a must be float, not '2'"):
        pt.saxpy("2", torch.ones(4), torch.ones(4))


def test_a_tensor_without_memory_is_not_launched(quick):
    """A zero tensor, as derivatives have them, has no address."""
    zeros = torch._efficientzerotensor((3, 4))
    pt.softmax(rows(3, 4))
    assert torch.equal(pt.softmax(zeros), torch.full((3, 4), 0.25))


def test_an_option_that_has_a_derivative_is_refused_after_an_equal_number(quick):
    x = rows()
    pt.l2norm(x, 1.0)
    with pytest.raises(operations.UsageError, match="number without a derivative"):
        pt.l2norm(x, torch.ones((), requires_grad=True))
    with pytest.raises(operations.UsageError, match="must be float, not"):
        pt.l2norm(x, [1.0, 2.0])


def test_an_option_in_a_tensor_is_read_at_each_call(quick):
    """A tensor is equal to itself after a change of its value."""
    x, y, eps, a = rows(), rows(8), torch.tensor(1.0), torch.tensor(2.0)
    for value in (1.0, 0.25, 1.0, -0.0):
        eps.fill_(abs(value))
        a.fill_(value)
        expected = x / (x.square().sum(1, keepdim=True) + abs(value)).sqrt()
        assert torch.allclose(pt.l2norm(x, eps), expected, atol=1e-6)
        assert torch.equal(pt.saxpy(a, y, torch.full((8,), -0.0)), value * y + torch.full((8,), -0.0))
    assert quick.count("l2norm") == 3
    assert quick.count("saxpy") == 3


def test_the_kind_that_is_used_most_is_compared_first(quick):
    kinds = [rows(2, cols) for cols in (16, 17, 18)]
    for x in kinds:
        pt.softmax(x)
    for _ in range(16):
        pt.softmax(kinds[0])
    (known,) = OPERATIONS["softmax"].recent.calls[torch.is_grad_enabled()].values()
    assert [[i for i, x in enumerate(kinds) if matches(x)] for matches, _ in recent.kinds_of(known)] == [[0], [2], [1]]
    assert quick == ["softmax"] * 3
    for x in kinds:
        assert torch.allclose(pt.softmax(x), x.softmax(1), atol=1e-6)


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad])
def test_a_tensor_that_a_transform_does_not_change_is_refused_in_it(quick, transform):
    x = rows(2, 8)
    for _ in range(2):
        pt.softmax(x)
    with pytest.raises(NotImplementedError, match="does not support torch.func"):
        transform(lambda y: (pt.softmax(x) + y).sum())(rows(2, 8))


def test_seeds_differ_between_recognised_calls(quick):
    x = rows(2, 512)
    first, second, again = (pt.softmax(x, 0.5, seed) for seed in (1, 2, 1))
    assert quick == ["softmax"]
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_only_so_many_calls_are_kept(quick):
    x = rows(1, 16)
    for cols in range(16, 16 + 2 * recent.KEPT_KINDS):
        pt.softmax(rows(1, cols))
    for eps in range(1, recent.KEPT_OPTIONS + 8):
        pt.l2norm(x, eps / 256)
    grad = torch.is_grad_enabled()
    assert [len(recent.kinds_of(known)) for known in OPERATIONS["softmax"].recent.calls[grad].values()] == [recent.KEPT_KINDS]
    assert len(OPERATIONS["l2norm"].recent.calls[grad]) == recent.KEPT_OPTIONS


def test_the_gradient_without_dropout_is_the_gradient_of_the_result(quick):
    """No kernel is launched for it."""
    x, bias, residual = (t.requires_grad_() for t in (rows(3, 32), rows(32), rows(3, 32)))
    out = pt.bias_dropout_residual(x, bias, residual, p=0.0)
    weights = rows(3, 32)
    found = torch.autograd.grad((out * weights).sum(), (x, bias, residual))
    expected = torch.autograd.grad(((x + bias + residual) * weights).sum(), (x, bias, residual))
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    assert quick == ["bias_dropout_residual"]


class Refuses:
    def __init__(self, *tensors):
        raise TypeError


class AcceptsAll:
    def __init__(self, *tensors, **options):
        pass

    def check(self, *tensors):
        return True


@pytest.mark.parametrize("guards", [None, Refuses, AcceptsAll])
def test_guards_that_compare_less_are_not_used(guards):
    assert recent._working(guards) is None
