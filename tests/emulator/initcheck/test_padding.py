"""Padding of structures may be copied to global memory, but not used, and not be left in an output."""

from __future__ import annotations

import numpy as np
import pytest
from programs import THREAD, Run, kernel

import ptxkit
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UninitialisedError
from ptxkit.runtime.emulated import EmulatedDevice

LOCAL = ".local .align 16 .b8 a[32]; mov.u64 %rd5, a; mov.b16 %h0, 7; st.local.u8 [%rd5], %h0; st.local.u32 [%rd5+4], %r0;"
OUT = np.zeros(256, np.uint32)


def run(body: str, initcheck: bool = False) -> np.ndarray:
    text = kernel(THREAD + "mul.wide.u32 %rd7, %r0, 32; add.u64 %rd7, %rd7, %rd0;" + LOCAL + body)
    return Run(text)(OUT, np.zeros(32, np.uint32), initcheck=initcheck)[0]


COPIES = {
    "one word": "ld.local.u32 %r5, [%rd5]; st.global.u32 [%rd7], %r5;",
    "a vector": "ld.local.v4.u32 {%r5, %r6, %r10, %r11}, [%rd5]; st.global.v4.u32 [%rd7], {%r5, %r6, %r10, %r11};",
    "words": """ld.local.u32 %r5, [%rd5+4]; ld.local.u32 %r6, [%rd5+8];
        st.global.u32 [%rd7+4], %r5; st.global.u32 [%rd7+8], %r6;""",
    "through moves": "ld.local.v2.u32 {%r5, %r6}, [%rd5]; mov.b64 %rd6, {%r5, %r6}; st.global.u64 [%rd7], %rd6;",
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("initcheck", [False, True])
def test_padding_may_be_copied(copy, initcheck):
    run(COPIES[copy], initcheck)


@pytest.mark.parametrize(
    ("use", "byte"),
    [
        ("ld.local.u32 %r5, [%rd5]; add.u32 %r5, %r5, 1; st.global.u32 [%rd7], %r5;", "byte 1 of"),
        ("ld.local.u32 %r5, [%rd5+8]; st.global.u32 [%rd7], %r5;", "byte 8 of"),
        ("ld.local.u8 %h1, [%rd5+1]; cvt.u32.u16 %r5, %h1; st.global.u32 [%rd7], %r5;", "byte 1 of"),
        ("ld.local.u8 %r5, [%rd5+2]; st.global.u32 [%rd7], %r5;", "byte 2 of"),
        ("ld.local.u32 %r5, [%rd5]; shr.u32 %r5, %r5, 8; st.global.u32 [%rd7], %r5;", "byte 1 of"),
        ("ld.local.v2.u32 {%r5, %r6}, [%rd5]; add.u32 %r5, %r5, 1; st.global.v2.u32 [%rd7], {%r5, %r6};", "byte 1 of"),
        # elements of an array, which lie farther apart than the members of a structure
        ("""ld.local.u32 %r5, [%rd5+4]; ld.local.u32 %r6, [%rd5+8];
            st.global.u32 [%rd7+4], %r5; st.global.u32 [%rd7+40], %r6;""", "byte 8 of"),
    ],
)
def test_a_use_of_padding_is_an_error_that_names_its_first_undefined_byte(use, byte):
    with pytest.raises(UninitialisedError, match=rf"writes to global memory.*{byte} 'a' in local memory"):
        run(use)


def test_the_undefined_bytes_of_an_array_are_known_until_they_are_overwritten():
    d = EmulatedDevice(settings=EmulatorSettings())
    source = r"""
    struct P { char c; int i; };
    extern "C" __global__ void pad(const int* x, P* y) {
      P a[4];
      for (int j = 0; j < 4; j++) { a[j].c = x[j]; a[j].i = x[j + 4]; }
      y[threadIdx.x] = a[x[threadIdx.x] & 3];
    }
    extern "C" __global__ void set(int* y) { y[threadIdx.x] = 3; }"""

    module = ptxkit.compile(source, device=d)
    y = d.upload(np.zeros(64, np.int32), "y")
    module["pad"](np.arange(32, dtype=np.int32), y, grid=1, block=32)
    said = d.undefined_bytes(y.address, y.nbytes)
    assert said.startswith("96 of 256 bytes are uninitialised, first byte 1: ")
    assert "copies byte 1 of the thread's variables in local memory" in said
    module["set"](y, grid=1, block=32)
    assert d.undefined_bytes(y.address, y.nbytes).startswith("48 of 256 bytes are uninitialised, first byte 129: ")
    y.fill(0)
    assert d.undefined_bytes(y.address, y.nbytes) == ""
