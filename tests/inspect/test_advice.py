"""Findings, and their absence in kernels without these problems."""

from __future__ import annotations

from functools import cache

import pytest

from ptxkit.compiler import compile_source
from ptxkit.inspect.advice import findings
from ptxkit.inspect.disassembly import sass
from ptxkit.inspect.subject import subjects
from ptxkit.targets import Target
from ptxkit.workload import registry
from ptxkit.workload.build import build

TARGETS = ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120a"]


WHOLE = ["n > 3", "threadIdx.x < 64", "threadIdx.x / 32 == 1", "threadIdx.x % 128 / 32 == 2", "blockIdx.x == 0"]
SPLIT = ["threadIdx.x < 50", "threadIdx.x & 1", "threadIdx.x == 0"]
CONDITIONAL = """extern "C" __global__ void conditional_{number}(float* y, int n) {{
    __shared__ float s[1024]; s[threadIdx.x] = y[threadIdx.x];
    if ({condition}) {{ asm volatile("bar.sync 1, 64;" ::: "memory"); y[threadIdx.x] = s[threadIdx.x ^ 1]; }} }}
"""
SOURCE = r"""
extern "C" __global__ void leaving(float* y, int n) { __shared__ float s[256];
    if (y[threadIdx.x] < 0) return;
    s[threadIdx.x] = n; __syncthreads(); y[threadIdx.x] = s[threadIdx.x ^ 1]; }
extern "C" __global__ void reduced(float* y) { __shared__ float s[32]; float a = y[threadIdx.x];
    for (int d = 16; d; d /= 2) a += __shfl_xor_sync(~0u, a, d);
    if (a > 0) { s[threadIdx.x / 32] = a; __syncthreads(); y[threadIdx.x] = s[0]; } }
extern "C" __global__ void __launch_bounds__(128) computed(float* y, int n) { __shared__ float s[128]; s[threadIdx.x] = n;
    asm volatile("barrier.sync %0, 64;" :: "r"(threadIdx.x / 64) : "memory");
    y[threadIdx.x] = s[threadIdx.x ^ 1]; }
extern "C" __global__ void generic(float* y, int n) { __shared__ float s[128]; s[threadIdx.x] = n; __syncthreads();
    float* p = n & 1 ? s : y; p[threadIdx.x ^ 1] += 1; y[threadIdx.x] = s[threadIdx.x]; }
extern "C" __global__ void widened(float* y) {
    y[threadIdx.x] = y[threadIdx.x] * 0.1; }
"""


@cache
def made(target="sm_90a"):
    """Kernel -> SASS of the sources above, in one compile."""
    tests = "".join(CONDITIONAL.format(number=n, condition=c) for n, c in enumerate(WHOLE + SPLIT))
    return sass(compile_source(SOURCE + tests, target=target, name="made.cu"))


def line_of(text):
    return next(n for n, line in enumerate(SOURCE.split("\n"), 1) if text in line)


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_to_find(compiled, kernels, target):
    for name in ("wide", "nested", "outer", "by_warps", "calling", "divergent"):
        assert findings(kernels(target)[name], compiled(target)) == (), name


@pytest.mark.parametrize("target", TARGETS)
def test_narrow_accesses(kernels, target):
    loads, stores = findings(kernels(target)["narrow"])
    assert {loads.rule, stores.rule} == {"narrow-access"} and loads.source.line == stores.source.line == 8
    assert (
        "4 neighbouring 32-bit loads (LDG) where 128-bit ones would do, if the address is a multiple of 16"
        in loads.message
    )
    assert "4 neighbouring 32-bit stores (STG)" in stores.message


def test_accesses_that_are_no_neighbours_are_left_alone(kernels):
    assert not [f for f in findings(kernels("sm_90a")["hmma"]) if f.rule == "narrow-access"]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_spills_in_a_loop(kernels, target):
    found = [f for f in findings(kernels(target)["spilling"]) if f.rule == "local-memory-in-loop"]
    assert found and all("registers are spilled" in f.message for f in found)
    assert {f.source.line for f in found} <= {34, 36}


@pytest.mark.parametrize("target", TARGETS)
def test_an_array_in_local_memory(kernels, target):
    found = [f for f in findings(kernels(target)["local"]) if f.rule.startswith("local-memory")]
    assert [f.source.line for f in found] == [25]
    assert "an array whose index is not a constant" in found[0].message


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_the_smaller_tensor_instruction(kernels, target):
    (found,) = findings(kernels(target)["hmma"])
    assert found.rule == "small-mma" and found.source.line == 80
    assert {"sm_90a": "wgmma (HGMMA)", "sm_100a": "tcgen05 (UTCHMMA)"}[target] in found.message
    assert not findings(kernels("sm_80")["hmma"]) and not findings(kernels("sm_120a")["hmma"])


def test_serialised_wgmma_is_said_of_its_own_kernel_alone(compiled, kernels):
    image = compiled("sm_90a")
    found = findings(kernels("sm_90a")["hgmma_serialised"], image)
    assert any(f.rule == "wgmma-serialised" and "serialized" in f.message and f.source.line == 105 for f in found)
    assert findings(kernels("sm_90a")["hgmma"], image) == ()


