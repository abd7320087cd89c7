"""What a CTA can have where CTAS_PER_SM of them, each with CONSUMERS warpgroups and a producer warp, share an SM."""

from __future__ import annotations

from collections.abc import Mapping

from ptxkit import cdiv
from ptxkit.targets.sm import SmLimits


def shared_bytes(limits: SmLimits, t: Mapping[str, int]) -> int:
    """Bytes of shared memory of a CTA."""
    return min(limits.shared_bytes // t["CTAS_PER_SM"] - limits.reserved_bytes, limits.shared_bytes_per_cta)


def registers(limits: SmLimits, t: Mapping[str, int]) -> int:
    """Registers of a thread: those of a subpartition divided among its warps."""
    warps = cdiv(t["CTAS_PER_SM"] * (4 * t["CONSUMERS"] + 1), limits.subpartitions)
    return limits.registers // limits.subpartitions // 32 // warps
