"""clusterlaunchcontrol: the work of each cluster is done once, by itself or by another cluster that has cancelled its
launch."""

from __future__ import annotations

import numpy as np
import pytest
from programs import Run, kernel

from ptxkit.emulator import Machine
from ptxkit.errors import UnsupportedError
from ptxkit.isa.parser import parse

PERSISTENT = """
    .shared .align 16 .b8 response[16]; .shared .align 8 .b64 barrier; .reg .b128 %q;
    mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %nctaid.x; mov.u32 %r9, 0;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared.b64 [barrier], 1;
    bar.sync 0;
again:
    mad.lo.u32 %r4, %r2, %r3, %r1; mul.wide.u32 %rd2, %r4, 4; add.u64 %rd3, %rd0, %rd2; add.u64 %rd4, %rd1, %rd2;
    @!%p0 bra waiting;
    atom.global.add.u32 %r5, [%rd3], 1; mov.u32 %r10, %ctaid.x; st.global.u32 [%rd4], %r10;
    mbarrier.arrive.expect_tx.shared.b64 _, [barrier], 16;
    clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [response], [barrier];
waiting:
    mbarrier.try_wait.parity.shared.b64 %p1, [barrier], %r9; @!%p1 bra waiting;
    ld.shared.b128 %q, [response];
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q;
    @!%p2 bra end;
    clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r2, %r6, _}, %q;
    clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r7, %q; mov.u32 %r2, %r7;
    xor.b32 %r9, %r9, 1;
    fence.proxy.async.shared::cta; bar.sync 0;
    bra again;
end:
"""


def run(completion: str, sms: int = 3, **settings: object) -> tuple[np.ndarray, np.ndarray]:
    program = Run(kernel(PERSISTENT, target="sm_100a"), target="sm_100a")
    program.machine = Machine(capacity=1 << 26, workers=2, sms=sms)
    program.program = program.machine.load(parse(kernel(PERSISTENT, target="sm_100a"), "test.ptx"), "sm_100a")
    done, by = program(
        np.zeros(40, np.uint32), np.zeros(40, np.uint32), grid=(8, 5), block=64, completion=completion, **settings
    )
    return done, by


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
def test_every_cluster_is_processed_once(completion):
    done, _ = run(completion)
    np.testing.assert_array_equal(done, 1)


@pytest.mark.parametrize("check", ["racecheck", "initcheck"])
def test_the_checks_have_nothing_to_say(check):
    done, _ = run("eager", **{check: "warps" if check == "racecheck" else True})
    np.testing.assert_array_equal(done, 1)


def test_the_first_ones_take_over_what_is_pending():
    _, by = run("eager")
    assert set(by.tolist()) == {0, 1, 2}


def test_requests_are_refused_now_and_then():
    _, by = run("latest-legal")
    assert len(set(by.tolist())) > 3


def test_with_enough_sms_nothing_is_pending():
    done, by = run("eager", sms=40)
    np.testing.assert_array_equal(done, 1)
    np.testing.assert_array_equal(by.reshape(5, 8), np.arange(8)[None].repeat(5, 0))


def test_older_targets_are_refused():
    text = kernel(PERSISTENT)
    with pytest.raises(UnsupportedError, match=r"try_cancel.*needs sm_100"):
        Machine().load(parse(text, "test.ptx"), "sm_90a").bind("k")
