"""Compiling, running and verifying variants: each failure is detected and reported."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import CompileError, DescriptionError, LaunchError, UnavailableError
from ptxkit.kernels.elementwise.saxpy import Saxpy
from ptxkit.runtime.device import device as open_device
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload import execute, registry
from ptxkit.workload.build import build
from ptxkit.workload.launch import Launch


def device(name: str = "any", memory_bytes: int = 10**12) -> SimpleNamespace:
    """The methods of a device that a case calls before it allocates memory."""
    return SimpleNamespace(
        name=name, times=False, memory_bytes=memory_bytes, facts_for=lambda target: reference_facts("sm_90a")
    )


DESCRIPTION = '''
import numpy as np
from ptxkit import Launch, Work, Workload, cdiv, uniform, variant

class Sample(Workload):
    """Doubles."""
    source = "sample.cu"
    n: int = 100

    def inputs(self, rng): return {"x": uniform(rng, self.n)}
    def reference(self, x): return {"y": 2.0 * x}
    def work(self): return Work(self.n, 8 * self.n)
    def temporaries(self): return {"t": (self.n, "f32")}

    @variant(tile={"FACTOR": [2, 3]})
    def right(self, t): return [Launch("times", cdiv(self.n, 32), 32, ("x", "y", self.n), template=(t.FACTOR,))]

    @variant
    def two_steps(self):
        grid = cdiv(self.n, 32)
        return [Launch("once", grid, 32, ("x", "t", self.n)), Launch("once", grid, 32, ("t", "y", self.n))]

    @variant
    def partial(self): return [Launch("times", cdiv(self.n, 32), 32, ("x", "y", self.n - 1), template=(2,))]

    @variant(source="sample.ptx")
    def by_hand(self): return [Launch("times", cdiv(self.n, 32), 32, ("x", "y", self.n))]

    @variant(requires=["tcgen05"])
    def newest(self): return [Launch("times", 1, 32, ("x", "y", self.n), template=(2,))]

    @variant
    def adds_nothing(self): return [Launch("adds_nothing", cdiv(self.n, 32), 32, ("x", "t", "y", self.n))]

    @variant
    def largest(self):
        return [Launch("largest", cdiv(self.n, 32), 32, ("x", "t", self.n)),
                Launch("scaled", cdiv(self.n, 32), 32, ("x", "t", "y", self.n))]

    @variant(tile={"HOW": [0, 1, 2, 3, 4, 5]})
    def ignores(self, t):
        return [Launch("ignores", cdiv(self.n, 32), 32, ("x", "t", "y", self.n), template=(t.HOW,))]

    @variant
    def misnamed(self): return [Launch("tims", 1, 32, ("x", "y", self.n))]

    @variant
    def wrong_array(self): return [Launch("times", 1, 32, ("x", "z", self.n), template=(2,))]

    @variant
    def float_for_int(self): return [Launch("times", 1, 32, ("x", "y", 2.5), template=(2,))]

    @variant
    def too_large(self): return [Launch("times", 1, 32, ("x", "y", 2**31), template=(2,))]
'''

SOURCE = """
template <int FACTOR>
__global__ void times(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = FACTOR * x[i];
}
__device__ float root_two() { return ROOT; }
__global__ void adds_nothing(const float* x, const float* t, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i] + 0 * t[i];
}
template <int HOW>
__global__ void ignores(const float* x, float* t, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = 2 * x[i];
    if (HOW == 0) y[i] = fminf(v, t[i]);
    if (HOW == 1) y[i] = fmaxf(v, t[i]);
    if (HOW == 2) y[i] = fminf(v, y[i]);
    if (HOW == 3) y[i] = fmaxf(v, y[i]);
    if (HOW == 4) y[i] = i == n - 1 ? fmaxf(v, t[i]) : v;
    if (HOW == 5) { float4 u = *(float4*)(t + i / 4 * 4); y[i] = fminf(v, u.z); }
}
__global__ void largest(const float* x, float* t, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicMax((int*)t, x[i] < 2);
}
__global__ void scaled(const float* x, const float* t, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i] * *(const int*)t;
}
__global__ void once(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = root_two() * x[i];
}
"""

PTX = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry times(.param .u64 x, .param .u64 y, .param .u32 n)
{
    .reg .pred %p; .reg .u32 %i, %c, %b, %n; .reg .u64 %x, %y, %o; .reg .f32 %v;
    mov.u32 %i, %tid.x; mov.u32 %c, %ctaid.x; mov.u32 %b, %ntid.x; mad.lo.u32 %i, %c, %b, %i;
    ld.param.u32 %n, [n]; setp.ge.u32 %p, %i, %n; @%p ret;
    ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; cvta.to.global.u64 %x, %x; cvta.to.global.u64 %y, %y;
    mul.wide.u32 %o, %i, 4; add.u64 %x, %x, %o; add.u64 %y, %y, %o;
    ld.global.f32 %v, [%x]; add.f32 %v, %v, %v; st.global.f32 [%y], %v; ret;
}
"""


