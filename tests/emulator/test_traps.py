"""With --trap, the first division by zero, NaN or infinity that a kernel produces ends the launch."""

from __future__ import annotations

import numpy as np
import pytest
from programs import THREAD, Run, kernel

import ptxkit
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import ArithmeticTrap, UsageError
from ptxkit.runtime.emulated import EmulatedDevice

LOAD = "ld.global.f32 %f0, [%rd22]; ld.global.u32 %r10, [%rd22];"


def run(body: str, values: np.ndarray, trap: tuple[str, ...], **options) -> None:
    Run(kernel(THREAD + LOAD + body))(np.zeros(64, np.uint32), values, trap=trap, **{"block": len(values), **options})


def floats(*special: tuple[int, float]) -> np.ndarray:
    x = np.ones(32, np.float32)
    for at, value in special:
        x[at] = value
    return x


PRODUCED = [
    ("rsqrt.approx.f32 %f1, %f0;", floats((3, -1)), "nan", "rsqrt"),
    ("sqrt.rn.f32 %f1, %f0;", floats((3, -1)), "nan", "sqrt"),
    ("div.rn.f32 %f1, %f0, %f0;", floats((3, 0)), "nan", "div.rn.f32"),
    ("mov.b32 %f1, 0f7F800000; sub.f32 %f1, %f1, %f1;", floats(), "nan", "sub.f32"),
    ("mul.f32 %f1, %f0, %f0;", floats((3, 1e30)), "inf", "mul.f32"),
    ("rcp.rn.f32 %f1, %f0;", floats((3, 0)), "inf", "rcp"),
    ("cvt.rn.f16.f32 %h0, %f0;", floats((3, 1e6)), "inf", "cvt.rn.f16.f32"),
    ("cvt.rn.f16x2.f32 %r11, %f0, %f0;", floats((3, 1e6)), "inf", "f16x2"),
    (
        "cvt.rn.bf16x2.f32 %r11, %f0, %f0; fma.rn.bf16x2 %r11, %r11, %r11, %r11;",
        floats((3, 1e30)),
        "inf",
        "fma.rn.bf16x2",
    ),
    ("cvt.f64.f32 %d0, %f0; mul.f64 %d0, %d0, 0d7FE0000000000000;", floats((3, 1e30)), "inf", "mul.f64"),
    ("div.u32 %r11, %r0, %r10;", np.arange(32, dtype=np.uint32)[::-1].copy(), "div0", "div.u32"),
    ("rem.s32 %r11, %r0, %r10;", np.arange(32, dtype=np.uint32), "div0", "rem.s32"),
    ("cvt.u64.u32 %rd5, %r10; div.s64 %rd5, %rd5, %rd5;", np.arange(32, dtype=np.uint32), "div0", "div.s64"),
]


@pytest.mark.parametrize(("body", "values", "kind", "opcode"), PRODUCED)
def test_what_an_instruction_produces_is_reported_if_it_is_asked_for(body, values, kind, opcode):
    lane = {"rem.s32": 0, "div.s64": 0, "div.u32": 31, "sub.f32": 0}.get(opcode, 3)
    with pytest.raises(ArithmeticTrap, match=rf"test.ptx:\d+ .*{opcode}.*: thread \({lane}, 0, 0\) of CTA \(0, 0, 0\)"):
        run(body, values, (kind,))
    run(body, values, tuple({"nan", "inf", "div0"} - {kind, "nan" if kind == "div0" else kind}))
    run(body, values, ())


@pytest.mark.parametrize(
    "body",
    [
        "add.f32 %f1, %f0, %f0; mul.f32 %f1, %f1, %f0; mov.f32 %f2, %f1; st.global.f32 [%rd21], %f2;",
        "mov.f32 %f1, 0f7FC00000; mov.f32 %f2, 0fFF800000; max.f32 %f3, %f2, %f0;",
        "setp.num.f32 %p0, %f0, %f0; @%p0 sqrt.rn.f32 %f1, %f0;",
        "shfl.sync.bfly.b32 %r11, %r10, 1, 31, -1;",
        "cvt.rn.bf16x2.f32 %r11, %f0, %f0; fma.rn.bf16x2 %r11, %r11, %r11, %r11;",
    ],
)
def test_what_was_in_the_inputs_or_is_a_constant_is_not_produced(body):
    run(body, floats((1, np.nan), (2, np.inf)), ("nan", "inf", "div0"))


