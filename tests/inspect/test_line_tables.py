"""Line tables against nvdisasm, which prints the same ones its own way."""

from __future__ import annotations

import re
import subprocess

import pytest

from ptxkit.compiler import compile_source, toolkit
from ptxkit.inspect import lines
from ptxkit.inspect.elf import Cubin

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
