"""Memory traffic and instructions of variants, counted by the emulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ptxkit.bench.results.results import Counted
from ptxkit.errors import PtxkitError
from ptxkit.workload import execute

if TYPE_CHECKING:
    from ptxkit.emulator.counters.counters import Counters
    from ptxkit.workload.workload import Workload


def counted(counters: Counters, sizes: Mapping[str, int] | None = None) -> Counted:
    """The counts of a result.

    Args:
        sizes: the counted sizes, if they differ from those of the case.
    """
    moved = counters.global_bytes
    return Counted(
        instructions=counters.instructions,
        flops=counters.flops,
        load_bytes=counters.read_bytes,
        store_bytes=counters.written_bytes,
        load_sectors=counters.global_load_sectors + counters.async_sectors.get("global_to_shared", 0),
        store_sectors=counters.global_store_sectors
        + counters.global_atomic_sectors
        + counters.async_sectors.get("shared_to_global", 0),
        bank_conflicts=counters.shared_bank_conflicts,
        intensity=counters.flops / moved if moved else None,
        sizes=dict(sizes or {}),
        copied_bytes=counters.async_bytes.get("global_to_shared", 0),
        misaligned_bytes=counters.async_misaligned_bytes,
        shared_bytes=counters.shared_load_bytes
        + counters.shared_store_bytes
        + counters.shared_atomic_bytes
        + sum(counters.remote_shared_bytes.values()),
        local_bytes=counters.local_load_bytes + counters.local_store_bytes,
        by_class=dict(sorted(counters.by_class.items())),
    )


def count(workload: Workload, names: list[str], target: Any) -> dict[str, Counted | str]:
    """Variant -> its counts at the kernel's emulator sizes with the same options, or the reason why they are unknown.

    Args:
        names: names of the variants.
        target: target to compile for.
    """
    from ptxkit.runtime.device import emulating_device

    small = type(workload).make((), workload.options, small=True)
    case = execute.Case(small, emulating_device(), target=target)
    found: dict[str, Counted | str] = {}
    for name in names:
        try:
            result = execute.run(case, small.variant(name), target)
        except PtxkitError as error:
            found[name] = str(error)
            continue
        if result.counters is not None:
            found[name] = counted(result.counters, small.sizes if small.sizes != workload.sizes else None)
    return found
