"""nvdisasm's listing as instructions."""

from __future__ import annotations

import pytest

from ptxkit.compiler import compile_source, toolkit
from ptxkit.compiler.assemble import assemble
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.inspect import disassembly
from ptxkit.inspect.disassembly import sass

TARGETS = ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120a"]
SWITCH = r"""
extern "C" __global__ void switching(float* y, int n) {
    float a = y[threadIdx.x];
    switch (n) {
        case 0: a = sinf(a); break;
        case 1: a = expf(a); break;
        case 2: a = logf(a); break;
        case 3: a = sqrtf(a); break;
        case 4: a = tanf(a); break;
        case 5: a = a + 1; break;
        case 7: a = a / 3; break;
    }
    y[threadIdx.x] = a;
}
"""


@pytest.mark.parametrize("target", TARGETS)
def test_addresses_encodings_and_lines_are_complete(kernels, target):
    for function in kernels(target).values():
        assert [i.address for i in function.instructions] == [16 * n for n in range(len(function.instructions))]
        assert all(i.encoding for i in function.instructions)
        assert all(i.source and i.source.file.endswith("samples.cu") for i in function.instructions)
        assert all(i.ptx_line for i in function.instructions)
        assert function.instructions[-1].opcode in ("EXIT", "RET", "BRA")
        assert set(function.labels.values()) <= {16 * n for n in range(len(function.instructions) + 12)}


@pytest.mark.parametrize("target", TARGETS)
def test_ptx_lines_hold_the_instruction(compiled, kernels, target):
    text = compiled(target).ptx.split("\n")
    for name, opcode in (("wide", "LDG"), ("nested", "BAR"), ("nested", "MUFU")):
        words = {"LDG": "ld.global", "BAR": "bar.sync", "MUFU": "ex2.approx"}
        found = [i for i in kernels(target)[name].instructions if i.opcode == opcode]
        assert found
        for instruction in found:
            assert words[opcode] in text[instruction.ptx_line - 1]


@pytest.mark.parametrize("target", TARGETS)
def test_registers_read_written_and_live(kernels, target):
    load = next(i for i in kernels(target)["wide"].instructions if i.opcode == "LDG")
    assert "128" in load.modifiers and len(load.writes) == 4
    first = int(load.writes[0][1:])
    assert load.writes == tuple(f"R{first + k}" for k in range(4))
    assert any(r.startswith("R") for r in load.reads)
    for function in kernels(target).values():
        peak = function.peak
        assert peak is not None and 0 < peak.live["R"] <= function.resources.registers
    assert kernels(target)["spilling"].peak.live["R"] > 25


def test_a_kernel_with_all_registers():
    source = """extern "C" __global__ void big(const float* x, float* y) { float v[200];
    #pragma unroll
    for (int i = 0; i < 200; i++) v[i] = x[i * 256 + threadIdx.x];
    for (int k = 0; k < 10; k++)
    #pragma unroll
        for (int i = 0; i < 200; i++) v[i] = v[i] * v[(i + 1) % 200] + v[(i + 7) % 200];
    #pragma unroll
    for (int i = 0; i < 200; i++) y[i * 256 + threadIdx.x] = v[i]; }"""
    function = sass(compile_source(source, target="sm_90a"))["big"]
    assert function.peak.live["R"] > 190
    assert any(int(r[1:]) > 180 for i in function.instructions for r in i.writes if r[0] == "R")


def test_called_functions_and_indirect_branches(kernels):
    function = kernels("sm_90a")["calling"]
    (address,) = function.callees
    assert function.callees[address] == "$calling$_Z6helperfi"
    call = next(i for i in function.instructions if i.opcode == "CALL")
    assert call.targets == ("$calling$_Z6helperfi",) and function.labels[call.targets[0]] == address
    switching = sass(compile_source(SWITCH, target="sm_90a"))["switching"]
    branch = next(i for i in switching.instructions if i.opcode == "BRX")
    assert len(branch.targets) >= 2 and set(branch.targets) <= set(switching.labels)


def test_spills_are_marked_and_notes_are_no_operands(kernels):
    spills = [i for i in kernels("sm_90a")["spilling"].instructions if i.is_spill]
    assert spills and all("(*" not in i.operands for i in spills)
    assert not any(i.is_spill for i in kernels("sm_90a")["local"].instructions)
    assert any(i.opcode == "LDL" for i in kernels("sm_90a")["local"].instructions)


def test_tensor_cores(kernels):
    assert any(i.opcode == "HGMMA" for i in kernels("sm_90a")["hgmma"].instructions)
    assert any(i.opcode == "UTCHMMA" for i in kernels("sm_100a")["utcmma"].instructions)
    assert any(i.opcode == "HMMA" for i in kernels("sm_80")["hmma"].instructions)


def test_a_second_look_runs_nothing(monkeypatch):
    image = compile_source('extern "C" __global__ void cached(float* y) { *y = 41; }', target="sm_90a")
    first = sass(image)

    def refuse(*arguments):
        raise AssertionError("nvdisasm ran again")

    monkeypatch.setattr(disassembly, "_disassemble", refuse)
    assert sass(image) == first


def test_without_life_ranges_the_code_is_still_there(compiled, monkeypatch):
    real = disassembly._run

    def fail_ranges(tool, arguments):
        done = real(tool, arguments)
        if "-lrm" in arguments:
            done.returncode = 1
        return done

    monkeypatch.setattr(disassembly, "_run", fail_ranges)
    monkeypatch.setattr(disassembly, "digest", lambda data: "without-life-ranges")
    function = sass(compiled("sm_80"))["nested"]
    assert len(function.instructions) > 20 and function.peak is None and not function.instructions[0].writes


def test_errors(compiled, monkeypatch, tmp_path):
    with pytest.raises(UsageError, match="was compiled to PTX alone"):
        sass(assemble(".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }", cubin=False))
    with pytest.raises(UsageError, match=r"cannot read .*nothing\.cubin: No such file"):
        sass(tmp_path / "nothing.cubin")
    monkeypatch.setattr(disassembly, "digest", lambda data: "missing-tool")
    monkeypatch.setattr(toolkit, "_find", lambda wanted: None)
    with pytest.raises(UnavailableError, match="nvdisasm is not installed; run: pip install 'nvidia-cuda-nvdisasm"):
        sass(compiled("sm_80"))


def test_a_disassembler_that_cannot_run_or_read(compiled, monkeypatch, tmp_path):
    monkeypatch.setattr(disassembly, "digest", lambda data: "broken-tool")
    broken = toolkit.Tool("nvdisasm", tmp_path / "nvdisasm", "13.2")
    monkeypatch.setattr(toolkit, "nvdisasm", lambda: broken)
    with pytest.raises(UnavailableError, match="cannot be run"):
        sass(compiled("sm_80"))
    broken.path.write_text("#!/bin/sh\necho 'nvdisasm fatal   : Unrecognized SM version' >&2\nexit 1\n")
    broken.path.chmod(0o755)
    with pytest.raises(UnavailableError, match=r"nvdisasm 13.2 cannot read samples.cu for sm_80.*pip install -U"):
        sass(compiled("sm_80"))
    broken.path.write_text("#!/bin/sh\necho 'nvdisasm fatal   : bad section' >&2\nexit 1\n")
    with pytest.raises(UsageError, match="nvdisasm cannot read samples.cu: nvdisasm fatal   : bad section"):
        sass(compiled("sm_80"))
