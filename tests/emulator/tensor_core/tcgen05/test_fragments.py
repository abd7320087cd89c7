"""The registers of tcgen05.ld and st, compared with CuTe's traits and executed in the emulator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensor_programs
from tensor_programs import COLUMNS, LANES

from ptxkit.emulator.tensor_core.tcgen05.fragments import fragment, registers

FORMS = [
    (shape, repeat)
    for shape in ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")
    for repeat in (1, 2, 4, 8, 16, 32, 64, 128)
    if registers(shape, repeat) <= 128
]
NAMES = {"32x32b": "32dp32b", "16x64b": "16dp64b", "16x128b": "16dp128b", "16x256b": "16dp256b", "16x32bx2": "16dp32b"}
LANE = 1 << 40
"""Stands for the distance from one lane to the next in CuTe's addresses."""


def traits() -> str:
    cutlass = pytest.importorskip("cutlass_library")
    path = Path(cutlass.__file__).parent / "source/include/cute/atom/copy_traits_sm100.hpp"
    if not path.exists():
        pytest.skip("CUTLASS's headers are not installed")
    return path.read_text()


def layout(text: str) -> Any:
    """A pycute layout from the text of CuTe's ``Layout<Shape<...>, Stride<...>>``."""
    from pycute import Layout

    text = re.sub(r"\s", "", text)
    text = text.replace("TMEM::DP_b", str(LANE)).replace("_", "")
    for name in ("Shape<", "Stride<"):
        text = text.replace(name, "(")
    inside = text.removeprefix("Layout<").removesuffix(">").replace(">", ")")
    shape, stride = eval(inside, {})
    return Layout(shape, stride)