@pytest.mark.parametrize("target", TARGETS)
def test_a_barrier_in_divergent_code(kernels, target):
    (found,) = findings(kernels(target)["divergent_aligned"])
    assert found.rule == "divergent-barrier" and found.source.line == 124
    assert "some of its threads" in found.message


def test_a_barrier_after_some_threads_left():
    (found,) = findings(made()["leaving"])
    assert found.rule == "divergent-barrier" and found.source.line == line_of(
        "s[threadIdx.x] = n; __syncthreads(); y"
    )
    assert f"may have left the kernel in line {line_of('return;')}" in found.message


@pytest.mark.parametrize(("number", "condition"), list(enumerate(WHOLE + SPLIT)))
def test_conditions_that_keep_warps_whole_or_split_them(number, condition):
    found = findings(made()[f"conditional_{number}"])
    assert [f.rule for f in found] == (["divergent-barrier"] if condition in SPLIT else [])


def test_a_value_all_lanes_got_from_a_reduction_is_no_divergence():
    assert findings(made()["reduced"]) == ()


def test_a_computed_barrier_number_takes_them_all():
    (found,) = findings(made()["computed"])
    assert found.rule == "all-barriers" and found.source.line == line_of("barrier.sync %0")
    assert "no more than 4 CTAs fit an SM" in found.message
    assert findings(made("sm_89")["computed"]) == ()  # no limit before Hopper


def test_generic_addresses():
    found = [f for f in findings(made()["generic"]) if f.rule == "generic-access"]
    assert found and found[0].source.line == line_of("float* p")
    assert "could not tell the state space" in found[0].message


def test_shared_memory_of_a_cluster_has_generic_addresses_on_purpose():
    workload = registry.get("fused_l2norm")(rows=1, cols=65536)
    step = build(workload, workload.variant("vectorized"), Target.parse("sm_90a")).steps[0]
    function = sass(step.image)[step.entry]
    assert step.launch.cluster and any(i.opcode == "ST" for i in function.instructions)
    assert not [f for f in findings(function, step.image) if f.rule == "generic-access"]


def test_double_precision_by_a_literal():
    (found,) = findings(made("sm_89")["widened"])
    assert found.rule == "double-precision" and found.source.line == line_of("0.1")
    assert findings(made()["widened"]) == ()  # half the rate of f32 there, which is not reported


def test_ptx_without_loc_is_named_by_its_ptx_line(tmp_path):
    path = tmp_path / "hand.ptx"
    path.write_text(""".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out)
{
    .reg .b64 %a; .reg .b32 %t; .reg .pred %p; .reg .f32 %f<4>;
    ld.param.u64 %a, [out];
    mov.u32 %t, %tid.x;
    setp.eq.u32 %p, %t, 7;
    @%p bra skip;
    bar.sync 0;
    ld.global.f32 %f0, [%a];
    st.global.f32 [%a+64], %f0;
skip:
    ret;
}
""")
    (subject,) = subjects(str(path))
    (found,) = findings(subject.function, subject.image)
    assert found.rule == "divergent-barrier" and found.source is None and found.ptx_line == 11
    assert "PTX line 1" in found.message or "may skip it" in found.message


ARITHMETIC = [
    ("y[i] = y[i] / y[i + 1];", (), "a float division"),
    ("y[i] = sqrtf(y[i]);", (), "a float square root"),
    ("d[i] = d[i] / d[i + 1];", (), "a double-precision division"),
    ("d[i] = sqrt(d[i]);", (), "a double-precision division"),
    ("l[i] = l[i] % l[i + 1];", (), "a 64-bit integer division"),
    ("k[i] = k[i] / k[i + 1];", (), "a 32-bit integer division"),
    ("d[i] = sin(d[i]);", (), "trigonometric"),
    ("y[i] = y[i] / y[i + 1];", ("-use_fast_math",), None),
    ("k[i] = k[i] / 8;", (), None),
]


@cache
def arithmetic(options):
    """Kernel -> SASS of every body in a loop and outside one, in one compile for the options."""
    text = ""
    for n, (body, _, _) in enumerate(ARITHMETIC):
        for name, head in (("looped", "for (int i = 0; i < n; i++)"), ("once", "int i = threadIdx.x;")):
            parameters = "float* y, double* d, long long* l, int* k, int n"
            text += f'extern "C" __global__ void {name}_{n}({parameters}) {{\n{head}\n{{ {body} }} }}\n'
    return sass(compile_source(text, target="sm_90a", name="arithmetic.cu", options=options))


@pytest.mark.parametrize("number", range(len(ARITHMETIC)), ids=[f"{body} {' '.join(o)}" for body, o, _ in ARITHMETIC])
def test_slow_arithmetic_in_a_loop_is_found(number):
    _, options, match = ARITHMETIC[number]
    for name, found in (("looped", match), ("once", None)):
        function = arithmetic(options)[f"{name}_{number}"]
        messages = [f.message for f in findings(function) if f.rule == "slow-arithmetic"]
        assert len(messages) == (found is not None), messages
        assert found is None or found in messages[0]
