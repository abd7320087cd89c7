"""Where the elements of views lie, and the bytes of several views of a tensor."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxkit.fusion.cost import Group
from ptxkit.fusion.graph import GraphBuilder
from ptxkit.fusion.layout import View, union

SIZE = 4096 * 4096 * 2  # bytes of a half of x, and of a result


def places(view):
    """The places of a view's elements in memory, in their order."""
    found = np.array([view.offset])
    for axis in view.axes:
        for extent, stride in axis:
            found = (found[:, None] + stride * np.arange(extent)).ravel()
    return found


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_views_have_the_elements_that_numpy_s_have(data):
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3))
    array = np.arange(np.prod(shape)).reshape(shape)
    view = View.whole("x", shape)
    for _ in range(data.draw(st.integers(1, 4))):
        change = data.draw(st.sampled_from(["permute", "reshape", "part"]))
        if change == "permute":
            axes = data.draw(st.permutations(range(array.ndim)))
            array, view = array.transpose(axes), view.permuted(axes)
        elif change == "reshape":
            first = data.draw(st.sampled_from([n for n in range(1, array.size + 1) if array.size % n == 0]))
            array, view = array.reshape(first, -1), view.reshaped((first, array.size // first))
        else:
            axis = data.draw(st.integers(0, array.ndim - 1))
            start = data.draw(st.integers(0, array.shape[axis] - 1))
            size = data.draw(st.integers(1, array.shape[axis] - start))
            array, view = array.take(range(start, start + size), axis), view.part(axis, start, size)
        if view is None:
            return  # no regular order, which reports say
        assert np.array_equal(places(view), array.ravel())


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_union_of_parts_is_the_number_of_their_different_elements(data):
    whole, views = View.whole("x", (4, 6, 8)), []
    for _ in range(data.draw(st.integers(1, 4))):
        view = whole
        for axis, extent in enumerate((4, 6, 8)):
            start = data.draw(st.integers(0, extent - 1))
            view = view.part(axis, start, data.draw(st.integers(1, extent - start)))
        views.append(view)
    assert union(views, 4 * 6 * 8) == len(set(np.concatenate([places(view) for view in views])))


def bytes_of(build):
    g = GraphBuilder()
    build(g, g.input("x", (4096, 8192), "bf16"))
    graph = g.graph()
    group = Group.of(graph, graph.launches)
    return sum(group.reads().values()), sum(group.writes().values())


def packed_swiglu(g, x):
    gate, up = g.chunk(x, parts=2)
    g.multiply(g.silu(gate), up)


def nested_parts(g, x):
    first, _ = g.chunk(x, parts=2)
    inner, _ = g.chunk(first, parts=2, axis=0)
    g.add(g.exp(inner), inner)


def overlapping_parts(g, x):
    a, _ = g.chunk(x, sizes=[6144, 2048])
    _, b = g.chunk(x, sizes=[2048, 6144])
    g.add(a, b)


@pytest.mark.parametrize(
    ("build", "read", "written"),
    [
        (lambda g, x: g.multiply(*g.chunk(x, parts=2)), 2 * SIZE, SIZE),
        (packed_swiglu, 2 * SIZE, SIZE),
        (lambda g, x: g.multiply(*[g.chunk(x, parts=2)[0]] * 2), SIZE, SIZE),
        (lambda g, x: g.concat(*g.chunk(x, parts=2, axis=0)), 2 * SIZE, 2 * SIZE),
        (nested_parts, SIZE // 2, SIZE // 2),
        (overlapping_parts, 2 * SIZE, 2 * SIZE * 6144 // 8192),
    ],
)
def test_bytes_of_parts(build, read, written):
    assert bytes_of(build) == (read, written)


def test_a_part_that_nothing_reads_outside_is_not_written():
    g = GraphBuilder()
    first, second = g.chunk(g.exp(g.input("x", (4096, 8192), "bf16")), parts=2)
    g.add(first, second)
    graph = g.graph([first])
    assert Group.of(graph, graph.launches).writes()["exp"] == SIZE


def test_gathers_by_different_indices_read_different_rows():
    g = GraphBuilder()
    table, i, j = g.input("table", (1000, 64), "f32"), g.input("i", (10,), "s32"), g.input("j", (10,), "s32")
    g.add(g.gather(table, i), g.gather(table, j))
    graph = g.graph()
    assert Group.of(graph, graph.launches).reads()["table"] == 20 * 64 * 4


@pytest.mark.parametrize(
    "axes",
    [
        [(4, 6), (3, 1)],
        [(5, 2), (4, 1)],  # windows that overlap
        [(5, 1), (4, 1)],
        [(3, 7), (2, 2), (3, 2)],
        [(9, 0), (4, 3)],
        [(2, 20), (4, 4), (3, 2)],
    ],
)
def test_different_elements_of_strides(axes):
    places = {sum(p) for p in itertools.product(*[[i * stride for i in range(n)] for n, stride in axes])}
    view = View("x", 3, tuple(((n, stride),) for n, stride in axes))
    assert union({view}, 1000) == len(places)
