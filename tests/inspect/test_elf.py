"""Reading cubins: resources, bounds, damage, and files that hold several."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxkit.compiler import compile_source
from ptxkit.compiler.elf import Cubin
from ptxkit.errors import PtxkitError, UnavailableError, UsageError
from ptxkit.inspect import lines
from ptxkit.inspect.containers import read_cubin
from ptxkit.targets import Target

BOUNDS = r"""
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(256) clustered(float* y) { y[threadIdx.x] = 1; }
extern "C" __global__ void __block_size__((128, 1, 1), (4, 1, 1)) sized(float* y) { y[threadIdx.x] = 1; }
extern "C" __global__ void free_of_bounds(float* y) { y[threadIdx.x] = 1; }
"""


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_resources_are_what_the_compiler_said(compiled, kernels, target):
    image = compiled(target)
    assert Cubin(image.cubin).target == Target.parse(target)
    for name, said in image.functions.items():
        read = kernels(target)[name].resources
        for field in (
            "registers",
            "shared_bytes",
            "local_bytes",
            "barriers",
            "spill_store_bytes",
            "spill_load_bytes",
        ):
            assert getattr(read, field) == getattr(said, field), (name, field)
    assert target in ("sm_75", "sm_120a") or kernels(target)["spilling"].resources.spill_store_bytes > 0


@pytest.mark.parametrize("target", ["sm_100f", "sm_103a", "sm_110a", "sm_121f", "sm_89", "sm_90"])
def test_target_comes_back_with_its_suffix(target):
    image = compile_source('extern "C" __global__ void k(float* y) { *y = 1; }', target=target)
    assert Cubin(image.cubin).target.name == target


def test_launch_bounds():
    cubin = Cubin(compile_source(BOUNDS, target="sm_90a").cubin)
    assert cubin.bounds("clustered").cluster == (2, 1, 1) and cubin.bounds("clustered").max_threads == 256
    assert cubin.bounds("sized").block == (128, 1, 1) and cubin.bounds("sized").cluster == (4, 1, 1)
    free = cubin.bounds("free_of_bounds")
    assert (free.block, free.max_threads, free.cluster) == (None, None, None)


def test_the_ptx_inside_stands_on_the_compilers_lines(compiled):
    image = compiled("sm_90a")
    kept, given_lines = Cubin(image.cubin).ptx.split("\n"), image.ptx.split("\n")
    same = 0
    for ours, theirs in zip(kept, given_lines, strict=False):  # .loc is left out of it
        if ours.strip():
            assert ours.split("//")[0].split() == theirs.split("//")[0].split()
            same += 1
    assert same > 500


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b"hello", "it starts with 68 65 6c 6c"),
        (b"\x7fELF", "it is truncated"),
        (b"\x7fELF\x02" + bytes(80), "not for a GPU"),
    ],
)
def test_what_is_no_cubin_is_named(data, reason):
    with pytest.raises(UsageError, match=reason):
        Cubin(data, "x.cubin")


def test_an_unknown_target_is_named(compiled):
    data = bytearray(compiled("sm_90a").cubin)
    data = bytes(data).replace(b"-arch sm_90a", b"-arch sm_99a")
    data = data[:49] + bytes([99]) + data[50:]
    with pytest.raises(UnavailableError, match="is for sm_99, which is not among sm_75"):
        _ = Cubin(data).target


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_is_an_error_of_ours_or_harmless(compiled, data):
    content = bytearray(compiled("sm_80").cubin)
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        for _ in range(8):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        cubin = Cubin(bytes(content))
        _ = cubin.target, cubin.ptx, cubin.release
        for function in cubin.texts:
            cubin.resources(function), cubin.bounds(function), cubin.encodings(function)
        lines.read(cubin, ".debug_line"), lines.read(cubin, ".nv_debug_line_sass")
    except PtxkitError:
        pass


def fatbin(pieces):
    """A fatbin as cuobjdump reads it: a header, then for each cubin a header of 64 bytes with kind 2 and the capability."""
    body = b""
    for capability, cubin in pieces:
        padded = cubin + bytes(-len(cubin) % 8)
        body += (
            struct.pack("<HHIQIIHHIIIQQQ", 2, 0x101, 64, len(padded), 0, 0, 0, 0, capability, 0, 0, 0x11, 0, 0)
            + padded
        )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_fatbins_are_read(compiled, tmp_path):
    path = tmp_path / "both.fatbin"
    path.write_bytes(fatbin([(90, compiled("sm_90a").cubin), (80, compiled("sm_80").cubin)]))
    assert read_cubin(path, Target.parse("sm_80")).target.name == "sm_80"
    with pytest.raises(UsageError, match="contains 2 cubins, for sm_80, sm_90a; choose one with --target"):
        read_cubin(path)
    with pytest.raises(UsageError, match="was not compiled for sm_75; it is for sm_80, sm_90a"):
        read_cubin(path, Target.parse("sm_75"))
    path.write_bytes(fatbin([(80, compiled("sm_80").cubin)]))
    assert "hmma" in read_cubin(path).texts


def test_a_host_program_without_device_code_is_refused():
    with pytest.raises(UsageError, match="does not contain device code"):
        read_cubin(Path("/bin/ls"))
