"""The candidates of a measurement: a kernel's variants and its peers, on several sets of the same buffers."""

from __future__ import annotations

import hashlib
import operator
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ptxkit.bench.measure import dropout
from ptxkit.bench.measure.library_accuracy import judged
from ptxkit.bench.peers.base import OnDevice
from ptxkit.bench.results.results import Accuracy, Row
from ptxkit.compiler.elf import machine_code
from ptxkit.errors import PtxkitError
from ptxkit.runtime.buffers import DeviceArray
from ptxkit.workload import execute
from ptxkit.workload.case import overwritten, reset_all, with_complaints
from ptxkit.workload.data import Prepared, not_prepared
from ptxkit.workload.launch import Generated
from ptxkit.workload.originals import digests_of
from ptxkit.workload.parallel import digest_of, in_threads
from ptxkit.workload.verify import Verdict, error_percentiles

if TYPE_CHECKING:
    from ptxkit.bench.peers.base import Peer
    from ptxkit.runtime.device import Device
    from ptxkit.targets import Target
    from ptxkit.workload.variant import Variant
    from ptxkit.workload.workload import Workload


Array = np.ndarray[Any, Any]
Digested = tuple[tuple[str, int], ...]
"""Outputs by name and digest, in the order of the workload."""

HASHED = 3
"""Candidates at most whose outputs are kept until their distribution of errors and their hash are computed."""


class BufferSets:
    """Several sets of the inputs of a workload on the device; all candidates read the same sets.

    Args:
        count: number of sets. target: target of the variants; None for that of the device.
        prepared: see :class:`~ptxkit.workload.data.Data`.

    Attributes:
        accuracies: of verified outputs of the first set, by their digests: candidates with the same results share one.

    Raises:
        UsageError: the sizes need more memory than there is.
    """

    def __init__(
        self,
        workload: Workload,
        device: Device,
        count: int,
        seed: int,
        target: Target | None = None,
        prepared: Callable[[Workload, int], Prepared | None] = not_prepared,
    ) -> None:
        workload = self.workload = workload.on(device.facts_for(target))
        self.device = device
        self.data = execute.Data(workload, seed, prepared=prepared)
        first = execute.Case(workload, device, data=self.data, target=target)
        others = (
            execute.Case(workload, device, data=self.data, target=target, originals=first.originals) for _ in range(1, count)
        )
        self.cases = [first, *others]
        self.accuracies: dict[Digested, Future[Accuracy]] = {}
        self._hashing: ThreadPoolExecutor | None = None
        self._hashed: deque[Future[Accuracy]] = deque()  # the latest ones

    def __len__(self) -> int:
        return len(self.cases)

    def overwritten(self) -> list[str]:
        """A sentence for each input of a set that is not an output and was changed."""
        return overwritten(self.cases)

    def reset(self, poison: int | None = None) -> None:
        """:meth:`ptxkit.workload.case.Case.reset` of all sets."""
        reset_all(self.cases, poison)

    def accuracy(self, verdict: Verdict, outputs: Mapping[str, Array], expected: Mapping[str, Any]) -> Future[Accuracy]:
        """:func:`accuracy_of`, computed by another thread while the next candidates are verified.

        The outputs of few candidates are kept at a time.
        """
        self._hashing = self._hashing or ThreadPoolExecutor(1)
        while len(self._hashed) >= HASHED:
            self._hashed.popleft().result()
        self._hashed.append(self._hashing.submit(accuracy_of, verdict, outputs, expected))
        return self._hashed[-1]

    def renew(self, seed: int) -> None:
        """Replace the inputs of all sets by other random inputs, and compute their reference."""
        self.data.renew(seed)
        with suppress(PtxkitError):  # which the candidates report
            _ = self.data.expected
        self.accuracies.clear()
        for case in self.cases:
            case.upload()


class Candidate(Protocol):
    """A way to compute the workload on any of the sets.

    Attributes:
        row: the result row before the measurement.
    """

    row: Row

    def check(self, percentiles: bool) -> tuple[Verdict | None, Accuracy | Future[Accuracy] | None]:
        """Compute set 0 on poisoned outputs and compare with the reference; None without a reference.

        Args:
            percentiles: compute the distribution of the errors as well, which takes longer than the verdict, in another thread.
        """

    def replay(self, order: Sequence[int]) -> Callable[[], None]:
        """A callable that queues a CUDA graph of one call on each of these sets, in order."""

    def restart(self) -> None:
        """Restore the inputs of every set, and variables of modules, as they were before the first call."""

    def check_graph(self, run: Callable[[], None], which: int) -> Verdict | None:
        """Poison the outputs with random bytes, call ``run``, and compare the outputs of set ``which``.

        A poison that differs from that of :meth:`check` reveals a kernel that computes only elements with a known poison.
        """


