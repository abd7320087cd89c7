"""Triton: one kernel of ptxkit for each operation, in the fastest of several configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

from ptxkit.bench.peers import triton_ops
from ptxkit.bench.peers.base import Peer, PeerCall
from ptxkit.bench.peers.tensors import Torch
from ptxkit.bench.peers.triton_ops import Config, Program
from ptxkit.errors import PtxkitError, UnavailableError
from ptxkit.runtime.buffers import DeviceArray
from ptxkit.runtime.gpu.device import GpuDevice
from ptxkit.workload.launch import array_spec
from ptxkit.workload.workload import Workload

TUNING_SAMPLES = 15  # cold samples of each configuration
OUTPUT = "out:"  # prefix of the name of an output among a program's arguments
SCRATCH = "tmp:"  # prefix of the name of a scratch array


class TritonPeer(Peer):
    """Kernels for these operations, tuned like ``triton.autotune`` does."""

    name = "triton"
    keeps_code = True
    summary = "Triton, one kernel for each operation"
    packages = ("triton", "torch")

    def __init__(self) -> None:
        super().__init__()
        self._torch: Torch | None = None
        self._latest: tuple[Workload, Program, Config] | None = None  # the workload prepared last

    def offers(self, workload: Workload) -> bool:
        """See :meth:`Peer.offers`."""
        return triton_ops.find(workload) is not None

    def prepare(self, workload: Workload, inputs: Mapping[str, Any]) -> PeerCall:
        """See :meth:`Peer.prepare`."""
        device = self.enter(inputs)
        if self._torch is None or self._torch.device is not device:
            self._torch = Torch(device)
        torch = self._torch
        given = torch.arguments(inputs)
        if self._latest is None or self._latest[0] != workload:
            define = triton_ops.find(workload)
            assert define is not None
            program = define(workload)
            outputs = allocated(device, workload, program, inputs)
            launches = {
                index: bound(torch, program, config, given, outputs) for index, config in enumerate(program.configs)
            }
            self._latest = (workload, program, program.configs[fastest(device, launches)])
            del outputs, launches
        _, program, config = self._latest
        outputs = allocated(device, workload, program, inputs)
        launch = bound(torch, program, config, given, outputs)
        launch()
        return PeerCall(
            launch=launch,
            outputs=outputs,
            note=" ".join(f"{name}={value}" for name, value in config.items()),
            host_bound=True,
            launches=len(program.launches),
            tolerance=program.tolerance,
        )


def allocated(
    device: GpuDevice, workload: Workload, program: Program, inputs: Mapping[str, Any]
) -> dict[str, DeviceArray]:
    """New arrays for the outputs that a program and those after it name: as declared, or like the first input."""
    declared = {name: array_spec(spec) for name, spec in workload.outputs().items()}
    first = next(value for value in inputs.values() if isinstance(value, DeviceArray))
    arguments = [a for p in program.launches for a in p.arguments]
    names = [a.removeprefix(OUTPUT) for a in arguments if isinstance(a, str) and a.startswith(OUTPUT)]
    return {name: device.empty(*declared.get(name, (first.shape, first.dtype)), name) for name in names}


def bound(
    torch: Torch, program: Program, config: Config, given: Mapping[str, Any], outputs: Mapping[str, DeviceArray]
) -> Callable[[], None]:
    """A callable that queues the program and those after it on ptxkit's stream."""
    named = {**given, **{OUTPUT + name: torch.tensor(array) for name, array in outputs.items()}}
    for name, spec in program.scratch.items():
        named[SCRATCH + name] = torch.tensor(torch.device.empty(*array_spec(spec), name))
    kernels = []
    for each in program.launches:
        arguments = [named[a] if isinstance(a, str) else a for a in each.arguments]
        kernels.append(partial(each.kernel[each.grid(config)], *arguments, **each.constants, **config))
    stream, on = torch.stream, torch.module.cuda.stream

    def launch() -> None:
        with on(stream):
            for kernel in kernels:
                kernel()

    return launch


def fastest(device: GpuDevice, launches: Mapping[int, Callable[[], None]]) -> int:
    """The key of the launch with the shortest median; configurations that Triton cannot compile are omitted.

    Raises:
        UnavailableError: Triton cannot compile any of them.
    """
    times: dict[int, float] = {}
    reasons: list[str] = []
    for key, launch in launches.items():
        try:
            launch()
        except PtxkitError:
            raise
        except Exception as error:  # noqa: BLE001  # OutOfResources and compiler errors have no common base
            reasons.append(f"{type(error).__name__}: {error}")
            continue
        if len(launches) > 1:
            times[key] = median(device.measure(launch, TUNING_SAMPLES).times_us)
        else:
            times[key] = 0.0
    if not times:
        raise UnavailableError(f"Triton builds no configuration: {reasons[0]}")
    return min(times, key=lambda key: times[key])
