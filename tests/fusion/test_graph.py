"""Graphs: shapes, bytes and flops of operations, and what is refused."""

from __future__ import annotations

import re

import pytest

from ptxkit.errors import UsageError
from ptxkit.fusion.graph import Graph, GraphBuilder, Operation
from ptxkit.fusion.kinds import KINDS
from ptxkit.fusion.tensors import Tensor


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
        ("top_k", [(6, 8)], {"k": 2}, (6, 2), 5 * 48),
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
    assert graph.bytes_read(operation, 0) == 7 * 8 * 4


def test_weights_of_experts_without_rows_are_not_read():
    graph, operation = made("grouped_linear", (3, 8), (64, 5, 8), experts=10)
    assert graph.bytes_read(operation, 1) == 3 * 5 * 8 * 4  # three rows belong to three experts at most


@pytest.mark.parametrize(
    ("one", "other", "result"),
    [
        ("bf16", "f32", "f32"),
        ("f16", "bf16", "f32"),
        ("s64", "bf16", "bf16"),
        ("s8", "u8", "s32"),
        ("bool", "s8", "s8"),
        ("e4m3", "e5m2", "f16"),
        ("e4m3", "bf16", "bf16"),
        ("tf32", "f16", "tf32"),
    ],
)
@pytest.mark.parametrize("kind", ["add", "concat", "matmul"])
def test_types_are_promoted_whatever_their_order(one, other, result, kind):
    for first, second in ((one, other), (other, one)):
        g = GraphBuilder()
        operands = [g.input(name, (4, 4), dtype) for name, dtype in (("x", first), ("y", second))]
        assert g.tensor(g.operation(kind, *operands)).dtype == result


def test_the_condition_of_where_has_no_part_in_its_type():
    g = GraphBuilder()
    mask, x = g.input("mask", (4, 4), "bool"), g.input("x", (4, 4), "bf16")
    assert g.tensor(g.where(mask, x, x)).dtype == "bf16"
    assert g.tensor(g.where(mask, x, value=0, name="filled")).dtype == "bf16"


def test_functions_of_integers_are_floating_point_numbers():
    g = GraphBuilder()
    x = g.input("x", (4,), "s32")
    assert [g.tensor(n).dtype for n in (g.exp(x), g.divide(x, value=2), g.multiply(x, value=0.5), g.abs(x))] == [
        "f32",
        "f32",
        "f32",
        "s32",
    ]


def test_sparse_weights_are_a_half_and_their_places():
    graph, operation = made("linear", (16, 64), (32, 64), sparse=True)
    assert graph.bytes_read(operation, 1) == 32 * 32 * 4 + 32 * 32 / 4 and graph.flops(operation) == 16 * 32 * 64


def test_types_of_four_bits():
    g = GraphBuilder()
    assert g.tensor(g.input("x", (2, 8), "e2m1")).bytes == 8


@pytest.mark.parametrize(
    ("kind", "shapes", "attributes", "message"),
    [
        ("add", [(4, 8), (3,)], {}, "cannot be broadcast"),
        ("add", [(4, 8)], {}, "the attribute 'value'"),
        ("gelu", [(4,), (4,)], {}, "takes 1 input, not 2"),
        ("gelu", [(4,)], {"approximate": "erf"}, "approximate must be one of tanh, none"),
        ("silu", [(4,)], {"approximate": "tanh"}, "no attribute 'approximate'"),
        ("pointwise", [(4,)], {}, "needs the attribute 'function'"),
        ("pointwise", [(4,), (3,)], {"function": "f"}, "cannot be broadcast"),
        ("other", [(4,)], {"shapes": [[4]]}, "'shapes' and 'dtypes', with one item for each result"),
        ("other", [(4,)], {"shapes": [[0]], "dtypes": ["f32"]}, "must consist of positive numbers"),
        ("expand", [(4,)], {"shape": [3]}, "cannot be expanded"),
        ("expand", [(4,)], {}, "needs the attribute 'shape'"),
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
        ("top_k", [(6, 8)], {}, "needs the attribute 'k'"),
        ("top_k", [(6, 8)], {"k": 9}, "k is 9, but the rows have 8 elements"),
        ("top_k", [(6, 8)], {"k": 2, "scores": "max"}, "scores must be one of softmax, sigmoid, none, not 'max'"),
        ("top_k", [(6, 8)], {"k": 2, "scores": ["softmax"]}, "scores must be one of softmax"),
        ("top_k", [(6, 8)], {"k": 2, "renormalize": 1}, "'renormalize' must be true or false"),
        ("top_k", [()], {"k": 1}, "no axis"),
        ("routed_linear", [(6, 8), (4, 5, 8), (6, 2)], {}, "the experts must be (..., choices) of s32 or s64"),
        ("variance", [(4, 8), (6, 4, 8)], {}, "the means must be [4, 1], not [6, 4, 8]"),
        ("softmax", [()], {}, "no axis"),
        ("galu", [(4,)], {}, "did you mean 'gelu'"),
        ("attention", [(4, 8, 8)] * 3, {"causal": "false"}, "'causal' must be true or false, not 'false'"),
        ("matmul", [(4, 8), (5, 8)], {"transpose_b": 1}, "'transpose_b' must be true or false, not 1"),
        ("linear", [(4, 8), (5, 8)], {"sparse": "yes"}, "'sparse' must be true or false"),
        ("transpose", [(4, 8)], {"axes": [0, "a"]}, "a permutation of [0, 1], not [0, 'a']"),
        ("transpose", [(4, 8)], {"axes": [[0], 1]}, "a permutation"),
        ("transpose", [(4, 8)], {"axes": [0.0, 1.0]}, "a permutation"),
        ("transpose", [(4, 8)], {"axes": [False, True]}, "a permutation"),
        ("polynomial", [(4, 8)], {"multiply_adds": 10**400}, "multiply_adds must be a positive number, not an int"),
        ("multiply", [(4, 8)], {"value": 10**400}, "'value' must be a number, not an int"),
        ("multiply", [(4, 8)], {"value": float("nan")}, "'value' must be a number, not nan"),
        ("multiply", [(4, 8), (4, 8)], {"value": 2}, "not both"),
        ("grouped_linear", [(4, 8), (2, 5, 8)], {"experts": 10**5000}, "experts must be a positive number, not an int"),
        ("softmax", [(4, 8)], {"eps": 1}, "no attribute 'eps'"),
        ("layernorm", [(4, 8)], {"eps": -1}, "'eps' must be a number from 0"),
        ("add", [(2**40, 1), (1, 2**40)], {}, "must have at most 2^60 elements"),
    ],
)
def test_refused_operations(kind, shapes, attributes, message):
    with pytest.raises(UsageError, match=r"operation 'op' \(|operation 'op': no kind") as error:
        made(kind, *shapes, **attributes)
    assert message in str(error.value)


