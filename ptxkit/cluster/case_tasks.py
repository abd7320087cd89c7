"""What a worker executes for ``ptxkit bench run``, ``bench shapes`` and ``run --seeds``: a case, in a process of its own.

One process of the worker measures on its GPU; as many as the worker has slots compile, or count and verify in the emulator.
"""

from __future__ import annotations

import math
import platform
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ptxkit.bench.cases import CaseSpec
from ptxkit.bench.measure.benchmark import Benchmark
from ptxkit.bench.measure.method import Method
from ptxkit.bench.measure.new_process import in_new_process
from ptxkit.bench.measure.time_limit import TimeLimit
from ptxkit.bench.results.results import Results
from ptxkit.cluster import held
from ptxkit.cluster.gpus import from_values
from ptxkit.cluster.images import fetch_images
from ptxkit.cluster.work import this_worker
from ptxkit.errors import PtxkitError, UnavailableError
from ptxkit.exit_codes import ExitCode
from ptxkit.processes.child import Child
from ptxkit.sweep.canary import CANARY_S, Canary
from ptxkit.targets import Target
from ptxkit.workload.build import compiled
from ptxkit.workload.resolve import resolve, unavailable
from ptxkit.workload.seeds import SeedRow, check_seed


@dataclass(frozen=True)
class CaseOrder:
    """What all cases of a command have in common.

    Attributes:
        ticket: see :func:`ptxkit.cluster.held.using`.
        timed: measure on GPUs; else count in the emulator. gpu: the GPU that is compiled for, as values, or None.
        peers: names of peers; None for all that the worker has.
        method, seed, tile, counts, target, leave_out: see :class:`~ptxkit.bench.measure.benchmark.Benchmark`.
        settings: those of the emulator that options change.
        limit_s: for one case, after which its process is ended. variant_limit_s: for the launches of one variant, or None.
    """

    ticket: str
    timed: bool
    gpu: Mapping[str, Any] | None = None
    peers: tuple[str, ...] | None = ()
    method: Method = field(default_factory=Method)
    seed: int = 0
    tile: Mapping[str, Any] = field(default_factory=dict)
    counts: bool = True
    target: str | None = None
    leave_out: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    limit_s: float | None = None
    variant_limit_s: float | None = None

    @property
    def parsed_target(self) -> Target | None:
        """The target to compile for; None for that of the device."""
        return None if self.target is None else Target.parse(self.target)


# -- in the worker -------------------------------------------------------------------------------------------------------


class CaseUnavailable(PtxkitError):
    """The worker cannot run one case, such as one that needs more memory than is free; it can run others."""

    exit_code = ExitCode.UNAVAILABLE


class CaseProcesses:
    """The processes of a worker for one command."""

    def __init__(self, order: CaseOrder) -> None:
        self.order = order
        self._gpu = Child(_Bencher, order, gpu=True)
        self._every: list[Child] = [self._gpu]
        self._idle: list[Child] = []
        self._lock = threading.Lock()

    @contextmanager
    def child(self, *, gpu: bool) -> Iterator[Child]:
        """A process that executes nothing else inside the ``with`` block: the one of the GPU, or one without a GPU."""
        if gpu:
            yield self._gpu
            return
        with self._lock:
            child = self._idle.pop() if self._idle else Child(_Bencher, self.order, gpu=False)
            if child not in self._every:
                self._every.append(child)
        try:
            yield child
        finally:
            with self._lock:
                self._idle.append(child)

    def end(self) -> None:
        """See :class:`~ptxkit.cluster.held.Processes`."""
        for child in list(self._every):
            child.end()


def compile_case(order: CaseOrder, case: CaseSpec) -> tuple[str, ...]:
    """Compile the variants of a case into the cache of this worker; returns the keys of their images."""
    with held.using(order.ticket, lambda: CaseProcesses(order)) as processes, processes.child(gpu=False) as child:
        keys: tuple[str, ...] = child.ask(_Bencher.compile, case, limit_s=order.limit_s)
        return keys


def measure_case(order: CaseOrder, case: CaseSpec, images: tuple[str, ...], source: str) -> Results:
    """Measure or count one case.

    Args:
        images: keys of what was compiled for it, by the worker at the address ``source``.

    Raises:
        TimeLimitError: it was not done within the limit of the order.
    """
    return _in_child(order, images, source, _Bencher.measure, case)  # type: ignore[no-any-return]


def check_case(
    order: CaseOrder, case: CaseSpec, seed: int, images: tuple[str, ...], source: str
) -> tuple[list[SeedRow], dict[str, Any]]:
    """Verify one case with the inputs of a seed: a row for each variant, and what verified it."""
    return _in_child(order, images, source, _Bencher.check, case, seed)  # type: ignore[no-any-return]


