"""What is in flight at the same time in the recorded CTAs of a launch: figures of a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ptxkit.emulator.timeline.record import EPILOGUE, LaunchRecord
from ptxkit.inspect.model import SassFunction
from ptxkit.inspect.trace import PRODUCTS, Traced, end_of, levels

OPCODES = (
    "UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCOMMA", "HGMMA", "QGMMA", "IGMMA", "HMMA", "IMMA", "DMMA", "LDTM", "STTM", "UTCCP",
    "UTMALDG", "UTMASTG", "UBLKCP", "LDGSTS", "UTCBAR", "SYNCS",
)  # fmt: skip
"""SASS of tensor cores, tensor memory, asynchronous copies, and of the barriers that these complete on."""

Interval = tuple[int, int]


@dataclass(frozen=True)
class Overlap:
    """One launch.

    Attributes:
        variant: ``"matmul_tcgen05:step1_one_stage"``. kernel: its name. launch: number in the variant.
        steps: of the recorded CTA that takes most. instructions: warp instructions of the recorded CTAs.
        tma_bytes_max, tma_bytes_mean: bytes of TMA loads in flight into one CTA; the mean is over its steps.
        products_max, products_mean: tcgen05.mma and wgmma in flight in one cluster, or CTA.
        epilogue_steps: steps at which a warp of the cluster is in its epilogue. overlapped: of these, those at which
            matrix products are in flight, too.
        columns: the most columns of tensor memory that a CTA has allocated. columns_on_sm: that CTAs on one SM have.
        registers: of a thread; None where the machine code does not say. sass: opcode -> number of instructions.
    """

    variant: str
    kernel: str
    launch: int
    steps: int
    instructions: int
    tma_bytes_max: int
    tma_bytes_mean: float
    products_max: int
    products_mean: float
    epilogue_steps: int
    overlapped: int
    columns: int
    columns_on_sm: int
    registers: int | None = None
    sass: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The values as one JSON object."""
        return asdict(self)


def overlaps(traced: Traced, functions: Sequence[SassFunction]) -> list[Overlap]:
    """The figures of each launch; ``functions`` are the machine code of its kernels, in any order."""
    by_name = {f.name: f for f in functions}
    return [_of(traced.title, n, record, by_name.get(record.kernel)) for n, record in enumerate(traced.launches)]


def _of(title: str, number: int, record: LaunchRecord, function: SassFunction | None) -> Overlap:
    from ptxkit.isa.mangled import base_name

    loads = [_loads(record, cta) for cta in record.recorded] or [(0, 0.0)]
    clusters = sorted(set(record.clusters.values()))
    products = [_products(record, first) for first in clusters] or [(0, 0.0)]
    epilogues = [_epilogues(record, first) for first in clusters]
    found = {} if function is None else {o: n for o in OPCODES if (n := _count(function, o))}
    return Overlap(
        title,
        base_name(record.kernel),
        number,
        max(record.ends.values(), default=0),
        sum(record.instructions.values()),
        max(most for most, _ in loads),
        max(mean for _, mean in loads),
        max(most for most, _ in products),
        max(mean for _, mean in products),
        sum(total for total, _ in epilogues),
        sum(both for _, both in epilogues),
        max((c.own for c in record.columns), default=0),
        max((c.on_sm for c in record.columns), default=0),
        None if function is None else function.resources.registers,
        found,
    )


def _count(function: SassFunction, opcode: str) -> int:
    return sum(i.opcode.split(".")[0] == opcode for i in function.instructions)


def _loads(record: LaunchRecord, cta: int) -> tuple[int, float]:
    spans = [(f.issued, end_of(f, record), f.nbytes) for f in record.flights if f.cta == cta and f.kind == "TMA load"]
    return _level(spans, record.ends.get(cta, 0))


def _products(record: LaunchRecord, first: int) -> tuple[int, float]:
    ctas = [cta for cta, leader in record.clusters.items() if leader == first]
    spans = [(f.issued, end_of(f, record), 1) for f in record.flights if f.cta in ctas and f.kind in PRODUCTS]
    return _level(spans, max((record.ends.get(cta, 0) for cta in ctas), default=0))


def _level(spans: list[tuple[int, int, int]], steps: int) -> tuple[int, float]:
    """The maximum of the sum of weighted spans, and its mean over ``steps``."""
    most = max((level for _, level in levels(spans)), default=0)
    return most, sum((end - start) * weight for start, end, weight in spans) / max(steps, 1)


def _epilogues(record: LaunchRecord, first: int) -> tuple[int, int]:
    """Steps of a cluster's epilogues, and of those the ones with matrix products in flight."""
    ctas = [cta for cta, leader in record.clusters.items() if leader == first]
    epilogue = merged([(s.start, s.end) for s in record.spans if s.cta in ctas and s.kind == EPILOGUE])
    products = merged([(f.issued, end_of(f, record)) for f in record.flights if f.cta in ctas and f.kind in PRODUCTS])
    both = 0
    for start, end in epilogue:
        both += sum(max(0, min(end, e) - max(start, s)) for s, e in products)
    return sum(end - start for start, end in epilogue), both


def merged(intervals: list[Interval]) -> list[Interval]:
    """The union of intervals as disjoint ones, in order."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif end > start:
            found.append((start, end))
    return found
