"""As test_race_model.py for two CTAs of a cluster, with two warps each, which access each other's shared memory.

An arrival at the mbarrier of the other CTA, or a wait for one of the other CTA, that has the scope ``.cta`` puts accesses in
order, but makes no writes visible.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Run, kernel
from test_race_model import Graph

from ptxkit.errors import RaceError

WARPS, CELLS, EVENTS = 4, 2, 16

HEAD = f"""
    .shared .align 128 .b32 cells[{CELLS * 32}]; .shared .align 8 .b64 bars[{EVENTS}];
    mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 31; shr.u32 %r2, %r0, 5; setp.eq.u32 %p0, %r1, 0; mov.u32 %r4, bars;
    shl.b32 %r6, %r1, 2; mov.u32 %r3, cells; add.u32 %r3, %r3, %r6; mov.u32 %r8, %cluster_ctarank; mad.lo.u32 %r2, %r8, 2, %r2;
    mapa.shared::cluster.u32 %r10, %r3, 0; mapa.shared::cluster.u32 %r11, %r3, 1;
    mapa.shared::cluster.u32 %r12, %r4, 0; mapa.shared::cluster.u32 %r13, %r4, 1; setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
"""
"""%r10 and %r11 are the lane's element of the first cell of either CTA, %r12 and %r13 their mbarriers; %r2 counts warps."""

warp = st.integers(0, WARPS - 1)
place = st.tuples(st.integers(0, 1), st.integers(0, CELLS - 1))
some = st.sets(warp, min_size=1).map(sorted)
scope = st.sampled_from([".release.cluster", ".release.cta", ""])
event = st.one_of(
    st.tuples(st.sampled_from(["read", "write"]), warp, place),
    st.tuples(st.sampled_from(["read", "write"]), warp, place),
    st.tuples(st.just("send"), warp, place, some),
    st.tuples(st.just("meet"), st.integers(0, 1)),
    st.tuples(st.just("cluster"), st.booleans()),
    st.tuples(st.just("pass"), some, st.integers(0, 1), some, scope, scope),
)


class Program(Graph):
    """The text of each warp's program. Warps 0 and 1 are in the first CTA; a cell is (CTA, number)."""

    def __init__(self) -> None:
        super().__init__(WARPS)
        self.init: list[str] = []
        self.outlives = False
        """A store is sent to the other CTA, none of whose warps waits for it, so that it may have exited by then."""
        self.blind: set[tuple[int, int]] = set()  # edges that make no writes visible

    def unseen(self) -> list[tuple[int, int]]:
        """Writes that a later read does not see although it comes after them; needs :meth:`races`."""
        seen = [0] * len(self.after)
        for a in reversed(range(len(self.after))):
            for b in self.after[a]:
                if (a, b) not in self.blind:
                    seen[a] |= 1 << b | seen[b]
        return [
            (a, b)
            for a, who, c, writes in self.accesses
            for b, other, d, too in self.accesses
            if writes and not too and who != other and c == d and self.reach[a] >> b & 1 and not seen[a] >> b & 1
            and not any(
                w != a and e == c and later and self.reach[a] >> w & 1 and self.reach[w] >> b & 1
                for w, _, e, later in self.accesses
            )
        ]

    def add(self, n: int, what: str, *who) -> None:
        """Append an event."""
        if what in ("read", "write"):
            w, (cta, c) = who
            near = cta == w // 2 and n % 2
            address = f"[%r{3 if near else 10 + cta}+{128 * c}]"
            space = "shared" if near else "shared::cluster"
            text = f"ld.{space}.b32 %r9, {address};" if what == "read" else f"st.{space}.b32 {address}, {n + 1};"
            self.accesses.append((self.step(w, text), w, (cta, c), what == "write"))
        elif what == "send":
            w, (cta, c), waiting = who
            bar = f"[%r{12 + cta}+{8 * n}]"
            self.init.append(f"mbarrier.init.shared.b64 [%r4+{8 * n}], 1;")
            store = "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32"
            start = self.step(
                w,
                f"@%p0 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, {bar}, 128;"
                f"{store} [%r{10 + cta}+{128 * c}], {n + 1}, {bar};",
            )
            done = self.beside(start, (cta, c), True)
            self.outlives |= w // 2 != cta and all(b // 2 != cta for b in waiting)
            for b in (b for b in waiting if b // 2 == cta):
                self.step(b, self._wait(n, b), start, done)
        elif what == "meet":
            (cta,) = who
            here = [self.last[2 * cta], self.last[2 * cta + 1]]
            for w in (2 * cta, 2 * cta + 1):
                self.step(w, "bar.sync 0;", *here)
        elif what == "cluster":
            (relaxed,) = who
            arrive = "barrier.cluster.arrive.relaxed;" if relaxed else "barrier.cluster.arrive;"
            here = [] if relaxed else list(self.last)
            for w in range(WARPS):
                self.step(w, arrive + "barrier.cluster.wait;", *here)
        else:
            arriving, cta, waiting, arrival, wait = who
            self.init.append(f"mbarrier.init.shared.b64 [%r4+{8 * n}], {len(arriving)};")
            arrive = f"@%p0 mbarrier.arrive{arrival}.shared::cluster.b64 _, [%r{12 + cta}+{8 * n}];"
            here = [self.step(w, arrive) for w in arriving]
            for b in (b for b in waiting if b // 2 == cta):
                done = self.step(b, self._wait(n, b, wait.replace("release", "acquire")), *here)
                if "cluster" not in arrival or "cluster" not in wait:
                    self.blind |= {(a, done) for a, w in zip(here, arriving, strict=True) if w // 2 != cta}

    def _wait(self, n: int, w: int, semantics: str = ".acquire.cluster") -> str:
        wait = f"mbarrier.try_wait.parity{semantics}.shared.b64 %p2, [%r4+{8 * n}], 0;"
        return f"T{n}_{w}: {wait} @!%p2 bra T{n}_{w};"

    def source(self) -> str:
        """The kernel."""
        meet = "barrier.cluster.arrive; barrier.cluster.wait;\n"
        body = HEAD + "\n    ".join(self.init) + f"fence.mbarrier_init.release.cluster; READY: {meet}"
        for w, lines in enumerate(self.text):
            body += f"setp.ne.u32 %p3, %r2, {w}; @%p3 bra NOT{w};\n    " + "\n    ".join(lines) + f"\nNOT{w}:\n"
        return kernel(body + meet)


relayed = st.tuples(
    st.sampled_from([("write", 0, (1, 0)), ("write", 1, (0, 0)), ("send", 0, (0, 0), [0])]),
    st.tuples(st.just("pass"), st.just([0]), st.just(1), st.sampled_from([[2], [2, 3]]), scope, scope),
    st.lists(event, max_size=3),
    st.sampled_from([("read", 2, (1, 0)), ("read", 2, (0, 0)), ("write", 2, (0, 0)), ("read", 3, (1, 0))]),
).map(lambda parts: [parts[0], parts[1], *parts[2], parts[3]])
"""A write, an arrival at an mbarrier of the other CTA, and an access after the wait for it."""


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
@given(st.one_of(st.lists(event, min_size=2, max_size=EVENTS - 1), relayed))
@settings(max_examples=60, deadline=None)
def test_races_are_what_happens_in_no_order(completion, events):
    program = Program()
    for n, (what, *who) in enumerate(events):
        program.add(n, what, *who)
    expected = program.races() or program.outlives or program.unseen()
    arrays = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    try:
        Run(program.source())(*arrays, grid=2, cluster=2, block=64, racecheck=True, completion=completion)
    except RaceError as error:
        assert expected, str(error)
    else:
        assert not expected
