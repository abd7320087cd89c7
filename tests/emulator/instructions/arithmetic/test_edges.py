"""Special cases of the arithmetic that were wrong in earlier versions."""

from __future__ import annotations

import numpy as np
import pytest

import ptxkit.emulator.engine.program  # noqa: F401  fills the table
from ptxkit.emulator.simt.table import lookup


def lanes(opcode: str, *values: float) -> np.ndarray:
    """One lane of an instruction."""
    found = lookup(opcode)
    assert found is not None
    entry, form = found
    assert entry.signature is not None
    _, sources = entry.signature(form)
    with np.errstate(all="ignore"):
        out = entry.lane_function(form)(
            *(np.full((1, 1, 1), v, t.dtype) for v, t in zip(values, sources, strict=False))
        )
    return np.asarray(out).reshape(-1)


def test_fma_at_the_edge_of_the_subnormals_rounds_once():
    out = lanes("fma.rn.f32", -9839293 * 2.0**-98, 14303618 * 2.0**-99, 2.0**-126)
    assert out.view(np.uint32)[0] == 0x007FFFFF


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_an_infinite_addend_beats_a_product_that_overflows(mode):
    assert lanes(f"fma.{mode}.f64", 1e200, 1e200, -np.inf)[0] == -np.inf


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zeros_count_as_normal(zero):
    assert lanes("testp.normal.f32", zero)[0] and not lanes("testp.subnormal.f32", zero)[0]