class VariantCandidate:
    """A variant of the workload.

    Args:
        tile: tile parameters to fix. target: compile for this one instead of the device's own.

    Raises:
        UnavailableError, CompileError, UsageError, LaunchError: see :func:`ptxkit.workload.execute.prepare`.
    """

    def __init__(
        self, sets: BufferSets, variant: Variant, tile: Mapping[str, Any] | None = None, target: Target | None = None
    ) -> None:
        self.sets = sets
        self.variant = variant
        first = execute.prepare(sets.cases[0], variant, target, tile)
        self.prepared = [first, *(execute.bound(case, first.build) for case in sets.cases[1:])]
        self.row = compiled_row(first, resources=True)

    def launch(self, which: int) -> None:
        """Queue one call on a set."""
        self.prepared[which].launch()

    def replay(self, order: Sequence[int]) -> Callable[[], None]:
        """See :class:`Candidate`."""

        def calls() -> None:
            for which in order:
                self.launch(which)

        return self.sets.device.graph(calls)

    def restart(self) -> None:
        """See :class:`Candidate`."""
        for prepared in self.prepared:
            prepared.state.restore()
        self.sets.reset()

    @property
    def in_place(self) -> bool:
        """Whether a call changes its inputs, so that a second call gives other results."""
        return bool(set(self.sets.cases[0].output_specs) & set(self.sets.data.inputs))

    def compute(self, run: Callable[[], None], which: int, poison: int | None = None) -> None:
        """Poison the outputs of a set and call ``run``; a variant that works in place is launched once instead."""
        self.sets.reset(poison)
        if self.in_place:
            self.launch(which)
        else:
            run()
        self.sets.device.synchronize()

    def check(self, percentiles: bool) -> tuple[Verdict | None, Accuracy | Future[Accuracy] | None]:
        """See :class:`Candidate`."""
        verdict, _ = self.prepared[0].check()
        case = self.sets.cases[0]
        if not percentiles:
            return verdict, accuracy_of(verdict, {}, case.expected)
        if not verdict.verified:
            return verdict, accuracy_of(verdict, case.outputs(), case.expected)
        key = tuple(case.digests().items())
        if key not in self.sets.accuracies:
            self.sets.accuracies[key] = self.sets.accuracy(verdict, case.outputs(), case.expected)
        return verdict, self.sets.accuracies[key]

    def check_graph(self, run: Callable[[], None], which: int) -> Verdict | None:
        """See :class:`Candidate`."""
        self.compute(run, which, unforeseeable_poison())
        case = self.sets.cases[which]
        return case.known_verdict(self.variant) or case.verify(self.variant)


def unforeseeable_poison() -> int:
    """A random byte that differs from the poison of the first check."""
    return random.SystemRandom().randrange(1, execute.POISON)


def compiled_row(prepared: execute.Prepared, *, resources: bool) -> Row:
    """The result row of a variant before it is launched.

    Args:
        resources: include registers, memory and the hashes of the code; without a cubin, they require a compilation.
    """
    build = prepared.build
    row = Row(
        name=build.variant.name,
        target=build.target.name,
        tile=dict(build.tile),
        tile_note=build.resolved.tile_note,
        note=_note(prepared),
        launches=len(build.steps),
        warnings=tuple(image.log for image in build.images if image.log),
    )
    if not resources:
        return row
    used = [step.resources for step in build.steps]
    return replace(
        row,
        registers=max(r.registers for r in used),
        local_bytes=max(r.local_bytes for r in used),
        shared_bytes=max(r.shared_bytes + step.launch.shared for r, step in zip(used, build.steps, strict=True)),
        source_sha256=_sha256(*(image.ptx.encode() for image in build.images)),
        cubin_sha256=_sha256(*(image.cubin or b"" for image in build.images)),
        code_sha256=_sha256(*(machine_code(image.cubin) for image in build.images if image.cubin)),
    )


def _note(prepared: execute.Prepared) -> str:
    """A note about the tile if a sweep or a generator chose it."""
    tile = str(prepared.build.tile)
    if prepared.build.resolved.tuned:
        return f"{tile}, {prepared.build.resolved.tile_note}"
    return tile if any(isinstance(step.launch.source, Generated) for step in prepared.build.steps) else ""


