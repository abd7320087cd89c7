"""Random programs for three warps: the race check reports a race exactly where two accesses are not ordered, or where a bulk
copy reads a write of a thread without a proxy fence between the two.

The oracle is a graph of what happens before what, without clocks: program order, and an edge for each way to synchronise.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Run, kernel

from ptxkit.errors import MemoryFault, RaceError

WARPS, CELLS, EVENTS = 3, 3, 16

HEAD = f"""
    .shared .align 128 .b32 cells[{CELLS * 32}]; .shared .align 8 .b64 bars[{EVENTS}]; .shared .b32 flags[{EVENTS}];
    mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 31; shr.u32 %r2, %r0, 5; setp.eq.u32 %p0, %r1, 0;
    mov.u32 %r3, cells; mov.u32 %r4, bars; mov.u32 %r5, flags; shl.b32 %r6, %r1, 2; add.u32 %r3, %r3, %r6;
    cvt.u64.u32 %rd2, %r6; add.u64 %rd2, %rd0, %rd2; mov.u32 %r7, cells; mov.u64 %rd3, %rd1;
    setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
"""
"""%r3 and %rd2 point to the lane's element of the first cell and of the array, %r7 to the cells; %p0 is a warp's first lane."""

warp = st.integers(0, WARPS - 1)
cell = st.integers(0, CELLS - 1)
some = st.sets(warp, min_size=1).map(sorted)
access = st.tuples(st.sampled_from(["read", "write", "read", "write", "copy", "save"]), warp, cell)
passing = st.tuples(st.sampled_from(["bar", "mbarrier", "release", "flag", "relaxed", "fenced"]), some, some)
event = st.one_of(
    access,
    access,
    passing,
    st.tuples(st.just("meet"), some),
    st.tuples(st.just("bring"), warp, cell, some),
    st.tuples(st.sampled_from(["drain", "saved"]), warp, st.integers(0, 1)),
    st.tuples(st.sampled_from(["fence", "show"]), warp),
)
handover = st.tuples(
    st.sampled_from(["bar", "mbarrier", "release", "fenced"]), st.just([0]), st.sampled_from([[1], [1, 2], [0, 1]])
)
back = st.tuples(st.sampled_from(["bar", "mbarrier"]), st.just([1]), st.just([2]))
shown = st.tuples(st.just("show"), warp)
stored = st.sampled_from([[("write", 0, 0)], [("copy", 0, 0), ("drain", 0, 0)], [("write", 2, 0), ("meet", [0, 2])]])
seen_by_proxy = st.tuples(
    stored,
    st.lists(st.one_of(shown, shown, handover, back, st.just(("write", 2, 0)), st.just(("meet", [0, 1]))), max_size=6),
    st.sampled_from([[("save", 1, 0)], [("save", 0, 0)], [("save", 2, 0)], [("save", 1, 0), ("show", 1), ("save", 1, 0)]]),
).map(lambda parts: [event for part in parts for event in part])
"""A write, some of the fences and synchronisation that it needs, and a bulk copy that reads it."""


class Graph:
    """The text of each of some warps' programs, and the graph of what happens before what."""

    def __init__(self, warps: int) -> None:
        self.warps = warps
        self.text: list[list[str]] = [[] for _ in range(warps)]
        self.last = list(range(warps))
        self.after: list[set[int]] = [set() for _ in range(warps)]
        self.accesses: list[tuple[int, int, Any, bool]] = []  # node, agent, cell, writes

    def node(self, *before: int) -> int:
        """A new node after these."""
        self.after.append(set())
        for b in before:
            self.after[b].add(len(self.after) - 1)
        return len(self.after) - 1

    def step(self, w: int, text: str, *before: int) -> int:
        """The next node of warp ``w``, after its last node and these."""
        self.text[w].append(text)
        self.last[w] = self.node(self.last[w], *before)
        return self.last[w]

    def beside(self, start: int, c: Any, writes: bool) -> int:
        """An asynchronous operation that begins after ``start`` and accesses a cell as an agent of its own."""
        node = self.node(start)
        self.accesses.append((node, self.warps + len(self.accesses), c, writes))
        return node

    def races(self) -> list[tuple[int, int]]:
        """Pairs of accesses to one cell, at least one of which writes, where neither happens before the other."""
        reach = [0] * len(self.after)
        for a in reversed(range(len(self.after))):
            for b in self.after[a]:
                reach[a] |= 1 << b | reach[b]
        self.reach = reach
        return [
            (a, b)
            for (a, who, c, writes), (b, other, d, too) in combinations(self.accesses, 2)
            if who != other and c == d and (writes or too) and not (reach[a] >> b & 1 or reach[b] >> a & 1)
        ]


