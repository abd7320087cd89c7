"""Kernels on a GPU: loading modules, launching, and graphs of launches.

Only cubins are loaded: the driver may be older than the NVRTC that made the PTX. PTX that is too old for nvJitLink is given to
the driver as text.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ptxkit.arguments import NOTHING, TEXT, takes
from ptxkit.compiler.assemble import text_for_the_driver
from ptxkit.compiler.image import FunctionResources
from ptxkit.errors import CompileError, FaultError, LaunchError, UsageError
from ptxkit.isa.outline import outline
from ptxkit.isa.parser import parse
from ptxkit.isa.specials import reads_grid_workspace
from ptxkit.runtime.abilities import IMAGE
from ptxkit.runtime.arguments import Bound, buffer_size
from ptxkit.runtime.geometry import Geometry
from ptxkit.runtime.gpu.context import FAULTS, GpuContext
from ptxkit.runtime.gpu.driver import (
    FUNCTION_MAX_DYNAMIC_SHARED,
    FUNCTION_NON_PORTABLE_CLUSTER,
    INVALID_CLUSTER_SIZE,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    Driver,
    LaunchConfig,
    launch_config,
    reference,
)
from ptxkit.runtime.gpu.graph import capture, capture_check
from ptxkit.runtime.kernel import Kernel, LoadedModule, OpenLaunch, check_resources
from ptxkit.runtime.module_variables import ModuleVariable, module_globals, written_variables
from ptxkit.runtime.parameters import Parameter, parameters_of
from ptxkit.runtime.source_names import source_text

if TYPE_CHECKING:
    from ptxkit.compiler.image import Image
    from ptxkit.emulator.settings import EmulatorSettings
    from ptxkit.isa.model import Module
    from ptxkit.runtime.gpu.digest import Digests


_WAITS_FOR_PREVIOUS_GRID = "griddepcontrol.wait"
"""A kernel with this instruction may start before the previous grid has ended: programmatic dependent launch. Before the
instruction, it must not access memory that the previous grid writes."""


class GpuKernels(GpuContext):
    """One GPU with its kernels; :class:`ptxkit.runtime.gpu.device.GpuDevice` adds time."""

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self._modules: dict[str, LoadedModule] = {}
        self._handles: dict[str, ctypes.c_void_p] = {}  # the driver's, of these modules
        self._plain = False
        self._shared_limits: dict[int, int] = {}  # function handle -> dynamic shared memory it may have
        self._clusters: set[tuple[object, ...]] = set()  # launches that fit: function handle and geometry

    # -- kernels -----------------------------------------------------------------------------------------------------

    @takes(image=IMAGE, source=TEXT | NOTHING)
    def load(self, image: Image, source: str | None = None) -> LoadedModule:
        """The kernels of the image, from its cubin; ``source`` is the source text, if it is not in a file.

        Raises:
            CompileError: the image was not assembled, or not for this GPU.
        """
        self._enter()
        key = image.key or str(id(image))
        if key in self._modules:
            return self._modules[key]
        content = image.cubin or text_for_the_driver(image.ptx)
        if not content:
            raise CompileError(
                f"{image.source_name}: this image holds no machine code; compile it for {self.architecture}"
            )
        handle = ctypes.c_void_p()
        code = self.driver.call("cuModuleLoadData", ctypes.byref(handle), content)
        if code:
            what = "cubin" if image.cubin else "PTX"
            raise CompileError(
                f"{image.source_name}: the {what} for {image.target} does not load on {self.name} ({self.architecture}): "
                f"{self.driver.message(code)}"
            )
        read = outline if image.cubin else parse  # ptxas has checked the text of a cubin
        module = read(image.ptx, image.source_name or "<ptx>")
        text = source_text(image, source)

        def make(name: str) -> Kernel:
            self._enter()
            function = ctypes.c_void_p()
            self._check(self.driver.call("cuModuleGetFunction", ctypes.byref(function), handle, name.encode()))
            parameters = parameters_of(module.functions[name], text, image.macros, image.ptx)
            self._compare_layout(name, function, parameters)
            resources = image.functions.get(name, FunctionResources())
            readable, facts = image.readable(name), self.facts_for(None)
            return Kernel(self, name, readable, module.functions[name], parameters, resources, function, facts)

        named = module_globals(self, module, partial(self._locate, handle))
        variables = self._variables(module, handle)
        self._modules[key] = LoadedModule(image, make, tuple(module.entries), variables, named)
        self._handles[key] = handle
        return self._modules[key]

    def _variables(self, module: Module, handle: ctypes.c_void_p) -> tuple[ModuleVariable, ...]:
        """The module's variables that the driver knows by name; those of internal linkage it may not know."""
        found = []
        for variable in written_variables(module):
            located = self._locate(handle, variable.name)
            if located is not None and located[1] and located[0] % 8 == 0:
                found.append(ModuleVariable(self, variable.name, *located))
        return tuple(found)

    def _locate(self, handle: ctypes.c_void_p, name: str) -> tuple[int, int] | None:
        """Address and size in bytes of a variable; None if the driver does not know its name."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        mangled = name.encode()
        code = self.driver.call("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), handle, mangled)
        return (address.value, size.value) if code == 0 else None

    def unload(self, image: Image) -> None:
        """Unload the modules of an image. Its kernels, prepared launches and graphs must not be used afterwards."""
        key = image.key or str(id(image))
        if self._modules.pop(key, None) is None or self.lost is not None:
            return
        self.synchronize()
        self._shared_limits.clear()  # the driver may give another function the same handle
        self._clusters.clear()
        self._check(self.driver.call("cuModuleUnload", self._handles.pop(key)))

    def _compare_layout(self, name: str, function: Any, parameters: tuple[Parameter, ...]) -> None:
        """Raise LaunchError unless the driver's parameter offsets and sizes equal those of the signature.

        Only the parameters of the signature are queried. Queries until the driver returns an error would also give the
        number of parameters, but compute-sanitizer reports each such error, and most drivers do not have
        cuFuncGetParamCount yet.
        """
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        theirs: list[tuple[int, int]] = []
        for index in range(len(parameters)):
            code = self.driver.call(
                "cuFuncGetParamInfo", function, ctypes.c_size_t(index), ctypes.byref(offset), ctypes.byref(size)
            )
            if code == INVALID_VALUE:
                break
            self._check(code)
            theirs.append((offset.value, size.value))
        ours = [(p.offset, p.size) for p in parameters]
        # The parameter buffer is aligned to 16 bytes only, so that parameters aligned to 64 have other offsets in it.
        # A launch hands over an array of pointers, so only the sizes matter then
        aligned = all(p.align <= 16 for p in parameters)
        if ours != theirs if aligned else [size for _, size in ours] != [size for _, size in theirs]:
            raise LaunchError(f"{name}: the driver lays the parameters out as {theirs}, the signature says {ours}")

    def settings(self, **changes: Any) -> NoReturn:
        """Refuse: a GPU has none of the emulator's settings.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{', '.join(changes) or 'settings'}: for the emulator only, and this is {self.name}")

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
        """A callable that launches once on the stream; its host cost is one driver call. ``once``: it is called only
        once.

        Raises:
            UsageError: with ``settings``, which are for the emulator.
        """
        if settings is not None:
            raise UsageError(f"{kernel.readable}: settings= is for the emulator only, and this is {self.name}")
        where = self.stream_handle if stream is None else stream_pointer(stream)
        self._check_launch(kernel, geometry)
        plainly, config, buffer = _driver_call(self.driver, kernel, bound, geometry, where)
        keep = (buffer, bound.keep, bound.objects, stream)
        name, recent, refused = kernel.readable, self._recent, self._refused
        submit: Callable[[], int] = plainly

        def first() -> int:
            nonlocal submit
            if capture_check(self, where)():
                return int(plainly())
            graph = self._as_graph(config, plainly)
            capturing = capture_check(self, where)

            def replay() -> int:
                # a graph cannot be launched into a stream capture, a kernel can
                return int(plainly()) if capturing() else graph()

            # the device's own stream is captured only by this class, which then launches plainly: no query is needed
            submit = graph if graph is plainly or where == self.stream_handle else replay
            return submit()

        if not once and not bound.objects:
            submit = first
        objects = tuple(bound.objects)

        def fire(keep: Any = keep) -> None:
            for one in objects:
                one.refresh(where)
            recent[name] = None
            code = plainly() if self._plain else submit()
            if code:
                refused(name, code, geometry, plainly)
            for one in objects:
                one.write_back(where)

        return fire

    def unbound(self, kernel: Kernel, bound: Bound, geometry: Geometry) -> OpenLaunch:
        """A callable that launches once on a stream, with the values of the open arguments; its host cost is one driver call
        and the stores of these values.

        The context of this GPU must be current in the calling thread, as where torch has allocated the arrays.
        """
        self._check_launch(kernel, geometry)
        name, recent, refused, own = kernel.readable, self._recent, self._refused, threading.local()
        maps = tuple((a.index, a.offset, a.encode) for a in bound.open if a.encode is not None)

        def parts(values: int) -> list[Any]:
            """Those of the calling thread: between the stores in its buffer and the driver's copy, another one may run."""
            plainly, config, own.buffer = _driver_call(self.driver, kernel, bound, geometry, 0)
            runs = bound.cells(own.buffer)
            whole = len(runs) == 1 and runs[0][:2] == (0, values) and not maps
            own.parts = made = [runs[0][2] if whole else None, runs, plainly, config, 0]
            return made

        # the time of these lines is host time of each launch
        def launch(values: Sequence[Any], stream: int, keep: Any = bound.keep) -> None:
            try:
                cells, runs, plainly, config, last = mine = own.parts
            except AttributeError:
                cells, runs, plainly, config, last = mine = parts(len(values))
            if cells is not None:
                cells[:] = values
            else:
                for first, end, cells in runs:
                    cells[:] = values[first:end]
                for index, offset, encode in maps:
                    data = encode(values[index])
                    ctypes.memmove(ctypes.addressof(own.buffer) + offset, data, len(data))
            if stream != last:
                mine[4] = config.stream = stream
            recent[name] = None
            if code := plainly():
                refused(name, code, geometry, plainly)

        return launch

    def _check_launch(self, kernel: Kernel, geometry: Geometry) -> None:
        """Enter the context, and refuse a launch for which this GPU has no room."""
        self._enter()
        self._allow(kernel, geometry)
        self._find_room(kernel, geometry, _config(kernel, geometry, 0))
        if geometry.cooperative or not reads_grid_workspace(kernel.function):
            self._not_cooperative.discard(kernel.readable)
        else:
            self._not_cooperative.add(kernel.readable)

    def _as_graph(self, config: LaunchConfig, plainly: Callable[[], int]) -> Callable[[], int]:
        """A prepared launch as a graph of one kernel; unchanged if the driver does not support a graph of it.

        cuGraphLaunch costs the host less than cuLaunchKernelEx; scripts/gpu_runtime_check.py times both.
        """
        self._enter()
        where, config.stream = config.stream, self._side_stream

        def queue() -> None:
            if code := plainly():
                raise FaultError(self.driver.message(code))

        try:
            return capture(self, self._side_stream, queue, where or 0)
        except FaultError:
            self._usable()
            return plainly
        finally:
            config.stream = where

    @contextmanager
    def plain_launches(self) -> Iterator[None]:
        """Inside, prepared launches go to the driver as plain kernels: to become part of a graph, or to be timed."""
        before, self._plain = self._plain, True
        try:
            yield
        finally:
            self._plain = before

    def _allow(self, kernel: Kernel, geometry: Geometry) -> None:
        check_resources(kernel, geometry)
        limits, static = kernel.device.target.limits, kernel.resources.shared_bytes
        function = kernel.handle.value  # two modules may have kernels of one name
        if geometry.shared > self._shared_limits.get(function, limits.default_shared_bytes - static):
            self._check(
                self.driver.call("cuFuncSetAttribute", kernel.handle, FUNCTION_MAX_DYNAMIC_SHARED, geometry.shared)
            )
            self._shared_limits[function] = geometry.shared
        if geometry.cluster is not None and int(np.prod(geometry.cluster)) > limits.portable_cluster:
            self._check(self.driver.call("cuFuncSetAttribute", kernel.handle, FUNCTION_NON_PORTABLE_CLUSTER, 1))

    def _find_room(self, kernel: Kernel, geometry: Geometry, config: LaunchConfig) -> None:
        """Raise LaunchError if no GPC has room for a cluster; the SMs of a GPC depend on the GPU and on its MIG
        partition."""
        ctas = int(np.prod(geometry.cluster or 1))
        asked = (kernel.handle.value, geometry.block, geometry.shared, geometry.cluster)
        if ctas == 1 or asked in self._clusters:
            return
        held = ctypes.c_int(-1)
        code = self.driver.call("cuOccupancyMaxActiveClusters", ctypes.byref(held), kernel.handle, ctypes.byref(config))
        if code == INVALID_CLUSTER_SIZE or (code == 0 and held.value == 0):
            shared = geometry.shared + kernel.resources.shared_bytes
            raise LaunchError(
                f"{kernel.readable}: {self.name} has no room for a cluster of {ctas} CTAs with {int(np.prod(geometry.block))} "
                f"threads and {shared:,} bytes of shared memory each; take fewer CTAs, or smaller ones"
            )
        self._clusters.add(asked)

    def _refused(self, name: str, code: int, geometry: Geometry, call: Callable[[], int]) -> None:
        """Handle a launch that the driver refused: retry it in this GPU's context, or raise the error."""
        self._usable()
        if code in (INVALID_CONTEXT, INVALID_HANDLE):
            self._enter()
            code = call()
            if not code:
                return
        if code in FAULTS:  # an earlier kernel's
            self._fail(code)
        sticky = self.driver.call("cuStreamQuery", ctypes.c_void_p(self.stream_handle))
        if sticky in FAULTS:
            self._fail(sticky)
        raise LaunchError(
            f"{name}: {self.driver.message(code)} (grid {geometry.grid}, block {geometry.block}, "
            f"{geometry.shared:,} bytes of shared memory, "
            f"cluster {geometry.cluster}{', cooperative' if geometry.cooperative else ''})"
        )

    @cached_property
    def _side_stream(self) -> int:
        """Handle of a stream that nothing runs on; launches are captured there."""
        self._side = self.core.create_stream()
        return int(self._side.handle)

    # -- contents ----------------------------------------------------------------------------------------------------

    @cached_property
    def _digests(self) -> Digests:
        from ptxkit.runtime.gpu.digest import Digests

        return Digests(self)

    def digest(self, address: int, nbytes: int) -> int:
        """See :class:`ptxkit.runtime.gpu.digest.Digests`."""
        return self.digests([(address, nbytes)])[0]

    def digests(self, pieces: Sequence[tuple[int, int]]) -> list[int]:
        """See :meth:`ptxkit.runtime.buffers.MakesArrays.digests`; one launch for all."""
        self.synchronize()  # so that an earlier failure is not attributed to the digest kernel
        with self.plain_launches():
            return self._digests.of(pieces)

    @takes(name=TEXT)
    def stream(self, name: str = "") -> Any:
        """A new stream of cuda.core for ``stream=`` of launches, with ``record()``, ``wait(event)`` and ``sync()``.

        The device's own stream, and other streams made here, are not in order with it.

        Args:
            name: used by the emulator's messages only.
        """
        self._enter()
        return self.core.create_stream()

    def graph(self, launches: Callable[[], None]) -> Callable[[], None]:
        """What ``launches`` queues on this device's stream, as a CUDA graph: a callable that launches it once."""
        self._enter()
        before = dict(self._recent)
        self._recent.clear()
        with self.plain_launches():
            call = capture(self, self.stream_handle, launches, self.stream_handle)
        inside = dict(self._recent)
        self._recent.clear()
        self._recent.update(before)

        def fire() -> None:
            self._recent.update(inside)
            self._check(call())

        return fire


