"""One launch: checks it, divides the grid into waves, executes them on worker threads, and adds up the counts."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import prod

import numpy as np

from ptxkit.blas import one_thread
from ptxkit.emulator.arrays import Index, Lanes
from ptxkit.emulator.counters.tally import Tally
from ptxkit.emulator.engine.entry import EntryCode
from ptxkit.emulator.engine.hardware import Hardware
from ptxkit.emulator.engine.pending import Pending
from ptxkit.emulator.engine.stops import StoppedError, stop_reason
from ptxkit.emulator.engine.wave import Wave
from ptxkit.emulator.memory.footprint import Footprint
from ptxkit.emulator.memory.layout import SHARED_BASE
from ptxkit.emulator.racecheck.hazards import Hazards, fills_shared, reads_through_async_proxy
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.emulator.simt.state import Dim, MachineState
from ptxkit.errors import FaultError, TimeLimitError
from ptxkit.isa.mangled import base_name
from ptxkit.isa.specials import RESERVED_SHARED

LANES_PER_WAVE = 32768  # a 32-bit register of this many lanes has 128 KiB, so that several fit in the host's L2 cache
MIN_LANES_PER_WAVE = 4096  # below this the interpreter's overhead outweighs the gain of a second worker
SHARED_PER_WAVE = 256 << 20  # bytes of emulated shared memory that one wave may hold
WORKSPACE_BYTES = 8  # cooperative_groups/details/driver_abi.h: grid_workspace


@dataclass(frozen=True)
class Shape:
    """Grid, block and cluster of a launch."""

    grid: Dim
    block: Dim
    cluster: Dim
    explicit_cluster: bool


class EmulatedLaunch:
    """The state that all waves of a launch share."""

    def __init__(
        self,
        machine: Hardware,
        sms: int,
        code: EntryCode,
        params: bytes,
        shape: Shape,
        dynamic_shared: int,
        cooperative: bool,
        settings: EmulatorSettings,
        write_output: Callable[[str], None],
        footprint: Footprint | None = None,
    ) -> None:
        self.machine = machine
        self.footprint = footprint
        self.code = code
        self.name = code.name
        self.grid, self.block, self.cluster = shape.grid, shape.block, shape.cluster
        self.explicit_cluster = shape.explicit_cluster
        self.threads = prod(self.block)
        self.ctas = prod(self.grid)
        self.cluster_size = prod(self.cluster)
        self.dynamic_shared = dynamic_shared
        layout = code.layout
        self.shared_bytes = (
            layout.shared_bytes if not dynamic_shared else layout.dynamic_base - SHARED_BASE + dynamic_shared
        )
        self.cooperative = cooperative
        reserved = any(name.startswith(RESERVED_SHARED) for name in code.specials)
        self.shared_begin = 0 if reserved else SHARED_BASE  # of a CTA: first address that accesses may have
        self.settings = settings
        self.observer = settings.observer
        self.heap_bytes = settings.heap_bytes
        self.hazards = self._hazards()
        self.write_output = write_output
        self.sms = sms
        self.serial = machine.next_serial()
        self.start_ns = time.time_ns()
        self.params = params
        self.param_allocation = machine.memory.allocate_parameters(max(len(params), 1))
        self.param_allocation.data[: len(params)] = np.frombuffer(params, np.uint8)
        self.workspace = self._make_workspace() if cooperative else 0
        self._parameters: dict[tuple[int, str], Lanes] = {}
        self.running: set[int] = set()  # numbers of the waves that are being executed
        self.starting = 0  # workers that have not taken their first wave
        self.polling: dict[int, int] = {}  # of waves that repeat polling loops: the version of the memory
        self.per_wave = self.ctas  # number of CTAs of each wave but the last one
        self.stopped = ""  # the reason why all waves must end with a StoppedError: an interrupt, or a time limit
        self.limited = settings.max_instructions is not None  # each wave calls _check_limits before each block
        self.tallies: list[Tally] = []
        self.cancels = any(i.name == "clusterlaunchcontrol" for _, i in code.instructions)
        self.pending = Pending(self.order, 0, 1, self.cluster_size, refuses=False)
        self._instructions = 0
        self._limit_lock = threading.Lock()

    def _hazards(self) -> Hazards | None:
        """The collector of the race check; None if no races are checked.

        Without ``racecheck``, reads of asynchronous copies, proxy fences, and accesses to the shared memory of CTAs that may
        have exited, are still checked unless operations complete eagerly.
        """
        racecheck = self.settings.racecheck
        instructions = [i for _, i in self.code.instructions]
        if racecheck:
            return Hazards(base_name(self.name), instructions, racecheck == "lanes")
        reaches_others = self.cluster_size > 1 and self.code.layout.ranked
        followed = any(fills_shared(i) or reads_through_async_proxy(i) for i in instructions)
        if self.settings.completion != "eager" and (reaches_others or followed):
            return Hazards(base_name(self.name), instructions, copies_only=True)
        return None

    def _make_workspace(self) -> int:
        """Address of a cooperative launch's workspace, as the driver provides it: its size in bytes, and a barrier set to 0."""
        made = self.machine.memory.allocate(WORKSPACE_BYTES, "workspace of the cooperative launch")
        made.data[:WORKSPACE_BYTES] = 0
        made.data[:4] = np.frombuffer(WORKSPACE_BYTES.to_bytes(4, "little"), np.uint8)
        return int(made.base)

    def parameter(self, offset: int, dtype: np.dtype) -> Lanes:
        """A kernel parameter as one-element lanes."""
        key = (offset, dtype.char)
        lanes = self._parameters.get(key)
        if lanes is None:
            lanes = self._parameters[key] = np.frombuffer(self.params, dtype, 1, offset).reshape(1, 1, 1)
        return lanes

    def cta_coordinates(self, linear: int) -> Dim:
        """Grid coordinates of a CTA."""
        gx, gy, _ = self.grid
        return linear % gx, linear // gx % gy, linear // (gx * gy)

    def cancel_cluster(self) -> int | None:
        """Cancel a cluster that has not started; returns the linear index of its first CTA, or None without such a cluster."""
        return self.pending.cancel()

    def describe(self) -> str:
        """The grid and block of the launch, for messages."""
        return f"{self.ctas} CTA{'s' * (self.ctas != 1)} of {self.threads} threads"

    def order(self, first: int, end: int) -> Index:
        """Linear CTA indices in the order in which CTAs become resident, from position ``first`` up to ``end``, excluded.

        The CTAs of a cluster are consecutive, by rank.
        """
        position = np.arange(first, end, dtype=np.int64)
        if self.cluster_size == 1:
            return position
        gx, gy, _ = self.grid
        cx, cy, _ = self.cluster
        cluster, rank = np.divmod(position, self.cluster_size)
        row, x = np.divmod(cluster, gx // cx)
        z, y = np.divmod(row, gy // cy)
        x = x * cx + rank % cx
        y = y * cy + rank // cx % cy
        z = z * self.cluster[2] + rank // (cx * cy)
        return np.asarray(x + gx * (y + gy * z))

    def wave_size(self, workers: int) -> int:
        """The number of CTAs of a wave."""
        padded = -(-self.threads // 32) * 32
        total = self.ctas * padded
        if self.cooperative or total <= MIN_LANES_PER_WAVE:
            per_wave = self.ctas
        else:
            lanes = min(LANES_PER_WAVE, max(MIN_LANES_PER_WAVE, -(-self.ctas // workers) * padded))
            per_wave = max(1, lanes // padded)
            shared = self.shared_bytes + 2048
            if self.hazards is not None:
                actors = padded if self.hazards.lanes else padded // 32
                # memory of the race check: records of accesses, and for each actor a clock for every actor of its cluster
                shared = shared * (5 + 2 * actors) + 32 * actors * actors * self.cluster_size
            per_wave = min(per_wave, max(1, SHARED_PER_WAVE // shared))
            per_wave = -(-per_wave // self.cluster_size) * self.cluster_size
        if self.cancels and not self.cooperative:
            # CTAs beyond one for each SM remain pending, so that clusterlaunchcontrol can cancel them
            per_wave = min(per_wave, max(self.sms // self.cluster_size, 1) * self.cluster_size)
        return per_wave

    def run(self) -> list[Tally]:
        """Execute every wave.

        Raises:
            FaultError: and its children; of several waves that fail, the one with the lowest CTAs.
        """
        # one worker if clusters can be cancelled, or completion is random, so that every run is the same
        alone = self.observer is not None or self.cancels or self.settings.completion == "random"
        workers = 1 if alone else min(self.machine.workers, 8)
        self.per_wave = self.wave_size(workers)
        count = -(-self.ctas // self.per_wave)
        refuses = self.settings.completion != "eager"
        self.pending = Pending(self.order, self.ctas, self.per_wave, self.cluster_size, refuses)
        tallies = self.tallies
        lock = threading.Lock()
        failures: dict[int, BaseException] = {}
        outputs: dict[int, list[str]] = {}
        finished = 0

        def work() -> None:
            nonlocal finished
            done = -1  # the wave before
            tally = Tally(len(self.code.blocks), self.settings.counting)
            with lock:
                tallies.append(tally)
            with np.errstate(all="ignore"):
                while True:
                    with lock:
                        taken = None if failures else self.pending.take()
                        if taken is not None:
                            self.running.add(taken[0])
                        # only then, so that a wave that polls sees this worker all the time
                        self.running.discard(done)
                        self.starting -= done < 0
                        if taken is None:
                            return
                        n, ctas = taken
                    output: list[str] = []
                    try:
                        wave = Wave(self, ctas, tally, n)
                        output = wave.output
                        if self.observer is None:
                            wave.run()
                        else:
                            self.observer.run(wave)
                    except BaseException as e:  # noqa: BLE001  kept, and raised by the caller's thread
                        failures[n] = e
                    done = n
                    with lock:
                        outputs[n] = output
                        # in grid order, so that what kernels print does not depend on the workers
                        while finished in outputs:
                            text = "".join(outputs.pop(finished))
                            finished += 1
                            if text:
                                self.write_output(text)

        if not self.settings.initcheck:
            self.machine.memory.forget_undefined()  # this launch does not record which memory it initialises
        try:
            with one_thread():
                self.starting = 1 if count == 1 else min(workers, count)
                if self.starting == 1:
                    work()
                else:
                    self._run_threads(work, self.starting, failures)
        finally:
            self.machine.memory.free(self.param_allocation.base)
            if self.workspace:
                self.machine.memory.free(self.workspace)
        failure = failures[min(failures)] if failures else None
        if self.hazards is not None and (failure is None or isinstance(failure, FaultError)):
            self.hazards.finish(failure)
        if failure is not None:
            raise failure
        return tallies

    def _run_threads(self, work: Callable[[], None], count: int, failures: Mapping[int, BaseException]) -> None:
        """Execute ``work`` in ``count`` threads; an exception of a signal handler in the calling thread ends them all."""
        with ThreadPoolExecutor(count) as pool:
            futures: list[Future[None]] = []
            try:
                for _ in range(count):
                    futures.append(pool.submit(work))  # one by one: a signal handler needs those already started
                for future in futures:
                    future.result()
            except BaseException as error:  # of a signal handler, since `work` raises nothing
                self.stopped, self.limited = stop_reason(error), True
                for future in futures:
                    future.result()
                if not isinstance(error, (KeyboardInterrupt, TimeLimitError)):
                    raise
                found = [f for f in failures.values() if isinstance(f, StoppedError)]
                raise type(error)(str(found[0] if found else error)) from None

    def on_machine(self, machine: MachineState) -> EmulatedLaunch:
        """The same launch on another machine, for checks that execute an instruction on different memory."""
        other = copy.copy(self)
        other.machine = machine  # type: ignore[assignment]
        other.footprint = None
        return other

    def count(self, instructions: int) -> int:
        """Add to the thread instructions that ``max_instructions`` limits; returns the sum over all waves."""
        with self._limit_lock:
            self._instructions += instructions
            return self._instructions

    def waits_for_others(self, number: int, version: int) -> bool:
        """Whether another wave may still set a flag that wave ``number`` polls in memory of this ``version``.

        That is each wave before it, and each later one that is being executed and does not poll the same memory itself, or
        that a worker is about to take.
        """
        self.polling[number] = version
        others = (n for n in tuple(self.running) if n != number)
        return self.starting > 0 or any(n < number or self.polling.get(n) != version for n in others)

    def ctas_after(self, number: int) -> int:
        """Number of CTAs after wave ``number`` in waves that are not being executed either."""
        last = max((number, *tuple(self.running)))
        return max(0, self.ctas - (last + 1) * self.per_wave)
