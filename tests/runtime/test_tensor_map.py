"""A tensor map's description: the driver's rules, each with an error that names the fix, and how it is passed to a kernel."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ptxkit
from ptxkit.emulator.tma import tensor_map as emulated
from ptxkit.errors import LaunchError, UsageError
from ptxkit.runtime.arguments import bind
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.runtime.parameters import Parameter
from ptxkit.runtime.tensor_map.description import TensorMap
from ptxkit.runtime.tensor_map.elements import ELEMENT_TYPES, contiguous_strides
from ptxkit.runtime.tensor_map.im2col import Im2col
from ptxkit.runtime.tensor_map.limits import SWIZZLES, Encoding

DEVICE = EmulatedDevice()
ARRAY = DEVICE.upload(np.zeros((64, 32), np.float32), "a")
PARAMETER = Parameter(0, "map", "struct", None, 128, 0, 64)

SOURCE = r"""
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
extern "C" __global__ void probe(int first, const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap other,
                                 unsigned char* out) {
  out[threadIdx.x] = reinterpret_cast<const unsigned char*>(&map)[threadIdx.x];
  out[threadIdx.x + 128] = reinterpret_cast<const unsigned char*>(&other)[threadIdx.x];
  if (threadIdx.x == 0) out[256] = reinterpret_cast<unsigned long long>(&map) % 64 + first;
}
"""


def refused(build, *words):
    with pytest.raises(UsageError) as caught:
        build()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def describe(address=0x1000, **changes):
    fields = {"box": (8, 32), "shape": (64, 32), "dtype": np.float32} | changes
    return TensorMap(np.uint64(address), **fields).describe(address)


def test_the_description_is_reversed_for_the_driver():
    m = TensorMap(ARRAY, box=(8, 16), element_strides=(2, 1), swizzle="64B", l2_promotion="128B", oob_fill="nan")
    assert m.describe(0x1000) == Encoding(7, 0x1000, (32, 64), (128,), (16, 8), (1, 2), 2, 2, 1)


def test_an_offset_begins_the_array_later():
    assert describe(offset=256).address == 0x1100


def test_other_shapes_and_strides_than_the_arrays():
    m = TensorMap(ARRAY, box=(2, 4, 8), shape=(4, 8, 10), strides=(1024, 128, 4))
    assert m.describe(0x1000) == Encoding(7, 0x1000, (10, 8, 4), (128, 1024), (8, 4, 2), (1, 1, 1))


@pytest.mark.parametrize(
    ("array", "dtype", "name"),
    [
        (np.zeros((2, 32), np.int8), None, "uint8"),
        (np.zeros((2, 32), ml_dtypes.float8_e4m3fn), None, "uint8"),
        (np.zeros((2, 32), np.int16), None, "uint16"),
        (np.zeros((2, 32), np.float16), None, "float16"),
        (np.zeros((2, 32), ml_dtypes.bfloat16), None, "bfloat16"),
        (np.zeros((2, 32), np.int64), None, "int64"),
        (np.zeros((2, 32), np.float32), "tfloat32", "tfloat32"),
        (np.zeros((2, 32), np.float32), "bfloat16", "bfloat16"),
        (np.zeros((2, 32), np.uint8), "16u4_align8b", "16u4_align8b"),
    ],
)
def test_element_types(array, dtype, name):
    made = TensorMap(array, box=(1, 32), dtype=dtype).describe(0x1000)
    assert made.element == ELEMENT_TYPES[name].number
    assert made.dimensions == (32 * array.itemsize * 8 // ELEMENT_TYPES[name].bits, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"box": (8, 0)}, ["box (8, 0)", "1 to 256"]),
        ({"box": (257, 32)}, ["1 to 256"]),
        ({"box": (1,) * 6}, ["6 dimensions", "1 to 5"]),
        ({"box": ()}, ["0 dimensions"]),
        ({"box": (8, 1.5)}, ["box must be whole numbers"]),
        ({"swizzle": "16B"}, ["swizzle must be one of", "'128B'", "'16B'"]),
        ({"l2_promotion": "32B"}, ["l2_promotion"]),
        ({"oob_fill": "ones"}, ["oob_fill", "'nan'"]),
        ({"interleave": "16B"}, ["interleave", "channels last"]),
        ({"element_strides": (9, 1)}, ["element_strides", "1 to 8"]),
        ({"element_strides": (1, 2)}, ["must end with 1"]),
        ({"element_strides": (1,)}, ["one number for each of the 2 dimensions"]),
        ({"strides": (128,)}, ["strides"]),
    ],
)
def test_what_no_array_makes_valid_is_refused_at_once(changes, words):
    refused(lambda: TensorMap(ARRAY, **{"box": (8, 32), **changes}), "TensorMap: ", *words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"address": 0x1008}, ["0x1008", "multiple of 16"]),
        ({"offset": 4}, ["0x1004", "multiple of 16"]),
        ({"shape": (64, 31)}, ["124 bytes", "multiple of 16", "pad the rows"]),
        ({"shape": (0, 32)}, ["1 to 2^32 elements"]),
        ({"shape": (64, (1 << 32) + 1)}, ["1 to 2^32 elements"]),
        ({"shape": (2, 1 << 32), "dtype": np.float64}, []),
        ({"strides": (1 << 40, 4)}, ["below 2^40"]),
        ({"strides": (-128, 4)}, ["below 2^40"]),
        ({"strides": (128, 8)}, ["contiguous", "4 bytes apart"]),
        ({"box": (8, 6)}, ["rows of 24 bytes", "multiple of 16 bytes", "4 elements of float32"]),
        ({"swizzle": "32B"}, ["rows of 128 bytes", "swizzle '32B' takes 32 at most, 8 elements of float32"]),
        ({"swizzle": "128B", "box": (8, 64)}, ["takes 128 at most, 32 elements"]),
        ({"oob_fill": "nan", "dtype": np.int32}, ["floating-point", "int32"]),
        ({"dtype": "float23"}, ["no element type 'float23'", "float32"]),
        ({"dtype": np.complex64}, ["no element type for complex64"]),
        ({"dtype": "16u4_align16b", "shape": (2, 256)}, ["last dimension of 16u4_align16b must be 128"]),
        ({"dtype": "16u4_align8b", "shape": (2, 255)}, ["multiple of 2"]),
        ({"dtype": None}, ["give dtype"]),
        ({"shape": None}, ["give shape"]),
    ],
)
def test_the_drivers_rules(changes, words):
    if words:
        refused(lambda: describe(**changes), *words)
    else:
        assert describe(**changes)


def columns(shape=(2, 9, 9, 64), lower=(-1, -1), upper=(-1, -1), channels=64, pixels=128, along_w=None, **changes):
    im2col = Im2col(lower, upper, channels, pixels, along_w)
    m = TensorMap(np.uint64(0), im2col=im2col, shape=shape, dtype=np.float16, **changes)
    return m.describe(0x1000)


ROW = {"lower": (0, -1), "upper": (0, -1)}
"""Corners of W only, as im2col along W has them."""


def test_im2col_along_w_has_a_mode_of_the_driver():
    made = columns(along_w="w128", lower=(0, -200), upper=(0, 300), swizzle="64B", channels=32)
    assert (made.im2col, made.along_w) == (((-200, 0), (300, 0), 32, 128), 1)
    assert columns(along_w="w", **ROW, swizzle="128B").along_w == 0 and columns().along_w is None


def test_im2col_is_reversed_for_the_driver():
    made = columns(lower=(-1, -2), upper=(-3, -4), element_strides=(1, 2, 3, 1), swizzle="128B")
    assert made == Encoding(
        6, 0x1000, (64, 9, 9, 2), (128, 1152, 10368), (), (1, 3, 2, 1), 3, 0, 0, ((-2, -1), (-4, -3), 64, 128)
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lower": (-1,)}, ["im2col corners (-1,) and (-1, -1)"]),
        ({"lower": (0, -129)}, ["-128 to 127", "4 dimensions"]),
        ({"channels": 0}, ["channels 0 must be 1 to 256"]),
        ({"pixels": 1025}, ["pixels 1025 must be 1 to 1024"]),
        ({"channels": 12}, ["im2col channels 12: rows of 24 bytes", "8 elements of float16"]),
        ({"channels": 128, "swizzle": "128B", "shape": (2, 9, 9, 128)}, ["takes 128 at most"]),
        ({"channels": 256, "pixels": 1024}, ["524,288 bytes", "fits into shared memory"]),
        ({"lower": (9, 0)}, ["leave nothing", "9 to 7 is empty"]),
        ({"shape": (9, 9, 64)}, ["shape (9, 9, 64) needs one number for each of the 4 dimensions"]),
        ({"box": (1, 1, 1, 64)}, ["different modes", "give one of them"]),
        ({"element_strides": (1, 1)}, ["4 dimensions of the array"]),
        ({"along_w": "h"}, ["im2col along_w must be one of 'w', 'w128', not 'h'"]),
        ({"along_w": "w"}, ["corners (-1, -1) and (-1, -1) of D and H must be 0 with along_w"]),
        ({"along_w": "w", **ROW, "lower": (0, 9), "swizzle": "128B"}, ["leave nothing", "9 to 7 is empty"]),
        ({"along_w": "w", **ROW}, ["takes swizzle '64B', '128B', '128B_atom_32B', not 'none'"]),
        ({"along_w": "w", **ROW, "swizzle": "32B", "channels": 16}, ["takes swizzle", "not '32B'"]),
        ({"along_w": "w", **ROW, "lower": (0, -32769)}, ["must be -32768 to 32767"]),
        ({"along_w": "w", **ROW, "pixels": 1025}, ["pixels 1025 must be 1 to 1024"]),
        ({"along_w": "w128", **ROW, "pixels": 64}, ["pixels 64 must be 128 with along_w 'w128'"]),
    ],
)
def test_the_drivers_rules_for_im2col(changes, words):
    refused(lambda: columns(**changes), *words)


def test_a_box_fits_into_shared_memory():
    assert describe(box=(228, 256), shape=(512, 512)).box == (256, 228)
    refused(lambda: describe(box=(229, 256), shape=(512, 512)), "234,496 bytes", "copy several")
    assert describe(box=(256, 256), shape=(512, 512), element_strides=(2, 1))


def test_a_box_of_another_rank_than_the_array_is_refused():
    refused(
        lambda: TensorMap(ARRAY, box=(8,)).describe(0), "box (8,) has 1 dimension", "the array 2 dimensions (64, 32)"
    )


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.sampled_from([np.uint8, np.float32, np.float64]))
def test_contiguous_strides_are_numpys(shape, dtype):
    array = np.empty(shape, dtype)
    assert contiguous_strides(tuple(shape), 8 * array.itemsize) == array.strides


# -- as a kernel argument --------------------------------------------------------------------------------------------


def packed(value, p=PARAMETER):
    return bytes(bind("k", (p,), (value,), DEVICE).buffer)


def test_a_device_array_is_encoded_when_it_is_bound():
    m = TensorMap(ARRAY, box=(8, 32))
    bound = bind("k", (PARAMETER,), (m,), DEVICE)
    record = np.frombuffer(bytes(bound.buffer), emulated.LAYOUT)[0]
    assert record["global_address"] == ARRAY.address
    assert ARRAY in bound.keep
    assert bytes(bound.buffer) == m.encode(DEVICE).tobytes()


def test_a_numpy_array_is_encoded_once_it_is_on_the_device():
    host = np.zeros((64, 32), np.float32)
    bound = bind("k", (PARAMETER,), (TensorMap(host, box=(8, 32)),), DEVICE)
    ((p, array),) = bound.host
    assert array is host
    bound.address(p, ARRAY.address)
    assert bytes(bound.buffer) == packed(TensorMap(ARRAY, box=(8, 32)))


def test_a_map_of_a_numpy_array_may_begin_before_it():
    """As those whose rows end with a sequence: only rows of the array are read."""
    m = TensorMap(np.zeros((4, 16), np.float32), box=(1, 2, 16), shape=(5, 4, 16), strides=(64, 64, 4), offset=-256)
    assert bind("k", [PARAMETER], [m], DEVICE).buffer


@pytest.mark.parametrize(
    "p",
    [
        Parameter(0, "map", "struct", None, 128, 0, 8),
        Parameter(0, "map", "struct", None, 64, 0, 64),
        Parameter(0, "map", "pointer", None, 8, 0, 8),
    ],
)
def test_only_a_tensor_map_parameter_takes_one(p):
    refused(
        lambda: packed(TensorMap(ARRAY, box=(8, 32)), p), "k: argument 1 'map'", "const __grid_constant__ CUtensorMap"
    )


def test_a_broken_rule_names_the_argument():
    refused(lambda: packed(TensorMap(ARRAY, box=(8, 30))), "k: argument 1 'map'", "rows of 120 bytes")
    refused(lambda: packed(TensorMap(np.zeros((4, 30), np.float32), box=(4, 4))), "k: argument 1", "120 bytes")


@pytest.mark.parametrize(
    ("array", "word"),
    [("x", "is a name"), (7, "not of 7"), (EmulatedDevice().upload(np.zeros((4, 32), np.float32)), "upload it there")],
)
def test_what_is_no_array_here_is_refused(array, word):
    with pytest.raises(LaunchError, match=word):
        packed(TensorMap(array, box=(4, 32), shape=(4, 32), dtype=np.float32))


def test_a_map_of_a_numpy_array_cannot_be_encoded_alone():
    with pytest.raises(LaunchError, match=r"pass device\.upload"):
        TensorMap(np.zeros((4, 32), np.float32), box=(4, 32)).encode(DEVICE)


def test_it_arrives_in_the_kernel_bit_for_bit(device):
    probe = ptxkit.compile(SOURCE, device=device, target="sm_90a")["probe"]
    x = device.upload(np.zeros((64, 32), np.float32))
    maps = TensorMap(x, box=(8, 32)), TensorMap(x, box=(16, 16), swizzle="64B")
    out = np.zeros(257, np.uint8)
    probe(np.int32(5), *maps, out, grid=1, block=128)
    assert out[:128].tobytes() == maps[0].encode(device).tobytes()
    assert out[128:256].tobytes() == maps[1].encode(device).tobytes()
    assert out[256] == 5, "a tensor map is aligned to 64 bytes"


def test_bytes_will_do_too(device):
    probe = ptxkit.compile(SOURCE, device=device, target="sm_90a")["probe"]
    m = TensorMap(device.upload(np.zeros((64, 32), np.float32)), box=(8, 32)).encode(device)
    out = np.zeros(257, np.uint8)
    probe(np.int32(0), m, m.tobytes(), out, grid=1, block=128)
    assert out[:256].tobytes() == 2 * m.tobytes()


# -- in a workload ---------------------------------------------------------------------------------------------------


def test_a_launch_names_the_array():
    launch = ptxkit.Launch("k", grid=1, block=32, args=(TensorMap("a", box=(8, 32)), "b", np.int32(4)))
    assert launch.array_names == ("a", "b")


COPY = r"""
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
__global__ void copy_tile(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap y) {
  __shared__ __align__(128) float tile[8 * 32];
  __shared__ unsigned long long barrier;
  const unsigned bar = __cvta_generic_to_shared(&barrier), to = __cvta_generic_to_shared(tile);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(bar) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(to), "l"(&x), "r"(0), "r"(blockIdx.x * 8), "r"(bar) : "memory");
    unsigned done = 0;
    while (!done)
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                   : "=r"(done) : "r"(bar) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 :: "l"(&y), "r"(0), "r"(blockIdx.x * 8), "r"(to) : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
"""


def test_a_workload_copies_by_tensor_maps(device, tmp_path):
    from ptxkit.workload.execute import Case, run

    source = tmp_path / "copy.cu"
    source.write_text(COPY)

    class Copy(ptxkit.Workload):
        """copy: y = x"""

        rows: int = 20

        def inputs(self, rng):
            return {"x": ptxkit.uniform(rng, (self.rows, 32))}

        def reference(self, x):
            return {"y": x}

        def work(self):
            return ptxkit.Work(flops=0, bytes=256 * self.rows)

        @ptxkit.variant(requires=("tma",))
        def boxes(self):
            maps = TensorMap("x", box=(8, 32)), TensorMap("y", box=(8, 32))
            return [ptxkit.Launch("copy_tile", grid=ptxkit.cdiv(self.rows, 8), block=32, args=maps, source=str(source))]

    case = Case(Copy(), device)
    result = run(case, Copy.variants()["boxes"])
    assert result.verdict is not None and result.verdict.verified


# -- both devices ----------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@given(st.data())
def test_the_driver_takes_what_the_rules_allow(data):
    """The converse: no map that the driver accepts is refused, except for element strides of the last dimension."""
    from ptxkit.runtime.device import device as open_device

    gpu = open_device("gpu")
    element = data.draw(st.sampled_from([t for t in ELEMENT_TYPES.values() if not t.packed]))
    rank = data.draw(st.integers(1, 5))
    size = element.bits // 8
    row = 16 // size * data.draw(st.integers(0, 9)) + data.draw(st.sampled_from([0, 0, 0, 1]))
    outer = st.sampled_from([1, 2, 8, 255, 256, 257, 0])
    box = (*data.draw(st.tuples(*[outer] * (rank - 1))), row)
    dims = st.sampled_from([1, 5, 64, 1000, 1 << 32, (1 << 32) + 1, 0])
    shape = data.draw(st.tuples(*[dims] * rank))
    stride = st.sampled_from([0, 16, 24, 256, 4096, 1 << 40, (1 << 40) - 16])
    strides = (*data.draw(st.tuples(*[stride] * (rank - 1))), size)
    steps = (*data.draw(st.tuples(*[st.sampled_from([1, 1, 2, 8, 9, 0])] * (rank - 1))), 1)
    swizzle = data.draw(st.sampled_from(SWIZZLES[:4]))
    fill = data.draw(st.sampled_from(["zeros", "nan"]))
    address = 0x7000_0000_0000 + data.draw(st.sampled_from([0, 0, 16, 8]))
    raw = Encoding(
        element.number,
        address,
        shape[::-1],
        strides[-2::-1],
        box[::-1],
        steps[::-1],
        SWIZZLES.index(swizzle),
        0,
        int(fill == "nan"),
    )
    try:
        gpu.tensor_map(raw)
        driver = True
    except UsageError:
        driver = False
    try:
        TensorMap(
            np.uint64(address),
            box=box,
            swizzle=swizzle,
            element_strides=steps,
            oob_fill=fill,
            strides=strides,
            shape=shape,
            dtype=element.name,
        ).describe(address)
        ours = True
    except UsageError:
        ours = False
    assert ours == driver, raw


def test_the_emulators_encoding_is_128_bytes():
    assert emulated.LAYOUT.itemsize == emulated.BYTES == ctypes.sizeof(ctypes.c_uint64) * 16
