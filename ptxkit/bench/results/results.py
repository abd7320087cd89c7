"""What ``ptxkit bench run`` found, as values, and their JSON: schema ``ptxkit.bench/2``; files of
``ptxkit.bench/1`` are read, too.

A result is a receipt: with the hashes of source, cubin and inputs, the driver, the clocks and the method it can be run again
and held against what it says (:mod:`ptxkit.bench.results.judge`). Field names carry their units.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ptxkit.bench.measure.conditions import Conditions
from ptxkit.bench.results.json_values import NotNegative, Positive, read_as
from ptxkit.errors import PtxkitError, UsageError
from ptxkit.exit_codes import ExitCode
from ptxkit.files import read_text

SCHEMA = "ptxkit.bench/2"
EARLIER = "ptxkit.bench/1"
Mode = Literal["cold", "hot"]


@dataclass(frozen=True)
class Timed:
    """A sample of device times of one launch sequence, in microseconds.

    Attributes:
        median_us, mean_us, std_us: of the samples.
        ci95_us: 95% confidence interval of the mean (low, high).
        spread_us: half the interquartile range.
        samples: how many there are. dropped: how many more were taken under throttling and thrown away.
        calls: calls of the contender in one sample. sets: sets of buffers that the calls went through.
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


@dataclass(frozen=True)
class Accuracy:
    """Errors against the float64 reference over all elements of all outputs.

    Attributes:
        max_abs, max_rel, max_ulp: the largest.
        outputs_sha256: over the bytes of all outputs: two contenders with the same one agree bit for bit.
        percentiles: output -> ``{"abs": {"50": ..., "99.9": ...}, "rel": ..., "ulp": ...}``.
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
        load_bytes, store_bytes: that threads ask for. load_sectors, store_sectors: 32-byte sectors touched.
        intensity: flops over bytes loaded and stored.
        sizes: the sizes counted, where they are smaller than the ones measured.
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


@dataclass(frozen=True)
class Row:
    """One contender: a variant, or a peer.

    Attributes:
        name: of the variant or the peer. kind: ``"variant"`` or ``"peer"``.
        version: of a peer: "torch 2.11.0". note: what else is to be said of how it ran.
        target, tile, launches: of a variant; launches is 0 where a peer does not know.
        skipped, error: why there are no figures; None where there are some. exit_code: that the error stands for.
        verified: every output was right before the timing, and on fresh inputs after it. None where nothing was compared.
        worst: the first element that was not, in words.
        cold: with nothing in the L2 cache. hot: with whatever the call before left there.
        bandwidth_gbs, tflops: the least bytes and the flops of the work over the cold median.
        roof_fraction: bandwidth over the copy bandwidth of the same run.
        alarms: what cannot be, such as a time below the physical floor.
        registers, local_bytes, shared_bytes: the most of its kernels.
        source_sha256, cubin_sha256: over its sources as compiled (PTX) and its cubins, in order.
        code_sha256: over its machine code, which no comment changes; "" in earlier files.
        counted: by the emulator. measured: by a profiler.
    """

    name: str
    kind: Literal["variant", "peer"] = "variant"
    version: str = ""
    note: str = ""
    target: str = ""
    tile: Mapping[str, Any] = field(default_factory=dict)
    launches: int = 0
    skipped: str | None = None
    error: str | None = None
    exit_code: int = int(ExitCode.INTERNAL)
    verified: bool | None = None
    worst: str = ""
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

    def failed(self, error: PtxkitError) -> Row:
        """The row without figures, because of an error."""
        return dataclasses.replace(self, error=str(error), exit_code=int(error.exit_code))

    def timed(self, mode: Mode) -> Timed | None:
        """The cold or the hot times."""
        return self.cold if mode == "cold" else self.hot


@dataclass(frozen=True)
class Target:
    """One kernel at one size.

    Attributes:
        flops, bytes: the least work. unit: whose peak the flops are held against.
        footprint_bytes: of all arrays. lives_in: ``"L2"`` where they all fit into it, else ``"DRAM"``.
        inputs_sha256: over the input arrays, by name. seed: that they came from.
        description: path of the description's file where the kernel is a user's own, else "".
        conditions: clock, power and temperature while it was measured; None where nothing was timed, and in earlier files.
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

    @property
    def key(self) -> str:
        """``"saxpy n=1048576"``, with the options that are not the kernel's defaults; the same in every run."""
        words = [f"{k}={v}" for k, v in {**self.sizes, **self.options}.items()]
        return " ".join([self.kernel, *words])

    @property
    def intensity(self) -> float:
        """Flops per byte; infinite where the work has no bytes."""
        return self.flops / self.bytes if self.bytes else math.inf

    def row(self, name: str) -> Row | None:
        """The contender of that name."""
        return next((row for row in self.rows if row.name == name), None)

    def best(self, kind: str, mode: Mode) -> Row | None:
        """The fastest of a kind that is right and raised no alarm, the baseline among them; None without one."""
        right = [r for r in self.rows if r.verified is not False and r.error is None and not r.alarms]
        rows = [r for r in right if r.kind == kind and r.timed(mode)]
        return min(rows, key=lambda r: r.timed(mode).median_us, default=None)  # type: ignore[union-attr]


