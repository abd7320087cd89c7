"""Errors of ``ptxkit bench`` on stderr, and the exit code that follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ptxkit.exit_codes import ExitCode, most_severe

if TYPE_CHECKING:
    from ptxkit.bench.results.results import CaseResult, Results, Row


def complain(results: Results) -> ExitCode:
    """Print a line for each result that is wrong or impossible and each variant without one; return the exit code."""
    return complain_of(results.cases)


def complain_of(cases: Sequence[CaseResult]) -> ExitCode:
    """:func:`complain` of the cases alone."""
    from ptxkit.cli._text import to_stderr

    codes: list[int] = []
    for case in cases:
        failures: dict[str, list[str]] = {}  # variants that fail alike share a line
        for row in case.rows:
            for complaint, exit_code in _complaints(row):
                failures.setdefault(complaint, []).append(row.name)
                codes.append(exit_code)
        for complaint, names in failures.items():
            to_stderr(f"error: {case.key} {', '.join(names)}: {complaint}", fg="red")
        variants = [row for row in case.rows if row.kind == "variant"]
        if all(row.skipped is not None for row in variants):
            skipped = ", ".join(row.name for row in variants) or "no variants"
            to_stderr(f"error: {case.key}: nothing was verified, every variant was skipped: {skipped}", fg="red")
            codes.append(ExitCode.NOTHING_VERIFIED)
    if not cases:
        to_stderr("error: nothing was verified: no kernel can run here", fg="red")
        codes.append(ExitCode.NOTHING_VERIFIED)
    return most_severe(codes)


def _complaints(row: Row) -> Iterator[tuple[str, int]]:
    for alarm in row.alarms:
        yield alarm, ExitCode.WRONG
    if row.kind == "variant" and row.error:
        yield row.error, row.exit_code
    if row.verified is False:
        yield f"wrong result: {row.worst}", ExitCode.WRONG


def checked(expected: Mapping[str, Any], results: Results) -> ExitCode:
    """Compare with expectations: 1 where a variant is slower, 3 where no case has an expectation."""
    from ptxkit.bench.results import expectations
    from ptxkit.cli._text import to_stderr

    found = list(expectations.check(expected, results))
    for h in found:
        if h.judgement.word == "slower":
            times = f"{h.found_us:.4g} us, expected {h.expected_us:.4g} us"
            code = f", {h.code}" if h.code else ""
            to_stderr(f"error: {h.case} {h.row} {h.mode}: {times}: {h.judgement}{code}", fg="red")
    unknown = [case.key for case in results.cases if case.key not in expected["cases"]]
    if not found:
        which = ", ".join(unknown) or "these variants"
        to_stderr(f"error: no expectations found for {which}; --update-expectations records them", fg="red")
        return ExitCode.UNAVAILABLE
    slower = sum(h.judgement.word == "slower" for h in found)
    to_stderr(f"{len(found)} times compared with expectations: {slower} slower")
    for key in unknown:
        to_stderr(f"{key}: no expectations found")
    return ExitCode.WRONG if slower else ExitCode.DONE


def counts_checked(expected: Mapping[str, Any], results: Results) -> ExitCode:
    """Compare with recorded counts: 1 where a variant counts more, 3 where no variant has expectations."""
    from ptxkit.bench.results import count_expectations
    from ptxkit.cli._text import number_of, to_stderr

    found = count_expectations.check(expected, results)
    if not found.compared:
        to_stderr("error: no variant has counts to be compared with; --update-expectations records them", fg="red")
        for note in found.notes:
            to_stderr(note)
        return ExitCode.UNAVAILABLE
    for d in found.differences:
        if d.more:
            to_stderr(f"error: {d.case} {d.row}: {d}", fg="red")
    for d in found.differences:
        if not d.more:
            to_stderr(f"{d.case} {d.row}: {d}; --update-expectations records it")
    for note in found.notes:
        to_stderr(note)
    if found.of_kernel_only:
        versions = ", ".join(found.versions)
        to_stderr(
            f"{number_of(found.of_kernel_only, 'variant')}: recorded with NVRTC {versions}, compiled with "
            f"{results.environment.get('nvrtc')}: bytes, flops and launches are compared, instructions are not"
        )
    more = {(d.case, d.row) for d in found.differences if d.more}
    to_stderr(
        f"counts of {number_of(found.compared, 'variant')} compared with expectations: "
        f"{len(found.differences)} differ, {number_of(len(more), 'variant')} with more than expected"
    )
    return ExitCode.WRONG if more else ExitCode.DONE


def rerun(before: Results, after: Results) -> ExitCode:
    """Exit code of a result file run again: 1 if a variant is slower, or could not be timed again."""
    from ptxkit.bench.results.comparison import compared
    from ptxkit.cli._text import to_stderr

    slower = any(c.kind == "variant" and c.judgement.word == "slower" for c in compared(before, after))
    lost = False
    for case in after.cases:
        old = before.case(case.key)
        for row in old.rows if old else ():
            now = case.row(row.name)
            if row.kind == "variant" and row.cold and (now is None or (now.cold is None and now.error is None)):
                to_stderr(f"error: {case.key} {row.name}: has a time in the result file, and none now", fg="red")
                lost = True
    return ExitCode.WRONG if slower or lost else ExitCode.DONE
