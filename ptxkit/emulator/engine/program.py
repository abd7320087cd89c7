"""A module that is loaded into a machine: its global variables have addresses; its kernels are bound at their first launch."""

from __future__ import annotations

import struct
import sys
import threading
import time
import weakref
from dataclasses import dataclass, field

import numpy as np

import ptxkit.emulator.instruction_set  # noqa: F401  fills the instruction table
from ptxkit.emulator.counters.counters import Counters, LineCounters
from ptxkit.emulator.counters.summary import summarize
from ptxkit.emulator.engine.entry import EntryCode
from ptxkit.emulator.engine.hardware import Hardware
from ptxkit.emulator.engine.launch import EmulatedLaunch, Shape
from ptxkit.emulator.lowering.backend import BackEnd
from ptxkit.emulator.lowering.code import Binder
from ptxkit.emulator.memory.allocations import SHARED_WINDOW
from ptxkit.emulator.memory.footprint import Footprint
from ptxkit.emulator.memory.layout import callees, make_layout
from ptxkit.emulator.native.program import NativeProgram
from ptxkit.emulator.settings import DEFAULTS, EmulatorSettings
from ptxkit.emulator.simt.state import Dim
from ptxkit.errors import CompileError, LaunchError, UsageError
from ptxkit.isa.model import Function, Module, Variable
from ptxkit.targets.launch import Resources, geometry_refusal, required_cluster, resource_refusal


@dataclass
class LaunchResult:
    """The counts of a launch, and how long the host took.

    Attributes:
        counters: totals; None when the settings say not to count.
        lines: the same per source line.
        elapsed_s: seconds of host time that the emulation took. They are unrelated to the time on a GPU.
    """

    counters: Counters | None
    lines: list[LineCounters] = field(default_factory=list)
    elapsed_s: float = 0.0


def _print(text: str) -> None:
    sys.stdout.write(text)


