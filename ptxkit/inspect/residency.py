"""Occupancy of a disassembled kernel, from its resources and launch bounds (:mod:`ptxkit.targets.occupancy`)."""

from __future__ import annotations

from ptxkit.errors import UsageError
from ptxkit.inspect.model import SassFunction
from ptxkit.targets import Target
from ptxkit.targets.occupancy import Occupancy, calculate

__all__ = ["Occupancy", "default_block", "occupancy"]


def occupancy(
    what: SassFunction | None = None,
    *,
    target: Target | str | None = None,
    block: int | None = None,
    registers: int | None = None,
    shared_bytes: int | None = None,
    dynamic_shared_bytes: int = 0,
    barriers: int | None = None,
    cluster: int = 1,
    carveout: int = -1,
) -> Occupancy:
    """Occupancy of a kernel, or of resources given individually.

    Args:
        what: a disassembled kernel; the arguments below override its values.
        target: ``"sm_90a"`` or a Target; required when ``what`` is None.
        block: threads per CTA. None takes the block of the kernel's directives, else 256.
        registers: per thread.
        shared_bytes: static shared memory per CTA.
        dynamic_shared_bytes: in addition.
        barriers: named barriers of a CTA.
        cluster: CTAs of a cluster.
        carveout: the share of an SM's L1 cache and shared memory preferred as shared memory, in percent; -1 for the driver's
            choice, which is the carveout with the highest occupancy.

    Raises:
        UsageError: no target, a block outside 1 to 1024, or a negative quantity.
    """
    chosen = what.target if what is not None and target is None else target
    if chosen is None:
        raise UsageError("occupancy needs a target, such as target='sm_90a', or a disassembled kernel")
    resources = what.resources if what is not None else None
    block = block if block is not None else default_block(what)
    registers = registers if registers is not None else resources.registers if resources else 0
    static = shared_bytes if shared_bytes is not None else resources.shared_bytes if resources else 0
    barriers = barriers if barriers is not None else resources.barriers if resources else 0
    if min(static, dynamic_shared_bytes) < 0:
        raise UsageError("shared memory cannot be negative")
    shared = static + dynamic_shared_bytes
    return calculate(chosen, block, registers, shared, barriers=barriers, cluster=cluster, carveout=carveout)


def default_block(what: SassFunction | None) -> int:
    """The CTA size that a kernel's directives name, else 256."""
    if what is None:
        return 256
    if what.bounds.block:
        x, y, z = what.bounds.block
        return x * y * z
    return what.bounds.max_threads or 256
