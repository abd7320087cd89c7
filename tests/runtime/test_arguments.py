"""A valid argument arrives bit for bit; an invalid one is an error that names what to pass."""

from __future__ import annotations

import ctypes
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.errors import LaunchError
from ptxkit.runtime.arguments import bind
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.runtime.parameters import Parameter

DEVICE = EmulatedDevice()


def parameter(kind, dtype=None, size=None, known=True, name="v"):
    dtype = None if dtype is None else np.dtype(dtype)
    return Parameter(0, name, kind, dtype, size or (dtype.itemsize if dtype else 8), 0, 1, known)


def packed(p, value):
    return bytes(bind("k", (p,), (value,), DEVICE).buffer)


def refused(p, value, *words):
    with pytest.raises(LaunchError) as caught:
        bind("k", (p,), (value,), DEVICE)
    message = str(caught.value)
    assert message.startswith(f"k: {p.label}") and "\n" not in message
    for word in words:
        assert word in message, message


POINTER = parameter("pointer", name="x")
FLOAT = parameter("float", "f4")
INT = parameter("int", "i4")
UNSIGNED = parameter("int", "u4")
EITHER = parameter("int", "i4", known=False)
LONG_OR_POINTER = parameter("int", "i8", known=False)
BOOL = parameter("int", "?")
BITS = parameter("bits", size=4, known=False)
WORD = parameter("word", size=8)
STRUCT = parameter("struct", size=12)
BFLOAT = parameter("float", ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("p", "value", "expected"),
    [
        (FLOAT, np.float32(1.5), struct.pack("<f", 1.5)),
        (FLOAT, 1.5, struct.pack("<f", 1.5)),
        (FLOAT, 0.1, struct.pack("<f", 0.1)),
        (FLOAT, np.array(2, np.float32), struct.pack("<f", 2)),
        (BFLOAT, ml_dtypes.bfloat16(1), b"\x80\x3f"),
        (BFLOAT, 1.0, b"\x80\x3f"),
        (INT, np.int32(-5), struct.pack("<i", -5)),
        (INT, -(2**31), struct.pack("<i", -(2**31))),
        (INT, np.uint32(7), struct.pack("<i", 7)),
        (UNSIGNED, 2**32 - 1, b"\xff" * 4),
        (EITHER, -1, b"\xff" * 4),
        (EITHER, 2**32 - 1, b"\xff" * 4),
        (EITHER, np.uint32(2**32 - 1), b"\xff" * 4),
        (BOOL, True, b"\1"),
        (BOOL, np.bool_(False), b"\0"),
        (BITS, np.float32(1), struct.pack("<f", 1)),
        (BITS, np.int32(-1), b"\xff" * 4),
        (BITS, 3, struct.pack("<i", 3)),
        (POINTER, np.uint64(0), bytes(8)),
        (POINTER, None, bytes(8)),
        (POINTER, np.uint64(2**63), struct.pack("<Q", 2**63)),
        (WORD, np.uint64(5), struct.pack("<Q", 5)),
        (WORD, np.int64(-5), struct.pack("<q", -5)),
        (LONG_OR_POINTER, 2**40, struct.pack("<q", 2**40)),
        (STRUCT, b"abcdefghijkl", b"abcdefghijkl"),
        (STRUCT, np.array([1, 2, 3], np.float32), struct.pack("<3f", 1, 2, 3)),
        (STRUCT, (ctypes.c_int * 3)(1, 2, 3), struct.pack("<3i", 1, 2, 3)),
        (STRUCT, np.array((1, 2), np.dtype([("a", "f8"), ("b", "i4")]))[()], struct.pack("<di", 1, 2)),
    ],
)
def test_what_fits(p, value, expected):
    assert packed(p, value) == expected


@pytest.mark.parametrize(
    ("p", "value", "words"),
    [
        (POINTER, 1.5, ["'x' (pointer) got a Python float", "None for a null pointer"]),
        (POINTER, 5, ["got a Python int"]),
        (POINTER, 0, ["got a Python int"]),
        (POINTER, np.int64(0), ["got a numpy int64"]),
        (POINTER, np.float32(0), ["got a numpy float32"]),
        (POINTER, [1.0, 2.0], ["got a Python list"]),
        (POINTER, "x", ["got a Python str"]),
        (POINTER, np.array([None]), ["an array of object", "an array of numbers"]),
        (POINTER, np.zeros((4, 4))[:, ::2], ["not C-contiguous", "ascontiguousarray"]),
        (WORD, 5, ["got a Python int", "or np.int64 if it is a number"]),
        (FLOAT, np.float64(1), ["got a numpy float64", "np.float32(...)"]),
        (FLOAT, 1, ["got a Python int", "np.float32(...)"]),
        (FLOAT, True, ["got a Python bool"]),
        (FLOAT, np.int32(1), ["np.float32(...)"]),
        (FLOAT, np.zeros(3, np.float32), ["an array of float32"]),
        (POINTER, np.ma.masked_array([1.0, 2.0], mask=[0, 1]), ["'x' (pointer) got a masked array", ".filled(value)"]),
        (BFLOAT, np.float32(1), ["ml_dtypes.bfloat16(...)"]),
        (INT, np.int64(1), ["got a numpy int64", "np.int32(...)"]),
        (INT, 1.0, ["got a Python float", "np.int32(...)"]),
        (INT, True, ["got a Python bool"]),
        (INT, 2**31, ["cannot hold 2147483648"]),
        (FLOAT, 1e39, ["cannot hold 1e+39"]),
        (INT, np.uint32(2**31), ["a value that int32 can hold, not 2147483648"]),
        (INT, None, ["got None"]),
        (UNSIGNED, -1, ["cannot hold -1"]),
        (UNSIGNED, np.int32(-1), ["uint32 can hold, not -1"]),
        (EITHER, 2**32, ["cannot hold"]),
        (EITHER, np.float32(1), ["np.int32(...)"]),
        (BOOL, 1, ["True, False or np.bool_"]),
        (BITS, 1.0, ["a numpy scalar of 4 bytes"]),
        (BITS, np.float64(1), ["a numpy scalar of 4 bytes"]),
        (STRUCT, b"abc", ["got 3 bytes"]),
        (STRUCT, 5, ["got a Python int", "12 bytes"]),
        (STRUCT, np.zeros(4, np.float32), ["got 16 bytes"]),
    ],
)
def test_what_does_not_fit(p, value, words):
    refused(p, value, *words)


