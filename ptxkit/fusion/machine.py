"""What the prediction needs to know of a GPU: achievable bandwidths and rates, cost of a launch, on-chip memory."""

from __future__ import annotations

from dataclasses import dataclass

from ptxkit.bench.results import expectations
from ptxkit.errors import PtxkitError
from ptxkit.targets.achievable import COPY, L2_RATE, LAUNCH_US, PRODUCT, RESIDENT, copy_gbs
from ptxkit.targets.gpus import Gpu, find_gpu, target_of
from ptxkit.targets.target import Target

DEFAULT_GPU = "NVIDIA H200"


@dataclass(frozen=True)
class Machine:
    """A GPU as the prediction sees it.

    Attributes:
        gpu: the documented facts. target: what kernels are compiled for.
        bandwidth_gbs: of device memory, as a copy reaches it. source: where that comes from.
        launch_us: time of one more launch, without any work.
    """

    gpu: Gpu
    target: Target
    bandwidth_gbs: float
    source: str
    launch_us: float = LAUNCH_US

    @property
    def l2_gbs(self) -> float:
        """Bandwidth of what is read from L2."""
        return L2_RATE * self.bandwidth_gbs

    @property
    def resident_bytes(self) -> float:
        """Size up to which a result of one launch is assumed to be in L2 when the next launch reads it."""
        return RESIDENT * self.gpu.l2_bytes

    def peak(self, unit: str) -> float | None:
        """Documented TFLOP/s of products of a type; None where the data sheet states none."""
        if unit == "e2m1":  # the table has no rates of 4-bit types; they are at least those of 8-bit types
            unit = "e4m3"
        return self.gpu.peak_tflops.get(unit)

    def ridge(self, unit: str) -> float | None:
        """Flops per byte above which products of a type are bound by the peak rate."""
        peak = self.peak(unit)
        return None if peak is None else 1e3 * PRODUCT * peak / self.bandwidth_gbs

    @property
    def row_bytes(self) -> int:
        """Bytes of the largest row, in f32, that the CTAs of a cluster keep in their shared memory."""
        limits = self.target.limits
        return limits.portable_cluster * limits.shared_bytes_per_cta


def machine_for(name: str | None = None, launch_us: float = LAUNCH_US) -> Machine:
    """The GPU whose name contains ``name``, in any case; by default an H200.

    Its bandwidth is that of the copy which ``ptxkit bench run`` recorded for this GPU, else a fraction of the documented one.

    Raises:
        UsageError: no documented GPU, or more than one, has such a name.
    """
    gpu = find_gpu(name or DEFAULT_GPU)
    target = target_of(gpu)
    copies = _recorded_copies(gpu.name)
    if copies:
        return Machine(gpu, target, max(copies), "recorded copy", launch_us)
    return Machine(gpu, target, copy_gbs(gpu), f"{COPY:.0%} of the data sheet", launch_us)


def _recorded_copies(gpu: str) -> list[float]:
    try:
        known = expectations.load(expectations.path_for(gpu))
    except PtxkitError:
        return []  # a GPU without recorded results
    cases = (known or {}).get("cases", {})
    return [float(case["roof_gbs"]) for case in cases.values() if case.get("roof_gbs")]
