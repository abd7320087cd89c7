"""shfl and vote without .sync, as PTX for targets before sm_70 has them: the lanes that execute them together take part."""

from __future__ import annotations

import re

import numpy as np
import ptxas_oracle
import pytest
from programs import THREAD, Run, kernel

from ptxkit.compiler import assemble
from ptxkit.errors import UninitialisedError, UnsupportedError
from ptxkit.runtime.device import Device

LANE = np.arange(32, dtype=np.uint32)
STATEMENTS = ["vote.all.pred %p1, %p2;", "vote.ballot.b32 %r1, %p2;", "shfl.up.b32 %r1, %r2, 1, 31;"]


def launch(device: Device, body: str, *arrays: np.ndarray, target: str = "sm_60") -> list[np.ndarray]:
    text = kernel(THREAD + body, params=len(arrays), target=target)
    image = assemble(text, target="sm_90a", name="test.ptx", cubin=device.kind == "gpu", cache=False)
    copies = [a.copy() for a in arrays]
    device.load(image)["k"](*copies, grid=1, block=32)
    return copies


@pytest.mark.parametrize("target", ["sm_30", "sm_60"])
def test_a_reduction_of_an_old_compiler(device: Device, target: str):
    steps = "".join(f"shfl.bfly.b32 %r5, %r4, {o}, 31; add.u32 %r4, %r4, %r5; " for o in (16, 8, 4, 2, 1))
    out, inside = launch(
        device,
        f"mul.lo.u32 %r4, %r0, %r0; {steps} st.global.u32 [%rd21], %r4; "
        "shfl.up.b32 %r6|%p0, %r0, 3, 0; selp.u32 %r7, %r6, 99, %p0; st.global.u32 [%rd22], %r7;",
        np.zeros(32, np.uint32),
        np.zeros(32, np.uint32),
        target=target,
    )
    assert (out == (LANE * LANE).sum()).all()
    assert (inside == np.where(LANE < 3, 99, LANE - 3)).all()


def test_only_lanes_of_the_same_branch_vote(device: Device):
    odd, all_of = launch(
        device,
        """
        and.b32 %r4, %r0, 3; setp.eq.u32 %p0, %r4, 1; setp.gt.u32 %p1, %r0, 8; mov.u32 %r5, 7; mov.u32 %r6, 7;
        @!%p0 bra DONE;
        vote.ballot.b32 %r5, %p1; setp.lt.u32 %p2, %r0, 30; vote.all.pred %p2, %p2; selp.u32 %r6, 1, 0, %p2;
    DONE:
        st.global.u32 [%rd21], %r5; st.global.u32 [%rd22], %r6;
        """,
        np.zeros(32, np.uint32),
        np.zeros(32, np.uint32),
    )
    there = LANE % 4 == 1
    assert (odd == np.where(there, sum(1 << int(k) for k in LANE[there & (LANE > 8)]), 7)).all()
    assert (all_of == np.where(there, 1, 7)).all()


def test_a_value_of_a_lane_that_is_not_there_is_undefined():
    body = "setp.lt.u32 %p0, %r0, 8; @%p0 shfl.down.b32 %r4, %r0, 4, 31; @%p0 st.global.u32 [%rd21], %r4;"
    with pytest.raises(UninitialisedError, match=r"thread \(4, 0, 0\)"):
        Run(kernel(THREAD + body, target="sm_60"))(np.zeros(32, np.uint32), np.zeros(1, np.uint32))


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize(("version", "target"), [("6.0", "sm_60"), ("8.7", "sm_60"), ("6.3", "sm_70"), ("6.4", "sm_70")])
def test_they_are_refused_where_ptxas_refuses_them(statement: str, version: str, target: str):
    text = kernel(f"mov.u32 %r2, 1; setp.eq.u32 %p2, %r2, 1; {statement}", target=target)
    text = re.sub(r"\.version \S+", f".version {version}", text)
    refused = "is not supported on" in ptxas_oracle.log_of(text, "sm_90a")
    assert refused == (version == "6.4")
    if refused:
        with pytest.raises(UnsupportedError, match="only with .sync"):
            Run(text)(0, 0)
    else:
        Run(text)(0, 0)


@pytest.mark.parametrize("statement", ["shfl.up.b32 %r1, %r2, 1;", "vote.all.pred %p1, %p2, -1;"])
def test_a_wrong_number_of_operands_is_named(statement: str):
    with pytest.raises(UnsupportedError, match="3 operands; it has"):
        Run(kernel(statement, target="sm_60"))(0, 0)
