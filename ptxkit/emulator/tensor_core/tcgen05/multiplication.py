"""A bound tcgen05.mma instruction: its form and its operands. PTX ISA, "tcgen05.mma" and its variants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.simt.step import PRED, U32, U64, Binding, Typed
from ptxkit.emulator.simt.threads import Group
from ptxkit.emulator.simt.where import Where
from ptxkit.emulator.tensor_core import tcgen05_arithmetic
from ptxkit.emulator.tensor_core.tcgen05 import scale_factors
from ptxkit.emulator.tensor_core.tcgen05.instruction_descriptors import KINDS
from ptxkit.emulator.tensor_core.tcgen05.warps import Issuers, require_target
from ptxkit.isa.model import Address, Immediate, Operand, Vector
from ptxkit.isa.types import PtxType


@dataclass(frozen=True)
class Form:
    """The properties that follow from the opcode and the constant operands.

    Attributes:
        kind: without ``kind::``.
        group: CTAs, 1 or 2.
        ws, sparse: ``.ws``, ``.sp``.
        vector: size of the scale vector, as it is written.
        shifts: ``.ashift``.
        in_memory: A is in tensor memory.
        padded: narrow elements lie in bytes.
        scale: ``scale-input-d``.
        target: compute capability as a number.
    """

    where: Where
    number: int
    kind: str
    group: int
    ws: bool
    sparse: bool
    vector: str
    shifts: bool
    in_memory: bool
    padded: bool
    scale: int
    target: int


@dataclass(frozen=True)
class Operands:
    """The operands of one thread's instruction: addresses, descriptors and bits, as numbers.

    Attributes:
        d, a, b: address of D, address or descriptor of A, descriptor of B.
        descriptor: the instruction descriptor.
        accumulate: ``enable-input-d``.
        disabled: 32 lanes in each word; () for none.
        scale_a, scale_b: addresses of the scale factors.
        metadata: address of a sparse A's metadata.
        zero_columns: the zero-column mask descriptor.
    """

    d: int
    a: int
    b: int
    descriptor: int
    accumulate: bool
    disabled: tuple[int, ...] = ()
    scale_a: int = 0
    scale_b: int = 0
    metadata: int = 0
    zero_columns: int = 0


class Multiplication:
    """An instruction with its operands.

    Attributes:
        form: the properties that do not depend on registers.
        sources: the sources of the step.
    """

    def __init__(self, b: Binding) -> None:
        require_target(b)
        parts = b.form
        kind = parts["kind"].partition("::")[2]
        if kind not in tcgen05_arithmetic.KINDS:
            raise b.fail(f".kind::{kind} is not executed yet")
        self._b, self._rest = b, list(b.operands)
        self._names: list[tuple[str, int]] = []
        self._sources: list[Typed] = []
        ws, sparse, scaled = bool(parts.get("ws")), bool(parts.get("sp")), KINDS[kind].scaled
        group = int(parts.get("group", "cta_group::1")[-1])
        vector = parts.get("vector", "")
        if scaled and (why := scale_factors.refusal(kind, vector)):
            raise b.fail(why)
        self._address("d")
        in_memory = bool(self._rest) and isinstance(self._rest[0], Address)
        if parts.get("ashift") and not in_memory:
            raise b.fail(".ashift needs A in tensor memory")
        if in_memory:
            self._address("a")
        else:
            self._value("a", U64)
        self._value("b", U64)
        if sparse:
            self._address("metadata")
        self._value("descriptor", U32)
        if scaled:
            self._address("scale_a")
            self._address("scale_b")
        self.lanes = self._disabled(group, ws or scaled)
        self._value("accumulate", PRED)
        scale = 0
        if self._rest and ws:
            self._value("zero_columns", U64)
        elif self._rest:
            scale = self._scale(kind)
        if self._rest:
            raise b.fail(f"{len(b.operands)} operands are more than this form takes")
        self.sources = tuple(self._sources)
        self.form = Form(
            b.where,
            b.index,
            kind,
            group,
            ws,
            sparse,
            vector,
            bool(parts.get("ashift")),
            in_memory,
            KINDS[kind].container == 8,
            scale,
            b.target,
        )

    def _next(self, name: str) -> Operand | None:
        if not self._rest:
            raise self._b.fail(f"{len(self._b.operands)} operands; {name} is missing")
        return self._rest.pop(0)

    def _address(self, name: str) -> None:
        """An operand ``[address]`` in tensor memory."""
        base, offset = self._b.address(self._next(name))
        self._names.append((name, offset))
        self._sources.append((base, U32))

    def _value(self, name: str, t: PtxType) -> None:
        self._sources.append((self._next(name), t))
        self._names.append((name, 0))

    def _disabled(self, group: int, none: bool) -> int:
        """``disable-output-lane``; the number of its words."""
        if not self._rest or not isinstance(self._rest[0], Vector):
            return 0
        if none:
            raise self._b.fail("this form has no disable-output-lane")
        items = self._b.elements(self._rest.pop(0))
        if len(items) != 4 * group:
            raise self._b.fail(f"disable-output-lane has {len(items)} words; .cta_group::{group} takes {4 * group}")
        self._sources += [(o, U32) for o in items]
        self._names += [("disabled", 0)] * len(items)
        return len(items)

    def _scale(self, kind: str) -> int:
        """The constant ``scale-input-d``."""
        operand = self._rest.pop(0)
        value = operand.value if isinstance(operand, Immediate) else None
        if kind not in ("f16", "tf32"):
            raise self._b.fail(f".kind::{kind} has no scale-input-d; .kind::f16 and .kind::tf32 do")
        if not isinstance(value, int) or not 0 <= value <= 15:
            raise self._b.fail(f"scale-input-d is a constant from 0 to 15, not {operand}")
        return value

    def each(self, x: Group, lanes: tuple[Lanes, ...]) -> Iterator[tuple[Issuers, int, Operands]]:
        """The operands of each thread of ``x``, with its number among the issuers."""
        issuers = Issuers(x)
        columns = [issuers.values(v) for v in lanes]
        for e in range(len(issuers)):
            given: dict[str, Any] = {"disabled": ()}
            for (name, offset), column in zip(self._names, columns, strict=True):
                value = column[e] + offset
                if name == "disabled":
                    given[name] = (*given[name], value)
                else:
                    given[name] = bool(value) if name == "accumulate" else value
            yield issuers, e, Operands(**given)
