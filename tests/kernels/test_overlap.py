"""Kernels that start before the previous grid has ended: each reads what the previous one wrote, at any alignment."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.inspect.disassembly import sass
from ptxkit.workload import execute, registry
from ptxkit.workload.build import build

ROUNDS = 24

CHAINS = [
    # (kernel, sizes, options, input, output): what is written is read by the next launch, and the other way round
    ("fused_l2norm", [96, 4096], {}, "x", "y"),
    ("fused_l2norm", [96, 4095], {}, "x", "y"),
    ("softmax", [256, 1024], {}, "x", "y"),
    ("layernorm", [128, 4096], {}, "x", "y"),
    ("rmsnorm", [300, 777], {"dtype": "bf16"}, "x", "y"),
    ("add_gelu", [100_000], {}, "x", "out"),
    ("add_gelu", [100_001], {"dtype": "f16"}, "x", "out"),
    ("bias_dropout_residual", [100, 1000], {}, "x", "out"),
]


def of(name, sizes, options):
    return registry.get(name).make([str(n) for n in sizes], options)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "sizes", "options", "source", "target"), CHAINS, ids=lambda v: str(v))
def test_a_chain_without_pauses_gives_what_one_with_pauses_gives(name, sizes, options, source, target):
    from ptxkit.runtime.device import device as open_device

    device = open_device("gpu")
    case = execute.Case(of(name, sizes, options), device)
    (step,) = (built := build(case.workload, case.workload.variant("vectorized"), device.target)).steps
    kernel = device.load(step.image)[step.launch.entry]
    assert any(i.opcode == "griddepcontrol.wait" for i in kernel.function.instructions), built.target
    start = case.inputs[source]

    def launches(first, second):
        for a, b in ((first, second), (second, first)):
            named = {source: a, target: b}
            arguments = [named.get(i) or case.argument(i) if isinstance(i, str) else i for i in step.launch.args]
            typed = [p.dtype.type(i) if isinstance(i, int) else i for p, i in zip(kernel.parameters, arguments)]
            yield kernel.prepare(*typed, grid=step.launch.grid, block=step.launch.block, cluster=step.launch.cluster)

    def run(pause):
        first, second = device.upload(start), device.upload(np.zeros_like(start))
        forth, back = launches(first, second)
        for _ in range(ROUNDS):
            for launch in (forth, back):
                launch()
                if pause:
                    device.synchronize()
        device.synchronize()
        return first.numpy()

    expected = run(pause=True)
    chain = run(pause=False)
    np.testing.assert_array_equal(chain.view(np.uint8), expected.view(np.uint8))
    with device.plain_launches():
        plain = run(pause=False)
    np.testing.assert_array_equal(plain.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize(("name", "sizes", "options"), [c[:3] for c in CHAINS], ids=lambda v: str(v))
def test_nothing_is_read_before_the_wait(name, sizes, options):
    workload = of(name, sizes, options)
    (step,) = build(workload, workload.variant("vectorized")).steps
    (function,) = sass(step.image).values()
    opcodes = [i.opcode for i in function.instructions]
    assert "ACQBULK" in opcodes
    touched = [i for i, opcode in enumerate(opcodes) if opcode in ("LDG", "STG", "LD", "ST")]
    assert min(touched) > opcodes.index("ACQBULK")