@pytest.fixture
def sample(tmp_path):
    (tmp_path / "sample.py").write_text(DESCRIPTION)
    (tmp_path / "sample.cu").write_text(SOURCE.replace("ROOT", "1.4142135381698608f"))
    (tmp_path / "sample.ptx").write_text(PTX)
    return registry.load_file(tmp_path / "sample.py")


def run(sample, device, name, **options):
    return execute.run(execute.Case(sample(), device), sample.variant(name), **options)


@pytest.mark.parametrize("name", ["right", "two_steps", "by_hand"])
def test_a_users_kernel_runs_and_verifies(device, sample, name):
    result = run(sample, device, name)
    assert result.verdict.verified, result.verdict.worst
    assert result.launches == (2 if name == "two_steps" else 1)
    assert result.target.startswith("sm_")


def test_a_wrong_result_is_found(device, sample):
    result = run(sample, device, "right", tile={"FACTOR": "3"})
    assert not result.verdict.verified
    assert result.verdict.mismatches > 90
    assert result.verdict.max_rel_error == pytest.approx(0.5)


def test_an_unwritten_element_is_found(device, sample):
    case = execute.Case(sample(), device)
    assert execute.run(case, sample.variant("right")).verdict.verified  # leaves the right values in memory
    verdict = execute.run(case, sample.variant("partial")).verdict
    assert verdict.mismatches == 1
    assert verdict.worst.startswith("y[99] is nan")  # the poison


def test_an_unwritten_element_is_found_where_the_reference_is_nan_as_the_poison_is(device, sample, monkeypatch):
    def reference(self, x):
        return {"y": np.where(np.arange(self.n) == self.n - 1, np.nan, 2.0 * x)}

    monkeypatch.setattr(sample, "reference", reference)
    verdict = run(sample, device, "partial").verdict
    assert verdict.worst.startswith(
        ("on a launch after the first: y[99] is 1.30", "on a launch after the first: y[99] is -2.6")
    )


def test_an_unwritten_temporary_times_zero_is_found(device, sample):
    assert not run(sample, device, "adds_nothing").verdict.verified


def test_a_maximum_that_is_not_initialised_is_found(sample):
    """The kernel is right with the first sentinel, which is -1 as an integer."""
    assert run(sample, open_device("emulator"), "largest").verdict.worst.startswith("on a launch after the first: y[")


def test_without_counters_outputs_are_verified_with_other_poison(sample):
    """Whether an atomic has read the sentinel is unknown then."""
    uncounted = EmulatedDevice(settings=EmulatorSettings(counting=False))
    result = run(sample, uncounted, "largest")
    assert result.counters is None
    assert result.verdict.worst.startswith("on a launch after the first: y[")
    with uncounted.settings(counting=True):
        assert run(sample, uncounted, "largest").counters.global_atomic_bytes


