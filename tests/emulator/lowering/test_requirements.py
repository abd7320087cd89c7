"""What a module must state for its instructions: the version of the language, 64-bit addresses."""

from __future__ import annotations

import re

import modifier_orders
import numpy as np
import ptxas_oracle
import pytest
from programs import Run, kernel

from ptxkit.compiler import assemble
from ptxkit.emulator import Machine
from ptxkit.emulator.lowering.code import distinct
from ptxkit.emulator.lowering.requirements import VERSIONS
from ptxkit.emulator.simt.orders import name_of
from ptxkit.errors import UnsupportedError
from ptxkit.isa.parser import parse
from ptxkit.runtime.device import Device


def family(statement: str) -> str:
    """The entry of VERSIONS that the instruction belongs to, or ""."""
    name = name_of(statement.split(" ")[0].rstrip(";"))
    while name and name not in VERSIONS:
        name = name.rpartition(".")[0]
    return name


def refused_here(statements: list[str], target: str, version: str) -> set[int]:
    program = Machine(capacity=1 << 20).load(parse(ptxas_oracle.module(statements, target, version), "m.ptx"), target)
    try:
        program.bind("k")
    except UnsupportedError as error:
        lines = [line for line in error.places if "needs .version" in line]
        return {int(n) - ptxas_oracle.FIRST_LINE for n in re.findall(r"m\.ptx:(\d+)", "\n".join(lines))}
    return set()


@pytest.mark.parametrize(("target", "versions"), [("sm_90a", ("8.0", "8.1", "8.3")), ("sm_100a", ("8.6", "8.7"))])
def test_instructions_need_the_version_that_ptxas_states(target, versions):
    """One statement of each family of a target: ptxas and the emulator refuse it under the same versions."""
    found: dict[str, str] = {}
    for statement in modifier_orders.forms(target):
        if name := family(statement):
            found.setdefault(f"{name} {name_of(statement.split(' ')[0].rstrip(';'))}", statement)
    assert len(found) >= 15
    statements = list(found.values())
    for version in versions:
        theirs = ptxas_oracle.refused(statements, target, version, compiled=False)
        for n in sorted(refused_here(statements, target, version)):
            assert re.search(r"requires PTX ISA \.version", theirs.get(n, "")), (version, statements[n])
        numbers = tuple(int(part) for part in version.split("."))
        for n, statement in enumerate(statements):
            if VERSIONS[family(statement)] > numbers:
                assert n in theirs, (version, statement)


@pytest.mark.parametrize(
    ("statement", "target", "version", "needed"),
    [
        (".reg .b32 %t; mov.u32 %t, 0; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t, 32;", "sm_100a", "8.5", "8.6"),
        ("wgmma.fence.sync.aligned;", "sm_90a", "7.8", "8.0"),
        ("elect.sync %r1|%p1, -1;", "sm_90a", "7.8", "8.0"),
        ("cp.async.bulk.commit_group;", "sm_90a", "7.8", "8.0"),
    ],
)
def test_an_older_version_is_refused(statement, target, version, needed):
    text = kernel(statement, target=target).replace(".version 8.7", f".version {version}")
    with pytest.raises(UnsupportedError, match=rf"needs .version {needed} or newer; the module has .version {version}"):
        Run(text, target=target)()


def test_addresses_of_32_bits_are_refused():
    with pytest.raises(UnsupportedError, match=r"test.ptx: .address_size 32 is not supported"):
        Run(kernel("mov.u32 %r1, 1;").replace("address_size 64", "address_size 32"))(0, 0)


@pytest.mark.parametrize(
    ("statement", "want"),
    [
        ("add.f32 %f3, %f1, %f2;", 0.0),
        ("mad.f32 %f3, %f1, %f4, %f4;", 1.0),
        ("mad.f32 %f3, %f5, %f5, %f6;", 2.0**-24),
        ("min.f32 %f3, %f1, %f4;", 0.0),
        ("neg.f32 %f3, %f1;", -0.0),
        ("cvt.f64.f32 %d1, %f1; cvt.rn.f32.f64 %f3, %d1;", 2.0**-130),
    ],
)
def test_old_targets_have_no_subnormal_numbers(device: Device, statement: str, want: float):
    given = "mov.f32 %f1, 0f00080000; mov.f32 %f2, 0f00000001; mov.f32 %f4, 0f3F800000; "  # 2^-130, 2^-149, 1
    given += "mov.f32 %f5, 0f3F800800; mov.f32 %f6, 0fBF801000; "  # 1 + 2^-12, -(1 + 2^-11): the square is 2^-24 larger
    body = f"{given} {statement} st.global.f32 [%rd0], %f3;"
    text = re.sub(r"\.version \S+", ".version 1.4", kernel(body, params=1, target="sm_13")).replace(".address_size 64\n", "")
    found = np.ones(1, np.float32)
    image = assemble(text, target="sm_90a", name="old.ptx", cubin=device.kind == "gpu", cache=False)
    device.load(image)["k"](found, grid=1, block=1)
    assert found.view(np.uint32) == np.float32(want).view(np.uint32)


def test_each_form_is_reported_once():
    lines = "alloca.u64 %rd1, 8;\n" * 523 + "lop7.b32 %r1, %r2, %r3;\n"
    with pytest.raises(UnsupportedError) as error:
        Run(kernel(lines))(0, 0)
    first, second, third = str(error.value).splitlines()
    assert re.fullmatch(r"  test.ptx:\d+ alloca.u64.* \(and 522 more\)", second) and third.endswith("lop7.b32")


def test_forms_are_distinct_by_their_text_without_the_place():
    found = distinct(["a.ptx:1 (k.cu:5) x.y: why", "a.ptx:9 (l.cu:7) x.y: why", "line 4: z: other", "a.ptx:1 x.y: not"])
    assert found == ["a.ptx:1 (k.cu:5) x.y: why (and 1 more)", "line 4: z: other", "a.ptx:1 x.y: not"]


@pytest.mark.parametrize(
    ("function", "arguments", "why"),
    [
        ("cudaGraphSetConditional", "(%rd0, 1)", "CUDA graphs"),
        ("cudaLaunchDeviceV2", "(%rd0, %rd1)", "dynamic parallelism"),
        ("strange", "(%rd0, 1)", "declared without a body"),
    ],
)
def test_functions_of_the_device_runtime_are_refused_with_the_reason(function, arguments, why):
    second = "b64" if "%rd1" in arguments else "b32"
    before = f".extern .func (.param .b32 r) {function} (.param .b64 a, .param .{second} b);"
    with pytest.raises(UnsupportedError, match=rf"call: {function} is .*{why}"):
        Run(kernel(f"call (%r1), {function}, {arguments};", before=before))(0, 0)
