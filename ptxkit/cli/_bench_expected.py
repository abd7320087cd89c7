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
            self.path, reader = count_expectations.path_for(self.target), count_expectations.load
        else:
            self.path, reader = expectations.path_for(device.name), expectations.load
            if target is not None and (check or update):
                option = "--check" if check else "--update-expectations"
                raise UsageError(f"{option} compares times of code for this GPU's own target; leave out --arch")
        self.loaded: Any = reader(self.path) if check else None
        self._recorded = expectations.prepared(self.path, reader) if update else None

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
            if self.of_counts:
                value = count_expectations.updated(self._recorded, results, self.target)
            else:
                value = expectations.updated(self._recorded, results)
            expectations.save(self.path, value)
            to_stderr(f"recorded in {self.path}")
        return code