EXTREMES = '''
import numpy as np
from ptxkit import Launch, Work, Workload, variant

class Extremes(Workload):
    """An extreme of many integers."""
    source = "extremes.cu"
    n: int = 1000

    def inputs(self, rng): return {"x": rng.integers(-2**31, 2**31, self.n).astype(np.int32)}
    def reference(self, x): return {"y": np.array([x.EXTREME()], np.int32)}
    def outputs(self): return {"y": (1, "s32")}
    def work(self): return Work(self.n, 4 * self.n)

    @variant
    def uninitialised(self): return self.extremes()

    @variant
    def initialised(self): return [Launch("start", 1, 1, ("x", "y")), *self.extremes()]

    def extremes(self): return [Launch("extreme", 4, 256, ("x", "y", self.n))]
'''
EXTREMES_SOURCE = """
__global__ void start(const int* x, int* y) { *y = *x; }
__global__ void extreme(const int* x, int* y, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) ATOMIC(y, x[i]);
}
"""


@pytest.mark.parametrize(("extreme", "atomic"), [("min", "atomicMin"), ("max", "atomicMax")])
def test_an_extreme_of_integers_of_the_whole_range_that_is_not_initialised_is_found(tmp_path, extreme, atomic):
    (tmp_path / "extremes.py").write_text(EXTREMES.replace("EXTREME()", f"{extreme}()"))
    (tmp_path / "extremes.cu").write_text(EXTREMES_SOURCE.replace("ATOMIC", atomic))
    sample = registry.load_file(tmp_path / "extremes.py")
    verdict = run(sample, open_device("emulator"), "uninitialised").verdict
    assert verdict.worst.startswith("on a launch after the first: y[0]")
    assert "all never written" in verdict.explanation
    result = run(sample, open_device("emulator"), "initialised")
    assert result.verdict.verified, result.verdict.worst
    assert result.counters.unwritten_loads == 0  # atomics on what was written are no reason for another launch


BULK = '''
from ptxkit import Launch, TensorMap, Work, Workload, variant

class Bulk(Workload):
    """Copies."""
    source = "bulk.cu"
    n: int = 256

    def inputs(self, rng): return {"x": rng.integers(0, 100, self.n, np.uint32)}
    def reference(self, x): return {"y": x.reshape(16, 16)}
    def outputs(self): return {"y": ((16, 16), "u32")}
    def temporaries(self): return {"t": ((16, 16), "u32")}
    def work(self): return Work(self.n, 8 * self.n)

    @variant
    def bulk_into_output(self): return [Launch("bulk", 1, self.n, ("x", "y"))]

    @variant
    def tensor_into_output(self): return [Launch("tensor", 1, self.n, ("x", TensorMap("y", box=(16, 16))))]

    @variant
    def tensor_into_temporary(self):
        return [
            Launch("tensor", 1, self.n, ("x", TensorMap("t", box=(16, 16)))), Launch("copied", 1, self.n, ("t", "y", 0))
        ]

    @variant
    def initialised(self):
        return [Launch("copied", 1, self.n, ("x", "y", 100)), Launch("bulk", 1, self.n, ("x", "y"))]
'''
BULK_SOURCE = """
__device__ unsigned stage(const unsigned* x) {
    __shared__ alignas(128) unsigned s[256];
    s[threadIdx.x] = x[threadIdx.x];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    return (unsigned)__cvta_generic_to_shared(s);
}
__device__ void finish() {
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
}
__global__ void bulk(const unsigned* x, unsigned* y) {
    unsigned s = stage(x);
    if (threadIdx.x) return;
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.min.u32 [%0], [%1], 1024;"
                 :: "l"(y), "r"(s) : "memory");
    finish();
}
struct alignas(64) Map { char bytes[128]; };
__global__ void tensor(const unsigned* x, const __grid_constant__ Map y) {
    unsigned s = stage(x);
    if (threadIdx.x) return;
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.and.tile.bulk_group [%0, {%1, %1}], [%2];"
                 :: "l"(&y), "r"(0), "r"(s) : "memory");
    finish();
}
__global__ void copied(const unsigned* x, unsigned* y, unsigned added) {
    y[threadIdx.x] = x[threadIdx.x] + added;
}
"""


@pytest.mark.parametrize("name", ["bulk_into_output", "tensor_into_output", "tensor_into_temporary"])
def test_a_bulk_reduction_into_memory_that_nothing_has_written_is_found(tmp_path, name):
    """The kernel is right with the first sentinel, whose bits are all set."""
    verdict = run(bulk_sample(tmp_path), open_device("emulator"), name, target=Target.parse("sm_90a")).verdict
    assert verdict.worst.startswith("on a launch after the first: y[")


