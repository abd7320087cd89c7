"""The base class of peers: implementations of kernels without ptxkit, on ptxkit's arrays and stream."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from ptxkit.errors import UnavailableError
from ptxkit.runtime.buffers import DeviceArray

if TYPE_CHECKING:
    import numpy as np

    from ptxkit.runtime.gpu.device import GpuDevice
    from ptxkit.workload.launch import Tolerance
    from ptxkit.workload.workload import Workload


class Readable(Protocol):
    """A result on the device."""

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy on the host in the dtype that the workload declares, after all work that was queued before."""


@runtime_checkable
class OnDevice(Protocol):
    """A result that can also be read where it is."""

    def on_device(self) -> DeviceArray | None:
        """The array on the device, which holds the result until the next call; None if it has gaps there."""


@dataclass(frozen=True)
class PeerCall:
    """A workload on one set of inputs, which can be launched any number of times.

    Attributes:
        launch: queues the work on the device's stream; everything is compiled before.
        outputs: output name -> results of the latest call. They are never the workload's output arrays, so that calls can be
            repeated; outputs that a peer does not compute are omitted. A peer that knows only their order names them "0",
            "1", ...
        note: a remark about how it runs, such as ``"num_warps=8"``.
        host_bound: for small workloads, queueing takes the host longer than the device needs, so that only a graph of calls
            measures the device's time.
        launches: number of kernels of one call; 0 if unknown.
        random: the dropped elements depend on the peer's random numbers.
        tolerance: tolerance of results that the peer rounds in another way than libraries usually do (see
            :mod:`ptxkit.bench.measure.library_accuracy`): of all outputs, or of those that it names, where the others have the
            default.
        renew: prepares again, in the same memory, what the call keeps of its inputs, such as compressed weights; called before
            results are compared, because other inputs may have been written to the arrays. None if it keeps nothing.
    """

    launch: Callable[[], None]
    outputs: Mapping[str, Readable]
    note: str = ""
    host_bound: bool = False
    launches: int = 0
    random: bool = False
    tolerance: Tolerance | Mapping[str, Tolerance] | None = None
    renew: Callable[[], None] | None = None


class Peer(ABC):
    """An implementation of kernels. Subclasses in ``*_peer.py`` of this directory are found automatically.

    Class attributes:
        name: name on the command line.
        summary: short description.
        packages: packages that must be installed; the version of the first one is reported.
        wheels: package -> distribution to install, if it has another name.
        keeps_code: what it compiles stays in a cache on disk, so that another process can compile it before.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    packages: ClassVar[Sequence[str]] = ()
    wheels: ClassVar[Mapping[str, str]] = {}
    keeps_code: ClassVar[bool] = False

    def __init__(self) -> None:
        self._device: GpuDevice | None = None

    def absent(self) -> str | None:
        """Why it cannot be used on this machine, or None. Imports no large package."""
        missing = [package for package in self.packages if importlib.util.find_spec(package) is None]
        if not missing:
            return None
        verb = "is" if len(missing) == 1 else "are"
        return f"{' and '.join(missing)} {verb} not installed; pip install {' '.join(self.wheels.get(m, m) for m in missing)}"

    def version(self) -> str:
        """``"torch 2.11.0"``."""
        package = self.packages[0]
        return f"{package} {importlib.metadata.version(package)}"

    @abstractmethod
    def offers(self, workload: Workload) -> bool:
        """Whether it computes this kernel with these sizes and options. Imports no large package."""

    @abstractmethod
    def prepare(self, workload: Workload, inputs: Mapping[str, Any]) -> PeerCall:
        """Compile, tune and warm up, so that calls can be timed or captured in a graph.

        Args:
            workload: a workload that it offers.
            inputs: the inputs by name: a :class:`~ptxkit.runtime.buffers.DeviceArray`, which is used without a copy, or the
                numpy scalar of an input that is passed by value.

        Raises:
            UnavailableError: no GPU, or the package finds none.
        """

    def graph(self, calls: Sequence[PeerCall]) -> Callable[[], None]:
        """A callable that queues a CUDA graph of prepared calls, in order, on the device's stream.

        After it ran, the outputs of each call are those of its last occurrence.
        """

        def launch() -> None:
            for call in calls:
                call.launch()

        return self.device.graph(launch)

    @property
    def device(self) -> GpuDevice:
        """The GPU of the prepared calls, which is the same for all."""
        if self._device is None:
            raise UnavailableError(f"{self.name}: nothing is prepared yet")
        return self._device

    def enter(self, inputs: Mapping[str, Any]) -> GpuDevice:
        """The GPU that the inputs are on.

        Raises:
            UnavailableError: they are not on a GPU.
        """
        arrays = [value for value in inputs.values() if isinstance(value, DeviceArray)]
        memory: Any = arrays[0].memory if arrays else None
        if getattr(memory, "stream_handle", None) is None:
            where = memory.name if arrays else "the host"
            raise UnavailableError(f"{self.name} computes on a GPU; these inputs are on {where}")
        self._device = memory
        return self.device
