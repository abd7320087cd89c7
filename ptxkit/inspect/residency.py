"""How many CTAs of a kernel an SM holds at once, from its resources alone: occupancy without a GPU.

The rules are those of NVIDIA's ``cuda_occupancy.h`` (in the wheel nvidia-cuda-runtime), the limits those of the CUDA
Programming Guide, "Technical Specifications per Compute Capability", which ``cuda/__device/arch_traits.h`` of CCCL repeats;
sm_107's are what ptxas 13.5 accepts in ``.minnctapersm`` and what ``cuda_occupancy.h`` says of compute capability 10.7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ptxkit.compiler.targets import Target
from ptxkit.errors import UsageError
from ptxkit.inspect.model import SassFunction

WARP = 32
THREADS_PER_CTA = 1024
REGISTERS_PER_SM = REGISTERS_PER_CTA = 65536
REGISTERS_PER_THREAD = 255
REGISTER_UNIT = 256  # registers are given to a warp in units of this many
SUBPARTITIONS = 4  # each has a quarter of the registers
SHARED_WITHOUT_ASKING = 48 * 1024
PORTABLE_CLUSTER, LARGEST_CLUSTER = 8, 16


@dataclass(frozen=True)
class SmLimits:
    """What an SM of one architecture has.

    Attributes:
        threads, ctas: resident at once.
        shared_bytes: per SM; a CTA gets ``reserved_bytes`` less at most.
        carveouts_kb: the sizes that the L1 cache leaves to shared memory can be set to.
        shared_unit: allocation granularity in bytes.
        reserved_bytes: that the driver keeps in every CTA.
        barriers_per_cta: named barriers of an SM, over its CTAs; 0 where they do not limit occupancy.
        clusters: whether CTAs can be launched in clusters.
    """

    threads: int
    ctas: int
    shared_bytes: int
    carveouts_kb: tuple[int, ...]
    shared_unit: int = 128
    reserved_bytes: int = 1024
    barriers_per_cta: int = 0
    clusters: bool = False

    @property
    def shared_bytes_per_cta(self) -> int:
        """The most that a CTA can have, static and dynamic together."""
        return self.shared_bytes - self.reserved_bytes


_SMALL = (0, 8, 16, 32, 64, 100)
_MEDIUM = (*_SMALL, 132, 164)
_LARGE = (*_MEDIUM, 196, 228)
_KB = 1024
_AMPERE_SMALL = SmLimits(1536, 16, 100 * _KB, _SMALL)
_BLACKWELL = SmLimits(2048, 32, 228 * _KB, _LARGE, barriers_per_cta=1, clusters=True)
_BLACKWELL_SMALL = SmLimits(1536, 24, 100 * _KB, _SMALL, barriers_per_cta=1, clusters=True)

SM_LIMITS: dict[int, SmLimits] = {
    75: SmLimits(1024, 16, 64 * _KB, (32, 64), shared_unit=256, reserved_bytes=0),
    80: SmLimits(2048, 32, 164 * _KB, _MEDIUM),
    86: _AMPERE_SMALL,
    87: SmLimits(1536, 16, 164 * _KB, _MEDIUM),
    88: _AMPERE_SMALL,
    89: SmLimits(1536, 24, 100 * _KB, _SMALL),
    90: SmLimits(2048, 32, 228 * _KB, _LARGE, barriers_per_cta=2, clusters=True),
    100: replace(_BLACKWELL, barriers_per_cta=2),
    103: _BLACKWELL,
    107: SmLimits(1024, 16, 328 * _KB, (*_LARGE, 328), barriers_per_cta=1, clusters=True),
    110: SmLimits(1536, 24, 228 * _KB, _LARGE, barriers_per_cta=1, clusters=True),
    120: _BLACKWELL_SMALL,
    121: _BLACKWELL_SMALL,
}
"""Compute capability -> limits of its SM."""


@dataclass(frozen=True)
class Occupancy:
    """What limits a launch, and how far.

    Attributes:
        ctas_per_sm: resident at once; 0 when the launch is impossible, and then ``impossible`` says why.
        warps_per_sm, max_warps: resident, and the most an SM can hold.
        limits: ``"registers"``, ``"shared memory"``, ``"threads"``, ``"CTA slots"``, ``"barriers"`` -> CTAs each allows.
        limiters: those that allow no more than ``ctas_per_sm``.
        registers_per_cta: allocated, rounded up.
        shared_bytes_per_cta: allocated, with what the driver reserves, rounded up.
        block, registers, shared_bytes: what was asked for: threads a CTA, registers a thread, static and dynamic bytes a CTA.
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
    """Occupancy of a kernel, or of resources given one by one.

    Args:
        what: a disassembled kernel; the arguments below override what it says.
        target: ``"sm_90a"`` or a Target; wanted when ``what`` is None.
        block: threads a CTA. None takes what the kernel's directives say, else 256.
        registers: a thread.
        shared_bytes: static, a CTA.
        dynamic_shared_bytes: in addition.
        barriers: named barriers of a CTA.
        cluster: CTAs of a cluster.
        carveout: the share of an SM's L1 cache and shared memory preferred as shared memory, in percent; -1 for the driver's
            choice, which is as much as helps.

    Raises:
        UsageError: no target, a block outside 1 to 1024, or a negative quantity.
    """
    chosen = what.target if what is not None and target is None else target
    if chosen is None:
        raise UsageError("occupancy needs a target, such as target='sm_90a', or a disassembled kernel")
    cc = (chosen if isinstance(chosen, Target) else Target.parse(chosen)).cc
    limits = SM_LIMITS[cc]
    resources = what.resources if what is not None else None
    block = block if block is not None else default_block(what)
    registers = registers if registers is not None else resources.registers if resources else 0
    static = shared_bytes if shared_bytes is not None else resources.shared_bytes if resources else 0
    barriers = barriers if barriers is not None else resources.barriers if resources else 0
    if not 1 <= block <= THREADS_PER_CTA:
        raise UsageError(f"a CTA has 1 to {THREADS_PER_CTA} threads, not {block}")
    if min(registers, static, dynamic_shared_bytes, barriers) < 0 or cluster < 1:
        raise UsageError("registers, shared memory, barriers and cluster cannot be negative")
    return _calculate(limits, block, registers, static + dynamic_shared_bytes, barriers, cluster, carveout)


