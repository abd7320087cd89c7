"""Cases of the grid at sizes for the emulator: smaller, with the same remainders, and so with the same edges of tiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from ptxkit.errors import UsageError
from ptxkit.workload.workload import Workload

KEPT = 64  # remainders modulo this number stay: those of vectors, of warps and of the smallest tiles


def reduced(workload: Workload) -> Workload:
    """The workload with sizes halved until it has at most the work of the kernel's default size in the emulator.

    The first size, of rows or tokens, is halved first while it is larger than :data:`KEPT`, and then the largest one. A size
    keeps its remainder modulo :data:`KEPT` as long as it is larger. A size that the kernel's constraints or its variants
    refuse is skipped; where none is left, the result is as small as it can be.
    """
    kernel = type(workload)
    try:
        limit = kernel.make((), workload.options, small=True).work()
    except UsageError:  # the options, such as a number of heads, do not fit the default size
        limit = kernel.make((), small=True).work()
    while workload.work().flops > limit.flops or workload.work().bytes > limit.bytes:
        smaller = next(_smaller(workload), None)
        if smaller is None:
            return workload
        workload = smaller
    return workload


def _smaller(workload: Workload) -> Iterator[Workload]:
    """The workload with one size halved, in the order of preference."""
    kernel, fields = type(workload), {**workload.sizes, **workload.options}
    first = kernel.size_names()[0]
    for name, size in sorted(workload.sizes.items(), key=lambda item: (item[0] != first or item[1] <= KEPT, -item[1])):
        half = size // 2
        rounded = max(half // KEPT, 1) * KEPT + size % KEPT if size > 2 * KEPT else half
        for changed in dict.fromkeys((rounded, half)):
            if 0 < changed < size:
                with suppress(UsageError):  # of its constraints
                    yield kernel(**{**fields, name: changed})
