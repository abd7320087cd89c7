"""Outputs of which a kernel writes only some bytes, and memory that a kernel reads before anything is written to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.workload import execute, registry
from ptxkit.workload.mismatch import may_be_unwritten
from ptxkit.workload.partial_stores import WIDEST, smallest_store

DESCRIPTION = '''
import numpy as np
from ptxkit import Launch, Work, Workload, variant

class Sample(Workload):
    """Writes bytes of its output."""
    source = "sample.cu"
    n: int = 128

    def inputs(self, rng): return {"x": rng.integers(-100, 100, self.n).astype(np.int8)}
    def reference(self, x):
        wide = x.astype(np.int64)
        return {"y": wide, "z": np.full(self.n, -1.0), "m": np.full(1, max(int(x.max()), 1)), "s": np.full(1, 1.0)}
    def outputs(self): return {"y": (self.n, "OUT"), "z": (self.n, "f64"), "m": (1, "s32"), "s": (1, "f32")}
    def work(self): return Work(self.n, 8 * self.n)

    def launch(self, how): return [Launch("k", 1, self.n, ("x", "y", "z", "m", "s"), template=(how,))]

    @variant
    def whole(self): return self.launch(0)
    @variant
    def bytewise(self): return self.launch(1)
    @variant
    def low_byte(self): return self.launch(2)
    @variant
    def middle(self): return self.launch(3)
    @variant
    def upper_half(self): return self.launch(4)
    @variant
    def maximum(self): return self.launch(5)
    @variant
    def added_to_output(self): return self.launch(6)
'''

SOURCE = """
template <int HOW>
__global__ void k(const signed char* x, OUT* y, double* z, int* m, float* s) {
    int t = threadIdx.x;
    OUT v = x[t];
    volatile unsigned char* to = (volatile unsigned char*)&y[t];
    if (HOW == 1 || HOW == 2 || HOW == 3)
        for (int k = 0; k < sizeof(OUT); k++)
            if (HOW == 1 || (HOW == 2 ? k == 0 || v >= 0 : k != 1 || v >= 0)) to[k] = (unsigned char)(v >> 8 * k);
    if (HOW == 0 || HOW >= 4) y[t] = v;
    if (HOW == 4) ((float*)&z[t])[1] = -1.875f; else z[t] = -1.0;
    if (HOW != 5 && t == 0) { int most = 1; for (int k = 0; k < 128; k++) most = max(most, (int)x[k]); *m = most; }
    if (HOW == 5) atomicMax(m, max((int)x[t], 1));
    if (HOW == 6 && t == 0) *s = fminf(*s, 1.0f);
    if (HOW != 6 && t == 0) *s = 1.0f;
}
"""


class Uncounted(EmulatedDevice):
    """Measures without counters, as a GPU does."""

    def measure(self, launch, samples):
        return replace(super().measure(launch, samples), counters=None)


@pytest.fixture
def verdict(tmp_path):
    def run(name: str, out: tuple[str, str], device: EmulatedDevice):
        (tmp_path / "sample.py").write_text(DESCRIPTION.replace("OUT", out[0]))
        (tmp_path / "sample.cu").write_text(SOURCE.replace("OUT", out[1]))
        kind = registry.load_file(tmp_path / "sample.py")
        return execute.run(execute.Case(kind(), device, seed=1), kind.variant(name)).verdict

    return run


DEVICES = pytest.mark.parametrize("kind", [EmulatedDevice, Uncounted])
TYPES = pytest.mark.parametrize("out", [("s16", "short"), ("s32", "int"), ("s64", "long long")])


@DEVICES
@TYPES
@pytest.mark.parametrize("name", ["low_byte", "middle"])
def test_bytes_that_are_right_by_the_sentinel_alone_are_found(verdict, kind, out, name):
    """The sign extension of negative numbers is not written; the bytes of the first sentinel are all 0xFF."""
    found = verdict(name, out, kind())
    assert found.worst.startswith("on a launch after the first: y[")
    assert "of the elements never written" in found.explanation


@DEVICES
@pytest.mark.parametrize("name", ["whole", "bytewise"])
def test_outputs_that_are_written_completely_are_verified(verdict, kind, name):
    found = verdict(name, ("s32", "int"), kind())
    assert found.verified, found.worst


@DEVICES
def test_half_an_element_is_found(verdict, kind):
    """The upper half of a double is that of -1; the lower half is not written, and no sentinel has its zeros."""
    assert verdict("upper_half", ("s32", "int"), kind()).worst.startswith("z[0] is -1")


@DEVICES
@pytest.mark.parametrize(("name", "output"), [("maximum", "m"), ("added_to_output", "s")])
def test_what_an_uninitialised_output_held_is_found_without_counters(verdict, kind, name, output):
    """An atomic maximum, and a minimum that ignores NaN: both are right with the first sentinel."""
    found = verdict(name, ("s32", "int"), kind())
    assert found.worst.startswith(f"on a launch after the first: {output}[0]")


def test_a_device_without_counters_compares_an_output_once(verdict, monkeypatch):
    compared = []
    verify = execute.Case.verify
    monkeypatch.setattr(execute.Case, "verify", lambda self, *args: compared.append(1) or verify(self, *args))
    assert verdict("whole", ("s32", "int"), Uncounted()).verified
    assert len(compared) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("st.global.u8 [%rd1], %r1;", 1),
        ("@%p1 st.global.v4.u8 [%rd1], {%r1, %r2, %r3, %r4};", 4),
        ("st.u16 [%rd1], %r1; st.global.f64 [%rd1], %fd1;", 2),
        ("st.weak.global.L1::no_allocate.v2.b64 [%rd1], {%rd2, %rd3};", 16),
        ("red.relaxed.gpu.global.add.noftz.f16 [%rd1], %h1;", 2),
        ("atom.global.cas.b16 %h1, [%rd1], %h2, %h3;", 2),
        ("st.shared.u8 [%r1], %r2; st.local.u8 [%rd1], %r2; st.param.b8 [param0], %r1;", WIDEST),
        ("st.shared::cluster.u8 [%r1], %r2; ld.global.u8 %r1, [%rd1]; mov.u32 %st, 1;", WIDEST),
        ("cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd1], [%r1], 16, %h1;", 1),
    ],
)
def test_the_smallest_store_of_a_text(text, expected):
    assert smallest_store(text) == expected


def test_bytes_count_only_where_a_store_is_smaller_than_an_element():
    values = np.array([0x00FF0000, 5], np.int32)
    assert not may_be_unwritten(values, 0xFF, 4)
    assert may_be_unwritten(values, 0xFF, 2)
    assert not may_be_unwritten(values, 0xEE, 1)
    assert may_be_unwritten(np.array([-1], np.int32), 0xFF, 4)
