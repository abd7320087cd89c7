"""``--check`` and ``--update-expectations`` of ``bench run``: times of a GPU, or counts of the emulator for a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxkit.errors import UnavailableError, UsageError
from ptxkit.exit_codes import ExitCode, most_severe

if TYPE_CHECKING:
    from ptxkit.bench.cases import Plan
    from ptxkit.bench.results.results import CaseResult, Results
    from ptxkit.runtime.device import Device
    from ptxkit.targets import Target


class Expectations:
    """The file of expectations of a device.

    Args:
        device: the device that measures. target: the one that ``--arch`` names, or None.
        check: compare results with the file. update: enter results in the file.

    Attributes:
        of_counts: whether the device counts instead of measuring times.
        path: the file.
        loaded: its value where results are compared with it, of counts with complete tiles; None without ``check``.
        gone: texts about what is recorded and no longer exists. notes: texts about variants that are run with another tile than
            by default.

    Raises:
        UnavailableError: there is no file to compare with.
        UsageError: it holds something else, cannot be written, or ``--arch`` was given for times.
    """

    def __init__(self, device: Device, target: Target | None, *, check: bool, update: bool) -> None:
        from ptxkit.bench.results import count_expectations, expectations
        from ptxkit.runtime.device import is_timed
        from ptxkit.targets import lowest_target

        self.of_counts = not is_timed(device)
        self.update = update
        self._device, self._arch = device, target
        self._entered: list[CaseResult] = []  # cases of the results that are in the file already
        self.gone: list[str] = []
        self.notes: list[str] = []
        self.target = (target or lowest_target(())).name
        if self.of_counts:
            self.path, self._reader = count_expectations.path_for(self.target), count_expectations.load
        else:
            self.path, self._reader = expectations.path_for(device.name), expectations.load
            if target is not None and (check or update):
                option = "--check" if check else "--update-expectations"
                raise UsageError(f"{option} compares times of code for this GPU's own target; leave out --arch")
        self.loaded: Any = self._reader(self.path) if check else None
        if self.loaded is not None and self.of_counts:
            from ptxkit.bench.recorded import completed

            self.loaded = completed(self.loaded, self.base)
        if update:
            expectations.check_recordable(self.path, self._reader)

    @property
    def base(self) -> Path:
        """The directory relative to which descriptions of users are recorded."""
        return self.path.absolute().parent.parent

    def every_plan(self) -> list[Plan]:
        """The recorded cases, for ``--check`` of counts without KERNEL.

        Raises:
            UnavailableError: nothing is recorded. UsageError: nothing of it exists any more.
        """
        from ptxkit.bench import recorded
        from ptxkit.bench.results.count_expectations import parsed

        chosen, self.gone = recorded.every_plan(parsed(self.loaded), self.base)
        if not chosen and self.gone:
            raise UsageError(f"nothing that {self.path} records exists any more; {self.gone[0]}")
        if not chosen:
            raise UnavailableError(f"no case is recorded in {self.path}; give kernels with --update-expectations")
        return chosen

    def as_recorded(self, chosen: Sequence[Plan], *, seed: bool, tile: bool) -> list[Plan]:
        """The plans with the recorded seeds and tiles, for ``--check`` of counts.

        Args:
            seed, tile: whether the command gives them, which replaces the recorded ones.
        """
        from ptxkit.bench import recorded
        from ptxkit.bench.results.count_expectations import parsed

        if not self.of_counts or self.loaded is None or self.update:
            return list(chosen)
        expected = parsed(self.loaded)
        self.gone = self.gone or recorded.gone_of(chosen, expected)
        made = [again for plan in chosen for again in recorded.as_recorded(plan, expected, seed=not seed, tile=not tile)]
        self.notes = list(recorded.other_defaults(made, self._device, self._arch))
        return made

    def unrecorded(self, chosen: Sequence[Plan]) -> list[Plan]:
        """The plans whose cases are not in the file, or not with the variants that the plan names; all where there is no file.

        A plan that names no variant needs the one that :func:`ptxkit.workload.choice.choose` takes, so that a case is measured
        again once a newer variant is the choice.

        Raises:
            UsageError, FileAccessError: the file is something else, or cannot be read.
        """
        from ptxkit.bench.recorded import key_of

        recorded = self._reader(self.path)["cases"] if self.path.is_file() else {}
        rows = {key: set(case["rows"]) for key, case in recorded.items()}
        return [
            plan for plan in chosen if (key := key_of(plan)) not in rows or not rows[key].issuperset(self._wanted(plan))
        ]

    def _wanted(self, plan: Plan) -> tuple[str, ...]:
        """The variants that a record of the plan must have; none where no variant can run."""
        from ptxkit.workload.choice import choose

        if plan.variants:
            return plan.variants
        try:
            choice = choose(plan.workload.on(self._device.facts_for(self._arch)), self._device, self._arch)
        except UnavailableError:
            return ()
        return (choice.chosen.name,)

    def enter(self, results: Results) -> None:
        """Enter the cases that are new since the last call in the file, with ``update``; called after each case."""
        from ptxkit.bench.results import count_expectations, expectations

        new = replace(results, cases=tuple(c for c in results.cases if not any(c is one for one in self._entered)))
        if self.update and (count_expectations if self.of_counts else expectations).recordable(new):
            expectations.record(self.path, lambda known: self._updated(known, new), self._reader)
        self._entered += new.cases

    def checked_and_recorded(self, results: Results) -> ExitCode:
        """Compare results with the file and enter them there, as far as was requested; return the exit code."""
        from ptxkit.bench.results import count_expectations, expectations
        from ptxkit.cli import _bench_verdict
        from ptxkit.cli._text import to_stderr

        code = ExitCode.DONE
        if self.loaded is not None:
            checked = _bench_verdict.counts_checked if self.of_counts else _bench_verdict.checked
            code = checked(self.loaded, results)
            gone = self.gone if self.of_counts else self._gone_variants(results)
            for text in gone:
                to_stderr(f"error: {text}; remove it from {self.path}, or record again", fg="red")
            for text in self.notes:
                to_stderr(text)
            code = most_severe([code, ExitCode.WRONG if gone else ExitCode.DONE])
        if self.update:
            if not (count_expectations if self.of_counts else expectations).recordable(results):
                to_stderr(f"nothing is recorded in {self.path}: no variant has a result that can be")
                return code
            self.enter(results)
            to_stderr(f"recorded in {self.path}")
        return code

    def _gone_variants(self, results: Results) -> list[str]:
        from ptxkit.bench.recorded import gone_variants

        return [f"{key} {name}: is recorded, but no longer exists" for key, name in gone_variants(self.loaded, results.cases)]

    def _updated(self, known: dict[str, Any] | None, results: Results) -> dict[str, Any]:
        from ptxkit.bench.recorded import gone_variants
        from ptxkit.bench.results import count_expectations, expectations

        gone = [] if known is None else gone_variants(known, results.cases)
        if self.of_counts:
            return count_expectations.updated(known, results, self.target, gone, self.base)
        return expectations.updated(known, results, gone)
