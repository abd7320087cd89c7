"""tcgen05.alloc, tcgen05.dealloc and tcgen05.relinquish_alloc_permit. PTX ISA, "Tensor Memory Allocation and Management"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxkit.emulator.access.shared_memory import SharedSite
from ptxkit.emulator.access.site import widen
from ptxkit.emulator.arrays import Index, Lanes
from ptxkit.emulator.instructions.warp_gate import WarpGate
from ptxkit.emulator.simt.operands import operand_lanes
from ptxkit.emulator.simt.step import U32, Binding, Gate, Gated, Step
from ptxkit.emulator.simt.table import blocking
from ptxkit.emulator.simt.threads import Group, Synchroniser, WaveState
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.sync.mbarrier_instructions import address_type
from ptxkit.emulator.tensor_core.collective import collective
from ptxkit.emulator.tensor_core.tcgen05.accesses import BANDS, COLUMNS
from ptxkit.emulator.tensor_core.tcgen05.fences import Fences
from ptxkit.emulator.tensor_core.tcgen05.memory import UNIT, TensorMemory, address
from ptxkit.emulator.tensor_core.tcgen05.warps import Warps, pair, require_target, warp_name, warp_threads
from ptxkit.errors import MemoryFault, TrapError

_GROUPS = "cta_group::1 cta_group::2"


@dataclass(frozen=True)
class _Request:
    """A warp that has requested columns and waits for them; ``group`` is 1 or 2 CTAs, ``who`` the warp in words."""

    cta: int
    warp: int
    count: int
    group: int
    where: Where
    who: str


class Allocator(Synchroniser):
    """The warps of a wave that wait for columns.

    Attributes:
        granted: (CTA, warp) -> first column, until the warp's instruction has written it.
        relinquished: CTA -> the instruction by which it gave up the right to allocate.
    """

    def __init__(self, wave: WaveState) -> None:
        self.wave = wave
        self.memory = wave.part(TensorMemory)
        self.granted: dict[tuple[int, int], int] = {}
        self.relinquished: dict[int, Where] = {}
        self._requests: list[_Request] = []
        self._sleepers: list[tuple[Group, int]] = []

    def request(self, group: Group, request: _Request) -> None:
        """A warp requests columns.

        Raises:
            TrapError: a number of columns that cannot be allocated, or the CTA has given up the right.
        """
        who = request.who
        n = request.count
        if n < UNIT or n > COLUMNS or n & (n - 1):
            raise TrapError(
                f"{request.where}: {who} allocates {n} columns; it must be a power of two from {UNIT} to {COLUMNS}"
            )
        if request.cta in self.relinquished:
            raise TrapError(
                f"{request.where}: {who} allocates tensor memory after its CTA gave up the right to at "
                f"{self.relinquished[request.cta]}"
            )
        self.memory.use_group(request.cta, request.group, request.where)
        if request.group == 2:
            pair(group, request.cta, request.where)
        self._requests.append(request)

    def grant(self) -> None:
        """Serve the requests for which there are columns, in order."""
        left: list[_Request] = []
        todo = self._requests
        while todo:
            first, todo = todo[0], todo[1:]
            together = [first]
            if first.group == 2:
                peer = first.cta + (-1 if self.wave.cluster_rank[first.cta] % 2 else 1)
                other = next((r for r in todo if r.cta == peer and r.group == 2), None)
                if other is None:
                    left.append(first)
                    continue
                if other.count != first.count:
                    raise TrapError(
                        f"{first.where}: the CTAs of the pair of CTA {self.wave.cta_coordinates(first.cta)} allocate "
                        f"{first.count} and {other.count} columns; both must ask for the same"
                    )
                todo = [r for r in todo if r is not other]
                together.append(other)
            ctas = [r.cta for r in together]
            start = self.memory.free_range(ctas, first.count)
            if start is None:
                left.extend(together)
                continue
            self.memory.allocate(ctas, start, first.count, first.where)
            for r in together:
                self.granted[r.cta, r.warp] = start
                self._note(r, start, [r, *(other for other in together if other is not r)])
        self._requests = left

    def _note(self, r: _Request, start: int, together: list[_Request]) -> None:
        """Others have to come after the allocation, which the CTAs of a pair make ``together``."""
        wave = self.wave
        threads = np.concatenate([warp_threads(a.cta * wave.shape[1] + a.warp) for a in together])
        cells = self.memory.regions(r.cta, range(BANDS), start, start + r.count)
        for races in wave.races:
            if races.tensor_memory is not None:
                races.tensor_memory.record("allocate", r.where, r.who, threads, cells)

    def sleep(self, group: Group, block: int) -> None:
        """``group`` waits at the gate of ``block`` for columns."""
        self._sleepers.append((group, block))

    def done(self, group: Group) -> Lanes:
        """Lanes of ``group`` whose warps have got columns, in its selection."""
        mask = np.zeros(self.wave.shape, np.bool_)
        for cta, warp in self.granted:
            mask[cta, warp] = True
        return np.ascontiguousarray(group.select(mask))

    def wake(self) -> None:
        """Columns have become free, or the other CTA of a pair has come."""
        self.grant()
        sleepers, self._sleepers = self._sleepers, []
        for group, block in sleepers:
            out, left = self.wave.split(group, self.done(group))
            if left is not None:
                self._sleepers.append((left, block))
            if out is not None:
                self.wave.wake(out, block, passed=True)

    def waiting(self) -> list[tuple[Group, int]]:
        """See :class:`~ptxkit.emulator.simt.threads.Synchroniser`."""
        return list(self._sleepers)

    def note(self, group: Group, instructions: list[int]) -> str:
        """See :class:`~ptxkit.emulator.simt.threads.Synchroniser`."""
        if all(g is not group for g, _ in self._sleepers):
            return ""
        here = np.any(group.full_mask(), -1)
        r = next(r for r in self._requests if here[r.cta, r.warp])
        held = [f"{a.count} by CTA {self.wave.cta_coordinates(a.cta)} at {a.where}" for a in self.memory.held(r.cta)]
        text = f", waits for {r.count} columns of tensor memory"
        if r.group == 2 and not any(q.cta != r.cta and q.cta // 2 == r.cta // 2 for q in self._requests):
            return f"{text}, and for the other CTA of its pair to allocate them too"
        return f"{text}; allocated on its SM: {'; '.join(held) or 'none'}"


class _AllocGate(Gate):
    """Lets the warps pass that have got their columns."""

    converges = True
    aligned = True

    def __init__(self, b: Binding) -> None:
        self.warps = WarpGate(b.where, None)
        self.columns = b.operands[1]
        self.reads = (self.columns,)
        self.where = b.where
        self.group = int(b.form["group"][-1])

    def enter(self, group: Group, block: int) -> Group | None:
        whole = self.warps.enter(group, block)
        if whole is None:
            return None
        warps = Warps(whole, self.where)
        allocator = whole.wave.part(Allocator)
        counts = warps.uniform(operand_lanes(whole, self.columns, U32.dtype), "the number of columns")
        for cta, warp, count in zip(warps.cta.tolist(), warps.warp.tolist(), counts.tolist(), strict=True):
            allocator.request(whole, _Request(cta, warp, count, self.group, self.where, warp_name(whole, cta, warp)))
        whole.wave.launch.machine.version += 1
        allocator.sleep(whole, block)
        allocator.wake()
        return None


@blocking("tcgen05.alloc.<group>.sync.aligned{.exclusive}{.<space>}.b32", group=_GROUPS, space="shared::cta")
def _alloc(b: Binding) -> Gated:
    require_target(b)
    base, offset = b.address(b.operands[0])
    site = SharedSite(b.where, b.index, offset, np.dtype("u4"), 1, True)

    def write(x: Group, to: Lanes, _: Lanes) -> None:
        warps = Warps(x, b.where)
        granted = x.wave.part(Allocator).granted
        starts = [granted.pop((int(c), int(w))) for c, w in zip(warps.cta, warps.warp, strict=True)]
        values = np.repeat(np.array(starts, np.uint32)[:, None, None], 32, axis=2)
        site.store(x, widen(to), warps.spread(values))

    return Gated(_AllocGate(b), Step(write, ((base, address_type(b, base)), (b.operands[1], U32))))


@blocking("tcgen05.dealloc.<group>.sync.aligned.b32", group=_GROUPS)
def _dealloc(b: Binding) -> Step | Gated:
    require_target(b)
    where, group = b.where, int(b.form["group"][-1])

    def free(x: Group, at: Index, columns: Lanes) -> None:
        warps = Warps(x, where)
        memory = x.wave.part(TensorMemory)
        starts, counts = warps.uniform(at, "the address"), warps.uniform(columns, "the number of columns")
        for w, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
            cta = int(warps.cta[w])
            memory.use_group(cta, group, where)
            lane, column = address(start)
            if lane:
                raise MemoryFault(
                    f"{where}: {warps.name(w)} deallocates the address {start:#010x}, which names lane {lane}; "
                    "tcgen05.dealloc takes the address that tcgen05.alloc has written, which names lane 0"
                )
            found = memory.allocation(cta, column)
            if found is None or found.count != count:
                raise MemoryFault(f"{where}: {warps.name(w)} deallocates {_refusal(memory, cta, column, count)}")
            cells, who = memory.regions(cta, range(BANDS), column, column + count), warps.name(w)
            memory.accesses.require(("write", "read", "load", "store"), where, who, "deallocates", cells)
            row = cta * x.wave.shape[1] + int(warps.warp[w])
            x.wave.part(Fences).forget(cells)
            for races in x.wave.races:
                if races.tensor_memory is not None:
                    races.tensor_memory.compare("deallocate", where, who, warp_threads(row), cells)
                    races.tensor_memory.forget(cells)
            memory.release(found)
        x.wave.launch.machine.version += 1
        x.wave.part(Allocator).wake()

    return collective(b, Step(free, ((b.operands[0], U32), (b.operands[1], U32))))


def _refusal(memory: TensorMemory, cta: int, column: int, count: int) -> str:
    found = memory.allocation(cta, column)
    if found is not None:
        return f"{count} columns from column {column} on, where {found.where} has allocated {found.count}"
    owner = int(memory.owner[memory.sm[cta], column]) - 1 if column < COLUMNS else -1
    if owner < 0:
        return f"{count} columns from column {column} on, which are not allocated: freed already, or never allocated"
    if owner != cta:
        return f"column {column}, which CTA {memory.wave.cta_coordinates(owner)} has allocated"
    return f"{count} columns from column {column} on, which is not where an allocation begins"


@blocking("tcgen05.relinquish_alloc_permit.<group>.sync.aligned", group=_GROUPS)
def _relinquish(b: Binding) -> Step | Gated:
    require_target(b)
    where, group = b.where, int(b.form["group"][-1])

    def relinquish(x: Group) -> None:
        warps = Warps(x, where)
        for cta in warps.cta.tolist():
            x.wave.part(TensorMemory).use_group(cta, group, where)
            x.wave.part(Allocator).relinquished.setdefault(cta, where)

    return collective(b, Step(relinquish))