@contextmanager
def of_peer() -> Iterator[None]:
    """A context in which any exception of a peer's package becomes a PtxkitError of one line, which ends that peer only."""
    try:
        yield
    except (PtxkitError, MemoryError):
        raise
    except Exception as error:  # exceptions of torch, Triton and plugins have no common base class
        raise PtxkitError(_in_a_line(error)) from error


def _in_a_line(error: Exception) -> str:
    """The type of an exception and the first line of its message, with the first line of its first cause if it quotes that.

    torch.compile states first in which step of its own an exception was raised, and quotes the exception below.
    """
    text, cause = str(error).strip(), error
    while (deeper := cause.__cause__ or cause.__context__) is not None and isinstance(deeper, Exception):
        cause = deeper
    parts = [type(error).__name__, *text.splitlines()[:1], *str(cause).strip().splitlines()[:1]]
    quoted = parts[-1] in text and parts[-1] not in parts[-2]
    return ": ".join(parts if quoted else parts[:2])


class PeerCandidate:
    """The implementation of a peer.

    Raises:
        PtxkitError: the peer cannot compute the workload.
    """

    def __init__(self, sets: BufferSets, peer: Peer) -> None:
        self.sets = sets
        self.peer = peer
        self._judged: dict[tuple[int, object], Verdict] = {}  # of verified results, by the seed of the inputs and their digests
        names = list(sets.data.inputs)
        with of_peer():
            self.calls = [peer.prepare(sets.workload, {n: case.argument(n) for n in names}) for case in sets.cases]
            version = peer.version()
        self.row = Row(
            name=peer.name,
            kind="peer",
            version=version,
            note=self.calls[0].note,
            launches=self.calls[0].launches,
        )

    def replay(self, order: Sequence[int]) -> Callable[[], None]:
        """See :class:`Candidate`."""
        with of_peer():
            return self.peer.graph([self.calls[which] for which in order])

    def restart(self) -> None:
        """See :class:`Candidate`."""
        self.sets.reset()

    def results(self, which: int) -> dict[str, DeviceArray | Array]:
        """The results of the latest call on a set, by the names of the workload: those on the device that are read there, and
        copies of others."""
        names = list(self.sets.cases[which].output_specs)
        found = {}
        with of_peer():
            for name, value in self.calls[which].outputs.items():
                known = names[int(name)] if name.isdecimal() and int(name) < len(names) else name
                there = value.on_device() if isinstance(value, OnDevice) else None
                found[known] = value.numpy() if there is None else there
        return found

    def check(self, percentiles: bool) -> tuple[Verdict | None, Accuracy | Future[Accuracy] | None]:
        """See :class:`Candidate`."""
        run = self.replay([0])  # owns memory of the results, which are read below
        results = self._computed(run, 0)
        expected = self.sets.data.expected
        known = self._known(results, 0)
        if known is not None and (not percentiles or known[1] in self.sets.accuracies):
            verdict, key = known
            return verdict, self.sets.accuracies[key] if percentiles else accuracy_of(verdict, {}, expected)
        found = self._compared(results, 0)
        if found is None:
            return None, None
        if not percentiles:
            return found.verdict, accuracy_of(found.verdict, {}, found.expected)
        accuracy = self.sets.accuracy(found.verdict, found.outputs, found.expected)
        if (own := self._known(results, 0)) is not None:
            self.sets.accuracies[own[1]] = accuracy
        return found.verdict, accuracy

    def check_graph(self, run: Callable[[], None], which: int) -> Verdict | None:
        """See :class:`Candidate`; the outputs are arrays of the peer, which are not poisoned."""
        results = self._computed(run, which)
        key = self.sets.data.seed, _contents(results)
        known = self._known(results, which)
        same = known[0] if known is not None else self._judged.get(key)
        if same is not None and not self.sets.overwritten():
            return same
        found = self._compared(results, which)
        if found is not None and found.verdict.verified:
            self._judged = {key: found.verdict}
        return found.verdict if found else None

    def _computed(self, run: Callable[[], None], which: int) -> dict[str, DeviceArray | Array]:
        """The results of a call on a set."""
        self.sets.reset()  # restores inputs that a variant updates in place
        if renew := self.calls[which].renew:
            with of_peer():
                renew()
        run()
        self.sets.device.synchronize()
        return self.results(which)

    def _known(self, results: Mapping[str, DeviceArray | Array], which: int) -> tuple[Verdict, Digested] | None:
        """The verdict of results with the same bytes of a variant or another peer, which were within the tolerance of the
        workload, and their digests; None if there were none, or if an input has changed."""
        key = self._digests(results, which)
        verdict = self.sets.data.verdicts.get((None, "", *key)) if key is not None else None
        return None if key is None or verdict is None or self.sets.overwritten() else (verdict, key)

    def _digests(self, results: Mapping[str, DeviceArray | Array], which: int) -> Digested | None:
        """The digests of results that are arrays on the device like the outputs of a variant; None for others."""
        specs = self.sets.cases[which].output_specs
        arrays = [results.get(name) for name in specs]
        held = [array for array in arrays if isinstance(array, DeviceArray)]
        if self.calls[which].random or len(held) < len(specs) or len(results) > len(specs):
            return None
        if [(array.shape, array.dtype) for array in held] != list(specs.values()):
            return None
        return tuple(zip(specs, digests_of(held), strict=True))

    def _compared(self, results: Mapping[str, DeviceArray | Array], which: int) -> Comparison | None:
        """Compare the results of a call on a set with the reference; None without a reference."""
        outputs = {name: value.staged() if isinstance(value, DeviceArray) else value for name, value in results.items()}
        if self.calls[which].random:
            return self._dropped(outputs, which)
        expected = {name: value for name, value in self.sets.data.expected.items() if name in outputs}
        if not expected:  # a comparison without outputs would always succeed
            return None
        verdict = judged(outputs, expected, self.sets.data, self.calls[which].tolerance)
        if verdict.verified and not verdict.less_accurate and (key := self._digests(results, which)) is not None:
            self.sets.data.verdicts[(None, "", *key)] = verdict
        verdict = with_complaints(verdict, self.sets.overwritten())
        return Comparison(verdict, outputs, expected)

    def _dropped(self, outputs: Mapping[str, np.ndarray[Any, Any]], which: int) -> Comparison | None:
        """Compare dropout with the peer's random numbers.

        None if the workload has no ``threshold``, or if elements of the outputs depend on several random numbers.
        """
        workload, data = self.sets.workload, self.sets.data
        if not {"threshold", "p"} <= {*data.inputs, *workload.options}:
            return None
        small = dropout.reduced(workload)
        inputs = dropout.reduced_inputs(small, data.inputs)
        own = {name: np.asarray(value) for name, value in small.reference(**inputs).items() if name in outputs}
        choices = dropout.Choices.of(small, inputs)
        if not dropout.applies(choices, own):
            return None
        cut = dropout.reduced_outputs(own, outputs)
        expected, complaint = dropout.nearest(choices, cut)
        verdict = judged(cut, expected, data, self.calls[which].tolerance)
        return Comparison(dropout.objected(verdict, complaint), cut, expected)


