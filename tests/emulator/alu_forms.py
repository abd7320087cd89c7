"""One PTX kernel per arithmetic opcode, and inputs with its special cases, for the tests of the table and for the comparisons
with ptxas and with a GPU.

A :class:`Form` is an opcode with a choice of operands. Its kernel reads one 8-byte slot per source and thread, applies the
opcode, and writes one 8-byte slot per destination and thread.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

import ptxkit.emulator.instructions.arithmetic  # noqa: F401  (fills the table)
from ptxkit.emulator.simt.opcode_patterns import CARRY
from ptxkit.emulator.simt.table import Entry, entries, lookup
from ptxkit.isa.types import PtxType

THREADS = 2048
"""Threads that one form runs with; each has its own operands."""

_IMMEDIATES = {"lop3": (0xCA, 0x96, 0xE8, 0x1B, 0x00)}


@dataclass(frozen=True)
class Form:
    """One opcode, and the optional operands that are written.

    Attributes:
        pair: with a second destination, ``p|q``.
        leave_out: how many trailing sources are left out.
        immediate: value of the operand that must be a constant.
    """

    opcode: str
    pair: bool = False
    leave_out: int = 0
    immediate: int | None = None

    @property
    def entry(self) -> Entry:
        """The row of the table for the opcode."""
        found = lookup(self.opcode)
        assert found is not None, self.opcode
        return found[0]

    def types(self) -> tuple[tuple[PtxType, ...], tuple[PtxType, ...]]:
        """(destinations, sources) as the table has them, the carry flag among them."""
        found = lookup(self.opcode)
        assert found is not None and found[0].signature is not None, self.opcode
        destinations, sources = found[0].signature(found[1])
        if ".bf16" in self.opcode:  # a conversion from or to bf16 takes no wider register for the other operand
            destinations, sources = (tuple(map(_exact_byte, side)) for side in (destinations, sources))
        if sum(t.name != CARRY for t in destinations) > 1 and not self.pair:
            destinations = destinations[:1]
        return destinations, sources[: len(sources) - self.leave_out]

    def __str__(self) -> str:
        what = [self.opcode]
        what += ["d|q"] if self.pair else []
        what += [f"{len(self.types()[1])} sources"] if self.entry.optional else []
        what += [hex(self.immediate)] if self.immediate is not None else []
        return " ".join(what)


def _exact_byte(t: PtxType) -> PtxType:
    return PtxType("byte", 8, t.kind, t.dtype) if t.name in ("u8", "s8") else t


def forms(pattern: str = "") -> list[Form]:
    """Every form of every arithmetic pattern whose opcode starts with ``pattern``."""
    return [form for form in _every_form() if form.opcode.startswith(pattern)]


@cache
def _every_form() -> tuple[Form, ...]:
    found = [_variants(e, opcode) for e in entries() if e.kind == "alu" for opcode in e.opcodes()]
    return tuple(itertools.chain.from_iterable(found))


def _variants(entry: Entry, opcode: str) -> Iterator[Form]:
    name = opcode.split(".")[0]
    plain = Form(opcode)
    assert entry.signature is not None
    found = lookup(opcode)
    assert found is not None
    destinations = [t for t in entry.signature(found[1])[0] if t.name != CARRY]
    pairs = [False]
    if len(destinations) > 1:
        pairs = [True] if name == "lop3" or "x2" in opcode else [False, True]
    for pair, left, immediate in itertools.product(
        pairs, range(plain.entry.optional + 1), _IMMEDIATES.get(name, (None,))
    ):
        yield Form(opcode, pair, left, immediate)


# -- text ----------------------------------------------------------------------------------------------------------------

REGISTERS = (
    ".reg .pred %p<8>; .reg .b8 %c<8>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .b64 %rd<16>; "
    ".reg .f32 %f<8>; .reg .f64 %d<8>;"
)


def _register(t: PtxType, n: int) -> str:
    if t.name == "pred":
        return f"%p{n}"
    if t.kind == "f" and t.bits >= 32:
        return f"%f{n}" if t.bits == 32 else f"%d{n}"
    if t.name in ("e2m1x2", "byte"):
        return f"%c{n}"
    return {8: f"%h{n}", 16: f"%h{n}", 32: f"%r{n}", 64: f"%rd{n}"}[t.bits]


def _load(t: PtxType, n: int, offset: int) -> str:
    at = f"[%rd15+{offset}]"
    if t.name == "pred":
        return f"ld.global.b32 %r15, {at}; and.b32 %r15, %r15, 1; setp.ne.u32 %p{n}, %r15, 0;"
    if t.name in ("e2m1x2", "byte"):
        return f"ld.global.b8 %c{n}, {at};"
    return f"ld.global.b{max(t.bits, 16)} {_register(t, n)}, {at};"


def _store(t: PtxType, n: int, offset: int) -> str:
    at = f"[%rd14+{offset}]"
    if t.name == "pred":
        return f"selp.b32 %r15, 1, 0, %p{n}; st.global.b32 {at}, %r15;"
    if t.name in ("e2m1x2", "byte"):
        return f"st.global.b8 {at}, %c{n};"
    # integers below 32 bits are in a wider register, to which the instruction must extend them
    return f"st.global.b{max(t.bits, 16)} {at}, {_register(t, n)};"


def statement(form: Form) -> str:
    """The instruction alone, on registers 0, 1, ... for sources and 4, 5, ... for destinations."""
    return write(form.opcode, *form.types(), form.immediate)


def write(opcode: str, destinations: Sequence[PtxType], sources: Sequence[PtxType], immediate: int | None) -> str:
    """The text of an instruction with operands of these types."""
    left = "|".join(_register(t, 4 + n) for n, t in enumerate(destinations) if t.name != CARRY)
    real = [t for t in sources if t.name != CARRY]
    right = [_register(t, n) for n, t in enumerate(real)]
    if immediate is not None:
        right[3] = str(immediate)
    return f"{opcode} {', '.join([left, *right])};"


def body(form: Form, threads: int = THREADS) -> str:
    """Loads, the instruction, stores; %rd15 and %rd14 point to the thread's first input and output slot."""
    destinations, sources = form.types()
    lines = []
    real = [t for t in sources if t.name != CARRY]
    for n, t in enumerate(real):
        lines.append(_load(t, n, n * threads * 8))
    if len(real) < len(sources):  # a carry from the bits of one more input
        subtract = form.opcode.startswith("sub")
        lines.append(f"ld.global.b32 %r15, [%rd15+{3 * threads * 8}]; and.b32 %r15, %r15, 1;")
        lines.append("sub.cc.u32 %r14, 0, %r15;" if subtract else "add.cc.u32 %r14, %r15, -1;")
    lines.append(statement(form))
    for n, t in enumerate(destinations):
        if t.name == CARRY:
            chain = "subc" if form.opcode.startswith("sub") else "addc"
            lines.append(f"{chain}.u32 %r14, 0, 0; st.global.b32 [%rd14+{n * threads * 8}], %r14;")
        else:
            lines.append(_store(t, 4 + n, n * threads * 8))
    return "\n  ".join(lines)


