"""Selecting a device, and the emulator's additions to the protocol."""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import ptxkit
from ptxkit.compiler import assemble
from ptxkit.emulator import Machine
from ptxkit.errors import LaunchError, MemoryFault, TrapError, UnavailableError, UnsupportedError, UsageError
from ptxkit.runtime import device as module
from ptxkit.runtime import registry
from ptxkit.runtime.abilities import is_counting, is_emulating, is_timed
from ptxkit.runtime.emulated import KEPT_MODULES, EmulatedDevice
from ptxkit.runtime.gpu.device import GpuDevice

SOURCE = """
#include <cstdio>
__global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
__global__ void say(int n) { printf("n is %d\\n", n); }
__global__ void trapped() { asm volatile("trap;"); }
"""


@pytest.fixture
def emulator():
    return EmulatedDevice(Machine(capacity=128 << 20))


@pytest.mark.parametrize("there", [True, False])
def test_auto_takes_a_gpu_if_there_is_one(monkeypatch, there):
    monkeypatch.setattr(registry, "gpu_present", lambda: there)
    gpu = replace(registry._DEVICES["gpu"], open=lambda index: f"gpu {index}")
    monkeypatch.setitem(registry._DEVICES, "gpu", gpu)
    picked = module.device("auto", 3)
    assert (picked == "gpu 3") if there else (picked.kind == "emulator")


def test_a_registered_device_is_offered_and_opened_by_its_name(monkeypatch):
    monkeypatch.setattr(registry, "_DEVICES", dict(registry._DEVICES))
    made = []
    registry.register("board", lambda index: made.append(index) or f"board {index}")
    assert registry.choices() == ("auto", "gpu", "emulator", "board")
    assert [module.device("board", 1), module.device("board", 1)] == ["board 1"] * 2 and made == [1]
    for taken in ("board", "auto", "gpu"):
        with pytest.raises(UsageError, match=f"already a device called '{taken}'"):
            registry.register(taken, lambda index: None)
    with pytest.raises(UsageError, match="a device is 'auto', 'gpu', 'emulator' or 'board', not 'bord'"):
        module.device("bord")


def test_abilities_say_what_a_device_can_do(emulator):
    assert is_counting(emulator) and is_emulating(emulator) and not is_timed(emulator)
    assert is_emulating(module.emulating_device())
    assert is_timed(GpuDevice) and not is_counting(GpuDevice) and not is_emulating(GpuDevice)
    if not module.gpu_present():
        with pytest.raises(UnavailableError, match="there is no GPU here"):
            module.timed_device()


def test_kinds():
    assert ptxkit.device("emulator").kind == "emulator"
    assert ptxkit.device("emulator").target is None
    with pytest.raises(UsageError, match="'auto', 'gpu' or 'emulator', not 'tpu'"):
        ptxkit.device("tpu")


@pytest.mark.skipif(module.gpu_present(), reason="there is a GPU here")
def test_without_a_gpu_the_way_out_is_named():
    with pytest.raises(UnavailableError, match="there is no GPU here.*--device emulator"):
        ptxkit.device("gpu")


@pytest.mark.skipif(module.gpu_present(), reason="there is a GPU here")
def test_looking_for_a_gpu_imports_no_cuda_package():
    code = "import sys, ptxkit; ptxkit.device('auto'); print([m for m in sys.modules if m.split('.')[0] == 'cuda'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_emulator_counts_and_never_times(emulator):
    kernel = ptxkit.compile(SOURCE, device=emulator)["twice"]
    x, y = emulator.upload(np.ones(64, np.float32)), emulator.empty(64, np.float32)
    launch = kernel.prepare(x, y, 64, grid=2, block=32)
    measured = emulator.measure(lambda: (launch(), launch()), samples=50)
    assert measured.times_us == ()
    assert measured.counters.global_load_bytes == 2 * 64 * 4
    assert measured.counters.flops == 2 * 64
    assert len({(line.file, line.line) for line in measured.lines}) == len(measured.lines)
    assert sum(line.counters.global_store_bytes for line in measured.lines) == 2 * 64 * 4
    with pytest.raises(UnavailableError, match="no clock"):
        emulator.measure_copy(1024, 3)


