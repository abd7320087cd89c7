"""The tolerances of peers with bf16 intermediates accept their arithmetic, computed here by numpy, and no wrong results."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ptxkit.bench.measure.library_accuracy import judged
from ptxkit.bench.peers.triton_ops import ROUNDED_TWICE
from ptxkit.kernels.ffn import linear
from ptxkit.kernels.ffn.ffn_sublayer import FfnSublayer
from ptxkit.kernels.moe import product as moe
from ptxkit.kernels.moe.moe_routed import BLOCK, MoeRouted, gated, requantized_tolerance
from ptxkit.workload.data import Data
from ptxkit.workload.verify import compare

SIZES = {"tokens": 96, "hidden": 512, "ffn": 1024, "experts": 8, "top_k": 2}


def bf16(x):
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def computed(w, inputs, *, renormalize=True, activate=True, weight_factor=1.0, lost=None):
    """What kernels with bf16 intermediate results compute. ``lost``: (expert, columns) whose results are zeros."""
    expert, weight = gated(inputs["logits"], w.top_k, renormalize)
    x, x_scales, w1, w1_scales, w2, w2_scales = (inputs[n] for n in ("x", "x_scales", "w1", "w1_scales", "w2", "w2_scales"))
    results = np.zeros((w.tokens, w.top_k, w.hidden), np.float32)
    for e in range(w.experts):
        token, slot = np.nonzero(expert == e)
        up, down = slice(e * 2 * w.ffn, (e + 1) * 2 * w.ffn), slice(e * w.hidden, (e + 1) * w.hidden)
        both = bf16(moe.sums_of(x[token], w1[up]) * x_scales[token][:, None] * w1_scales[up])
        both = both.reshape(len(token), w.ffn // BLOCK, 2, BLOCK)
        gate, factor = (both[:, :, i].reshape(len(token), w.ffn) for i in range(2))
        h, scales = moe.quantized((gate / (1 + np.exp(-gate)) if activate else gate) * factor, w.dtype)
        found = moe.sums_of(h, w2[down]) * (scales * weight[token, slot] * weight_factor)[:, None] * w2_scales[down]
        if lost and e == lost[0]:
            found[:, lost[1]] = 0
        results[token, slot] = bf16(found)
    return {"y": results.sum(1).astype(ml_dtypes.bfloat16), "expert": expert, "weight": weight.astype(np.float32)}


@pytest.fixture(params=["s8", "e4m3"], scope="module")
def data(request):
    data = Data(MoeRouted(**SIZES, dtype=request.param), 5)
    assert data.expected
    return data


def verdict_of(data, outputs):
    return judged(outputs, data.expected, data, requantized_tolerance(data.workload, rounded=ROUNDED_TWICE))


def test_results_with_bf16_intermediates_are_accepted(data):
    verdict = verdict_of(data, computed(data.workload, data.inputs))
    assert verdict.verified, verdict.explanation


@pytest.mark.parametrize(
    "spoiled",
    [
        {"renormalize": False},
        {"activate": False},
        {"weight_factor": 1.06},
        {"lost": (3, slice(64, 128))},
        {"lost": (3, slice(0, 16))},
    ],
)
def test_wrong_results_are_refused(data, spoiled):
    assert not verdict_of(data, computed(data.workload, data.inputs, **spoiled)).verified


@pytest.mark.parametrize("factor", [1.0, 1 + 2**-7])
def test_weights_are_those_of_f32(data, factor):
    outputs = computed(data.workload, data.inputs)
    outputs["weight"] = outputs["weight"] * np.float32(factor)
    assert verdict_of(data, outputs).verified is (factor == 1)


def test_another_expert_is_refused(data):
    outputs = computed(data.workload, data.inputs)
    outputs["expert"][95, 1] += 1
    verdict = verdict_of(data, outputs)
    assert (verdict.verified, verdict.mismatches) == (False, 1)


@pytest.mark.parametrize("bias_factor", [1.0, 1.02])
def test_the_tolerance_of_torch_has_the_roundings_that_a_residual_uncovers(bias_factor):
    """gelu(product + bias) is between 5 and 8, and the residual cancels most of it, but not its roundings."""
    w = FfnSublayer(rows=64, hidden=1024, features=512)
    inputs = dict(w.inputs(np.random.default_rng(1)))
    inputs["bias"] = np.full_like(inputs["bias"], 6.5)
    exact = w.reference(**{**inputs, "residual": np.zeros_like(inputs["residual"])})["out"]
    inputs["residual"] = (1 - exact).astype(ml_dtypes.bfloat16)
    x, gamma, beta, weights = (inputs[name].astype(np.float32) for name in ("x", "gamma", "beta", "w"))
    normalized = bf16((x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + inputs["eps"]) * gamma + beta)
    product = bf16(normalized @ weights.T + np.float32(6.5 * bias_factor))
    activated = bf16(product)  # gelu is the identity there
    out = (activated + inputs["residual"].astype(np.float32)).astype(ml_dtypes.bfloat16)
    expected = w.reference(**inputs)["out"]
    assert compare("out", out, expected, linear.library_tolerance(w)).verified is (bias_factor == 1.0)
    assert not compare("out", out, expected, linear.tolerance(w)).verified
