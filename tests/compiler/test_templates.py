"""Kernel templates of a source, and the instances that its host code names."""

from __future__ import annotations

import pytest

from ptxkit.compiler.templates import launched_instance

HOST = """
namespace n { template <typename T, int N> __global__ void fill(T* x) { x[0] = N; } }
template <typename T> void launch(T* x) { n::fill<T, 3><<<1, 1>>>(x); /* n::fill<int, 1><<<1, 1>>>(x) */ }
"""


@pytest.mark.parametrize(
    ("launch", "instance"),
    [
        ("", "n::fill<...>"),
        ("void go() { (n::fill<float,\n 2 * TILE>)<<<1, 1>>>(x); n::fill<int, 1><<<1, 1>>>(x); }", "n::fill<float, 2 * TILE>"),
        ("void go() { other_fill<float, 1><<<1, 1>>>(x); }", "n::fill<...>"),
    ],
)
def test_the_first_launch_without_parameters_of_other_templates_names_an_instance(launch, instance):
    assert launched_instance(HOST + launch, "fill") == instance
    assert launched_instance("", "fill") == "fill<...>"
