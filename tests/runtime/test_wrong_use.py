"""Wrong use of the library: for each, an error of one line that names what to pass."""

from __future__ import annotations

import numpy as np
import pytest

import ptxkit
from ptxkit.errors import PtxkitError
from ptxkit.runtime.emulated import EmulatedDevice

CU = 'extern "C" __global__ void k(bool f, int n, float* x) { x[0] = n; }\n'
DEVICE = EmulatedDevice()


def compiled(source=CU, **options):
    return ptxkit.compile(source, device=DEVICE, **options)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda: compiled(""), "the source is empty"),
        (lambda: compiled(None), "a source is a path or a text, not a NoneType"),
        (lambda: compiled(b"x{}"), "not a bytes"),
        (lambda: compiled("/tmp"), "Is a directory"),
        (lambda: compiled("__global__ void k();"), "must contain a newline or a brace"),
        (lambda: compiled("a\0b.cu"), "null byte"),
        (lambda: compiled(CU + "\0"), "source.cu:2: there is a NUL byte"),
        (lambda: compiled('extern "C" __global__ void k() {\n int i;\n'), 'source.cu:2: error: expected a "}"'),
        (lambda: compiled(include_dirs="/tmp"), "include_dirs takes a list"),
        (lambda: compiled(instantiate="k<1>"), "instantiate takes a list"),
        (lambda: compiled(options="-G"), "options takes a list"),
        (lambda: compiled(options=[3]), "3 is not a string"),
        (lambda: compiled(include_dirs=["/nowhere"]), "there is no directory /nowhere"),
        (lambda: compiled(defines=["A"]), "defines takes a dict"),
        (lambda: compiled(defines={"A B": 1}), "'A B' is not the name of a macro"),
        (lambda: compiled(target=90), "target takes a string or a Target of ptxkit.targets or None, not 90"),
        (lambda: ptxkit.compile(CU, device=3), "not 3"),
        (lambda: compiled()["k"](True, 1, np.zeros(1, "f4")), "k: grid= and block= must be given"),
        (lambda: compiled()["k"](True, 1, np.zeros(1, "f4"), grid=1), "k: block= must be given"),
        (lambda: compiled()["k"].prepare(True, 1, np.zeros(1, "f4"), block=1), "k: grid= must be given"),
        (lambda: compiled()[3], "found by name, not by 3"),
        (lambda: compiled()[""], "it has k"),
        (lambda: compiled()["k"](1, 3, np.zeros(1, np.float32), grid=1, block=1), "pass True, False"),
        (lambda: compiled()["k"](True, 3.0, np.zeros(1, np.float32), grid=1, block=1), "pass np.int32"),
        (lambda: DEVICE.upload("abc"), "is text"),
        (lambda: DEVICE.upload([[1], [1, 2]]), "cannot become a numpy array"),
        (lambda: DEVICE.upload(None), "Python objects"),
        (lambda: DEVICE.empty("3", np.float32), "cannot have the shape '3'"),
        (lambda: DEVICE.empty(1.5, np.float32), "cannot have the shape 1.5"),
        (lambda: DEVICE.empty((2, -1), np.float32), "cannot have the shape (2, -1)"),
        (lambda: DEVICE.empty(3, "nonsense"), "'nonsense' is not a type of array elements"),
        (lambda: DEVICE.empty(3, object), "no Python objects"),
        (lambda: DEVICE.empty(3, np.float32).fill(300), "from 0 to 255, not to 300"),
        (lambda: DEVICE.empty(3, np.float32).fill("a"), "from 0 to 255, not to 'a'"),
        (lambda: DEVICE.empty(3, np.float32).view("q8"), "not a type of array elements"),
        (lambda: ptxkit.cdiv(3, 0), "divides by zero"),
    ],
)
def test_one_line_says_what_is_wrong(use, words):
    with pytest.raises(PtxkitError) as caught:
        use()
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_true_is_a_bool():
    x = np.zeros(1, np.float32)
    compiled()["k"](True, 3, x, grid=1, block=1)
    assert x[0] == 3


@pytest.mark.parametrize(
    ("offset", "words"),
    [(4, "past the end of 'x'"), (1 << 30, "past the end of 'x'"), (1 << 40, "no allocation is near")],
)
def test_a_fault_names_an_allocation_only_where_it_is_near(offset, words):
    source = 'extern "C" __global__ void k(char* x, long long at) { x[at] = 1; }\n'
    with pytest.raises(PtxkitError, match=words) as caught:
        compiled(source)["k"](np.zeros(4, np.int8), offset, grid=1, block=1)
    assert "kernel parameters" not in str(caught.value)
