"""Loaded modules, kernels and prepared launches, for the GPU and for the emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ptxkit.errors import LaunchError, PtxkitError, UsageError
from ptxkit.isa.mangled import base_name
from ptxkit.runtime.arguments import Bound, address_of, bind, buffer_size
from ptxkit.runtime.buffers import DeviceArray
from ptxkit.runtime.geometry import Geometry
from ptxkit.runtime.kernel_names import readable_names
from ptxkit.runtime.parameters import Parameter
from ptxkit.runtime.tensor_map.description import Encoder
from ptxkit.targets.gpus import DeviceFacts
from ptxkit.targets.launch import Resources, required_cluster, resource_refusal

if TYPE_CHECKING:
    from ptxkit.compiler.image import FunctionResources, Image
    from ptxkit.emulator.settings import EmulatorSettings
    from ptxkit.isa.model import Function
    from ptxkit.runtime.module_variables import ModuleGlobals, ModuleVariable


OpenLaunch: TypeAlias = Callable[[Sequence[Any], int], None]
"""Launches once, without waiting: ``launch(values, stream)``, with the values of the slots and the handle of a stream (0: the
default stream; the emulator has none). The caller keeps arrays alive until the launch is complete."""


class Backend(Encoder, Protocol):
    """The operations of a device that :class:`Kernel` uses for launches."""

    def upload(self, array: Any, name: str = "") -> DeviceArray:
        """A copy of an array on the device."""

    def synchronize(self) -> None:
        """Wait for the device."""

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
        """A callable that launches once, as cheaply as the device can; with ``once`` it is called only once.

        Raises:
            UsageError: ``settings`` on a device that does not emulate.
        """

    def unbound(self, kernel: Kernel, bound: Bound, geometry: Geometry) -> OpenLaunch:
        """A callable that launches once with the values of the open arguments of ``bound``."""


def check_resources(
    kernel: Kernel,
    geometry: Geometry,
    resources: FunctionResources | None = None,
    ptx_version: tuple[int, int] | None = None,
) -> None:
    """Refuse a launch of which the device's SMs cannot hold a CTA, or cannot hold all CTAs when it is cooperative.

    Args:
        resources: registers and memory of the kernel; None for those in the image.
        ptx_version: of the kernel's PTX where ptxas has not seen it, to check the size of its parameters.

    Raises:
        LaunchError: the launch cannot take place.
    """
    found = kernel.resources if resources is None else resources
    used = Resources(
        registers=found.registers,
        static_shared=found.shared_bytes,
        dynamic_shared=geometry.shared,
        barriers=found.barriers,
        parameters=0 if ptx_version is None else buffer_size(kernel.parameters),
        ptx_version=ptx_version or (0, 0),
    )
    cluster = geometry.cluster or required_cluster(kernel.function.directives)
    reason = resource_refusal(
        geometry.grid, geometry.block, cluster, used, kernel.device, cooperative=geometry.cooperative
    )
    if reason is not None:
        raise LaunchError(f"{kernel.readable}: {reason}")


class PreparedLaunch:
    """A launch with everything bound; calling it launches once and does not wait."""

    __slots__ = ("_fire", "_keep", "geometry", "kernel")

    def __init__(self, kernel: Kernel, geometry: Geometry, fire: Callable[[], None], keep: Any) -> None:
        self.kernel = kernel
        self.geometry = geometry
        self._fire = fire
        self._keep = keep

    def __call__(self) -> None:
        self._fire()

    @property
    def fire(self) -> Callable[[], None]:
        """The bare callable, without the cost of a method call: for loops that count microseconds."""
        return self._fire


class Kernel:
    """One kernel on a device.

    Attributes:
        name: mangled.
        readable: the demangled name.
        parameters: in order.
        function: its PTX.
        resources: what ptxas allocated to it; all zero in an image that was not assembled.
        handle: the device's own.
        device: whose limits apply: the GPU's own facts, or in the emulator those of the target that the image was compiled for.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        readable: str,
        function: Function,
        parameters: tuple[Parameter, ...],
        resources: FunctionResources,
        handle: Any,
        device: DeviceFacts,
    ) -> None:
        self.backend = backend
        self.name = name
        self.readable = readable
        self.function = function
        self.parameters = parameters
        self.resources = resources
        self.handle = handle
        self.device = device

    def prepare(
        self,
        *args: Any,
        grid: Any = None,
        block: Any = None,
        shared: int = 0,
        cluster: Any = None,
        cooperative: bool = False,
        stream: Any = None,
        settings: EmulatorSettings | None = None,
    ) -> PreparedLaunch:
        """Check and bind all arguments once, so that each launch takes little host time.

        Args:
            *args: one for each parameter: DeviceArrays or objects in device memory for pointers, None for null
                pointers, numpy scalars of the parameter's type for numbers, bytes or records for structs, TensorMaps for
                tensor maps.
            grid, block, cluster: an int or (x, y, z); grid and block must be given.
            shared: dynamic shared memory in bytes.
            cooperative: all CTAs are resident at the same time.
            stream: of ``device.stream()``, or on a GPU any object with ``__cuda_stream__``; None takes the device's own.
            settings: all settings of this launch, in the emulator; None takes those in force when it is launched
                (:meth:`ptxkit.runtime.emulated.EmulatedDevice.settings`).

        Raises:
            UsageError: ``settings`` on a GPU; grid or block is missing.
            LaunchError: names the argument and the fix. numpy arrays are not accepted; upload them first.
        """
        geometry = Geometry(self.readable, self.function, grid, block, shared, cluster, cooperative, self.device)
        bound = self._bound(args, "a prepared launch")
        if bound.open:
            raise LaunchError(f"{self.readable}: a prepared launch takes no Slot; unbound() makes a launch that does")
        fire = self.backend.prepare(self, bound, geometry, stream, settings=settings)
        return PreparedLaunch(self, geometry, fire, bound.keep)

    def unbound(
        self,
        *args: Any,
        grid: Any = None,
        block: Any = None,
        shared: int = 0,
        cluster: Any = None,
        cooperative: bool = False,
    ) -> OpenLaunch:
        """Check a launch once whose arrays are others each time, as where a framework allocates them.

        Args:
            *args: as for :meth:`prepare`; a :class:`~ptxkit.runtime.arguments.Slot`, or a TensorMap of one, stands for an
                array or a number that is given at each launch.
            grid, block, shared, cluster, cooperative: as for :meth:`prepare`.

        Returns:
            ``launch(values, stream)``, which several threads may call.

        Raises:
            UsageError, LaunchError: as :meth:`prepare`.
        """
        geometry = Geometry(self.readable, self.function, grid, block, shared, cluster, cooperative, self.device)
        bound = self._bound(args, "a launch with open arguments")
        if bound.objects:
            raise LaunchError(f"{self.readable}: a launch with open arguments takes no Texture or Surface; use prepare()")
        return self.backend.unbound(self, bound, geometry)

    def _bound(self, args: tuple[Any, ...], what: str) -> Bound:
        """The arguments, packed; LaunchError if one is in host memory."""
        bound = bind(self.readable, self.parameters, args, self.backend)
        if bound.host:
            p, _ = bound.host[0]
            raise LaunchError(f"{self.readable}: {p.label} is a numpy array; {what} takes device.upload of it")
        return bound

    def __call__(
        self,
        *args: Any,
        grid: Any = None,
        block: Any = None,
        shared: int = 0,
        cluster: Any = None,
        cooperative: bool = False,
        stream: Any = None,
        settings: EmulatorSettings | None = None,
    ) -> None:
        """Launch once. numpy arrays are copied to the device and, once the kernel is done, back where they are writeable; with
        device arrays only, nothing is copied and the call does not wait.

        Raises:
            UsageError, LaunchError: as :meth:`prepare`.
            LaunchError: the kernel has written to a numpy array that is read-only.
            FaultError: the kernel failed (raised here only if arrays are copied back; otherwise by a later call).
        """
        geometry = Geometry(self.readable, self.function, grid, block, shared, cluster, cooperative, self.device)
        bound = bind(self.readable, self.parameters, args, self.backend)
        copies: dict[tuple[int, int], DeviceArray] = {}  # by host address and size: two arguments may be the same array
        for p, array in bound.host:
            place = address_of(array), array.nbytes
            if place not in copies:
                copies[place] = self.backend.upload(array, p.name or f"argument {p.index + 1}")
            bound.address(p, copies[place].address)
        self.backend.prepare(self, bound, geometry, stream, once=True, settings=settings)()
        if not bound.host:
            return
        self.backend.synchronize()
        for p, array in bound.host:
            copy = copies[address_of(array), array.nbytes]
            if array.flags.writeable and array.nbytes:
                self.backend.read(copy.address, array)
            elif array.nbytes and copy.numpy().tobytes() != array.tobytes():
                raise LaunchError(
                    f"{self.readable}: {p.label} is a read-only numpy array, and the kernel has written to it; pass a copy"
                )

    def __repr__(self) -> str:
        return f"Kernel({self.readable}, {len(self.parameters)} parameters)"