def of_cute(text: str, shape: str, repeat: int, packed: bool) -> list[tuple[int, int]]:
    """(lane, bit of the column) of every 16 bits of every register of every thread."""
    name = f"SM100_TMEM_LOAD_{NAMES[shape]}{repeat}x{'_16b' if packed else ''}"
    body = text[text.index(f"struct Copy_Traits<{name}>") :]
    places = layout(re.search(r"ValID = (Layout<.*?>);", body, re.DOTALL)[1])  # type: ignore[index]
    values = layout(re.search(r"DstLayout = (Layout<.*?>);", body, re.DOTALL)[1])  # type: ignore[index]
    found = []
    for thread in range(32):
        for half in range(2 * registers(shape, repeat)):
            place = int(places(int(values(thread, 16 * half))))
            found.append((place // LANE, place % LANE))
    return found


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("shape", "repeat"), FORMS)
def test_registers_are_where_cute_has_them(shape, repeat, packed):
    split = registers(shape, repeat) * (2 if packed else 1) if shape == "16x32bx2" else 0
    f = fragment(shape, repeat, split, packed)
    mine = []
    for thread in range(32):
        for half in range(2 * registers(shape, repeat)):
            column = int(f.columns[half // 2, thread])
            bit = 32 * (column + half % 2) if packed else 32 * column + 16 * (half % 2)
            mine.append((int(f.lanes[half // 2, thread]), bit))
    assert mine == of_cute(traits(), shape, repeat, packed)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("shape", "repeat"), FORMS[::3])
def test_a_store_is_what_a_load_reads(shape, repeat, packed):
    """A load in one shape and a store to other columns copy exactly the fragment."""
    count = registers(shape, repeat)
    split = ", 40" if shape == "16x32bx2" else ""
    f = fragment(shape, repeat, 40 if split else 0, packed)
    if f.width > 200:
        pytest.skip("the copy would not fit beside the original")
    values = "{" + ", ".join(f"%v{k}" for k in range(count)) + "}"
    ld, st = (".pack::16b", ".unpack::16b") if packed else ("", "")
    text = tensor_programs._TEXT.replace(
        "    tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync;",
        f"""    tcgen05.wait::st.sync.aligned; .reg .b32 %v<{count}>; mov.u32 %r30, 3; mov.u32 %r31, 259;
    tcgen05.ld.sync.aligned.{shape}.x{repeat}{ld}.b32 {values}, [%r30]{split};
    tcgen05.wait::ld.sync.aligned;
    tcgen05.st.sync.aligned.{shape}.x{repeat}{st}.b32 [%r31]{split}, {values};
    tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync;""".replace("{", "{{").replace("}", "}}"),
    )
    before = np.random.default_rng(5).integers(0, 1 << 32, (1, LANES, COLUMNS), np.uint32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_programs, "_TEXT", text)
        after = tensor_programs.run("", np.zeros((1, 16), np.uint8), before)
    expected = before.copy()
    for warp in range(4):
        for r in range(count):
            for t in range(32):
                lane, column = 32 * warp + f.lanes[r, t], f.columns[r, t]
                for k in range(2 if packed else 1):
                    word = before[0, lane, 3 + column + k]
                    expected[0, lane, 259 + column + k] = word & 0xFFFF if packed else word
    np.testing.assert_array_equal(after, expected)


def reduced(shape: str, form: str, before: np.ndarray, split: str = "") -> np.ndarray:
    """The result of tcgen05.ld.red of four columns from column 8 on, one for each lane of a warp."""
    letter = "f" if form.endswith("f32") else "r"
    given = "{" + ", ".join(f"%{letter}a{k}" for k in range(4)) + "}"
    text = tensor_programs._TEXT.replace(
        "    tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync;",
        f"""    tcgen05.wait::st.sync.aligned; .reg .b32 %{letter}a<4>; .reg .b32 %{letter}b;
    mov.u32 %r30, 8; mov.u32 %r31, 100;
    tcgen05.ld.red.sync.aligned.{shape}.x4.{form} {given}, %{letter}b, [%r30]{split};
    tcgen05.wait::ld.sync.aligned;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r31], {{%{letter}b}};
    tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync;""".replace("{", "{{").replace("}", "}}"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_programs, "_TEXT", text)
        return tensor_programs.run("", np.zeros((1, 16), np.uint8), before, target="sm_103a")[0, :, 100]


@pytest.mark.parametrize("form", ["min.f32", "max.abs.NaN.f32", "max.u32", "min.s32"])
def test_reductions_of_two_halves_of_a_lane(form):
    """In .16x32bx2 the threads t and t + 16 load from lane t, and each gets the result of its own columns."""
    before = np.random.default_rng(3).integers(0, 1 << 32, (1, LANES, COLUMNS), np.uint32)
    before &= 0xBFFFFFFF  # no NaN
    kind = {"f32": np.float32, "u32": np.uint32, "s32": np.int32}[form.rsplit(".", 1)[1]]
    values = before[0].view(kind)
    values = np.abs(values) if "abs" in form else values
    pick = np.min if form.startswith("min") else np.max
    for warp in range(4):
        lanes = values[32 * warp : 32 * warp + 16]
        wanted = np.concatenate([pick(lanes[:, first : first + 4], axis=1) for first in (8, 208)])
        got = reduced("16x32bx2", form, before, ", 200")[32 * warp : 32 * warp + 32]
        np.testing.assert_array_equal(got.view(kind), wanted)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("min.f32", [-0.0, 1.0, -np.inf, np.nan]),
        ("max.f32", [0.0, 4.0, 2.0, np.nan]),
        ("max.abs.f32", [0.0, 4.0, np.inf, np.nan]),
        ("min.NaN.f32", [-0.0, np.nan, -np.inf, np.nan]),
        ("max.u32", [0x80000000, 0x7FC00000, 0xFF800000, 0x7FFFFFFF]),
        ("min.s32", [-0x80000000, 0x3F800000, -0x40800000, 0x7FC00000]),
    ],
)
def test_reductions_of_a_lane(form, expected):
    values = np.array(
        [[0.0, -0.0, 0.0, -0.0], [1.0, np.nan, 4.0, 2.0], [-np.inf, 2.0, -1.0, 0.0], [np.nan] * 4], np.float32
    )
    before = np.zeros((1, LANES, COLUMNS), np.uint32)
    before[0, :4, 8:12] = values.view(np.uint32)
    before[0, 3, 11] = 0x7FFFFFFF
    got = reduced("32x32b", form, before)[:4]
    kind = {"f32": np.float32, "u32": np.uint32, "s32": np.int32}[form.rsplit(".", 1)[1]]
    wanted = np.array(expected, kind)
    np.testing.assert_array_equal(got.view(kind), wanted)
    if kind is np.float32:
        np.testing.assert_array_equal(np.signbit(got.view(kind))[:3], np.signbit(wanted)[:3])
