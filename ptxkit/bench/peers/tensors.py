"""torch on ptxkit's arrays and stream: tensors that share memory, and results as numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.errors import UnavailableError
from ptxkit.runtime.buffers import DeviceArray

if TYPE_CHECKING:
    from ptxkit.runtime.gpu.device import GpuDevice

BITS = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""Types that the array interface cannot name -> an integer of their size. Name and size are the same in torch and ml_dtypes."""

ALIGNED = 8  # bytes of which the address of an array whose digest is computed is a multiple


class Torch:
    """The torch module, on one device.

    Attributes:
        module: torch. device: ptxkit's. stream: ptxkit's, as torch's.

    Raises:
        UnavailableError: this torch does not see the GPU.
    """

    def __init__(self, device: GpuDevice) -> None:
        import torch

        if not torch.cuda.is_available():
            raise UnavailableError(f"torch {torch.__version__} sees no GPU; install one with CUDA")
        self.module: Any = torch
        self.device = device
        self.stream: Any = torch.cuda.ExternalStream(device.stream_handle, device=device.index)

    @contextmanager
    def current(self) -> Iterator[None]:
        """A context in which torch queues work on ptxkit's stream."""
        with self.module.cuda.device(self.device.index), self.module.cuda.stream(self.stream):
            yield

    def tensor(self, array: DeviceArray) -> Any:
        """A tensor that shares the memory of an array and keeps it alive."""
        name = array.dtype.name
        tensor = self.module.as_tensor(_Bits(array), device=f"cuda:{self.device.index}")
        return tensor.view(getattr(self.module, name)) if name in BITS else tensor

    def arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs as tensors, or as Python numbers if they are passed by value."""
        return {n: self.tensor(v) if isinstance(v, DeviceArray) else np.asarray(v).item() for n, v in inputs.items()}

    def array(self, tensor: Any, name: str) -> DeviceArray | None:
        """The memory of a tensor as an array; None if it has gaps, or is not where an array can begin."""
        if not tensor.is_cuda or not tensor.is_contiguous() or tensor.data_ptr() % ALIGNED:
            return None
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind in BITS:
            import ml_dtypes

            kind = getattr(ml_dtypes, kind)
        return DeviceArray.at(self.device, tensor.data_ptr(), tuple(tensor.shape), np.dtype(kind), name, tensor)

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        """A copy on the host, after the work on ptxkit's stream."""
        name = str(tensor.dtype).removeprefix("torch.")
        with self.current():
            if name not in BITS:
                copied: np.ndarray[Any, Any] = tensor.detach().cpu().numpy()
                return copied
            import ml_dtypes

            bits = tensor.detach().contiguous().view(getattr(self.module, BITS[name])).cpu().numpy()
            return np.asarray(bits.view(np.dtype(getattr(ml_dtypes, name))))


class _Bits:
    """An array whose dtype the array interface can name."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        bits = BITS.get(self.array.dtype.name)
        given = dict(self.array.__cuda_array_interface__)
        return given | ({"typestr": np.dtype(bits).str} if bits else {})


class Slot:
    """The latest results of a call, as tensors in order."""

    def __init__(self, torch: Torch) -> None:
        self.torch = torch
        self.results: Sequence[Any] = ()

    def keep(self, results: Any) -> None:
        """Store the result of a function: one tensor or several."""
        self.results = tuple(results) if isinstance(results, (tuple, list)) else (results,)

    def outputs(self, names: Sequence[str]) -> dict[str, Result]:
        """The current results by name; they change with the slot."""
        return {name: Result(self, index) for index, name in enumerate(names[: len(self.results)])}


class Result:
    """One result of a slot."""

    def __init__(self, slot: Slot, index: int) -> None:
        self.slot = slot
        self.index = index

    def numpy(self) -> np.ndarray[Any, Any]:
        """See :class:`ptxkit.bench.peers.base.Readable`."""
        return self.slot.torch.to_numpy(self.slot.results[self.index])

    def on_device(self) -> DeviceArray | None:
        """See :class:`ptxkit.bench.peers.base.OnDevice`."""
        return self.slot.torch.array(self.slot.results[self.index], str(self.index))


def captured(torch: Torch, queue: Callable[[], None]) -> Any:
    """The work that ``queue`` queues, as a CUDA graph of torch with its own memory. Its ``raw_cuda_graph()`` is kept."""
    cuda = torch.module.cuda
    graph = cuda.CUDAGraph(keep_graph=True)
    torch.device.synchronize()
    cuda.empty_cache()
    with torch.current():
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            queue()
        finally:
            graph.capture_end()
    return graph
