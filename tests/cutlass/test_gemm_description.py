"""Descriptions: valid combinations, and the messages for the others."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.cutlass.description import BITS, OUTPUTS, SCHEDULES, SHARED_BYTES, GemmDescription
from ptxkit.errors import DescriptionError


def simt(**parts):
    return GemmDescription(
        **{"arch": 80, "schedule": "simt", "dtype": "f32", "tile": (128, 128, 8), "stages": 2, **parts}
    )


def multistage(**parts):
    return GemmDescription(**{"arch": 80, "schedule": "multistage", "tile": (128, 128, 32), "stages": 4, **parts})


def tcgen05(**parts):
    return GemmDescription(**{"arch": 100, "schedule": "one_sm", **parts})


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: GemmDescription(arch=70), r"arch is 80, 89, 90 or 100, not 70"),
        (lambda: GemmDescription(schedule="pong"), r"schedule is simt, multistage, .* or two_sm, not 'pong'"),
        (lambda: GemmDescription(dtype="bf17"), r"dtype is bf16, .*, not 'bf17'"),
        (lambda: GemmDescription(a_layout="t"), r"a_layout is row or column, not 't'"),
        (lambda: GemmDescription(epilogue="tanh"), r"epilogue is linear, relu, gelu or silu, not 'tanh'"),
        (lambda: GemmDescription(arch=80), r"schedule cooperative is for sm_90, not sm_80"),
        (lambda: GemmDescription(output="s32"), r"c is bf16 or f32 where a and b are bf16, not 's32'"),
        (lambda: GemmDescription(dtype="f32"), r"f32 is for schedule simt; on tensor cores dtype tf32"),
        (lambda: simt(dtype="bf16"), r"schedule simt is for f32, not bf16"),
        (lambda: simt(stages=4), r"simt has 2 stages of depth 8, not 4 of 8"),
        (lambda: multistage(stages=2), r"multistage has 3 to 10 stages, not 2"),
        (lambda: multistage(cluster=(2, 1, 1)), r"sm_80 has no clusters"),
        (lambda: multistage(warps=(3, 2, 1)), r"warps \(3, 2, 1\) do not divide the tile \(128, 128, 32\)"),
        (lambda: multistage(warps=(2, 2, 2)), r"warps cannot be distributed along k"),
        (lambda: multistage(tile=(128, 128, 40)), r"a warp's \(64, 64, 40\) is no multiple of the instruction's \(16, 8, 16\)"),
        (lambda: multistage(tile=(128, 128, 64), stages=6), r"needs 196,608 bytes of shared memory, more than 166,912"),
        (lambda: multistage(tile=(64, 64, 128), stages=3), r"a stage holds 64 or 128 bytes of a row, not 256"),
        (lambda: multistage(tile=(64, 128, 32), warps=(4, 4, 1)), r"64 x 32 elements are less than one access for each of 512"),
        (lambda: multistage(tile=(64, 64, 64), warps=(2, 4, 1)), r"a warp stores rows of at least 32 elements, not 16"),
        (lambda: GemmDescription(dtype="e4m3", tile=(128, 256, 128)), r"a thread would hold more than 64 of 128 x 256 sums"),
        (lambda: multistage(arch=89, dtype="e5m2", tile=(128, 128, 64)), r"64 x 64 sums would hold more than 64"),
        (lambda: multistage(tile=(128, 256, 32)), r"a warp with 64 x 128 sums would hold more than 128"),
        (lambda: multistage(dtype="e4m3", tile=(128, 128, 64)), r"e4m3 needs sm_89"),
        (lambda: multistage(arch=89), r"arch 89 is for e4m3 and e5m2"),
        (lambda: multistage(dtype="s8", tile=(128, 128, 64), b_layout="row"), r"s8 takes a row-major and b column-major"),
        (lambda: multistage(alignment=1), r"cp.async copies at least 4 bytes"),
        (lambda: multistage(alignment=3), r"alignment 3 is a power of two"),
        (lambda: GemmDescription(alignment=4), r"TMA takes rows of multiples of 16 bytes"),
        (lambda: GemmDescription(dtype="mxf8", tile=(128, 128, 128)), r"mxf8 takes schedule one_sm or two_sm, the linear"),
        (lambda: tcgen05(dtype="nvf4", tile=(128, 128, 128)), r"and tiles of depth 256"),
        (lambda: tcgen05(dtype="mxf4", tile=(128, 96, 256)), r"mxf4 takes 64, 128, 192 or 256 columns"),
        (lambda: multistage(dtype="mxf8", tile=(128, 128, 64)), r"mxf8 needs sm_100a"),
        (lambda: GemmDescription(dtype="tf32", tile=(128, 128, 32), a_layout="column"), r"wgmma transposes 16-bit types alone"),
        (lambda: GemmDescription(cluster=(4, 4, 1)), r"a cluster has at most 8 CTAs"),
        (lambda: GemmDescription(tile=(128, 128, 24)), r"the depth of the tile is a multiple of 16 for bf16, not 24"),
        (lambda: GemmDescription(tile=(64, 128, 64)), r"cooperative takes 128 or 256 rows a tile, not 64"),
        (lambda: GemmDescription(schedule="pingpong", tile=(256, 128, 64)), r"pingpong takes 64 or 128 rows"),
        (lambda: GemmDescription(tile=(128, 120, 64)), r"wgmma takes 16 to 256 columns"),
        (lambda: GemmDescription(tile=(256, 256, 64)), r"a thread would hold more than 128 of 256 x 256 sums"),
        (lambda: GemmDescription(schedule="pingpong", tile=(128, 256, 64)), r"more than 128 of 128 x 256 sums"),
        (lambda: GemmDescription(stages=8), r"needs 262,144 bytes of shared memory"),
        (lambda: GemmDescription(stages=1), r"stages must be at least 2, or 0"),
        (lambda: GemmDescription(arch=100, schedule="one_sm", tile=(256, 128, 64)), r"one_sm takes 128 rows a tile"),
        (lambda: GemmDescription(arch=100, schedule="two_sm", tile=(256, 128, 64)), r"an even number of CTAs along m"),
        (lambda: GemmDescription(tile=(0, 128, 64)), r"at least 1 everywhere"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_said_in_one_line(make, message):
    with pytest.raises(DescriptionError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_what_is_left_out_follows_from_the_rest():
    d = GemmDescription()
    assert (d.output, d.alignment, d.output_alignment, d.requires, d.generation) == ("bf16", 8, 8, "sm_90a", 3)
    assert d.instruction == (64, 128, 16)
    assert GemmDescription(dtype="s8", tile=(128, 128, 128)).output == "s32"
    assert (simt().alignment, simt().instruction, simt().requires) == (1, (1, 1, 1), "sm_80")
    assert multistage().warp_tile == (64, 64, 32)


@given(
    arch=st.sampled_from(list(SHARED_BYTES)),
    schedule=st.sampled_from(list(SCHEDULES)),
    dtype=st.sampled_from(list(OUTPUTS)),
    layouts=st.sampled_from(list(itertools.product(("row", "column"), repeat=2))),
    tile=st.tuples(*[st.sampled_from([8, 16, 32, 64, 128, 256])] * 3),
    cluster=st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 1), (4, 2, 1)]),
    stages=st.integers(0, 6),
)
def test_a_description_is_refused_or_fits_the_machine(arch, schedule, dtype, layouts, tile, cluster, stages):
    try:
        d = GemmDescription(arch, schedule, dtype, "", *layouts, tile, cluster=cluster, stages=stages)
    except DescriptionError:
        return
    assert re.fullmatch(r"[A-Za-z]\w*", d.name)
    assert d.arch in SCHEDULES[d.schedule]
    assert d.stages * d.stage_bytes <= SHARED_BYTES[d.arch]
    assert d.alignment * BITS[d.dtype] <= 128
    assert all(size % unit == 0 for size, unit in zip(d.tile, d.instruction, strict=True))


def test_different_descriptions_have_different_names():
    base = GemmDescription()
    others = [
        GemmDescription(cluster=(2, 1, 1)),
        GemmDescription(schedule="stream_k"),
        GemmDescription(tile=(128, 256, 64)),
        GemmDescription(stages=3),
        GemmDescription(dtype="f16"),
        GemmDescription(output="f32"),
        GemmDescription(b_layout="row"),
        GemmDescription(epilogue="relu"),
        multistage(),
        multistage(warps=(4, 2, 1)),
        multistage(alignment=4),
    ]
    assert len({d.name for d in (base, *others)}) == 1 + len(others)