def _config(kernel: Kernel, geometry: Geometry, stream: int) -> LaunchConfig:
    """The configuration of a launch; a kernel that waits for the previous grid may start before it has ended."""
    early = not geometry.cooperative and kernel.function.has_opcode(_WAITS_FOR_PREVIOUS_GRID)
    shape = geometry.grid, geometry.block, geometry.shared
    return launch_config(*shape, stream, geometry.cluster, geometry.cooperative, early)


def _driver_call(
    driver: Driver, kernel: Kernel, bound: Bound, geometry: Geometry, stream: int
) -> tuple[Callable[[], int], LaunchConfig, ctypes.Array[Any]]:
    """The driver call of a launch, its configuration, and the parameter buffer that it reads, which the caller keeps."""
    config = _config(kernel, geometry, stream)
    buffer = (ctypes.c_char * max(1, buffer_size(kernel.parameters))).from_buffer_copy(bytes(bound.buffer) or b"\0")
    base = ctypes.addressof(buffer)
    pointers = (ctypes.c_void_p * max(1, len(kernel.parameters)))(*(base + p.offset for p in kernel.parameters))
    # ctypes passes references in less time than its objects
    function = reference(kernel.handle.value)
    call = partial(driver.library.cuLaunchKernelEx, ctypes.byref(config), function, ctypes.byref(pointers), None)
    return call, config, buffer


def stream_pointer(stream: Any) -> int:
    """Handle of an object with ``__cuda_stream__``, a cuda.core stream, or a plain integer handle.

    Raises:
        LaunchError: none of these.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        _, handle = protocol() if callable(protocol) else protocol
        return int(handle)
    if hasattr(stream, "cuda_stream"):  # torch
        return int(stream.cuda_stream)
    raise LaunchError(
        f"stream is a {type(stream).__name__}; pass an object with __cuda_stream__ or the handle as an integer"
    )
