"""Streams of the emulator: the order of launches on them, and the search for launches that nothing puts in order.

A launch in the emulator is executed when it is made, so that launches on one stream keep their order, and launches on different
streams one of the orders that a GPU may choose. With the race check, the bytes of global memory that each launch touches are
compared with those of earlier launches that are not ordered before it. The order follows from vector clocks: each stream
counts its launches, an event holds what its stream has seen, and a stream that waits for an event has seen that, too. What the
host has waited for is before everything that it launches afterwards.

L. Lamport, "Time, clocks, and the ordering of events in a distributed system", 1978; vector clocks: C. Fidge, F. Mattern, 1988.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ptxkit.emulator.memory.allocations import label
from ptxkit.emulator.memory.footprint import Footprint
from ptxkit.errors import LaunchError, RaceError, UsageError

Clock = dict[int, int]
"""Number of a stream -> how many of its launches are known to be over."""


@dataclass(frozen=True)
class Event:
    """A point in the order of a stream: everything that the stream had to do when :meth:`Stream.record` was called."""

    order: StreamOrder
    seen: Mapping[int, int]

    def sync(self) -> None:
        """The host waits for the event: what it launches afterwards, on any stream, is in order.

        Raises:
            LaunchError: a graph is being captured.
        """
        self.order.host_waits(self.seen)


class Stream:
    """A stream of the emulator, for ``stream=`` of a launch. ``device.stream()`` makes one.

    Its methods have the names of the streams of cuda.core, which ``device.stream()`` of a GPU returns.

    Attributes:
        name: for messages.
    """

    def __init__(self, order: StreamOrder, number: int, name: str) -> None:
        self.order = order
        self.number = number
        self.name = name
        self.clock: Clock = {}

    def record(self) -> Event:
        """An event after everything on this stream so far, as ``cudaEventRecord`` makes it.

        Raises:
            LaunchError: a graph is being captured.
        """
        self.order.refuse_in_graph()
        with self.order.lock:
            return Event(self.order, {**_joined(self.clock, self.order.host)})

    def wait(self, event_or_stream: Event | Stream) -> None:
        """Later launches on this stream come after an event, as ``cudaStreamWaitEvent`` puts it, or after all of a stream so
        far.

        Raises:
            UsageError: it is neither an event nor a stream of this device. LaunchError: a graph is being captured.
        """
        self.order.refuse_in_graph()
        event = event_or_stream.record() if isinstance(event_or_stream, Stream) else event_or_stream
        if not isinstance(event, Event) or event.order is not self.order:
            raise UsageError(
                f"a stream waits for an event or a stream of its own device, not for {event_or_stream!r}; write "
                "event = first.record(); second.wait(event)"
            )
        with self.order.lock:
            self.clock = _joined(self.clock, event.seen)

    def sync(self) -> None:
        """The host waits for everything on this stream: what it launches afterwards, on any stream, is in order.

        Raises:
            LaunchError: a graph is being captured.
        """
        self.record().sync()

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"


@dataclass(frozen=True)
class StreamHazard:
    """Two launches on different streams that touch the same bytes, at least one of them writing, with nothing in between.

    Attributes:
        what: ``"read-after-write"``, ``"write-after-read"``, ``"write-after-write"``, earlier and later as emulated.
        later, earlier: names of the kernels. later_stream, earlier_stream: names of the streams.
        array: name and size of the allocation. start: its first byte that both touch. nbytes: how many there are.
    """

    what: str
    later: str
    later_stream: str
    earlier: str
    earlier_stream: str
    array: str
    start: int
    nbytes: int

    def __str__(self) -> str:
        late, early = {
            "read-after-write": ("reads", "has written"),
            "write-after-read": ("writes", "has read"),
            "write-after-write": ("writes", "has written"),
        }[self.what]
        return (
            f"{self.what}: {self.later} on stream {self.later_stream} {late} {self.nbytes:,} bytes of {self.array}, from byte "
            f"{self.start:,} on, which {self.earlier} on stream {self.earlier_stream} {early}, and nothing puts the two "
            "launches in order; record an event after the first, and let the other stream wait for it: "
            "event = first.record(); second.wait(event)"
        )


@dataclass(frozen=True)
class _Launched:
    """An earlier launch: the stream, its count there, the kernel, and what it touched."""

    stream: Stream
    count: int
    kernel: str
    footprint: Footprint


class StreamOrder:
    """The streams of one device.

    Attributes:
        own: the stream of launches without ``stream=``.
        host: what the host has waited for.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.host: Clock = {}
        self.own = Stream(self, 0, "own")
        self._streams = [self.own]
        self._launched: list[_Launched] = []
        self._freed: list[int] = []  # addresses that these launches may have touched
        self._comparing = False
        self._capture = threading.local()  # of each thread

    @property
    def captured(self) -> list[Callable[[], None]] | None:
        """The launches so far of the graph that this thread captures, or None."""
        found: list[Callable[[], None]] | None = getattr(self._capture, "launches", None)
        return found

    @captured.setter
    def captured(self, launches: list[Callable[[], None]] | None) -> None:
        self._capture.launches = launches

    def refuse_in_graph(self) -> None:
        """Raise LaunchError for what a graph cannot hold, where this thread captures one."""
        if self.captured is not None:
            raise LaunchError(
                "a graph holds launches only; copy, measure, record events and synchronize before it is captured, or after it "
                "has run"
            )

    def make(self, name: str = "") -> Stream:
        """A new stream, without work."""
        with self.lock:
            number = len(self._streams)
            made = Stream(self, number, name or f"#{number}")
            self._streams.append(made)
        return made

    def of(self, stream: object, kernel: str) -> Stream:
        """The stream of a launch: what ``stream=`` was given, or the device's own.

        Raises:
            LaunchError: it is no stream of this device.
        """
        if stream is None:
            return self.own
        if not isinstance(stream, Stream) or stream.order is not self:
            raise LaunchError(
                f"{kernel}: stream= is a stream of this device in the emulator, not {stream!r}; write stream=device.stream()"
            )
        return stream

    def footprint(self, racecheck: object) -> Footprint | None:
        """What records the bytes of a launch; None where there is one stream only, or no race check."""
        return Footprint() if racecheck and len(self._streams) > 1 else None

    def launched(self, stream: Stream, kernel: str, footprint: Footprint | None) -> None:
        """A launch on a stream is over.

        Raises:
            RaceError: it touches bytes of an earlier launch that is not ordered before it, and one of them writes.
        """
        with self.lock:
            self._forget_freed()
            stream.clock = _joined(stream.clock, self.host)
            stream.clock[stream.number] = count = stream.clock.get(stream.number, 0) + 1
            if footprint is None:
                return
            self._comparing = True
            try:
                hazards = self._compare(stream, kernel, footprint, count)
            finally:
                self._comparing = False
        if hazards:
            more = f" (and {len(hazards) - 1} more)" if len(hazards) > 1 else ""
            raise RaceError(f"{hazards[0]}{more}", tuple(hazards))

    def _compare(self, stream: Stream, kernel: str, footprint: Footprint, count: int) -> list[StreamHazard]:
        """The conflicts of a launch with earlier ones, among which it is from now on."""
        hazards = [
            hazard
            for earlier in self._launched
            if stream.clock.get(earlier.stream.number, 0) < earlier.count
            for hazard in _hazards(stream, kernel, footprint, earlier)
        ]
        for e in self._launched:
            if (
                stream.clock.get(e.stream.number, 0) >= e.count
            ):  # what conflicts with it conflicts with this one, too
                e.footprint.forget(footprint)
        self._launched = [e for e in self._launched if e.footprint.marks and not self._is_before_all(e)]
        self._launched.append(_Launched(stream, count, kernel, footprint))
        return hazards

    def freed(self, address: int) -> None:
        """The allocation at ``address`` is freed: what launches have touched there is forgotten.

        The garbage collector may call this while a thread compares launches, or while one changes the memory: the next launch
        forgets it then. No later allocation gets the address.
        """
        self._freed.append(address)
        if self.lock.acquire(blocking=False):
            try:
                if not self._comparing:
                    self._forget_freed()
            finally:
                self.lock.release()

    def _forget_freed(self) -> None:
        freed, self._freed = self._freed, []
        for address in freed:
            for e in self._launched:
                e.footprint.release(address)

    def _is_before_all(self, earlier: _Launched) -> bool:
        """Whether every later launch comes after it."""
        if self.host.get(earlier.stream.number, 0) >= earlier.count:
            return True
        return all(s.clock.get(earlier.stream.number, 0) >= earlier.count for s in self._streams)

    def host_waits(self, seen: Mapping[int, int]) -> None:
        """The host has waited for these launches.

        Raises:
            LaunchError: a graph is being captured.
        """
        self.refuse_in_graph()
        with self.lock:
            self.host = _joined(self.host, seen)

    def synchronized(self) -> None:
        """The host has waited for everything.

        Raises:
            LaunchError: a graph is being captured.
        """
        self.refuse_in_graph()
        with self.lock:
            for stream in self._streams:
                self.host = _joined(self.host, stream.clock)
            self._launched.clear()


def _joined(clock: Mapping[int, int], other: Mapping[int, int]) -> Clock:
    return {n: max(clock.get(n, 0), other.get(n, 0)) for n in {*clock, *other}}


def _hazards(stream: Stream, kernel: str, footprint: Footprint, earlier: _Launched) -> list[StreamHazard]:
    found = []
    for a, theirs, mine, start, nbytes in footprint.conflicts(earlier.footprint):
        words = [("read" if kind == "read" else "write") for kind in (mine, theirs)]
        what = "-after-".join(words)
        array = label(a.name, a.nbytes)
        found.append(StreamHazard(what, kernel, stream.name, earlier.kernel, earlier.stream.name, array, start, nbytes))
    return found
