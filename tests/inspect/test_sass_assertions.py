"""ptxkit.testing.assert_sass, on samples that fail it and on bundled kernels."""

from __future__ import annotations

import pytest

from ptxkit.compiler import compile_source
from ptxkit.errors import UsageError
from ptxkit.testing import assert_sass


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_fused_l2norm_vectorized_is_wide_and_spills_nothing(target):
    assert_sass(
        f"fused_l2norm:vectorized@{target},THREADS=256,VECTORS=4",
        has={"LDG.128": 4, "STG.128": 4},
        lacks=["LDL", "STL"],
        spills=0,
        max_registers=64,
    )


def test_saxpy():
    assert_sass("saxpy:vectorized@sm_90a", has={"LDG.128": 2, "STG.128": 1}, spills=0, max_registers=32)
    assert_sass(
        "saxpy:scalar@sm_90a", has=["FFMA", "LDG.32"], lacks="local", min_ctas_per_sm=8, max_instructions=40
    )


def complaint(kernel, **expectations):
    with pytest.raises(AssertionError) as caught:
        assert_sass(kernel, **expectations)
    return str(caught.value)


def test_a_missing_instruction_shows_what_is_there_instead(samples):
    text = complaint(f"{samples}:hmma@sm_90a", has="HGMMA")
    assert "samples.cu:hmma hmma (sm_90a)\n  has no HGMMA; it has HMMA:\n    samples.cu:80  " in text
    text = complaint(f"{samples}:narrow@sm_90a", has=["LDG.128"])
    assert "has no LDG.128; it has LDG.32:" in text and "samples.cu:8  " in text
    assert "has no MUFU, and nothing like it" in complaint(f"{samples}:wide", has="MUFU")
    assert "has 1 LDG.128, fewer than 2:" in complaint(f"{samples}:wide", has={"LDG.128": 2})


def test_spills_show_their_lines(samples):
    text = complaint(f"{samples}:spilling@sm_90a", spills=0, lacks="LDL", max_registers=16, min_ctas_per_sm=3)
    assert "stored" in text and "loaded), more than 0:" in text and "samples.cu:3" in text and "more\n" in text
    assert "LDL, which it must not:" in text
    assert "uses 32 registers, more than 16; " in text and "are live at most:" in text
    assert "fits 2 CTAs of 1024 threads on an SM, fewer than 3: limited by threads and registers" in text
    assert_sass(f"{samples}:local@sm_90a", spills=0, has="LDL")


def test_every_form_of_a_kernel(compiled, kernels):
    assert_sass(kernels("sm_90a")["wide"], has=["LDG.E.128", "global"])
    image = compile_source('extern "C" __global__ void k(float* y) { *y = 1; }', target="sm_90a")
    assert_sass(image, has="STG", spills=0, max_instructions=32)
    assert "samples.cu local" in complaint(compiled("sm_90a"), lacks="local")
    with pytest.raises(UsageError, match="not int"):
        assert_sass(3)


def test_too_long(samples):
    assert "instructions, more than 5" in complaint(f"{samples}:wide", max_instructions=5)