class Program:
    """See :meth:`ptxkit.emulator.engine.machine.Machine.load`."""

    def __init__(self, machine: Hardware, module: Module, target: str, back_end: BackEnd | None = None) -> None:
        self.machine = machine
        self.module = module
        self.target = target
        self.back_end = back_end
        self.device = machine.facts_for(target)
        self.capability = int("".join(c for c in target if c.isdigit()) or "90")
        self.globals: dict[str, tuple[int, int]] = {}
        self._bound: dict[tuple[str, bool], EntryCode] = {}
        self._lock = threading.Lock()
        self._functions = {name: 0x1000 + n * 0x100 for n, name in enumerate(module.functions)}
        variables = list(module.variables.values())
        for f in module.functions.values():
            variables += [v for v in f.variables.values() if v.space in ("global", "const")]
        variables = [v for v in variables if v.space in ("global", "const")]
        bases: list[int] = []
        # Free the variables together with the program. The garbage collector may call this in the middle of an
        # allocation: the next allocation then frees them
        weakref.finalize(self, machine.memory.retired.extend, bases).atexit = False
        for v in variables:
            if v.linkage == "extern" and v.init is None:
                raise CompileError(f"{module.path}:{v.line}: {v.name} is declared extern and defined nowhere")
            allocation = machine.memory.allocate(max(v.bytes, 1), v.name)
            self.globals[v.name] = (allocation.base, v.bytes)
            allocation.data[:] = 0
            if v.init:
                allocation.data[: len(v.init)] = np.frombuffer(v.init, np.uint8)
            bases.append(allocation.base)
        for v in variables:
            self._relocate(v)

    @property
    def entries(self) -> dict[str, Function]:
        """The kernels by mangled name."""
        return self.module.entries

    def global_address(self, name: str) -> tuple[int, int]:
        """Address and size in bytes of a module variable.

        Raises:
            UsageError: there is none of that name.
        """
        if name not in self.globals:
            raise UsageError(f"no global or constant variable {name!r}; there are: {', '.join(self.globals) or 'none'}")
        return self.globals[name]

    def _relocate(self, v: Variable) -> None:
        base, _ = self.globals[v.name]
        width = v.type.bytes
        for offset, symbol, addend, generic, mask in v.relocations:
            if symbol in self.globals:
                value = self.globals[symbol][0] + addend
            elif symbol in self._functions:
                value = self._functions[symbol] + addend
            else:
                raise CompileError(
                    f"{self.module.path}:{v.line}: the initialiser of {v.name} names {symbol}, which has no address"
                )
            if generic and SHARED_WINDOW <= value < SHARED_WINDOW + (1 << 32):
                raise CompileError(f"{self.module.path}:{v.line}: a shared variable has no address before launch")
            if mask:
                value = (value & mask) >> (mask.bit_length() - 8)
            size = 1 if mask else max(width, 4) if width >= 4 else 8
            data = struct.pack("<Q", value & 0xFFFF_FFFF_FFFF_FFFF)[:size]
            self.machine.memory.slice(base + offset, size)[:] = np.frombuffer(data, np.uint8)

    def bind(self, entry: str, stepping: bool = False) -> EntryCode:
        """Bind a kernel and the functions that it calls. The result is kept for later launches.

        Args:
            stepping: for execution one instruction at a time, see :class:`~ptxkit.emulator.lowering.code.Binder`.

        Raises:
            UsageError: no such kernel.
            UnsupportedError: lists every form that is not implemented, with PTX line and source line.
        """
        with self._lock:
            code = self._bound.get((entry, stepping))
            if code is not None:
                return code
            function = self.module.entries.get(entry)
            if function is None:
                raise UsageError(f"no kernel {entry!r}; there are: {', '.join(self.module.entries) or 'none'}")
            layout = make_layout(self.module, function, self.globals)
            binder = Binder(self.module, layout, self.capability, stepping, self.back_end)
            binder.bind(callees(self.module, function))
            constants = [self.globals[v.name] for v in self.module.variables.values() if v.space == "const"]
            code = EntryCode(
                entry,
                self.module.path,
                self.target,
                function,
                layout,
                binder.blocks,
                binder.instructions,
                binder.functions[entry],
                constants,
                any(f.frame_bytes for f in binder.functions.values()),
                any(f.undefined for f in binder.functions.values()),
                None if stepping or self.back_end is not None else NativeProgram(binder.runs, layout),
            )
            self._bound[entry, stepping] = code
            return code

    def launch(
        self,
        entry: str,
        params: bytes,
        *,
        grid: Dim,
        block: Dim,
        shared_bytes: int = 0,
        cluster: Dim | None = None,
        cooperative: bool = False,
        registers: int = 0,
        static_shared: int | None = None,
        settings: EmulatorSettings = DEFAULTS,
        footprint: Footprint | None = None,
    ) -> LaunchResult:
        """Execute a launch of a kernel to its end.

        Args:
            entry: mangled name.
            params: the parameter buffer, every parameter at its offset (:attr:`Layout.params`).
            grid, block, cluster: (x, y, z); cluster None takes the kernel's ``.reqnctapercluster``, else 1.
            shared_bytes: dynamic shared memory.
            cooperative: all CTAs are resident at once.
            registers: per thread, as ptxas gave them; 0 where the kernel was not assembled, and then they are not checked.
            static_shared: bytes of static shared memory per CTA, as ptxas laid them out; None takes the layout here.
            settings: how the launch is emulated.
            footprint: records the bytes of global memory that the launch touches; None for nothing.

        Raises:
            LaunchError: the launch does not fit the kernel, or exceeds what a GPU of the target can launch.
            RaceError: with ``settings.racecheck``, when the launch is over: warps accessed the same shared memory out of order.
            UninitialisedError: a result depends on a register or local memory that was never written; with
                ``settings.initcheck`` also on shared or global memory.
            ArithmeticTrap: with ``settings.trap``, at the first division by zero, NaN or infinity.
            FaultError: and its children, from the instruction that failed.
        """
        if shared_bytes < 0:
            raise LaunchError(f"{entry}: {shared_bytes} bytes of dynamic shared memory")
        code = self.bind(entry, stepping=settings.observer is not None)
        if min(*grid, *block, *(cluster or (1,))) < 1:
            raise LaunchError(
                f"{entry}: grid {grid}, block {block} and cluster {cluster or (1, 1, 1)} must be at least 1 everywhere"
            )
        if len(params) != code.layout.param_bytes:
            raise LaunchError(f"{entry}: {len(params)} bytes of parameters, the kernel takes {code.layout.param_bytes}")
        used = Resources(
            registers=registers,
            static_shared=code.layout.shared_bytes if static_shared is None else static_shared,
            dynamic_shared=shared_bytes,
            parameters=len(params),
            ptx_version=self.module.version,
        )
        fixed = required_cluster(code.function.directives)
        reason = geometry_refusal(grid, block, cluster, code.function.directives, self.device) or resource_refusal(
            grid, block, cluster or fixed, used, self.device, cooperative=cooperative
        )
        if reason is not None:
            raise LaunchError(f"{entry}: {reason}")
        shape = Shape(grid, block, cluster or fixed or (1, 1, 1), cluster is not None or fixed is not None)
        began = time.perf_counter()
        launch = EmulatedLaunch(
            self.machine,
            self.device.sms,
            code,
            params,
            shape,
            shared_bytes,
            cooperative,
            settings,
            settings.write_output or _print,
            footprint,
        )
        tallies = launch.run()
        elapsed = time.perf_counter() - began
        if not settings.counting:
            return LaunchResult(None, [], elapsed)
        totals, lines = summarize(code, tallies)
        return LaunchResult(totals, lines, elapsed)
