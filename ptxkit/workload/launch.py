"""The values of which a kernel description consists: Launch, Work, Tile, Tolerance and array shapes.

The ``source`` of a :class:`Launch` may be a :class:`Generated` instead of a file: a kernel whose source is generated, and whose
launch configuration follows from the compiled program. In this case

1. :meth:`Generated.source` gives the text to compile,
2. :meth:`Generated.complete` sets block, shared memory and cluster of the launch from the image,
3. :meth:`Generated.bind` sets grid and arguments for arrays on a device, and adds launches that must precede it.
"""

from __future__ import annotations

import math
import numbers
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ptxkit.arguments import FLAG, MAPPING, NUMBER, SEQUENCE, TEXT, check, is_whole, shown, whole
from ptxkit.errors import DescriptionError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ptxkit.compiler.image import Image
    from ptxkit.runtime.abilities import Device
    from ptxkit.runtime.buffers import DeviceArray
    from ptxkit.runtime.kernel import LoadedModule

Dim: TypeAlias = int | tuple[int, ...]
"""A grid, block or cluster: x, (x, y) or (x, y, z)."""

Shape: TypeAlias = int | tuple[int, ...]

ArraySpec: TypeAlias = "tuple[Shape, npt.DTypeLike]"
"""Shape and dtype of an output or a temporary."""


