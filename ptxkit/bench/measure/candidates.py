"""What is measured against each other: a kernel's variants and the peers, on several sets of the same buffers."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ptxkit.bench.measure import dropout
from ptxkit.bench.results.results import Accuracy, Row
from ptxkit.errors import PtxkitError
from ptxkit.inspect.elf import machine_code
from ptxkit.workload import execute
from ptxkit.workload.case import with_overwritten
from ptxkit.workload.launch import Generated
from ptxkit.workload.verify import Verdict, compare_all, error_percentiles

if TYPE_CHECKING:
    from ptxkit.bench.peers.base import Peer
    from ptxkit.runtime.device import Device
    from ptxkit.workload.variant import Variant
    from ptxkit.workload.workload import Workload


class BufferSets:
    """A workload's inputs, uploaded several times; all contenders read the same ones.

    Args:
        count: how many sets.
    """

    def __init__(self, workload: Workload, device: Device, count: int, seed: int) -> None:
        workload = self.workload = workload.on(device.facts_for(None))
        self.device = device
        self.data = execute.Data(workload, seed)
        self.cases = [execute.Case(workload, device, data=self.data) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.cases)

    def overwritten(self) -> list[str]:
        """A sentence for each input of a set that is not an output and was changed."""
        return [complaint for case in self.cases for complaint in case.overwritten()]

    def renew(self, seed: int) -> None:
        """Fresh random inputs in every set."""
        self.data.renew(seed)
        for case in self.cases:
            case.upload()


class Contender(Protocol):
    """Something that computes the workload on any of the sets.

    Attributes:
        row: what is known of it before it is measured.
    """

    row: Row

    def replay(self, order: Sequence[int]) -> Callable[[], None]:
        """A graph of one call on each of these sets, in order: a callable that queues it."""

    def check(self, run: Callable[[], None], which: int, again: bool = False) -> tuple[Verdict | None, Accuracy | None]:
        """Poison the outputs, call ``run``, and compare those of set ``which``; None where there is nothing to compare with.

        Args:
            again: it was timed since: poison with bytes that nobody can know, so that a kernel which computes only where it
                finds the poison is found out, and leave out how accurate it is, which takes longer than the verdict.
        """


class VariantContender:
    """A variant of the workload.

    Raises:
        UnavailableError, CompileError, UsageError, LaunchError: see :func:`ptxkit.workload.execute.prepare`.
    """

    def __init__(self, sets: BufferSets, variant: Variant, tile: Mapping[str, Any] | None = None) -> None:
        self.sets = sets
        self.variant = variant
        first = execute.prepare(sets.cases[0], variant, tile=tile)
        build = first.build
        self.prepared = [first, *(execute.bound(case, build, first.tuned) for case in sets.cases[1:])]
        resources = [step.resources for step in build.steps]
        self.row = Row(
            name=variant.name,
            target=build.target.name,
            tile=dict(build.tile),
            note=_note(self.prepared[0]),
            launches=len(build.steps),
            registers=max(r.registers for r in resources),
            local_bytes=max(r.local_bytes for r in resources),
            shared_bytes=max(
                r.shared_bytes + step.launch.shared for r, step in zip(resources, build.steps, strict=True)
            ),
            source_sha256=_sha256(*(image.ptx.encode() for image in build.images)),
            cubin_sha256=_sha256(*(image.cubin or b"" for image in build.images)),
            code_sha256=_sha256(*(machine_code(image.cubin) for image in build.images if image.cubin)),
        )

    def launch(self, which: int) -> None:
        """Queue one call on a set."""
        self.prepared[which].launch()

    def replay(self, order: Sequence[int]) -> Callable[[], None]:
        """See :class:`Contender`."""

        def calls() -> None:
            for which in order:
                self.launch(which)

        return self.sets.device.graph(calls)  # type: ignore[attr-defined,no-any-return]  # of GPUs alone

    @property
    def in_place(self) -> bool:
        """Whether a call changes its own inputs, so that calling it twice gives something else."""
        return bool(set(self.sets.cases[0].output_specs) & set(self.sets.data.inputs))

    def computed(self, run: Callable[[], None], which: int, again: bool = False) -> None:
        """Have a set's outputs computed by ``run``, from poison; see :meth:`Contender.check`."""
        poison = random.SystemRandom().randrange(1, execute.POISON) if again else None  # never the one of the first check
        for case in self.sets.cases:
            case.reset(poison)
        if self.in_place:
            self.launch(which)
        else:
            run()
        self.sets.device.synchronize()

    def check(self, run: Callable[[], None], which: int, again: bool = False) -> tuple[Verdict | None, Accuracy | None]:
        """See :class:`Contender`."""
        self.computed(run, which, again)
        case = self.sets.cases[which]
        case.check_names()
        rule = self.sets.data.tolerance_rule(self.variant)
        verdict, accuracy = judged(case.outputs(), case.expected, rule, details=not again)
        return with_overwritten(verdict, self.sets.overwritten()), accuracy


