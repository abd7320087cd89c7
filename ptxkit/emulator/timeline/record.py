"""What a timeline records of a launch.

The unit is a *step*. A warp is one step further after each instruction that it executes, and all warps advance together. A wait
sets its warp to the step of what it has waited for. An asynchronous operation completes a fixed number of steps, the latency,
after the one that issued it. Steps say what can overlap with what; they are no time, and the emulator knows none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DEFAULT_LATENCY = 500
"""Steps for which an asynchronous operation is in flight at least."""

MOST_CTAS = 64
"""CTAs that one timeline may have."""

MOST_SPANS = 200_000
"""Spans that one launch may record; what exceeds them is counted and left out."""

RUN, EPILOGUE, WAIT = "run", "epilogue", "wait"
"""Kinds of a warp's spans. In an epilogue it reads accumulators in tensor memory, or stores to global memory."""


@dataclass(eq=False)
class Flight:
    """An asynchronous operation, from its issue to the first wait that has observed its completion.

    Attributes:
        kind: such as ``"TMA load"``. opcode: of the instruction. place: its source or PTX line.
        cta: linear index of the CTA whose memory it writes, or else of the one that issued it.
        warp: that issued it.
        issued, completes: steps.
        observed: step at which the first wait for it has passed; None if there is none.
        nbytes: that it moves; 0 for matrix products.
    """

    kind: str
    opcode: str
    place: str
    cta: int
    warp: int
    issued: int
    completes: int
    nbytes: int = 0
    observed: int | None = None


@dataclass(frozen=True)
class WarpSpan:
    """What a warp does from one step to another; ``name`` is what a wait waits for."""

    cta: int
    warp: int
    start: int
    end: int
    kind: str
    name: str


@dataclass(frozen=True)
class PhaseSpan:
    """A phase of an mbarrier, from the completion of the one before, or its initialisation, to its own."""

    cta: int
    barrier: str
    number: int
    start: int
    end: int


@dataclass(frozen=True)
class Columns:
    """Columns of tensor memory that a CTA has allocated from a step on, and those of all CTAs on its SM."""

    cta: int
    step: int
    own: int
    on_sm: int


@dataclass
class LaunchRecord:
    """One launch.

    Attributes:
        kernel: mangled or plain name. grid, block, cluster: of the launch.
        recorded: linear index of each CTA that is recorded -> its coordinates; whole clusters.
        cluster_size: CTAs of a cluster.
        ends: CTA -> the step after the last one of its warps. instructions: CTA -> warp instructions.
        dropped: spans beyond :data:`MOST_SPANS`.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    cluster_size: int
    ctas: int
    recorded: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    clusters: dict[int, int] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)
    spans: list[WarpSpan] = field(default_factory=list)
    phases: list[PhaseSpan] = field(default_factory=list)
    columns: list[Columns] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    instructions: dict[int, int] = field(default_factory=dict)
    dropped: int = 0

    def room(self) -> bool:
        """Whether one more span may be recorded; counts it as dropped if not."""
        if len(self.flights) + len(self.spans) + len(self.phases) < MOST_SPANS:
            return True
        self.dropped += 1
        return False

    def sort(self) -> None:
        """Put everything in an order that does not depend on host threads."""
        self.recorded = dict(sorted(self.recorded.items()))
        self.flights.sort(key=lambda f: (f.issued, f.cta, f.warp, f.kind, f.opcode, f.completes, f.nbytes))
        self.spans.sort(key=lambda s: (s.start, s.cta, s.warp, s.end, s.kind))
        self.phases.sort(key=lambda p: (p.start, p.cta, p.barrier, p.number))
        self.columns.sort(key=lambda c: (c.step, c.cta))