def cdiv(a: int, b: int) -> int:
    """``a / b`` rounded up, for grids: ``cdiv(1000, 256) == 4``.

    Raises:
        UsageError: ``b`` is 0.
    """
    if not (is_whole(a) and is_whole(b)):
        raise UsageError(f"cdiv takes two whole numbers, not {shown(a)} and {shown(b)}")
    if b == 0:
        raise UsageError(f"cdiv({a}, 0) divides by zero")
    return -(-a // b)


def dim3(value: Dim, what: str) -> tuple[int, int, int]:
    """``value`` as (x, y, z); missing dimensions are 1.

    Raises:
        DescriptionError: not one to three whole numbers of at least 1. ``what`` names it in the message.
    """
    parts = value if isinstance(value, tuple) else (value,)
    try:
        numbers = [operator.index(part) for part in parts]
    except TypeError:
        raise DescriptionError(f"{what} must be one to three whole numbers, not {value!r}") from None
    if not 1 <= len(numbers) <= 3 or min(numbers) < 1:
        raise DescriptionError(f"{what} must be one to three whole numbers of at least 1, not {value!r}")
    x, y, z = ([*numbers, 1, 1])[:3]
    return x, y, z


_LAUNCH_RULES = {
    "args": SEQUENCE,
    "shared": whole(0),
    "cooperative": FLAG,
    "template": SEQUENCE,
    "defines": MAPPING,
    "options": SEQUENCE,
    "instantiate": SEQUENCE,
}


@dataclass(frozen=True)
class Launch:
    """One kernel launch of a variant.

    Attributes:
        kernel: function name; with ``template`` the name of a function template.
        grid: number of CTAs. block: threads of a CTA. Both become (x, y, z).
        args: one for each parameter of the kernel: a string names an input, an output or a temporary, as do
            ``TensorMap("x", box=...)``, ``Texture("x")`` and ``Surface("x")``; other values are converted to the parameter's
            type.
        shared: dynamic shared memory of a CTA in bytes.
        cluster: CTAs of a cluster as (x, y, z), or None for a launch without clusters.
        cooperative: all CTAs are resident at the same time, so that they may wait for each other.
        source: the file with the kernel, if it is not that of the variant, or a :class:`Generated`.
        template: template arguments; ``("l2norm", template=(256, 4))`` launches ``l2norm<256, 4>``.
        defines: preprocessor macros.
        options: further options of NVRTC, such as ``("--ptxas-options=-O1",)``.
        instantiate: name expressions of other templates of the source that are compiled into the program, although this
            variant may not launch them: with and without their launches it is then the same program, which is compiled once.
    """

    kernel: str
    grid: Dim
    block: Dim
    args: tuple[object, ...] = ()
    shared: int = 0
    cluster: Dim | None = None
    cooperative: bool = False
    source: str | Generated | None = None
    template: tuple[object, ...] = ()
    defines: Mapping[str, object] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    instantiate: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check("kernel of a Launch", self.kernel, TEXT, DescriptionError)
        object.__setattr__(self, "grid", dim3(self.grid, f"the grid of {self.kernel}"))
        object.__setattr__(self, "block", dim3(self.block, f"the block of {self.kernel}"))
        if self.cluster is not None:
            object.__setattr__(self, "cluster", dim3(self.cluster, f"the cluster of {self.kernel}"))
        if isinstance(self.args, str):
            raise DescriptionError(f"the args of {self.kernel} must be a tuple: ({self.args!r},)")
        if isinstance(self.options, str):
            raise DescriptionError(f"the options of {self.kernel} must be a tuple: ({self.options!r},)")
        for name, rule in _LAUNCH_RULES.items():
            check(f"{name} of Launch {self.kernel}", getattr(self, name), rule, DescriptionError)

    @property
    def entry(self) -> str:
        """The kernel's name expression for NVRTC: ``"l2norm<256, true>"``."""
        if not self.template:
            return self.kernel
        return f"{self.kernel}<{', '.join(_template_text(a) for a in self.template)}>"

    @property
    def array_names(self) -> tuple[str, ...]:
        """The arguments given by name, in order."""
        named = (
            a if isinstance(a, str) else getattr(a, "array", None) for a in self.args
        )  # a TensorMap names an array as well
        return tuple(a for a in named if isinstance(a, str))


def _template_text(value: object) -> str:
    """A template argument in C++: True is ``true``; a string is a type or an enumerator and is not changed."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Source:
    """A source text and its options for NVRTC.

    Attributes:
        name: the name used in messages.
        text: CUDA C++.
        options: further options of NVRTC.
        include_dirs: searched before the bundled ones.
        headers: name as included -> text.
    """

    name: str
    text: str
    options: tuple[str, ...] = ()
    include_dirs: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


class Generated(ABC):
    """A source that is generated when it is compiled. Equal objects are one program."""

    slow: bool = False
    """Whether compilation takes so long that progress is shown and several programs are compiled in parallel."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name used in messages."""

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def source(self) -> Source:
        """The text to compile.

        Raises:
            UnavailableError: the package that generates it is not installed.
        """

    def complete(self, launch: Launch, image: Image) -> Launch:
        """The launch with block, shared memory and cluster from the image; needs no device."""
        return launch

    def bind(
        self, launch: Launch, module: LoadedModule, device: Device, array: Callable[[str], DeviceArray]
    ) -> tuple[tuple[Launch, ...], tuple[object, ...]]:
        """The launch with its grid and arguments, launches of the image that precede it, and objects to keep alive.

        Args:
            launch: the result of :meth:`complete`.
            module: the loaded image.
            device: the device of the module.
            array: name of an input, output or temporary -> device array.

        Raises:
            UnavailableError: the device cannot run the kernel. LaunchError: the kernel does not support these sizes.
        """
        return (launch,), ()


@dataclass(frozen=True)
class Work:
    """The minimum work of a kernel: what each of its variants must compute and move.

    Attributes:
        flops: floating-point operations.
        bytes: bytes of device memory, read and written.
        unit: the peak rate that applies to the flops: ``"f32"`` of the CUDA cores, ``"bf16"``, ``"f16"``, ... of tensor cores.
        sum_length: number of terms of the longest sum that an output element depends on, such as k of a matrix product. The
            default tolerance follows from it. None: the multiply-adds per output element.
        executed_flops: the operations that are executed, where fewer than ``flops`` are: a product with a 2:4 sparse matrix has
            the flops of the dense product, and executes half of them. Bounds follow from these. None: all.
    """

    flops: int
    bytes: int
    unit: str = "f32"
    sum_length: int | None = None
    executed_flops: int | None = None

    def __post_init__(self) -> None:
        check("flops of a Work", self.flops, NUMBER, DescriptionError)
        check("bytes of a Work", self.bytes, NUMBER, DescriptionError)
        check("unit of a Work", self.unit, TEXT, DescriptionError)
        length = self.sum_length
        if length is not None and (isinstance(length, bool) or not hasattr(length, "__index__") or length < 1):
            raise DescriptionError(f"sum_length of a Work must be a whole number of at least 1, not {length!r}")
        if self.executed_flops is not None:
            check("executed_flops of a Work", self.executed_flops, NUMBER, DescriptionError)
            if self.executed_flops > self.flops:
                raise DescriptionError(
                    f"executed_flops of a Work are at most flops={self.flops}, not {self.executed_flops}"
                )

    @property
    def executed(self) -> int:
        """The operations that are executed."""
        return self.flops if self.executed_flops is None else self.executed_flops

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in flops per byte, the roofline's x axis."""
        return self.flops / self.bytes if self.bytes else float("inf")


TOLERANCE_PARTS = ("relative", "absolute", "ulp", "typical", "rms")


@dataclass(frozen=True)
class Tolerance:
    """The permitted error of a value compared with the float64 reference.

    A value is correct if its error is at most ``max(absolute + relative * |reference|, ulp * u) + typical * m``, where m
    is the magnitude of the elements around it (see :class:`ptxkit.workload.tolerance.Typical`), and u the unit in the last
    place of ``|reference| + typical * m``. The first part is for roundings of the result, the second for the error of
    sums before them, which moves a result that is rounded to few bits by its own amount and by one rounding more.

    Where single errors may be large, a wrong scale or a wrong term of a long sum changes no single element by more than that,
    but all of them. ``rms`` limits the root mean square of all errors, relative to that of the reference; 0 for no limit.

    Raises:
        DescriptionError: a part is negative, NaN or infinite.
    """

    relative: float = 0.0
    absolute: float = 0.0
    ulp: float = 0.0
    typical: float = 0.0
    rms: float = 0.0

    def __post_init__(self) -> None:
        for name in TOLERANCE_PARTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
                raise DescriptionError(f"{name} of a Tolerance must be a number of at least 0, not {value!r}")

    def __str__(self) -> str:
        parts = [f"{name}={getattr(self, name):.3g}" for name in TOLERANCE_PARTS]
        return ", ".join(part for part in parts if not part.endswith("=0")) or "exact"


class Tile(Mapping[str, Any]):
    """The chosen tile parameters of a variant: ``t.THREADS`` or ``t["THREADS"]``. Immutable and hashable."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        check("values of a Tile", values, MAPPING)
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            known = ", ".join(self._values) or "none"
            raise DescriptionError(f"there is no tile parameter {name}; the variant declares {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __eq__(self, other: object) -> bool:
        return dict(self) == dict(other) if isinstance(other, Mapping) else NotImplemented

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self._values.items())

    def __repr__(self) -> str:
        return f"Tile({self._values!r})"


def array_spec(spec: ArraySpec) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """An output's or temporary's declaration as (shape tuple, numpy dtype); see :func:`ptxkit.workload.inputs.dtype_of`.

    Raises:
        DescriptionError: it is not a pair of shape and dtype. UsageError: unknown dtype.
    """
    from ptxkit.workload.inputs import dtype_of

    if not isinstance(spec, tuple) or len(spec) != 2:
        raise DescriptionError(f"an array is (shape, dtype), such as ((128, 4096), 'f32'), not {spec!r}")
    shape, dtype = spec
    sizes = shape if isinstance(shape, tuple) else (shape,)
    if not all(hasattr(n, "__index__") and operator.index(n) >= 0 for n in sizes):
        raise DescriptionError(f"the shape of an array is whole numbers, not {shape!r}")
    return sizes, dtype_of(dtype)
