"""The table of limits compared with what ptxas accepts; no other module and no device code has a copy of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ptxkit.compiler import compile_source
from ptxkit.errors import CompileError, UsageError
from ptxkit.targets import SM_LIMITS, TARGETS, Target, target_that_runs
from ptxkit.targets.gpus import REFERENCE_GPUS, gpu_named, reference_facts, reference_gpu

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ptxkit"
BOUNDED = 'extern "C" __global__ void __launch_bounds__({threads}) bounded_{threads}(float* y) {{ {body} }}\n'
LIVE = """
    float v[200];
    #pragma unroll
    for (int k = 0; k < 200; k++) v[k] = y[threadIdx.x + 1024 * k];
    #pragma unroll
    for (int k = 0; k < 200; k++) y[threadIdx.x + 1024 * k] = v[k] * v[(k + 7) % 200];
"""


@pytest.mark.parametrize("cc", sorted(SM_LIMITS))
def test_ptxas_gives_a_kernel_as_much_static_shared_memory(cc, require_target):
    require_target(f"sm_{cc}")
    most = SM_LIMITS[cc].default_shared_bytes
    body = "__shared__ int s[{n}]; s[threadIdx.x] = *y; __syncthreads(); *y = s[5];"
    source = 'extern "C" __global__ void k(int* y) {{ ' + body + " }}"
    image = compile_source(source.format(n=most // 4), target=f"sm_{cc}")
    assert image.functions["k"].shared_bytes == most
    with pytest.raises(CompileError, match="bytes of static shared memory"):
        compile_source(source.format(n=most // 4 + 1), target=f"sm_{cc}", cache=False)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cc", sorted(SM_LIMITS))
def test_ptxas_bounds_registers_by_the_threads_of_a_cta(cc, require_target):
    """``.maxntid`` leaves a thread its part of a CTA's registers, in units of a warp's allocation, and never more than 255."""
    require_target(f"sm_{cc}")
    limits = SM_LIMITS[cc]
    sizes = (128, 1024)
    kernels = (BOUNDED.format(threads=threads, body=LIVE) for threads in sizes)
    image = compile_source("".join(kernels), target=f"sm_{cc}")
    for threads in sizes:
        used = image.functions[f"bounded_{threads}"].registers
        assert used <= min(limits.registers_per_cta // threads, limits.registers_per_thread)
        if threads == 1024:
            assert used > limits.registers_per_cta // threads - 16


def test_an_unknown_target_is_an_error():
    with pytest.raises(UsageError, match="there is no target 'sm_99'; did you mean"):
        Target.parse("sm_99")
    with pytest.raises(UsageError, match="the limits of sm_70 are not known; targets are sm_75, "):
        Target("sm_70", 70).limits
    assert target_that_runs("sm_70").name == "sm_75"
    assert target_that_runs("sm_103a").name == "sm_103a"


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_target_has_a_reference_gpu_that_can_run_its_plain_code(name):
    gpu, facts = reference_gpu(name), reference_facts(name)
    assert gpu.cc <= TARGETS[name].cc
    assert (facts.sms, facts.l2_bytes, facts.gpu) == (gpu.sms, gpu.l2_bytes, gpu.name)
    assert gpu_named(gpu.name) is gpu


def test_reference_gpus_are_in_order_and_have_an_architecture_each():
    ccs = [gpu.cc for gpu in REFERENCE_GPUS]
    assert ccs == sorted(set(ccs)) and set(ccs) <= set(SM_LIMITS)
    assert reference_gpu("sm_88").name == "Orin"
    assert reference_gpu("sm_90a").name == "NVIDIA H200"


FACTS = {
    "shared memory": {1024 * kib for kib in (99, 100, 163, 164, 227, 228, 327, 328)},
    "shared memory in KiB": {163, 227, 228, 327, 328},
    "SM counts": {gpu.sms for gpu in REFERENCE_GPUS} - {16, 20, 40, 48, 72},
}
OTHER_MEANINGS = {
    ("emulator/tma/tensor_map.py", 108),  # offset of a field of the encoding
}


def _literals(path: Path) -> set[int]:
    """Whole numbers in a file, with products and shifts of two of them worked out."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            found.add(node.value)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.LShift):
            sides = node.left, node.right
            if all(isinstance(s, ast.Constant) and type(s.value) is int for s in sides):
                left, right = (s.value for s in sides)  # type: ignore[attr-defined]
                if isinstance(node.op, ast.Mult):
                    found.add(left * right)
                elif right < 64:
                    found.add(left << right)
    return found


def test_no_other_module_has_a_copy_of_these_facts():
    facts = set().union(*FACTS.values())
    copies = set()
    for path in PACKAGE.rglob("*.py"):
        place = str(path.relative_to(PACKAGE))
        if not place.startswith("targets/"):
            copies |= {(place, n) for n in _literals(path) & facts}
    assert copies - OTHER_MEANINGS == set()


def test_device_code_has_no_copy_of_these_facts():
    registers = {limits.registers for limits in SM_LIMITS.values()}
    facts = FACTS["shared memory"] | FACTS["shared memory in KiB"] | FACTS["SM counts"] | registers
    # numbers of operands and atoms in the text of instructions are in strings
    uses = re.compile(r"(?<![%\w.])\d+(?![\w.])")
    copies = set()
    for path in [*(ROOT / "cu").rglob("*.cu"), *(ROOT / "cu").rglob("*.cuh")]:
        code = re.sub(r'//[^\n]*|"[^"\n]*"', "", path.read_text(encoding="utf-8"))
        copies |= {(path.name, number) for number in map(int, uses.findall(code)) if number in facts}
    assert copies == set()
