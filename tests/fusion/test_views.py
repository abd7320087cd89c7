"""Verdicts where operations read the same tensor in different orders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ptxkit.fusion.analysis import Compiled, analyse
from ptxkit.fusion.cost import Group
from ptxkit.fusion.graph import GraphBuilder
from ptxkit.fusion.groups import attention_patterns
from ptxkit.fusion.machine import machine_for
from ptxkit.fusion.offers import offer
from ptxkit.fusion.placement import conflict
from ptxkit.fusion.score import WEIGHTS, parse_thresholds

H200 = machine_for("H200")
N = 4096


def pair(build, *inputs):
    """The verdict and the reason of the only pair of a graph of x (N, N), w (N, N) and further inputs."""
    g = GraphBuilder()
    build(g, g.input("x", (N, N), "f32"), *[g.input(f"in{i}", shape, "f32") for i, shape in enumerate(inputs)])
    report = analyse(g.graph(), H200)
    (found,) = report.pairs
    return found.verdict, found.reason, len(report.groups)


def turned(g, x):
    return g.permute(x, axes=[1, 0])


def with_its_transpose(g, x):
    y = g.exp(x)
    g.add(turned(g, y), y, name="last")


def product_with_its_transpose(g, x, w):
    y = g.linear(x, w)
    g.add(turned(g, y), y, name="last")


def row_sums_along_columns(g, x):
    g.divide(x, g.reshape(g.sum(x), shape=[N]), name="last")


@pytest.mark.parametrize(
    ("build", "inputs", "reason"),
    [
        (lambda g, x: g.softmax(turned(g, g.softmax(x)), name="last"), [], "along different axes"),
        (lambda g, x: g.sum(turned(g, g.softmax(x)), name="last"), [], "along different axes"),
        (product_with_its_transpose, [(N, N)], "in another order"),
        (with_its_transpose, [], "in another order"),
        (row_sums_along_columns, [], "uses each element of sum 4096 times"),
        (lambda g, x: g.divide(x, g.sum(turned(g, x)), name="last"), [], "in different orders"),
        (lambda g, x: g.column_sum(g.softmax(x), name="last"), [], "needs whole columns, softmax whole rows"),
        (lambda g, x, w: g.softmax(turned(g, g.linear(x, w)), name="last"), [(N, N)], "many rows of the product"),
        (lambda g, x, w: g.column_sum(g.linear(x, w), name="last"), [(N, N)], "many rows of the product"),
        (lambda g, x, w: g.linear(turned(g, g.rmsnorm(x)), w, name="last"), [(N, N)], "statistics of all rows"),
        (lambda g, x, a: g.matmul(a, g.softmax(x), name="last"), [(8, N)], "statistics of all rows"),
    ],
)
def test_other_orders_of_the_same_elements_are_not_fused(build, inputs, reason):
    verdict, said, merged = pair(build, *inputs)
    assert verdict == "DO NOT FUSE" and reason in said and merged == 0


def test_a_copy_with_other_axes_does_not_join_rows_and_columns():
    g = GraphBuilder()
    g.softmax(g.transpose(g.softmax(g.input("x", (N, N), "f32"))), name="last")
    assert not any({"softmax", "last"} <= c.group.names for c in analyse(g.graph(), H200).groups)


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (lambda g, x, y: g.add(turned(g, g.relu(x)), y), [(N, N)]),
        (lambda g, x: g.exp(g.reshape(g.softmax(x), shape=[N // 2, 2, N])), []),
        (lambda g, x: g.multiply(*g.chunk(g.softmax(x), parts=2)), []),
        (lambda g, x: g.divide(x, g.reshape(g.sum(x), shape=[N, 1])), []),
        (lambda g, x: g.column_sum(g.exp(x)), []),
        (lambda g, x: g.softmax(turned(g, g.exp(x))), []),
        (lambda g, x: g.relu(g.add(x, turned(g, x))), []),
        (
            lambda g, x: g.relu(
                g.exp(g.reshape(g.permute(g.chunk(x, sizes=[35, N - 35])[0], axes=[1, 0]), shape=[N, 35]))
            ),
            [],
        ),
    ],
)
def test_views_that_keep_elements_together_are_fused(build, inputs):
    verdict, reason, merged = pair(build, *inputs)
    assert verdict == "FUSE" and reason and merged == 1


def test_parts_of_a_product_need_their_weights_side_by_side():
    g = GraphBuilder()
    y = g.linear(g.input("x", (N, N), "bf16"), g.input("w", (2 * N, N), "bf16"))
    g.multiply(*g.chunk(y, parts=2))
    (found,) = analyse(g.graph(), H200).pairs
    assert found.verdict == "IF" and "beside each other" in found.judgement.condition


def test_products_of_different_parts_are_no_siblings():
    g = GraphBuilder()
    for i, part in enumerate(g.chunk(g.input("x", (N, 2 * N), "bf16"), parts=2)):
        g.linear(part, g.input(f"w{i}", (N, N), "bf16"), name=f"linear{i}")
    assert not analyse(g.graph(), H200).pairs


def test_a_view_without_a_regular_order_is_not_followed():
    g = GraphBuilder()
    x = g.softmax(g.input("x", (6, 35), "f32"))
    g.exp(g.reshape(g.permute(x, axes=[1, 0]), shape=[14, 15]))
    graph = g.graph()
    assert "no regular order" in conflict(Group.of(graph, graph.launches))


def attention(turn=(), mask=False):
    g = GraphBuilder()
    q, k, v = (g.input(name, (2, 16, 2048, 128), "bf16") for name in "qkv")
    s = g.multiply(g.matmul(q, k, transpose_b=True), value=128**-0.5, name="scale")
    if mask:
        s = g.add(g.input("mask", (2048, 2048), "bf16"), s, name="masked")
    s = g.permute(s, axes=[0, 1, 3, 2]) if "scores" in turn else s
    p = g.softmax(s)
    p = g.permute(p, axes=[0, 1, 3, 2], name="back") if "probabilities" in turn else p
    g.matmul(p, v, name="values")
    return g.graph()


@pytest.mark.parametrize("turn", [("scores",), ("probabilities",), ("scores", "probabilities")])
def test_a_softmax_of_columns_is_no_attention(turn):
    assert attention_patterns(attention()) and not attention_patterns(attention(turn))


def test_attention_with_a_mask_as_the_first_operand():
    (found,) = attention_patterns(attention(mask=True))
    assert "masked" in found.names


def test_probabilities_that_are_multiplied_with_themselves_are_no_attention():
    g = GraphBuilder()
    q, k = (g.input(name, (64, 64), "bf16") for name in "qk")
    p = g.softmax(g.matmul(q, k))
    g.matmul(p, p, name="values")
    assert not attention_patterns(g.graph())


@pytest.mark.parametrize("threshold", [{"score": "2"}, {"speedup": "100"}])
def test_thresholds_apply_to_attention(threshold):
    found = analyse(attention(), H200, WEIGHTS, parse_thresholds(threshold))
    assert not found.groups and found.after.launches == found.before.launches


def test_a_group_that_the_compiled_registers_refuse_is_not_in_the_total():
    def many(found, machine):
        return Compiled("huge", 255, 0, 0.1)

    found = analyse(attention(), H200, WEIGHTS, parse_thresholds({"score": "0.9", "registers": "0"}), many)
    assert all(candidate.verdict != "DO NOT FUSE" for candidate in found.groups)


SHAPES = [(4, 6), (24,), (2, 12), (6, 4), (2, 3, 4), (4, 2, 3)]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_elements_that_a_launch_needs_in_one_place(data):
    """Against the places of all elements one by one: each result is needed where it is computed, or it is not."""
    g = GraphBuilder()
    names = [g.input("x", (4, 6), "f32")]
    found = {"x": np.arange(24).reshape(4, 6)}  # tensor -> place of each element in the memory

    def view(name, shape):
        while g.shape(name) != shape or data.draw(st.booleans()):
            if data.draw(st.booleans()):
                axes = data.draw(st.permutations(range(len(g.shape(name)))))
                made, array = g.permute(name, axes=list(axes)), found[name].transpose(axes)
            else:
                target = data.draw(st.sampled_from(SHAPES))
                made, array = g.reshape(name, shape=list(target)), found[name].reshape(target)
            found[made] = array
            name = made
        return name

    for i in range(data.draw(st.integers(2, 4))):
        shape = data.draw(st.sampled_from(SHAPES))
        operands = [view(data.draw(st.sampled_from(names)), shape) for _ in range(data.draw(st.integers(1, 2)))]
        made = g.exp(*operands, name=f"o{i}") if len(operands) == 1 else g.add(*operands, name=f"o{i}")
        found[made] = np.arange(24).reshape(shape)
        names.append(made)
    graph = g.graph()
    group = Group.of(graph, graph.launches)
    places = {group.operations[-1].name: np.arange(24)}  # operation -> coordinate of each element of its result
    needed: dict[str, list] = {}
    for operation in reversed(group.operations):
        if operation.name not in places:
            return  # several sinks; what follows goes from the last result upwards
        for name in operation.inputs:
            memory = graph.memory(name)
            coordinates = np.empty(24, int)
            coordinates[found[name].ravel()] = places[operation.name]
            needed.setdefault(memory, []).append((operation.name, tuple(coordinates)))
            if memory != "x":
                places.setdefault(memory, coordinates)
    one_place = all(len({order for _, order in orders}) == 1 for name, orders in needed.items() if name != "x")
    orders = [{order for name, order in needed.get("x", []) if name == reader} for reader in group.names]
    orders = [own for own in orders if own]
    shared = all(a <= b or b <= a for a in orders for b in orders)
    said = conflict(group)
    truth = one_place and shared
    if None in graph.layouts.values() or "no regular order" in said:  # what cannot be followed is refused, too
        assert truth or said
    else:
        assert truth == (not said)


def test_repeated_elements_are_not_computed_again():
    """As where an operand is broadcast: each element of the sums is used by a whole row, or by all rows."""
    for axis, verdict in ((1, "FUSE"), (0, "DO NOT FUSE")):
        g = GraphBuilder()
        x, s = g.input("x", (256, 256), "f32"), g.input("s", (256,), "f32")
        column = g.reshape(g.exp(s), shape=[1, 256] if axis == 0 else [256, 1])
        g.divide(x, g.expand(column, shape=[256, 256]), name="last")
        (pair,) = analyse(g.graph(), H200).pairs
        assert pair.verdict == verdict
        assert analyse(g.graph(), H200).before.bytes == 4 * (2 * 256 * 256 + 3 * 256)


def test_an_epilogue_that_is_the_operand_of_the_next_product():
    """Whatever is merged first: the activation of a product may be computed where either product is."""
    g = GraphBuilder()
    h = g.linear(g.input("x", (32, 64), "bf16"), g.input("w", (96, 64), "bf16"))
    g.linear(g.multiply(h, g.silu(h)), g.input("v", (64, 96), "bf16"), name="last")
    report = analyse(g.graph(), H200)
    assert report.after.launches == 1 and report.after.bytes == 2 * (2 * 32 * 64 + 2 * 96 * 64)


def test_rows_that_do_not_fit_on_chip():
    for columns, reason in ((4096, "is still on chip"), (1000003, "is read a second time")):
        g = GraphBuilder()
        g.gelu(g.layernorm(g.input("x", (64, columns), "f32")))
        (pair,) = analyse(g.graph(), H200).pairs
        assert pair.verdict == "FUSE" and reason in pair.reason
    g = GraphBuilder()
    g.softmax(g.layernorm(g.input("x", (64, 1000003), "f32")), name="last")
    (pair,) = analyse(g.graph(), H200).pairs
    assert pair.verdict == "DO NOT FUSE" and "do not fit on chip" in pair.reason


@pytest.mark.parametrize(("kind", "value"), [("divide", 0), ("divide", 1e-31), ("multiply", 1e39), ("add", -1e31)])
def test_no_formula_has_infinite_results(kind, value):
    g = GraphBuilder()
    g.exp(g.operation(kind, g.input("x", (64, 64), "f32"), value=value))
    (candidate,) = analyse(g.graph(), H200).groups
    assert candidate.offer is None


@pytest.mark.parametrize(("axes", "kernel"), [([0, 2, 1, 3], "attention"), ([0, 1, 3, 2], ""), ([2, 1, 0, 3], "")])
def test_the_kernel_of_attention_makes_the_copy_with_the_tokens_first(axes, kernel):
    g = GraphBuilder()
    q, k, v = (g.input(name, (2, 16, 2048, 128), "bf16") for name in "qkv")
    p = g.softmax(g.multiply(g.matmul(q, k, transpose_b=True), value=128**-0.5))
    g.copy(g.permute(g.matmul(p, v, name="values"), axes=axes))
    graph = g.graph()
    found = offer(Group.of(graph, graph.launches))
    assert (found.kernel if found else "") == kernel
