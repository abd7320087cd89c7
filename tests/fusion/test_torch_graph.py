"""Graphs captured from torch modules."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.fusion.analysis import analyse
from ptxkit.fusion.machine import machine_for
from ptxkit.fusion.read import read_graph
from ptxkit.fusion.report_json import values
from ptxkit.fusion.tables import text
from tests.fusion.evaluation import evaluated

H200 = machine_for("H200")

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


MODULE = """
import torch
from torch.nn import functional as F
class M(torch.nn.Module):
    def forward(self, x, y, m):
        return {forward}
torch.manual_seed(0)
module = M()
inputs = (torch.rand(4, 64, 64) + 0.5, torch.rand(4, 64, 64) + 0.5, torch.randn(64))
"""


@pytest.mark.parametrize(
    "forward",
    [
        "torch.add(x, 1.5) * 2 - torch.rsub(x, y / 3)",
        "torch.relu(x.transpose(1, 2)).contiguous() + y",
        "x[:, 3:9] * y[:, 9:15] + x[:, -6:]",
        "x[1] @ y[2].t()",
        "x[..., ::1].narrow(1, 5, 7).exp()",
        "torch.stack([x, y.neg()], 1).sum(-1)",
        "torch.cat([x, y, x * y], -1).amax(-1, keepdim=True)",
        "torch.cat([part.tanh() for part in x.unbind(0)])",
        "sum(x.view(4, 64, 4, 16).unbind(2))",
        "sum(x.chunk(4, 2)) + sum(y.split([16, 16, 16, 16], -1))",
        "m.expand(4, 64, 64) * x + m[:, None]",
        "m[None].expand(64, 64) @ y[0]",
        "x.sum((0, 1)) + x[0].mean(-1)",
        "F.layer_norm(x, (64,), m, m, 0.01)",
        "F.layer_norm(x, (64,), eps=0.5)",
        "F.rms_norm(x, (64,), m, 0.1) + F.rms_norm(y, (64,))",
        "F.linear(x, y[0], m)",
        "torch.addmm(m, x[0], y[0])",
        "torch.bmm(x, y.mT)",
        "F.softmax(x * 3, 2) + torch.softmax(y, -1)",
        "torch.where(x > y, x, y).square() + x.pow(3)",
        "torch.where(x > 1, x, 0.25)",
        "torch.maximum(x, y).rsqrt() + torch.minimum(x, y).log()",
        "F.scaled_dot_product_attention(x, y, x)",
        "F.scaled_dot_product_attention(x[None], y[None], x[None], is_causal=True)",
        "F.scaled_dot_product_attention(x[None], y[None], x[None], scale=0.7)",
        "F.scaled_dot_product_attention(x[None], y[None], x[None], attn_mask=(x @ y)[:, None, 0])",
        "F.dropout(x, 0.5, False) + F.dropout(y, 0.0, True)",
        "F.gelu(x, approximate='tanh')",
        "F.embedding(torch.arange(8).reshape(2, 4), x[0])",
        "x[:, ::3][:, :21] * y[:, 1::3, :1].expand(4, 21, 64)",
        "x.diagonal(3, 1, 2).exp() + x.unfold(2, 4, 2).sum(-1)[:, :1, 0] + x.as_strided((4, 61), (1, 64), 9)",
        "x.transpose(0, 2).relu()[::2].movedim(0, -1).exp().unfold(1, 3, 3)",
        "x.flatten(1)[:, :128].unflatten(1, (2, 64)).permute(2, 0, 1).reshape(64, 8).exp()",
    ],
)
def test_the_graph_computes_what_the_module_computes(tmp_path, forward):
    """In numpy, from the operations with their attributes; none of them is one of which only the shapes are known."""
    graph = captured(tmp_path, MODULE.format(forward=forward))
    import torch

    names: dict = {}
    exec(MODULE.format(forward=forward), names)
    wanted = names["module"](*names["inputs"]).numpy()
    assert {"other", "pointwise", "dropout"}.isdisjoint(operation.kind for operation in graph.operations)
    given = {n: t for n, t in graph.tensors.items() if n not in graph.producers and n not in graph.views}
    arrays = dict(zip("xym", (t.double().numpy() for t in names["inputs"]), strict=True))
    constants = {n: np.arange(t.elements).reshape(t.shape) for n, t in given.items() if n not in arrays}
    results = evaluated(graph, {**{n: arrays[n] for n in given if n in arrays}, **constants})
    (out,) = graph.outputs
    assert results[out].shape == wanted.shape and torch is not None
    np.testing.assert_allclose(results[out], wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("forward", "kinds"),
    [
        ("torch.add(x, y, alpha=2)", ["pointwise"]),
        ("torch.rsub(x, 1)", ["pointwise"]),
        ("torch.rsub(x, y, alpha=2)", ["pointwise"]),
        ("torch.div(x, y, rounding_mode='floor')", ["pointwise"]),
        ("1 / x", ["pointwise", "multiply"]),
        ("x.masked_fill(y > 1, 3.0)", ["greater", "pointwise"]),
        ("torch.where(x > 1, 0.5, y)", ["greater", "pointwise"]),
        ("F.leaky_relu(x, 0.3) + F.softplus(y)", ["pointwise", "pointwise", "add"]),
        ("F.scaled_dot_product_attention(x[:, :8], y, x, is_causal=True)", ["other"]),  # aligned at the first query
        ("F.layer_norm(x, (64, 64))", ["other"]),
        ("x.softmax(0)", ["other"]),
        ("x.sum(1)", ["other"]),
        ("x.cumsum(-1)", ["other"]),
        ("x[:, ::2].exp()", ["exp"]),
        ("torch.addmm(m, x[0], y[0], beta=2)", ["other"]),
        ("x.topk(2, 0)[0]", ["other"]),
        ("x.topk(2, largest=False)[0]", ["other"]),
        ("x[:, x[0].topk(2)[1][0]]", ["top_k", "other"]),
        ("x.max(-1)[0].exp()", ["other", "exp"]),
        ("F.dropout(x, 0.3, True) + torch.zeros_like(x)", ["dropout", "add"]),
    ],
)
def test_what_no_kind_computes_is_not_named_after_one(tmp_path, forward, kinds):
    graph = captured(tmp_path, MODULE.format(forward=forward))
    assert [operation.kind for operation in graph.launches] == kinds
    assert bool(graph.remarks) == ("other" in kinds)
    for operation in graph.launches:
        if operation.kind == "dropout":
            assert operation.attributes["p"] == 0.3
    analyse(graph, machine_for("H200"))


@pytest.mark.parametrize("kind", ["float", "bfloat16", "half"])
def test_rms_norm_has_the_eps_of_the_type_in_which_torch_computes(tmp_path, kind):
    torch = pytest.importorskip("torch")
    graph = captured(tmp_path, MODULE.format(forward=f"F.rms_norm(x.{kind}(), (64,))"))
    (found,) = (o for o in graph.launches if o.kind == "rmsnorm")
    small = torch.full((1, 64), 2.0**-9).type(getattr(torch, kind))
    wanted = torch.nn.functional.rms_norm(small, (64,))
    eps = found.attributes["eps"]
    assert float(wanted[0, 0]) == pytest.approx(2.0**-9 / (2.0**-18 + eps) ** 0.5, rel=1e-2)


def test_kernels_of_unknown_operations_are_not_fused(tmp_path):
    graph = captured(tmp_path, MODULE.format(forward="F.relu(x.cumsum(-1)).cumsum(-1)"))
    assert graph.remarks[0].startswith("Of aten.cumsum only the shapes are known")
    report = analyse(graph, machine_for("H200"))
    assert not report.groups and {pair.reason for pair in report.pairs} == {
        "only the shapes of cumsum are known",
        "only the shapes of cumsum_1 are known",
    }
    assert "Of aten.cumsum" in text(report, "table") and values(report)["remarks"] == list(graph.remarks)


@pytest.mark.parametrize(
    ("written", "noted"), [("y[:, 0].mul_(3)", True), ("y.mul_(3)", False), ("torch._foreach_add_([y, x], 1.0)", True)]
)
def test_writing_to_a_view_is_noted(tmp_path, written, noted):
    body = f"        y = x * 2\n        {written}\n        return torch.relu(y)"
    graph = captured(tmp_path, MODULE.replace("        return {forward}", body))
    assert any("writes to a view" in remark for remark in graph.remarks) is noted


def test_gelu_by_erf_is_said_to_differ(tmp_path):
    norm = "F.layer_norm(x, (64,), m, torch.zeros(64))"
    (found,) = analyse(captured(tmp_path, MODULE.format(forward=f"F.gelu({norm})")), H200).groups
    assert found.offer.kernel == "layernorm" and "differs from gelu by erf" in found.offer.text
    by_tanh = MODULE.format(forward=f"F.gelu({norm}, approximate='tanh')")
    (found,) = analyse(captured(tmp_path, by_tanh), H200).groups
    assert found.offer.kernel == "layernorm" and not found.offer.note


METHOD = """    def norm(self, x, w):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-3)
        return w * wide.to(x.dtype)
    def forward"""


@pytest.mark.parametrize(
    "forward",
    ["m * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3))", "self.norm(x.bfloat16(), m.bfloat16())"],
    ids=["f32", "bf16"],
)
def test_rms_normalization_in_parts(tmp_path, forward):
    module = MODULE.replace("    def forward", METHOD).format(forward=forward)
    report = analyse(captured(tmp_path, module), H200)
    named = [c.offer for c in report.groups if c.offer] + [offered for _, offered in report.bundled]
    assert any(o.kernel == "rmsnorm" and o.sizes["eps"] == 1e-3 for o in named)


def test_attention_of_scaled_queries(tmp_path):
    forward = "torch.softmax((x.bfloat16()[None] * 0.125) @ y.bfloat16()[None].transpose(-2, -1), -1) @ x.bfloat16()[None]"
    report = analyse(captured(tmp_path, MODULE.format(forward=forward)), H200)
    assert "attention" in [offered.kernel for _, offered in report.bundled] or any(
        c.offer and c.offer.kernel == "attention" for c in report.groups
    )


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        ("torch.fft.fft(x).real", "aten.fft_fft: .*no dtype"),
        ("x.view(torch.int16)", "aten.view.dtype: .*no dtype 'int16'.*describe the graph in JSON"),
        ("x if x.sum() > 0 else -x", "torch.export cannot capture"),
        ("x[torch.where(x[0, 0] > 0)[0]]", "torch.export cannot capture|depends on the values of another"),
    ],
)
def test_refused_modules(tmp_path, forward, message):
    with pytest.raises(UsageError, match=message):
        captured(tmp_path, MODULE.format(forward=forward))


def test_what_torch_writes_about_an_error_is_left_out(tmp_path, capfd):
    branch = "(x * 2) if x.sum() > 0 else x"
    with pytest.raises(UsageError, match="net.py.*torch.export cannot capture the module: GuardOnDataDependent"):
        captured(tmp_path, MODULE.format(forward=branch))
    assert capfd.readouterr().err == ""
    captured(tmp_path, MODULE.format(forward="(print('traced', file=__import__('sys').stderr), x * 2)[1]"))
    assert "traced" in capfd.readouterr().err
