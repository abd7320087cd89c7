"""Kernels whose source is written by a program, and whose launch only the compiled program can work out.

A :class:`~ptxkit.workload.launch.Launch` may name such a :class:`Generated` as its ``source`` in place of a file. Then

1. :meth:`Generated.source` gives the text to compile,
2. :meth:`Generated.complete` fills in what the image tells about the launch: block, shared memory, cluster,
3. :meth:`Generated.bind` makes the launch for arrays on a device: grid and arguments, and what has to be launched before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxkit.compiler.image import Image
    from ptxkit.runtime.device import Device, DeviceArray, LoadedModule
    from ptxkit.workload.launch import Launch


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
