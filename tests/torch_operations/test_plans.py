"""Plans are made once for each kind of call, by any number of threads, and bound the memory that they need."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch
from torch_operations.cases import BY_NAME, CASES

import ptxkit.torch as pt
from ptxkit.torch import calls, operations
from ptxkit.torch.plan import ALIGNMENT, Plan
from ptxkit.torch.table import OPERATIONS
from ptxkit.torch.written import Parts, written


@pytest.fixture
def made(monkeypatch):
    """The plans that are made during a test."""
    found = []
    original = Plan.__init__

    def counted(self, *args):
        original(self, *args)
        found.append(self)

    monkeypatch.setattr(Plan, "__init__", counted)
    return found


def test_a_second_call_makes_no_plan(made):
    x = torch.randn(3, 37)
    for _ in range(3):
        pt.softmax(x)
    pt.softmax(x.t().contiguous().t())  # strides do not matter
    assert len(made) == 1


@pytest.mark.parametrize("other", [torch.randn(4, 38), torch.randn(3, 38).half(), torch.randn(3, 2, 38)])
def test_another_shape_or_type_has_another_plan(made, other):
    pt.softmax(torch.randn(3, 38))
    before = len(made)
    pt.softmax(other)
    assert len(made) == before + 1


def test_numbers_that_are_passed_by_value_share_a_plan(made):
    x = torch.randn(41)
    for scale in (0.1, 0.2, 0.3):
        pt.quantize_int8(x, scale)
    for seed in (1, 2):
        pt.softmax(x.view(1, 41), 0.5, seed)
    assert len(made) == 2


def test_threads_share_plans_and_do_not_disturb_each_other(made):
    inputs = [torch.randn(5, 43) for _ in range(8)]
    barrier = threading.Barrier(8)

    def run(x):
        barrier.wait()
        return [pt.layernorm(x), pt.layernorm(x)]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(run, inputs))
    for x, found in zip(inputs, results, strict=True):
        for y in found:
            assert torch.allclose(y, torch.nn.functional.layer_norm(x, (43,)), atol=1e-5)
    assert len(made) == 1


def test_old_plans_are_dropped(made, monkeypatch):
    monkeypatch.setattr(operations, "KEPT_PLANS", 2)
    softmax = OPERATIONS["softmax"]
    softmax._plans.clear()
    for cols in (51, 52, 53, 51):
        pt.softmax(torch.randn(1, cols))
    assert len(made) == 4
    assert len(softmax._plans) == 2


def test_what_a_gpu_gets(made, monkeypatch):
    """Addresses of inputs, results, values and temporaries in the order of the launch, all of them aligned."""
    x = torch.randn(3 * 61 + 1)[1:].view(3, 61)
    pt.layernorm(x)
    (plan,) = made
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 99, raising=False)
    seen = []
    monkeypatch.setattr(plan, "_launches", (lambda values, stream: seen.append((list(values), stream)),))
    ones = torch.ones(61)
    (result,) = plan._launched((x, ones, ones), ())
    ((values, stream),) = seen
    assert stream == 99
    assert len(values) == 4
    assert values[0] != x.data_ptr()  # a copy, because x is not aligned
    assert values[1:] == [ones.data_ptr(), ones.data_ptr(), result.data_ptr()]
    assert not any(address % ALIGNMENT for address in values)


def test_launches_that_are_written_out(made, monkeypatch):
    """The function gets tensors of a recent kind: the address of each is compared at the call, and the device."""
    launched, others, current = [], [], 1
    storage = torch.zeros(3, 4 * 61)
    x, shifted = storage[:, :61].contiguous(), storage.view(-1)[1 : 1 + 3 * 61].view(3, 61)
    parts = Parts(
        tensors=2,
        makes=[((3, 61), (61, 1), torch.float32), ((3,), (1,), torch.float16)],
        values=2,
        seeded=True,
        scratch=(1024, (0, 256)),
        launches=[lambda values, stream: launched.append((values, stream)) for _ in range(2)],
        alignment=ALIGNMENT,
        empty=lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype),
        stream=lambda index: 90 + index,
        current=lambda: current,
        index=1,
        otherwise=lambda numbers: lambda tensors, seed: others.append((numbers, tensors, seed)),
    )
    results = written(parts, alone=False)((0.5, 7))((x, x), 11)
    assert [(r.shape, r.dtype) for r in results] == [((3, 61), torch.float32), ((3,), torch.float16)]
    ((values, stream), again) = launched
    assert again == (values, stream)
    assert stream == 91
    assert values[:-2] == (x.data_ptr(), x.data_ptr(), *(r.data_ptr() for r in results), 0.5, 7, 11)
    assert values[-1] - values[-2] == 256
    run = written(parts, alone=True)((0.25, 8))
    assert run((x, x), 12).shape == (3, 61)
    assert launched[-1][0][4:7] == (0.25, 8, 12)
    run((x, shifted), 13)
    current = 0
    run((x, x), 14)
    assert [(numbers, seed) for numbers, _, seed in others] == [((0.25, 8), 13), ((0.25, 8), 14)]
    assert others[0][1][1] is shifted
    assert len(launched) == 4


@pytest.mark.parametrize("case", [c for c in CASES if c.differentiable], ids=lambda case: case.name)
def test_calls_without_the_dispatcher_are_the_same(monkeypatch, case):
    """Calls on a GPU bypass the dispatcher; here those in the emulator do."""
    tensors = case.tensors()
    found = []
    for plain in (False, True):
        monkeypatch.setattr(calls, "is_plain", lambda tensors, plain=plain: plain)
        y = case.ours(*tensors)
        inference = case.ours(*(t.detach() for t in tensors))
        assert torch.equal(inference, y)
        assert not inference.requires_grad
        found.append((y, *torch.autograd.grad(y, tensors, torch.ones_like(y))))
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-2, atol=1e-4)  # the sums of dq have any order


def test_dropout_without_the_dispatcher(monkeypatch):
    monkeypatch.setattr(calls, "is_plain", lambda tensors: True)
    x, bias, residual = BY_NAME["bias_residual"].tensors()
    out = pt.bias_dropout_residual(x, bias, residual, 0.5, seed=11)
    kept = (out != residual).float() * 2
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], kept)


def test_a_derivative_of_a_derivative_without_the_dispatcher(monkeypatch):
    monkeypatch.setattr(calls, "is_plain", lambda tensors: True)
    x = torch.randn(3, 8, requires_grad=True)
    (first,) = torch.autograd.grad(pt.softmax(x).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="derivatives of derivatives"):
        first.sum().backward()


def test_emulator_settings_apply():
    import ptxkit

    emulator = ptxkit.device("emulator")
    emulator.reset_counters()
    pt.softmax(torch.randn(2, 8))
    assert emulator.counters.global_bytes >= 2 * 2 * 8 * 4
