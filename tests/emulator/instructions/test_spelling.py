"""Modifiers of memory instructions in every order that ptxas accepts."""

from __future__ import annotations

import itertools

import numpy as np
import ptxas_oracle
import pytest
from programs import Run, kernel

from ptxkit.emulator.simt.table import lookup

STATEMENTS = (
    ("ld", "acquire.gpu.global.b32", "%r0, [%rd0]"),
    ("ld", "global.nc.L1::no_allocate.L2::128B.f32", "%f0, [%rd0]"),
    ("ld", "volatile.shared.v2.u32", "{%r0, %r1}, [%rd0]"),
    ("ldu", "global.v2.f32", "{%f0, %f1}, [%rd0]"),
    ("st", "release.gpu.global.b32", "[%rd0], %r0"),
    ("st", "global.L1::no_allocate.v4.b32", "[%rd0], {%r0, %r1, %r2, %r3}"),
    ("atom", "acq_rel.gpu.global.add.u32", "%r0, [%rd0], %r1"),
    ("atom", "acquire.cta.shared.cas.b32", "%r0, [%rd0], %r1, %r2"),
    ("red", "release.gpu.global.add.u32", "[%rd0], %r1"),
)


@pytest.mark.parametrize("name,modifiers,operands", STATEMENTS, ids=lambda s: s)
def test_every_order_is_the_manuals(name, modifiers, operands):
    orders = [".".join((name, *order)) for order in itertools.permutations(modifiers.split("."))]
    manual = lookup(f"{name}.{modifiers}")
    assert manual is not None
    found = [lookup(opcode) for opcode in orders]
    assert all(hit is not None and hit[0] is manual[0] and hit[1].parts == manual[1].parts for hit in found)
    assert not ptxas_oracle.refused_everywhere([f"{opcode} {operands};" for opcode in orders])


def test_a_part_that_no_form_has_stays_unknown():
    for opcode in ("ld.global.acquire.rn.b32", "st.global.nc.b32", "red.global.exch.b32", "ld.global.gpu.acquire"):
        assert lookup(opcode) is None


def test_cutlass_semaphore_spelling_runs():
    run = Run(
        kernel(
            "ld.global.acquire.gpu.b32 %r0, [%rd0]; add.u32 %r0, %r0, 5; st.global.release.gpu.b32 [%rd1], %r0;"
            "red.global.release.gpu.add.u32 [%rd1], 1;"
        )
    )
    _, out = run(np.array([37], np.int32), np.zeros(1, np.int32), block=1)
    assert out.tolist() == [43]
