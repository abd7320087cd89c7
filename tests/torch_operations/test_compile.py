"""torch.compile without a graph break, with fixed and with symbolic shapes, and torch.export."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch
from torch_operations.cases import BY_NAME, CASES

import ptxkit.torch as pt


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_graph_break(case):
    tensors = case.tensors()
    compiled = torch.compile(lambda *t: case.ours(*t) * 2, fullgraph=True, backend="aot_eager")
    found, expected = compiled(*tensors), case.ours(*tensors) * 2
    assert torch.equal(found, expected)
    if case.differentiable and not case.name.startswith("attention"):  # whose sums of dq have any order
        ones = torch.ones_like(found)
        for ours, theirs in zip(
            torch.autograd.grad(found, tensors, ones), torch.autograd.grad(expected, tensors, ones), strict=True
        ):
            assert torch.allclose(ours, theirs, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("name", ["layernorm", "softmax", "swiglu", "add_gelu"])
def test_symbolic_shapes_are_compiled_once(name):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    case = BY_NAME[name]
    compiled = torch.compile(case.ours, fullgraph=True, dynamic=True, backend=backend)
    for rows in (4, 5, 7):
        tensors = [torch.randn(rows, 24) if len(s) > 1 else torch.randn(24) for s in case.shapes]
        assert torch.equal(compiled(*tensors), case.ours(*tensors))
    assert len(graphs) == 1


def test_a_module_is_compiled():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        pt.LayerNorm(24, activation="gelu"), pt.Linear(24, 16), pt.RMSNorm(16), pt.SwiGLU(16, 32)
    )
    x = torch.randn(3, 24)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), model(x), atol=1e-6)


def test_an_error_at_compilation_names_the_argument():
    compiled = torch.compile(pt.swiglu, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="swiglu: up has the shape"):
        compiled(torch.randn(4, 12), torch.randn(2, 12))


def test_dropout_is_compiled_with_its_random_numbers():
    compiled = torch.compile(lambda x: pt.softmax(x, 0.5), fullgraph=True, backend="aot_eager")
    x = torch.randn(4, 64)
    torch.manual_seed(1)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(1)
    assert torch.equal(compiled(x), first)
    assert not torch.equal(first, second)


def test_a_model_is_exported():
    class Model(torch.nn.Module):
        def forward(self, x):
            return pt.softmax(x)

    x = torch.randn(3, 8)
    exported = torch.export.export(Model(), (x,))
    assert any("ptxkit.softmax" in str(node.target) for node in exported.graph.nodes)
    assert torch.equal(exported.module()(x), pt.softmax(x))


@pytest.mark.gpu
def test_a_cuda_graph_replays_a_call():
    x = torch.randn(64, 256, device="cuda")
    weight, bias = torch.rand(256, device="cuda"), torch.rand(256, device="cuda")
    pt.layernorm(x, weight, bias)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = pt.layernorm(x, weight, bias)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(y, pt.layernorm(x, weight, bias))


@pytest.mark.gpu
def test_the_first_call_cannot_be_captured():
    from ptxkit.errors import UsageError

    x = torch.randn(3, 777, device="cuda")
    with pytest.raises(UsageError, match="call it once before the capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        pt.softmax(x)


@pytest.mark.gpu
def test_calls_are_queued_on_the_current_stream():
    x = torch.randn(4096, 1024, device="cuda")
    stream = torch.cuda.Stream()
    expected = pt.softmax(x * 2)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        y = pt.softmax(x * 2)
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(y, expected)


@pytest.mark.gpu
def test_attention_on_several_streams_and_in_graphs_at_the_same_time():
    """Each call takes its tiles from a counter of its own."""
    given = [[torch.randn(2, 700, 12, 64, device="cuda").bfloat16() for _ in range(3)] for _ in range(3)]
    expected = [pt.attention(*tensors) for tensors in given]
    streams = [torch.cuda.Stream() for _ in given]
    graphs, captured = [torch.cuda.CUDAGraph() for _ in given], []
    for graph, tensors in zip(graphs, given, strict=True):
        with torch.cuda.graph(graph):
            captured.append([pt.attention(*tensors) for _ in range(2)])
    found = []
    torch.cuda.synchronize()
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                graphs[i].replay()
                found.append((i, pt.attention(*given[i])))
    torch.cuda.synchronize()
    found += [(i, result) for i, results in enumerate(captured) for result in results]
    assert all(torch.equal(result, expected[i]) for i, result in found)
