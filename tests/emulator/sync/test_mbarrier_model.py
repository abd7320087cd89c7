"""Random legal histories of an mbarrier, on any device, against a model of a dozen lines.

PTX ISA, "Phase of the mbarrier object": a phase ends when neither arrivals nor bytes are pending.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from either import Bench
from hypothesis import given, settings
from hypothesis import strategies as st


@dataclass
class Model:
    """An mbarrier: arrivals that a phase needs and those pending, pending bytes, and how many phases are over."""

    expected: int
    pending: int
    tx: int = 0
    phase: int = 0

    def arrive(self, count: int, drop: bool, tx: int = 0) -> None:
        """``tx`` bytes are expected first; a drop counts from the next phase on, too."""
        self.tx += tx
        self.pending -= count
        self.expected -= count if drop else 0
        self._end()

    def transfer(self, tx: int) -> None:
        """Bytes are expected, or complete where negative."""
        self.tx += tx
        self._end()

    def _end(self) -> None:
        if not self.pending and not self.tx:
            self.phase += 1
            self.pending = self.expected


def history(draw, steps: int) -> tuple[str, list[list[int]]]:
    """The PTX of ``steps`` operations and, for each, what can be seen after it."""
    count = draw(st.integers(1, 12))
    model = Model(count, count)
    body = f".shared .align 8 .b64 bar; mbarrier.init.shared::cta.b64 [bar], {count}; mov.u32 %r4, 0;"
    seen = []
    for step in range(steps):
        sem, before = draw(st.sampled_from(["", ".release.cta", ".relaxed.cluster"])), model.pending
        kinds = ["expect"] + ["arrive", "arrive_expect"] * (model.pending > 0) + ["complete"] * (model.tx > 0)
        kinds += ["drop", "drop_expect"] * (model.pending > 0 and model.expected > 1) + ["no_complete"] * (
            model.pending > 1
        )
        kind = draw(st.sampled_from(kinds))
        phase, state = model.phase, True
        match kind:
            case "expect" | "complete":
                n = draw(st.integers(0, 1000)) if kind == "expect" else draw(st.integers(1, model.tx))
                body += f"mbarrier.{kind}_tx.relaxed.cta.shared::cta.b64 [bar], {n};"
                model.transfer(n if kind == "expect" else -n)
                state = False
            case "arrive" | "drop":
                most = model.pending if kind == "arrive" else min(model.pending, model.expected - 1)
                c = draw(st.integers(1, most))
                name = "arrive" if kind == "arrive" else "arrive_drop"
                body += f"mbarrier.{name}{sem}.shared::cta.b64 %rd4, [bar], {c};"
                model.arrive(c, kind == "drop")
            case "no_complete":
                c = draw(st.integers(1, model.pending - 1))
                body += f"mbarrier.arrive.noComplete.shared::cta.b64 %rd4, [bar], {c};"
                model.arrive(c, False)
            case _:
                n = draw(st.integers(0, 1000))
                name = "arrive" if kind == "arrive_expect" else "arrive_drop"
                body += f"mbarrier.{name}.expect_tx{sem}.shared::cta.b64 %rd4, [bar], {n};"
                model.arrive(1, kind == "drop_expect", n)
        body += "mbarrier.test_wait.parity.shared::cta.b64 %p1, [bar], 0;"
        body += "mbarrier.test_wait.parity.shared::cta.b64 %p2, [bar], 1;"
        body += "selp.u32 %r5, 1, 0, %p1; selp.u32 %r6, 1, 0, %p2; mov.u32 %r7, 99; mov.u32 %r8, 99;"
        if state:
            body += "mbarrier.test_wait.shared::cta.b64 %p3, [bar], %rd4; selp.u32 %r7, 1, 0, %p3;"
            body += "mbarrier.pending_count.b64 %r8, %rd4;"
        body += f"st.global.v4.u32 [%rd0+{16 * step}], {{%r5, %r6, %r7, %r8}};"
        over = model.phase > phase
        seen.append([model.phase & 1, 1 - (model.phase & 1), int(over) if state else 99, before if state else 99])
    return body, seen


@pytest.mark.parametrize("steps", [6, 40])
def test_histories(device, steps):
    run = Bench(device, "eager")

    @settings(max_examples=25, deadline=None, derandomize=device.kind == "gpu")
    @given(st.data())
    def check(data):
        body, seen = history(data.draw, steps)
        (got,) = run(body, np.zeros((steps, 4), np.uint32), block=1)
        np.testing.assert_array_equal(got, seen)

    check()