def kernel(form: Form, name: str, threads: int = THREADS) -> str:
    """A kernel ``name(in, out)`` of ``threads`` threads."""
    return f"""
.visible .entry {name}(.param .u64 {name}_in, .param .u64 {name}_out) {{
  {REGISTERS}
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r0, %r1, %r2, %r0;
  mul.wide.u32 %rd0, %r0, 8; ld.param.u64 %rd15, [{name}_in]; ld.param.u64 %rd14, [{name}_out];
  add.u64 %rd15, %rd15, %rd0; add.u64 %rd14, %rd14, %rd0;
  {body(form, threads)}
  ret;
}}
"""


def module(chosen: Sequence[Form], target: str, version: str = "8.8", threads: int = THREADS) -> str:
    """One PTX module with a kernel ``k0``, ``k1``, ... for each form."""
    kernels = "".join(kernel(f, f"k{n}", threads) for n, f in enumerate(chosen))
    return f".version {version}\n.target {target}\n.address_size 64\n{kernels}"


# -- inputs ------------------------------------------------------------------------------------------------------------------

_F32 = (
    "0 80000000 1 80000001 7fffff 807fffff 800000 80800000 3f800000 bf800000 7f7fffff ff7fffff 7f800000 ff800000 7fc00000 "
    "ffc12345 7f800001 3f000000 3fc00000 40200000 bf000000 c0200000 3f7fffff 3f800001 4effffff 4f000000 cf000000 4f7fffff "
    "4f800000 5f000000 df000000 5f800000 4b000001 4b7fffff 33800000 34000000 437f8000 42ff0000 c3008000 477fff00 477fefff "
    "387fc000 33000000 33000001 7effffff 7e800000 fe800001 40490fdb 3e000000 c2fc0000 43000000 c3150000 43e80000 477fe000"
)
_F64 = (
    "0 8000000000000000 1 8000000000000001 fffffffffffff 10000000000000 3ff0000000000000 bff0000000000000 7fefffffffffffff "
    "ffefffffffffffff 7ff0000000000000 fff0000000000000 7ff8000000000000 fff8000000012345 7ff0000000000001 3fe0000000000000 "
    "3ff8000000000000 4004000000000000 bfe0000000000000 3fefffffffffffff 3ff0000000000001 41dfffffffc00000 41e0000000000000 "
    "c1e0000000000000 41efffffffe00000 41f0000000000000 43e0000000000000 c3e0000000000000 43f0000000000000 43dfffffffffffff "
    "47efffffe0000000 47efffffefffffff 47effffff0000000 47f0000000000000 3810000000000000 380fffffffffffff 36a0000000000000 "
    "3690000000000000 3690000000000001 3ff0000010000000 3ff0000010000001 3ff0000030000000 3ff0000000000800 40effe0000000000 "
    "40effdffffffffff 3f00000000000000 3e70000000000000 3e60000000000000 3e60000000000001 7fe0000000000000 4340000000000001"
)
_F16 = (
    "0 8000 1 8001 3ff 83ff 400 8400 3c00 bc00 7bff fbff 7c00 fc00 7e00 fe11 7c01 3800 3e00 4100 b800 3bff 3c01 57f0 5c00 "
    "77ff 7800 f800 64ff 6800 0200"
)
_BF16 = (
    "0 8000 1 8001 7f 80ff 80 8080 3f80 bf80 7f7f ff7f 7f80 ff80 7fc0 ffc1 7f81 3f00 3fc0 4020 bf00 3f7f 3f81 437f 4300 4eff "
    "4f00 cf00 5f00 4f80 0040"
)


