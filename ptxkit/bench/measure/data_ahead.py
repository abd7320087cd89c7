"""Computes the inputs and references of the next cases in other processes, while the GPU measures the present case.

The float64 reference of a large case takes longer on the CPU than its measurement on the GPU. A process here computes the
inputs of a case and their reference for both seeds, that of the first verification and that of the verification after the
timing. It writes them to anonymous memory, which the measuring process maps, so that nothing is left behind, however the
processes end. The values are those that the measuring process would compute, which does so itself if a process fails.

The processes leave the first cores to the measuring process and have a lower priority. Each has cores of its own: the threads
of OpenBLAS wait in spin loops, which waste the time of the other process on shared cores. They see no GPU. Under a lack of
memory the operating system ends them first.
"""

from __future__ import annotations

import mmap
import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ptxkit.bench.cases import description_of
from ptxkit.errors import PtxkitError
from ptxkit.workload import registry
from ptxkit.workload.data import Data, Prepared
from ptxkit.workload.memory import HOST_BYTES_PER_BYTE, free_host_bytes
from ptxkit.workload.parallel import blocks, cores, in_threads
from ptxkit.workload.products import LeftToLibrary, by_library, leave
from ptxkit.workload.workload import Workload

ENTRY = "from ptxkit.bench.measure.data_ahead import compute_from_stdin; compute_from_stdin()"
RESERVED = 2  # cores that the processes leave to the measuring one, where there are more than twice as many
SHARE = 0.35  # of the free memory of the host, which the arrays of cases that are not yet measured may take
LONG_S = 0.5  # estimated seconds of a reference from which a process, which takes a second to start, is worth it
FLOPS_PER_S, BYTES_PER_S = 1e10, 5e7  # for the estimate: of one core in float64, and of random numbers and element-wise work
NICE = 10
COPIED = 1 << 24  # bytes that a thread copies at a time


def is_worth_it(workload: Workload) -> bool:
    """Whether inputs and reference take so long that another process should compute them."""
    work = workload.work()
    return work.flops / FLOPS_PER_S + work.bytes / BYTES_PER_S > LONG_S


@dataclass
class _Job:
    """The data of one case, for each of its seeds.

    Attributes:
        found: seed -> what a process has computed, once it has. ended: whether nothing more is to be expected.
        failed: why nothing is, in a few words; "" if all was computed or the process was not needed any more.
    """

    workload: Workload
    seeds: Sequence[int]
    process: subprocess.Popen[bytes] | None = None
    found: dict[int, _Mapped] = field(default_factory=dict)
    ended: bool = False
    failed: str = ""

    @property
    def bytes(self) -> int:
        """About the memory of the inputs and references of all seeds."""
        return len(self.seeds) * HOST_BYTES_PER_BYTE * self.workload.work().bytes


