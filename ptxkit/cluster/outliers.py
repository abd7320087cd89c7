"""Which GPUs of a cluster are not like the others of their model, by their canary cases (:mod:`ptxkit.sweep.canary`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

SLOWER = 1.10  # a GPU whose canary case takes this many times the fastest would decide about configurations by its slowness


def outliers(canaries: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Address of a worker that must not measure -> why.

    Args:
        canaries: address -> ``times_us`` and ``digests`` of its canary cases, by kernel.
    """
    found: dict[str, str] = {}
    for kernel in sorted({kernel for read in canaries.values() for kernel in read["times_us"]}):
        times = {address: read["times_us"][kernel] for address, read in canaries.items() if kernel in read["times_us"]}
        fastest = min(times.values())
        for address, time_us in times.items():
            if time_us > SLOWER * fastest:
                why = f"its GPU takes {time_us / fastest:.2f} times as long as the fastest for the canary case {kernel}"
                found.setdefault(address, why)
        digests = {address: read["digests"][kernel] for address, read in canaries.items() if kernel in read["digests"]}
        (common, votes), *_ = Counter(digests.values()).most_common(1)
        for address, digest in digests.items():
            if digest != common and votes > len(digests) / 2:
                found.setdefault(address, f"its GPU gets another result than the others for the canary case {kernel}")
    return found
