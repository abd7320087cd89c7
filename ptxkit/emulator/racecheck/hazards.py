"""The hazards that the race check found, as sentences, collected over the waves of a launch."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ptxkit.emulator.simt.where import Where, source_lines
from ptxkit.errors import FaultError, RaceError
from ptxkit.isa.model import Instruction

SHOWN = 20
"""The maximum number of pairs of source lines that a message lists."""


EXIT = "access-after-exit"
"""The kind of hazard for an access to the shared memory of a CTA of the cluster that may have exited."""

START = "access-before-start"
"""The kind of hazard for an access to the shared memory of a CTA of the cluster that may not have started."""

_ARRIVING = "arrive", "arrive_drop"
_SYNCHRONISING = *_ARRIVING, "test_wait", "try_wait"

UNFENCED = "missing-proxy-fence"
"""The kind of hazard for a read through the async proxy of a write through the generic proxy that it may not see."""


@dataclass(frozen=True)
class Hazard:
    """Two instructions that access the same shared memory, at least one of them writing, without synchronisation in between.

    They are the first pair that was found for two source lines. For ``access-after-exit``, ``later`` is the access to the
    shared memory, and ``earlier_thread`` the CTA that may have exited; for ``access-before-start``, it is the CTA that may not
    have started. For ``missing-proxy-fence`` the two are in order, but no ``fence.proxy.async`` lies between them.

    Attributes:
        what: ``"read-after-write"``, ``"write-after-read"`` or ``"write-after-write"``, earlier and later as emulated; or
            ``"access-after-exit"``, ``"access-before-start"`` or ``"missing-proxy-fence"``.
        later, earlier: PTX line, source line and opcode of the instructions.
        later_thread, earlier_thread: thread, warp and CTA; or the asynchronous operation.
        address: of the first byte in the CTA's shared memory.
        place: the same in words, with the variable that it lies in.
        fix: the missing synchronisation, as an instruction to the reader.
        count: cells for which the two were found out of order.
        verbs: what earlier and later did, in words; () for accesses to shared memory.
    """

    what: str
    later: str
    later_thread: str
    earlier: str
    earlier_thread: str
    address: int
    place: str
    fix: str
    count: int
    verbs: tuple[str, ...] = ()

    def __str__(self) -> str:
        late = "reads" if self.what == "read-after-write" else "writes"
        early = "read" if self.what == "write-after-read" else "wrote"
        if self.verbs:
            early, late = self.verbs
        times = f", {self.count:,} times" if self.count > 1 else ""
        if self.what == EXIT:
            return (
                f"{self.later}: {self.what}: {self.later_thread} accesses {self.place} of {self.earlier_thread}, "
                f"which may have exited: nothing puts the access before {self.earlier}{times}; {self.fix}"
            )
        if self.what == START:
            return (
                f"{self.later}: {self.what}: {self.later_thread} accesses {self.place} of {self.earlier_thread}, "
                f"which may not have started: nothing puts the access after {self.earlier}{times}; {self.fix}"
            )
        if self.what == UNFENCED:
            return (
                f"{self.later}: {self.what}: {self.later_thread} reads {self.place} through the async proxy, which "
                f"{self.earlier_thread} wrote at {self.earlier} with no fence.proxy.async that orders the two{times}; "
                f"{self.fix}"
            )
        return (
            f"{self.later}: {self.what}: {self.later_thread} {late} {self.place}, which {self.earlier_thread} {early} at "
            f"{self.earlier} with nothing that puts the two in order{times}; {self.fix}"
        )


class Hazards:
    """The hazards of a launch.

    Attributes:
        lanes: threads are checked instead of warps.
        proxied: the kernel has operations that read shared memory through the async proxy.
        ordered: the kernel has fences, or accesses that acquire or release.
        copies_only: only reads of what an asynchronous operation has written are reported, once it is complete.
        tensor_memory: accesses to tensor memory are checked, too.
        initialisations: mbarrier.init is distinguished from other accesses, because fence.mbarrier_init may order nothing else.
    """

    def __init__(
        self, kernel: str, instructions: Iterable[Instruction], lanes: bool = False, copies_only: bool = False
    ) -> None:
        self.kernel = kernel
        self.copies_only = copies_only
        self.lanes = lanes
        instructions = tuple(instructions)
        self.proxied = any(reads_through_async_proxy(i) for i in instructions)
        self.ordered = any(orders(i) for i in instructions)
        self.tensor_memory = not copies_only and any(i.name == "tcgen05" for i in instructions)
        relaxed = any(i.name in ("barrier", "mbarrier") and "relaxed" in i.modifiers for i in instructions)
        fenced = any(i.opcode.startswith("fence.mbarrier_init") for i in instructions)
        self.scoped = not copies_only and arrives_elsewhere(instructions)
        self.initialisations = not copies_only and fenced and (relaxed or self.ordered)
        self.found: dict[tuple[str, ...], Hazard] = {}
        self._lock = threading.Lock()

    def add(self, h: Hazard, later: Where, earlier: Where) -> None:
        """Add a hazard. Hazards of the same two source lines are counted together, since loops may be unrolled."""
        key = h.what, *_line(later), *_line(earlier)
        with self._lock:
            known = self.found.get(key)
            self.found[key] = h if known is None else replace(known, count=known.count + h.count)

    def finish(self, fault: FaultError | None = None) -> None:
        """Called at the end of the launch.

        Raises:
            RaceError: hazards were found; ``fault`` is the error that ended the launch, if any.
        """
        if not self.found:
            return
        hazards = tuple(self.found.values())
        lines = [str(h) for h in hazards[:SHOWN]]
        if len(hazards) > SHOWN:
            lines.append(f"and {len(hazards) - SHOWN} more pairs of lines")
        if fault is not None:
            lines.append(f"and the launch failed: {fault}")
        many = f"{len(hazards)} races" if len(hazards) > 1 else "a race"
        spaces = [space for space in ("shared", "tensor") if any(bool(h.verbs) == (space == "tensor") for h in hazards)]
        memory = f"{' and '.join(spaces)} memory"
        error = RaceError(f"{self.kernel}: {many} in {memory}:\n  " + "\n  ".join(lines), hazards)
        raise error from fault


def _line(where: Where) -> tuple[str, ...]:
    i = where.instruction
    return (i.name, *source_lines(i)) if i.loc else (i.name, str(i.line))


def fills_shared(i: Instruction) -> bool:
    """Whether an instruction writes shared memory asynchronously."""
    if i.name == "cp":
        spaces = [m.partition("::")[0] for m in i.modifiers]
        return "async" in spaces and next((s for s in spaces if s in ("shared", "global")), "") == "shared"
    return i.name in ("st", "red") and i.opcode.startswith((f"{i.name}.async", f"{i.name}.weak.async"))


def reads_through_async_proxy(i: Instruction) -> bool:
    """Whether an instruction may read shared memory through the async proxy."""
    if i.name == "cp" and "bulk" in i.modifiers:
        spaces = [m.partition("::")[0] for m in i.modifiers]
        return [s for s in spaces if s in ("shared", "global")][1:] == ["shared"]
    return i.name == "wgmma" or i.opcode.startswith(("tcgen05.mma", "tcgen05.cp"))


def arrives_elsewhere(instructions: Iterable[Instruction]) -> bool:
    """Whether threads may arrive at mbarriers of other CTAs, and an arrival or a wait may have the scope ``.cta``."""
    uses = [i for i in instructions if i.name == "mbarrier" and i.modifiers[0] in _SYNCHRONISING]
    arrivals = [i for i in uses if i.modifiers[0] in _ARRIVING]
    remote = any("shared" not in i.modifiers and "shared::cta" not in i.modifiers for i in arrivals)
    return remote and any("cluster" not in i.modifiers for i in uses)


def orders(i: Instruction) -> bool:
    """Whether an instruction may put accesses of different threads in order through memory."""
    if i.name in ("fence", "membar"):
        return "proxy" not in i.opcode and "mbarrier_init" not in i.opcode
    return i.name in ("ld", "st", "atom", "red") and any(s in i.opcode for s in (".acq", ".release"))
