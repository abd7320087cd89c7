"""Tensor copies and reductions compared with :mod:`tensor_boxes`, on every device: ranks, boxes, strides, swizzles, fills."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensor_boxes import HEAD, OPERATIONS, POISON, Boxed, Columns, source

import ptxkit
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import ArithmeticTrap, MemoryFault, TrapError
from ptxkit.runtime.emulated import EmulatedDevice

MODES = ("eager", "latest-legal")
NANS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
DTYPES = ["uint8", "uint16", "uint32", "int32", "uint64", "int64", *NANS]
EXAMPLES = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


LARGER_ATOMS = EmulatedDevice()


@pytest.fixture(params=MODES)
def mode(request, device):
    """The emulator in each of its completion modes, and a GPU once."""
    if device.kind == "gpu":
        if request.param != MODES[0]:
            pytest.skip("a GPU has no modes")
        yield device
        return
    with device.settings(completion=request.param):
        yield device


@lru_cache(maxsize=64)
def kernels(device):
    return ptxkit.compile(source(), device=device, target="sm_90a")


def nan_of(dtype):
    """The NaN of the fill, as observed on an H200."""
    return b"\xf7\x7f" * (NANS[dtype] // 2)


@st.composite
def boxes(draw, swizzles=("none", "32B", "64B", "128B"), most_bytes=4096):
    """A :class:`Boxed`, the name of its dtype, and coordinates of some boxes."""
    dtype = draw(st.sampled_from(DTYPES))
    itemsize = {"bfloat16": 2}.get(dtype) or np.dtype(dtype).itemsize
    rank = draw(st.integers(1, 5))
    swizzle = draw(st.sampled_from(swizzles))
    span = {"none": 256 * itemsize, "32B": 32, "64B": 64}.get(swizzle, 128)
    row = draw(st.one_of(st.just(min(span, 512)), st.integers(1, min(span, 512) // 16).map(lambda n: 16 * n)))
    box, steps, room = [row // itemsize], [1], most_bytes // row
    for _ in range(rank - 1):
        step = draw(st.sampled_from([1, 1, 1, 2, 3, 8]))
        count = draw(st.integers(1, max(1, min(room, 256 // step))) if room < 9 else st.integers(1, 8))
        room //= count
        box.insert(0, min(256, count * step - draw(st.integers(0, step - 1))))
        steps.insert(0, step)
    shape = [draw(st.integers(1, 2 * b + 3)) for b in box]
    strides = [itemsize]
    for n in reversed(shape[1:]):
        least = strides[0] * n
        strides.insert(0, -(-least // 16) * 16 + 16 * draw(st.integers(0, 2)))
    if sum(n * s for n, s in zip(shape, strides, strict=True)) > 1 << 20:
        shape = [min(n, 4) for n in shape[:-1]] + shape[-1:]
    nan = draw(st.booleans()) and dtype in NANS
    boxed = Boxed(
        tuple(shape), tuple(strides), itemsize, tuple(box), tuple(steps), swizzle, nan_of(dtype) if nan else None
    )
    return boxed, dtype


def draw_coordinates(data, boxed, lowest):
    """Coordinates of one to four boxes, innermost first: inside the array, across its edges and far away.

    The innermost is a multiple of 16 bytes, which the hardware requires.
    """
    unit = 16 // boxed.itemsize
    last = boxed.shape[-1] // unit + 1
    one = st.tuples(
        st.one_of(st.integers(max(lowest, -boxed.box[-1]) // unit, last), st.just(2**30 // unit)).map(
            lambda c: unit * c
        ),
        *(
            st.one_of(st.integers(max(lowest, -b), n + 1), st.sampled_from([0, n - 1, n, 2**31 - 1]))
            for b, n in zip(boxed.box[-2::-1], boxed.shape[-2::-1], strict=True)
        ),
    )
    return data.draw(st.lists(one, min_size=1, max_size=4))


def padded(coordinates):
    """Coordinates for the kernels: five of each."""
    return np.array([(*c, *(0,) * (5 - len(c))) for c in coordinates], np.int32)


def random_bytes(seed, count):
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def tensor_map(boxed, dtype, array):
    return ptxkit.TensorMap(
        array,
        box=boxed.box,
        swizzle=boxed.swizzle,
        element_strides=boxed.steps,
        oob_fill="nan" if boxed.nan else "zeros",
        shape=boxed.shape,
        strides=boxed.strides,
        dtype=dtype,
    )


def check_loads(device, boxed, dtype, coordinates, to):
    size = to + boxed.shared_bytes + 256
    buffer = random_bytes(to, boxed.buffer_bytes)
    out, done = np.zeros((len(coordinates), size), np.uint8), np.zeros(len(coordinates), np.int32)
    array = device.upload(buffer, "array")
    kernels(device)[f"load{len(boxed.shape)}"](
        tensor_map(boxed, dtype, array),
        padded(coordinates),
        out,
        done,
        np.uint32(boxed.nbytes),
        np.uint32(to),
        np.uint32(size),
        grid=len(coordinates),
        block=128,
        shared=size,
    )
    assert done.all(), "the barrier did not get the bytes of a whole box"
    for got, c in zip(out, coordinates, strict=True):
        np.testing.assert_array_equal(got, boxed.load(buffer, c, to, size))


@EXAMPLES
@given(st.data())
def test_loads(mode, data):
    boxed, dtype = data.draw(boxes())
    coordinates = draw_coordinates(data, boxed, lowest=-10)
    check_loads(mode, boxed, dtype, coordinates, 128 * data.draw(st.integers(0, 9)))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_swizzles_with_larger_atoms(data):
    """The instructions need sm_100; the emulator executes every target."""
    boxed, dtype = data.draw(boxes(swizzles=("128B_atom_32B", "128B_atom_32B_flip_8B", "128B_atom_64B")))
    coordinates = draw_coordinates(data, boxed, lowest=-10)
    check_loads(LARGER_ATOMS, boxed, dtype, coordinates, 128 * data.draw(st.integers(0, 9)))


@EXAMPLES
@given(st.data())
def test_stores(mode, data):
    boxed, dtype = data.draw(boxes())
    coordinates = draw_coordinates(data, boxed, lowest=0)[:1]  # boxes that overlap are written in any order
    start = 128 * data.draw(st.integers(0, 9))
    region = random_bytes(1, start + boxed.shared_bytes)
    buffer = random_bytes(2, boxed.buffer_bytes)
    array = mode.upload(buffer, "array")
    kernels(mode)[f"store{len(boxed.shape)}"](
        tensor_map(boxed, dtype, array),
        padded(coordinates),
        region,
        np.uint32(start),
        np.uint32(len(region)),
        grid=1,
        block=128,
        shared=len(region),
    )
    expected = buffer.copy()
    boxed.store(expected, coordinates[0], region, start)
    np.testing.assert_array_equal(array.numpy(), expected)


# -- im2col ----------------------------------------------------------------------------------------------------------


@st.composite
def columns(draw):
    """A :class:`Columns`, and the name of its dtype."""
    dtype = draw(st.sampled_from(["uint8", "float16", "float32"]))
    itemsize = np.dtype(dtype).itemsize
    spatial = draw(st.integers(1, 3))
    swizzle = draw(st.sampled_from(["none", "32B", "64B", "128B"]))
    channels = 16 * draw(st.integers(1, {"32B": 2, "64B": 4}.get(swizzle, 8))) // itemsize
    limit = (3, 3, 2)[spatial - 1]
    shape = (
        draw(st.integers(1, 3)),
        *draw(st.tuples(*[st.integers(3, 7)] * spatial)),
        channels + draw(st.integers(0, 5)),
    )
    lower = draw(st.tuples(*[st.integers(-limit, 1)] * spatial))
    upper = draw(st.tuples(*[st.integers(-1, limit - 1)] * spatial))
    steps = (1, *draw(st.tuples(*[st.sampled_from([1, 1, 2, 3])] * spatial)), 1)
    strides = [itemsize]
    for n in reversed(shape[1:]):
        strides.insert(0, -(-strides[0] * n // 16) * 16)
    nan = nan_of(dtype) if dtype in NANS and draw(st.booleans()) else None
    box = draw(st.integers(1, 40)), channels
    return Columns(shape, tuple(strides), itemsize, box, steps, swizzle, nan, lower, upper), dtype


def corner_of(data, boxed, lowest=None):
    """Coordinates of a filter inside the bounding box, innermost first."""
    corner = []
    for low, high, n in zip(boxed.lower, boxed.upper, boxed.shape[1:], strict=False):
        corner.append(data.draw(st.integers(low if lowest is None else max(low, lowest), n - 1 + high)))
    image = data.draw(st.integers(0, boxed.shape[0] - 1))
    return (16 // boxed.itemsize * data.draw(st.integers(0, 2)), *corner[::-1], image)


def columns_map(boxed, dtype, array):
    return ptxkit.TensorMap(
        array,
        im2col=ptxkit.Im2col(boxed.lower, boxed.upper, channels=boxed.box[1], pixels=boxed.box[0]),
        swizzle=boxed.swizzle,
        element_strides=boxed.steps,
        oob_fill="nan" if boxed.nan else "zeros",
        shape=boxed.shape,
        strides=boxed.strides,
        dtype=dtype,
    )


@EXAMPLES
@given(st.data())
def test_loads_of_columns(mode, data):
    boxed, dtype = data.draw(columns())
    rank = len(boxed.shape)
    places = [corner_of(data, boxed) for _ in range(2)]
    offsets = data.draw(st.tuples(*[st.integers(0, 3)] * (rank - 2)))
    numbers = np.zeros((2, 8), np.int32)
    for row, place in zip(numbers, places, strict=True):
        row[:rank] = place
        row[5:].view(np.int16)[: rank - 2] = offsets
    buffer, size = random_bytes(11, boxed.buffer_bytes), boxed.shared_bytes + 128
    out, done = np.zeros((2, size), np.uint8), np.zeros(2, np.int32)
    array = mode.upload(buffer, "array")
    kernels(mode)[f"load_columns{rank}"](
        columns_map(boxed, dtype, array),
        numbers,
        out,
        done,
        np.uint32(boxed.nbytes),
        np.uint32(128),
        np.uint32(size),
        grid=2,
        block=64,
        shared=size,
    )
    assert done.all()
    for got, place in zip(out, places, strict=True):
        np.testing.assert_array_equal(got, boxed.load(buffer, (*place, *offsets), 128, size))


@EXAMPLES
@given(st.data())
def test_stores_of_columns(mode, data):
    boxed, dtype = data.draw(columns())
    # PTX ISA, "Restriction on Tensor Copy instructions": the bounding box of a store lies inside the array
    boxed = replace(boxed, lower=tuple(max(n, 0) for n in boxed.lower), upper=tuple(min(n, 0) for n in boxed.upper))
    rank = len(boxed.shape)
    place = corner_of(data, boxed, lowest=0)
    numbers = np.zeros((1, 5), np.int32)
    numbers[0, :rank] = place
    buffer, region = random_bytes(12, boxed.buffer_bytes), random_bytes(13, boxed.shared_bytes)
    array = mode.upload(buffer, "array")
    kernels(mode)[f"store_columns{rank}"](
        columns_map(boxed, dtype, array),
        numbers,
        region,
        np.uint32(0),
        np.uint32(len(region)),
        grid=1,
        block=64,
        shared=len(region),
    )
    expected = buffer.copy()
    boxed.store(expected, (*place, *[0] * (rank - 2)), region, 0)
    np.testing.assert_array_equal(array.numpy(), expected)


# -- reductions ------------------------------------------------------------------------------------------------------

REDUCTIONS = {
    "add": ["uint32", "int32", "uint64", "float16", "float32", "bfloat16"],
    "min": ["uint32", "int32", "uint64", "int64", "float16", "bfloat16"],
    "max": ["uint32", "int32", "uint64", "int64", "float16", "bfloat16"],
    "inc": ["uint32"],
    "dec": ["uint32"],
    "and": ["uint32", "uint64"],
    "or": ["uint32", "uint64"],
    "xor": ["uint32", "uint64"],
}

NAIVE = {
    "add": lambda a, b: a + b,
    "min": np.minimum,
    "max": np.maximum,
    "inc": lambda a, b: 0 if a >= b else a + 1,
    "dec": lambda a, b: b if a == 0 or a > b else a - 1,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@pytest.mark.parametrize(("op", "dtype"), [(op, d) for op in OPERATIONS for d in REDUCTIONS[op]])
def test_reductions(mode, op, dtype):
    kind = dtype_of(dtype)
    boxed = Boxed((9, 40), (40 * kind.itemsize + 16, kind.itemsize), kind.itemsize, (4, 16), (1, 1))
    rng = np.random.default_rng(7)
    coordinates = [(8, 1), (16, 2), (32, 7), (8, 1)]  # across edges and over each other
    regions = rng.integers(0, 50, (4, 4 * 16)).astype(kind).view(np.uint8)
    buffer = np.zeros(boxed.buffer_bytes, np.uint8)
    rows = np.lib.stride_tricks.as_strided(buffer.view(kind), boxed.shape, boxed.strides)
    rows[:] = rng.integers(0, 50, boxed.shape).astype(kind)
    expected, array = buffer.copy(), mode.upload(buffer, "array")

    def combine(old, new):
        with np.errstate(over="ignore"):
            return np.atleast_1d(np.asarray(NAIVE[op](old.view(kind)[0], new.view(kind)[0]), kind)).view(np.uint8)

    for at, region in zip(coordinates, regions, strict=True):
        # one launch each: the order of inc and dec among CTAs would matter
        kernels(mode)[f"reduce_{op}"](
            tensor_map(boxed, dtype, array),
            padded([at]),
            region,
            np.uint32(0),
            np.uint32(len(region)),
            grid=1,
            block=64,
            shared=len(region),
        )
        boxed.store(expected, at, region, 0, combine)
    np.testing.assert_array_equal(array.numpy(), expected)


def load_row(device, bits, dtype, **options):
    """One row of 32-bit values in the form in which a load of that type stores it."""
    array = device.upload(np.ascontiguousarray(bits.reshape(1, -1)))
    out, done = np.zeros(bits.nbytes, np.uint8), np.zeros(1, np.int32)
    size = np.uint32(bits.nbytes)
    m = ptxkit.TensorMap(array, box=(1, bits.size), dtype=dtype, **options)
    kernels(device)["load2"](
        m, padded([(0, 0)]), out, done, size, np.uint32(0), size, grid=1, block=32, shared=int(size)
    )
    assert done[0]
    return out.view(bits.dtype)


TF32 = {
    0x3F800FFF: 0x3F800000,
    0x3F801000: 0x3F800000,
    0x3F801001: 0x3F802000,
    0x3F803000: 0x3F804000,
    0x7F7FFFFF: 0x7F800000,
    0xFF7FFFFF: 0xFF800000,
    0x7F800000: 0x7F800000,
    0x7F800001: 0x7FFFE000,
    0xFFC12345: 0x7FFFE000,
    0x00000001: 0x00000000,
    0x80000001: 0x80000000,
    0x007FFFFF: 0x00800000,
    0x00003000: 0x00004000,
    0x12345678: 0x12346000,
}


def test_tf32_is_rounded_to_nearest_even_and_nothing_else_is_changed(device):
    bits = np.array([*TF32, 0x12345678, 0x80000000], np.uint32)
    expected = np.array([*TF32.values(), 0x12346000, 0x80000000], np.uint32)
    for dtype in ("tfloat32", "tfloat32_ftz"):
        np.testing.assert_array_equal(load_row(device, bits, dtype), expected)
    for dtype in ("float32", "float32_ftz"):
        np.testing.assert_array_equal(load_row(device, bits, dtype), bits)


FLOAT_REDUCTIONS = [
    ("add", "float32", 0x00000001, 0x00000002, 0x00000003),
    ("add", "float32", 0x00800000, 0x80000001, 0x007FFFFF),
    ("add", "float32", 0x7FC00000, 0x3F800000, 0x7FFFFFFF),
    ("add", "float32_ftz", 0x00000001, 0x00000002, 0x00000000),
    ("add", "float32_ftz", 0x80000001, 0x80000001, 0x80000000),
    ("add", "float32_ftz", 0x007FFFFF, 0x00000001, 0x00000000),
    ("add", "float16", 0x03FF, 0x0001, 0x0400),
    ("add", "float16", 0x7E01, 0x3C00, 0x7FFF),
    ("add", "float16", 0x7C00, 0xFC00, 0x7FFF),
    ("min", "float16", 0x0000, 0x8000, 0x8000),
    ("min", "float16", 0x8000, 0x0000, 0x8000),
    ("max", "float16", 0x0000, 0x8000, 0x0000),
    ("max", "float16", 0x8000, 0x0000, 0x0000),
    ("min", "float16", 0x7E01, 0x3C00, 0x3C00),
    ("max", "float16", 0x3C00, 0x7D01, 0x3C00),
    ("add", "bfloat16", 0x0001, 0x0001, 0x0002),
    ("min", "bfloat16", 0x0000, 0x8000, 0x8000),
    ("max", "bfloat16", 0x3C00, 0x7D01, 0x7D01),
    ("add", "bfloat16", 0x7FC1, 0x3F80, 0x7FFF),
    ("add", "bfloat16", 0x7F7F, 0x7F7F, 0x7F80),
    ("min", "bfloat16", 0x7FC1, 0x3F80, 0x3F80),
    ("max", "bfloat16", 0xFFC1, 0xFFC2, 0x7FFF),
    ("min", "float16", 0x7E01, 0x7E02, 0x7FFF),
    ("add", "float32", 0x7F800000, 0xFF800000, 0x7FFFFFFF),
    ("add", "tfloat32", 0x00000001, 0x00000004, 0x00000005),
    ("add", "float64", 0x3FF0000000000000, 0x3FF0000000000000, 0x4000000000000000),
    ("add", "float64", 0x7FF8000000000001, 0x3FF0000000000000, 0x7FF8000000000001),
]
"""(operation, type, what was there, what is combined with it, what an H200 leaves)."""


@pytest.mark.parametrize(("op", "dtype", "old", "new", "expected"), FLOAT_REDUCTIONS)
def test_reductions_of_floats_bit_for_bit(device, op, dtype, old, new, expected):
    kind = np.dtype(f"u{NANS.get(dtype, 4)}")
    count = 128 // kind.itemsize
    array = device.upload(np.full((1, count), old, kind))
    region = np.full(count, new, kind).view(np.uint8)
    m = ptxkit.TensorMap(array, box=(1, count), dtype=dtype)
    zero, size = np.uint32(0), np.uint32(128)
    kernels(device)[f"reduce_{op}"](m, padded([(0, 0)]), region, zero, size, grid=1, block=32, shared=128)
    assert {hex(v) for v in array.numpy().ravel().tolist()} == {hex(expected)}


@pytest.mark.parametrize(
    ("op", "dtype"),
    [("add", "uint16"), ("add", "int64"), ("min", "float32"), ("and", "float32"), ("inc", "int32"), ("xor", "int64")],
)
def test_reductions_that_do_not_exist(op, dtype):
    device = EmulatedDevice()
    array = device.upload(np.zeros((1, 16), dtype))
    m = ptxkit.TensorMap(array, box=(1, 16), dtype=dtype)
    region = np.zeros(array.nbytes, np.uint8)
    sizes = np.uint32(0), np.uint32(len(region))
    with pytest.raises(TrapError, match=f"{op} does not take elements of type"):
        kernels(device)[f"reduce_{op}"](m, padded([(0, 0)]), region, *sizes, grid=1, block=32, shared=len(region))


# -- several CTAs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masks", [(0b1111, 0b1111, 0b1111, 0b1111), (0b1010, 0, 0b0001, 0b0110), (0, 0, 0, 0b1000)])
def test_multicast(mode, masks):
    x = np.random.default_rng(3).random((64, 32)).astype(np.float32)
    grid, nbytes = 8, 4 * 128
    out, done = np.zeros((grid, 4, nbytes), np.uint8), np.zeros(grid, np.int32)
    m = ptxkit.TensorMap(mode.upload(x), box=(4, 32))
    chosen = np.array(masks, np.uint16)
    kernels(mode)["multicast"](
        m, out, done, np.uint32(nbytes), chosen, grid=grid, block=32, shared=4 * nbytes, cluster=4
    )
    assert done.all()
    for cta in range(grid):
        for sender in range(4):
            sent = masks[sender] >> cta % 4 & 1
            row = (cta // 4 * 4 + sender) * 4
            expected = x[row : row + 4].view(np.uint8).ravel() if sent else np.full(nbytes, POISON, np.uint8)
            np.testing.assert_array_equal(out[cta, sender], expected)


def test_ctas_may_use_different_maps_and_places(mode):
    text = """
    extern "C" __global__ void choose(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, u8* out) {
      __shared__ unsigned long long barrier;
      const u32 bar = shared(&barrier), to = shared(region) + blockIdx.x * 128;
      const CUtensorMap* map = blockIdx.x % 2 ? &a : &b;
      init(bar);
      __syncthreads();
      if (threadIdx.x == 0) {
        expect(bar, 1024);
        load_2d(to, map, bar, 0, blockIdx.x);
      }
      wait(bar);
      for (u32 i = threadIdx.x; i < 1024; i += blockDim.x) out[blockIdx.x * 1024 + i] = region[blockIdx.x * 128 + i];
    }"""
    choose = ptxkit.compile(HEAD + text, device=mode, target="sm_90a")["choose"]
    rng = np.random.default_rng(4)
    buffers = [rng.integers(0, 256, 40 * 128, np.uint8) for _ in range(2)]
    kinds = [
        Boxed((40, 32), (128, 4), 4, (8, 32), (1, 1), "128B"),
        Boxed((40, 32), (128, 4), 4, (16, 16), (1, 1), "64B"),
    ]
    maps = [tensor_map(k, "float32", mode.upload(b)) for k, b in zip(kinds, buffers, strict=True)]
    out = np.zeros((10, 1024), np.uint8)
    choose(*maps, out, grid=10, block=32, shared=4096)
    for cta in range(10):
        k = 0 if cta % 2 else 1
        region = kinds[k].load(buffers[k], (0, cta), cta * 128, cta * 128 + 1024)
        np.testing.assert_array_equal(out[cta], region[cta * 128 :])


# -- maps that a kernel makes ----------------------------------------------------------------------------------------


def test_a_map_gets_another_address(mode):
    x, y = (np.random.default_rng(s).random((16, 32)).astype(np.float32) for s in (5, 6))
    m = ptxkit.TensorMap(mode.upload(x), box=(4, 32))
    out, done, nbytes = np.zeros(512, np.uint8), np.zeros(1, np.int32), np.uint32(512)
    scratch = mode.empty(128, np.uint8)
    kernels(mode)["readdress"](m, scratch, mode.upload(y), out, done, nbytes, grid=1, block=32, shared=512)
    assert done[0]
    np.testing.assert_array_equal(out.view(np.float32).reshape(4, 32), y[:4])


def test_a_map_made_in_the_kernel(mode):
    buffer = random_bytes(8, 5 * 64)
    boxed = Boxed((5, 16), (64, 4), 4, (4, 16), (2, 1), "64B", nan_of("float32"))
    out, done, nbytes = np.zeros(boxed.nbytes, np.uint8), np.zeros(1, np.int32), np.uint32(boxed.nbytes)
    scratch = mode.empty(128, np.uint8)
    sizes = np.uint32(16), np.uint32(5)
    kernels(mode)["build"](
        scratch, mode.upload(buffer), *sizes, out, done, nbytes, grid=1, block=32, shared=boxed.nbytes
    )
    assert done[0]
    np.testing.assert_array_equal(out, boxed.load(buffer, (0, 0), 0, boxed.nbytes))


def test_a_map_in_global_memory(mode):
    buffer = random_bytes(9, 8 * 128)
    boxed = Boxed((8, 32), (128, 4), 4, (4, 32), (1, 1), "128B")
    text = """
    extern "C" __global__ void by_pointer(const CUtensorMap* map, u8* out) {
      __shared__ unsigned long long barrier;
      const u32 bar = shared(&barrier);
      init(bar);
      __syncthreads();
      if (threadIdx.x == 0) {
        asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" :: "l"(map + 1) : "memory");
        asm volatile("prefetch.tensormap [%0];" :: "l"(map + 1) : "memory");
        expect(bar, 512);
        load_2d(shared(region), map + 1, bar, 0, 2);
      }
      wait(bar);
      for (u32 i = threadIdx.x; i < 512; i += blockDim.x) out[i] = region[i];
    }"""
    kernel = ptxkit.compile(HEAD + text, device=mode, target="sm_90a")["by_pointer"]
    array = mode.upload(buffer)
    maps = mode.upload(np.stack([np.zeros(128, np.uint8), tensor_map(boxed, "float32", array).encode(mode)]))
    out = np.zeros(512, np.uint8)
    kernel(maps, out, grid=1, block=32, shared=512)
    np.testing.assert_array_equal(out, boxed.load(buffer, (0, 2), 0, 512))


# -- faults, which a GPU answers with the loss of its context --------------------------------------------------------


def launch_load(m, device, rank=2, at=(0, 0), to=0, nbytes=512, size=1024, wait_for=None):
    out, done = np.zeros(size, np.uint8), np.zeros(1, np.int32)
    numbers = np.uint32(wait_for or nbytes), np.uint32(to), np.uint32(size)
    kernels(device)[f"load{rank}"](m, padded([at]), out, done, *numbers, grid=1, block=32, shared=size)
    return done[0]


@pytest.fixture
def emulator():
    return EmulatedDevice()


def map_of(device, **options):
    return ptxkit.TensorMap(device.upload(np.zeros((8, 32), np.float32), "x"), **({"box": (4, 32)} | options))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"to": 64}, MemoryFault, ["misaligned", "multiple of 128", "thread (0, 0, 0) of CTA (0, 0, 0)"]),
        ({"to": 640}, MemoryFault, ["outside the", "bytes of shared memory"]),
        ({"at": (2, 0)}, MemoryFault, ["reads a box at column 2, 8 bytes into a row", "multiple of 16"]),
        ({"rank": 3, "at": (0, 0, 0)}, TrapError, ["the tensor map has 2 dimensions, the instruction 3"]),
    ],
)
def test_loads_that_cannot_be(emulator, changes, error, words):
    with pytest.raises(error) as caught:
        launch_load(map_of(emulator), emulator, **changes)
    for word in ["cp.async.bulk.", "source.cu", *words]:
        assert word in str(caught.value)


def test_a_map_of_more_than_the_array_is_found(emulator):
    m = map_of(emulator, shape=(9, 32))
    launch_load(m, emulator, at=(0, 4))
    with pytest.raises(
        MemoryFault, match=r"reads a box at \(0, 5\) in a tensor map of 9 x 32 .f32: .*past the end of 'x'"
    ):
        launch_load(m, emulator, at=(0, 5))


def test_a_store_at_negative_coordinates_is_refused(emulator):
    region = np.zeros(512, np.uint8)
    with pytest.raises(MemoryFault, match=r"writes a box at \(0, -1\); .*at least 0"):
        kernels(emulator)["store2"](
            map_of(emulator), padded([(0, -1)]), region, np.uint32(0), np.uint32(512), grid=1, block=32, shared=512
        )


def test_bytes_that_are_no_map(emulator):
    with pytest.raises(TrapError, match="no tensor map"):
        launch_load(b"\1" * 128, emulator)


def test_a_barrier_gets_the_bytes_of_the_whole_box(emulator):
    assert launch_load(map_of(emulator), emulator, at=(16, -3))
    assert not launch_load(map_of(emulator), emulator, wait_for=256)  # the kernel stops trying after a second


def test_a_missing_wait_shows_in_the_mode_that_is_latest_legal(emulator):
    text = """
    extern "C" __global__ void impatient(const __grid_constant__ CUtensorMap map, u8* out) {
      __shared__ unsigned long long barrier;
      const u32 bar = shared(&barrier);
      init(bar);
      __syncthreads();
      if (threadIdx.x == 0) {
        expect(bar, 512);
        load_2d(shared(region), &map, bar, 0, 0);
      }
      __syncthreads();
      for (u32 i = threadIdx.x; i < 512; i += blockDim.x) out[i] = region[i];
    }"""
    impatient = ptxkit.compile(HEAD + text, device=emulator, target="sm_90a")["impatient"]
    m = ptxkit.TensorMap(emulator.upload(np.ones((8, 32), np.float32)), box=(4, 32))
    results = {}
    for mode in MODES:
        out = np.zeros(512, np.uint8)
        impatient(m, out, grid=1, block=32, shared=512, settings=EmulatorSettings(completion=mode))
        results[mode] = set(out.view(np.float32).tolist())
    assert results["eager"] == {1.0}
    assert 1.0 not in results["latest-legal"]


def test_bytes_moved_are_counted(emulator):
    launch_load(map_of(emulator), emulator, at=(16, 6))
    assert emulator.counters.async_bytes == {"global_to_shared": 2 * 16 * 4}  # what lies inside the array
    assert emulator.counters.async_sectors == {"global_to_shared": 2 * 2}


@pytest.mark.parametrize("wait", [0, 1])
def test_a_box_that_a_whole_warp_stores_counts_once(mode, wait):
    """As in CUTLASS's epilogues, which wait only until the source has been read before they write the next box there."""
    text = """
    extern "C" __global__ void store_warp(const __grid_constant__ CUtensorMap map) {
      for (u32 box = 0; box < 4; ++box) {
        const u32 at = WAIT ? box % 2 * 512 : 0;
        for (u32 i = threadIdx.x; i < 512; i += blockDim.x) region[at + i] = (u8)(box + 1);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (threadIdx.x < 32) {
          asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                       :: "l"(&map), "r"(0), "r"(box * 4), "r"(shared(region) + at) : "memory");
          asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read WAIT;" ::: "memory");
        }
        __syncthreads();
      }
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }"""
    program = ptxkit.compile(HEAD + text.replace("WAIT", str(wait)), device=mode, target="sm_90a")
    array = mode.upload(np.zeros((16, 128), np.uint8))
    if mode.kind == "emulator":
        mode.reset_counters()
    program["store_warp"](ptxkit.TensorMap(array, box=(4, 128)), grid=1, block=64, shared=1024)
    expected = np.repeat(np.arange(1, 5, dtype=np.uint8), 4)[:, None] + np.zeros(128, np.uint8)
    np.testing.assert_array_equal(array.numpy(), expected)
    if mode.kind == "emulator":
        assert mode.counters.async_bytes == {"shared_to_global": 4 * 512}
        assert mode.counters.async_sectors == {"shared_to_global": 4 * 16}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_traps_report_what_a_reduction_produces(mode, dtype):
    kind = dtype_of(dtype)
    boxed = Boxed((4, 16), (16 * kind.itemsize, kind.itemsize), kind.itemsize, (4, 16), (1, 1))
    most = np.full((4, 16), ml_dtypes.finfo(kind).max, kind)

    def launch(value, *traps):
        array = mode.upload(most.view(np.uint8).reshape(-1), "array")
        region = np.full(64, value, kind).view(np.uint8)
        arguments = tensor_map(boxed, dtype, array), padded([(0, 0)]), region, np.uint32(0), np.uint32(len(region))
        with mode.settings(trap=traps):
            kernels(mode)["reduce_add"](*arguments, grid=1, block=64, shared=len(region))

    launch(-1, "nan", "inf")
    launch(np.inf, "inf")
    with pytest.raises(ArithmeticTrap, match="cp.reduce.async.bulk.tensor.*computes an infinity, and no operand is one"):
        launch(ml_dtypes.finfo(kind).max, "inf")