def test_faults_name_arrays_by_their_parameters(emulator):
    kernel = ptxkit.compile(SOURCE, device=emulator)["twice"]
    with pytest.raises(MemoryFault, match=r"'y' \(128 bytes\)"):
        kernel(np.ones(64, np.float32), np.ones(32, np.float32), 64, grid=2, block=32)


def test_the_emulator_survives_a_fault(emulator):
    kernels = ptxkit.compile(SOURCE, device=emulator)
    with pytest.raises(TrapError):
        kernels["trapped"](grid=1, block=1)
    y = np.zeros(4, np.float32)
    kernels["twice"](np.ones(4, np.float32), y, 4, grid=1, block=32)
    assert y.tolist() == [2] * 4


def test_what_kernels_print_can_be_redirected(emulator):
    said = []
    with emulator.settings(write_output=said.append):
        ptxkit.compile(SOURCE, device=emulator)["say"](7, grid=1, block=1)
    assert "".join(said) == "n is 7\n"


def test_the_emulator_takes_its_own_streams_only(emulator):
    with pytest.raises(
        LaunchError, match=r"say: stream= is a stream of this device in the emulator, not 0; .*device.stream"
    ):
        ptxkit.compile(SOURCE, device=emulator)["say"](7, grid=1, block=1, stream=0)


def test_capacity_is_checked_before_allocating(emulator):
    with pytest.raises(UnavailableError, match="200,000,000 bytes were requested"):
        emulator.empty(200_000_000, np.uint8)


def test_ptx_goes_to_the_emulator_as_it_is(tmp_path, emulator):
    text = """
    // of a version that no assembler knows yet
    .version 9.9
    .target sm_120a
    .address_size 64
    .visible .entry k(.param .u64 y) {
        .reg .b64 %y; .reg .b32 %t;
        ld.param.u64 %y, [y]; mov.u32 %t, %tid.x; st.global.u32 [%y], 42; ret;
    }
    """
    path = tmp_path / "k.ptx"
    path.write_text(text)
    for source in (text, path, str(path)):
        y = np.zeros(1, np.int32)
        loaded = ptxkit.compile(source, device=emulator)
        loaded["k"](y, grid=1, block=1)
        assert y[0] == 42 and loaded.image.target == "sm_120a"


def test_unsupported_forms_are_said_when_a_launch_is_prepared(emulator):
    text = ".version 8.0\n.target sm_80\n.address_size 64\n.entry k() {\n .reg .b32 %r;\n  txq.width.b32 %r, [%r];\n ret;\n}\n"
    kernel = ptxkit.compile(text, device=emulator)["k"]
    with pytest.raises(UnsupportedError, match="txq"):
        kernel.prepare(grid=1, block=1)


VARIABLE = """.version 8.7
.target sm_90a
.address_size 64
.global .align 16 .b8 variable_{n}[1048576];
.visible .entry k(.param .u64 out) {{
  .reg .b64 %rd<3>; ld.param.u64 %rd0, [out]; mov.u64 %rd1, variable_{n}; st.global.u64 [%rd0], %rd1; ret;
}}
"""


def test_the_emulator_frees_unused_modules(emulator):
    images = [
        assemble(VARIABLE.format(n=n), target="sm_90a", name=f"v{n}.ptx", cubin=False, cache=False)
        for n in range(KEPT_MODULES + 80)
    ]
    used = emulator.load(images[0])["k"]
    again = emulator.load(images[0])
    for image in images:  # more megabytes than the device has
        emulator.load(image)
    gc.collect()
    emulator.upload(np.zeros(1, np.uint8))
    assert emulator.machine.memory.used < (KEPT_MODULES + 3) << 20
    out = emulator.upload(np.zeros(1, np.uint64))
    used(out, grid=1, block=1)  # its variable exists, although the device no longer has the module
    assert emulator.machine.view(int(out.numpy()[0]), 1 << 20).size == 1 << 20
    assert emulator.load(images[-1]) is emulator.load(images[-1])
    assert emulator.load(images[0]) is not again
