"""The rules that a launch must obey on every GPU of a target, with the same messages on the GPU and in the emulator.

:func:`geometry_refusal` checks the launch against limits and the kernel's directives, :func:`resource_refusal` also against
the registers and the shared memory of an SM. Both return the reason of a refusal, without the kernel's name, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ptxkit.targets.gpus import DeviceFacts
from ptxkit.targets.occupancy import cta_registers, resident_ctas
from ptxkit.targets.sm import parameter_bytes

Dim = tuple[int, int, int]
Directives = Mapping[str, tuple[int | str, ...]]


@dataclass(frozen=True)
class Resources:
    """The resources of an SM that a launch uses.

    Attributes:
        registers: registers per thread from ptxas; 0 if the kernel was not assembled, in which case they are not checked.
        static_shared, dynamic_shared: bytes of shared memory per CTA.
        barriers: named barriers per CTA.
        parameters: bytes of kernel parameters. ptx_version: of the kernel's PTX, which limits them.
    """

    registers: int = 0
    static_shared: int = 0
    dynamic_shared: int = 0
    barriers: int = 0
    parameters: int = 0
    ptx_version: tuple[int, int] = (0, 0)


def required_cluster(directives: Directives) -> Dim | None:
    """The cluster that a kernel was compiled for (``__cluster_dims__``), or None."""
    return _extents(directives, "reqnctapercluster")


def geometry_refusal(
    grid: Dim, block: Dim, cluster: Dim | None, directives: Directives, device: DeviceFacts
) -> str | None:
    """Why a device cannot launch this grid of a kernel.

    Args:
        grid: in CTAs. block: in threads.
        cluster: as the launch gives it, in CTAs; None takes the kernel's own.
        directives: the kernel's performance-tuning and cluster directives (``"maxntid"`` -> ``(256, 1, 1)``).
    """
    limits = device.target.limits
    for what, extents, most in (("grid", grid, limits.grid), ("block", block, limits.block)):
        for axis, value, limit in zip("xyz", extents, most, strict=True):
            if value > limit:
                return f"{what} {axis} is {value:,}; the limit is {limit:,}"
    threads = prod(block)
    if threads > limits.threads_per_cta:
        return f"{threads:,} threads a block; the limit is {limits.threads_per_cta}"
    return _bounds_refusal(block, directives) or _cluster_refusal(grid, cluster, directives, device)


def _bounds_refusal(block: Dim, directives: Directives) -> str | None:
    required = _extents(directives, "reqntid")
    if required is not None and required != block:
        return f"block {block}; the kernel requires {required}"
    bound = _extents(directives, "maxntid")
    if bound is not None and prod(block) > prod(bound):
        return f"{prod(block)} threads a block; the kernel is bounded to {prod(bound)} (__launch_bounds__)"
    return None


def _cluster_refusal(grid: Dim, cluster: Dim | None, directives: Directives, device: DeviceFacts) -> str | None:
    limits, required = device.target.limits, required_cluster(directives)
    if required is not None and cluster is not None and required != cluster:
        return f"cluster {cluster}; the kernel requires {required}"
    if cluster is None and required is None and "explicitcluster" in directives:
        return "the launch names no cluster; the kernel is declared .explicitcluster, give cluster="
    size = cluster or required or (1, 1, 1)
    ctas = prod(size)
    if ctas > 1 and not limits.clusters:
        return f"a cluster of {ctas} CTAs; {device.name} has no clusters (they need sm_90 or newer)"
    if ctas > limits.largest_cluster:
        return (
            f"{ctas} CTAs in a cluster; {device.name} takes at most {limits.largest_cluster}, and "
            f"{limits.portable_cluster} is portable"
        )
    most = directives.get("maxclusterrank")
    if most and ctas > int(most[0]):
        return f"{ctas} CTAs in a cluster; the kernel is bounded to {most[0]} (.maxclusterrank)"
    if any(g % c for g, c in zip(grid, size, strict=True)):
        return f"grid {grid} is not a multiple of the cluster {size}"
    return None


def resource_refusal(
    grid: Dim, block: Dim, cluster: Dim | None, used: Resources, device: DeviceFacts, *, cooperative: bool = False
) -> str | None:
    """Why an SM of a device cannot hold a CTA of a kernel, or the device not all CTAs of a cooperative grid.

    Args:
        grid, block, cluster: of a launch that has passed :func:`geometry_refusal`.
        used: resources of the launch.
        cooperative: all CTAs must be resident at the same time.
    """
    limits, threads = device.target.limits, prod(block)
    if used.static_shared > limits.default_shared_bytes:
        return (
            f"{used.static_shared:,} bytes of static shared memory; a kernel may have {limits.default_shared_bytes:,}, "
            "and more only as dynamic shared memory"
        )
    if used.static_shared + used.dynamic_shared > (most := limits.shared_bytes_per_cta):
        return (
            f"{used.dynamic_shared:,} bytes of dynamic and {used.static_shared:,} of static shared memory; "
            f"{device.name} gives a CTA {most:,}"
        )
    taken = cta_registers(device.target, threads, used.registers)
    if taken > limits.registers_per_cta:
        return (
            f"{threads} threads of {used.registers} registers are allocated {taken:,} registers; {device.name} gives a CTA "
            f"{limits.registers_per_cta:,}; launch fewer threads or bound the kernel with __launch_bounds__({threads})"
        )
    if used.parameters > (most := parameter_bytes(used.ptx_version)):
        version = ".".join(map(str, used.ptx_version))
        return f"{used.parameters:,} bytes of kernel parameters; PTX {version} allows {most:,}"
    return _cooperative_refusal(grid, block, cluster, used, device) if cooperative else None


def _cooperative_refusal(
    grid: Dim, block: Dim, cluster: Dim | None, used: Resources, device: DeviceFacts
) -> str | None:
    resident = resident_ctas(
        device.target,
        device.sms,
        prod(block),
        used.registers,
        used.static_shared + used.dynamic_shared,
        barriers=used.barriers,
        cluster=prod(cluster or (1, 1, 1)),
    )
    if prod(grid) <= resident:
        return None
    return (
        f"a cooperative grid of {prod(grid):,} CTAs; the {device.sms} SMs of {device.name} hold {resident:,} CTAs of this "
        "kernel at once, and a cooperative launch needs all of them resident"
    )


def _extents(directives: Directives, name: str) -> Dim | None:
    values = directives.get(name)
    if not values:
        return None
    x, y, z = (*(int(v) for v in values), 1, 1)[:3]
    return x, y, z
