"""The hash of a cubin's machine code, which line information does not change."""

from __future__ import annotations

import pytest

from ptxkit.compiler.elf import machine_code
from ptxkit.compiler.nvrtc import compile_source

SOURCE = (
    'extern "C" __global__ void k(float* y, int n) {\n    for (int i = threadIdx.x; i < n; i += 32) y[i] *= 2.0f;\n}\n'
)


def code(text, target="sm_90a"):
    return machine_code(compile_source(text, target=target, name="k.cu", cache=False).cubin)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_a_comment_changes_no_machine_code(target):
    assert code(SOURCE, target) == code("// one line more\n\n" + SOURCE, target)


@pytest.mark.parametrize("change", [("2.0f", "3.0f"), ("i += 32", "i += 64"), ("void k(", "void l(")])
def test_what_is_computed_does(change):
    assert code(SOURCE) != code(SOURCE.replace(*change))
