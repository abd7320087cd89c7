"""Textures and surfaces as arguments: what they take, when texels are copied, and descriptions with them."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ptxkit
from ptxkit import Surface, Texture
from ptxkit.errors import LaunchError, TrapError, UnsupportedError, UsageError
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.workload import execute, registry

SOURCE = """
extern "C" __global__ void blur(cudaTextureObject_t image, float* out, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < w && y < h) out[y * w + x] = tex2D<float>(image, x + 1.0f, y + 1.0f);
}
extern "C" __global__ void twice(cudaSurfaceObject_t s, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= w || y >= h) return;
    float v;
    surf2Dread(&v, s, x * 4, y);
    surf2Dwrite(2 * v, s, x * 4, y);
}
"""
GRID = {"grid": (2, 2), "block": (16, 16)}


def blurred(image: np.ndarray) -> np.ndarray:
    """The mean of each texel and its neighbours to the right and below."""
    edge = np.pad(image, ((0, 1), (0, 1)), mode="edge")
    return (edge[:-1, :-1] + edge[1:, :-1] + edge[:-1, 1:] + edge[1:, 1:]) / 4


def whole_numbers(shape: tuple[int, ...]) -> np.ndarray:
    """Small whole numbers, whose means are exact."""
    return np.random.default_rng(1).integers(0, 100, shape).astype(np.float32)


def test_numpy_arrays_become_textures_and_surfaces(device):
    module = ptxkit.compile(SOURCE, device=device, target=device.target or "sm_90a")
    image = whole_numbers((20, 24))
    out = np.zeros_like(image)
    module["blur"](Texture(image, filter="linear"), out, 24, 20, **GRID)
    assert (out == blurred(image)).all()
    module["twice"](Surface(out), 24, 20, **GRID)
    assert (out == 2 * blurred(image)).all()


def test_a_texture_of_a_device_array_follows_it_unless_it_is_not_refreshed(device):
    kernel = ptxkit.compile(SOURCE, device=device, target=device.target or "sm_90a")["blur"]
    first, second = whole_numbers((20, 24)), whole_numbers((20, 24)) + 1
    array, out = device.upload(first), device.empty((20, 24), np.float32)
    launches = [
        kernel.prepare(Texture(array, filter="linear", refresh=refresh), out, 24, 20, **GRID)
        for refresh in (True, False)
    ]
    for launch in launches:
        launch()
        assert (out.numpy() == blurred(first)).all()
    array.copy_from(second)
    results = []
    for launch in launches:
        launch()
        results.append(out.numpy())
    assert (results[0] == blurred(second)).all() and (results[1] == blurred(first)).all()


def test_textures_in_graphs_and_on_streams(device):
    module = ptxkit.compile(SOURCE, device=device, target=device.target or "sm_90a")
    image = whole_numbers((20, 24))
    array, out = device.upload(image), device.empty((20, 24), np.float32)
    prepared = module["blur"].prepare(Texture(array, filter="linear"), out, 24, 20, **GRID)
    doubled = module["twice"].prepare(Surface(out), 24, 20, **GRID)

    def both() -> None:
        prepared()
        doubled()

    replay = device.graph(both)
    replay()
    assert (out.numpy() == 2 * blurred(image)).all()
    array.copy_from(image + 4)
    replay()
    assert (out.numpy() == 2 * blurred(image + 4)).all()


DESCRIPTION = """
import numpy as np
from ptxkit import Launch, Surface, Texture, Work, Workload, variant

class Blur(Workload):
    source = "blur.cu"
    rows: int = 20
    cols: int = 24

    def inputs(self, rng):
        return {"image": rng.integers(0, 100, (self.rows, self.cols)).astype(np.float32)}

    def reference(self, image):
        edge = np.pad(image.astype(np.float64), ((0, 1), (0, 1)), mode="edge")
        return {"out": (edge[:-1, :-1] + edge[1:, :-1] + edge[:-1, 1:] + edge[1:, 1:]) / 2}

    def work(self):
        return Work(flops=8 * self.rows * self.cols, bytes=8 * self.rows * self.cols)

    @variant
    def linear(self, t):
        shape = (self.cols, self.rows)
        return [
            Launch("blur", (2, 2), (16, 16), (Texture("image", filter="linear"), "out", *shape)),
            Launch("twice", (2, 2), (16, 16), (Surface("out"), *shape)),
        ]
