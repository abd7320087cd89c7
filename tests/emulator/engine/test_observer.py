"""A launch with an observer executes one instruction at a time, and has the results and counts of an ordinary launch."""

import numpy as np
import pytest

from ptxkit.runtime.device import device as open_device
from ptxkit.workload import execute, registry


class Passing:
    """Lets every group continue, and counts the instructions of each block."""

    def __init__(self):
        self.sizes = set()
        self.waves = 0

    def run(self, wave):
        self.waves += 1
        wave.run()

    def step(self, wave, group, block):
        self.sizes.add(len(block.instructions))
        wave.step(group, block)

    def idle(self, wave):
        return False


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
@pytest.mark.parametrize(
    ("kernel", "variant", "sizes"),
    [("saxpy", None, (1000,)), ("matmul_wgmma", "step3_specialized", (128, 128, 128)), ("warp_specialized", None, None)],
)
def test_observed_launches_give_the_same(kernel, variant, sizes, completion):
    device = open_device("emulator")
    workload = registry.get(kernel).make(sizes or (), {}, small=True)
    variants = workload.variants()
    chosen = variants[variant] if variant else list(variants.values())[-1]
    case = execute.Case(workload, device)
    prepared = execute.prepare(case, chosen)
    with device.settings(completion=completion):
        verdict, plain = prepared.check()
    assert verdict.verified
    expected = case.outputs()
    observer = Passing()
    with device.settings(completion=completion, observer=observer):
        verdict, counts = prepared.check()
    assert verdict.verified
    assert counts.instructions == plain.instructions
    assert observer.waves >= 1
    assert observer.sizes <= {0, 1}
    for name, value in case.outputs().items():
        assert np.array_equal(value.view(np.uint8), expected[name].view(np.uint8)), name
