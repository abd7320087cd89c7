"""printf, malloc and free of device code."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ptxkit
from ptxkit.emulator.instructions.builtins import format_printf
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import MemoryFault, UsageError
from ptxkit.runtime.emulated import EmulatedDevice

LIBC = ctypes.CDLL(None)
FLAGS = st.lists(st.sampled_from("-+ #0"), max_size=3).map("".join)
WIDTH = st.one_of(st.just(""), st.integers(1, 30).map(str))
PRECISION = st.one_of(st.just(""), st.just("."), st.integers(0, 25).map(lambda n: f".{n}"))


def printed(conversion: str, value) -> str:
    """What glibc prints, as cudart does on the host."""
    buffer = ctypes.create_string_buffer(2000)
    LIBC.snprintf(buffer, ctypes.c_size_t(len(buffer)), conversion.encode(), value)
    return buffer.value.decode("latin-1")


@settings(max_examples=400, deadline=None)
@given(
    FLAGS,
    WIDTH,
    PRECISION,
    st.sampled_from(["", "hh", "h", "l", "ll", "z", "j", "t"]),
    st.sampled_from("diouxX"),
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-300, 300)),
)
@example("#", "", "", "", "o", 8)
@example("0", "8", ".3", "", "d", 5)
def test_integers_are_printed_as_in_c(flags, width, precision, length, what, value):
    conversion = f"%{flags}{width}{precision}{length}{what}"
    wide = length in ("l", "ll", "z", "j", "t")
    bits = value & (2**64 - 1 if wide else 2**32 - 1)
    given_value = ctypes.c_uint64(bits) if wide else ctypes.c_uint32(bits)
    assert format_printf(f"<{conversion}>", bits.to_bytes(8, "little"), str) == f"<{printed(conversion, given_value)}>"


@settings(max_examples=400, deadline=None)
@given(
    FLAGS,
    WIDTH,
    PRECISION,
    st.sampled_from("fFeEgGaA"),
    st.one_of(
        st.floats(allow_nan=False),
        st.floats(-1000, 1000),
        st.sampled_from([0.0, -0.0, 1.0, 0.5, float("inf"), -float("inf"), float("nan"), 5e-324, 1.5]),
    ),
)
@example("#", "", ".0", "a", 1.0)
@example("0", "8", "", "f", float("inf"))
def test_numbers_are_printed_as_in_c(flags, width, precision, what, value):
    conversion = f"%{flags}{width}{precision}{what}"
    want = printed(conversion, ctypes.c_double(value))
    assert format_printf(conversion, struct.pack("<d", value), str) == want


@pytest.mark.parametrize("conversion", ["%s", "%10s", "%-10s|", "%.3s", "%8.2s", "%c", "%5c", "%-5c|", "%p", "%20p", "%-20p|"])
def test_text_is_printed_as_in_c(conversion):
    if "s" in conversion:
        assert format_printf(conversion, bytes(8), lambda _: "letters") == printed(conversion, ctypes.c_char_p(b"letters"))
    elif "c" in conversion:
        assert format_printf(conversion, struct.pack("<i", 65), str) == printed(conversion, ctypes.c_int(65))
    else:
        for address in (0, 0x7F00_1234_5678):
            want = printed(conversion, ctypes.c_void_p(address))
            assert format_printf(conversion, struct.pack("<Q", address), str) == want


def test_widths_and_precisions_may_be_arguments():
    arguments = struct.pack("<iiiii4xd", 6, 42, -6, 42, 3, 3.14159)
    assert format_printf("%*d|%*d|%.*f|%%", arguments, str) == "    42|42    |3.142|%"


PROGRAM = """
#include <cstdio>
extern "C" __global__ void results(int* y) { y[0] = printf("%d %%\\n", 5); y[1] = printf("none\\n"); }
extern "C" __global__ void fill(int* y) {
    int n = 0;
    while (n < 1000 && malloc(1 << 16)) ++n;
    y[0] = n;
}
extern "C" __global__ void reuse(int* y) {
    int n = 0;
    for (; n < 1000; ++n) { void* p = malloc(1 << 16); if (!p) break; free(p); }
    y[0] = n;
}
extern "C" __global__ void objects(int* y) {
    struct Base { virtual __device__ int f(int x) const = 0; virtual __device__ ~Base() {} };
    struct Add : Base { int by; __device__ Add(int by) : by(by) {} __device__ int f(int x) const override { return x + by; } };
    struct Mul : Base { __device__ int f(int x) const override { return x * 2; } };
    const Base* b = threadIdx.x % 2 ? static_cast<Base*>(new Add(100)) : new Mul;
    y[threadIdx.x] = b->f(threadIdx.x);
    delete b;
}
extern "C" __global__ void twice(int* y) { void* p = malloc(16); free(p); free(p); }
extern "C" __global__ void inside(int* y) { char* p = (char*)malloc(16); free(p + 4); }
extern "C" __global__ void array(int* y) { free(y); }
"""


@pytest.fixture(scope="module")
def module():
    return ptxkit.compile(PROGRAM, device=EmulatedDevice())


def test_printf_returns_the_number_of_its_arguments(device):
    y = np.full(2, 7, np.int32)
    ptxkit.compile(PROGRAM, device=device)["results"](y, grid=1, block=1)
    assert y.tolist() == [1, 0]


def test_virtual_functions_of_new_objects(device):
    y = np.zeros(32, np.int32)
    ptxkit.compile(PROGRAM, device=device)["objects"](y, grid=1, block=32)
    lane = np.arange(32)
    np.testing.assert_array_equal(y, np.where(lane % 2, lane + 100, lane * 2))


@pytest.mark.parametrize(("heap", "count"), [(8 << 20, 128), (1 << 20, 16), (0, 0), ((1 << 20) + 5, 16)])
def test_malloc_returns_null_when_the_heap_is_full(heap, count):
    device = EmulatedDevice(settings=EmulatorSettings(heap_bytes=heap))
    loaded = ptxkit.compile(PROGRAM, device=device)
    y = np.zeros(1, np.int32)
    loaded["fill"](y, grid=1, block=1)
    assert y[0] == count
    loaded["fill"](y, grid=1, block=1)
    assert y[0] == 0, "what one launch has allocated, the next one does not have"


def test_freed_memory_is_allocated_again(module):
    y = np.zeros(1, np.int32)
    module["reuse"](y, grid=1, block=1, settings=EmulatorSettings(heap_bytes=1 << 16))
    assert y[0] == 1000


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        ("twice", r"0 bytes into 'device malloc' \(16 bytes\), which was freed"),
        ("inside", r"4 bytes into 'device malloc' \(16 bytes\)"),
        ("array", r"0 bytes into 'y' \(4 bytes\)"),
    ],
)
def test_wrong_frees_are_errors(module, kernel, why):
    with pytest.raises(MemoryFault, match=rf"source.ptx:\d+ .* call.*: thread \(0, 0, 0\) of CTA .* frees 0x.*: {why}"):
        module[kernel](np.zeros(1, np.int32), grid=1, block=1)


@pytest.mark.parametrize("heap", [-1, 1.5, True, "8M"])
def test_the_size_of_the_heap_is_an_integer(heap):
    with pytest.raises(UsageError, match="heap_bytes is an integer of at least 0"):
        EmulatorSettings(heap_bytes=heap)