def _in_child(order: CaseOrder, images: tuple[str, ...], source: str, function: Any, *arguments: Any) -> Any:
    if source:
        fetch_images(images, source)
    where = {"worker": str(this_worker().name), "host": platform.node()}
    with held.using(order.ticket, lambda: CaseProcesses(order)) as processes:
        with processes.child(gpu=order.timed) as child:
            found, lost = child.ask(function, *arguments, where, limit_s=order.limit_s)
            if lost:  # the kernel has made the context of the process unusable
                child.stop()
        return found


# -- in its processes ----------------------------------------------------------------------------------------------------


class _Bencher:
    """The state of a process: the device, and what measures on it.

    Raises:
        UnavailableError: there is no GPU, or a peer that was named cannot be used here.
    """

    def __init__(self, order: CaseOrder) -> None:
        self.order = order
        self._bench: Benchmark | None = None
        self._canary: Canary | None = None
        self._canary_at = -math.inf

    def compile(self, case: CaseSpec) -> tuple[str, ...]:
        """The keys of the images of a case; what cannot be compiled is reported by the measurement."""
        assert self.order.gpu is not None
        device: Any = from_values(self.order.gpu)
        target = self.order.parsed_target
        workload = case.workload().on(device.facts_for(target))
        keys: list[str] = []
        for name in case.variants or workload.variants():
            variant = workload.variant(name)
            tile = {**self.order.tile, **case.tiles.get(name, {})}
            fixed = {key: value for key, value in tile.items() if key in variant.tile}
            with suppress(PtxkitError):
                if unavailable(variant, target or device.target, workload) is None:
                    keys += [i.key for i in compiled(resolve(workload, variant, target, fixed, device=device)).images]
        return tuple(dict.fromkeys(keys))

    def measure(self, case: CaseSpec, where: Mapping[str, Any]) -> tuple[Results, bool]:
        """The results of a case, and whether the device was lost."""
        bench = self._benchmark()
        self._check_canary()
        with self._settings():
            try:
                results = bench.run([case.plan()])
            except UnavailableError as error:
                raise CaseUnavailable(str(error)) from None
        if any(row.verified is False for one in results.cases for row in one.rows) and not bench.device.lost:
            self._check_canary(now=True)  # wrong because of the kernel, or of the GPU?
        bench.known_roofs = results.roofs
        about = {**where, **self._reading()}
        cases = tuple(replace(one, measured_on=about) for one in results.cases)
        return replace(results, cases=cases), bool(bench.device.lost)

    def check(
        self, case: CaseSpec, seed: int, where: Mapping[str, Any]
    ) -> tuple[tuple[list[SeedRow], dict[str, Any]], bool]:
        """The rows of a case with the inputs of a seed and what verified them, and whether the device was lost."""
        device = self._benchmark().device
        self._check_canary()
        limit = TimeLimit(self.order.variant_limit_s)
        with self._settings():
            rows = check_seed(
                case.workload(),
                device,
                seed,
                variants=case.variants,
                target=self.order.parsed_target,
                tile=self.order.tile,
                around=limit.around,
            )
        if any(row.verified is False for row in rows) and not device.lost:
            self._check_canary(now=True)
        return (rows, {**where, **self._reading()}), bool(device.lost)

    def _benchmark(self) -> Benchmark:
        if self._bench is None:
            from ptxkit.bench.peers import peers
            from ptxkit.runtime.device import device

            order = self.order
            opened = device("gpu" if order.timed else "emulator")
            found, absent = peers(order.peers) if order.timed else ([], [])
            if order.peers is not None and absent:
                raise UnavailableError(f"the peer {absent[0][0]} cannot be used: {absent[0][1]}")
            self._bench = Benchmark(
                opened,
                found,
                dict(absent),
                order.method,
                order.seed,
                dict(order.tile),
                order.counts,
                target=order.parsed_target,
                leave_out=order.leave_out,
                when_lost=in_new_process,
            )
        return self._bench

    def _check_canary(self, *, now: bool = False) -> None:
        """Launch the canary cases of the GPU if the last ones were some time ago, or in any case ``now``.

        Raises:
            UnavailableError: the GPU computes wrong.
        """
        if not self.order.timed or not (now or time.monotonic() - self._canary_at > CANARY_S):
            return
        self._canary = self._canary or Canary(self._benchmark().device)
        reading = self._canary.read()
        self._canary_at = time.monotonic()
        if reading.wrong:
            raise UnavailableError(f"its GPU computes wrong: {reading.wrong}")

    def _settings(self) -> Any:
        from contextlib import nullcontext

        return self._benchmark().device.settings(**self.order.settings) if self.order.settings else nullcontext()

    def _reading(self) -> dict[str, Any]:
        """The GPU and what its sensors read now; empty in the emulator."""
        device = self._benchmark().device
        if not self.order.timed or device.lost:
            return {}
        facts, now = device.facts(), device.sensors()
        known = {
            "uuid": facts.uuid,
            "driver": facts.kernel_driver,
            "sm_clock_mhz": now.sm_clock_mhz,
            "temperature_c": now.temperature_c,
            "throttled": list(now.throttled),
        }
        return {name: value for name, value in known.items() if value}
