"""Measuring the ceilings of a GPU: copies in device memory and in L2, multiply-adds, tensor cores."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.bench.results.ceiling import Roofs, documented_peaks

if TYPE_CHECKING:
    from ptxkit.runtime.device import Device
    from ptxkit.workload.launch import Work
    from ptxkit.workload.workload import Workload

COPY_BYTES = 1 << 30  # beyond any L2 by a factor of ten; H200: 0.5 ms a copy
SAMPLES = 20
L2_PART = 4  # the copy that stays in L2 reads and writes this part of it, each
CLEAR = 2.0  # a documented peak this many times above the rate at the memory roof need not be measured


def roofs(device: Any, works: Iterable[Work] | None = None) -> Roofs:
    """The ceilings of a GPU, measured now, and the peak rates that its data sheet states.

    Args:
        works: measure only the peaks that may bound one of these; None measures all. A documented peak far above what memory
            allows is not measured, because it cannot bound the work.

    Raises:
        FaultError: a kernel failed.
    """
    size = device.l2_bytes // L2_PART // 4096 * 4096
    l2_us = statistics.median(device.timing.l2_copy(size, SAMPLES))
    copy_gbs = copy_bandwidth_gbs(device)
    documented = documented_peaks(device.name)
    units = None if works is None else {work.unit for work in works if may_be_bound(work, copy_gbs, documented)}
    return Roofs(copy_gbs, 2 * size / l2_us / 1e3, measured_peaks(device, units), documented)


def may_be_bound(work: Work, copy_gbs: float, documented: Mapping[str, float]) -> bool:
    """Whether a peak rate, not memory, may bound the work."""
    if not work.flops:
        return False
    peak = documented.get(work.unit)
    return peak is None or work.intensity * copy_gbs / 1e3 * CLEAR > peak


def measured_peaks(device: Any, units: Collection[str] | None = None) -> dict[str, float]:
    """Type of the operands -> TFLOP/s, of those among ``units`` (None: all) that there is a kernel to measure with."""
    found = {}
    if units is None or "f32" in units:
        found["f32"] = fma_peak_tflops(device)
    if units is None or {"bf16", "f16"} & set(units):
        found |= tensor_peaks_tflops(device)
    return found


PEAK_SHARED = (64 + 256) * 64 * 2  # bytes of the tiles that cu/kernels/tensor_peak.cu multiplies
PEAK_THREADS = 256
PEAK_FLOPS = 2 * 64 * 256 * 64  # of a warpgroup and round
PEAK_ROUNDS = 2000  # 512 cycles of an SM's tensor cores each and warpgroup, so that a launch's start counts for little


def tensor_peaks_tflops(device: Any) -> dict[str, float]:
    """Rates of the tensor cores by element type, bf16 and f16, which have the same; empty where there is no wgmma."""
    from ptxkit.targets import missing

    if missing(["wgmma"], device.target) is not None:
        return {}
    ctas = int(device.facts().multiprocessors)
    launch, _ = tensor_peak(device, ctas, PEAK_ROUNDS)
    times = device.timing.replays(device.graph(launch), SAMPLES, warm=True)
    warpgroups = ctas * PEAK_THREADS // 128
    rate = warpgroups * PEAK_ROUNDS * PEAK_FLOPS / statistics.median(times) / 1e6
    return {"bf16": rate, "f16": rate}


def tensor_peak(device: Any, ctas: int, rounds: int) -> tuple[Any, Any]:
    """A prepared launch of cu/kernels/tensor_peak.cu on random numbers in [-1, 1), and the array of its threads' sums."""
    from ptxkit.compiler.nvrtc import compile_source
    from ptxkit.compiler.paths import kernels_dir
    from ptxkit.targets import lowest_target
    from ptxkit.workload.inputs import uniform

    image = compile_source(kernels_dir() / "tensor_peak.cu", target=device.target or lowest_target(["wgmma"]))
    data = device.upload(uniform(np.random.default_rng(0), PEAK_SHARED // 2, "bf16"), "tiles")
    sums = device.empty(ctas * PEAK_THREADS, np.float32, "sums")
    kernel = device.load(image)["tensor_peak"]
    launch = kernel.prepare(data, sums, np.int32(rounds), grid=ctas, block=PEAK_THREADS, shared=PEAK_SHARED)
    return launch, sums


def fma_peak_tflops(device: Any) -> float:
    """Rate of fused multiply-adds on the CUDA cores: the best variant of compute_bound at 1024 flops a byte."""
    from ptxkit.workload import execute
    from ptxkit.workload.resolve import unavailable

    workload = fma_peak(int(device.multiprocessors), int(device.properties.max_threads_per_multiprocessor))
    case = execute.Case(workload, device)
    best = 0.0
    for variant in workload.variants().values():
        if variant.name == "unfused" or unavailable(variant, device.target):
            continue
        prepared = execute.prepare(case, variant)
        times = device.timing.replays(device.graph(prepared.launch), SAMPLES, warm=True)
        best = max(best, workload.work().flops / statistics.median(times) / 1e6)
    return best


def fma_peak(multiprocessors: int, threads: int) -> Workload:
    """What :func:`fma_peak_tflops` measures: 32 elements for each thread that the SMs hold, so that none idles at the end while
    others still compute."""
    from ptxkit.workload import registry

    return registry.get("compute_bound").make([32 * threads * multiprocessors], {"intensity": 1024})


def copy_bandwidth_gbs(device: Device) -> float:
    """Bandwidth of a device-to-device copy, bytes read plus bytes written, in GB/s: the roof of what is memory-bound.

    The median of 20 copies of 1 GiB, or of less when the device has not four times that free.
    """
    size = min(COPY_BYTES, device.memory_bytes // 4) // 4096 * 4096
    times = device.measure_copy(size, samples=SAMPLES)
    return 2 * size / statistics.median(times) / 1e3  # bytes/us is MB/s
