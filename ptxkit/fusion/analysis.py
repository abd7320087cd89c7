"""The fusion report as values: every operation, every candidate with its verdict, and the graph before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from ptxkit.errors import PtxkitError
from ptxkit.fusion.cost import Cost, Group, cost
from ptxkit.fusion.graph import Graph
from ptxkit.fusion.groups import pairs, plan
from ptxkit.fusion.machine import Machine
from ptxkit.fusion.offers import Offer, bundled, fused_variants, offer
from ptxkit.fusion.rules import Judgement, Verdict
from ptxkit.fusion.score import THRESHOLDS, WEIGHTS, Score, Thresholds, Weights, estimated_registers, score


@dataclass(frozen=True)
class Compiled:
    """What the compiler and the occupancy calculation say of the bundled kernel that computes a group.

    Attributes:
        variant: which one was compiled.
        registers: of a thread. shared_bytes: of a CTA. occupancy: resident warps over the limit of an SM.
    """

    variant: str
    registers: int
    shared_bytes: int
    occupancy: float


@dataclass(frozen=True)
class Candidate:
    """Operations that could share a launch.

    Attributes:
        group: the operations. judgement: whether they can share a launch, and why.
        separate: the cost of each as a launch of its own. fused: of one launch.
        score: weighted. verdict: the judgement, unless the savings are too small.
        reason: for the verdict.
        offer: what computes the group. compiled: facts about that kernel; None without one, or where nothing was compiled.
        registers: of a thread, of the compiled kernel or estimated.
    """

    group: Group
    judgement: Judgement
    separate: tuple[Cost, ...]
    fused: Cost
    score: Score
    verdict: Verdict
    reason: str
    offer: Offer | None = None
    compiled: Compiled | None = None
    registers: int = 0

    @property
    def saved_bytes(self) -> float:
        """Bytes that need not be read and written."""
        return sum(one.bytes for one in self.separate) - self.fused.bytes

    @property
    def saved_us(self) -> float:
        """Predicted time saved."""
        return sum(one.time_us for one in self.separate) - self.fused.time_us

    @property
    def speedup(self) -> float:
        """Predicted time of the separate launches over that of one."""
        return sum(one.time_us for one in self.separate) / self.fused.time_us

    @property
    def saved_launches(self) -> int:
        """Launches saved."""
        return len(self.separate) - 1


@dataclass(frozen=True)
class Total:
    """Launches, bytes and predicted time of a graph, with its repetitions."""

    launches: int
    bytes: float
    time_us: float


@dataclass(frozen=True)
class Report:
    """The fusion report.

    Attributes:
        graph, machine: what was analysed, and for which GPU.
        operations: each with its cost as a launch of its own.
        pairs: neighbouring operations, each judged by itself.
        plan: the groups of the graph after fusion, in its order, with a candidate for each that has several operations.
        bundled: groups that bundled kernels compute, in one launch or in several, without those within a group of the plan that
            has a kernel.
    """

    graph: Graph
    machine: Machine
    weights: Weights
    thresholds: Thresholds
    operations: tuple[tuple[Group, Cost], ...]
    pairs: tuple[Candidate, ...]
    plan: tuple[tuple[Group, Cost, Candidate | None], ...] = field(default=())
    bundled: tuple[tuple[Group, Offer], ...] = ()

    @property
    def groups(self) -> tuple[Candidate, ...]:
        """The groups of several operations, those that save most first."""
        found = [candidate for _, _, candidate in self.plan if candidate is not None]
        return tuple(sorted(found, key=lambda c: -c.saved_us))

    @property
    def before(self) -> Total:
        """The graph with one launch for each operation."""
        return self._total([cost for _, cost in self.operations])

    @property
    def after(self) -> Total:
        """The graph with one launch for each group."""
        return self._total([cost for _, cost, _ in self.plan])

    def _total(self, costs: list[Cost]) -> Total:
        n = self.graph.repeat
        return Total(n * len(costs), n * sum(c.bytes for c in costs), n * sum(c.time_us for c in costs))


def analyse(
    graph: Graph,
    machine: Machine,
    weights: Weights = WEIGHTS,
    thresholds: Thresholds = THRESHOLDS,
    compiled: Callable[[Offer, Machine], Compiled | None] = lambda offer, machine: None,
) -> Report:
    """The report of a graph.

    Args:
        compiled: facts about the bundled kernel of an offer, such as :func:`compiled_kernel`.
    """
    alone = {operation.name: Group.of(graph, [operation]) for operation in graph.launches}
    costs = {name: cost(group, machine) for name, group in alone.items()}

    def candidate(group: Group, judgement: Judgement, *, compile_it: bool = False) -> Candidate:
        separate = [costs[operation.name] for operation in group.operations]
        fused, found = cost(group, machine), offer(group, machine.target)
        facts = compiled(found, machine) if compile_it and found is not None and found.kernel else None
        registers = facts.registers if facts else estimated_registers(group)
        total = score(group, separate, fused, judgement.complexity, found is not None, weights, thresholds, registers)
        verdict, reason = judgement.verdict, judgement.reason
        speedup = sum(one.time_us for one in separate) / fused.time_us
        if verdict != "DO NOT FUSE" and speedup < thresholds.speedup:
            verdict, reason = "DO NOT FUSE", f"the predicted speed-up is {speedup:.4f}, below {thresholds.speedup:g}"
        elif verdict != "DO NOT FUSE" and total.total < thresholds.score:
            verdict, reason = "DO NOT FUSE", f"the score {total.total:.2f} is below {thresholds.score:g}"
        return Candidate(group, judgement, tuple(separate), fused, total, verdict, reason, found, facts, registers)

    refused: set[frozenset[str]] = set()

    def accepted(group: Group, judgement: Judgement) -> bool:
        return group.names not in refused and candidate(group, judgement).verdict != "DO NOT FUSE"

    while True:
        merged = [
            (group, cost(group, machine), None if judgement is None else candidate(group, judgement, compile_it=True))
            for group, judgement in plan(graph, machine, accepted)
        ]
        # the registers of the compiled kernel may be more than the estimate with which a group was accepted
        below = {group.names for group, _, found in merged if found is not None and found.verdict == "DO NOT FUSE"}
        if not below:
            break
        refused |= below
    judged = [candidate(pair.first | pair.second, pair.judgement) for pair in pairs(graph, machine)]
    operations = tuple((group, costs[name]) for name, group in alone.items())
    computed = [group.names for group, _, found in merged if found is not None and found.offer and found.offer.kernel]
    offered = bundled(graph, machine.target)
    others = tuple((group, found) for group, found in offered if not any(group.names <= names for names in computed))
    return Report(graph, machine, weights, thresholds, operations, tuple(judged), tuple(merged), others)


def compiled_kernel(found: Offer, machine: Machine) -> Compiled | None:
    """Registers, shared memory and occupancy of the variant and tile of a bundled kernel that are chosen on the GPU.

    Where the choice is the unfused baseline, they are those of the last fused variant. None where the kernel cannot be compiled
    or disassembled here.
    """
    from ptxkit.inspect.subject import Settings, subjects
    from ptxkit.targets.gpus import facts_of
    from ptxkit.workload import registry
    from ptxkit.workload.choice import choose

    names = fused_variants(found.kernel, machine.target)[::-1]
    tile: Mapping[str, str] = {}
    with suppress(PtxkitError):  # no variant for these sizes: there is no machine code either
        workload = registry.get(found.kernel)(**found.sizes).on(facts_of(machine.gpu))
        chosen = choose(workload, target=machine.target).chosen
        if chosen.name in names:
            names = [chosen.name]
            tile = {name: str(value) for name, value in chosen.resolved.tile.items()}
    settings = Settings(machine.target, {name: str(value) for name, value in found.sizes.items()}, tile)
    for name in names:
        try:
            built = subjects(f"{found.kernel}:{name}", settings)
        except PtxkitError:
            continue  # a variant without a tile for these sizes; or no disassembler, and the estimate stays
        most = max(built, key=lambda subject: subject.function.resources.registers)
        shared = most.function.resources.shared_bytes + most.dynamic_shared_bytes
        return Compiled(name, most.function.resources.registers, shared, most.occupancy.fraction)
    return None
