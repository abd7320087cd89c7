"""Memory of captured modules: views launch nothing, and what is written in place stays written."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.fusion.analysis import analyse
from ptxkit.fusion.cost import Group
from ptxkit.fusion.machine import machine_for
from ptxkit.fusion.read import read_graph
from tests.fusion.evaluation import evaluated

torch = pytest.importorskip("torch", reason="torch is not installed")
H200 = machine_for("H200")
MODULE = """
import torch
from torch.nn import functional as F
class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.ones(6))
    def forward(self, x):
        {body}
torch.manual_seed(0)
module, inputs = M(), (torch.rand(4, 6, 6) + 0.5,)
"""
VIEWS = """
x.view(24, 6) | x.reshape(-1) | x.flatten() | x.ravel() | x.unflatten(2, (2, 3)) | x[None] | x.unsqueeze(1)
x[:, :1].squeeze(1) | x.permute(2, 0, 1) | x.transpose(0, 1) | x.swapaxes(0, 2) | x.movedim(0, 2) | x.mT | x.mH
x.adjoint() | x[0].t() | x[0].T | x[1] | x.select(1, 2) | x.narrow(2, 1, 3) | x[..., 2:5] | x[:, ::2]
x[1::2, ::3, 1::2] | x[-1, :, -2:] | x.unbind(1)[2] | x.chunk(4, 2)[1] | x.split(4, 1)[1] | x.split([1, 5], 2)[1]
x.tensor_split(4, 1)[3] | x.hsplit(2)[1] | x.vsplit(2)[0] | x.dsplit(3)[2] | x.diagonal(1, 1, 2) | x[0].diagonal()
x.unfold(2, 3, 2) | x.unfold(1, 2, 1).mT | x.as_strided((3, 5), (1, 6), 2) | x.expand(3, 4, 6, 6)
x[:, :1].expand(4, 6, 6) | x[:, 0, :, None].expand_as(x) | torch.broadcast_to(x, (2, 4, 6, 6))
torch.broadcast_tensors(x[:, :1], x)[0] | torch.meshgrid(x[0, 0], x[0, 1], indexing="ij")[1] | x.view_as(x)
x.detach() | x.real | x.contiguous() | x.float() | x.to(torch.float32) | x.type_as(x) | x.view(torch.int32)
torch.atleast_3d(x) | x[0, 0].view(2, 3).mT | x.mT.contiguous() | x.mT.reshape(-1) | x.mT.flatten() | x.clone()
x[:, ::2].contiguous() | x[:, :1].expand(4, 6, 6).reshape(-1) | x.flip(0) | x.roll(1, 0) | x.repeat(2, 1, 1)
x.tile(2) | x.double() | x[:, [1, 2]] | x.index_select(0, torch.tensor([1])) | x.tril() | torch.rot90(x)
x.repeat_interleave(2, 0) | torch.cat([x]) | F.pad(x, (1, 1)) | x.to(torch.float32, copy=True) | x[x[0, 0, 0].long()]
"""


def captured(tmp_path, body):
    file = tmp_path / "net.py"
    file.write_text(MODULE.format(body=body.replace("\n", "\n        ")))
    names: dict = {}
    exec(file.read_text(), names)
    return read_graph(file), names["module"], names["inputs"]


@pytest.mark.parametrize("row", [line.split(" | ") for line in VIEWS.strip().split("\n")], ids=lambda row: row[0])
def test_what_torch_makes_without_a_launch(tmp_path, row):
    """Held against torch: an expression of whose result the storage is that of x launches nothing, another one a kernel."""
    graph, module, inputs = captured(tmp_path, "return " + ", ".join(f"({text}).abs()" for text in row))
    (x,) = inputs
    for i, (text, operation) in enumerate(zip(row, [o for o in graph.launches if o.kind == "abs"], strict=True)):
        result = eval(text, {"torch": torch, "F": torch.nn.functional, "x": x})
        shares = result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        memory = graph.memory(operation.inputs[0])
        assert (memory == "x") is shares, text
        if shares:
            places = torch.as_strided(torch.arange(x.numel()), result.shape, result.stride(), result.storage_offset())
            read = Group.of(graph, [operation]).reads()["x"]
            assert read == 4 * len(places.unique()), (i, text)


INPLACE = [
    "x.add_(1)\nreturn x * 2",
    "y = x * 2\nx.mul_(y)\nreturn x.exp() - y",
    "self.count.add_(1)\nreturn x * self.count",
    "self.count += 1\nself.count.mul_(2)\nreturn x * self.count",
    "self.count.copy_(x[0, 0])\nreturn x.exp()",
    "self.count.zero_()\nreturn x + self.count",
    "y = x * 1\nv = y.view(-1)\nt = y.mT\ny.add_(1)\nreturn v.exp().view(4, 6, 6) + t",
    "y = x * 1\ny.mT.mul_(x)\ny.view(-1).add_(1)\nreturn y.exp()",
    "y = x.clone()\ny.add_(1)\nreturn y * x",
    "y = x.mT.contiguous()\ny.add_(1)\nreturn y * x",
    "y = x.contiguous()\ny.add_(1)\nreturn y * x",
    "F.silu(x, inplace=True)\nreturn x.mT + 1",
    "x.mT.sub_(x.clone())\nreturn x",
    "torch.add(self.count, 1, out=self.count)\nreturn x - self.count",
    "v = x[:, 0]\nx.add_(1)\nreturn v.exp()",
    "x.fill_(2.0)\nreturn x.sqrt()",
]


@pytest.mark.parametrize("body", INPLACE)
def test_what_is_written_in_place(tmp_path, body):
    """The results of the graph have what the module returns, and what it leaves in its input and its buffer."""
    graph, module, inputs = captured(tmp_path, body)
    values = {"x": inputs[0].double().numpy().copy(), "b_count": np.ones(6)}
    values |= {n: np.array([2.0 if "fill" in n else 0.0]) for n in graph.tensors if n.endswith("_value")}
    results = evaluated(graph, {n: values[n] for n in values if n in graph.tensors})
    before = {"x": inputs[0].clone(), "b_count": module.count.clone()}
    with torch.no_grad():
        returned = module(*inputs)
    expected = [returned]
    for name, now in (("x", inputs[0]), ("b_count", module.count)):
        written = [o for o, memories in graph.overwritten.items() if name in memories]
        changed = not torch.equal(before[name], now)
        assert bool(written) is changed
        if changed:
            expected.append(now)
    found = [results[name].ravel() for name in graph.outputs]
    for wanted in expected:
        assert any(
            value.size == wanted.numel() and np.allclose(value, wanted.numpy().ravel(), rtol=1e-5) for value in found
        )
    assert not graph.remarks


@pytest.mark.parametrize(
    ("body", "megabytes"),
    [
        ("x.add_(1)\nreturn x * 2", 3),  # x is read, and written, and the result is written
        ("y = x + 1\nreturn y * 2", 2),
        ("x.add_(1)\nx.mul_(2)\nreturn x.exp()", 3),  # the first version of x is needed by the second one only
        ("x[:, 0].add_(1)\nreturn x.exp()", 2 + 2 / 6),
    ],
)
def test_bytes_of_what_is_written_in_place(tmp_path, body, megabytes):
    graph, _, inputs = captured(tmp_path, body)
    report = analyse(graph, H200)
    assert report.after.bytes == pytest.approx(megabytes * inputs[0].numel() * 4)
    for candidate in report.groups:
        assert megabytes == 2 or candidate.offer is None  # a formula has one result


def test_memory_is_overwritten_after_it_was_read(tmp_path):
    """The product would read x in an epilogue, after add_ has changed it."""
    body = "y = x * 3\nx.add_(1)\nz = x.cumsum(-1)\nreturn z @ x + {}"
    for term, merged in (("y", False), ("self.count", True)):
        graph, _, _ = captured(tmp_path, body.format(term))
        groups = [candidate.group.names for candidate in analyse(graph, H200).groups]
        assert any({"matmul", "add"} <= names for names in groups)
        assert not any({"mul", "add"} <= names for names in groups) or merged


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("x.topk(2)[1]", "top_k"),
        ("x.argmax(-1)", "other"),
        ("x.sort(-1)[1]", "other"),
        ("x.argsort(0)", "other"),
        ("x.max(1)[1]", "other"),
        ("x.median(1)[1]", "other"),
        ("x.mode(-1)[1]", "other"),
        ("x.cummax(0)[1]", "other"),
        ("x.kthvalue(2)[1]", "other"),
        ("torch.searchsorted(x, x)", "other"),
        ("torch.bucketize(x, x[0, 0])", "other"),
        ("(x > 1).sum(-1)", "sum"),
        ("(x > 1).cumsum(0)", "other"),
        ("x.int().sum(2)", "sum"),
        ("x.count_nonzero(0)", "other"),
        ("(x > 1).any(0)", "other"),
        ("x.bfloat16().topk(3)[0]", "top_k"),
        ("x.frexp()[1]", "other"),
    ],
)
def test_types_of_results_are_those_of_torch(tmp_path, expression, kind):
    graph, module, inputs = captured(tmp_path, f"return {expression}")
    assert graph.launches[-1].kind == kind
    wanted = module(*inputs)
    assert wanted.numel() * wanted.element_size() in {graph.tensors[name].bytes for name in graph.outputs}


@pytest.mark.parametrize(
    ("turned", "copied"),
    [
        ("transpose(1, 2).reshape(6, 24)", False),
        ("transpose(1, 2).contiguous()", False),
        ("transpose(2, 3).contiguous()", True),
        ("transpose(1, 3).reshape(6, 24)", True),
        ("transpose(1, 2)[:, ::2].contiguous()", True),
        ("transpose(1, 2).clone()", True),
    ],
)
def test_attention_writes_the_tokens_before_the_heads(tmp_path, turned, copied):
    """In this order, and in no other one, its result needs no copy."""
    graph, _, _ = captured(tmp_path, f"q = x[None]\nreturn F.scaled_dot_product_attention(q, q, q).{turned}")
    assert [o.kind for o in graph.launches] == ["attention", *(["copy"] if copied else [])]
