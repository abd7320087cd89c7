"""moe_routed in e4m3: the tolerance permits what tensor cores lose at every k, and no bug of that size."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ptxkit.emulator.tensor_core.accumulation import accumulation
from ptxkit.kernels.moe import product as moe
from ptxkit.kernels.moe.moe_routed import BLOCK, MIXTRAL, MoeRouted, gated, requantized_tolerance
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload.data import Data
from ptxkit.workload.verify import compare_all

WGMMA = accumulation("wgmma", "e4m3", 90)
SMALL = (64, 256, 512, 2, 1)
LARGE = [
    pytest.param(s, marks=pytest.mark.slow)
    for s in ((64, 128, 14336, 2, 1), (32, 64, 28672, 1, 1), (16, 4096, 512, 1, 1))
]


def truncated(a, b, promoted=False):
    """a b^T as wgmma adds it; ``promoted``: sums of 128 products are added in f32."""
    a, b = a.astype(np.float32), b.astype(np.float32)
    total, part = (np.zeros((1, len(a), len(b)), np.float32) for _ in range(2))
    for first in range(0, a.shape[1], 32):
        step = slice(first, first + 32)
        part = WGMMA.dot(a[None, :, step], b[:, step].T[None], part, "e4m3", "e4m3")
        if promoted and step.stop % moe.DEPTH == 0:
            total, part = total + part, np.zeros_like(part)
    return (total + part)[0]


def computed(w, inputs, promoted=False):
    """The results of the experts before they are added, (tokens, hidden) for one expert per token."""
    expert, weight = gated(inputs["logits"], w.top_k, True)
    y = np.zeros((w.tokens, w.hidden), np.float32)
    for e in range(w.experts):
        token, _ = np.nonzero(expert == e)
        up, down = slice(e * 2 * w.ffn, (e + 1) * 2 * w.ffn), slice(e * w.hidden, (e + 1) * w.hidden)
        both = truncated(inputs["x"][token], inputs["w1"][up], promoted)
        both = both * inputs["x_scales"][token][:, None] * inputs["w1_scales"][up]
        gate, factor = (
            both.reshape(len(token), w.ffn // BLOCK, 2, BLOCK).swapaxes(1, 2).reshape(len(token), 2, -1).swapaxes(0, 1)
        )
        h, scales = moe.quantized(gate / (1 + np.exp(-gate)) * factor, "e4m3")
        y[token] = (
            truncated(h, inputs["w2"][down], promoted) * scales[:, None].astype(np.float32) * inputs["w2_scales"][down]
        )
    return {"y": y, "expert": expert, "weight": weight.astype(np.float32)}


class Results:
    """A workload, its simulated results, and verdicts on these or on spoiled ones."""

    def __init__(self, sizes, promoted):
        workload = MoeRouted(*sizes, dtype="e4m3").on(reference_facts("sm_90a"))
        self.data = Data(workload, 5)
        self.rule = self.data.tolerance_rule(workload.variant("step5_promoted" if promoted else "step3_fitted"), None)
        self.outputs = computed(workload, self.data.inputs, promoted)

    def verdict(self, spoil=lambda y: None):
        y = self.outputs["y"].copy()
        spoil(y)
        return compare_all({**self.outputs, "y": y.astype(ml_dtypes.bfloat16)}, self.data.expected, self.rule)


@pytest.fixture(scope="module", params=[SMALL, *LARGE], ids=str)
def results(request):
    return Results(request.param, promoted=False)


def test_truncated_sums_are_verified(results):
    verdict = results.verdict()
    assert verdict.verified, verdict.explanation


def lose_block(y, w):
    """The products with 128 of the elements of h are missing in 64 columns: a share of 128 / ffn of their mean square."""
    rng = np.random.default_rng(3)
    y[:, :64] += rng.normal(0, np.sqrt(128 / w.ffn), (len(y), 64)) * np.sqrt(np.square(y).mean(1, keepdims=True))


@pytest.mark.parametrize("bug", ["a lost block of k", "a scale", "a token", "a factor of all"])
def test_bugs_are_found(results, bug):
    w = results.data.workload

    def spoil(y):
        if bug == "a lost block of k":
            lose_block(y, w)
        elif bug == "a scale":
            y[:, 5] *= np.float32(1.3)
        elif bug == "a token":
            y[7] = y[8]
        else:
            y *= np.float32(1.04 if w.ffn > 512 else 1.06)  # the tolerance of a y of few terms is larger

    assert not results.verdict(spoil).verified


def test_promoted_sums_are_verified():
    verdict = Results(SMALL, promoted=True).verdict()
    assert verdict.verified, verdict.explanation


def test_promoted_sums_are_held_to_a_narrower_tolerance():
    w = MoeRouted(8192, **MIXTRAL, dtype="e4m3")
    assert requantized_tolerance(w, moe.DEPTH)["y"].rms < 0.6 * w.tolerance["y"].rms
