"""What the commands of ``ptxkit bench`` that measure have in common: a device, peers, a method, and results that are kept."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ptxkit.cli._cluster import tell
from ptxkit.cli._kernel import refuse_absent
from ptxkit.cli._options import emulator_changes, emulator_settings
from ptxkit.cli._output import stdout_set_aside
from ptxkit.errors import UsageError

if TYPE_CHECKING:
    from ptxkit.bench.cases import Plan
    from ptxkit.bench.measure.benchmark import Benchmark
    from ptxkit.bench.measure.method import Method
    from ptxkit.bench.measure.profilers import Profile
    from ptxkit.cli._bench_kept import Kept
    from ptxkit.cluster.cases import ClusterBenchmark
    from ptxkit.cluster.connection import Connection
    from ptxkit.runtime.device import Device
    from ptxkit.targets import Target


class Setup:
    """How cases are measured.

    Args:
        device: a GPU, or the emulator, which counts and runs no peers.
        method: parameters of the measurement. peers: names; None for all that are here.
        seed, tile, counts, target, leave_out: see :class:`~ptxkit.bench.measure.benchmark.Benchmark`.
        max_instructions: limit of a launch in the emulator, or None.
        cluster: measure on its workers; ``device`` stands for theirs, and peers are those that they have.
        limit_s: for one case on a cluster; None for the default.
        stop_after_s: see :class:`~ptxkit.bench.measure.benchmark.Benchmark`.

    Attributes:
        peers: that this process measures.

    Raises:
        UsageError: an unknown peer, also in the emulator. UnavailableError: a peer that was named cannot be used here.
    """

    def __init__(
        self,
        device: Device,
        method: Method,
        *,
        peers: Sequence[str] | None = None,
        seed: int = 0,
        tile: Mapping[str, Any] | None = None,
        counts: bool = True,
        target: Target | None = None,
        leave_out: bool = False,
        max_instructions: int | None = None,
        cluster: Connection | None = None,
        limit_s: float | None = None,
        stop_after_s: float | None = None,
    ) -> None:
        from ptxkit.bench.measure.benchmark import Benchmark
        from ptxkit.bench.measure.new_process import in_new_process
        from ptxkit.bench.peers import peers as find_peers
        from ptxkit.runtime.device import is_timed

        with stdout_set_aside():
            found, absent = find_peers(peers)
        if not is_timed(device) or cluster is not None:
            found, absent = [], []
        refuse_absent(peers, absent)
        self.peers = found
        bench = Benchmark(
            device,
            found,
            dict(absent),
            method,
            seed,
            dict(tile or {}),
            counts,
            ["ptxkit", *sys.argv[1:]],
            target,
            leave_out=leave_out,
            stop_after_s=stop_after_s,
            ahead=is_timed(device) and cluster is None,
            tell=tell,
            when_lost=in_new_process,
        )
        changes = emulator_changes({"max_instructions": max_instructions})
        self._changed = emulator_settings(device, changes)
        self.bench: Benchmark | ClusterBenchmark = bench
        if cluster is not None:
            from ptxkit.cluster.cases import ClusterBenchmark, order_of

            self.bench = ClusterBenchmark(cluster, bench, order_of(bench, limit_s, peers, changes), tell)

    def measured(self, plans: Sequence[Plan], kept: Kept, profile: Profile | None = None) -> Kept:
        """Measure the cases, showing progress; an interrupt keeps those that are measured by then.

        Args:
            profile: how candidates are profiled afterwards; None for not at all.
        """
        from ptxkit.bench.measure.profilers import profiled
        from ptxkit.cli._progress import progress

        with self._changed, stdout_set_aside(), progress() as say, kept.measuring():
            results = self.bench.run(plans, say, kept.done)
            if profile is not None:
                profiled(results, profile, say, kept.done)
        return kept


def check_words(words: Sequence[str], peers: Sequence[str] | None) -> None:
    """Raise UsageError for a kernel, a variant or a peer that does not exist."""
    from ptxkit.bench.peers import peers as find_peers
    from ptxkit.workload import registry

    for word in words:
        name, colon, variant = word.partition(":")
        kernel = registry.find(name)
        if colon:
            kernel.variant(variant)
    find_peers(peers)


def check_tile(tile: Mapping[str, str], chosen: Sequence[Plan]) -> None:
    """Raise UsageError for a tile parameter that no variant of the cases has."""
    from ptxkit.workload.workload import suggestion

    known = dict.fromkeys(n for plan in chosen for v in plan.workload.variants().values() for n in v.tile)
    for name in tile:
        if name not in known:
            raise UsageError(f"none of these kernels has a tile parameter {name}; {suggestion(name, known)}")
