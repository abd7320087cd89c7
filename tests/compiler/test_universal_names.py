"""Names with letters outside of ASCII in sources, which NVRTC takes in another spelling only."""

from __future__ import annotations

import numpy as np
import pytest

import ptxkit
from ptxkit.compiler.nvrtc import compile_source
from ptxkit.compiler.universal_names import escaped, unescaped
from ptxkit.errors import CompileError

KERNEL = '__global__ void k(float* größe, int né) { /* café ✓ */ größe[0] = né + 1\'000; printf("é"); }\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int ö = 'ö'; // ö\nö;", "int \\u00f6 = 'ö'; // ö\n\\u00f6;"),
        ('f("ö\\"ö", ö) /* ö */', 'f("ö\\"ö", \\u00f6) /* ö */'),
        ('R"x(ö)" ö)x" ö', 'R"x(ö)" ö)x" \\u00f6'),
        ("// a \\\nö\nö", "// a \\\nö\n\\u00f6"),
        ("x = 1'000'000 + ö;", "x = 1'000'000 + \\u00f6;"),
        ("𝛼β2", "\\U0001d6fc\\u03b22"),
        ("#define Ö 'ö'\n", "#define \\u00d6 'ö'\n"),
    ],
)
def test_only_names_change(text, expected):
    assert escaped(text) == expected


@pytest.mark.parametrize("latin", [False, True])
def test_parameters_keep_their_names(tmp_path, latin):
    path = tmp_path / "k.cu"
    path.write_bytes(KERNEL.replace("✓", "").encode("latin-1" if latin else "utf-8"))
    kernel = ptxkit.compile(path, device="emulator")["k"]
    values = np.zeros(4, np.float32)
    assert [p.name for p in kernel.parameters] == ["größe", "né"]
    kernel(values, np.int32(3), grid=1, block=1)
    assert values[0] == 1003


def test_errors_show_the_source_as_it_is():
    with pytest.raises(CompileError) as caught:
        compile_source(KERNEL.replace("né + ", "né + nirgends + "), target="sm_90a", name="k.cu")
    line, caret = caught.value.log.splitlines()[1:3]
    assert "größe[0] = né + nirgends" in line
    assert line[len(caret) - 1 :].startswith("nirgends")


def test_errors_show_names_of_headers_as_they_are():
    text = '#include "h.cuh"\n__global__ void k(Width* x) { x->y = 1; }\n'
    with pytest.raises(CompileError) as caught:
        compile_source(text, target="sm_90a", name="k.cu", headers={"h.cuh": "struct Größe { int é; }; typedef Größe Width;"})
    assert 'class "Größe" has no member "y"' in caught.value.log


def test_a_log_without_such_names_stays():
    assert unescaped("a\n  b\n  ^") == "a\n  b\n  ^"
