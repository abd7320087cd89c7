"""CuPy, for computations that its users would write as one fused element-wise kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ptxkit.bench.peers.base import Peer, PeerCall
from ptxkit.runtime.buffers import DeviceArray
from ptxkit.workload.launch import Tolerance, array_spec
from ptxkit.workload.registry import is_bundled
from ptxkit.workload.workload import Workload


@dataclass(frozen=True)
class Elementwise:
    """Arguments of ``cupy.ElementwiseKernel``; the names of the inputs are the workload's.

    Attributes:
        inputs, output: with their types, T being the workload's ``dtype``.
        operation: in CUDA C++; ``{activation}`` stands for the workload's, as an expression of v.
    """

    inputs: str
    output: str
    operation: str
    tolerance: Tolerance | None = None


ACTIVATIONS = {
    "gelu": "v / (1 + exp(-1.5957691216057308f * (v + 0.044715f * v * v * v)))",  # the tanh formula
    "silu": "v / (1 + exp(-v))",
    "relu": "max(v, 0.0f)",
}

KERNELS = {
    "saxpy": Elementwise("float32 a, T x, T y", "T out", "out = a * x + y"),
    "add_mul_exp": Elementwise("T x, T y", "T out", "out = exp((x + y) * 2)"),
    # values near a tie may round to the other integer, because the inverse of the scale is rounded as well
    "quantize_int8": Elementwise(
        "T x, float32 inverse, float32 zero_point",
        "int8 q",
        "q = (signed char)min(max(rint(x * inverse + zero_point), -128.0f), 127.0f)",
        Tolerance(ulp=1),
    ),
    "add_gelu": Elementwise("T x, T y", "T out", "float v = (float)x + (float)y; out = {activation}"),
    "add_activation": Elementwise(
        "T x, T residual", "T out", "float v = (float)x + (float)residual; out = {activation}"
    ),
    "swiglu": Elementwise("T gate, T up", "T out", "float v = (float)gate; out = {activation} * (float)up"),
}
IMPLIED = {"add_gelu": "gelu", "swiglu": "silu"}  # the activation of kernels without an option for it
IN_PLACE = {"saxpy": "y"}  # the output of kernels that update an input in place


class CupyPeer(Peer):
    """One kernel per call, compiled by CuPy."""

    name = "cupy"
    keeps_code = True
    summary = "CuPy, one ElementwiseKernel for each operation"
    packages = ("cupy",)
    # the distribution "cupy" is the source, which requires a CUDA toolkit
    wheels: ClassVar[Mapping[str, str]] = {"cupy": "cupy-cuda13x"}

    def version(self) -> str:
        """See :meth:`Peer.version`. The distribution is called after its CUDA, such as ``cupy-cuda13x``."""
        import cupy

        return f"cupy {cupy.__version__}"

    def offers(self, workload: Workload) -> bool:
        """See :meth:`Peer.offers`. CuPy's kernels do not support bfloat16."""
        bundled = is_bundled(workload)
        return bundled and workload.name in KERNELS and getattr(workload, "dtype", "f32") != "bf16"

    def prepare(self, workload: Workload, inputs: Mapping[str, Any]) -> PeerCall:
        """See :meth:`Peer.prepare`."""
        import cupy

        device = self.enter(inputs)
        written = KERNELS[workload.name]
        activation = getattr(workload, "activation", IMPLIED.get(workload.name, ""))
        operation = written.operation.replace("{activation}", ACTIVATIONS.get(activation, ""))
        kernel: Any = cupy.ElementwiseKernel(written.inputs, written.output, operation, f"{workload.name}_{activation}")
        names = [declaration.split()[-1] for declaration in written.inputs.split(",")]
        first = next(value for value in inputs.values() if isinstance(value, DeviceArray))
        name = IN_PLACE.get(workload.name, written.output.split()[-1])
        spec = workload.outputs().get(name)
        output = device.empty(*(array_spec(spec) if spec else (first.shape, first.dtype)), name)
        with cupy.cuda.Device(device.index):
            stream: Any = cupy.cuda.ExternalStream(device.stream_handle, device.index)
            given = [inputs[n] for n in names]
            arguments = [cupy.asarray(v) if isinstance(v, DeviceArray) else v for v in given]
            result = cupy.asarray(output)

        def launch() -> None:
            with stream:
                kernel(*arguments, result)

        launch()
        return PeerCall(launch=launch, outputs={name: output}, host_bound=True, launches=1, tolerance=written.tolerance)
