"""A CUTLASS GEMM as a program of ptxkit: its source, and the launch that a builder kernel computes on a device.

The builder runs on the device of the GEMM, a GPU or the emulator: one thread fills the kernel's Params and returns grid, block
and workspace size. It returns descriptions of the tensor maps, which the device's driver or the emulator encodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.cutlass import package, params
from ptxkit.cutlass.description import SHARED_BYTES, GemmDescription
from ptxkit.cutlass.formats import FORMATS
from ptxkit.errors import CompileError, LaunchError
from ptxkit.runtime.tensor_map.limits import BYTES
from ptxkit.workload.launch import Generated, Launch, Source, cdiv

if TYPE_CHECKING:
    from ptxkit.compiler.image import Image
    from ptxkit.runtime.device import Device, DeviceArray, LoadedModule

BUILDER = "ptxkit_build"
CLEAR = "ptxkit_clear"

# NDEBUG: the asserts of device code would make ptxas serialize wgmma. -default-device: CUTLASS calls functions in device code
# that it does not annotate with __device__.
_OPTIONS = ("-std=c++17", "-default-device", "-DNDEBUG", "-w")
_OPTIONS_3X = ("-DCUTLASS_UINT128_NATIVE", "-device-int128")


@dataclass(frozen=True)
class GemmProgram(Generated):
    """One description for one problem: c = activation(alpha a b + beta c).

    Attributes:
        description: which kernel.
        m, n, k: of the problem. Two problems of one description share a compiled program.
        alpha, beta: factors.
        a, b, c: names of the arrays.
        scales: names of the arrays with the scale factors of a and b, of block-scaled types.
    """

    description: GemmDescription
    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 0.0
    a: str = "a"
    b: str = "b"
    c: str = "c"
    scales: tuple[str, str] = ("a_scales", "b_scales")

    @property
    def slow(self) -> bool:  # type: ignore[override]  # a class attribute in Generated
        """Kernels of CUTLASS 3.x take half a minute to compile."""
        return self.description.generation == 3

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.description.name

    def launch(self) -> Launch:
        """The launch as far as the description determines it: one CTA per tile."""
        d = self.description
        grid = (cdiv(self.m, d.tile[0]), cdiv(self.n, d.tile[1]))
        cluster = d.cluster if d.cluster != (1, 1, 1) else None
        scales = self.scales if d.dtype in FORMATS else ()
        return Launch(d.name, grid, 128, (self.a, self.b, self.c, *scales), cluster=cluster, source=self)

    def source(self) -> Source:
        """The generated source of CUTLASS and the builder kernel."""
        from ptxkit.cutlass.emit import emit
        from ptxkit.cutlass.headers import patched_headers

        d = self.description
        text = f'{emit(d)}\nusing Kernel = {d.name}_type;\n#include "ptxkit/cutlass/params_{d.generation}x.cuh"\n'
        options = _OPTIONS + (_OPTIONS_3X if d.generation == 3 else ())
        return Source(f"{d.name}.cu", text, options, package.include_dirs(), dict(patched_headers(d.arch)))

    def complete(self, launch: Launch, image: Image) -> Launch:
        """Block, shared memory and cluster from ``ptxkit_facts``.

        Raises:
            CompileError: stages and epilogue together need more shared memory than a CTA may have.
        """
        facts = _facts(image)
        if facts["shared_bytes"] > (most := SHARED_BYTES[self.description.arch]):
            raise CompileError(
                f"{self.name} needs {facts['shared_bytes']:,} bytes of shared memory, more than {most:,}; use fewer stages"
            )
        cluster = tuple(map(int, facts["cluster"]))
        return replace(
            launch,
            block=int(facts["threads"]),
            shared=int(facts["shared_bytes"]),
            cluster=cluster if cluster != (1, 1, 1) else None,
        )

    def bind(
        self, launch: Launch, module: LoadedModule, device: Device, array: Callable[[str], DeviceArray]
    ) -> tuple[tuple[Launch, ...], tuple[object, ...]]:
        """Grid, block and Params by the builder kernel; tensor maps by the device.

        The GEMM is the last launch. Before each stream-K GEMM the barriers in its workspace are cleared.

        Raises:
            LaunchError: CUTLASS cannot compute these sizes with this kernel.
        """
        d = self.description
        a, b, c = array(self.a), array(self.b), array(self.c)
        problem = self._problem(a.address, b.address, c.address, device.multiprocessors)
        if d.dtype in FORMATS:
            problem["a_scales"], problem["b_scales"] = (array(name).address for name in self.scales)
        made, answer = _build(module, device, problem)
        if not answer["possible"]:
            raise LaunchError(
                f"{self.name} cannot compute m={self.m}, n={self.n}, k={self.k}; "
                f"rows must be multiples of {self.description.alignment} elements"
            )
        before: tuple[Launch, ...] = ()
        keep: tuple[object, ...] = ()
        if wanted := int(answer["workspace_bytes"]):
            workspace = device.upload(np.zeros(wanted, np.uint8), "CUTLASS workspace")
            problem["workspace"] = workspace.address
            made, answer = _build(module, device, problem)
            keep = (workspace,)
            if words := int(answer["clear_bytes"]) // 4:
                start = np.uint64(workspace.address + wanted - 4 * words)
                before = (Launch(CLEAR, cdiv(words, 128), 128, (start, words)),)
        for offset, encoding in params.notes(made):
            made[offset : offset + BYTES] = np.frombuffer(device.tensor_map(encoding), np.uint8)
        bound = replace(
            launch,
            grid=tuple(map(int, answer["grid"])),
            block=tuple(map(int, answer["block"])),
            args=(made.tobytes(),),
        )
        return (*before, bound), keep

    def _problem(self, a: int, b: int, c: int, multiprocessors: int) -> np.ndarray[Any, Any]:
        d = self.description
        problem = np.zeros((), params.PROBLEM)
        values = {
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "batches": 1,
            "a": a,
            "b": b,
            "c": c,
            "d": c,
            "lda": self.k if d.a_layout == "row" else self.m,
            "ldb": self.n if d.b_layout == "row" else self.k,
            "ldc": self.n,
            "ldd": self.n,
            "alpha": self.alpha,
            "beta": self.beta,
            "multiprocessors": multiprocessors,
        }
        for name, value in values.items():
            problem[name] = value
        return problem


def _facts(image: Image) -> np.ndarray[Any, Any]:
    """``ptxkit_facts``, as the PTX initializes it."""
    match = re.search(r"\.b8 ptxkit_facts\[28\] = \{([\d, ]+)\}", image.ptx)
    if match is None:
        raise CompileError(f"{image.source_name}: the compiled program has no ptxkit_facts")
    data = bytes(map(int, match[1].split(",")))  # zeros at the end are not written
    facts: np.ndarray[Any, Any] = np.frombuffer(data.ljust(params.FACTS.itemsize, b"\0"), params.FACTS)[0]
    return facts


def _build(
    module: LoadedModule, device: Device, problem: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(bytes of Params, answer) of one run of the builder kernel."""
    size = int(_facts(module.image)["params_bytes"])
    # zeros, because padding and members that the kernel does not use stay unwritten
    made = device.upload(np.zeros(size, np.uint8), "CUTLASS Params")
    answer = device.upload(np.zeros(1, params.ANSWER).view(np.uint8), "CUTLASS answer")
    module[BUILDER](problem.tobytes(), made, answer, grid=1, block=1)
    device.synchronize()
    return made.numpy(), answer.numpy().view(params.ANSWER)[0]
