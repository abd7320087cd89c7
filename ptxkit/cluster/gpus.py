"""The GPUs of this machine, found in a process of its own: the process that asks has no context on them afterwards."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any, ClassVar

from ptxkit.errors import UnavailableError, UsageError
from ptxkit.files import refused
from ptxkit.processes.interrupts import interrupts_blocked
from ptxkit.targets import Target
from ptxkit.targets.gpus import DeviceFacts


@dataclass(frozen=True)
class ClusterGpu:
    """A GPU of a worker, with what a sweep asks of a device; see :class:`ptxkit.runtime.abilities.Device`.

    Attributes:
        uuid, driver: see :class:`ptxkit.runtime.abilities.GpuFacts`.
        built_for: name of the target. times, emulates, counts, kind, lacks, lost: as a GPU.
    """

    name: str
    uuid: str
    driver: str
    built_for: str
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    times: bool = True
    emulates: bool = False
    kind: ClassVar[str] = "gpu"
    counts: ClassVar[bool] = False
    lost: ClassVar[None] = None
    lacks: ClassVar[frozenset[str]] = frozenset()

    @property
    def target(self) -> Target:
        """The target that its kernels are compiled for."""
        return Target.parse(self.built_for)

    def facts_for(self, target: Target | None) -> DeviceFacts:
        """See :class:`ptxkit.runtime.abilities.Device`."""
        return DeviceFacts(self.name, self.target, self.multiprocessors, self.l2_bytes, self.name)

    def values(self) -> dict[str, Any]:
        """As values of JSON; :func:`from_values` reads them."""
        return asdict(self)


def from_values(values: Mapping[str, Any]) -> ClusterGpu:
    """The inverse of :meth:`ClusterGpu.values`."""
    return ClusterGpu(**values)


def visible_gpus() -> list[ClusterGpu]:
    """The GPUs that this process may use (``CUDA_VISIBLE_DEVICES``), in the order of their indices.

    Raises:
        UnavailableError: looking for them ended the process that did.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool, interrupts_blocked():
        try:
            return pool.submit(_opened).result()
        except BrokenProcessPool:
            raise UnavailableError("the process that looks for the GPUs of this machine died; nvidia-smi may say why") from None


def _opened() -> list[ClusterGpu]:
    from ptxkit.runtime.device import device, gpu_present

    found: list[ClusterGpu] = []
    while gpu_present():
        try:
            gpu: Any = device("gpu", len(found))
        except (UnavailableError, UsageError):
            break
        facts = gpu.facts()
        sizes = (facts.multiprocessors, facts.l2_bytes, facts.memory_bytes)
        found.append(ClusterGpu(facts.name, facts.uuid, facts.kernel_driver, gpu.target.name, *sizes))
    return found


def hold(gpu: ClusterGpu) -> IO[str]:
    """A lock on a GPU of this machine until the file is closed or the process ends: two workers would measure each other.

    Raises:
        UnavailableError: another process holds it. FileAccessError: the file of the lock cannot be written.
    """
    path = Path(tempfile.gettempdir()) / f"ptxkit-{gpu.uuid}.lock"
    try:
        file, is_mine = _lock_file(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = file.read().strip() or "unknown"
            file.close()
            raise UnavailableError(f"{gpu.name} {gpu.uuid} is measured by another worker, process {owner}") from None
        if is_mine:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
    except OSError as error:
        raise refused(path, error) from None
    return file


def _lock_file(path: Path) -> tuple[IO[str], bool]:
    """The file of a lock, and whether it can be written; one that another user has left can be locked, too.

    Raises:
        OSError: it can be neither written nor read.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except PermissionError:
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "r", encoding="ascii", errors="replace"), False
    with suppress(PermissionError):
        os.fchmod(handle, 0o666)  # whatever the umask: others must be able to read it
    return os.fdopen(handle, "r+", encoding="ascii", errors="replace"), True
