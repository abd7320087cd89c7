"""What a peer is: one way that people would compute a kernel without ptxkit, on ptxkit's own arrays and stream."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

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
        """A copy on the host, in the dtype the workload declares, after everything that was queued before."""


@dataclass(frozen=True)
class PeerCall:
    """A workload on one set of inputs, ready to be called again and again.

    Attributes:
        launch: queues the work on the device's stream; nothing is compiled in it any more.
        outputs: output name -> where the results of the latest call lie. Never the workload's own output arrays, so that calls
            can be repeated; those that a peer does not compute are left out. A peer that knows only their order calls them
            "0", "1", ...
        note: what is to be said of how it runs: ``"num_warps=8"``.
        host_bound: queueing takes the host longer than the device would need for a small workload, so that only a graph of
            calls shows the device's time.
        launches: kernels of one call; 0 where that is not known.
        random: what is dropped is up to the peer's own random numbers.
        tolerance: instead of the workload's, where the peer rounds in its own way.
    """

    launch: Callable[[], None]
    outputs: Mapping[str, Readable]
    note: str = ""
    host_bound: bool = False
    launches: int = 0
    random: bool = False
    tolerance: Tolerance | None = None


class Peer(ABC):
    """One way to compute kernels. Subclasses in this directory's ``*_peer.py`` are found by themselves.

    Class attributes:
        name: how the command line calls it.
        summary: what it is, in a few words.
        packages: what must be installed, the first being the one whose version counts.
        wheels: package -> what to install for it, where that has another name.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    packages: ClassVar[Sequence[str]] = ()
    wheels: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self._device: GpuDevice | None = None

    def absent(self) -> str | None:
        """Why it cannot be used here, or None. Imports nothing heavy."""
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
        """Whether it computes this kernel with these sizes and options. Imports nothing heavy."""

    @abstractmethod
    def prepare(self, workload: Workload, inputs: Mapping[str, Any]) -> PeerCall:
        """Compile, tune and warm up, so that what follows can be timed or captured in a graph.

        Args:
            workload: one that it offers.
            inputs: every input by name: a :class:`~ptxkit.runtime.buffers.DeviceArray`, read where it lies, or the numpy
                scalar of an input passed by value.

        Raises:
            UnavailableError: no GPU, or the package finds none.
        """

    def graph(self, calls: Sequence[PeerCall]) -> Callable[[], None]:
        """Calls that this peer prepared, in order, as one CUDA graph: a callable that queues it on the device's stream.

        After it ran, the outputs of each call are those of its last occurrence.
        """

        def launch() -> None:
            for call in calls:
                call.launch()

        return self.device.graph(launch)

    @property
    def device(self) -> GpuDevice:
        """The GPU of what was prepared; all of it is on one."""
        if self._device is None:
            raise UnavailableError(f"{self.name}: nothing is prepared yet")
        return self._device

    def enter(self, inputs: Mapping[str, Any]) -> GpuDevice:
        """The GPU that the inputs are on.

        Raises:
            UnavailableError: they are on none.
        """
        arrays = [value for value in inputs.values() if isinstance(value, DeviceArray)]
        memory: Any = arrays[0].memory if arrays else None
        if getattr(memory, "stream_handle", None) is None:
            where = memory.name if arrays else "the host"
            raise UnavailableError(f"{self.name} computes on a GPU; these inputs are on {where}")
        self._device = memory
        return self.device
