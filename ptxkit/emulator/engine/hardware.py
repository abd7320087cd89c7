"""The emulated machine: its memory, its SMs, and the host threads that execute waves."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ptxkit import environment
from ptxkit.emulator.arrays import Bytes
from ptxkit.emulator.memory.allocations import GlobalMemory
from ptxkit.emulator.memory.atomic_lock import AtomicLock
from ptxkit.emulator.memory.host import available_bytes
from ptxkit.errors import UsageError
from ptxkit.targets import target_that_runs
from ptxkit.targets.gpus import DeviceFacts, reference_facts

MOST_WORKERS = 1024  # a larger PTXKIT_EMULATOR_THREADS is reported as a mistake


class Hardware:
    """Memory, SMs and worker threads, which all launches of a machine share.

    Args:
        capacity: bytes of global memory; default is three quarters of what the host has free.
        sms: SMs that %nsmid reports and that hold a cooperative grid; default is those of the target's reference GPU.
        workers: host threads that execute waves.

    Attributes:
        texel_objects: handle -> texture or surface object.
        atomics: the lock of atomics.
    """

    def __init__(self, capacity: int | None = None, sms: int | None = None, workers: int | None = None) -> None:
        self.memory = GlobalMemory(available_bytes() * 3 // 4 if capacity is None else capacity)
        self.sms = sms
        self.workers = worker_count() if workers is None else workers
        self.version = 0
        self.texel_objects: dict[int, object] = {}
        self.atomics = AtomicLock()
        self._serial = itertools.count(1)

    @property
    def atomic_lock(self) -> AbstractContextManager[None]:
        """The lock that is held while an atomic operation is performed."""
        return self.atomics.held()

    def facts_for(self, target: str) -> DeviceFacts:
        """The facts of a target's reference GPU, with this machine's number of SMs.

        Raises:
            UsageError: there is no such target.
        """
        found = reference_facts(target_that_runs(target))
        return found if self.sms is None else replace(found, sms=self.sms)

    def next_serial(self) -> int:
        """The serial number of the next launch."""
        return next(self._serial)

    def allocate(self, nbytes: int, name: str = "") -> int:
        """Address of ``nbytes`` of poisoned memory, 256-byte aligned; ``name`` appears in fault messages."""
        a = self.memory.allocate(nbytes, name)
        a.fresh = True
        return a.base

    def allocate_all(self, sizes: Sequence[int], name: str) -> list[int]:
        """The addresses of uninitialised memory of these sizes, which the caller has compared with the capacity."""
        found = self.memory.allocate_all(sizes, name)
        for a in found:
            a.fresh = True
        return [a.base for a in found]

    def free(self, address: int) -> None:
        """Free an allocation."""
        self.memory.free(address)

    def write(self, address: int, data: Bytes) -> None:
        """Copy bytes or a contiguous array to device memory."""
        flat = np.frombuffer(data, np.uint8) if not isinstance(data, np.ndarray) else data.reshape(-1).view(np.uint8)
        self.memory.slice(address, len(flat))[:] = flat
        self._initialise(address, len(flat))

    def fill(self, address: int, nbytes: int, value: int) -> None:
        """Set every byte."""
        self.memory.slice(address, nbytes)[:] = value
        self._initialise(address, nbytes)

    def poison(self, address: int, nbytes: int, value: int) -> None:
        """Fill the memory with a sentinel value, and mark it as uninitialised."""
        self.memory.slice(address, nbytes)[:] = value
        a = self.memory.owner(address)
        if a is not None:
            a.forget(address - a.base, nbytes)
            a.sentinel = value

    def undefined_bytes(self, address: int, nbytes: int) -> str:
        """A text about the bytes that hold copies of uninitialised ones; "" if there are none."""
        a = self.memory.owner(address)
        return "" if a is None or a.undefined_stores is None else a.undefined_stores.describe(address - a.base, nbytes)

    def share(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """:meth:`view` for a host that may write the memory at any time, so that it counts as initialised."""
        self._initialise(address, nbytes)
        return self.view(address, nbytes)

    def _initialise(self, address: int, nbytes: int) -> None:
        a = self.memory.owner(address)
        if a is not None:
            a.initialise(address - a.base, nbytes)

    def read(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """A copy of device memory."""
        return self.memory.slice(address, nbytes).copy()

    def view(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """The bytes of device memory, not a copy; valid until the allocation is freed."""
        return self.memory.slice(address, nbytes)


def worker_count() -> int:
    """Worker threads: the processors this process may use, or ``PTXKIT_EMULATOR_THREADS``.

    Raises:
        UsageError: the variable is not a number of at least 1.
    """
    text = environment.read(environment.EMULATOR_THREADS).strip()
    if text:
        if not text.isdecimal() or not 1 <= int(text[:6]) <= MOST_WORKERS:
            raise UsageError(f"PTXKIT_EMULATOR_THREADS={text!r} is not a number of threads from 1 to {MOST_WORKERS}")
        return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
