"""Graphs captured from torch modules."""

from __future__ import annotations

import pytest

from ptxkit.errors import UsageError
from ptxkit.fusion.read import read_graph

BLOCK = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, hidden=512, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(hidden), nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, tokens, hidden = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        o = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(o.transpose(1, 2).reshape(batch, tokens, hidden))
        return x + self.down(nn.functional.gelu(self.up(x)))

def module():
    return Block()

def inputs():
    return (torch.randn(2, 128, 512),)
"""


def captured(tmp_path, text):
    pytest.importorskip("torch", reason="torch is not installed")
    file = tmp_path / "net.py"
    file.write_text(text)
    return read_graph(file)


def test_a_transformer_block(tmp_path):
    graph = captured(tmp_path, BLOCK)
    kinds = [operation.kind for operation in graph.launches]
    assert kinds == ["layernorm", "linear", "attention", "linear", "add", "linear", "gelu", "linear", "add"]
    (attention,) = (operation for operation in graph.launches if operation.kind == "attention")
    assert attention.attributes["causal"] and graph.shape(attention.outputs[0]) == (2, 4, 128, 128)


@pytest.mark.parametrize(
    ("forward", "kinds"),
    [
        ("x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)", ["square", "mean", "add", "rsqrt", "multiply"]),
        ("torch.softmax(x / 8, -1) @ x", ["divide", "softmax", "matmul"]),
        ("x.bfloat16() + 1", ["cast", "add"]),
        ("torch.cat([x, x.exp()], 0)", ["exp", "concat"]),
        ("x.sum(-1).sigmoid()", ["sum", "sigmoid"]),
        ("torch.relu(x).t().contiguous()", ["relu", "copy"]),
    ],
)
def test_operations(tmp_path, forward, kinds):
    text = (
        "import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n"
        f"        return {forward}\nmodule = M()\ninputs = (torch.randn(64, 64),)\n"
    )
    assert [operation.kind for operation in captured(tmp_path, text).launches] == kinds


def test_experts_that_are_gathered(tmp_path):
    """Gating becomes top_k; products with gathered weights stay what they are, since ATen has no routed product."""
    text = """
import torch
class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router = torch.nn.Linear(64, 8, bias=False)
        self.up, self.down = (torch.nn.Parameter(torch.randn(8, 96, 64)) for _ in range(2))
    def forward(self, x):
        weight, expert = torch.topk(self.router(x).softmax(-1), 2)
        weight = weight / weight.sum(-1, keepdim=True)
        h = torch.nn.functional.silu(self.up[expert] @ x[:, None, :, None])
        return (weight[..., None, None] * (self.down[expert].transpose(-1, -2) @ h)).squeeze(-1)
module, inputs = Experts(), (torch.randn(16, 64),)
"""
    graph = captured(tmp_path, text)
    kinds = [operation.kind for operation in graph.launches]
    assert kinds[:5] == ["linear", "softmax", "top_k", "sum", "divide"]
    assert kinds[5:] == ["gather", "matmul", "silu", "gather", "matmul", "multiply"]
    (gating,) = (operation for operation in graph.launches if operation.kind == "top_k")
    assert [graph.shape(name) for name in gating.outputs] == [(16, 2), (16, 2)] and gating.attributes["k"] == 2


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        ("torch.fft.fft(x).real", "is not known here"),
        ("x if x.sum() > 0 else -x", "torch.export cannot capture"),
        ("x.softmax(0)", "only the last axis"),
        ("x.topk(2, 0)[0]", "only the largest elements along the last axis"),
        ("x.topk(2, largest=False)[0]", "only the largest elements along the last axis"),
        ("x[:, x.topk(2)[1][0]]", "only one tensor of indices, of the first axis"),
        ("x[torch.where(x[0] > 0)[0]]", "torch.export cannot capture|is not known here"),
    ],
)
def test_refused_modules(tmp_path, forward, message):
    text = (
        "import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n"
        f"        return {forward}\nmodule = M()\ninputs = (torch.randn(64, 64),)\n"
    )
    with pytest.raises(UsageError, match=message):
        captured(tmp_path, text)