class LoadedModule(Mapping[str, Kernel]):
    """The kernels of an image on a device, by name expression, by plain name if it is unique, or by mangled name.

    Iteration gives the readable names, see :func:`ptxkit.runtime.kernel_names.readable_names`.

    Attributes:
        variables: its variables that kernels can write.
        globals: its ``__device__`` and ``__constant__`` variables by name, as device arrays.
    """

    def __init__(
        self,
        image: Image,
        make: Callable[[str], Kernel],
        names: tuple[str, ...],
        variables: tuple[ModuleVariable, ...],
        globals_: ModuleGlobals,
    ) -> None:
        self.image = image
        self.variables = variables
        self.globals = globals_
        self._make = make
        self._names = names
        self._readable = readable_names(image, names)
        self._kernels: dict[str, Kernel] = {}

    def __getitem__(self, name: str) -> Kernel:
        """The kernel.

        Raises:
            CompileError: no such kernel; the message names the nearest.
        """
        if not isinstance(name, str):
            raise UsageError(
                f"a module's kernels are found by name, not by {name!r}; it has {', '.join(self._readable)}"
            )
        mangled = self._find(name) or self._resolve(name)
        if mangled not in self._kernels:
            self._kernels[mangled] = self._make(mangled)
        return self._kernels[mangled]

    def _find(self, name: str) -> str | None:
        return name if name in self._names else self._readable.get(name)

    def _resolve(self, name: str) -> str:
        if self.image.functions:
            return self.image.entry(name)
        matches = [n for n in self._names if base_name(n) == name]
        if len(matches) == 1:
            return matches[0]
        near = get_close_matches(name, list(self._readable), n=3)
        listed = ", ".join(self._readable) or "none"
        raise UsageError(
            f"there is no kernel {name!r} in this module; "
            f"{'did you mean ' + ', '.join(near) + '?' if near else 'it has ' + listed}"
        )

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        try:
            return self._find(name) is not None or bool(self._resolve(name))
        except PtxkitError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(self._readable)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"LoadedModule({self.image.source_name}, {', '.join(self._readable) or 'no kernels'})"
