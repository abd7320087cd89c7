"""PyTorch in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from ptxkit.bench.peers import torch_ops
from ptxkit.bench.peers.base import Peer, PeerCall
from ptxkit.bench.peers.tensors import Slot, Torch, captured
from ptxkit.bench.peers.torch_ops import TorchOp
from ptxkit.errors import FaultError
from ptxkit.runtime.gpu.graph import instantiated, node_count
from ptxkit.workload.workload import Workload

WARM_UP = 3  # warm-up calls: torch.compile compiles in the first, and the allocator has then seen all sizes
BY_ORDER = tuple(map(str, range(100)))  # names of outputs, if the workload declares none


@dataclass
class Prepared:
    """The function of the workload that was prepared last, which all sets of buffers share.

    Attributes:
        takes: names of its arguments. launches: kernels of a call; 0 before the first one.
    """

    workload: Workload
    function: Callable[..., Any]
    takes: tuple[str, ...]
    launches: int = 0


class TorchPeer(Peer):
    """One kernel per operation, as in torch's eager mode."""

    name = "torch"
    summary = "PyTorch, eager"
    packages = ("torch",)

    def __init__(self) -> None:
        super().__init__()
        self._torch: Torch | None = None
        self._latest: Prepared | None = None

    def offers(self, workload: Workload) -> bool:
        """See :meth:`Peer.offers`."""
        return torch_ops.find(workload) is not None

    def prepare(self, workload: Workload, inputs: Mapping[str, Any]) -> PeerCall:
        """See :meth:`Peer.prepare`."""
        torch = self.torch(inputs)
        definition = torch_ops.find(workload)
        if definition is None:
            raise ValueError(f"{self.name} does not offer {workload.name}")
        if self._latest is None or self._latest.workload != workload:
            written = self.written(workload, definition, torch)
            self._latest = Prepared(workload, self.made(written, definition, torch), definition.takes(written))
        latest = self._latest
        given = torch.arguments({name: inputs[name] for name in latest.takes})
        launch = Launch(torch, latest.function, list(given.values()))
        with torch.current(), self.warming_up():
            for _ in range(1 if latest.launches else WARM_UP):
                launch()
        latest.launches = latest.launches or _count(torch, launch)
        return PeerCall(
            launch=launch,
            outputs=launch.slot.outputs(definition.outputs or BY_ORDER),
            note=f"{latest.launches} launches" if latest.launches > 1 else "",
            host_bound=True,
            launches=latest.launches,
            random=definition.random(workload),
            tolerance=definition.tolerance_of(workload),
        )

    def torch(self, inputs: Mapping[str, Any]) -> Torch:
        """The torch module on the device of the inputs."""
        device = self.enter(inputs)
        if self._torch is None or self._torch.device is not device:
            self._torch = Torch(device)
        return self._torch

    def written(self, workload: Workload, definition: TorchOp, torch: Torch) -> Callable[..., Any]:
        """The function of tensors, which subclasses may write in another way."""
        return definition.define(workload, torch.module)

    def made(self, function: Callable[..., Any], definition: TorchOp, torch: Torch) -> Callable[..., Any]:
        """The callable to use instead of the function, which subclasses may compile."""
        return function

    def warming_up(self) -> AbstractContextManager[None]:
        """A context for the first calls of a function."""
        return nullcontext()

    def graph(self, calls: Sequence[PeerCall]) -> Callable[[], None]:
        """See :meth:`Peer.graph`."""
        assert self._torch is not None
        torch = self._torch

        def queue() -> None:
            for call in calls:
                call.launch()

        graph = captured(torch, queue)
        with torch.current():
            graph.replay()  # sets torch's random state of the graph, from which each launch starts
        # launched like ptxkit's graphs: torch's replay would also queue copies of the random state
        fire = instantiated(torch.device, int(graph.raw_cuda_graph()), torch.device.stream_handle)
        # each graph has its own memory; the outputs of a call are those of the graph that ran last
        slots = {id(call.launch): call.launch.slot for call in calls if isinstance(call.launch, Launch)}
        kept = [(slot, slot.results) for slot in slots.values()]

        def replay(graph: Any = graph) -> None:  # the graph owns the memory
            for slot, results in kept:
                slot.results = results
            if code := fire():
                raise FaultError(f"{self.name}: {torch.device.driver.message(code)}, while launching a graph")

        return replay


class Launch:
    """One call of a function of tensors.

    Attributes:
        slot: the slot of its results.
    """

    def __init__(self, torch: Torch, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self.torch = torch
        self.function = function
        self.arguments = arguments
        self.slot = Slot(torch)

    def __call__(self) -> None:
        """Queue it on ptxkit's stream."""
        self.slot.results = ()  # so that the allocator returns the same memory again
        with self.torch.module.cuda.stream(self.torch.stream):
            self.slot.keep(self.function(*self.arguments))


def _count(torch: Torch, launch: Callable[[], None]) -> int:
    """Number of kernels of one call."""
    graph = captured(torch, launch)
    return node_count(torch.device, int(graph.raw_cuda_graph()))