def test_a_bulk_reduction_into_memory_that_a_launch_has_initialised_is_verified(tmp_path):
    verdict = run(bulk_sample(tmp_path), open_device("emulator"), "initialised", target=Target.parse("sm_90a")).verdict
    assert verdict.verified, verdict.worst


def bulk_sample(directory):
    (directory / "bulk.py").write_text("import numpy as np\n" + BULK)
    (directory / "bulk.cu").write_text(BULK_SOURCE)
    return registry.load_file(directory / "bulk.py")


@pytest.mark.parametrize("how", range(6))
def test_a_minimum_or_maximum_with_an_element_that_nothing_has_written_is_found(sample, how):
    """Each of these kernels ignores the NaN of the first launch."""
    verdict = run(sample, open_device("emulator"), "ignores", tile={"HOW": how}).verdict
    assert verdict.worst.startswith("on a launch after the first: y[")


def test_temporaries_that_are_written_first_take_one_launch(sample, monkeypatch):
    monkeypatch.setattr(execute.Prepared, "again", lambda *args: pytest.fail("a second launch"))
    assert run(sample, open_device("emulator"), "two_steps").verdict.verified


def test_a_variant_that_the_target_lacks_is_skipped_with_the_reason(device, sample):
    target = Target.parse("sm_90a")
    result = run(sample, device, "newest", target=target)
    assert "tcgen05 needs sm_100a" in result.skipped
    assert result.verdict is None
    with pytest.raises(UnavailableError, match="variant newest of sample: tcgen05 needs sm_100a"):
        run(sample, device, "newest", target=target, explicit=True)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("misnamed", CompileError, "no kernel 'tims'"),
        ("wrong_array", DescriptionError, "no input, output or temporary is called 'z'"),
        ("float_for_int", LaunchError, "not the float 2.5"),
        ("too_large", LaunchError, "cannot hold 2147483648"),
    ],
)
def test_a_description_that_does_not_fit_its_kernel(device, sample, name, error, message):
    with pytest.raises(error, match=message):
        run(sample, device, name)


def test_a_build_needs_no_device(sample):
    built = build(sample(), sample.variant("newest"))
    assert built.target.name == "sm_100a"
    assert len(built.images) == 1


def test_launches_with_other_options_are_other_programs(sample):
    def launches(workload):
        plain = Launch("once", 4, 32, ("x", "t", workload.n))
        return [plain, replace(plain, args=("t", "y", workload.n), options=("--ptxas-options=-O0",))]

    variant = replace(sample.variant("two_steps"), function=launches)
    quick, slow = (step.image.cubin for step in build(sample(), variant).steps)
    assert len(quick) < len(slow)  # -O0 keeps values in local memory


def test_templates_of_ptx_are_refused(sample):
    variant = sample.variant("right")
    by_hand = type(variant)("right", variant.function, variant.tile, source="sample.ptx")
    with pytest.raises(DescriptionError, match="takes neither template arguments nor defines nor options"):
        build(sample(), by_hand)


def test_too_little_memory_is_said_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr("ptxkit.workload.memory.free_host_bytes", lambda: 10**10)

    with pytest.raises(
        UnavailableError, match=r"saxpy with n=2147483647 needs 25\.8 GB on a tiny device, which has 1 GB free"
    ):
        execute.Case(Saxpy(n=2**31 - 1), device("a tiny device", 10**9))
    with pytest.raises(UnavailableError, match="on the host"):
        execute.Case(Saxpy(n=2**31 - 1), device("a huge device", 10**15))


def test_inputs_are_fresh_by_seed():
    a, b, c = (execute.Case(Saxpy(n=64), device(), seed=seed).inputs["x"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert (a != c).all()


def test_outputs_take_shape_and_dtype_from_reference_and_inputs(sample):
    assert execute.Case(sample(), device()).output_specs == {"y": ((100,), np.dtype("f4"))}
