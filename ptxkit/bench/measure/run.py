"""``ptxkit bench run``: targets one after another, each with all its contenders, to :class:`Results`."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ptxkit
from ptxkit.bench.cases import Plan, description_of
from ptxkit.bench.measure import counted
from ptxkit.bench.measure.candidates import (
    BufferSets,
    Contender,
    PeerContender,
    VariantContender,
    arrays_sha256,
    compared,
)
from ptxkit.bench.measure.method import Method
from ptxkit.bench.measure.plain_launch import plain_launch
from ptxkit.bench.measure.runner import silent
from ptxkit.bench.measure.session import Session
from ptxkit.bench.results.results import Counted, Results, Roofs, Row, Target
from ptxkit.compiler.nvrtc import nvrtc_version
from ptxkit.errors import FaultError, PtxkitError, UnavailableError, UsageError
from ptxkit.exit_codes import ExitCode
from ptxkit.runtime.abilities import is_timed
from ptxkit.workload import execute
from ptxkit.workload.ahead import compile_ahead
from ptxkit.workload.resolve import unavailable

if TYPE_CHECKING:
    from ptxkit.bench.peers.base import Peer
    from ptxkit.workload.variant import Variant

Say = Callable[[str], None]


@dataclass
class BenchRun:
    """One run.

    Args:
        device: a GPU, or the emulator, which counts instead of measuring.
        peers: what to compare with. absent: peers that are not there, and why.
        method: how to measure. seed: of the inputs.
        tile: tile parameters to hold, for the variants that have them.
        counts: whether the emulator also counts what each variant moves.
        command: the words after ``ptxkit``, for the receipt.
        leave_out: kernels of which no variant can run here, because of a package or the target, become notes in the results'
            ``absent`` instead of failed targets: for runs of the whole catalogue.
    """

    device: Any
    peers: Sequence[Peer] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    method: Method = field(default_factory=Method)
    seed: int = 0
    tile: Mapping[str, Any] = field(default_factory=dict)
    counts: bool = True
    command: Sequence[str] = ()
    leave_out: bool = False

    def run(
        self, plans: Sequence[Plan], say: Say = silent, done: Callable[[Results], None] = lambda results: None
    ) -> Results:
        """Measure all targets.

        Args:
            say: is told what is being done.
            done: is given the results so far after each target, marked as partial until the last, so that an interrupt loses
                only one.

        Raises:
            UsageError: a target needs more memory than there is.
        """
        for plan in plans:
            execute.check_memory(plan.workload, self.device)
        gpu = is_timed(self.device)
        results = self._empty(gpu)
        if gpu:
            say("measuring the roofs")
            from ptxkit.bench.measure.roofs import roofs

            self.device.reset_persisting_l2()
            results = replace(results, roofs=roofs(self.device), sensors={"start": asdict(self.device.sensors())})
        targets: list[Target] = []
        begin = time.perf_counter()
        for number, plan in enumerate(plans):
            left = (time.perf_counter() - begin) / number * (len(plans) - number) if number else 0
            about = f", about {left:.0f} s left" if left else ""
            prefix = f"[{number + 1}/{len(plans)}{about}] {plan.workload.name} {plan.workload.size_text()}: "

            def told(what: str, prefix: str = prefix) -> None:
                say(prefix + what)

            target = self._timed(plan, results.roofs, told) if results.roofs else self._counted(plan, told)
            reason = cannot_run(target) if self.leave_out else None
            if reason is None:
                targets.append(target)
            else:
                results = replace(results, absent={**results.absent, target.kernel: reason})
            if gpu:
                results = replace(results, sensors={**results.sensors, "end": asdict(self.device.sensors())})
                results = replace(
                    results, environment=environment(self.device)
                )  # peers have loaded their packages by now
            results = replace(results, targets=tuple(targets), partial=number + 1 < len(plans))
            done(results)
        return results

    def _empty(self, gpu: bool) -> Results:
        return Results(
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            ptxkit=ptxkit.__version__,
            command=tuple(self.command),
            device_kind=self.device.kind,
            device=self.device.name,
            environment=environment(self.device),
            facts=asdict(self.device.facts()) if gpu else {},
            method=asdict(self.method) if gpu else {},
            targets=(),
            absent=dict(self.absent),
        )

    # -- on a GPU ----------------------------------------------------------------------------------------------------

    def _timed(self, plan: Plan, roofs: Roofs, say: Say) -> Target:
        workload = plan.workload
        footprint = workload.bytes_needed()
        count = self.method.sets(footprint, self.device.l2_bytes, self.device.memory_bytes)
        sets = BufferSets(workload, self.device, count, self.seed)
        compile_ahead(sets.cases[0].resolvable(self._variants(plan), partial(self._tile, plan)), say)
        say("preparing inputs")
        inputs_hash = arrays_sha256(sets.data.inputs)
        contenders: list[Contender] = []
        rows: list[Row] = []
        for variant in self._variants(plan):
            say(f"compiling {variant.name}")
            self._enter(
                rows,
                contenders,
                Row(name=variant.name),
                partial(self._variant, sets, variant, self._tile(plan, variant)),
            )
        for peer in self.peers:
            if (plan.peers is None or peer.name in plan.peers) and peer.offers(workload):
                say(f"preparing {peer.name}")
                row = Row(name=peer.name, kind="peer")
                self._enter(rows, contenders, row, partial(PeerContender, sets, peer))
        session = Session(self.device, sets, self.method, roofs, plain=plain_launch)
        measured = session.measure(contenders, say)
        if self.counts:
            say("counting in the emulator")
            names = [row.name for row in measured if row.kind == "variant" and row.error is None]
            counts = counted.count(workload, names, self.device.target)
            measured = [
                replace(row, counted=found) if isinstance(found := counts.get(row.name), Counted) else row
                for row in measured
            ]
        target = self._target(workload, footprint, [*measured, *rows], inputs_hash)
        return replace(target, conditions=session.conditions())

    def _enter(
        self, rows: list[Row], contenders: list[Contender], row: Row, make: Callable[[], Contender | Row]
    ) -> None:
        """One contender more, or a row that says why there is none."""
        try:
            made = make()
        except FaultError:
            raise
        except UnavailableError as error:  # a package that is not here
            rows.append(replace(row, skipped=str(error)) if row.kind == "peer" else row.failed(error))
            return
        except PtxkitError as error:
            rows.append(row.failed(error))
            return
        rows.append(made) if isinstance(made, Row) else contenders.append(made)

    def _variant(self, sets: BufferSets, variant: Variant, tile: Mapping[str, Any]) -> Contender | Row:
        reason = unavailable(variant, self.device.target, sets.workload)
        if reason is not None:
            return Row(name=variant.name, skipped=reason)
        return VariantContender(sets, variant, tile)

    def _tile(self, plan: Plan, variant: Variant) -> dict[str, Any]:
        held = {**self.tile, **plan.tiles.get(variant.name, {})}
        return {name: value for name, value in held.items() if name in variant.tile}

    # -- in the emulator ---------------------------------------------------------------------------------------------

    def _counted(self, plan: Plan, say: Say) -> Target:
        workload = plan.workload
        case = execute.Case(workload, self.device, self.seed)
        rows = []
        for variant in self._variants(plan):
            say(variant.name)
            try:
                result = execute.run(case, variant, None, self._tile(plan, variant))
            except PtxkitError as error:
                rows.append(Row(name=variant.name).failed(error))
                continue
            if result.verdict is None or result.counters is None:
                rows.append(Row(name=variant.name, skipped=result.skipped))
                continue
            tolerance = case.data.tolerance_rule(variant)
            rows.append(
                Row(
                    name=variant.name,
                    accuracy=compared(case.outputs(), case.expected, tolerance)[1],
                    target=result.target,
                    tile=dict(result.tile),
                    launches=result.launches,
                    verified=result.verdict.verified,
                    worst=result.verdict.worst,
                    counted=counted.counted(result.counters),
                )
            )
        return self._target(workload, workload.bytes_needed(), rows, arrays_sha256(case.inputs))

    # -- both --------------------------------------------------------------------------------------------------------

    def _variants(self, plan: Plan) -> list[Variant]:
        every = plan.workload.variants()
        return [every[name] for name in plan.variants] if plan.variants else list(every.values())

    def _target(self, workload: Any, footprint: int, rows: Sequence[Row], inputs_hash: str) -> Target:
        work = workload.work()
        order = list(workload.variants())
        l2_bytes = self.device.l2_bytes if is_timed(self.device) else 0
        return Target(
            kernel=workload.name,
            sizes=workload.sizes,
            options=workload.options,
            flops=work.flops,
            bytes=work.bytes,
            unit=work.unit,
            footprint_bytes=footprint,
            lives_in="L2" if footprint <= l2_bytes else "DRAM",
            seed=self.seed,
            inputs_sha256=inputs_hash,
            description=description_of(type(workload)),
            rows=sorted(rows, key=lambda r: (r.kind == "peer", order.index(r.name) if r.name in order else 0)),
        )


def cannot_run(target: Target) -> str | None:
    """Why no variant of a target can run here, in words; None where one ran or failed for another reason."""
    rows = [row for row in target.rows if row.kind == "variant"]
    if any(row.skipped is None and row.exit_code != ExitCode.UNAVAILABLE for row in rows):
        return None
    reasons = [*(row.error for row in rows), *(row.skipped for row in rows)]
    return next(filter(None, reasons), None)


def environment(device: Any) -> dict[str, str]:
    """Versions of all that a result may depend on."""
    found = {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "nvrtc": nvrtc_version(),
        "ptxkit": ptxkit.__version__,
    }
    for package in ("numpy", "cuda-bindings", "cuda-core"):
        found[package] = _version(package)
    if is_timed(device):
        facts = device.facts()
        found |= {"gpu": device.name, "cuda_driver": facts.cuda_driver, "kernel_driver": facts.kernel_driver}
        found["gpu_uuid"] = facts.uuid
    for module in ("torch", "triton", "cupy"):
        if module in sys.modules:
            found[module] = str(getattr(sys.modules[module], "__version__", "unknown"))
    return found


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def require_gpu(device: Any, what: str) -> None:
    """Raise UsageError for what the emulator cannot do."""
    if not is_timed(device):
        raise UsageError(f"{what} needs a GPU; the emulator has no times")