class DataAhead:
    """The data of cases, computed in other processes in the order in which the cases are measured.

    It is a context manager, at whose end no process is left.

    Args:
        wanted: the workloads in the order in which they are measured, bound to the device, with the seeds of each in the order
            in which they are used. Those that are too small to be worth it are left out.
        processes: how many compute at a time; None for two, or one on few cores.
        leave_products: leave references to the measuring process that its library computes in less time: see
            :mod:`ptxkit.workload.products`.
        say: called with a line about a process that failed.
    """

    def __init__(
        self,
        wanted: Iterable[tuple[Workload, Sequence[int]]],
        processes: int | None = None,
        leave_products: bool = False,
        say: Callable[[str], None] = lambda what: None,
    ) -> None:
        self._jobs = [_Job(workload, seeds) for workload, seeds in wanted if is_worth_it(workload)]
        self._waiting = deque(self._jobs)
        self._processes = processes or (2 if cores() >= 8 else 1)
        self._leave_products = leave_products
        self._say = say
        self._changed = threading.Condition()
        self._closed = False
        free = free_host_bytes()
        self._limit = None if free is None else SHARE * free

    def __enter__(self) -> DataAhead:
        for mine in _shares(_others(), min(self._processes, len(self._jobs))):
            threading.Thread(target=self._compute, args=(mine,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._waiting.clear()
            for job in self._jobs:
                self._end(job)
            self._changed.notify_all()
        for job in self._jobs:
            if job.process is not None:
                job.process.wait()

    def take(self, workload: Workload, seed: int) -> Prepared | None:
        """The inputs and the reference of a case, once they are computed; None if the caller must compute them.

        Cases before it, which are not taken any more, are given up. The arrays must not be changed; their memory is free when
        they are.
        """
        with self._changed:
            at = next((i for i, job in enumerate(self._jobs) if job.workload == workload and seed in job.seeds), None)
            if at is None:
                return None
            for job in self._jobs[:at]:
                self._end(job)
            del self._jobs[:at]
            job = self._jobs[0]
            self._changed.notify_all()  # there may be memory for another one
            while seed not in job.found and not job.ended:
                self._changed.wait(0.5)  # an interrupt ends a wait that has a limit on every platform
            mapped = job.found.pop(seed, None)
            if mapped is None and job.failed:
                self._say(f"{workload.name} {workload.size_text()}: {job.failed}; computing them here")
                job.failed = ""
        return mapped.arrays() if mapped is not None else None

    def _end(self, job: _Job) -> None:
        """Give a case up."""
        job.ended = True
        job.found.clear()
        with suppress(ValueError):
            self._waiting.remove(job)
        if job.process is not None:
            job.process.kill()

    def _compute(self, mine: Sequence[int]) -> None:
        """A thread: run a process for one case after another on these cores."""
        while True:
            with self._changed:
                while self._waiting and not self._fits(self._waiting[0]):
                    self._changed.wait()
                if not self._waiting or self._closed:
                    return
                job = self._waiting.popleft()
            files: list[int] = []
            try:
                self._run(job, files, mine)
            except OSError as error:
                job.failed = f"no process for inputs and reference: {error.strerror}"
            finally:
                for file in files:
                    os.close(file)
                with self._changed:
                    job.ended = True
                    self._changed.notify_all()

    def _run(self, job: _Job, files: list[int], mine: Sequence[int]) -> None:
        """Start a process for a job, unless it was given up, and enter what it computes.

        Args:
            files: empty; gets the descriptors of the anonymous files, for the caller to close. mine: its cores.
        """
        for _ in job.seeds:
            files.append(os.memfd_create("ptxkit"))
        with self._changed:
            if not job.ended:
                job.process = _started(job, files, mine, self._leave_products)
        if job.process is not None:
            self._receive(job, job.process, files)

    def _fits(self, job: _Job) -> bool:
        """Whether there is memory for another case beside those that are computed; the one that is needed next always fits."""
        if self._limit is None or job is self._jobs[0]:
            return True
        held = sum(other.bytes for other in self._jobs if other.process is not None and other is not job)
        free = free_host_bytes()
        return held + job.bytes <= self._limit and (free is None or 2 * job.bytes <= free)

    def _receive(self, job: _Job, process: subprocess.Popen[bytes], files: Sequence[int]) -> None:
        """Enter what the process computes into its job, until it ends."""
        assert process.stdout is not None
        complete = True
        for seed, file in zip(job.seeds, files, strict=True):
            try:
                head, places = pickle.load(process.stdout)  # from our own process
            except (EOFError, OSError, pickle.UnpicklingError):
                complete = False
                break
            with self._changed:
                if not job.ended:
                    job.found[seed] = _Mapped(os.dup(file), head, places)
                self._changed.notify_all()
        assert process.stdin is not None
        process.stdin.close()
        code = process.wait()
        process.stdout.close()
        with self._changed:
            if not complete and not job.ended:
                how = f"was ended by signal {-code}" if code < 0 else "failed"
                job.failed = f"the process that computes inputs and reference ahead {how}"


class _Mapped:
    """Arrays in an anonymous file.

    Args:
        file: its descriptor, which is closed with this object. head: the pickled arrays without their elements.
        places: offset and length of the elements of each.
    """

    def __init__(self, file: int, head: bytes, places: Sequence[tuple[int, int]]) -> None:
        self._file, self._head, self._places = file, head, places

    def __del__(self) -> None:
        os.close(self._file)

    def arrays(self) -> Prepared:
        """Inputs and reference, which share the file's memory."""
        memory = memoryview(mmap.mmap(self._file, 0, access=mmap.ACCESS_COPY))
        found: Prepared = pickle.loads(  # from our own process
            self._head, buffers=[memory[start : start + length] for start, length in self._places]
        )
        return found


def _started(
    job: _Job, files: Sequence[int], mine: Sequence[int], leave_products: bool
) -> subprocess.Popen[bytes]:
    """A process that computes a job on these cores; it gets the job on stdin, and ends when stdin is closed."""
    path = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, sys.path)])
    workload = job.workload
    process = subprocess.Popen(
        [sys.executable, "-c", ENTRY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OPENBLAS_NUM_THREADS": str(len(mine)), "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        pass_fds=files,
        start_new_session=True,  # Ctrl-C is for the measuring process, which ends this one
    )
    request = {
        "kernel": description_of(type(workload)) or workload.name,
        "fields": {**workload.sizes, **workload.options},
        "device": workload.device if workload.is_bound else None,
        "seeds": list(job.seeds),
        "files": list(files),
        "cores": list(mine),
        "leave_products": leave_products,
    }
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already, which is seen at its stdout
        pickle.dump(request, process.stdin)
        process.stdin.flush()
    return process


def _others() -> list[int]:
    """The cores without those that are left to the measuring process; all where there are few."""
    every = sorted(os.sched_getaffinity(0))
    return every[RESERVED:] if len(every) > 2 * RESERVED else every


def _shares(every: Sequence[int], count: int) -> list[list[int]]:
    """The cores in ``count`` parts without a common one; all of them in each part where there are fewer cores than parts."""
    if len(every) < count:
        return [list(every)] * count
    return [list(every[len(every) * i // count : len(every) * (i + 1) // count]) for i in range(count)]


def compute_from_stdin() -> None:
    """Entry point of a process: compute the inputs and references of a case; an answer on stdout for each seed."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a description prints is no answer
    job = pickle.load(sys.stdin.buffer)  # from the process that started this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.sched_setaffinity(0, job["cores"])
    os.nice(NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    try:
        workload = registry.find(job["kernel"])(**job["fields"])
        data = Data(workload if job["device"] is None else workload.on(job["device"]), job["seeds"][0])
        _ = data.inputs
        with by_library(leave if job["leave_products"] else None, print):
            for seed, file in zip(job["seeds"], job["files"], strict=True):
                if seed != data.seed:
                    data.renew(seed)  # values that are passed by value stay those of the first seed, as in the measurement
                pickle.dump(_stored((data.inputs, _expected(data)), file), answers)
                answers.flush()
    except (PtxkitError, MemoryError):  # the measuring process computes them itself, and reports its own error
        raise SystemExit(1) from None


def _expected(data: Data) -> dict[str, Any] | None:
    """The reference; None if it is left to the measuring process."""
    try:
        return data.expected
    except LeftToLibrary:
        return None


def _end_with_parent() -> None:
    """A thread: end this process when the one that started it closes stdin or ends."""
    while os.read(0, 1):  # not sys.stdin, whose lock would be held when the interpreter ends
        pass
    os._exit(1)


def _stored(values: Sequence[Mapping[str, Any] | None], file: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Write the elements of arrays to a file; return the rest of them, pickled, and the places of their elements."""
    parts: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> None:
        parts.append(buffer.raw())

    plain = tuple(arrays and {name: _contiguous(value) for name, value in arrays.items()} for arrays in values)
    head = pickle.dumps(plain, protocol=5, buffer_callback=keep)
    places, end = [], 0
    for part in parts:
        places.append((end, part.nbytes))
        end += -(-part.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    os.ftruncate(file, max(end, 1))
    with mmap.mmap(file, 0) as memory:
        octets = np.frombuffer(memory, np.uint8)
        for (start, length), part in zip(places, parts, strict=True):
            _copy(np.frombuffer(part, np.uint8), octets[start : start + length])
        del octets  # the memory cannot be closed before
    return head, places


def _copy(source: npt.NDArray[Any], to: npt.NDArray[Any]) -> None:
    """Copy on all cores: one takes a second for a few gigabytes, whose pages the operating system provides."""

    def copy(block: slice) -> None:
        to[block] = source[block]

    in_threads(copy, blocks(source.size, source.size, COPIED))


def _contiguous(value: Any) -> Any:
    """An array whose elements are in order in memory; other values unchanged."""
    return np.ascontiguousarray(value) if isinstance(value, np.ndarray) and value.ndim else value