def test_lanes_that_are_switched_off_produce_nothing():
    values = floats((3, -1))
    run("setp.ge.f32 %p0, %f0, 0f00000000; @%p0 sqrt.rn.f32 %f1, %f0;", values, ("nan",))
    run("setp.lt.f32 %p0, %f0, 0f00000000; @%p0 bra OUT; sqrt.rn.f32 %f1, %f0; OUT:", values, ("nan",))


def test_the_first_is_of_the_lowest_cta_whatever_the_workers_do():
    values = np.ones(64 * 128, np.float32)
    values[37 * 128 + 5 :: 128] = -1
    values[37 * 128 + 100] = -1
    for _ in range(3):
        with pytest.raises(ArithmeticTrap, match=r"thread \(5, 0, 0\) of CTA \(37, 0, 0\)"):
            text = kernel(THREAD + "ld.global.f32 %f0, [%rd21]; sqrt.rn.f32 %f1, %f0;", params=1)
            Run(text)(values, trap=("nan",), grid=64, block=128)


def test_a_matrix_product():
    body = """mov.b32 %r11, 0x7BFF7BFF;
    mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r12, %r13}, {%r11, %r11, %r11, %r11}, {%r11, %r11}, {%r5, %r5};"""
    with pytest.raises(ArithmeticTrap, match="mma.sync.*computes an infinity"):
        run("mov.b32 %r5, 0;" + body, floats(), ("inf",))
    run("mov.b32 %r5, 0;" + body, floats(), ("nan",))
    given = body.replace("mov.b32 %r11, 0x7BFF7BFF;", "mov.b32 %r11, 0x7C003C00;")  # infinities in A and B
    run("mov.b32 %r5, 0;" + given, floats(), ("inf",))


def test_the_source_line_and_the_setting():
    device = EmulatedDevice()
    source = 'extern "C" __global__ void f(float* x) {\n  x[threadIdx.x] = 1.0f /\n x[threadIdx.x];\n}\n'
    f = ptxkit.compile(source, device=device)["f"]
    x = np.ones(32, np.float32)
    x[7] = 0
    with device.settings(trap=("inf",)), pytest.raises(ArithmeticTrap, match=r"source.cu:[23]\).*thread \(7, 0, 0\)"):
        f(x, grid=1, block=32)
    f(x, grid=1, block=32)
    for wrong in ("nan", ("nans",), ("",)):
        with pytest.raises(UsageError, match="trap is a tuple of 'div0', 'nan', 'inf'"):
            EmulatorSettings(trap=wrong)


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(
    ("instruction", "kinds", "what"),
    [
        ("red.{}.add.f32 [{}], 0f7F7FFFFF;", ("inf",), "an infinity"),
        ("atom.{}.add.f32 %f1, [{}], 0f7F7FFFFF;", ("nan", "inf"), "an infinity"),
        ("red.{}.add.noftz.f16x2 [{}], %r11;", ("inf",), "an infinity"),
    ],
)
def test_what_atomics_compute_in_memory(space, instruction, kinds, what):
    address = "%rd0" if space == "global" else "sum"
    start = f"mov.b32 %r11, 0x7BFF7BFF; st.{space}.b32 [{address}], %r11; bar.sync 0;"
    if "f32" in instruction:
        start = start.replace("0x7BFF7BFF", "0x7F7FFFFF")
    body = start + instruction.format(space, address)
    launch = Run(kernel(body, before=".shared .align 8 .b32 sum;"))
    with pytest.raises(ArithmeticTrap, match=f"{instruction.split('.')[0]}.*thread .* computes {what} in memory"):
        launch(np.zeros(4, np.float32), np.zeros(1), trap=kinds)
    launch(np.zeros(4, np.float32), np.zeros(1), trap=("div0",))


def test_an_atomic_does_not_compute_the_value_that_it_finds():
    body = (
        "mov.b32 %r11, 0x7FC00000; st.global.b32 [%rd0], %r11; bar.sync 0; atom.global.add.f32 %f1, [%rd0], 0f3F800000;"
    )
    Run(kernel(body))(np.zeros(4, np.float32), np.zeros(1), trap=("nan", "inf"))
