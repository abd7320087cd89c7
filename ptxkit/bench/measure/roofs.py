"""Measures the ceilings of a GPU: copies in device memory and in L2, multiply-adds, tensor cores."""

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

COPY_BYTES = 1 << 30  # ten times larger than any L2; a copy takes 0.5 ms on an H200
SAMPLES = 20
L2_PART = 4  # fraction of L2 that the copy within L2 reads, and writes
CLEAR = 2.0  # a documented peak this many times above the rate at the memory roof is not measured


def roofs(device: Any, works: Iterable[Work] | None = None) -> Roofs:
    """Measure the ceilings of a GPU, and add the peak rates of its data sheet.

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
    """Whether a peak rate, rather than memory, may limit the work."""
    if not work.flops:
        return False
    peak = documented.get(work.unit)
    return peak is None or work.intensity * copy_gbs / 1e3 * CLEAR > peak


def measured_peaks(device: Any, units: Collection[str] | None = None) -> dict[str, float]:
    """Type of the operands -> TFLOP/s, of the types in ``units`` (None: all) for which a kernel exists."""
    found = {}
    if units is None or "f32" in units:
        found["f32"] = fma_peak_tflops(device)
    if units is None or {"bf16", "f16"} & set(units):
        found |= tensor_peaks_tflops(device)
    return found


PEAK_SHARED = (64 + 256) * 64 * 2  # size of the tiles of cu/kernels/tensor_peak.cu in bytes
PEAK_THREADS = 256
PEAK_FLOPS = 2 * 64 * 256 * 64  # flops of a warpgroup per round
PEAK_ROUNDS = (
    2000  # rounds of 512 cycles of an SM's tensor cores per warpgroup, so that the launch overhead is negligible
)


def tensor_peaks_tflops(device: Any) -> dict[str, float]:
    """Rates of the tensor cores for bf16 and f16, which are equal; empty without wgmma."""
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
    """The workload of :func:`fma_peak_tflops`: 32 elements per resident thread, so that no SM is idle at the end while
    others still compute."""
    from ptxkit.workload import registry

    return registry.get("compute_bound").make([32 * threads * multiprocessors], {"intensity": 1024})


def copy_bandwidth_gbs(device: Device) -> float:
    """Bandwidth of a device-to-device copy, bytes read plus bytes written, in GB/s: the roof of memory-bound work.

    The median of 20 copies of 1 GiB, or less if the device has less than four times that free.
    """
    size = min(COPY_BYTES, device.memory_bytes // 4) // 4096 * 4096
    times = device.measure_copy(size, samples=SAMPLES)
    return 2 * size / statistics.median(times) / 1e3  # bytes/us = MB/s