class Program(Graph):
    """Three warps of one CTA."""

    def __init__(self) -> None:
        super().__init__(WARPS)
        self.init: list[str] = []
        self.copies: list[list[int]] = [[] for _ in range(WARPS)]
        self.saves: list[list[int]] = [[] for _ in range(WARPS)]
        self.fenced: list[int | None] = [None] * WARPS
        self.shown: list[int] = []  # proxy fences
        self.generic: list[tuple[int, int]] = []  # writes of cells by threads and cp.async
        self.replaced: list[tuple[int, int]] = []  # writes of cells by bulk copies
        self.read: list[tuple[int, int]] = []  # reads of cells by bulk copies
        self.seen: list[list[int]] = [[] for _ in range(WARPS)]

    def fence(self, w: int) -> None:
        """A fence by warp ``w``."""
        at = self.step(w, "fence.acq_rel.cta;", *self.seen[w])
        self.seen[w], self.fenced[w] = [], at

    def show(self, w: int) -> None:
        """A proxy fence by warp ``w``."""
        self.shown.append(self.step(w, "fence.proxy.async;"))

    def hidden(self) -> list[tuple[int, int]]:
        """Reads by bulk copies of what happened before, with no proxy fence in between; needs :meth:`races`."""
        before = lambda a, b: self.reach[a] >> b & 1  # noqa: E731
        return [
            (a, b)
            for a, c in self.generic
            for b, d in self.read
            if c == d
            and before(a, b)
            and not any(before(a, f) and before(f, b) for f in self.shown)
            and not any(c == e and before(a, w) and before(w, b) for w, e in self.replaced)
        ]

    def add(self, n: int, what: str, *who) -> None:
        """Append an event."""
        if what in ("read", "write"):
            w, c = who
            text = (
                f"ld.shared.b32 %r9, [%r3+{128 * c}];" if what == "read" else f"st.shared.b32 [%r3+{128 * c}], {n + 1};"
            )
            self.accesses.append((self.step(w, text), w, c, what == "write"))
            if what == "write":
                self.generic.append((self.last[w], c))
        elif what == "copy":
            w, c = who
            text = f"cp.async.ca.shared.global [%r3+{128 * c}], [%rd2+{128 * c}], 4; cp.async.commit_group;"
            self.copies[w].append(self.beside(self.step(w, text), c, True))
            self.generic.append((self.copies[w][-1], c))
        elif what == "save":
            w, c = who
            text = f"cp.async.bulk.global.shared::cta.bulk_group [%rd3+128], [%r7+{128 * c}], 128;"
            text = f"@%p0 {text} cp.async.bulk.commit_group;"
            self.saves[w].append(self.beside(self.step(w, text), c, False))
            self.read.append((self.saves[w][-1], c))
        elif what in ("drain", "saved"):
            w, newest = who
            groups, opcode = (
                (self.copies, "cp.async.wait_group")
                if what == "drain"
                else (self.saves, "cp.async.bulk.wait_group.read")
            )
            self.step(w, f"{opcode} {newest};", *groups[w][: len(groups[w]) - newest])
        elif what == "meet":
            self._barrier(n, [], who[0])
        elif what == "fence":
            self.fence(who[0])
        elif what == "show":
            self.show(who[0])
        else:
            getattr(self, f"_{what}")(n, *who)

    def _barrier(self, n: int, arriving: list[int], waiting: list[int]) -> None:
        count = 32 * (len(arriving) + len(waiting))
        here = [self.step(w, f"bar.arrive {n % 15 + 1}, {count};") for w in arriving] + [self.last[w] for w in waiting]
        for w in waiting:
            self.step(w, f"bar.sync {n % 15 + 1}, {count};", *here)

    def _bar(self, n: int, arriving: list[int], waiting: list[int]) -> None:
        self._barrier(n, [w for w in arriving if w not in waiting], waiting)

    def _mbarrier(self, n: int, arriving: list[int], waiting: list[int]) -> None:
        self.init.append(f"mbarrier.init.shared.b64 [%r4+{8 * n}], {len(arriving)};")
        here = [self.step(w, f"@%p0 mbarrier.arrive.shared.b64 %rd5, [%r4+{8 * n}];") for w in arriving]
        for w in waiting:
            self.step(w, self._wait(n, w), *here)

    def _bring(self, n: int, w: int, c: int, waiting: list[int]) -> None:
        """A bulk copy, and the warps that wait for it."""
        self.init.append(f"mbarrier.init.shared.b64 [%r4+{8 * n}], 1;")
        copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        start = self.step(
            w,
            f"@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r4+{8 * n}], 128;"
            f"@%p0 {copy} [%r7+{128 * c}], [%rd0], 128, [%r4+{8 * n}];",
        )
        done = self.beside(start, c, True)
        self.replaced.append((done, c))
        for b in waiting:
            self.step(b, self._wait(n, b), start, done)

    def _wait(self, n: int, w: int) -> str:
        return f"T{n}_{w}: mbarrier.try_wait.parity.shared.b64 %p2, [%r4+{8 * n}], 0; @!%p2 bra T{n}_{w};"

    def _release(self, n: int, arriving: list[int], waiting: list[int]) -> None:
        here = self.step(arriving[0], f"@%p0 st.release.cta.shared.b32 [%r5+{4 * n}], 1;")
        for w in waiting:
            self.step(w, self._spin(n, w, "acquire.cta"), here)

    def _flag(self, n: int, arriving: list[int], waiting: list[int]) -> None:
        """A barrier through flags in global memory."""
        here = self.step(arriving[0], f"@%p0 red.release.gpu.global.add.u32 [%rd3+{4 * n}], 1;")
        for w in waiting:
            loop = (
                f"F{n}_{w}: ld.acquire.gpu.global.b32 %r9, [%rd3+{4 * n}]; setp.eq.u32 %p2, %r9, 0; @%p2 bra F{n}_{w};"
            )
            self.step(w, loop, here)

    def _relaxed(self, n: int, arriving: list[int], waiting: list[int]) -> None:
        """Orders what precedes the last fence of one warp before what follows the next fence of the others."""
        before = self.fenced[arriving[0]]
        self.step(arriving[0], f"@%p0 st.relaxed.cta.shared.b32 [%r5+{4 * n}], 1;")
        for w in waiting:
            self.step(w, self._spin(n, w, "volatile"))
            if before is not None:
                self.seen[w].append(before)

    def _fenced(self, n: int, arriving: list[int], waiting: list[int]) -> None:
        self.fence(arriving[0])
        self._relaxed(n, arriving, waiting)
        for w in waiting:
            self.fence(w)

    def _spin(self, n: int, w: int, how: str) -> str:
        return f"S{n}_{w}: ld.{how}.shared.b32 %r9, [%r5+{4 * n}]; setp.eq.u32 %p2, %r9, 0; @%p2 bra S{n}_{w};"

    def source(self) -> str:
        """The kernel."""
        zero = " ".join(f"st.shared.b32 [%r5+{4 * n}], 0;" for n in range(EVENTS))
        body = HEAD + zero + "\n    ".join(self.init) + "fence.mbarrier_init.release.cluster; READY: bar.sync 0;\n"
        for w, lines in enumerate(self.text):
            # a store that still reads shared memory when the CTA exits is an error of its own; this wait is after all accesses
            lines = [*lines, "cp.async.bulk.wait_group.read 0; ret;"]
            body += f"setp.ne.u32 %p3, %r2, {w}; @%p3 bra NOT{w};\n    " + "\n    ".join(lines) + f"\nNOT{w}:\n"
        return kernel(body)