def _hex(text: str, dtype: str) -> np.ndarray:
    return np.array([int(w, 16) for w in text.split()], dtype)


def _integers(bits: int) -> np.ndarray:
    top = 1 << bits
    values = [0, 1, 2, 3, 5, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 100, 127, 128, 255, 256, 0x1F20]
    values += [top - v for v in (1, 2, 3, 7, 8, 100, 128, 129)]
    for half in (8, 16, 24, 32, 53, 54, 64):
        if half <= bits:
            values += [(1 << half) - 1, 1 << half - 1, (1 << half - 1) - 1, (1 << half - 1) + 1]
    values += [0x0123456789ABCDEF, 0x8040201008040201, 0x7FFFFFBFFFFFFFFF, 0xFEDCBA9876543210]
    return np.unique(np.array([v % top for v in values], np.uint64))


def special(t: PtxType) -> np.ndarray:
    """Bits of the values that break implementations of this type, as uint64."""
    name = t.name
    if name in ("f32", "tf32"):
        return _hex(_F32, "u8")
    if name == "f64":
        return _hex(_F64, "u8")
    if name in ("f16", "bf16"):
        return _hex(_F16 if name == "f16" else _BF16, "u8")
    if name == "pred":
        return np.array([0, 1], np.uint64)
    if name == "f32x2":
        one = _hex(_F32, "u8")
        return one | np.roll(one, 7) << np.uint64(32)
    if name in ("f16x2", "bf16x2", "u16x2", "s16x2"):
        one = {"f16x2": _hex(_F16, "u8"), "bf16x2": _hex(_BF16, "u8")}.get(name, _integers(16))
        return one | np.roll(one, 5) << np.uint64(16)
    return _integers(t.bits)


def _random(t: PtxType, rng: np.random.Generator, count: int) -> np.ndarray:
    raw = rng.integers(0, 1 << 64, count, np.uint64, endpoint=False) if t.bits == 64 else rng.integers(0, 1 << t.bits, count)
    raw = raw.astype(np.uint64)
    near = rng.random(count) < 0.6
    if t.name in ("f32", "tf32"):  # exponents close together, so that sums and products interact; often few bits
        v = (rng.standard_normal(count) * 2.0 ** rng.integers(-12, 36, count)).astype(np.float32)
        few = rng.random(count) < 0.3
        v = np.where(few, np.round(v * 2) / 2, v).astype(np.float32)
        return np.where(near, v.view(np.uint32).astype(np.uint64), raw)
    if t.name == "f64":
        v = rng.standard_normal(count) * 2.0 ** rng.integers(-30, 66, count)
        few = rng.random(count) < 0.3
        v = np.where(few, np.round(v * 2) / 2, v)
        return np.where(near, v.view(np.uint64), raw)
    if t.kind in "usb" and t.bits >= 32:
        return np.where(near, raw >> rng.integers(0, t.bits, count).astype(np.uint64), raw)
    if t.name == "pred":
        return raw & np.uint64(1)
    return raw


def inputs(form: Form, threads: int = THREADS) -> np.ndarray:
    """uint64 words [4, threads]: one row per source; the last row feeds the carry."""
    sources = [t for t in form.types()[1] if t.name != CARRY]
    rng = np.random.default_rng(zlib.crc32(form.opcode.encode()))
    rows = rng.integers(0, 1 << 63, (max(4, len(sources)), threads)).astype(np.uint64)
    for n, t in enumerate(sources):
        edge = special(t)
        row = _random(t, rng, threads)
        if len(sources) == 1:
            row[: len(edge)] = edge
        elif len(sources) == 2:  # as many pairs of special values as there are threads
            count = min(threads * 3 // 4, len(edge) ** 2)
            k = np.arange(count) if len(edge) ** 2 <= count else rng.integers(0, len(edge) ** 2, count)
            row[:count] = edge[k % len(edge)] if n == 0 else edge[k // len(edge) % len(edge)]
        else:
            count = threads * 3 // 4
            row[:count] = np.where(rng.random(count) < 0.6, edge[rng.integers(0, len(edge), count)], row[:count])
        rows[n] = row
    return rows
