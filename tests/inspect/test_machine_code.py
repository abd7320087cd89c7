"""What a cubin does, apart from the source lines that it remembers."""

from __future__ import annotations

import pytest

from ptxkit.compiler.nvrtc import compile_source
from ptxkit.inspect.elf import machine_code

SOURCE = (
    'extern "C" __global__ void k(float* y, int n) {\n    for (int i = threadIdx.x; i < n; i += 32) y[i] *= 2.0f;\n}\n'
)


def code(text):
    return machine_code(compile_source(text, target="sm_90a", name="k.cu", cache=False).cubin)


def test_a_comment_changes_no_machine_code():
    assert code(SOURCE) == code("// one line more\n\n" + SOURCE)


@pytest.mark.parametrize("change", [("2.0f", "3.0f"), ("i += 32", "i += 64"), ("void k(", "void l(")])
def test_what_is_computed_does(change):
    assert code(SOURCE) != code(SOURCE.replace(*change))
