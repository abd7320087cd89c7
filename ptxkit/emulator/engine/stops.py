"""What happens when a wave cannot or may not continue: the errors for deadlocks, limits and interruptions.

Each error lists where the threads of the wave are (:func:`ptxkit.emulator.engine.whereabouts.listing`).
"""

from __future__ import annotations

from typing import NoReturn

from ptxkit.emulator.engine.schedule import Schedule
from ptxkit.emulator.engine.whereabouts import listing
from ptxkit.errors import DeadlockError
from ptxkit.isa.mangled import base_name

LOOP_BLOCKS = 256
"""Number of blocks that are executed to find the most informative listing of a deadlock of polling loops."""


class StoppedError(Exception):
    """The launch is being interrupted; the message lists where the wave's threads are."""


def stop_reason(error: BaseException) -> str:
    """The first words of the message of a wave that ends because a signal handler raised ``error``."""
    return f"{error}," if str(error) else "interrupted"


def deadlocked(wave: Schedule, why: str, where: str = "", hint: str = "") -> NoReturn:
    """Raise the error for a deadlock.

    Args:
        wave: the wave of which no thread can continue.
        why: the reason, for the message.
        where: the listing of the groups, if it has been made before.
        hint: a last line, or "".
    """
    wave.flush_output()
    where = where or listing(wave)
    for s in wave.synchronisers:
        s.deadlocked()
    raise DeadlockError(f"{base_name(wave.launch.name)}: deadlock, {why}:\n  {where}" + (f"\n  {hint}" if hint else ""))


def not_resident(wave: Schedule) -> str:
    """For a deadlock of polling loops: the fix where one of them may wait for CTAs that have not started; "" if all have."""
    launch = wave.launch
    later = launch.ctas_after(wave.number)
    if not later:
        return ""
    resident = wave.shape[0]
    return (
        f"the grid is not resident at once: {resident} CTA(s) are, and {later} more do not start before these exit; if a "
        "thread waits for one of those, use a cooperative launch (cooperative=True, --cooperative), which makes all "
        f"{launch.ctas} CTAs resident or refuses the grid, or a grid of at most {resident} CTA(s)"
    )


def listing_of_loops(wave: Schedule) -> str:
    """The listing of a wave whose groups are all in polling loops, at the time when the most threads are at a known wait.

    The state of the loops repeats, so that executing a few more blocks changes nothing. Without this, a loop that polls an
    mbarrier would be listed at the instruction that it happens to have reached.
    """
    found, most = listing(wave), _threads_at_known_waits(wave)
    for _ in range(LOOP_BLOCKS):
        if not wave.ready:
            break
        key = next(iter(wave.ready))
        wave.step(wave.ready.pop(key), wave.blocks[key[1]])
        waiting = _threads_at_known_waits(wave)
        if waiting > most:
            found, most = listing(wave), waiting
    return found


def interrupted(wave: Schedule, why: str) -> str:
    """The message for a wave that is ended from outside: where its threads are, and how much they have executed."""
    wave.flush_output()
    if wave.running is not None and all(g is not wave.running[0] for g, _ in wave.standing()):
        wave.waiting[-1, wave.running[1]] = wave.running[0]  # so that it is listed; nothing is executed after this
    sizes = [len(b.instructions) for b in wave.blocks]
    executed = sum(t.executed(sizes) for t in wave.launch.tallies)
    kernel = base_name(wave.launch.name)
    threads = listing(wave, counts=True)
    return f"{kernel}: {why} after {executed:,} thread instructions; where its threads are:\n  {threads}"


def _threads_at_known_waits(wave: Schedule) -> int:
    """Number of threads at a wait that a synchroniser can describe."""
    return sum(g.lanes for g, b in wave.standing() if wave.waits_for(g, wave.blocks[b]))
