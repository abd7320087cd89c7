"""Kernels of rows and elements with arrays that begin at no multiple of 16 bytes, as views of larger arrays do."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.workload import execute, registry
from ptxkit.workload.data import is_array
from ptxkit.workload.inputs import dtype_of

ROWS = {"rows": 37, "cols": 264}


class ShiftedDevice(EmulatedDevice):
    """An emulated device whose arrays begin one element after a multiple of 16 bytes, temporaries 8 bytes.

    Args:
        itemsizes: name of an array -> bytes of an element.
    """

    def __init__(self, itemsizes: dict[str, int]) -> None:
        super().__init__()
        self.itemsizes = itemsizes
        self.begins: dict[int, int] = {}

    def allocate(self, nbytes: int, name: str) -> int:
        begin = super().allocate(nbytes + 16, name)
        address = begin + self.itemsizes.get(name, 8)
        self.begins[address] = begin
        return address

    def free(self, address: int) -> None:
        super().free(self.begins.pop(address))


def cases():
    for group in ("rows", "elementwise"):
        for name in registry.groups()[group]:
            sizes = ROWS if "rows" in registry.get(name).size_names() else {"n": 3001}
            for variant in registry.get(name).variants().values():
                if not {"tma"}.intersection(variant.requires):
                    yield pytest.param(name, variant.name, sizes, id=f"{name}-{variant.name}")


@pytest.mark.parametrize(("name", "variant", "sizes"), list(cases()))
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_arrays_that_are_not_aligned_to_vectors(name, variant, sizes, dtype):
    kernel = registry.get(name)
    options = {"dtype": dtype} if "dtype" in kernel.option_types() else {}
    workload = kernel(**sizes, **options)
    arrays = {name: value.itemsize for name, value in workload.inputs(np.random.default_rng(1)).items() if is_array(value)}
    arrays |= {name: dtype_of(kind).itemsize for name, (_, kind) in workload.outputs().items()}
    device = ShiftedDevice(arrays)
    case = execute.Case(workload, device)
    assert execute.run(case, workload.variant(variant)).verdict.verified
    assert {address % 16 for address in device.begins} >= {arrays[name] for name in workload.outputs()}
