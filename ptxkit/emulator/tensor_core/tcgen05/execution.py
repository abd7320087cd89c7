"""The execution of a tcgen05.mma by one thread: its accesses and its result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ptxkit.emulator.arrays import Lanes, Mask
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.tensor_core import numerics
from ptxkit.emulator.tensor_core.tcgen05 import scale_factors, sparsity, zero_columns
from ptxkit.emulator.tensor_core.tcgen05.accesses import BAND, BANDS, Region
from ptxkit.emulator.tensor_core.tcgen05.instruction_descriptors import BITS, Product, product
from ptxkit.emulator.tensor_core.tcgen05.layouts import Layout, Part, layout
from ptxkit.emulator.tensor_core.tcgen05.memory import UNDEFINED, TensorMemory, address
from ptxkit.emulator.tensor_core.tcgen05.multiplication import Form, Operands
from ptxkit.emulator.tensor_core.tcgen05.pipeline import MECHANISM, Pipelines
from ptxkit.emulator.tensor_core.tcgen05.scale_factors import Factors
from ptxkit.emulator.tensor_core.tcgen05.shared_matrix import SharedMatrix
from ptxkit.emulator.tensor_core.tcgen05.undefined import undefined
from ptxkit.emulator.tensor_core.tcgen05.warps import Issuers, pair
from ptxkit.emulator.tensor_core.tcgen05_arithmetic import products
from ptxkit.errors import MemoryFault, TrapError


class Execution:
    """An instruction of one thread, with decoded and checked operands.

    Raises:
        TrapError, MemoryFault: raised by the constructor for operands that are not valid.
    """

    def __init__(self, form: Form, x: Group, issuers: Issuers, e: int, given: Operands) -> None:
        self.form, self.x, self.wave, self.given = form, x, x.wave, given
        self.cta, self.thread, self.who = int(issuers.cta[e]), int(issuers.thread[e]), issuers.name(e)
        self.memory = x.wave.part(TensorMemory)
        self.memory.use_group(self.cta, form.group, form.where)
        self.ctas = pair(x, self.cta, form.where) if form.group == 2 else [self.cta]
        found = product(given.descriptor, form.kind, form.sparse, form.ws, form.group, form.target)
        if isinstance(found, str):
            raise self._bits(found)
        self.product: Product = found
        lane, self.column = address(given.d)
        self.layout: Layout = layout(found.m, found.n, form.group, form.ws, form.sparse, lane)
        self._require_lane("D", lane)
        self._require_columns(self.column, self.layout.width, "writes D to")
        self.kept = found.k // 2 if form.sparse else found.k
        self._place_a(lane)
        self.b_shift = self._place_b()
        self.factors = self._place_factors()
        if form.sparse:
            self._place_metadata(lane)

    def _place_metadata(self, lane: int) -> None:
        p = self.product
        at, column = address(self.given.metadata)
        if p.selector > 1:
            raise self._bits(f"bits 0 and 1 (sparsity selector) are {p.selector}; only 0 and 1 are executed")
        if p.selector and column % 2:
            raise self._bits(
                f"bits 0 and 1 (sparsity selector) are 1 and the metadata begins at column {column}; with a selector it "
                "must begin at an even column"
            )
        self.metadata_column = column = column + p.selector
        self._require_lane("the metadata", at)
        if at != lane:
            raise MemoryFault(
                f"{self.form.where}: {self.who}: the metadata begins at lane {at} and D at lane {lane} of tensor memory; "
                "both must begin at the same lane"
            )
        self._require_columns(column, sparsity.columns(p.a), "reads the metadata from")

    def _bits(self, why: str) -> TrapError:
        return TrapError(
            f"{self.form.where}: {self.who}: the instruction descriptor {self.given.descriptor:#010x}: {why}"
        )

    def _place_a(self, lane: int) -> None:
        form, p = self.form, self.product
        self.a = SharedMatrix("A", p.a, p.m // form.group, self.kept, form.padded, p.mn_a)
        self.a_words = self.kept * self.a.slot // 32
        self.a_column = 0
        if not form.in_memory:
            for cta in self.ctas:
                self.a.check(self.wave, cta, self.given.a, form.target, form.where, self.who)
            return
        if p.mn_a:
            raise self._bits("bit 15 (transpose A) is set, but A is in tensor memory")
        a_lane, self.a_column = address(self.given.a)
        self._require_lane("A", a_lane)
        if a_lane != lane:
            raise MemoryFault(
                f"{form.where}: {self.who}: A begins at lane {a_lane} and D at lane {lane} of tensor memory; both must "
                "begin at the same lane"
            )
        if form.shifts and p.m not in (128, 256):
            raise self._bits(f"bits 24 to 28 give M = {p.m}; .ashift needs 128 or 256")
        self._require_columns(self.a_column, self.a_words, "reads A from")

    def _place_b(self) -> int:
        """The number of columns by which B is shifted."""
        form, p = self.form, self.product
        if form.ws and p.m == 32 and p.max_shift:
            raise self._bits(
                f"bits 30 and 31 (maximum shift) are {self.given.descriptor >> 30}; with M = 32 they are 0"
            )
        why = zero_columns.refusal(self.given.zero_columns, p.max_shift)
        if why:
            raise TrapError(
                f"{form.where}: {self.who}: the zero-column mask descriptor {self.given.zero_columns:#018x}: {why}"
            )
        shifted = zero_columns.shift(self.given.zero_columns)
        self.b = SharedMatrix("B", p.b, p.n // form.group + shifted, p.k, form.padded, p.mn_b)
        for cta in self.ctas:
            self.b.check(self.wave, cta, self.given.b, form.target, form.where, self.who)
        return shifted

    def _place_factors(self) -> tuple[Factors, Factors] | None:
        form, p = self.form, self.product
        if not p.scale:
            return None
        found: list[Factors] = []
        given = self.given
        sides = (("A", p.m // form.group, p.sfa, given.scale_a), ("B", self.layout.width, p.sfb, given.scale_b))
        for name, rows, chosen, at in sides:
            f = scale_factors.factors(p, form.kind, form.vector, rows, chosen, name, self.kept)
            if isinstance(f, str):
                raise self._bits(f)
            self._require_columns(address(at)[1], f.columns, f"reads the scale factors of {name} from")
            found.append(f)
        return found[0], found[1]

    def _require_lane(self, name: str, lane: int) -> None:
        if lane not in self.layout.alignments:
            allowed = " or ".join(map(str, self.layout.alignments))
            raise MemoryFault(
                f"{self.form.where}: {self.who}: {name} begins at lane {lane} of tensor memory; with M = "
                f"{self.product.m} it begins at lane {allowed}"
            )

    def _require_columns(self, low: int, count: int, verb: str) -> None:
        for cta in self.ctas:
            self.memory.require_columns(cta, low, count, self.form.where, self.who, verb)

    # -- issue -------------------------------------------------------------------------------------------------------

    def _regions(self, low: int, count: int, everywhere: bool = False) -> tuple[Region, ...]:
        """The tensor memory of D's lanes, or of all lanes, in these columns."""
        found: list[Region] = []
        for rank, cta in enumerate(self.ctas):
            parts = [p for p in self.layout.parts if p.cta == rank]
            bands = [b for p in parts for b in range(p.lane // BAND, (p.lane + p.rows) // BAND)]
            found += self.memory.regions(cta, range(BANDS) if everywhere else bands, low, low + count)
        return tuple(found)

    def issue(self) -> None:
        """Submit the operation to the pipeline."""
        form, p, given = self.form, self.product, self.given
        for races in self.wave.races:
            owner = np.array([self.thread])
            for cta in self.ctas:
                if not form.in_memory:
                    chunks = self.a.chunks(self.wave, cta, given.a)[None]
                    races.operations.multiplied(MECHANISM, form.where, owner, chunks)
                chunks = self.b.chunks(self.wave, cta, given.b)[None]
                races.operations.multiplied(MECHANISM, form.where, owner, chunks)
        writes = self._regions(self.column, self.layout.width)
        reads: tuple[Region, ...] = ()
        if form.in_memory:
            a = self._regions(self.a_column, self.a_words)
            writes, reads = (writes + a, reads) if form.shifts else (writes, a)
        if self.factors is not None:
            for f, at in zip(self.factors, (given.scale_a, given.scale_b), strict=True):
                reads += self._regions(address(at)[1], f.columns, everywhere=True)
        if form.sparse:
            reads += self._regions(self.metadata_column, sparsity.columns(p.a))
        self.x.tally.add(form.number, f"flops.tensor.{p.a}", 2 * p.m * p.n * self.kept)
        self.wave.part(Pipelines).issue(self.cta, self.thread, form.where, self.who, writes, reads, self.perform)

    # -- result ------------------------------------------------------------------------------------------------------

    def perform(self) -> None:
        """Read A, B and D, and write D."""
        p, wave, given = self.product, self.wave, self.given
        b = np.concatenate([self.b.load(wave, cta, given.b) for cta in self.ctas])[self.b_shift :]
        if given.zero_columns:
            b = np.where(zero_columns.mask(given.zero_columns, p.m, p.n)[:, None], b.dtype.type(0), b)
        c = self._accumulator() if given.accumulate else None
        shared = None
        if not self.form.in_memory:
            shared = np.concatenate([self.a.load(wave, cta, given.a) for cta in self.ctas])
        if shared is not None and self.factors is None and not self.form.sparse:
            self._deliver(self._products(shared, b, c))
            return
        d = np.empty((p.m, p.n), np.uint16 if p.d == "f16" else np.uint32)
        for column in sorted({part.column for part in self.layout.parts}):
            columns = slice(column, column + self.layout.width)
            a = self._a_from_memory(column) if shared is None else shared
            kept = None
            if self.form.sparse:
                a, kept = self._expanded(a, column)
            for rows, scales in self._scaled_rows(column):
                before = None if c is None else c[rows, columns]
                mine = None if kept is None else kept[rows]
                d[rows, columns] = self._products(a[rows], b[columns], before, scales, mine)
        self._deliver(d)
        if self.form.shifts:
            self._shift_a()

    def _products(
        self,
        a: Lanes,
        b: Lanes,
        c: Lanes | None,
        scales: tuple[Lanes, Lanes] | None = None,
        kept: Mask | None = None,
    ) -> Lanes:
        p = self.product
        scaling: dict[str, Any] = {}
        if scales is not None and self.factors is not None:
            scaling = {
                "scale_a": scales[0],
                "scale_b": scales[1],
                "scale_type": p.scale,
                "block": self.factors[0].block,
            }
        d = products(
            self.form.kind,
            a,
            b,
            c,
            a_type=p.a,
            b_type=p.b,
            d_type=p.d,
            negate_a=p.negate_a,
            negate_b=p.negate_b,
            saturate=p.saturate,
            scale_input_d=self.form.scale,
            kept=kept,
            **scaling,
        )
        for hooks in self.wave.arithmetic if self.form.kind != "i8" else ():
            number = np.float16 if p.d == "f16" else np.float32
            operands = [numerics.values(a, p.a), numerics.values(b, p.b)]
            operands += [] if c is None else [np.ascontiguousarray(c).view(number)]
            operands += [_scale_numbers(s, p.scale) for s in scales or ()]
            hooks.produced(self.wave, self.form.where, self.thread, np.ascontiguousarray(d).view(number), operands)
        return d

    def _words(self, part: Part) -> Lanes:
        """(128, 512), the tensor memory that contains a part of D."""
        return self.memory.words[self.memory.sm[self.ctas[part.cta]]]

    def _accumulator(self) -> Lanes:
        """(M, N) bits of D."""
        p = self.product
        c = np.empty((p.m, p.n), np.uint32)
        for part in self.layout.parts:
            cells = self._words(part)[part.lane : part.lane + part.rows, self.column : self.column + part.columns]
            c[part.row : part.row + part.rows, part.column : part.column + part.columns] = cells
        return c.astype(np.uint16) if p.d == "f16" else c

    def _a_from_memory(self, column: int) -> Lanes:
        """(M, kept) codes of A from the lanes that compute the columns of D from ``column`` on."""
        words = np.empty((self.product.m, self.a_words), np.uint32)
        for part in self.layout.parts:
            if part.column == column:
                lanes = slice(part.lane, part.lane + part.rows)
                words[part.row : part.row + part.rows] = self._words(part)[lanes, self.a_column :][:, : self.a_words]
        return unpacked(words, self.product.a, self.form.padded)

    def _expanded(self, a: Lanes, column: int) -> tuple[Lanes, Lanes]:
        """A expanded with zeros, and which elements are stored, by the metadata in the lanes that compute these columns."""
        p = self.product
        parts = [part for part in self.layout.parts if part.column == column]
        at = self.metadata_column
        found: list[Lanes] = []
        for part in parts:
            words = self._words(part)[:, at : at + sparsity.columns(p.a)]
            found.append(sparsity.nibbles(words, p.a, part.lane, part.rows))
        expanded = sparsity.expand(a, np.concatenate(found), p.a, self.form.kind in ("mxf4", "mxf4nvf4"))
        if isinstance(expanded, str):
            raise TrapError(f"{self.form.where}: {self.who}: the metadata of A: {expanded}")
        return expanded

    def _scaled_rows(self, column: int) -> Iterator[tuple[slice, tuple[Lanes, Lanes] | None]]:
        """Runs of rows of D with their scale factors of A and B, for its columns from ``column`` on."""
        if self.factors is None:
            yield slice(0, self.product.m), None
            return
        (fa, fb), given, p = self.factors, self.given, self.product
        parts = [part for part in self.layout.parts if part.column == column]
        sides: list[tuple[Part, Lanes, Lanes]] = []
        for part in parts:
            words = self._words(part)
            start = part.row - part.cta * p.m // self.form.group
            a = fa.read(words[:, address(given.scale_a)[1] :], part.lane, part.rows, start)
            b = fb.read(words[:, address(given.scale_b)[1] :], part.lane, self.layout.width, 0)
            sides.append((part, a, b))
        if all((b == sides[0][2]).all() for _, _, b in sides):
            whole = np.empty((p.m, fa.count), np.uint8)
            for part, a, _ in sides:
                whole[part.row : part.row + part.rows] = a
            yield slice(0, p.m), (whole, sides[0][2])
            return
        for part, a, b in sides:
            yield slice(part.row, part.row + part.rows), (a, b)

    def _deliver(self, d: Lanes) -> None:
        disabled = np.zeros((len(self.ctas), 128), np.bool_)
        for k, word in enumerate(self.given.disabled):
            disabled[k // 4, 32 * (k % 4) : 32 * (k % 4) + 32] = word >> np.arange(32) & 1
        shadow = self.memory.shadow
        missing = None if shadow is None else undefined(self, shadow)
        for part in self.layout.parts:
            keep = ~disabled[part.cta, part.lane : part.lane + part.rows]
            lanes = np.arange(part.lane, part.lane + part.rows)[keep]
            value = d[part.row : part.row + part.rows, part.column : part.column + part.columns][keep]
            self._words(part)[lanes, self.column : self.column + part.columns] = value
            if shadow is not None and missing is not None:
                bits = missing[part.row : part.row + part.rows, part.column : part.column + part.columns][keep]
                words = shadow.words[self.memory.sm[self.ctas[part.cta]]]
                words[lanes, self.column : self.column + part.columns] = np.where(bits, UNDEFINED, np.uint32(0))

    def _shift_a(self) -> None:
        """``.ashift``: in each partition, every row of A except the last is replaced by the next one."""
        for cta in self.ctas:
            words = self.memory.words[self.memory.sm[cta], :, self.a_column : self.a_column + self.a_words]
            for lane in range(0, 128, 32):
                words[lane : lane + 31] = words[lane + 1 : lane + 32].copy()


def _scale_numbers(factors: Lanes, t: str | None) -> Lanes:
    """Scale factors as far as a trap distinguishes them: NaN where the code is one, else 1."""
    missing = factors == 0xFF if t == "ue8m0" else (factors & 0x7F) == 0x7F
    return np.where(missing, np.float32(np.nan), np.float32(1))


def unpacked(words: Lanes, t: str, padded: bool) -> Lanes:
    """(rows, elements) codes of an A in tensor memory, (rows, words) uint32.

    PTX ISA, "Packing formats of elements in Tensor and Shared memory": narrow elements of the kinds that mix them lie in
    bytes, those of 4 bits as 00xxxx00 and those of 6 bits as 0xxxxxx0.
    """
    bits = BITS[t]
    flat = np.ascontiguousarray(words)
    if bits >= 8:
        return flat.view(f"u{bits // 8}")
    flat = flat.view(np.uint8)
    if padded:
        return flat >> 2 & 15 if bits == 4 else flat >> 1 & 63
    return np.stack((flat & 15, flat >> 4), axis=-1).reshape(len(flat), -1)
