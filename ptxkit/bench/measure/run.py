"""``ptxkit run``: one case, without peers, with the quick method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ptxkit.bench.cases import Plan
from ptxkit.bench.measure.benchmark import Benchmark, Say, silent
from ptxkit.bench.measure.method import Method
from ptxkit.errors import UnavailableError
from ptxkit.workload import execute
from ptxkit.workload.choice import Choice, choose
from ptxkit.workload.resolve import resolve, target_for, unavailable
from ptxkit.workload.variant import Variant, require_tile_parameters

if TYPE_CHECKING:
    from ptxkit.bench.results.results import Results
    from ptxkit.runtime.device import Device
    from ptxkit.targets import Target
    from ptxkit.workload.workload import Workload

SCHEMA_PLAN = "ptxkit.plan/1"


class Run:
    """A workload's variants on a device, as :class:`~ptxkit.bench.measure.benchmark.Benchmark` measures them.

    Args:
        workload: the workload with its sizes.
        device: the device to run on.
        variants: names of the variants to run; empty for all, of which those that the target does not support are skipped.
        target: target to compile for; None for that of the device.
        tile: tile parameter -> value, for the variants that have that parameter.
        seed: seed for random inputs.
        iterations: number of timed samples; None to sample until the median is known or a time budget is spent.
        timeout_s: time limit for one variant in seconds; None for no limit.
        stuck: called with the results so far if a variant hangs in a call that only the end of the process ends; must end it.

    Raises:
        UsageError: no such variant, or a fixed tile parameter that no variant to run has.
    """

    def __init__(
        self,
        workload: Workload,
        device: Device,
        *,
        variants: Sequence[str] = (),
        target: Target | None = None,
        tile: Mapping[str, Any] | None = None,
        seed: int = 0,
        iterations: int | None = None,
        timeout_s: float | None = None,
        stuck: Callable[[Results], None] = lambda results: None,
    ) -> None:
        workload = self.workload = workload.on(device.facts_for(target))
        self.device = device
        names = tuple(workload.variant(name).name for name in dict.fromkeys(variants))
        self.plan = Plan(workload, names)
        self.tile = dict(tile or {})
        self.target = target or device.target
        self.iterations = iterations
        self.variants = [workload.variant(name) for name in names] or list(workload.variants().values())
        require_tile_parameters(workload, self.variants, self.tile, every=not names)
        self.benchmark = Benchmark(
            device,
            method=Method.quick(iterations, len(self.variants)),
            seed=seed,
            tile=self.tile,
            counts=False,
            target=target,
            strict=True,
            recorded=False,
            timeout_s=timeout_s,
            stuck=stuck,
        )

    def run(self, say: Say = silent) -> Results:
        """Run every variant on the same inputs. A variant that does not compile or faults is reported, not raised.

        Args:
            say: called with a description of the current step.

        Raises:
            UnavailableError: the sizes need more memory than there is, or a named variant needs another target.
        """
        return self.benchmark.run([self.plan], say)

    def until_interrupted(self) -> Results | None:
        """The results of an interrupted :meth:`run`, in which variants that were not complete are skipped; None without any."""
        return self.benchmark.until_interrupted()

    def choice(self) -> Choice | None:
        """What :func:`~ptxkit.workload.choice.choose` takes; None if variants were named, or none or one can run.

        Raises:
            UnavailableError: the sizes need more memory than there is.
        """
        if self.plan.variants or len(self.variants) == 1:
            return None
        execute.check_memory(self.workload, self.device)
        with suppress(UnavailableError):
            return choose(self.workload, self.device, self.target, self.tile)
        return None

    def launches(self) -> dict[str, Any]:
        """The launches of :meth:`run` as JSON values; nothing is compiled or allocated."""
        execute.check_memory(self.workload, self.device)
        name = (self.target or target_for(self.variants[0], None)).name
        choice = self.choice()
        return {
            "schema": SCHEMA_PLAN,
            "kernel": self.workload.name,
            "sizes": self.workload.sizes,
            "iterations": self.iterations,
            "device": {"kind": self.device.kind, "name": self.device.name, "target": name},
            "bytes_needed": self.workload.bytes_needed(),
            "variants": [self._launches_of(variant) for variant in self.variants],
            **({} if choice is None else {"choice": choice.to_json()}),
        }

    def _launches_of(self, variant: Variant) -> dict[str, Any]:
        skipped = unavailable(variant, self.target, self.workload)
        if skipped is not None:
            return {"name": variant.name, "skipped": skipped, "target": "", "tile": "", "launches": []}
        fixed = {name: value for name, value in self.tile.items() if name in variant.tile}
        found = resolve(self.workload, variant, self.target, fixed, device=self.device)
        launches = [
            {
                "entry": launch.entry,
                "source": str(variant.source_of(self.workload, launch)),
                "grid": launch.grid,
                "block": launch.block,
                "shared_bytes": launch.shared,
                "cluster": launch.cluster,
                "cooperative": launch.cooperative,
            }
            for launch in found.launches
        ]
        tile = str(found.tile)
        return {"name": variant.name, "skipped": None, "target": found.target.name, "tile": tile, "launches": launches}
