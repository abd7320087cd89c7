"""One tcgen05.mma: its operands, what it reads and writes, and what it computes. PTX ISA, "tcgen05.mma" and its
relatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxkit.emulator.simt.step import PRED, U32, U64, Binding, Typed
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.tensor_core.tcgen05.accesses import BAND, Region
from ptxkit.emulator.tensor_core.tcgen05.instruction_descriptors import BITS, KINDS, Product, product
from ptxkit.emulator.tensor_core.tcgen05.layouts import Layout, layout
from ptxkit.emulator.tensor_core.tcgen05.memory import TensorMemory, address
from ptxkit.emulator.tensor_core.tcgen05.pipeline import MECHANISM, Pipelines
from ptxkit.emulator.tensor_core.tcgen05.shared_matrix import SharedMatrix
from ptxkit.emulator.tensor_core.tcgen05.warps import Issuers, pair, require_target
from ptxkit.emulator.tensor_core.tcgen05_arithmetic import products
from ptxkit.errors import MemoryFault, TrapError
from ptxkit.isa.model import Address, Immediate, Operand, Vector


@dataclass(frozen=True)
class Operands:
    """The operands of one thread's instruction: addresses, descriptors and bits, as numbers.

    Attributes:
        d, a, b: address of D, address or descriptor of A, descriptor of B.
        descriptor: the instruction descriptor.
        accumulate: ``enable-input-d``.
        disabled: 32 lanes in each word; () for none.
    """

    d: int
    a: int
    b: int
    descriptor: int
    accumulate: bool
    disabled: tuple[int, ...]


class Multiplication:
    """An instruction, bound.

    Attributes:
        sources: of the step.
    """

    def __init__(self, b: Binding) -> None:
        require_target(b)
        self.where, self.number, self.target = b.where, b.index, b.target
        form = b.form
        self.kind = form["kind"].partition("::")[2]
        self.group = int(form.get("group", "cta_group::1")[-1])
        self.ws, self.sparse = bool(form.get("ws")), bool(form.get("sp"))
        self.shifts = bool(form.get("ashift"))
        self.padded = KINDS[self.kind].container == 8
        rest = list(b.operands)
        if len(rest) < 5:
            raise b.fail(f"{len(rest)} operands; this form takes at least 5")
        d, a, matrix, descriptor = rest[:4]
        rest = rest[4:]
        self.in_memory = isinstance(a, Address)
        if self.shifts and not self.in_memory:
            raise b.fail(".ashift needs A in tensor memory")
        self.d, self.d_offset = b.address(d)
        self.a_offset = 0
        a_source: Typed = (a, U64)
        if self.in_memory:
            base, self.a_offset = b.address(a)
            a_source = (base, U32)
        lanes = self._disabled(b, rest)
        if not rest:
            raise b.fail("enable-input-d is missing")
        enable = rest.pop(0)
        self.scale = self._scale(b, rest)
        if rest:
            raise b.fail(f"{len(b.operands)} operands are more than this form takes")
        self.lanes = len(lanes)
        self.sources: tuple[Typed, ...] = (
            (self.d, U32),
            a_source,
            (matrix, U64),
            (descriptor, U32),
            (enable, PRED),
            *((o, U32) for o in lanes),
        )

    def _disabled(self, b: Binding, rest: list[Operand | None]) -> tuple[Operand | None, ...]:
        if not rest or not isinstance(rest[0], Vector):
            return ()
        if self.ws:
            raise b.fail("tcgen05.mma.ws has no disable-output-lane")
        items = b.elements(rest.pop(0))
        if len(items) != 4 * self.group:
            raise b.fail(f"disable-output-lane has {len(items)} words; .cta_group::{self.group} takes {4 * self.group}")
        return items

    def _scale(self, b: Binding, rest: list[Operand | None]) -> int:
        """The constant ``scale-input-d``."""
        if not rest:
            return 0
        operand = rest.pop(0)
        value = operand.value if isinstance(operand, Immediate) else None
        if self.kind not in ("f16", "tf32"):
            raise b.fail(f".kind::{self.kind} has no scale-input-d; .kind::f16 and .kind::tf32 do")
        if not isinstance(value, int) or not 0 <= value <= 15:
            raise b.fail(f"scale-input-d is a constant from 0 to 15, not {operand}")
        return value

    def __call__(self, x: Group, *lanes: Any) -> None:
        """Check the operations of all threads of ``x``, and hand them to the pipelines."""
        issuers = Issuers(x)
        columns = [issuers.values(v) for v in lanes]
        for e in range(len(issuers)):
            d, a, b, descriptor, accumulate, *disabled = (v[e] for v in columns)
            given = Operands(
                d + self.d_offset & 0xFFFFFFFF,
                a + self.a_offset & 0xFFFFFFFF if self.in_memory else a,
                b,
                descriptor,
                bool(accumulate),
                tuple(disabled),
            )
            Execution(self, x, issuers, e, given).issue()
        x.wave.launch.machine.version += 1


class Execution:
    """One instruction of one thread, its operands known.

    Raises:
        TrapError, MemoryFault: from the constructor, for what cannot be executed.
    """

    def __init__(self, what: Multiplication, x: Group, issuers: Issuers, e: int, given: Operands) -> None:
        self.what, self.x, self.wave, self.given = what, x, x.wave, given
        self.cta, self.thread, self.who = int(issuers.cta[e]), int(issuers.thread[e]), issuers.name(e)
        self.memory = x.wave.part(TensorMemory)
        self.memory.use_group(self.cta, what.group, what.where)
        self.ctas = pair(x, self.cta, what.where) if what.group == 2 else [self.cta]
        found = product(given.descriptor, what.kind, what.sparse, what.ws, what.group, what.target)
        if isinstance(found, str):
            raise TrapError(f"{what.where}: {self.who}: the instruction descriptor {given.descriptor:#010x}: {found}")
        self.product: Product = found
        lane, self.column = address(given.d)
        self.layout: Layout = layout(found.m, found.n, what.group, what.ws, what.sparse, lane)
        self._require_lane("D", lane)
        for cta in self.ctas:
            self._require_columns(cta, self.column, self.layout.width, "writes D to")
        self.kept = found.k // 2 if what.sparse else found.k
        self._place_a(lane)
        self.b = SharedMatrix("B", found.b, found.n // what.group, found.k, what.padded, found.mn_b)
        for cta in self.ctas:
            self.b.check(self.wave, cta, given.b, what.target, what.where, self.who)

    def _place_a(self, lane: int) -> None:
        what, p = self.what, self.product
        self.a = SharedMatrix("A", p.a, p.m // what.group, self.kept, what.padded, p.mn_a)
        self.a_words = self.kept * self.a.slot // 32
        self.a_column = 0
        if not what.in_memory:
            for cta in self.ctas:
                self.a.check(self.wave, cta, self.given.a, what.target, what.where, self.who)
            return
        if p.mn_a:
            raise TrapError(
                f"{what.where}: {self.who}: the instruction descriptor {self.given.descriptor:#010x}: bit 15 (transpose A) is "
                "set, but A is in tensor memory"
            )
        a_lane, self.a_column = address(self.given.a)
        self._require_lane("A", a_lane)
        if a_lane != lane:
            raise MemoryFault(
                f"{what.where}: {self.who}: A begins at lane {a_lane} and D at lane {lane} of tensor memory; both "
                "must begin at the same lane"
            )
        if what.shifts and p.m not in (128, 256):
            raise TrapError(f"{what.where}: {self.who}: .ashift needs M = 128 or 256, not {p.m}")
        for cta in self.ctas:
            self._require_columns(cta, self.a_column, self.a_words, "reads A from")

    def _require_lane(self, name: str, lane: int) -> None:
        if lane not in self.layout.alignments:
            allowed = " or ".join(map(str, self.layout.alignments))
            raise MemoryFault(
                f"{self.what.where}: {self.who}: {name} begins at lane {lane} of tensor memory; with M = {self.product.m} it "
                f"begins at lane {allowed}"
            )

    def _require_columns(self, cta: int, low: int, count: int, verb: str) -> None:
        self.memory.require_columns(cta, low, count, self.what.where, self.who, verb)

    def _regions(self, low: int, count: int) -> tuple[Region, ...]:
        """The bands that D uses, with other columns."""
        return tuple(
            region
            for rank, cta in enumerate(self.ctas)
            for region in self.memory.regions(cta, self._bands(rank), low, low + count)
        )

    def _bands(self, rank: int) -> list[int]:
        parts = [p for p in self.layout.parts if p.cta == rank]
        return [band for p in parts for band in range(p.lane // BAND, (p.lane + p.rows) // BAND)]

    def issue(self) -> None:
        """Hand it to the pipeline."""
        what, p = self.what, self.product
        for races in self.wave.races:
            owner = np.array([self.thread])
            for cta in self.ctas:
                if not what.in_memory:
                    chunks = self.a.chunks(self.wave, cta, self.given.a)[None]
                    races.operations.multiplied(MECHANISM, what.where, owner, chunks)
                chunks = self.b.chunks(self.wave, cta, self.given.b)[None]
                races.operations.multiplied(MECHANISM, what.where, owner, chunks)
        writes = self._regions(self.column, self.layout.width)
        reads: tuple[Region, ...] = ()
        if what.in_memory:
            a = self._regions(self.a_column, self.a_words)
            writes, reads = (writes + a, reads) if what.shifts else (writes, a)
        self.x.tally.add(what.number, f"flops.tensor.{p.a}", 2 * p.m * p.n * self.kept)
        self.wave.part(Pipelines).issue(self.cta, what.where, self.who, writes, reads, self.perform)

    # -- arithmetic --------------------------------------------------------------------------------------------------

    def perform(self) -> None:
        """Read A, B and D, and write D."""
        p, wave, given = self.product, self.wave, self.given
        b = np.concatenate([self.b.load(wave, cta, given.b) for cta in self.ctas])
        c = self._accumulator() if given.accumulate else None
        if self.what.in_memory:
            d = np.empty((p.m, p.n), np.uint16 if p.d == "f16" else np.uint32)
            for column in sorted({part.column for part in self.layout.parts}):
                columns = slice(column, column + self.layout.width)
                a = self._a_from_memory(column)
                d[:, columns] = self._products(a, b[columns], None if c is None else c[:, columns])
        else:
            a = np.concatenate([self.a.load(wave, cta, given.a) for cta in self.ctas])
            d = self._products(a, b, c)
        self._deliver(d)
        if self.what.shifts:
            self._shift_a()

    def _products(self, a: Any, b: Any, c: Any) -> Any:
        p = self.product
        return products(
            self.what.kind,
            a,
            b,
            c,
            a_type=p.a,
            b_type=p.b,
            d_type=p.d,
            negate_a=p.negate_a,
            negate_b=p.negate_b,
            saturate=p.saturate,
            scale_input_d=self.what.scale,
        )

    def _accumulator(self) -> Any:
        """(M, N) bits of D."""
        p = self.product
        c = np.empty((p.m, p.n), np.uint32)
        self._parts(c.__setitem__)
        return c.astype(np.uint16) if p.d == "f16" else c

    def _parts(self, visit: Callable[[Any, Any], None]) -> None:
        """Call ``visit`` with each part's index in D and its cells."""
        for part in self.layout.parts:
            words = self.memory.words[self.memory.sm[self.ctas[part.cta]]]
            cells = words[part.lane : part.lane + part.rows, self.column : self.column + part.columns]
            visit(np.s_[part.row : part.row + part.rows, part.column : part.column + part.columns], cells)

    def _a_from_memory(self, column: int) -> Any:
        """(M, kept) codes of the A that the lanes hold which compute the columns of D from ``column`` on."""
        p = self.product
        words = np.empty((p.m, self.a_words), np.uint32)
        for part in self.layout.parts:
            if part.column == column:
                held = self.memory.words[self.memory.sm[self.ctas[part.cta]]]
                lanes = slice(part.lane, part.lane + part.rows)
                words[part.row : part.row + part.rows] = held[lanes, self.a_column : self.a_column + self.a_words]
        return unpacked(words, p.a, self.what.padded)

    def _deliver(self, d: Any) -> None:
        disabled = np.zeros((len(self.ctas), 128), np.bool_)
        for k, word in enumerate(self.given.disabled):
            disabled[k // 4, 32 * (k % 4) : 32 * (k % 4) + 32] = word >> np.arange(32) & 1
        for part in self.layout.parts:
            words = self.memory.words[self.memory.sm[self.ctas[part.cta]]]
            keep = ~disabled[part.cta, part.lane : part.lane + part.rows]
            lanes = np.arange(part.lane, part.lane + part.rows)[keep]
            value = d[part.row : part.row + part.rows, part.column : part.column + part.columns][keep]
            words[lanes, self.column : self.column + part.columns] = value

    def _shift_a(self) -> None:
        """``.ashift``: each row of A but the last takes the next one, in each partition."""
        for cta in self.ctas:
            words = self.memory.words[self.memory.sm[cta], :, self.a_column : self.a_column + self.a_words]
            for lane in range(0, 128, 32):
                words[lane : lane + 31] = words[lane + 1 : lane + 32].copy()


def unpacked(words: Any, t: str, padded: bool) -> Any:
    """(rows, elements) codes of an A in tensor memory, (rows, words) uint32.

    PTX ISA, "Packing formats of elements in Tensor and Shared memory": narrow elements of the kinds that mix them lie in bytes,
    those of 4 bits as 00xxxx00 and those of 6 bits as 0xxxxxx0.
    """
    bits = BITS[t]
    flat = np.ascontiguousarray(words)
    if bits >= 8:
        return flat.view(f"u{bits // 8}")
    flat = flat.view(np.uint8)
    if padded:
        return flat >> 2 & 15 if bits == 4 else flat >> 1 & 63
    return np.stack((flat & 15, flat >> 4), axis=-1).reshape(len(flat), -1)
