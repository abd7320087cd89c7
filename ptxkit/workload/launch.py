"""The plain values a kernel description is made of: Launch, Work, Tile, Tolerance and array shapes.

A :class:`Launch` may name a :class:`Generated` as its ``source`` in place of a file: a kernel whose source is written by a
program, and whose launch only the compiled program can work out. Then

1. :meth:`Generated.source` gives the text to compile,
2. :meth:`Generated.complete` fills in what the image tells about the launch: block, shared memory, cluster,
3. :meth:`Generated.bind` makes the launch for arrays on a device: grid and arguments, and what has to be launched before it.
"""

from __future__ import annotations

import math
import numbers
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

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
    if b == 0:
        raise UsageError(f"cdiv({a}, 0) divides by zero")
    return -(-a // b)


def dim3(value: Dim, what: str) -> tuple[int, int, int]:
    """``value`` as (x, y, z) with ones for what is missing.

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


@dataclass(frozen=True)
class Launch:
    """One kernel launch of a variant.

    Attributes:
        kernel: function name; with ``template`` the name of a function template.
        grid: CTAs. block: threads of a CTA. Both become (x, y, z).
        args: one for each parameter of the kernel: a string names an input, an output or a temporary, as does a
            ``TensorMap("x", box=...)``; anything else is passed as it is, converted to the parameter's type.
        shared: dynamic shared memory of a CTA in bytes.
        cluster: CTAs of a cluster as (x, y, z), or None for a launch without clusters.
        cooperative: all CTAs are resident at once, so that they may wait for each other.
        source: the file with the kernel when it is not the variant's, or what writes it.
        template: template arguments; ``("l2norm", template=(256, 4))`` launches ``l2norm<256, 4>``.
        defines: preprocessor macros, for what a template argument cannot say.
        options: further options of NVRTC, as ``("--ptxas-options=-O1",)``.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", dim3(self.grid, f"the grid of {self.kernel}"))
        object.__setattr__(self, "block", dim3(self.block, f"the block of {self.kernel}"))
        if self.cluster is not None:
            object.__setattr__(self, "cluster", dim3(self.cluster, f"the cluster of {self.kernel}"))
        if isinstance(self.args, str):
            raise DescriptionError(f"the args of {self.kernel} must be a tuple: ({self.args!r},)")
        if isinstance(self.options, str):
            raise DescriptionError(f"the options of {self.kernel} must be a tuple: ({self.options!r},)")

    @property
    def entry(self) -> str:
        """The kernel's name expression, as NVRTC takes it: ``"l2norm<256, true>"``."""
        if not self.template:
            return self.kernel
        return f"{self.kernel}<{', '.join(_template_text(a) for a in self.template)}>"

    @property
    def array_names(self) -> tuple[str, ...]:
        """The arguments given by name, in order."""
        named = (
            a if isinstance(a, str) else getattr(a, "array", None) for a in self.args
        )  # a TensorMap names one, too
        return tuple(a for a in named if isinstance(a, str))


def _template_text(value: object) -> str:
    """A template argument in C++: True is ``true``, a string is taken as it is (a type or an enumerator)."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Source:
    """What NVRTC is given.

    Attributes:
        name: what messages call it.
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
    """A source that is written when it is needed. Two that are equal are one program."""

    slow: bool = False
    """Whether it takes so long to compile that people should be told, and several are compiled side by side."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What messages call it."""

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def source(self) -> Source:
        """The text to compile.

        Raises:
            UnavailableError: what writes it is not installed.
        """

    def complete(self, launch: Launch, image: Image) -> Launch:
        """The launch with what the image tells about it; needs no device."""
        return launch

    def bind(
        self, launch: Launch, module: LoadedModule, device: Device, array: Callable[[str], DeviceArray]
    ) -> tuple[tuple[Launch, ...], tuple[object, ...]]:
        """The launch with its grid and arguments, others of the same image that go before it, and what has to live as long.

        Args:
            launch: as :meth:`complete` left it.
            module: the image, loaded.
            device: where.
            array: name of an input, output or temporary -> what lies on the device.

        Raises:
            UnavailableError: the device cannot run it. LaunchError: these sizes cannot be computed by it.
        """
        return (launch,), ()


@dataclass(frozen=True)
class Work:
    """The least that any version of a kernel must do.

    Attributes:
        flops: floating-point operations.
        bytes: of device memory, read and written.
        unit: which peak the flops are held against: ``"f32"`` for the CUDA cores, ``"bf16"``, ``"f16"``, ... for tensor cores.
        sum_length: how many terms the longest sum behind an output element has, such as k of a matrix product. The default
            tolerance follows from it. None takes the multiply-adds for each output element.
    """

    flops: int
    bytes: int
    unit: str = "f32"
    sum_length: int | None = None

    def __post_init__(self) -> None:
        length = self.sum_length
        if length is not None and (isinstance(length, bool) or not hasattr(length, "__index__") or length < 1):
            raise DescriptionError(f"sum_length of a Work must be a whole number of at least 1, not {length!r}")

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in flops per byte, the roofline's x axis."""
        return self.flops / self.bytes if self.bytes else float("inf")


@dataclass(frozen=True)
class Tolerance:
    """How far a value may lie from the float64 reference.

    A value is right within ``ulp`` units in the last place, or within ``absolute + relative * |reference| + typical * m``; m is
    the magnitude of the elements around it; see :class:`ptxkit.workload.tolerance.Typical`.

    Raises:
        DescriptionError: a part is negative, NaN or infinite, which would accept or refuse everything.
    """

    relative: float = 0.0
    absolute: float = 0.0
    ulp: float = 0.0
    typical: float = 0.0

    def __post_init__(self) -> None:
        for name in ("relative", "absolute", "ulp", "typical"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
                raise DescriptionError(f"{name} of a Tolerance must be a number of at least 0, not {value!r}")

    def __str__(self) -> str:
        parts = [f"{name}={getattr(self, name):.3g}" for name in ("relative", "absolute", "ulp", "typical")]
        return ", ".join(part for part in parts if not part.endswith("=0")) or "exact"


class Tile(Mapping[str, Any]):
    """The chosen tile parameters of a variant: ``t.THREADS`` or ``t["THREADS"]``. Immutable and hashable."""

    def __init__(self, values: Mapping[str, Any]) -> None:
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
        DescriptionError: it is something else. UsageError: there is no such dtype.
    """
    from ptxkit.workload.inputs import dtype_of

    if not isinstance(spec, tuple) or len(spec) != 2:
        raise DescriptionError(f"an array is (shape, dtype), such as ((128, 4096), 'f32'), not {spec!r}")
    shape, dtype = spec
    sizes = shape if isinstance(shape, tuple) else (shape,)
    if not all(hasattr(n, "__index__") and operator.index(n) >= 0 for n in sizes):
        raise DescriptionError(f"the shape of an array is whole numbers, not {shape!r}")
    return sizes, dtype_of(dtype)
