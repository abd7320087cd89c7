"""One call of a variant or a peer under a profiler; run by :mod:`ptxkit.bench.measure.profilers`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

from ptxkit.bench.measure.profilers import call_of
from ptxkit.bench.peers import peers
from ptxkit.runtime.device import timed_device
from ptxkit.workload import execute, registry
from ptxkit.workload.workload import Workload


def main(arguments: list[str]) -> int:
    """Prepare the candidate, launch it once to load everything, and once between cuProfilerStart and cuProfilerStop."""
    call = call_of(arguments[0])
    gpu: Any = timed_device()
    kernel = registry.find(call["kernel"])
    workload = kernel(**call["sizes"], **call["options"])
    case = execute.Case(workload, gpu, call["seed"])
    launch, keep = _launch_of(call, workload, case)
    with gpu.plain_launches():
        launch()
        gpu.synchronize()
        with torch_trace(arguments[2]) if "--torch-trace" in arguments else contextlib.nullcontext():
            gpu.driver.call("cuProfilerStart")
            launch()
            gpu.synchronize()
            gpu.driver.call("cuProfilerStop")
    del keep
    return 0


def _launch_of(call: dict[str, Any], workload: Workload, case: execute.Case) -> tuple[Callable[[], None], Any]:
    """A function that queues one call of the candidate, and what it needs."""
    if "peer" not in call:
        prepared = execute.prepare(case, workload.variant(call["variant"]), tile=call["tile"])
        return prepared.launch, prepared
    (peer,), _ = peers([call["peer"]])
    made = peer.prepare(workload, {name: case.argument(name) for name in case.inputs})
    return made.launch, (peer, made)


@contextlib.contextmanager
def torch_trace(path: str) -> Any:
    """Record kernels with torch's profiler, which uses CUPTI, as a Chrome trace in ``path``."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
        yield
    recorded.export_chrome_trace(path)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if "--torch-trace" in sys.argv:
        # the trace is complete: what libraries of CUDA and torch do at the end of a process has ended it by a signal before
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)