def _contents(results: Mapping[str, DeviceArray | Array]) -> object:
    """What two results have in common if they have the same bytes, names, types and shapes."""
    held = {name: value for name, value in results.items() if isinstance(value, DeviceArray)}
    digests = zip(held.items(), digests_of(held.values()), strict=True)
    there = tuple((name, array.dtype.name, array.shape, digest) for (name, array), digest in digests)
    return there, digest_of({name: value for name, value in results.items() if not isinstance(value, DeviceArray)})


@dataclass(frozen=True)
class Comparison:
    """A verdict and the compared arrays."""

    verdict: Verdict
    outputs: Mapping[str, np.ndarray[Any, Any]]
    expected: Mapping[str, Any]


def accuracy_of(verdict: Verdict, outputs: Mapping[str, np.ndarray[Any, Any]], expected: Mapping[str, Any]) -> Accuracy:
    """The errors of a verdict, with their distribution and a hash if ``outputs`` are given."""
    names = [name for name in expected if name in outputs]
    tasks: list[Callable[[], Any]] = [partial(error_percentiles, outputs[name], expected[name]) for name in names]
    *percentiles, digest = in_threads(operator.call, [*tasks, lambda: arrays_sha256(outputs) if outputs else ""])
    return Accuracy(
        elements=verdict.elements,
        max_abs=verdict.max_abs_error,
        max_rel=verdict.max_rel_error,
        max_ulp=verdict.max_ulp_error,
        percentiles=dict(zip(names, percentiles, strict=True)),
        outputs_sha256=digest,
    )


def arrays_sha256(arrays: Mapping[str, Any]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, value in sorted(arrays.items()):
        array = np.ascontiguousarray(value)
        digest.update(f"{name} {array.dtype} {array.shape}\0".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _sha256(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
