"""Fetches of textures on every device, against what the CUDA C++ programming guide says in formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from texture_programs import run, table, tex, texels, tld4, uniform

from ptxkit import Texture
from ptxkit.errors import TrapError
from ptxkit.runtime.emulated import EmulatedDevice

N = 200
MODES = ("wrap", "clamp", "mirror", "border")


def index(i: int, size: int, mode: str) -> int | None:
    """The texel that an index outside of a texture stands for; None for the border."""
    if mode == "wrap":
        return i % size
    if mode == "mirror":
        return i % size if i // size % 2 == 0 else size - 1 - i % size
    return None if mode == "border" and not 0 <= i < size else min(max(i, 0), size - 1)


def filtered(array: np.ndarray, position: list[float], modes: list[str], border: float, linear: bool) -> float:
    """A texel, or the weighed sum of the guide's formula with exact weights. Positions are those of x, y and z."""
    axes = []
    for p in position:
        low = math.floor(p - 0.5) if linear else math.floor(p)
        fraction = p - 0.5 - low if linear else 0.0
        axes.append([(low, 1 - fraction), (low + 1, fraction)] if linear else [(low, 1.0)])
    total = 0.0
    for corner in itertools.product(*axes):
        found = [index(i, n, mode) for (i, _), n, mode in zip(corner, array.shape[::-1], modes, strict=True)]
        value = border if None in found else float(array[tuple(found[::-1])])
        total += value * math.prod(weight for _, weight in corner)
    return total


@pytest.mark.parametrize("linear", [False, True], ids=["point", "linear"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(7,), (5, 8), (3, 4, 6)], ids=["1d", "2d", "3d"])
def test_texels_follow_the_formulas_of_the_guide(device, shape, mode, linear):
    data = uniform(1, math.prod(shape), -1, 1).reshape(shape)
    sizes = shape[::-1]
    columns = [uniform(10 + k, N, -1.3, 2.3) for k in range(len(shape))]
    image = Texture(data, address=mode, filter="linear" if linear else "point", normalized=True, border=(3.0, 0, 0, 0))
    found, _ = run(device, tex(f"{len(shape)}d"), image, table(*columns))
    want = [
        filtered(data, [float(c[i]) * n for c, n in zip(columns, sizes, strict=True)], [mode] * len(shape), 3.0, linear)
        for i in range(N)
    ]
    # a position is within 1/512 of the exact one, and a product of weights within 1/256; next to the border a texel counts 4
    np.testing.assert_allclose(found[:, 0].view(np.float32), want, atol=(0.03 if linear else 0) * len(shape))
    assert (found[:, 1:] == 0).all()


def test_positions_are_the_same_with_and_without_normalised_coordinates(device):
    data = texels(3, (8, 16), "float32")
    x, y = uniform(1, N, 0, 16), uniform(2, N, 0, 8)
    x, y = np.rint(x * 256) / 256, np.rint(y * 256) / 256
    plain, _ = run(device, tex("2d"), Texture(data, filter="linear"), table(x.astype(np.float32), y.astype(np.float32)))
    scaled = table((x / 16).astype(np.float32), (y / 8).astype(np.float32))
    other, _ = run(device, tex("2d"), Texture(data, filter="linear", normalized=True), scaled)
    assert (plain == other).all()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "float32"])
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_channels_and_types_of_texels(device, dtype, channels):
    data = texels(4, (5, 7, channels) if channels > 1 else (5, 7), dtype)
    result = "f32" if dtype.startswith("f") else dtype[0].replace("i", "s") + "32"
    y, x = (a.ravel() for a in np.meshgrid(np.arange(5), np.arange(7), indexing="ij"))
    found, _ = run(device, tex("2d", result), Texture(data, channels=channels), table(x + 0.5, y + 0.5))
    kind = {"f": np.float32, "u": np.uint32, "i": np.int32}[dtype[0]]
    want = np.zeros((35, 4), kind)
    want[:, :channels] = data.reshape(35, channels)
    assert found.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_integers_are_read_as_fractions_of_one(device, dtype):
    info = np.iinfo(dtype)
    values = np.arange(info.min, info.max + 1).astype(dtype).reshape(-1, 256)
    y, x = (a.ravel() for a in np.meshgrid(np.arange(values.shape[0]), np.arange(256), indexing="ij"))
    found, _ = run(device, tex("2d"), Texture(values, read="normalized"), table(x + 0.5, y + 0.5))
    want = np.maximum(values.ravel() / np.float64(info.max), -1).astype(np.float32)
    assert (found[:, 0].view(np.float32) == want).all()


def test_each_direction_finds_its_face(device):
    cube = np.arange(6 * 4 * 4, dtype=np.float32).reshape(6, 4, 4)
    # CUDA C++ programming guide, "Cubemap Textures": face, then the direction of the texel in column 3 of row 0
    rows = [
        (0, (1, 0.75, -0.75)), (1, (-1, 0.75, 0.75)), (2, (0.75, 1, -0.75)),
        (3, (0.75, -1, 0.75)), (4, (0.75, 0.75, 1)), (5, (-0.75, 0.75, -1)),
    ]  # fmt: skip
    directions = np.array([d for _, d in rows], np.float32)
    found, _ = run(device, tex("cube"), Texture(cube, "cube", normalized=True), table(*(directions * 5).T))
    assert found[:, 0].view(np.float32).tolist() == [float(cube[face, 0, 3]) for face, _ in rows]


