"""Small PTX programs for the emulator's tests: a kernel body between a fixed head and tail, launched on numpy arrays."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from ptxkit.emulator import Machine
from ptxkit.emulator.engine.program import LaunchResult
from ptxkit.emulator.lowering.backend import BackEnd
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.isa.parser import parse

HEAD = ".version 8.7\n.target {target}\n.address_size 64\n"
REGISTERS = """
    .reg .pred %p<32>; .reg .b16 %h<32>; .reg .b32 %r<64>; .reg .b64 %rd<64>; .reg .f32 %f<64>; .reg .f64 %d<32>;
"""


def kernel(body: str, params: int = 2, before: str = "", target: str = "sm_90a", directives: str = "") -> str:
    """A kernel ``k`` with ``params`` 64-bit parameters, loaded into %rd0, %rd1, ... before ``body``."""
    formal = ", ".join(f".param .u64 k_param_{n}" for n in range(params))
    loads = "\n".join(f"    ld.param.u64 %rd{n}, [k_param_{n}];" for n in range(params))
    head = HEAD.format(target=target)
    return f"{head}{before}\n.visible .entry k({formal}) {directives}\n{{\n{REGISTERS}\n{loads}\n{body}\n    ret;\n}}\n"


class Run:
    """A machine with one loaded program; arrays go in as buffers, named for messages."""

    def __init__(
        self,
        text: str,
        workers: int = 2,
        path: str = "test.ptx",
        target: str = "sm_90a",
        back_end: BackEnd | None = None,
    ) -> None:
        self.machine = Machine(capacity=1 << 30, workers=workers)
        self.program = self.machine.load(parse(text, path), target, back_end)
        self.output: list[str] = []
        self.result: LaunchResult | None = None

    def __call__(
        self,
        *arguments: Any,
        grid: Any = 1,
        block: Any = 32,
        shared: int = 0,
        cluster: Any = None,
        cooperative: bool = False,
        **settings: Any,
    ) -> list[np.ndarray]:
        """Launch ``k``; every array argument is uploaded, and all are downloaded after the launch."""
        data, buffers = b"", []
        for n, a in enumerate(arguments):
            if isinstance(a, np.ndarray):
                address = self.machine.allocate(a.nbytes, f"arg{n}")
                self.machine.write(address, np.ascontiguousarray(a))
                buffers.append((address, a))
                data += struct.pack("<Q", address)
            else:
                data += struct.pack("<q", a)
        self.result = self.program.launch(
            "k",
            data,
            grid=_three(grid),
            block=_three(block),
            shared_bytes=shared,
            cluster=None if cluster is None else _three(cluster),
            cooperative=cooperative,
            settings=EmulatorSettings(write_output=self.output.append, **settings),
        )
        return [self.machine.read(address, a.nbytes).view(a.dtype).reshape(a.shape) for address, a in buffers]


def _three(size: Any) -> tuple[int, int, int]:
    x, y, z = (*(size if isinstance(size, tuple) else (size,)), 1, 1)[:3]
    return x, y, z


THREAD = """
    mov.u32 %r0, %tid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, %r1, %r0;
    mul.wide.u32 %rd20, %r3, 4; add.u64 %rd21, %rd0, %rd20; add.u64 %rd22, %rd1, %rd20;
"""
"""%r3 is the thread's index in the grid; %rd21 and %rd22 point to its 4-byte element of the first two arrays."""
