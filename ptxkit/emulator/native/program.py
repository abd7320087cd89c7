"""The machine code of one kernel and the functions that it calls, which all of its launches share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ptxkit.emulator.lowering.bits import members
from ptxkit.emulator.lowering.control_flow import StraightRun
from ptxkit.emulator.lowering.numpy_backend import NumpyRun
from ptxkit.emulator.lowering.register_sets import register_sets, registers_in
from ptxkit.emulator.memory.layout import Layout
from ptxkit.emulator.native.counts import CountedSite
from ptxkit.emulator.native.gates import can_pass
from ptxkit.emulator.native.machine_code import addresses, run_function
from ptxkit.emulator.native.operands import Places
from ptxkit.emulator.native.pure import Computation, computations
from ptxkit.emulator.native.segments import Segment
from ptxkit.emulator.native.translation import Translation, translate
from ptxkit.emulator.simt.blocks import BasicBlock, InstrumentedRun, Run, Terminator
from ptxkit.emulator.simt.function import FunctionCode

THOROUGH_AFTER_S = 0.1
"""Seconds in machine code of a kernel after which LLVM compiles it at its higher level."""

ALL = -1
"""As the bits of an integer: every register."""


@dataclass
class Numpy:
    """A segment for numpy: what executes it, made when it is first needed."""

    run: Run
    instrumented: InstrumentedRun


@dataclass
class NativeFunction:
    """The machine code of a function.

    Attributes:
        places: where its registers are.
        records: what machine code executes.
        blocks: the blocks that have machine code.
        touched: the registers that these read or write, and their bit set; ``written``: those that they write.
        sites: number of an access -> how it is counted.
    """

    code: FunctionCode
    places: Places
    translation: Translation
    records: NDArray[np.int64]
    runs: Mapping[int, StraightRun]
    touched: tuple[int, ...]
    touched_bits: int
    written: tuple[int, ...]
    sites: Mapping[int, CountedSite]
    _numpy: dict[int, Numpy] = field(default_factory=dict)
    _pure: dict[int, tuple[Computation, ...] | None] = field(default_factory=dict)

    @property
    def address(self) -> int:
        """Where its records are."""
        return int(self.records.__array_interface__["data"][0])

    @property
    def blocks(self) -> frozenset[int]:
        """The blocks that have machine code."""
        return self.translation.blocks

    def by_numpy(self, number: int) -> Numpy:
        """A segment, executed by numpy."""
        found = self._numpy.get(number)
        if found is None:
            segment = self.translation.segments[number]
            part = self._part(segment)
            layout = self.places.layout
            made = NumpyRun(part, self.code, layout)
            found = self._numpy[number] = Numpy(made.compile_general(ALL), made.compile_instrumented(ALL))
        return found

    def pure(self, number: int) -> tuple[Computation, ...] | None:
        """The instructions of a segment that numpy can execute without a group; None for other segments."""
        if number not in self._pure:
            segment = self.translation.segments[number]
            gated = self.runs[segment.block].block.gate is not None
            self._pure[number] = computations(segment, self.places, gated)
        return self._pure[number]

    def _part(self, segment: Segment) -> StraightRun:
        run = self.runs[segment.block]
        block = replace(run.block, terminator=Terminator(None))
        return StraightRun(block, segment.instructions, register_sets(segment.instructions, block, self.code))

    def rest(self, number: int) -> Sequence[int]:
        """The segments of the same block after this one."""
        segments = self.translation.segments
        return [n for n in range(number + 1, len(segments)) if segments[n].block == segments[number].block]


class NativeProgram:
    """The machine code of a kernel.

    Args:
        runs: the straight runs of all blocks, in their order.
    """

    def __init__(self, runs: Sequence[StraightRun], layout: Layout) -> None:
        self.runs = runs
        self.layout = layout
        self.lock = threading.Lock()
        self._run: Callable[[int, int], int] | None = None
        self._spent_s = 0.0
        self._thorough = False
        self.functions: dict[int, NativeFunction] = {}
        codes = {run.block.function.entry: run.block.function for run in runs}
        self.places = {entry: Places(code, layout) for entry, code in codes.items()}
        self.numbers = {entry: n for n, entry in enumerate(codes)}  # of the functions, for calls
        self.codes = list(codes.values())
        self.callees = {entry: (n, self.places[entry]) for entry, n in self.numbers.items()}

    def run(self, context: int, function: NativeFunction) -> int:
        """Execute a function from where its lanes stand; returns a status.

        Args:
            context: its address.
        """
        if self._run is None:
            self._run = run_function(self._thorough)
        if self._thorough:
            return self._run(context, function.address)
        began = time.perf_counter()
        status = self._run(context, function.address)
        self._spent_s += time.perf_counter() - began
        if self._spent_s > THOROUGH_AFTER_S:
            self._improve()
        return status

    def _improve(self) -> None:
        """Compile what has been executed once more, at LLVM's higher level."""
        with self.lock:
            self._thorough = True
            self._run = run_function(True)
            for entry, found in self.functions.items():
                forms = addresses(found.translation.forms, True)
                self.functions[entry] = replace(found, records=found.translation.words.finish(forms))

    def function(self, code: FunctionCode) -> NativeFunction | None:
        """The machine code of a function; None if it has none yet."""
        return self.functions.get(code.entry)

    def can_execute(self, block: BasicBlock) -> bool:
        """Whether a block may have machine code: it has no gate, or one about which machine code can decide."""
        return can_pass(self.runs[block.index], self.places[block.function.entry])

    def compile(self, code: FunctionCode, blocks: Iterable[int]) -> NativeFunction:
        """Compile these blocks of a function, which replace those that were compiled before."""
        with self.lock:
            old = self.functions.get(code.entry)
            wanted = sorted({*blocks, *(old.blocks if old is not None else ())})
            if old is not None and frozenset(wanted) == old.blocks:
                return old
            runs = [self.runs[b] for b in wanted]
            places = self.places[code.entry]
            translation = translate(runs, places, self.callees)
            touched = written = 0
            for run in runs:
                touched |= run.block.registers
                gate = run.block.gate
                touched |= 0 if gate is None else registers_in(gate.reads, code.register_index)
                written |= run.block.written
            made = NativeFunction(
                code,
                places,
                translation,
                translation.words.finish(addresses(translation.forms, self._thorough)),
                {run.block.index: run for run in runs},
                tuple(members(touched)),
                touched,
                tuple(members(written)),
                {a.number: CountedSite(a.size, a.spaces) for s in translation.segments for a in s.accesses},
            )
            self.functions[code.entry] = made
            return made