@dataclass(frozen=True)
class Roofs:
    """Ceilings measured in the run.

    Attributes:
        copy_gbs: device-to-device copy of 1 GiB, bytes read plus written. l2_gbs: the same of what stays in L2.
        peak_tflops: unit -> floating-point rate: "f32" by fused multiply-adds, "bf16" by the tensor cores.
    """

    copy_gbs: Positive
    l2_gbs: Positive
    peak_tflops: Mapping[str, Positive] = field(default_factory=dict)


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
        absent: peer -> why it was not there.
        partial: the run was stopped, or is not over: targets are missing, or what a profiler was to add.
    """

    created: str
    ptxkit: str
    command: Sequence[str]
    device_kind: str
    device: str
    environment: Mapping[str, str]
    method: Mapping[str, Any]
    targets: Sequence[Target]
    facts: Mapping[str, Any] = field(default_factory=dict)
    sensors: Mapping[str, Any] = field(default_factory=dict)
    roofs: Roofs | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    partial: bool = False
    schema: str = SCHEMA

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return dataclasses.asdict(self)

    def of_kernels(self, names: Sequence[str]) -> Results:
        """These kernels' targets alone; all where none are named.

        Raises:
            UsageError: there is no target of such a kernel.
        """
        known = dict.fromkeys(t.kernel for t in self.targets)
        if missing := [name for name in names if name not in known]:
            raise UsageError(f"these results have no kernel {missing[0]!r}; they have {', '.join(known) or 'none'}")
        kept = tuple(t for t in self.targets if t.kernel in names) if names else self.targets
        return dataclasses.replace(self, targets=kept)

    def target(self, key: str) -> Target | None:
        """The target with that key."""
        return next((t for t in self.targets if t.key == key), None)


def load(path: str | Path) -> Results:
    """Results from a file that ``bench run --json`` wrote.

    Raises:
        UsageError: no such file, no JSON, another schema, or a field that is missing or of the wrong type.
    """
    try:
        value = json.loads(read_text(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # no text, no JSON, a number of thousands of digits, or too deep
        raise UsageError(f"{path} is not JSON: {error}; pass a file written by ptxkit bench run --json") from None
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema == EARLIER:
        value = _renamed(value)
    elif schema != SCHEMA:
        raise UsageError(f"{path} has the schema {schema!r}; this version of ptxkit reads {SCHEMA} and {EARLIER}")
    try:
        results: Results = read_as(Results, value)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return results


def cuda_driver_named(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Versions as :data:`EARLIER` names them, which calls the driver's CUDA version ``driver``, in today's names."""
    return {"cuda_driver" if name == "driver" else name: value for name, value in environment.items()}


def _renamed(value: dict[str, Any]) -> dict[str, Any]:
    """An earlier file's value in today's names; what is not an object is left for :func:`read_as` to complain of."""
    places = {name: cuda_driver_named(v) for name in ("environment", "facts") if isinstance(v := value.get(name), dict)}
    return {**value, **places, "schema": SCHEMA}
