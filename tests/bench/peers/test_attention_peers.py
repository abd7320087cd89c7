"""The peers of attention: which sizes they offer, and which implementation of torch they select."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from ptxkit.bench.peers import every, torch_ops
from ptxkit.bench.peers.attention_peer import FlexAttentionPeer
from ptxkit.workload import registry
from ptxkit.workload.verify import compare

SDPA = {
    "flash_attention": "FLASH_ATTENTION",
    "cudnn_attention": "CUDNN_ATTENTION",
    "efficient_attention": "EFFICIENT_ATTENTION",
    "math_attention": "MATH",
}
FORWARD = {*SDPA, "flex_attention", "torch", "compile", "triton"}


def offering(kernel, **settings):
    workload = registry.get(kernel)(**settings)
    return {peer.name for peer in every() if peer.offers(workload)}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, FORWARD),
        ({"causal": True, "dtype": "f16"}, FORWARD),
        ({"kv_heads": 2}, FORWARD - {"efficient_attention"}),
        ({"lengths": "random"}, {"triton"}),  # torch takes sequences of equal length
        ({"causal": True, "q": 8192}, {"triton"}),  # torch makes rows without a key NaN
    ],
)
def test_offers_of_attention(settings, expected):
    assert offering("attention", **settings) == expected


def test_offers_of_other_attentions():
    assert offering("attention_scores") == {"torch", "compile"}
    assert offering("attention_e4m3") == {"torch", "compile"}
    assert not offering("attention_backward") & {"efficient_attention", "math_attention", "flex_attention", "triton"}


@pytest.mark.parametrize("name", SDPA)
def test_each_peer_selects_its_implementation(name):
    selected = []

    @contextmanager
    def sdpa_kernel(backend):
        selected.append(backend)
        yield
        selected.append("left")

    backends = SimpleNamespace(**{each: each for each in SDPA.values()})
    torch = SimpleNamespace(module=SimpleNamespace(nn=SimpleNamespace(attention=SimpleNamespace())))
    torch.module.nn.attention = SimpleNamespace(SDPBackend=backends, sdpa_kernel=sdpa_kernel)
    peer = next(peer for peer in every() if peer.name == name)
    function = peer.made(lambda x: (x, tuple(selected)), None, torch)
    assert function(3) == (3, (SDPA[name],))
    assert selected == [SDPA[name], "left"]


def test_flex_attention_is_compiled_with_autotuning():
    compiled = []

    def compile_(function, **options):
        compiled.append(options)
        return function

    torch = SimpleNamespace(module=SimpleNamespace(compile=compile_))
    workload = registry.get("attention")()
    FlexAttentionPeer().made(lambda x: x, torch_ops.find(workload), torch)
    assert compiled == [{"dynamic": False, "fullgraph": True, "mode": "max-autotune-no-cudagraphs"}]


@pytest.mark.parametrize(
    "settings",
    [{"q": 40, "k": 40, "causal": True}, {"q": 37, "k": 50, "causal": True, "kv_heads": 2}, {"q": 37, "k": 50}],
    ids=["causal", "lower right", "full"],
)
def test_flex_attention_agrees_with_the_reference(settings, monkeypatch):
    pytest.importorskip("torch")
    import torch

    workload = registry.get("attention")(batch=2, heads=4, d=64, **settings)
    inputs = workload.inputs(np.random.default_rng(4))
    made_on = []

    def on_the_cpu(w, device):
        made_on.append(device)
        return original(w, "cpu")

    original = torch_ops.flexible_attention
    monkeypatch.setattr(torch_ops, "flexible_attention", on_the_cpu)
    stand_in = SimpleNamespace(module=torch, current=nullcontext, device=SimpleNamespace(index=1))
    function = FlexAttentionPeer().written(workload, torch_ops.find(workload), stand_in)
    assert made_on == ["cuda:1"]
    bits = (torch.from_numpy(inputs[name].view(np.int16)) for name in ("query", "key", "value"))
    found = function(*(each.view(torch.bfloat16) for each in bits))
    o = found.view(torch.int16).numpy().view(inputs["query"].dtype)
    verdict = compare("o", o, workload.reference(**inputs)["o"], workload.tolerance["o"])
    assert verdict.verified, verdict.worst