NUMBERS = st.one_of(
    st.integers(-(2**65), 2**65), st.floats(), st.booleans(),
    st.builds(lambda t, v: np.array(v).astype(t)[()], st.sampled_from(["i1", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]),
              st.integers(-128, 127)),
)  # fmt: skip


@given(NUMBERS, st.sampled_from(["i1", "u1", "i2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]))
def test_a_number_arrives_as_it_is_or_not_at_all(value, dtype):
    p = parameter("float" if dtype[0] == "f" else "int", dtype)
    try:
        data = packed(p, value)
    except LaunchError:
        return
    got = np.frombuffer(data, dtype)[0]
    with np.errstate(over="ignore"):
        wanted = value if dtype[0] != "f" else np.array(value).astype(dtype)[()]
    assert got == wanted or (got != got and wanted != wanted)


def test_arguments_land_at_their_offsets():
    ps = (
        Parameter(0, "a", "int", np.dtype("i1"), 1, 0, 1),
        Parameter(1, "b", "float", np.dtype("f8"), 8, 8, 8),
        Parameter(2, "c", "struct", None, 3, 16, 1),
    )
    bound = bind("k", ps, (1, 2.0, b"xyz"), DEVICE)
    assert bytes(bound.buffer) == b"\1" + bytes(7) + struct.pack("<d", 2) + b"xyz"


@pytest.mark.parametrize("values", [(), (1,), (1, 2, 3)])
def test_a_wrong_count_lists_the_parameters(values):
    ps = (INT, parameter("pointer", name="out"))
    with pytest.raises(LaunchError, match=rf"^k takes 2 arguments, got {len(values)}: v \(int32\), out \(pointer\)$"):
        bind("k", ps, values, DEVICE)


def test_an_array_for_a_parameter_of_32_bits_in_ptx_is_said_to_have_no_address_of_that_size():
    refused(INT, np.zeros(4, np.float32), "got an array of float32", "PTX with 32-bit addresses can take no array", "np.int32")
    with pytest.raises(LaunchError, match=r"got an array of float32; pass np.int32\(...\)$"):  # C++ says that it is a number
        bind("k", (Parameter(0, "n", "int", np.dtype("i4"), 4, 0, 4, True, "int"),), (np.zeros(4, np.float32),), DEVICE)


def test_device_arrays_pass_their_address_and_live_as_long_as_the_launch():
    array = DEVICE.upload(np.zeros(4))
    bound = bind("k", (POINTER,), (array,), DEVICE)
    assert bytes(bound.buffer) == struct.pack("<Q", array.address)
    assert array in bound.keep


def test_an_array_of_another_device_is_refused():
    refused(POINTER, EmulatedDevice().upload(np.zeros(4)), "upload it there")


def test_a_pointer_that_the_kernel_does_not_use_takes_arrays():
    array = DEVICE.upload(np.zeros(4))
    assert packed(LONG_OR_POINTER, array) == struct.pack("<Q", array.address)
    assert len(bind("k", (LONG_OR_POINTER,), (np.zeros(4),), DEVICE).host) == 1


class Exporter:
    """An array of another library, with DLPack alone."""

    def __init__(self, array, kind=1):
        self.array, self.kind = array, kind

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


class OnGpu:
    __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3}


def test_other_libraries_arrays_in_host_memory_are_taken_like_numpys():
    array = np.zeros(4, np.float32)
    ((_, host),) = bind("k", (POINTER,), (Exporter(array),), DEVICE).host
    assert np.shares_memory(host, array) and host.flags.writeable


@pytest.mark.parametrize("value", [Exporter(np.zeros(4), kind=2), OnGpu()])
def test_arrays_on_a_gpu_are_refused_by_the_emulator(value):
    refused(POINTER, value, "in a GPU's memory")


def test_partly_shared_memory_is_refused():
    base = np.zeros(10)
    ps = (parameter("pointer", name="x"), Parameter(1, "y", "pointer", None, 8, 8, 8))
    with pytest.raises(LaunchError, match=r"argument 2 'y' \(pointer\) shares part of its memory"):
        bind("k", ps, (base[:6], base[4:]), DEVICE)
    assert len(bind("k", ps, (base[:5], base[5:]), DEVICE).host) == 2
    assert len(bind("k", ps, (base, base.reshape(2, 5)), DEVICE).host) == 2
