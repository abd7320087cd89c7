"""The emulator as a device, which every machine has: it counts what kernels execute instead of timing them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxkit.arguments import CALLABLE, NOTHING, TEXT, takes, whole
from ptxkit.compiler.cache import default_cache
from ptxkit.compiler.image import FunctionResources
from ptxkit.emulator import Counters, LineCounters, Machine
from ptxkit.emulator.memory.footprint import WRITE
from ptxkit.emulator.native.machine_code import keep_in
from ptxkit.emulator.settings import DEFAULTS, EmulatorSettings
from ptxkit.emulator.tma import tensor_map
from ptxkit.errors import LaunchError, UnavailableError, UsageError
from ptxkit.runtime.abilities import IMAGE, TARGET, Measurement
from ptxkit.runtime.arguments import Bound
from ptxkit.runtime.buffers import MakesArrays
from ptxkit.runtime.emulated_streams import Stream, StreamOrder
from ptxkit.runtime.emulated_texels import EmulatedTexels
from ptxkit.runtime.geometry import Geometry
from ptxkit.runtime.host_arrays import host_array
from ptxkit.runtime.kernel import Kernel, LoadedModule, OpenLaunch, check_resources
from ptxkit.runtime.module_variables import ModuleVariable, module_globals, written_variables
from ptxkit.runtime.parameters import parameters_of
from ptxkit.runtime.parsed_modules import parsed
from ptxkit.runtime.resources import launch_resources
from ptxkit.runtime.settings import HasSettings
from ptxkit.runtime.source_names import source_text
from ptxkit.targets import Target, lowest_target
from ptxkit.targets.gpus import DeviceFacts

if TYPE_CHECKING:
    from ptxkit.compiler.image import Image
    from ptxkit.emulator.engine.program import Program
    from ptxkit.runtime.tensor_map.limits import Encoding
    from ptxkit.runtime.texture.layout import TexelObject, Texels

RESERVED = 64 << 20  # bytes left for kernel parameters, module variables and device malloc
KEPT_MODULES = 64
"""Loaded modules that a device keeps for the next load of the same image; older ones live as long as a kernel of theirs."""


class EmulatedDevice(MakesArrays, HasSettings):
    """Runs any target's PTX.

    Args:
        machine: memory and multiprocessors; None makes one.
        settings: of launches for which neither the launch nor a :meth:`settings` block says otherwise.

    Attributes:
        counters: summed over the launches since :meth:`reset_counters`.
        lines: the same per source line.
    """

    kind = "emulator"
    name = "ptxkit emulator"
    target: Target | None = None
    lacks: frozenset[str] = frozenset()
    lost: str | None = None  # a fault ends the launch only
    times = False
    counts = True
    emulates = True

    def __init__(self, machine: Machine | None = None, settings: EmulatorSettings = DEFAULTS) -> None:
        super().__init__(settings)
        self.machine = machine or Machine()
        self.counters = Counters()
        self._lines: dict[tuple[str, int], Counters] = {}
        self._all_counted = True  # since the counters were reset
        self._modules: dict[str, LoadedModule] = {}
        self._order = StreamOrder()
        keep_in(default_cache)

    @property
    def lines(self) -> tuple[LineCounters, ...]:
        """What was counted, per source line, in the order of files and lines."""
        return tuple(LineCounters(file, line, self._lines[file, line]) for file, line in sorted(self._lines))

    @property
    def memory_bytes(self) -> int:
        """Emulated memory that is free."""
        return max(0, self.machine.memory.capacity - self.machine.memory.used - RESERVED)

    @property
    def multiprocessors(self) -> int:
        """SMs of the machine, or of the reference GPU of the target that kernels are compiled for by default."""
        return self.facts_for(None).sms

    @takes(target=TARGET | NOTHING)
    def facts_for(self, target: Target | None) -> DeviceFacts:
        """The facts of the target's reference GPU, with the SM count of the emulated machine."""
        return self.machine.facts_for((target or lowest_target(())).name)

    # -- memory ------------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, name: str) -> int:
        """Address of new memory."""
        return self.machine.allocate(nbytes, name)

    def free(self, address: int) -> None:
        """Free memory."""
        self.machine.free(address)
        self._order.freed(address)

    def write(self, address: int, data: np.ndarray[Any, Any]) -> None:
        """Copy to the device, after everything that was launched."""
        self.synchronize()
        self.machine.write(address, data)

    def read(self, address: int, out: np.ndarray[Any, Any]) -> None:
        """Copy from the device, after everything that was launched."""
        self.synchronize()
        out.reshape(-1).view(np.uint8)[:] = self.machine.view(address, out.nbytes)

    def host_view(self, address: int, nbytes: int) -> np.ndarray[Any, Any]:
        """The emulated memory as bytes; the host may write it, so that the initialisation check regards it as written."""
        self.synchronize()
        return self.machine.share(address, nbytes)

    def fill(self, address: int, nbytes: int, value: int) -> None:
        """Set every byte, on the device's own stream."""
        self.machine.fill(address, nbytes, value)
        self._filled(address, nbytes)

    def poison(self, address: int, nbytes: int, value: int) -> None:
        """Set every byte on the device's own stream, and have the initialisation check treat the memory as never written."""
        self.machine.poison(address, nbytes, value)
        self._filled(address, nbytes)

    def _filled(self, address: int, nbytes: int) -> None:
        footprint = self._order.footprint(self.current_settings.racecheck)
        if footprint is not None:
            footprint.runs(self.machine.memory, np.array([address], np.uint64), nbytes, WRITE)
        self._order.launched(self._order.own, "a fill", footprint)

    def undefined_bytes(self, address: int, nbytes: int) -> str:
        """The bytes to which launches have copied uninitialised ones, such as the padding of a structure."""
        return self.machine.undefined_bytes(address, nbytes)

    def digest(self, address: int, nbytes: int) -> int:
        """64 bits that depend on every byte."""
        return int.from_bytes(
            hashlib.blake2b(self.machine.view(address, nbytes).data, digest_size=8).digest(), "little"
        )

    def tensor_map(self, m: Encoding) -> bytes:
        """A tensor map in the emulator's encoding."""
        return tensor_map.encode(
            m.element,
            m.address % 2**64,  # a map may begin before its array, which begins at 0 where only its description is checked
            m.dimensions,
            m.strides,
            m.box,
            m.element_strides,
            m.swizzle,
            m.l2_promotion,
            m.oob_fill,
            m.im2col,
            m.along_w,
        )

    def texel_object(self, texels: Texels) -> EmulatedTexels:
        """A texture or surface object."""
        return EmulatedTexels(self.machine, texels)

    def foreign(self, value: Any, what: str) -> np.ndarray[Any, Any] | None:
        """Another library's array in host memory, as a numpy array.

        Raises:
            LaunchError: the object is in a GPU's memory.
        """
        array = host_array(value)
        if array is None:
            raise LaunchError(f"{what} is in a GPU's memory; copy it to the host for the emulator")
        return array

    # -- kernels -----------------------------------------------------------------------------------------------------

    @takes(image=IMAGE, source=TEXT | NOTHING)
    def load(self, image: Image, source: str | None = None) -> LoadedModule:
        """The kernels of the image, from its PTX; ``source`` is the source text, if it is not in a file."""
        key = image.key or image.ptx
        if key in self._modules:
            self._modules[key] = self._modules.pop(key)  # the newest is last
        else:
            module = parsed(image.ptx, ptx_name(image.source_name))
            program = self.machine.load(module, image.target)
            text = source_text(image, source)

            def make(name: str) -> Kernel:
                function = module.functions[name]
                resources = image.functions.get(name, FunctionResources())
                readable = image.readable(name)
                parameters = parameters_of(function, text, image.macros, image.ptx)
                return Kernel(self, name, readable, function, parameters, resources, program, program.device)

            found = ((v.name, *program.globals[v.name]) for v in written_variables(module))
            variables = tuple(ModuleVariable(self, *variable) for variable in found)
            named = module_globals(self, module, program.global_address)
            self._modules[key] = LoadedModule(image, make, tuple(module.entries), variables, named)
            if len(self._modules) > KEPT_MODULES:
                del self._modules[next(iter(self._modules))]
        return self._modules[key]

    def prepare(
        self,
        kernel: Kernel,
        bound: Bound,
        geometry: Geometry,
        stream: Any,
        *,
        once: bool = False,
        settings: EmulatorSettings | None = None,
    ) -> Callable[[], None]:
        """A callable that executes the launch to its end, with ``settings`` or with those in force when it is called.

        Raises:
            LaunchError: ``stream`` is no stream of this device. UsageError: ``settings`` are none.
        """
        if settings is not None and not isinstance(settings, EmulatorSettings):
            raise UsageError(
                f"{kernel.readable}: settings= is an EmulatorSettings, not {settings!r}; "
                "write ptxkit.EmulatorSettings(racecheck=...)"
            )
        chosen = self._order.of(stream, kernel.readable)
        execute = self._executable(kernel, geometry, tuple(bound.objects))
        params = bytes(bound.buffer)
        return lambda: self._fire(kernel, chosen, lambda: execute(params, settings, chosen))

    def unbound(self, kernel: Kernel, bound: Bound, geometry: Geometry) -> OpenLaunch:
        """A callable that executes a launch to its end, with the settings in force when it is called."""
        execute = self._executable(kernel, geometry)
        template, open_, own = bytes(bound.buffer), tuple(bound.open), self._order.own

        def launch(values: Sequence[Any], stream: int, keep: Any = bound.keep) -> None:
            params = bytearray(template)
            for argument in open_:
                data = argument.packed(values[argument.index])
                params[argument.offset : argument.offset + len(data)] = data
            given = bytes(params)
            self._fire(kernel, own, lambda: execute(given, None, own))

        return launch

    def _fire(self, kernel: Kernel, chosen: Stream, run: Callable[[], None]) -> None:
        """Execute a launch on a stream, or add it to the graph that is being captured."""
        captured = self._order.captured
        if captured is None:
            run()
        elif chosen is not self._order.own:
            raise LaunchError(f"{kernel.readable}: a graph is captured on the device's own stream; leave stream out")
        else:
            captured.append(run)

    def _executable(
        self, kernel: Kernel, geometry: Geometry, objects: tuple[TexelObject, ...] = ()
    ) -> Callable[[bytes, EmulatorSettings | None, Stream], None]:
        """A function that executes a kernel to its end, from a parameter buffer, settings and a stream, and counts."""
        program: Program = kernel.handle
        layout = program.bind(kernel.name).layout  # unsupported forms are an error now
        resources = launch_resources(kernel, geometry, program.module.text, layout.shared_bytes)
        check_resources(kernel, geometry, resources, program.module.version)

        def execute(params: bytes, settings: EmulatorSettings | None, chosen: Stream) -> None:
            current = settings or self.current_settings
            footprint = self._order.footprint(current.racecheck)
            for texels in objects:
                texels.refresh(0)
            result = program.launch(
                kernel.name,
                params,
                grid=geometry.grid,
                block=geometry.block,
                shared_bytes=geometry.shared,
                cluster=geometry.cluster,
                cooperative=geometry.cooperative,
                registers=resources.registers,
                static_shared=resources.shared_bytes,
                settings=current,
                footprint=footprint,
            )
            for texels in objects:
                texels.write_back(0)
                texels.mark(footprint)
            if result.counters is None:
                self._all_counted = False
            else:
                self.counters += result.counters
                for found in result.lines:
                    place = found.file, found.line
                    self._lines[place] = self._lines.get(place, Counters()) + found.counters
            self._order.launched(chosen, kernel.readable, footprint)

        return execute

    # -- streams and graphs --------------------------------------------------------------------------------------------

    @takes(name=TEXT)
    def stream(self, name: str = "") -> Stream:
        """A new stream for ``stream=`` of launches; see :class:`ptxkit.runtime.emulated_streams.Stream`.

        Args:
            name: for messages.
        """
        return self._order.make(name)

    @takes(launches=CALLABLE)
    def graph(self, launches: Callable[[], None]) -> Callable[[], None]:
        """What ``launches`` launches on the device's own stream, as a graph: a callable that executes all of it, in order.

        Nothing is executed while the graph is captured. A graph that is called there adds its launches to the new graph.

        Raises:
            LaunchError: a launch on another stream, a copy, a measurement, an event or a synchronisation, which a graph cannot
                hold, or no launch.
        """
        if self._order.captured is not None:
            raise LaunchError("a graph is being captured; one inside of it cannot be captured")
        captured = self._order.captured = list[Callable[[], None]]()
        try:
            launches()
        finally:
            self._order.captured = None
        if not captured:
            raise LaunchError("the graph is empty: nothing was launched while it was captured")
        steps = tuple(captured)

        def replay() -> None:
            captured = self._order.captured
            if captured is not None:
                captured.extend(steps)
                return
            for step in steps:
                step()

        return replay

    def synchronize(self) -> None:
        """Wait for everything launched, on every stream: launches return when they are done, and later ones come after them.

        Raises:
            LaunchError: a graph is being captured.
        """
        self._order.synchronized()

    def reset_counters(self) -> None:
        """Start counting at 0."""
        self.counters = Counters()
        self._lines = {}
        self._all_counted = True

    @takes(launch=CALLABLE, samples=whole(1))
    def measure(self, launch: Callable[[], None], samples: int) -> Measurement:
        """Count one call; counts do not vary, so ``samples`` does not matter. As on a GPU, the host waits for its end.

        Returns:
            The counters, and those of each line; none if a launch was executed with ``counting=False``.

        Raises:
            LaunchError: a graph is being captured.
        """
        self._order.refuse_in_graph()
        self.reset_counters()
        launch()
        self.synchronize()
        return Measurement(counters=self.counters, lines=self.lines) if self._all_counted else Measurement()

    @takes(nbytes=whole(1), samples=whole(1))
    def measure_copy(self, nbytes: int, samples: int) -> list[float]:
        """Not supported: the emulator measures no time.

        Raises:
            UnavailableError: always.
        """
        raise UnavailableError("the emulator has no clock; measure on a GPU")


def ptx_name(source_name: str) -> str:
    """The name of a source's PTX in messages: ``saxpy.ptx`` for ``saxpy.cu``, even if no such file exists."""
    stem, dot, suffix = source_name.rpartition(".")
    return f"{stem}.ptx" if dot and suffix in ("cu", "cuh", "ptx") else f"{source_name or 'source'}.ptx"
