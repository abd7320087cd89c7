"""``ptxkit.compile``: files, texts, targets and defines."""

from __future__ import annotations

import numpy as np
import pytest

import ptxkit
from ptxkit.errors import CompileError, UsageError

CU = 'extern "C" __global__ void k(int* y) { y[threadIdx.x] = VALUE; }\n'


@pytest.mark.parametrize("value", [3, -4])
def test_a_file_with_defines(device, tmp_path, value):
    path = tmp_path / "k.cu"
    path.write_text(CU)
    for source in (path, str(path)):
        y = np.zeros(32, np.int32)
        ptxkit.compile(source, defines={"VALUE": value}, device=device)["k"](y, grid=1, block=32)
        assert (y == value).all()


def test_a_device_may_be_given_by_its_kind():
    y = np.zeros(1, np.int32)
    module = ptxkit.compile(CU, defines={"VALUE": 1}, device="emulator")
    module["k"](y, grid=1, block=1)
    assert y[0] == 1 and module.image.target == "sm_90a"


def test_a_target_may_be_given_to_the_emulator():
    assert ptxkit.compile(CU, target="sm_80", defines={"VALUE": 1}, device="emulator").image.target == "sm_80"


def test_names_of_parameters_come_from_texts_and_files(tmp_path):
    path = tmp_path / "k.cu"
    path.write_text(CU)
    for source in (CU, path):
        (p,) = ptxkit.compile(source, defines={"VALUE": 1}, device="emulator")["k"].parameters
        assert p.name == "y"


def test_templates_and_include_directories(device, tmp_path):
    (tmp_path / "value.h").write_text("#define VALUE 9\n")
    text = '#include "value.h"\ntemplate <int N> __global__ void k(int* y) { y[0] = N + VALUE; }\n'
    y = np.zeros(1, np.int32)
    ptxkit.compile(text, device=device, instantiate=["k<30>"], include_dirs=[tmp_path])["k<30>"](y, grid=1, block=1)
    assert y[0] == 39


def test_what_does_not_compile():
    with pytest.raises(CompileError, match="VALUE"):
        ptxkit.compile(CU, device="emulator")
    with pytest.raises(UsageError, match="cannot read nowhere.cu"):
        ptxkit.compile("nowhere.cu", device="emulator")


def test_ptx_takes_no_defines():
    text = ".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { ret; }\n"
    with pytest.raises(UsageError, match="PTX takes no defines"):
        ptxkit.compile(text, defines={"A": 1}, device="emulator")


def test_public_names():
    for name in (
        "compile",
        "device",
        "cdiv",
        "Workload",
        "Work",
        "Launch",
        "variant",
        "errors",
        "DeviceArray",
        "__version__",
    ):
        assert getattr(ptxkit, name) is not None
        assert name in dir(ptxkit)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ptxkit.nothing
