"""Registers that have one value in a warp, as far as the text shows it."""

from __future__ import annotations

import pytest
from programs import Run, kernel

from ptxkit.emulator.lowering.bits import members

LANE = "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;"


def uniform(body: str) -> set[str]:
    """The names of the uniform registers of a kernel with this body."""
    code = Run(kernel(body)).program.bind("k").entry
    numbers = set(members(code.uniform))
    return {name for name, k in code.register_index.items() if k in numbers}


@pytest.mark.parametrize(
    ("body", "yes", "no"),
    [
        ("add.u32 %r2, %r1, 4; add.u32 %r3, %r0, 4;", "%r1 %r2 %rd0", "%r0 %r3"),
        ("mul.lo.u32 %r2, %r1, 4; add.u32 %r2, %r2, %r1;", "%r2", ""),  # written twice, without a branch between
        ("ld.global.u32 %r2, [%rd0];", "", "%r2"),
        ("setp.lt.u32 %p0, %r0, 5; @%p0 mov.u32 %r2, 1;", "", "%p0 %r2"),
        ("setp.lt.u32 %p0, %r1, 5; @%p0 mov.u32 %r2, 1;", "%p0 %r2", ""),
        ("setp.lt.u32 %p0, %r1, 5; selp.u32 %r2, %r0, 1, %p0;", "", "%r2"),
        # written in both ways of a branch that separates lanes, and in those of one that does not
        ("mov.u32 %r2, 1; setp.lt.u32 %p0, %r0, 5; @%p0 bra A; mov.u32 %r2, 2; A: add.u32 %r3, %r2, 1;", "", "%r2 %r3"),
        ("mov.u32 %r2, 1; setp.lt.u32 %p0, %r1, 5; @%p0 bra A; mov.u32 %r2, 2; A: add.u32 %r3, %r2, 1;", "%r2 %r3", ""),
        # the counter of a loop that lanes leave together, and of one that they leave one by one
        ("mov.u32 %r2, 0; L: add.u32 %r2, %r2, 1; setp.lt.u32 %p0, %r2, %r1; @%p0 bra L; mov.u32 %r3, %r2;", "%r2", ""),
        ("mov.u32 %r2, 0; L: add.u32 %r2, %r2, 1; setp.lt.u32 %p0, %r2, %r0; @%p0 bra L; mov.u32 %r3, %r2;", "", "%r2 %r3"),
        # lanes that exit do not count
        (
            (
                "setp.gt.u32 %p1, %r0, 9; @%p1 bra E; mov.u32 %r2, 0; L: add.u32 %r2, %r2, 1; setp.lt.u32 %p0, %r2, 3; "
                "@%p0 bra L; st.global.u32 [%rd0], %r2; E:"
            ),
            "%r2",
            "%p1",
        ),
        ("atom.global.add.u32 %r2, [%rd0], 1;", "", "%r2"),
        ("shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;", "", "%r2"),
    ],
)
def test_registers(body, yes, no):
    found = uniform(LANE + body)
    assert set(yes.split()) <= found and not found & set(no.split())