def test_any_number_of_axes_can_be_broadcast():
    g = GraphBuilder()
    x, y = g.input("x", (2, *[1] * 40), "f32"), g.input("y", (3, *[1] * 39), "f32")
    assert g.shape(g.add(x, y)) == (2, 3, *[1] * 39)


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


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ([("a", "add", ("x", "b"), ("a",)), ("b", "relu", ("a",), ("b",))], "reads 'b', which no earlier operation"),
        ([("a", "relu", ("x",), ("a",)), ("a", "relu", ("x",), ("b",))], "two operations 'a'"),
        ([("a", "sum", ("x",), ("a",))], "the graph states others"),
        ([("a", "relu", ("x",), ("a",)), ("b", "relu", ("x",), ("a",))], "which exists already"),
        ([("a", "galu", ("x",), ("a",))], "no kind 'galu'"),
        ([("a", "relu", ("x", "x"), ("a",))], "takes 1 input"),
        ([("a", "reshape", ("x",), ("a",), {"shape": [64, 64]})], "no operation that launches"),
    ],
)
def test_graphs_without_a_builder_are_checked(operations, message):
    tensors = {name: Tensor(name, (64, 64), "f32") for name in "xab"}
    with pytest.raises(UsageError, match=message):
        Graph("net", tensors, tuple(Operation(*each) for each in operations), frozenset("a"))


@pytest.mark.parametrize("name", ["kind", "self", "inputs"])
def test_attributes_with_the_names_of_parameters_are_unknown_ones(name):
    g = GraphBuilder()
    with pytest.raises(UsageError, match=f"no attribute '{name}'"):
        g.operation("relu", g.input("x", (4,), "f32"), **{name: 1})


@pytest.mark.parametrize(
    ("x", "scales", "attributes", "message"),
    [
        ((6, 8), (), {}, ""),
        ((6, 2, 8), (), {}, ""),
        ((6, 8), ((6, 1), (4, 5)), {}, ""),
        ((6, 2, 8), ((6, 2, 1), (4, 5)), {}, ""),
        ((6, 7), (), {}, "x must be [6, 8] or [6, 2, 8], not [6, 7]"),
        ((5, 8), (), {}, "x must be [6, 8] or [6, 2, 8], not [5, 8]"),
        ((6, 8), ((6, 1),), {}, "takes the scales of x and of the weights, or neither"),
        ((6, 8), ((6, 2, 1), (4, 5)), {}, "the scales of x must be [6, 1], not [6, 2, 1]"),
        ((6, 8), ((6, 1), (5,)), {}, "the scales of the weights must be [4, 5], not [5]"),
        ((6, 8), (), {"experts": 5}, "experts is 5, but the weights have 4"),
        ((6, 8), (), {"experts": 0}, "experts must be a positive number, not 0"),
    ],
)
def test_routed_products(x, scales, attributes, message):
    g = GraphBuilder()
    operands = [g.input("x", x, "s8"), g.input("w", (4, 5, 8), "s8"), g.input("expert", (6, 2), "s32")]
    operands += [g.input(f"scales{i}", shape, "f32") for i, shape in enumerate(scales)]
    if message:
        with pytest.raises(UsageError, match=re.escape(message)):
            g.routed_linear(*operands, **attributes)
        return
    y = g.tensor(g.routed_linear(*operands, name="y", experts=3))
    assert (y.shape, y.dtype) == ((6, 2, 5), "f32" if scales else "s8")
    graph = g.graph()
    assert graph.bytes_read(graph.operations[0], 1) == 4 * 5 * 8 * 3 / 4
    assert graph.flops(graph.operations[0]) == (2 * 8 + 2 * bool(scales)) * 60
