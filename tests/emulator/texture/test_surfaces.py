"""Loads, stores and reductions of surfaces, and queries, on every device, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from texture_programs import numbers, query, run, suld, sured, sust, table, texels

from ptxkit import Surface, Texture
from ptxkit.errors import MemoryFault, TrapError
from ptxkit.runtime.emulated import EmulatedDevice

N = 300
BYTES = {"b8": 1, "b16": 2, "b32": 4, "b64": 8}
KINDS = {
    "1d": ("1d", (16,)), "2d": ("2d", (5, 16)), "3d": ("3d", (3, 5, 16)), "1d_layered": ("a1d", (3, 16)),
    "2d_layered": ("a2d", (3, 5, 16)), "cube": ("a2d", (6, 8, 8)), "cube_layered": ("a2d", (2, 6, 8, 8)),
}  # fmt: skip


def places(kind: str, shape: tuple[int, ...], step: int) -> tuple[list[np.ndarray], tuple[np.ndarray, ...], np.ndarray]:
    """Columns of coordinates in and around a surface of 32-bit texels, the clipped (layer or z, y, byte), and who is inside."""
    row, height = shape[-1] * 4, 1 if kind in ("1d", "1d_layered") else shape[-2]
    planes = int(np.prod(shape)) // shape[-1] // height
    x = (numbers(1, N).astype(np.int64) % (row // step + 6) - 3) * step
    y = numbers(2, N).astype(np.int64) % (height + 4) - 2
    z = numbers(3, N).astype(np.int64) % (planes + 3) - (1 if kind == "3d" else 0)
    inside = (x >= 0) & (x + step <= row)
    columns = [x]
    if height > 1:
        columns.append(y)
        inside &= (y >= 0) & (y < height)
    if planes > 1:
        columns = [*columns, z] if kind == "3d" else [z, *columns]
        inside &= (z >= 0) & (z < planes)
    y, z = y if height > 1 else y * 0, z if planes > 1 else z * 0
    return columns, (np.clip(z, 0, planes - 1), np.clip(y, 0, height - 1), np.clip(x, 0, row - step)), inside


@pytest.mark.parametrize("clamp", ["zero", "clamp"])
@pytest.mark.parametrize("kind", KINDS)
def test_loads_in_and_around_surfaces_of_each_kind(device, kind, clamp):
    geometry, shape = KINDS[kind]
    data = texels(1, shape, "uint32")
    columns, (z, y, x), inside = places(kind, shape, 4)
    found, after = run(device, suld(geometry, clamp=clamp), Surface(data, kind), table(*columns))
    height = 1 if kind in ("1d", "1d_layered") else shape[-2]
    want = data.reshape(-1, height, shape[-1])[z, y, x // 4]
    assert (found[:, 0] == (want if clamp == "clamp" else np.where(inside, want, 0))).all()
    assert (after == data).all()


@pytest.mark.parametrize("vec", ["", "v2", "v4"])
@pytest.mark.parametrize("t", BYTES)
def test_widths_of_loads_and_stores(device, t, vec):
    size = BYTES[t] * (int(vec[1:]) if vec else 1)
    if size > 16:
        pytest.skip("there are no accesses of 32 bytes")
    data = texels(2, (5, 16), "uint32")
    columns, (_, y, x), inside = places("2d", data.shape, size)
    found, _ = run(device, suld("2d", t, vec), Surface(data), table(*columns))
    raw = np.where(inside[:, None], data.view(np.uint8)[y[:, None], x[:, None] + np.arange(size)], 0).astype(np.uint8)
    element = raw.view(f"u{min(BYTES[t], 4)}")
    assert (found == element).all()
    # stores: each place once, by the first lane that names it, so that the order of lanes does not matter
    _, first = np.unique(np.stack([y, x, inside], -1)[inside], axis=0, return_index=True)
    chosen = np.flatnonzero(inside)[first]
    values = numbers(9, len(chosen) * max(1, element.shape[1])).reshape(len(chosen), -1)
    rows = np.concatenate([table(*(c[chosen] for c in columns)), values], axis=1)
    _, after = run(device, sust("2d", t, vec), Surface(np.zeros_like(data)), rows)
    want = np.zeros((5, 64), np.uint8)
    stored = np.ascontiguousarray(values.astype(element.dtype)).view(np.uint8)
    want[y[chosen][:, None], x[chosen][:, None] + np.arange(size)] = stored
    assert after.tobytes() == want.tobytes()


def test_stores_outside_of_a_surface(device):
    rows = table([-400, 800, 12, 16], [-1, 9, -5, 7], [11, 12, 13, 14])
    _, dropped = run(device, sust("2d"), Surface(np.zeros((5, 32), np.uint32)), rows)
    assert (dropped == 0).all()
    _, moved = run(device, sust("2d", clamp="clamp"), Surface(np.zeros((5, 32), np.uint32)), rows)
    assert {tuple(p): int(moved[tuple(p)]) for p in np.argwhere(moved)} == {
        (0, 0): 11,
        (4, 31): 12,
        (0, 3): 13,
        (4, 4): 14,
    }


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "float32"])
def test_formatted_stores_convert(device, dtype):
    values = np.array([0, 1, -1, 127, 128, -129, 255, 256, 32768, -32769, 65535, 65536, 70000, 2**31 - 1, -(2**31)])
    given = values.astype(np.float32) * np.float32(1.0003) if dtype.startswith("f") else values
    image = Surface(np.full((len(values), 2), 77).astype(dtype), "1d", channels=2)
    _, after = run(device, sust("1d", mode="p"), image, table(np.arange(len(values)), given))
    if dtype == "float16":
        limited = np.clip(given, -65504, 65504)
        near = limited.astype(np.float16)
        want = np.where(np.abs(near) > np.abs(limited), np.nextafter(near, np.float16(0)), near)
    elif dtype == "float32":
        want = given
    else:
        info = np.iinfo(dtype)
        source = values.astype(np.uint32) if info.min == 0 else values
        want = np.clip(source, info.min, info.max)
    assert (after[:, 0] == want.astype(dtype)).all() and (after[:, 1] == 0).all()


@pytest.mark.parametrize(
    ("operation", "t"),
    [("add", "u32"), ("add", "s32"), ("add", "u64"), ("min", "u32"), ("min", "s32"), ("min", "u64"), ("min", "s64"),
     ("max", "u32"), ("max", "s32"), ("max", "u64"), ("max", "s64"), ("and", "b32"), ("or", "b32")],
)  # fmt: skip
def test_reductions_of_many_lanes_on_few_words(device, operation, t):
    size = 8 if t.endswith("64") else 4
    data = texels(3, (3, 8), "uint32")
    dtype = np.dtype(f"{'i' if t[0] == 's' else 'u'}{size}")
    x, y = numbers(1, N).astype(np.int64) % (32 // size + 2) - 1, numbers(2, N).astype(np.int64) % 5 - 1
    values = numbers(4, N * size // 4).reshape(N, -1)
    rows = np.concatenate([table(x * size, y), values], axis=1)
    _, after = run(device, sured("b", operation, "2d", t), Surface(data), rows)
    want = data.copy().view(dtype)
    inside = (x >= 0) & (x < want.shape[1]) & (y >= 0) & (y < 3)
    ufunc = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}[operation]
    ufunc.at(want, (y[inside], x[inside]), np.ascontiguousarray(values).view(dtype)[inside, 0])
    assert after.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", ["uint32", "int32"])
def test_sample_addressed_reductions_follow_the_sign_of_the_surface(device, dtype):
    data = texels(3, (8,), dtype)
    x, values = numbers(1, N).astype(np.int64) % 10 - 1, numbers(4, N)
    _, after = run(device, sured("p", "min", "1d", "b32"), Surface(data), table(x, values))
    want = data.copy()
    inside = (x >= 0) & (x < 8)
    np.minimum.at(want, x[inside], values.view(dtype)[inside])
    assert (after == want).all()


@pytest.mark.parametrize(
    ("image", "sizes"),
    [  # sizes as on an H200
        (Texture(np.zeros(5, np.float32)), (5, 1, 0)),
        (Texture(np.zeros((3, 5), np.uint8)), (5, 3, 0)),
        (Texture(np.zeros((2, 3, 5), np.float16)), (5, 3, 2)),
        (Texture(np.zeros((3, 5), np.float32), "1d_layered"), (5, 3, 0)),
        (Texture(np.zeros((4, 3, 5), np.float32), "2d_layered"), (5, 3, 4)),
        (Texture(np.zeros((6, 5, 5), np.float32), "cube"), (5, 5, 0)),
        (Texture(np.zeros((2, 6, 5, 5), np.float32), "cube_layered"), (5, 5, 2)),
        (Texture(np.zeros(32, np.float32), "linear"), (32, 0, 0)),
        (Surface(np.zeros(5, np.float32)), (5, 0, 0)),
        (Surface(np.zeros((3, 5, 4), np.int16), channels=4), (5, 3, 0)),
        (Surface(np.zeros((3, 5), np.float32), "1d_layered"), (5, 3, 0)),
        (Surface(np.zeros((2, 6, 5, 5), np.float32), "cube_layered"), (5, 5, 12)),
    ],
)
def test_queries_of_sizes(device, image, sizes):
    name = "txq" if isinstance(image, Texture) else "suq"
    found = [run(device, query(f"{name}.{what}"), image, table([0]))[0][0, 0] for what in ("width", "height", "depth")]
    assert tuple(found) == sizes


@pytest.mark.parametrize(
    ("form", "row", "error", "message"),
    [
        (
            suld("2d", clamp="trap"),
            (64, 1),
            TrapError,
            r"\(64, 1\), in bytes along x, is outside of a 2d surface of 16 x 5 texels",
        ),
        (sust("2d", clamp="trap"), (0, -1, 0), TrapError, r"\(0, -1\)"),
        (suld("2d"), (2, 0), MemoryFault, "accesses 4 bytes at byte 2 of a row, misaligned"),
    ],
)
def test_accesses_outside_with_trap_and_misaligned_ones_are_reported(form, row, error, message):
    with pytest.raises(error, match=message):
        run(EmulatedDevice(), form, Surface(np.zeros((5, 16), np.uint32)), table(*([n] for n in row)))


def test_a_texture_is_no_surface_and_a_number_no_object():
    with pytest.raises(TrapError, match="the handle is that of a 2d texture of 4 x 3 texels"):
        run(EmulatedDevice(), suld("2d"), Texture(np.zeros((3, 4), np.uint32)), table([0], [0]))


def test_counts_are_the_bytes_that_are_accessed():
    device = EmulatedDevice()
    run(device, suld("2d", "b64"), Surface(np.zeros((5, 16), np.uint32)), table([0, 8, -8], [0, 1, 0]))
    run(device, sured("b", "add", "2d", "u32"), Surface(np.zeros((5, 16), np.uint32)), table([0, 0], [0, 0], [1, 2]))
    assert device.counters.texture_bytes == {"load": 16, "atomic": 8}