def _note(prepared: execute.Prepared) -> str:
    """The tile, where a sweep or somebody else's generator says what it is."""
    tile = str(prepared.build.tile)
    if prepared.tuned:
        return f"{tile}, tuned by a sweep"
    return tile if any(isinstance(step.launch.source, Generated) for step in prepared.build.steps) else ""


@contextmanager
def of_peer() -> Iterator[None]:
    """Inside, whatever a peer's package raises is a PtxkitError of one line, which ends that peer and nothing else."""
    try:
        yield
    except (PtxkitError, MemoryError):
        raise
    except Exception as error:  # of torch, Triton, a plugin: they have no common base
        lines = str(error).strip().splitlines()
        raise PtxkitError(": ".join([type(error).__name__, *lines[:1]])) from error


class PeerContender:
    """A peer's way to compute the workload.

    Raises:
        PtxkitError: it cannot.
    """

    def __init__(self, sets: BufferSets, peer: Peer) -> None:
        self.sets = sets
        self.peer = peer
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
        """See :class:`Contender`."""
        with of_peer():
            return self.peer.graph([self.calls[which] for which in order])

    def outputs(self, which: int) -> dict[str, np.ndarray[Any, Any]]:
        """What the latest call on a set has left, by the workload's names."""
        names = list(self.sets.cases[which].output_specs)
        found = {}
        with of_peer():
            for name, value in self.calls[which].outputs.items():
                known = names[int(name)] if name.isdecimal() and int(name) < len(names) else name
                found[known] = value.numpy()
        return found

    def check(self, run: Callable[[], None], which: int, again: bool = False) -> tuple[Verdict | None, Accuracy | None]:
        """See :class:`Contender`."""
        for case in self.sets.cases:
            case.reset()  # inputs that a variant updates in place
        run()
        self.sets.device.synchronize()
        outputs = self.outputs(which)
        if self.calls[which].random:
            return self._dropped(outputs, which)
        expected = {name: value for name, value in self.sets.data.expected.items() if name in outputs}
        if not expected:  # which would agree with everything
            return None, None
        rule = self.sets.data.tolerance_rule(own=self.calls[which].tolerance)
        verdict, accuracy = judged(outputs, expected, rule, not again)
        return with_overwritten(verdict, self.sets.overwritten()), accuracy

    def _dropped(
        self, outputs: Mapping[str, np.ndarray[Any, Any]], which: int
    ) -> tuple[Verdict | None, Accuracy | None]:
        """Of dropout with the peer's own random numbers; None where the workload has no ``threshold``."""
        workload, data = self.sets.workload, self.sets.data
        if "threshold" not in data.inputs:
            return None, None
        cut = dropout.first_rows(workload, outputs)
        expected, complaint = dropout.nearest(workload, dropout.first_rows(workload, data.inputs), cut)
        verdict, accuracy = compared(cut, expected, data.tolerance_rule(own=self.calls[which].tolerance))
        return dropout.objected(verdict, complaint), accuracy


def judged(
    outputs: Mapping[str, np.ndarray[Any, Any]], expected: Mapping[str, Any], tolerance: Any, details: bool
) -> tuple[Verdict, Accuracy | None]:
    """The verdict, with how far the outputs are off where ``details`` are wanted."""
    return compared(outputs, expected, tolerance) if details else (compare_all(outputs, expected, tolerance), None)


def compared(
    outputs: Mapping[str, np.ndarray[Any, Any]], expected: Mapping[str, Any], tolerance: Any
) -> tuple[Verdict, Accuracy]:
    """The verdict on all outputs, and how far they are off."""
    verdict = compare_all(outputs, expected, tolerance)
    accuracy = Accuracy(
        elements=verdict.elements,
        max_abs=verdict.max_abs_error,
        max_rel=verdict.max_rel_error,
        max_ulp=verdict.max_ulp_error,
        percentiles={name: error_percentiles(outputs[name], expected[name]) for name in expected},
        outputs_sha256=arrays_sha256(outputs),
    )
    return verdict, accuracy


def arrays_sha256(arrays: Mapping[str, Any]) -> str:
    """Over names, dtypes, shapes and bytes."""
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
