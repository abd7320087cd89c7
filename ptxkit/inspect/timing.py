"""The time of an inspected variant on a GPU, shown with its code."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxkit.inspect.subject import Subject
    from ptxkit.runtime.device import Device
    from ptxkit.targets import Target


def runs_on(code: Target, gpu: Target) -> bool:
    """Whether a cubin for ``code`` runs on ``gpu``: the same target, a family's, or an older one of the same major version."""
    if code.suffix:
        return code.cc == gpu.cc or (code.suffix == "f" and gpu.accepts(code))
    return code.cc // 10 == gpu.cc // 10 and code.cc <= gpu.cc


def time_us(subject: Subject, device: Device) -> float | None:
    """Median device time in microseconds of all launches of the variant that a kernel belongs to, cold L2.

    Returns:
        None for a kernel of a file, which has neither sizes nor inputs; for code that the device cannot run; and where there
        is no reliable clock.

    Raises:
        UsageError: the variant's sizes need more memory than the device has.
    """
    from ptxkit.bench.measure.run import Run

    built = subject.build
    if built is None or device.target is None or not runs_on(built.target, device.target):
        return None
    tile = {name: built.tile[name] for name in built.tile}
    run = Run(built.workload, device, variants=(built.variant.name,), target=built.target, tile=tile)
    (row,) = run.run().cases[0].rows
    return row.cold.median_us if row.cold else None
