"""The arrays that a pointer accepts, by its type from the mangled name or the source."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ptxkit
from ptxkit.errors import LaunchError
from ptxkit.isa.parameter_types import parameter_types
from ptxkit.runtime.elements import dtype_of, element_of, numpy_dtype

ALL = [np.dtype(t) for t in "? i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8 c8 c16".split()]
ALL += [
    np.dtype(t) for t in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu)
]
PACKED = "int8 uint8 int16 uint16 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e8m0fnu"
RAW_ACCESS = PACKED + " bool int32 uint32 float32"


def accepted(mangled_type: str) -> set[str] | None:
    types = parameter_types(f"_Z1kP{mangled_type}")
    assert types is not None
    element = element_of(types[0].pointee)
    return None if element is None else {d.name for d in ALL if element.objection(d, 16 * 15) is None}


@pytest.mark.parametrize(
    ("mangled", "names"),
    [
        ("f", "float32 complex64"),
        ("Kf", "float32 complex64"),
        ("VKf", "float32 complex64"),
        ("A4_f", "float32 complex64"),
        ("d", "float64 complex128"),
        ("6__half", "float16 uint16"),
        ("DF16_", "float16 uint16"),
        ("13__nv_bfloat16", "bfloat16 uint16"),
        ("13__nv_fp8_e4m3", "float8_e4m3fn uint8"),
        ("13__nv_fp8_e5m2", "float8_e5m2 uint8"),
        ("b", "bool uint8 int8"),
        ("a", "int8 uint8 bool"),
        ("s", "int16 uint16"),
        ("t", "int16 uint16 float16 bfloat16"),
        ("i", "int32 uint32"),
        ("j", "int32 uint32 " + PACKED),
        ("l", "int64 uint64"),
        ("m", "int64 uint64"),
        ("x", "int64 uint64"),
        ("y", "int64 uint64"),
        ("Pf", "int64 uint64"),
        ("6float4", "float32 complex64"),
        ("6float2", "float32 complex64 uint64"),
        ("7double2", "float64 complex128"),
        ("7__half2", "float16 uint16 uint32"),
        ("14__nv_bfloat162", "bfloat16 uint16 uint32"),
        ("6short2", "int16 uint16 uint32"),
        ("5char4", "int8 uint8 bool uint32"),
        ("9longlong2", "int64 uint64"),
        ("4int2", RAW_ACCESS + " uint64"),
        ("5uint4", RAW_ACCESS),
        ("4int3", "int32 uint32"),
    ],
)
def test_what_a_pointer_takes(mangled, names):
    assert accepted(mangled) == set(names.split())


@pytest.mark.parametrize("mangled", ["v", "c", "h", "4Pair", "N2ns6float4E", "6uchar4", "FvvE"])
def test_raw_memory_and_structures_take_everything(mangled):
    assert accepted(mangled) is None


def element(cpp: str):
    return element_of(parameter_types(f"_Z1kP{cpp}")[0].pointee)


def test_a_vector_takes_whole_vectors():
    f4 = np.dtype(np.float32)
    assert element("6float4").objection(f4, 32) is None and element("6float4").objection(f4, 0) is None
    assert element("6float4").objection(f4, 36) == "pass a multiple of 16 bytes; it has 36"
    assert element("j").objection(np.dtype(np.uint8), 6) == "pass a multiple of 4 bytes; it has 6"


def test_records_consist_of_the_right_numbers():
    assert element("6float2").objection(np.dtype([("x", "f4"), ("y", "f4")]), 8) is None
    assert element("6float2").objection(np.dtype([("x", "f4"), ("y", "f8")]), 12) is not None
    assert element("f").objection(np.dtype([("x", "f4", (3,))]), 12) is None
    assert element("f").objection(np.dtype("V4"), 4) is None
    assert element("l").objection(np.dtype("M8[ns]"), 8) is None


def test_swapped_bytes_are_refused():
    assert "its bytes are swapped" in element("f").objection(np.dtype(">f4"), 4)


def test_the_fix_is_named():
    assert element("f").objection(np.dtype("f8"), 8) == "pass an array of float32 (dtype=np.float32)"
    assert ".view(np.float32) of it" in element("f").objection(np.dtype("i4"), 4)
    assert "dtype=ml_dtypes.bfloat16" in element("13__nv_bfloat16").objection(np.dtype("f4"), 4)
    assert "dtype=np.bool_" in element("b").objection(np.dtype("f4"), 4)


class Torchlike:
    """An array with a type attribute as that of torch."""

    def __init__(self, name, interface=None):
        self.dtype = name
        if interface is not None:
            self.__cuda_array_interface__ = interface


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (Torchlike("torch.float32"), "float32"),
        (Torchlike("torch.bfloat16"), "bfloat16"),
        (Torchlike("torch.float8_e4m3fn"), "float8_e4m3fn"),
        (Torchlike("torch.complex64"), "complex64"),
        (Torchlike("torch.bool"), "bool"),
        (Torchlike("?", {"typestr": "<f8"}), "float64"),
        (Torchlike(np.dtype("i2"), {"typestr": "<i2"}), "int16"),
        (Torchlike("torch.bfloat16", {"typestr": "<V2"}), "bfloat16"),
        (Torchlike("mine.decimal"), None),
        (Torchlike("torch.bits8", {}), None),
        (object(), None),
    ],
)
def test_the_type_of_another_librarys_array(value, dtype):
    assert dtype_of(value) == (None if dtype is None else numpy_dtype(dtype))


class Dlpack:
    """A host array of another library."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


KERNELS = [
    "__global__ void k(const float* __restrict__ x) {}",
    "template <class T> __global__ void k(const T* const x) {}\ntemplate __global__ void k<float>(const float* const);",
    "namespace a { using real = float; __global__ void k(const real* x) {} }\n",
    'extern "C" __global__ void k(const float* __restrict__ x) {}\n',
    'typedef float real;\nextern "C" __global__ void k(real const *x) {}\n',
    'extern "C" {\n__global__ void k(volatile FLOAT x[]) {}\n}',
    'extern "C" __global__ void __launch_bounds__(64) k(float4* x) {}\n',
]


@pytest.mark.parametrize("source", KERNELS)
@pytest.mark.parametrize("wrap", [np.asarray, Dlpack, "upload"])
def test_float64_for_float_is_refused_by_name(device, source, wrap):
    kernel = ptxkit.compile(source + "\n", device=device, defines={"FLOAT": "float"})["k"]
    place = device.upload if wrap == "upload" else wrap
    kernel(place(np.zeros(8, np.float32)), grid=1, block=1)
    for dtype in ("f8", "i8", "?", "f2", "i4"):
        with pytest.raises(LaunchError, match=r"^k: argument 1 'x' \(.*float4?\*\) got .*; pass an array of float32"):
            kernel(place(np.zeros(8, dtype)), grid=1, block=1)


def test_ptx_by_hand_takes_every_array(device):
    text = """
    .version 7.5
    .target sm_75
    .address_size 64
    .visible .entry k(.param .u64 x) { .reg .b64 %d; ld.param.u64 %d, [x]; cvta.to.global.u64 %d, %d; ret; }
    """
    for dtype in ("f8", "f4", "?", "u1"):
        ptxkit.compile(text, device=device)["k"](np.zeros(8, dtype), grid=1, block=1)