def test_seamless_filters_continue_on_the_face_beyond_an_edge(device):
    cube = np.zeros((6, 4, 4), np.float32)
    cube[4] = 1
    across = np.linspace(-0.2, 0.2, 41).astype(np.float32)
    directions = table(1 + across, np.zeros(41), 1 - across)  # from face 4 to face 0
    smooth, _ = run(
        device, tex("cube"), Texture(cube, "cube", filter="linear", normalized=True, seamless=True), directions
    )
    values = smooth[:, 0].view(np.float32)
    assert (np.diff(values) <= 0).all() and values[0] == 1 and values[-1] == 0 and values[20] == 0.5


@pytest.mark.parametrize("component", range(4))
def test_gathered_texels_run_counter_clockwise_from_the_lower_left(device, component):
    data = texels(5, (4, 6, 4), "float32")
    found, _ = run(device, tld4("rgba"[component]), Texture(data, channels=4), table([2.7, 1.3], [1.6, 3.4]))
    # around (2.7, 1.6): columns 2 and 3, rows 1 and 2; around (1.3, 3.4): columns 0 and 1, rows 2 and 3
    want = [[data[y + 1, x], data[y + 1, x + 1], data[y, x + 1], data[y, x]] for x, y in ((2, 1), (0, 2))]
    assert found.view(np.float32).tolist() == np.array(want)[..., component].tolist()


@pytest.mark.parametrize("between", ["point", "linear"])
def test_levels_of_detail(device, between):
    levels = [np.full(max(1, 16 >> k) * max(1, 8 >> k), 10.0 * k, np.float32) for k in range(5)]
    image = Texture(np.concatenate(levels), "2d", shape=(8, 16), levels=5, normalized=True, mip_filter=between)
    detail = np.array([-1, 0, 0.25, 0.75, 1, 2.25, 3.75, 4, 9], np.float32)
    found, _ = run(device, tex("2d", mip="level"), image, table(np.full(9, 0.4), np.full(9, 0.6), detail))
    limited = np.clip(detail, 0, 4)
    want = 10 * (limited if between == "linear" else np.floor(limited + 0.5))
    assert found[:, 0].view(np.float32).tolist() == want.tolist()


def test_gradients_choose_the_level_by_the_texels_that_they_span(device):
    levels = [np.full(max(1, 16 >> k) * max(1, 8 >> k), 10.0 * k, np.float32) for k in range(5)]
    image = Texture(np.concatenate(levels), "2d", shape=(8, 16), levels=5, normalized=True, mip_filter="linear")
    texels_across = np.array([0.5, 1, 2, 4, 8, 16, 64])
    dx = np.where(np.arange(7) % 2, texels_across / 16, 0), np.where(np.arange(7) % 2, 0, texels_across / 8)
    rows = table(np.full(7, 0.5), np.full(7, 0.5), *(d.astype(np.float32) for d in dx), np.zeros(7), np.zeros(7))
    found, _ = run(device, tex("2d", mip="grad"), image, rows)
    want = 10 * np.clip(np.log2(texels_across), 0, 4)
    np.testing.assert_allclose(found[:, 0].view(np.float32), want, atol=10 * 2 / 256)


def test_whole_coordinates_of_linear_memory_and_of_arrays(device):
    x = np.concatenate([np.arange(-4, 24), [2**31 - 1, -(2**31)]])
    memory = texels(6, (16,), "float32")
    found, _ = run(device, tex("1d", real=False), Texture(memory, "linear"), table(x))
    inside = (x >= 0) & (x < 16)
    assert (found[:, 0] == np.where(inside, memory.view(np.uint32)[np.clip(x, 0, 15)], 0)).all()
    layers = texels(7, (3, 4, 16), "float32")
    y, layer = np.arange(30) % 6 - 1, np.arange(30) % 5
    found, _ = run(device, tex("a2d", real=False), Texture(layers, "2d_layered"), table(layer, x, y))
    inside &= (y >= 0) & (y < 4) & (layer < 3)
    want = layers.view(np.uint32)[np.clip(layer, 0, 2), np.clip(y, 0, 3), np.clip(x, 0, 15)]
    assert (found[:, 0] == np.where(inside, want, 0)).all()


@pytest.mark.parametrize(
    ("form", "image", "message"),
    [
        (tex("1d", real=False), Texture(np.zeros(8, np.float32)), "tex1Dfetch"),
        (tex("1d"), Texture(np.zeros(8, np.float32), "linear"), "tex1Dfetch"),
        (
            tex("3d"),
            Texture(np.zeros((8, 8), np.float32)),
            r"is for \.3d, and the handle that of a 2d texture of 8 x 8 texels",
        ),
        (tex("a2d"), Texture(np.zeros((8, 8, 8), np.float32)), r"is for \.a2d, and the handle that of a 3d texture"),
    ],
)
def test_fetches_that_a_gpu_answers_with_zeros_are_reported(form, image, message):
    with pytest.raises(TrapError, match=message):
        run(EmulatedDevice(), form, image, np.zeros((4, form.takes), np.uint32))


def test_counts_are_the_texels_that_are_read():
    device = EmulatedDevice()
    data = np.zeros((8, 8, 2), np.uint16)
    image = Texture(data, channels=2, filter="linear", read="normalized", address="border")
    rows = table([4.0, 0.25, -9.0], [4.0, 4.0, 4.0])  # four texels, two beside two of the border, and the border alone
    run(device, tex("2d"), image, rows)
    assert device.counters.texture_bytes == {"fetch": (4 + 2) * 4}
    assert device.counters.by_class["texture"] == 3
