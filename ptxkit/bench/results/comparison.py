"""Comparison of two results of the same cases: each time, and each peer's time relative to the fastest variant. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ptxkit.bench.results.judge import Judgement, judge, judge_ratio
from ptxkit.bench.results.results import CaseResult, Mode, Results, Row, Timed

MODES: tuple[Mode, ...] = ("cold", "hot")
LAUNCHES_ALIKE = 0.05  # relative difference of plain launches that is not reported


@dataclass(frozen=True)
class Compared:
    """A candidate's times in both results.

    Attributes:
        case: its key. row, kind: which candidate. before, after: its times.
        judgement: of the second by the first.
        code: whether it is the same machine code, or the same version of a peer.
    """

    case: str
    row: str
    kind: Literal["variant", "peer"]
    mode: Mode
    before: Timed
    after: Timed
    judgement: Judgement
    code: str


@dataclass(frozen=True)
class Distance:
    """A peer's time over that of a variant, in both results: more than 1 where the variant is faster.

    Attributes:
        case: its key. variant: the fastest of the first result that both have, and so the same variant in both.
        judgement: "faster" if the ratio has improved for the variant. The samples are interleaved: a change of the clock
            affects both.
    """

    case: str
    peer: str
    variant: str
    mode: Mode
    before: float
    after: float
    judgement: Judgement


def compared(before: Results, after: Results) -> Iterator[Compared]:
    """Every time that both have."""
    for case, other in _common(before, after):
        for row in case.rows:
            now = other.row(row.name)
            for mode in MODES:
                a, b = row.timed(mode), now.timed(mode) if now else None
                if now and a and b:
                    yield Compared(case.key, row.name, row.kind, mode, a, b, judge(a, b), _code(row, now))


def distances(before: Results, after: Results) -> Iterator[Distance]:
    """Every peer that both timed, compared with the fastest variant that both timed and found right."""
    for case, other in _common(before, after):
        for mode in MODES:
            ours = _fastest(case, other, mode)
            for peer in case.rows:
                now = other.row(peer.name)
                times = (peer.timed(mode), now.timed(mode) if now else None)
                if peer.kind != "peer" or ours is None or times[0] is None or times[1] is None:
                    continue
                name, mine_before, mine_after = ours
                then, today = times[0].median_us / mine_before.median_us, times[1].median_us / mine_after.median_us
                judgement = judge_ratio((mine_before, times[0]), (mine_after, times[1]))
                yield Distance(case.key, peer.name, name, mode, then, today, judgement)


def other_launches(before: Results, after: Results) -> Iterator[str]:
    """A line for each case whose plain launches took another time; only where both results have that time."""
    for case, other in _common(before, after):
        spans = [t.conditions.plain_launch_us if t.conditions else None for t in (case, other)]
        if spans[0] and spans[1] and abs(spans[1].median / spans[0].median - 1) > LAUNCHES_ALIKE:
            yield (
                f"{case.key}: a plain launch took {spans[0].median:.2f} us, then {spans[1].median:.2f}: "
                "times of a few microseconds differ by that"
            )


def _common(before: Results, after: Results) -> Iterator[tuple[CaseResult, CaseResult]]:
    for case in before.cases:
        other = after.case(case.key)
        if other is not None:
            yield case, other


def _fastest(case: CaseResult, other: CaseResult, mode: Mode) -> tuple[str, Timed, Timed] | None:
    """Name and both times of the variant that was the fastest in ``case``, of those that are right in both."""
    found: list[tuple[str, Timed, Timed]] = []
    for row in case.rows:
        now = other.row(row.name)
        if row.kind == "variant" and now and _right(row) and _right(now):
            a, b = row.timed(mode), now.timed(mode)
            if a and b:
                found.append((row.name, a, b))
    return min(found, key=lambda f: f[1].median_us, default=None)


def _right(row: Row) -> bool:
    return row.verified is not False and not row.alarms


def _code(before: Row, after: Row) -> str:
    if not before.cubin_sha256:
        return "same version" if before.version == after.version else f"{before.version} -> {after.version}"
    if before.cubin_sha256 == after.cubin_sha256:
        return "same cubin"
    if before.code_sha256 and before.code_sha256 == after.code_sha256:
        return "same code"
    return "same PTX, other cubin" if before.source_sha256 == after.source_sha256 else "changed"
