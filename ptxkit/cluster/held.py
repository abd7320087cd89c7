"""What a worker keeps for a command of a client between its tasks: processes, which end with the command."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeVar

from ptxkit.errors import PtxkitError, UnavailableError
from ptxkit.processes.child import ChildDied

IDLE_S = 120.0  # after which a worker ends the processes of a command whose client has not released them
RELEASE_S = 1.0  # to end processes; a thread does it, which may take longer


class WorkerFailed(PtxkitError):
    """A process of the worker died; what it executed may be the cause."""


class WorkerUnfit(PtxkitError):
    """The worker cannot be used for the command, whatever the task."""


class WorkerThrottled(PtxkitError):
    """The GPU of the worker throttles, so that its time says nothing; another worker executes the task, or this one later."""


class Processes(Protocol):
    """Processes that execute the tasks of one command."""

    def end(self) -> None:
        """End all of them; called from any thread."""


P = TypeVar("P", bound=Processes)


@dataclass
class _Held:
    """The processes of one command on this worker, and how many tasks use them."""

    processes: Any
    users: int = 0
    used_at: float = field(default_factory=time.monotonic)


_lock = threading.Lock()
_held: dict[str, _Held] = {}
_released: set[str] = set()


def count() -> int:
    """For how many commands this worker keeps processes."""
    return len(_held)


@contextmanager
def using(ticket: str, make: Callable[[], P]) -> Iterator[P]:
    """The processes of a command inside a ``with`` block.

    Args:
        ticket: identifies the run of the command: another run starts new processes, which read descriptions again.
        make: starts processes if there are none.

    Raises:
        WorkerUnfit: the command has ended, or the block raised :class:`~ptxkit.errors.UnavailableError`.
        WorkerFailed: a process died in the block; the next task starts others.
    """
    _start_reaper()
    with _lock:
        if ticket in _released:
            raise WorkerUnfit("the command has ended")
        held = _held.get(ticket) or _Held(make())
        _held[ticket] = held
        held.users += 1
    try:
        yield held.processes
    except BrokenProcessPool:
        with _lock:
            if _held.get(ticket) is held:
                del _held[ticket]
        raise WorkerFailed("a process that compiles or emulates died; is there enough memory?") from None
    except ChildDied as error:
        raise WorkerFailed(str(error)) from None
    except UnavailableError as error:
        raise WorkerUnfit(str(error)) from None
    finally:
        with _lock:
            held.users -= 1
            held.used_at = time.monotonic()


def release(ticket: str) -> None:
    """End the processes of a command."""
    with _lock:
        _released.add(ticket)
        held = _held.pop(ticket, None)
    if held is not None:
        ending = threading.Thread(target=held.processes.end, daemon=True)  # waits for what is being compiled
        ending.start()
        ending.join(RELEASE_S)


@cache
def _start_reaper() -> None:
    """Start the thread that ends the processes of commands whose client was killed; if it comes back, others are started."""
    threading.Thread(target=_reap, daemon=True).start()


def _reap() -> None:
    while True:
        time.sleep(IDLE_S / 4)
        with _lock:
            limit = time.monotonic() - IDLE_S
            idle = [ticket for ticket, held in _held.items() if not held.users and held.used_at < limit]
            ended = [_held.pop(ticket) for ticket in idle]
        for held in ended:
            held.processes.end()