class Synchronised(Program):
    """The same with a check of lanes: the lanes of each warp synchronize before and after every event."""

    def step(self, w: int, text: str, *before: int) -> int:
        return super().step(w, f"bar.warp.sync -1; {text} bar.warp.sync -1;", *before)


class Lanes(Program):
    """Three lanes of one warp, which take different branches."""

    def _barrier(self, n: int, arriving: list[int], waiting: list[int]) -> None:
        here = [self.last[w] for w in waiting]
        for w in waiting:
            self.step(w, f"bar.warp.sync {sum(1 << b for b in waiting)};", *here)

    def _bar(self, n: int, arriving: list[int], waiting: list[int]) -> None:
        self._mbarrier(n, arriving, waiting)

    def source(self) -> str:
        return (
            super().source().replace("and.b32 %r1, %r0, 31; shr.u32 %r2, %r0, 5;", "mov.u32 %r1, 0; mov.u32 %r2, %r0;")
        )


KINDS = pytest.mark.parametrize(
    ("kind", "block", "racecheck"),
    [(Program, 32 * WARPS, "warps"), (Synchronised, 32 * WARPS, "lanes"), (Lanes, 32, "lanes")],
    ids=["warps", "synchronised", "lanes"],
)


def compare(kind, block, racecheck, completion, events) -> None:
    """Whether an error is raised must be what the graph says."""
    program = kind()
    for n, (what, *who) in enumerate(events):
        program.add(n, what, *who)
    expected = program.races() or program.hidden()
    arrays = np.zeros(CELLS * 32, np.uint32), np.zeros(64, np.uint32)
    try:
        Run(program.source())(*arrays, block=block, racecheck=racecheck, completion=completion)
    except (RaceError, MemoryFault) as error:
        assert expected, str(error)
    else:
        assert not expected


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
@KINDS
@given(st.lists(event, min_size=2, max_size=EVENTS - 1))
@settings(max_examples=40, deadline=None)
def test_races_are_what_happens_in_no_order(kind, block, racecheck, completion, events):
    compare(kind, block, racecheck, completion, events)


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
@KINDS
@given(seen_by_proxy)
@settings(max_examples=40, deadline=None)
def test_the_async_proxy_sees_what_happens_before_a_proxy_fence_that_happens_before(
    kind, block, racecheck, completion, events
):
    compare(kind, block, racecheck, completion, events)
