"""Line tables compared with the output of nvdisasm."""

from __future__ import annotations

import re
import subprocess

import pytest

from ptxkit.compiler import compile_source, toolkit
from ptxkit.compiler.elf import Cubin
from ptxkit.inspect import lines, sass
from ptxkit.inspect.sources import source_files
from ptxkit.targets import Target
from ptxkit.workload import registry
from ptxkit.workload.build import build

INLINED = r"""
template <int N> __device__ __forceinline__ float square(float a) { return a * a; }
__device__ __forceinline__ float more(float a) {
    float b = square<3>(a);
    return b + 1;
}
extern "C" __global__ void inlined(float* y) {
    y[threadIdx.x] = more(y[threadIdx.x]);
}
"""


@pytest.mark.parametrize("target", ["sm_75", "sm_100a"])
@pytest.mark.parametrize(("option", "section"), [("-gi", ".debug_line"), ("-gp", ".nv_debug_line_sass")])
def test_every_line_is_nvdisasms(compiled, tmp_path, target, option, section):
    path = tmp_path / "k.cubin"
    path.write_bytes(compiled(target).cubin)
    command = [str(toolkit.nvdisasm().path), "-c", option, str(path)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    table = lines.read(Cubin(path.read_bytes()), section)
    place, chain, seen = "", [], 0
    for line in listing.splitlines():
        if match := re.match(r"\s*\.section\s+(\.text\.[^,]+)", line):
            place, chain, current = match[1], [], None
        elif match := re.match(r'\s*//## File "(.*?)", line (\d+)', line):
            chain.append(int(match[2]))
        elif match := re.match(r"\s*/\*([0-9a-f]{4,})\*/", line):
            if chain:
                current, chain = chain[0], []
                seen += 1
            found = table.at(place, int(match[1], 16))
            assert current is None or (found is not None and found.line == current), (place, match[1])
    assert seen > 100


def test_the_chain_of_inlined_calls():
    image = compile_source(INLINED, target="sm_90a", name="chain.cu")
    from ptxkit.inspect.disassembly import sass

    chains = set()
    for instruction in sass(image)["inlined"].instructions:
        if instruction.opcode in ("FFMA", "FMUL", "FADD"):
            loc, chain = instruction.source, []
            while loc:
                chain.append(loc.line)
                loc = loc.inlined_at
            chains.add(tuple(chain))
    assert chains <= {(2, 4, 8), (5, 8)} and chains


def test_a_cubin_without_lines_has_empty_tables():
    image = compile_source('extern "C" __global__ void k(float* y) { *y = 1; }', target="sm_90a", lineinfo=False)
    cubin = Cubin(image.cubin)
    assert not lines.read(cubin, ".debug_line")
    assert lines.read(cubin, ".debug_line").at(".text.k", 0) is None


def test_a_call_in_another_file_than_the_function_that_it_inlines_keeps_its_own_file():
    """The row that ptxas adds for the call has the file of the inlined function."""
    row = lines._Row
    table = [
        row(0x00, 1, 45, 0, 0),
        row(0x10, 3, 202, 0, 1, 39),
        row(0x20, 1, 202, 0, 1, 39),  # the call in file 3, of the function in file 1
        row(0x20, 1, 30, 0, 3, 146),
        row(0x30, 1, 203, 0, 1, 39),  # the same where no instruction has the line: by the function
        row(0x30, 1, 31, 0, 5, 146),
        row(0x40, 1, 7, 0, 6, 200),
    ]
    assert [r.file for r in lines.with_callers_files(table)] == [1, 3, 3, 1, 3, 1, 1]


@pytest.mark.parametrize(
    "name", ["compute_bound:fused", "memory_bound:fused", "matmul_mma:step5_coalesced", "matmul_mma:step6_tma"]
)
def test_lines_of_calls_are_in_the_files_that_the_ptx_says(name):
    kernel, _, variant = name.partition(":")
    workload = registry.get(kernel)()
    for step in build(workload, workload.variant(variant), Target.parse("sm_90a")).steps:
        ptx = step.image.ptx
        files = dict(re.findall(r'\.file\s+(\d+) "(.*?)"', ptx))
        calls = {(files[file], int(line)) for file, line in re.findall(r"inlined_at (\d+) (\d+)", ptx)}
        function = sass(step.image)[step.entry]
        found = set()
        for loc in [i.source.inlined_at for i in function.instructions if i.source]:
            while loc:
                found.add((loc.file, loc.line))
                loc = loc.inlined_at
        assert found and found <= calls
        assert [file.note for file in source_files([function]).values() if file.note] == []
