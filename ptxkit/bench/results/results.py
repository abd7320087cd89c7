"""Results of a benchmark as values, and their JSON: schema ``ptxkit.bench/4``; files of versions 1 to 3 can still
be read.

A result file holds the hashes of source, cubin and inputs, the driver, the clocks and the method, so that it can be run again
and compared (:mod:`ptxkit.bench.results.judge`). Field names carry their units.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ptxkit.bench.results.ceiling import Ceiling, Roofs
from ptxkit.bench.results.conditions import Conditions
from ptxkit.bench.results.json_values import NotNegative, Positive
from ptxkit.errors import CompileError, PtxkitError, UsageError
from ptxkit.exit_codes import ExitCode, most_severe

SCHEMA = "ptxkit.bench/4"
BASELINE = "unfused"
"""The variant that speed-ups refer to."""
COUNTS = ("instructions", "load_bytes", "store_bytes", "load_sectors", "store_sectors", "bank_conflicts")
"""The fields of :class:`Counted` that results are compared by."""
Mode = Literal["cold", "hot"]


@dataclass(frozen=True)
class Timed:
    """A sample of device times of one launch sequence, in microseconds.

    Attributes:
        median_us, mean_us, std_us: of the samples.
        ci95_us: 95% confidence interval of the mean (low, high).
        spread_us: half the interquartile range.
        samples: how many there are. dropped: how many more were discarded because the GPU throttled.
        calls: calls of the candidate in one sample. sets: sets of buffers that the calls rotate over.
    """

    median_us: Positive
    mean_us: Positive
    std_us: NotNegative
    ci95_us: tuple[float, float]
    spread_us: NotNegative
    samples: int
    dropped: int = 0
    calls: int = 1
    sets: int = 1

    @property
    def relative_spread(self) -> float:
        """The spread over the median."""
        return self.spread_us / self.median_us


@dataclass(frozen=True)
class Accuracy:
    """Errors against the float64 reference over all elements of all outputs.

    Attributes:
        elements: how many were compared.
        max_abs, max_rel, max_ulp: the largest.
        percentiles: output -> ``{"abs": {"50": ..., "99.9": ...}, "rel": ..., "ulp": ...}``; empty where only the largest
            errors were wanted.
        outputs_sha256: over the bytes of all outputs: two candidates with the same one agree bit for bit; "" as above.
    """

    elements: int
    max_abs: float
    max_rel: float
    max_ulp: float
    percentiles: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    outputs_sha256: str = ""


@dataclass(frozen=True)
class Counted:
    """What the emulator counts of one call, exactly, at PTX level; bytes and sectors are of global memory.

    Attributes:
        instructions: executed by threads. flops: floating-point operations.
        load_bytes, store_bytes: requested by threads and by asynchronous copies; atomics are stores.
        load_sectors, store_sectors: 32-byte sectors touched.
        bank_conflicts: of shared memory.
        intensity: flops per byte; None where no byte is moved.
        sizes: the sizes counted, where they are smaller than the ones measured.
        copied_bytes: of them, by asynchronous copies to shared memory. misaligned_bytes: of those, by cp.async.bulk to
            addresses that are not 128-byte aligned.
        shared_bytes, local_bytes: loaded, stored and atomically updated in shared memory (also of other CTAs), and in local
            memory. Not in files written before these fields existed: 0.
        by_class: instructions by class: "float32", "load.global", ...; empty in such files.
    """

    instructions: int
    flops: int
    load_bytes: int
    store_bytes: int
    load_sectors: int
    store_sectors: int
    bank_conflicts: int
    intensity: float | None
    sizes: Mapping[str, int] = field(default_factory=dict)
    copied_bytes: int = 0
    misaligned_bytes: int = 0
    shared_bytes: int = 0
    local_bytes: int = 0
    by_class: Mapping[str, int] = field(default_factory=dict)

    @property
    def moved_bytes(self) -> int:
        """Bytes loaded and stored."""
        return self.load_bytes + self.store_bytes


@dataclass(frozen=True)
class ProfiledKernel:
    """The launches of one kernel in a call, as torch's profiler saw them.

    Attributes:
        name: demangled. launches: how many. time_us: of all of them, on the device.
    """

    name: str
    launches: int
    time_us: float


@dataclass(frozen=True)
class Row:
    """One candidate: a variant, or a peer.

    Attributes:
        name: of the variant or the peer. kind: ``"variant"`` or ``"peer"``.
        version: of a peer: "torch 2.11.0". note: remarks on how it ran.
        target: what a variant was compiled for, "sm_90a"; "" where it was not.
        tile: its tile parameters. tile_note: why they are not the declared default, "" where they are.
        launches: kernel launches of one call; 0 where a peer does not know.
        skipped, error: why there are no figures; None where there are. exit_code: the one the error stands for.
        diagnostics: the compiler's, of an error; they begin with the error.
        warnings: what the compiler remarked, mapped to source lines.
        verified: every output was right before the timing, and after it. None where nothing was compared.
        worst: the first element that was not, in words. explanation: all that is known of the wrong elements, in several lines.
        less_accurate: of a peer whose results have the roundings of a library, by how much they exceed the tolerance of the
            kernel; else "".
        cold: with none of its data in the L2 cache. hot: with whatever the call before left there.
        bandwidth_gbs, tflops: the minimum bytes and the flops of the work over the cold median.
        roof_fraction: time at the case's ceiling (:attr:`CaseResult.ceiling`) over the cold median; None without a ceiling.
        alarms: why a time cannot be right, such as one below the physical minimum.
        registers, local_bytes, shared_bytes: the maximum over its kernels.
        source_sha256, cubin_sha256: over its sources as compiled (PTX) and its cubins, in order.
        code_sha256: over its machine code, which no comment changes; "" in earlier files.
        counted: by the emulator. measured: by a profiler. kernels: of one call, as torch's profiler saw them.
    """

    name: str
    kind: Literal["variant", "peer"] = "variant"
    version: str = ""
    note: str = ""
    target: str = ""
    tile: Mapping[str, Any] = field(default_factory=dict)
    tile_note: str = ""
    launches: int = 0
    skipped: str | None = None
    error: str | None = None
    exit_code: int = int(ExitCode.INTERNAL)
    diagnostics: str = ""
    warnings: Sequence[str] = ()
    verified: bool | None = None
    worst: str = ""
    explanation: str = ""
    less_accurate: str = ""
    accuracy: Accuracy | None = None
    cold: Timed | None = None
    hot: Timed | None = None
    bandwidth_gbs: float | None = None
    tflops: float | None = None
    roof_fraction: float | None = None
    alarms: Sequence[str] = ()
    registers: int | None = None
    local_bytes: int | None = None
    shared_bytes: int | None = None
    source_sha256: str = ""
    cubin_sha256: str = ""
    code_sha256: str = ""
    counted: Counted | None = None
    measured: Mapping[str, float] | None = None
    kernels: Sequence[ProfiledKernel] = ()

    def failed(self, error: PtxkitError) -> Row:
        """The row without figures, because of an error."""
        log = error.log.rstrip() if isinstance(error, CompileError) else ""
        return dataclasses.replace(self, error=str(error), exit_code=int(error.exit_code), diagnostics=log)

    def timed(self, mode: Mode) -> Timed | None:
        """The cold or the hot times."""
        return self.cold if mode == "cold" else self.hot


@dataclass(frozen=True)
class CaseResult:
    """One case: a kernel at one size, and the results of its candidates.

    Attributes:
        flops, bytes: the minimum work. unit: the type whose peak rate applies to the flops: "f32", "bf16", ...
        footprint_bytes: of all arrays. lives_in: ``"L2"`` where they all fit into it, else ``"DRAM"``.
        inputs_sha256: over the input arrays, by name. seed: of the inputs.
        description: path of the description's file where the kernel is a user's own, else "".
        conditions: clock, power and temperature while it was measured; None where nothing was timed, and in earlier files.
        ceiling: what bounds the minimum work; None where nothing was timed, or no peak rate of ``unit`` is known.
        executed_flops: ``Work.executed_flops``.
        chosen: the variant that ``ptxkit bench shapes`` chose before measuring; "" in results of other commands.
        measured_on: on a cluster, the ``worker`` and its ``host``, and of its GPU ``uuid``, ``driver`` and, after the last
            sample, ``sm_clock_mhz``, ``temperature_c`` and ``throttled``; empty for results of one machine.
        seconds: that its measurement took, by steps, of which the preparation of each peer is one with its name; empty in the
            emulator, and in earlier files.
    """

    kernel: str
    sizes: Mapping[str, int]
    options: Mapping[str, Any]
    flops: int
    bytes: int
    unit: str
    footprint_bytes: int
    lives_in: Literal["L2", "DRAM"]
    seed: int
    inputs_sha256: str
    rows: Sequence[Row]
    description: str = ""
    conditions: Conditions | None = None
    ceiling: Ceiling | None = None
    executed_flops: int | None = None
    chosen: str = ""
    measured_on: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def executed(self) -> int:
        """The flops that are executed, from which bounds follow; ``flops`` where the work states no others."""
        return self.flops if self.executed_flops is None else self.executed_flops

    @property
    def key(self) -> str:
        """``"saxpy n=1048576"``, with the options that are not the kernel's defaults; the same in every run."""
        return self.key_of(self.kernel, self.sizes, self.options)

    @staticmethod
    def key_of(kernel: str, sizes: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """The :attr:`key` of a case with these sizes and options."""
        return " ".join([kernel, *(f"{name}={value}" for name, value in {**sizes, **options}.items())])

    @property
    def intensity(self) -> float:
        """Flops per byte; infinite where the work has no bytes."""
        return self.flops / self.bytes if self.bytes else math.inf

    def row(self, name: str) -> Row | None:
        """The candidate of that name."""
        return next((row for row in self.rows if row.name == name), None)

    def best(self, kind: str, mode: Mode) -> Row | None:
        """The fastest candidate of a kind that is right and raised no alarm, baseline included; None without one."""
        right = [r for r in self.rows if r.verified is not False and r.error is None and not r.alarms]
        rows = [r for r in right if r.kind == kind and r.timed(mode)]
        return min(rows, key=lambda r: r.timed(mode).median_us, default=None)  # type: ignore[union-attr]

    @staticmethod
    def ratio(base: Row | None, row: Row, mode: Mode) -> float | None:
        """How many times faster a row is than another; None where one has no time."""
        theirs, mine = base.timed(mode) if base else None, row.timed(mode)
        return theirs.median_us / mine.median_us if theirs and mine else None

    @property
    def exit_code(self) -> ExitCode:
        """``DONE`` when every variant that ran is right and at least one ran; else the code of the most severe failure."""
        variants = [row for row in self.rows if row.kind == "variant"]
        if all(row.skipped is not None for row in variants):
            return ExitCode.NOTHING_VERIFIED
        failed = [row.exit_code for row in variants if row.error is not None]
        wrong = [ExitCode.WRONG for row in self.rows if row.verified is False or row.alarms]
        return most_severe([*failed, *wrong])


@dataclass(frozen=True)
class Results:
    """A whole run.

    Attributes:
        created: UTC, ISO 8601.
        ptxkit: its version. command: the words after ``ptxkit``.
        device_kind, device: ``"gpu"`` or ``"emulator"``, and its name.
        environment: compiler and library versions, and of a GPU ``cuda_driver``, the CUDA version that the driver implements
            ("13.0"), and ``kernel_driver``, the kernel driver's own ("580.95.05").
        facts: what the GPU is. sensors: clocks, power and temperature, at the start and the end.
        method: the parameters of the measurement.
        roofs: None where nothing was timed.
        absent: peer -> why it could not be run.
        partial: the run was stopped, or is not over: cases are missing, or what a profiler was to add.
        target: what variants are compiled for unless a row says otherwise; "" in earlier files.
        seconds: what was done before the first case, such as ``preparation`` of the peers; empty in earlier files.
    """

    created: str
    ptxkit: str
    command: Sequence[str]
    device_kind: str
    device: str
    environment: Mapping[str, str]
    method: Mapping[str, Any]
    cases: Sequence[CaseResult]
    facts: Mapping[str, Any] = field(default_factory=dict)
    sensors: Mapping[str, Any] = field(default_factory=dict)
    roofs: Roofs | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    partial: bool = False
    target: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    schema: str = SCHEMA

    @property
    def iterations(self) -> int | None:
        """The requested number of samples; None where the stopping rule of the method applies."""
        return self.method.get("iterations")

    def to_json(self) -> dict[str, Any]:
        """The results as JSON values."""
        return dataclasses.asdict(self)

    def of_kernels(self, names: Sequence[str]) -> Results:
        """These kernels' cases alone; all where none are named.

        Raises:
            UsageError: there is no case of such a kernel.
        """
        known = dict.fromkeys(t.kernel for t in self.cases)
        if missing := [name for name in names if name not in known]:
            raise UsageError(f"these results have no kernel {missing[0]!r}; they have {', '.join(known) or 'none'}")
        kept = tuple(t for t in self.cases if t.kernel in names) if names else self.cases
        return dataclasses.replace(self, cases=kept)

    def case(self, key: str) -> CaseResult | None:
        """The case with that key."""
        return next((c for c in self.cases if c.key == key), None)
