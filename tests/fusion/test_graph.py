"""Graphs: shapes, bytes and flops of operations, and what is refused."""

from __future__ import annotations

import pytest

from ptxkit.errors import UsageError
from ptxkit.fusion.graph import GraphBuilder
from ptxkit.fusion.kinds import KINDS


def made(kind, *shapes, **attributes):
    g = GraphBuilder()
    names = [g.input(f"x{i}", shape, "f32") for i, shape in enumerate(shapes)]
    g.operation(kind, *names, name="op", **attributes)
    graph = g.graph()
    (operation,) = graph.operations
    return graph, operation


@pytest.mark.parametrize(
    ("kind", "shapes", "attributes", "result", "flops"),
    [
        ("add", [(4, 8), (8,)], {}, (4, 8), 32),
        ("add", [(4, 8)], {"value": 2}, (4, 8), 32),
        ("gelu", [(4, 8)], {}, (4, 8), 8 * 32),
        ("layernorm", [(4, 8), (8,), (8,)], {}, (4, 8), 7 * 32),
        ("mean", [(4, 8)], {}, (4, 1), 32),
        ("column_sum", [(4, 8)], {}, (8,), 32),
        ("matmul", [(3, 4, 8), (3, 8, 5)], {}, (3, 4, 5), 2 * 3 * 4 * 8 * 5),
        ("matmul", [(4, 8), (5, 8)], {"transpose_b": True}, (4, 5), 2 * 4 * 8 * 5),
        ("linear", [(2, 4, 8), (5, 8), (5,)], {}, (2, 4, 5), 17 * 40),
        ("grouped_linear", [(6, 8), (4, 5, 8)], {}, (6, 5), 2 * 6 * 8 * 5),
        ("attention", [(2, 4, 16, 8), (2, 2, 32, 8), (2, 2, 32, 8)], {}, (2, 4, 16, 8), (4 * 8 + 5) * 2 * 4 * 16 * 32),
        ("transpose", [(4, 8)], {}, (8, 4), 0),
        ("gather", [(100, 8), (7,)], {}, (7, 8), 0),
        ("concat", [(4, 8), (4, 2)], {}, (4, 10), 0),
        ("reshape", [(4, 8)], {"shape": [2, 16]}, (2, 16), 0),
    ],
)
def test_shape_and_flops(kind, shapes, attributes, result, flops):
    if KINDS[kind].family == "view":  # a graph needs a launch
        g = GraphBuilder()
        name = g.operation(kind, g.input("x", shapes[0], "f32"), **attributes)
        assert g.shape(name) == result
        return
    graph, operation = made(kind, *shapes, **attributes)
    assert graph.shape(operation.outputs[0]) == result
    assert graph.flops(operation) == flops


def test_causal_attention_computes_half():
    shapes = [(2, 16, 8)] * 3
    full, half = (made("attention", *shapes, causal=causal) for causal in (False, True))
    assert half[0].flops(half[1]) == full[0].flops(full[1]) / 2


def test_a_gather_reads_the_rows_that_it_takes():
    graph, operation = made("gather", (100, 8), (7,))
    assert graph.bytes_read(operation, "x0") == 7 * 8 * 4


def test_weights_of_experts_without_rows_are_not_read():
    graph, operation = made("grouped_linear", (3, 8), (64, 5, 8), experts=10)
    assert graph.bytes_read(operation, "x1") == 3 * 5 * 8 * 4  # three rows belong to three experts at most


def test_types_of_four_bits():
    g = GraphBuilder()
    assert g.tensor(g.input("x", (2, 8), "e2m1")).bytes == 8


@pytest.mark.parametrize(
    ("kind", "shapes", "attributes", "message"),
    [
        ("add", [(4, 8), (3,)], {}, "cannot be broadcast"),
        ("add", [(4, 8)], {}, "the attribute 'value'"),
        ("gelu", [(4,), (4,)], {}, "takes 1 input, not 2"),
        ("gelu", [(4,)], {"approximate": "tanh"}, "no attribute 'approximate'"),
        ("matmul", [(4, 8), (7, 5)], {}, "inner sizes differ: 8 of [4, 8] and 7 of [7, 5]"),
        ("linear", [(4, 8), (5, 7)], {}, "needs weights (n, 8)"),
        ("linear", [(4, 8), (5, 8), (4,)], {}, "the bias must have the shape [5]"),
        ("attention", [(3, 4, 8), (2, 4, 8), (2, 4, 8)], {}, "2 heads of k and v must divide the 3 heads of q"),
        ("attention", [(4, 8), (4, 8), (4, 8)], {}, "must all be (batch, heads, length, d)"),
        ("split", [(4, 9)], {}, "2 parts do not divide the 9"),
        ("split", [(4, 9)], {"sizes": [4, 4]}, "add up to 8"),
        ("reshape", [(4, 8)], {"shape": [5, 5]}, "other than the 25 elements"),
        ("transpose", [(4, 8)], {"axes": [0, 0]}, "a permutation"),
        ("cast", [(4, 8)], {"dtype": "f33"}, "no dtype 'f33'"),
        ("grouped_linear", [(4, 8), (2, 5, 8)], {"experts": 3}, "experts is 3"),
        ("softmax", [()], {}, "no axis"),
        ("galu", [(4,)], {}, "did you mean 'gelu'"),
    ],
)
def test_refused_operations(kind, shapes, attributes, message):
    with pytest.raises(UsageError, match=r"operation 'op' \(|operation 'op': no kind") as error:
        made(kind, *shapes, **attributes)
    assert message in str(error.value)


def test_names_are_unique():
    g = GraphBuilder()
    x = g.input("x", (4,), "f32")
    with pytest.raises(UsageError, match="two tensors 'x'"):
        g.input("x", (4,), "f32")
    g.gelu(x, name="y")
    with pytest.raises(UsageError, match="two operations 'y'"):
        g.gelu(x, name="y")
    with pytest.raises(UsageError, match="reads 'z', which no earlier operation writes"):
        g.gelu("z")


@pytest.mark.parametrize(
    ("shape", "dtype"), [([0], "f32"), ([-1], "f32"), ([2.0], "f32"), ("4", "f32"), ([4], "float33"), ([4], 7)]
)
def test_refused_tensors(shape, dtype):
    with pytest.raises(UsageError, match="tensor 'x'"):
        GraphBuilder().input("x", shape, dtype)


def test_every_kind_has_a_summary():
    assert [name for name, kind in KINDS.items() if not kind.summary] == []
