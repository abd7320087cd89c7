"""``--check`` and ``--update-expectations`` of ``bench run``: times of a GPU, or counts of the emulator for a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptxkit.errors import UsageError
from ptxkit.exit_codes import ExitCode

if TYPE_CHECKING:
    from ptxkit.bench.results.results import Results
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
        loaded: its value where results are compared with it; None without ``check``.

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
        self.target = (target or lowest_target(())).name
        if self.of_counts:
            self.path, self._reader = count_expectations.path_for(self.target), count_expectations.load
        else:
            self.path, self._reader = expectations.path_for(device.name), expectations.load
            if target is not None and (check or update):
                option = "--check" if check else "--update-expectations"
                raise UsageError(f"{option} compares times of code for this GPU's own target; leave out --arch")
        self.loaded: Any = self._reader(self.path) if check else None
        if update:
            expectations.check_recordable(self.path, self._reader)

    def checked_and_recorded(self, results: Results) -> ExitCode:
        """Compare results with the file and enter them there, as far as was asked for; return the exit code."""
        from ptxkit.bench.results import count_expectations, expectations
        from ptxkit.cli import _bench_verdict
        from ptxkit.cli._text import to_stderr

        code = ExitCode.DONE
        if self.loaded is not None:
            checked = _bench_verdict.counts_checked if self.of_counts else _bench_verdict.checked
            code = checked(self.loaded, results)
        if self.update:
            if not (count_expectations if self.of_counts else expectations).recordable(results):
                to_stderr(f"nothing is recorded in {self.path}: no variant has a result that can be")
                return code
            expectations.record(self.path, lambda known: self._updated(known, results), self._reader)
            to_stderr(f"recorded in {self.path}")
        return code

    def _updated(self, known: dict[str, Any] | None, results: Results) -> dict[str, Any]:
        from ptxkit.bench.results import count_expectations, expectations

        if self.of_counts:
            return count_expectations.updated(known, results, self.target)
        return expectations.updated(known, results)
