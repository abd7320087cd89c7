"""One call of a variant under a profiler; run by :mod:`ptxkit.bench.measure.profilers`."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from ptxkit.bench.measure.profilers import call_of
from ptxkit.runtime.device import timed_device
from ptxkit.workload import execute, registry


def main(arguments: list[str]) -> int:
    """Prepare the variant, launch it once to load everything, and once between cuProfilerStart and cuProfilerStop."""
    call = call_of(arguments[0])
    gpu: Any = timed_device()
    kernel = registry.find(call["kernel"])
    workload = kernel(**call["sizes"], **call["options"])
    case = execute.Case(workload, gpu, call["seed"])
    prepared = execute.prepare(case, workload.variant(call["variant"]), tile=call["tile"])
    with gpu.plain_launches():
        prepared.launch()
        gpu.synchronize()
        with torch_trace(arguments[2]) if "--torch-trace" in arguments else contextlib.nullcontext():
            gpu.driver.call("cuProfilerStart")
            prepared.launch()
            gpu.synchronize()
            gpu.driver.call("cuProfilerStop")
    return 0


@contextlib.contextmanager
def torch_trace(path: str) -> Any:
    """Record kernels with torch's profiler, which uses CUPTI, as a Chrome trace in ``path``."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
        yield
    recorded.export_chrome_trace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
