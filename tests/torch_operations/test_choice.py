"""The operations of products take what ``choose`` takes, except variants that may not run beside other launches."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch

import ptxkit.torch as pt
from ptxkit.kernels.gemm import micro_choice
from ptxkit.targets.gpus import reference_facts
from ptxkit.torch import operations
from ptxkit.torch.plan import chosen
from ptxkit.torch.table import OPERATIONS, WAITING
from ptxkit.workload import registry
from ptxkit.workload.choice import choose

FACTS = reference_facts("sm_90a")
H200 = SimpleNamespace(
    target=FACTS.target, name=FACTS.gpu, kind="gpu", lacks=frozenset(), facts_for=lambda target: FACTS
)
SIZES = [
    (1, 64, 64),
    (1, 1000, 1000),
    (3, 4099, 4096),
    (5, 4096, 4099),
    (8, 4096, 4096),
    (9, 96, 4096),
    (9, 264, 512),
    (17, 4096, 11008),
    (20, 16, 300),
    (33, 11008, 4096),
    (64, 256, 65536),
    (100, 4096, 4096),
    (104, 5120, 5120),
    (256, 2048, 8192),
    (1000, 30, 8192),
    (512, 512, 512),
    (4096, 4096, 4096),
    (1001, 3001, 997),
    (4096, 1, 4096),
    (1355, 10201, 5462),
]
PRODUCTS = {  # the operation and the description -> steps that some of these sizes need
    ("matmul_nt", "matmul_wgmma"): {"step13_stream_k", "step14_cluster_k", "step15_multicast", "step18_row_classes"},
    ("linear_bias", "matmul_wgmma"): {"step13_stream_k", "step14_cluster_k", "step15_multicast", "step18_row_classes"},
    ("matmul_nt", "matmul_mma"): {"step6_tma"},
    ("linear_bias_residual", "matmul_fused"): {"stream_k", "cluster_k", "multicast", "fused"},
    ("matmul_f32", "micro_tiling_matmul"): {
        *("step9_stream_k", "step10_cluster_k", "step12_few_rows", "step13_few_columns", "step14_two_launches"),
    },
}
ANY_LENGTH = ("matmul_wgmma", "micro_tiling_matmul")
"""The descriptions that take rows of any length."""


@pytest.fixture
def taken(monkeypatch):
    """The variants and tiles that plans of a test take, resolved."""
    found = []
    original = operations.chosen

    def recorded(*args):
        resolved = original(*args)
        found.append(resolved)
        return resolved

    for operation in OPERATIONS.values():
        operation._plans.clear()
        for kept in operation.recent.calls:
            kept.clear()
    monkeypatch.setattr(operations, "chosen", recorded)
    return found


@pytest.mark.parametrize(("name", "description"), PRODUCTS)
def test_a_product_takes_what_choose_takes(name, description):
    operation, all_expected = OPERATIONS[name], set()
    offered = [v for (d, _), (_, v) in zip(operation.candidates, operation.classes, strict=True) if d == description]
    for m, n, k in SIZES:
        if description not in ANY_LENGTH and (n % 8 or k % 8):
            continue
        workload = registry.get(description)(m=m, n=n, k=k, **operation.fixed)
        found = chosen([(workload, variant) for variant in offered], H200, operation.objects)
        expected = choose(workload, H200).variant
        all_expected.add(expected)
        if expected in WAITING:
            every = {option.variant for option in micro_choice.options(found.workload)} - set(WAITING)
            (expected,) = (step for step in every if micro_choice.slower(found.workload, step, WAITING) is None)
        assert found.variant.name == expected, (m, n, k)
    assert PRODUCTS[name, description] <= all_expected


def close(found, expected, relative):
    return (found.double() - expected).abs().max() <= relative * expected.abs().max()


def tensors(m, n, k, dtype):
    generator = torch.Generator().manual_seed(m)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in ((m, k), (n, k), (n,), (m, n))]


def test_few_rows_of_every_remainder(taken):
    """Step 15 and ``multicast``, whose tiles have a multiple of 8 rows of a."""
    for m in range(9, 17):
        x, weight, bias, residual = tensors(m, 30, 1024, torch.bfloat16)
        product = x.double() @ weight.double().t() + bias.double()
        assert close(pt.linear(x, weight, bias), product, 0.01), m
        found = pt.linear(x, weight, bias, "relu", residual)
        assert close(found, product.relu() + residual.double(), 0.01), m
    assert {plan.variant.name for plan in taken} == {"step15_multicast", "multicast"}


def test_k_divided_by_a_cluster(taken):
    for m, n, relu in ((256, 96, False), (256, 96, True)):
        x, weight, bias, residual = tensors(m, n, 3072, torch.float16)
        product = x.double() @ weight.double().t() + bias.double()
        expected = product.relu() + residual.double() if relu else product
        found = pt.linear(x, weight, bias, "relu", residual) if relu else pt.linear(x, weight, bias)
        assert close(found, expected, 0.01)
    assert [plan.variant.name for plan in taken] == ["step15_multicast", "multicast"]
    assert all(plan.tile.PARTS > 1 for plan in taken)


@pytest.mark.parametrize(
    ("rows", "n", "k", "step"),
    [
        (range(1, 9), 13, 1000, "step12_few_rows"),
        (range(9, 17), 65, 64, "step10_cluster_k"),
        (range(9, 17), 30, 64, "step10_cluster_k"),
        (range(9, 17), 2, 65, "step13_few_columns"),
        ((9, 16), 65, 4096, "step14_two_launches"),
    ],
)
def test_f32_products_of_every_remainder(taken, rows, n, k, step):
    for m in rows:
        a, b, _, _ = tensors(m, n, k, torch.float32)
        assert close(pt.matmul(a, b.t()), a.double() @ b.double().t(), 1e-5), m
    assert {plan.variant.name for plan in taken} == {step}