"""


def test_descriptions_take_textures_and_surfaces_by_name(device, tmp_path):
    (tmp_path / "blur.py").write_text(DESCRIPTION)
    (tmp_path / "blur.cu").write_text(SOURCE)
    found = registry.load_file(tmp_path / "blur.py")
    result = execute.run(execute.Case(found(), device), found.variant("linear"))
    assert result.verdict.verified, result.verdict.worst


def test_an_object_lives_as_long_as_its_launch():
    device = EmulatedDevice()
    kernel = ptxkit.compile(SOURCE, device=device)["blur"]
    prepared = kernel.prepare(
        Texture(device.upload(np.zeros((20, 24), np.float32))), device.empty((20, 24), np.float32), 24, 20, **GRID
    )
    assert len(device.machine.texel_objects) == 1
    prepared()
    del prepared
    gc.collect()
    assert not device.machine.texel_objects
    with pytest.raises(TrapError, match="0x5 is no texture or surface object"):
        kernel(np.uint64(5), np.zeros((20, 24), np.float32), 24, 20, **GRID)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda a: Texture(a, "4d"), "kind takes one of 1d, 2d"),
        (lambda a: Texture(a, address="repeat"), "address takes one of wrap, clamp"),
        (lambda a: Texture(a, address="wrap"), "wrap and mirror need normalized=True"),
        (lambda a: Texture(a, filter="cubic"), "filter takes one of point, linear"),
        (lambda a: Texture(a, channels=3), "channels takes 1, 2 or 4, not 3"),
        (lambda a: Texture(a, channels=np.array([1, 2])), "channels takes 1, 2 or 4, not a ndarray"),
        (lambda a: Texture(a, address=np.zeros(2)), "address takes one of wrap, clamp, mirror, border, not a ndarray"),
        (lambda a: Texture(a, border=(1, 2)), "border takes 4 numbers"),
        (lambda a: Texture(a, levels=3), "levels need normalized=True, and shape"),
        (lambda a: Texture(a, seamless=True), "seamless is for the kinds cube"),
        (lambda a: Surface(a, "linear"), "kind takes one of 1d, 2d, 3d"),
    ],
)
def test_arguments_that_are_invalid_for_every_array(make, message):
    with pytest.raises(UsageError, match=message):
        make(np.zeros((20, 24), np.float32))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (Texture(np.zeros((20, 24), np.float64)), "there are no texels of float64"),
        (
            Texture(np.zeros((20, 24), np.int32), filter="linear"),
            "filter='linear' needs texels that are read as floats, not int32",
        ),
        (Texture(np.zeros((20, 24), np.uint8), filter="linear"), "use read='normalized'"),
        (
            Texture(np.zeros((20, 24), np.float32), read="normalized"),
            "read='normalized' is for integers of 8 and 16 bits",
        ),
        (Texture(np.zeros((20, 24), np.float32), "3d"), r"3d has the dimensions \(depth, height, width\)"),
        (Texture(np.zeros((20, 24), np.float32), channels=4), "channels=4 needs them in the last dimension"),
        (Texture(np.zeros((5, 24, 24), np.float32), "cube"), "cube has 6 square faces"),
        (
            Texture(np.zeros((20, 25), np.float32), "pitch2d"),
            "a row of pitch2d must be a multiple of 32 bytes, not 100",
        ),
        (Texture(np.zeros(20, np.float32), "2d", shape=(20, 24)), "1,920 bytes; the array has 80"),
        (Texture(np.zeros((0, 24), np.float32)), "is empty"),
        (Surface(np.zeros((2, 3, 4, 5), np.float32)), "needs its kind"),
        (
            Texture(np.zeros((1, 131072 * 4), np.float32), "pitch2d", channels=4, shape=(1, 131072)),
            "a row of pitch2d has at most 2,097,120 bytes, not 2,097,152",
        ),
        (Texture(np.zeros(131073, np.uint8)), "1d has a width of at most 131,072, not 131,073"),
        (Texture(np.zeros((65537, 1), np.uint8)), "2d has a height of at most 65,536, not 65,537"),
        (Texture(np.zeros((16385, 1, 1), np.uint8)), "3d has a depth of at most 16,384, not 16,385"),
        (Texture(np.zeros((2049, 1), np.uint8), "1d_layered"), "1d_layered has at most 2,048 layers, not 2,049"),
        (Texture(np.zeros((342, 6, 1, 1), np.uint8), "cube_layered"), "cube_layered has at most 341 layers, not 342"),
        (Surface(np.zeros(32769, np.uint8)), "1d has a width of at most 32,768, not 32,769"),
    ],
)
def test_arrays_that_do_not_fit_are_reported_with_the_argument(image, message):
    kernel = ptxkit.compile(SOURCE, device=EmulatedDevice())["blur"]
    with pytest.raises(LaunchError, match=rf"blur: argument 1 'image'.*{message}"):
        kernel(image, np.zeros((20, 24), np.float32), 24, 20, **GRID)


@pytest.mark.parametrize("shape", [(131072,), (65536, 1), (1, 131072), (1, 1, 16384)])
def test_the_largest_textures_are_described(shape):
    assert Texture(np.zeros(shape, np.uint8)).describe(4096).width == shape[-1]


@pytest.mark.parametrize("linkage", ["", 'extern "C"'])
@pytest.mark.parametrize(
    "parameter, use, kind",
    [
        ("cudaTextureObject_t image", "y[0] = tex2D<float>(image, 0.5f, 0.5f)", "Texture"),
        ("cudaSurfaceObject_t image", "surf2Dwrite(y[0], image, 0, 0)", "Surface"),
    ],
)
def test_an_array_in_place_of_an_object_is_refused_before_the_launch(linkage, parameter, use, kind):
    kernel = ptxkit.compile(f"{linkage} __global__ void k({parameter}, float* y) {{ {use}; }}", device=EmulatedDevice())["k"]
    image, y = np.ones((2, 2), np.float32), np.zeros(1, np.float32)
    with pytest.raises(LaunchError, match=rf"argument 1 'image'.* a cuda{kind}Object_t, pass ptxkit\.{kind}\(array\)"):
        kernel(image, y, grid=1, block=1)
    kernel({"Texture": Texture, "Surface": Surface}[kind](image), y, grid=1, block=1)


def test_a_fault_of_a_texture_function_names_the_line_that_calls_it():
    source = """__device__ float sample(cudaTextureObject_t t)
{
    return tex2D<float>(t, 0.5f, 0.5f);
}
__global__ void k(cudaTextureObject_t t, float* y) { y[0] = sample(t); }
"""
    kernel = ptxkit.compile(source, device=EmulatedDevice())["k"]
    with pytest.raises(TrapError, match=r"source\.cu:3\) tex\.2d\S*: thread .* 0x7 is no texture") as error:
        kernel(np.uint64(7), np.zeros(1, np.float32), grid=1, block=1)
    assert "nvrtc_builtin" not in str(error.value)


def test_a_texture_reference_is_refused_by_name_before_the_launch():
    text = """.version 8.0
.target sm_90a
.address_size 64
.global .texref image;
.visible .entry k(.param .u64 y)
{
    .reg .f32 %f<5>;
    .reg .s32 %r<2>;
    mov.s32 %r1, 0;
    tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [image, {%r1}];
    ret;
}
"""
    kernel = ptxkit.compile(text, device=EmulatedDevice())["k"]
    with pytest.raises(UnsupportedError, match=r"image is one of the \.texref.*CUDA 12 has no .*pass objects as arguments"):
        kernel(np.zeros(1, np.float32), grid=1, block=1)


def test_a_texture_is_for_a_handle():
    kernel = ptxkit.compile(SOURCE, device=EmulatedDevice())["blur"]
    image = np.zeros((20, 24), np.float32)
    with pytest.raises(LaunchError, match="argument 2 'out'.*got a Texture, which is for cudaTextureObject_t"):
        kernel(Texture(image), Texture(image), 24, 20, **GRID)