def default_block(what: SassFunction | None) -> int:
    """The CTA size that a kernel's directives name, else 256."""
    if what is None:
        return 256
    if what.bounds.block:
        x, y, z = what.bounds.block
        return x * y * z
    return what.bounds.max_threads or 256


def _calculate(
    limits: SmLimits, block: int, registers: int, shared: int, barriers: int, cluster: int, carveout: int
) -> Occupancy:
    warps = -(-block // WARP)
    per_warp = _rounded(registers * WARP, REGISTER_UNIT)
    allocated = _rounded(shared + limits.reserved_bytes, limits.shared_unit)
    allowed = {
        "threads": limits.threads // WARP // warps,
        "registers": _by_registers(per_warp, warps),
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
        max_warps=limits.threads // WARP,
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


def _by_registers(per_warp: int, warps: int) -> int:
    if not per_warp:
        return 1 << 30
    # The launch check behaves as if a CTA's warps came in whole rounds over the subpartitions.
    if per_warp * _rounded(warps, SUBPARTITIONS) > REGISTERS_PER_CTA:
        return 0
    return REGISTERS_PER_SM // SUBPARTITIONS // per_warp * SUBPARTITIONS // warps


def _by_shared(limits: SmLimits, allocated: int, carveout: int) -> int:
    if allocated == 0:
        return 1 << 30
    available = limits.shared_bytes
    if carveout >= 0:
        wanted = max(limits.shared_bytes * carveout // 100, allocated)
        available = next((kb * _KB for kb in limits.carveouts_kb if kb * _KB >= wanted), limits.shared_bytes)
    return available // allocated


def _impossible(limits: SmLimits, warps: int, per_warp: int, registers: int, shared: int, cluster: int) -> str:
    if registers > REGISTERS_PER_THREAD:
        return f"{registers} registers a thread; {REGISTERS_PER_THREAD} is the most"
    if per_warp and _by_registers(per_warp, warps) == 0:
        return f"{warps} warps of {per_warp} registers exceed the {REGISTERS_PER_CTA} registers of a CTA"
    if shared > limits.shared_bytes_per_cta:
        return f"{shared} bytes of shared memory; a CTA gets {limits.shared_bytes_per_cta} at most"
    if cluster > 1 and not limits.clusters:
        return "this architecture has no clusters"
    if cluster > LARGEST_CLUSTER:
        return f"a cluster of {cluster} CTAs; {LARGEST_CLUSTER} is the most"
    return ""


@dataclass(frozen=True)
class Step:
    """A point of an occupancy curve: a quantity (registers a thread, bytes of shared memory, threads a CTA) -> CTAs, warps."""

    quantity: int
    ctas_per_sm: int
    warps_per_sm: int


def curve(of: Occupancy, target: Target, axis: str, barriers: int = 0) -> tuple[Step, ...]:
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
    limits = SM_LIMITS[target.cc]
    steps: list[Step] = []
    for quantity in _quantities(axis, limits):
        block = quantity if axis == "threads" else of.block
        registers = quantity if axis == "registers" else of.registers
        shared = quantity if axis == "shared memory" else of.shared_bytes
        found = _calculate(limits, block, registers, shared, barriers, of.cluster, -1)
        if not steps or steps[-1].warps_per_sm != found.warps_per_sm:
            steps.append(Step(quantity, found.ctas_per_sm, found.warps_per_sm))
    return tuple(steps)


def _quantities(axis: str, limits: SmLimits) -> Iterator[int]:
    ranges: dict[str, Sequence[int]] = {
        "registers": range(1, REGISTERS_PER_THREAD + 1),
        "shared memory": range(0, limits.shared_bytes_per_cta + 1, _KB),
        "threads": (WARP, *range(2 * WARP, THREADS_PER_CTA + 1, 2 * WARP)),
    }
    return iter(ranges[axis])


def _rounded(value: int, unit: int) -> int:
    return -(-value // unit) * unit
