"""Occupancy without a GPU: the number of resident CTAs of a kernel per SM, from its resources.

The rules are those of NVIDIA's ``cuda_occupancy.h`` (in the wheel nvidia-cuda-runtime).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ptxkit.errors import UsageError
from ptxkit.targets.sm import KIB, WARP, SmLimits
from ptxkit.targets.target import Target

UNLIMITED = 1 << 30  # the CTAs that a resource allows if a CTA uses none of it


@dataclass(frozen=True)
class Occupancy:
    """The occupancy of a launch, and the resources that limit it.

    Attributes:
        ctas_per_sm: resident CTAs per SM; 0 if the launch is impossible, for the reason in ``impossible``.
        warps_per_sm, max_warps: resident, and the most an SM can hold.
        limits: ``"registers"``, ``"shared memory"``, ``"threads"``, ``"CTA slots"``, ``"barriers"`` -> CTAs each allows.
        limiters: those that allow no more than ``ctas_per_sm``.
        registers_per_cta: allocated, rounded up.
        shared_bytes_per_cta: allocated, with what the driver reserves, rounded up.
        block, registers, shared_bytes: the requested threads per CTA, registers per thread, static and dynamic bytes per CTA.
        cluster: CTAs of a cluster; they are resident together, within one GPC.
        impossible: why the launch fails, or ``""``.
    """

    ctas_per_sm: int
    warps_per_sm: int
    max_warps: int
    limits: dict[str, int]
    limiters: tuple[str, ...]
    registers_per_cta: int
    shared_bytes_per_cta: int
    block: int
    registers: int
    shared_bytes: int
    cluster: int = 1
    impossible: str = ""

    @property
    def fraction(self) -> float:
        """Resident warps over the most an SM can hold."""
        return self.warps_per_sm / self.max_warps


def calculate(
    target: Target | str,
    block: int,
    registers: int,
    shared_bytes: int,
    *,
    barriers: int = 0,
    cluster: int = 1,
    carveout: int = -1,
) -> Occupancy:
    """Occupancy of a launch.

    Args:
        target: ``"sm_90a"`` or a Target.
        block: threads per CTA.
        registers: per thread.
        shared_bytes: static and dynamic, per CTA.
        barriers: named barriers per CTA.
        cluster: CTAs of a cluster.
        carveout: the part of an SM's L1 cache and shared memory preferred as shared memory, in percent; -1 for the driver's
            choice, which is the carveout with the highest occupancy.

    Raises:
        UsageError: no such target, a block that no CTA can have, or a negative quantity.
    """
    limits = Target.parse(target).limits
    if not 1 <= block <= limits.threads_per_cta:
        raise UsageError(f"a CTA has 1 to {limits.threads_per_cta} threads, not {block}")
    if min(registers, shared_bytes, barriers) < 0 or cluster < 1:
        raise UsageError("registers, shared memory, barriers and cluster cannot be negative")
    return _calculate(limits, block, registers, shared_bytes, barriers, cluster, carveout)


def cta_registers(target: Target | str, threads: int, registers: int) -> int:
    """Registers that the launch check counts for a CTA: the registers of a warp are rounded up to the allocation unit, and
    the number of warps to a multiple of the subpartitions of an SM."""
    limits = Target.parse(target).limits
    return _launch_registers(limits, _rounded(registers * WARP, limits.register_unit), -(-threads // WARP))


def resident_ctas(
    target: Target | str,
    sms: int,
    threads: int,
    registers: int,
    shared_bytes: int,
    *,
    barriers: int = 0,
    cluster: int = 1,
) -> int:
    """Resident CTAs of a kernel on a GPU with ``sms`` SMs: the largest cooperative grid.

    Args:
        threads: per CTA. registers: per thread; 0 if unknown. shared_bytes: static and dynamic, per CTA.
        barriers: named barriers per CTA.
        cluster: CTAs of a cluster, which are resident together.

    Raises:
        UsageError: as :func:`calculate`.
    """
    found = calculate(target, threads, registers, shared_bytes, barriers=barriers, cluster=cluster)
    return found.ctas_per_sm * sms // cluster * cluster


def _calculate(
    limits: SmLimits, block: int, registers: int, shared: int, barriers: int, cluster: int, carveout: int
) -> Occupancy:
    warps = -(-block // WARP)
    per_warp = _rounded(registers * WARP, limits.register_unit)
    allocated = _rounded(shared + limits.reserved_bytes, limits.shared_unit)
    allowed = {
        "threads": limits.warps // warps,
        "registers": _by_registers(limits, per_warp, warps),
        "shared memory": _by_shared(limits, allocated, carveout),
        "CTA slots": limits.ctas,
    }
    if limits.barriers_per_cta and barriers:
        allowed["barriers"] = limits.barriers_per_cta * limits.ctas // barriers
    impossible = _impossible(limits, warps, per_warp, registers, shared, cluster)
    ctas = 0 if impossible else min(allowed.values())
    return Occupancy(
        ctas_per_sm=ctas,
        warps_per_sm=ctas * warps,
        max_warps=limits.warps,
        limits=allowed,
        limiters=tuple(name for name, most in allowed.items() if most <= ctas),
        registers_per_cta=per_warp * warps,
        shared_bytes_per_cta=allocated,
        block=block,
        registers=registers,
        shared_bytes=shared,
        cluster=cluster,
        impossible=impossible,
    )


def _by_registers(limits: SmLimits, per_warp: int, warps: int) -> int:
    if not per_warp:
        return UNLIMITED
    if _launch_registers(limits, per_warp, warps) > limits.registers_per_cta:
        return 0
    return limits.registers // limits.subpartitions // per_warp * limits.subpartitions // warps


def _launch_registers(limits: SmLimits, per_warp: int, warps: int) -> int:
    # cuda_occupancy.h: the launch check rounds a CTA's warps up to a multiple of the subpartitions
    return per_warp * _rounded(warps, limits.subpartitions)


def _by_shared(limits: SmLimits, allocated: int, carveout: int) -> int:
    if allocated == 0:
        return UNLIMITED
    available = limits.shared_bytes
    if carveout >= 0:
        wanted = max(limits.shared_bytes * carveout // 100, allocated)
        available = next((kb * KIB for kb in limits.carveouts_kb if kb * KIB >= wanted), limits.shared_bytes)
    return available // allocated


def _impossible(limits: SmLimits, warps: int, per_warp: int, registers: int, shared: int, cluster: int) -> str:
    if registers > limits.registers_per_thread:
        return f"{registers} registers a thread; {limits.registers_per_thread} is the most"
    if per_warp and _by_registers(limits, per_warp, warps) == 0:
        return f"{warps} warps of {per_warp} registers exceed the {limits.registers_per_cta} registers of a CTA"
    if shared > limits.shared_bytes_per_cta:
        return f"{shared} bytes of shared memory; a CTA gets {limits.shared_bytes_per_cta} at most"
    if cluster > 1 and not limits.clusters:
        return "this architecture has no clusters"
    if cluster > limits.largest_cluster:
        return f"a cluster of {cluster} CTAs; {limits.largest_cluster} is the most"
    return ""


@dataclass(frozen=True)
class CurvePoint:
    """A point of an occupancy curve: a quantity (registers a thread, bytes of shared memory, threads a CTA) -> CTAs, warps."""

    quantity: int
    ctas_per_sm: int
    warps_per_sm: int


def curve(of: Occupancy, target: Target, axis: str, barriers: int = 0) -> tuple[CurvePoint, ...]:
    """Where occupancy changes when one quantity does and the others stay.

    Args:
        of: the launch to vary.
        target: its target.
        axis: ``"registers"`` (1 to 255 a thread), ``"shared memory"`` (0 to the most a CTA gets, in steps of 1 KB),
            ``"threads"`` (32, and 64 to 1024 a CTA in steps of 64).
        barriers: named barriers of a CTA.

    Returns:
        The first quantity of every stretch with the same number of resident warps, in order; the last may be 0 warps.
    """
    limits = target.limits
    points: list[CurvePoint] = []
    for quantity in _quantities(axis, limits):
        block = quantity if axis == "threads" else of.block
        registers = quantity if axis == "registers" else of.registers
        shared = quantity if axis == "shared memory" else of.shared_bytes
        found = _calculate(limits, block, registers, shared, barriers, of.cluster, -1)
        if not points or points[-1].warps_per_sm != found.warps_per_sm:
            points.append(CurvePoint(quantity, found.ctas_per_sm, found.warps_per_sm))
    return tuple(points)


def _quantities(axis: str, limits: SmLimits) -> Iterator[int]:
    ranges: dict[str, Sequence[int]] = {
        "registers": range(1, limits.registers_per_thread + 1),
        "shared memory": range(0, limits.shared_bytes_per_cta + 1, KIB),
        "threads": (WARP, *range(2 * WARP, limits.threads_per_cta + 1, 2 * WARP)),
    }
    return iter(ranges[axis])


def _rounded(value: int, unit: int) -> int:
    return -(-value // unit) * unit
