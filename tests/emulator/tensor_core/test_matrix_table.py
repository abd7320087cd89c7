"""The matrix patterns compared with ptxas: they accept what it accepts, and nothing that it refuses on every target."""

from __future__ import annotations

import itertools
import re

import ptxas_oracle
import pytest

import ptxkit.emulator.instructions  # noqa: F401  fills the table
from ptxkit.emulator.simt.table import Entry, entries, lookup

GROUPS = "ptxkit.emulator.tensor_core."
BITS = {"f64": 64, "f32": 32, "s32": 32, "tf32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}
BITS |= {"s4": 4, "u4": 4, "b1": 1, "e3m2": 8, "e2m3": 8, "e2m1": 8}
_TYPE = re.compile(r"\.(f16|bf16|tf32|f32|f64|e4m3|e5m2|e3m2|e2m3|e2m1|s8|u8|s4|u4|b1|s32)(?=\.|$)")


def rows() -> list[Entry]:
    return [e for e in entries() if e.group.startswith(GROUPS) and "tcgen05" not in e.group]


def vector(count: int, t: str, first: int = 0) -> str:
    letter = {"f32": "f", "f64": "d"}.get(t, "r")
    limit = {"f": 8, "d": 8, "r": 16}[letter]
    return "{" + ", ".join(f"%{letter}{(first + k) % limit}" for k in range(count)) + "}"


def fragment(rows_: int, columns: int, t: str) -> str:
    bits = BITS[t]
    return vector(rows_ * columns * bits // (32 * max(32, bits)), t)


def statement(opcode: str) -> str:
    """The instruction with operands of the right kinds."""
    name = opcode.split(".")[0]
    found = re.search(r"\.m(\d+)n(\d+)(?:k(\d+))?", opcode)
    types = _TYPE.findall(opcode)
    if name in ("ldmatrix", "stmatrix", "movmatrix"):
        if name == "movmatrix":
            return f"{opcode} %r0, %r1;"
        assert found is not None
        registers = int(re.search(r"\.x(\d)", opcode)[1]) * (2 if found[0] == ".m16n16" else 1)  # type: ignore[index]
        return (
            f"{opcode} {vector(registers, 'b32')}, [%rd0];"
            if name == "ldmatrix"
            else f"{opcode} [%rd0], {vector(registers, 'b32')};"
        )
    if found is None:
        return f"{opcode}{' 1' if 'wait_group' in opcode else ''};"
    m, n, k = int(found[1]), int(found[2]), int(found[3])
    if name == "wgmma":
        d, a = types[0], types[1]
        tail = "%p0" if d == "s32" else "%p0, 1, -1"
        if a in ("f16", "bf16"):
            tail += ", 0, 1"
        meta = "%r5, 0, " if ".sp." in opcode else ""
        return f"{opcode} {fragment(16, n, d)}, %rd0, %rd1, {meta}{tail};"
    if name == "wmma":
        return _wmma(opcode, m, n, k, types)
    d, a, b, c = types
    if "kind::mxf4" in opcode:
        a = b = "s4"
    sparse = ".sp" in opcode
    per_warp = 4 if (m, n, k, a) == (8, 8, 4, "f16") else 1
    parts = [fragment(m * per_warp, n, d), fragment(m * per_warp, k // 2 if sparse else k, a)]
    parts += [fragment(k * per_warp, n, b), fragment(m * per_warp, n, c)]
    factors = ", %r6, {0, 1}, %r7, {0, 3}" if "block_scale" in opcode else ""
    return f"{opcode} {', '.join(parts)}{', %r5, 0' if sparse else ''}{factors};"


def _wmma(opcode: str, m: int, n: int, k: int, types: list[str]) -> str:
    def multiplicand(rows_: int, columns: int, t: str) -> str:
        return vector(8, t) if t == "f16" else fragment(rows_, columns, t)

    if ".load.a" in opcode:
        return f"{opcode} {multiplicand(m, k, types[0])}, [%rd0], %r8;"
    if ".load.b" in opcode:
        return f"{opcode} {multiplicand(k, n, types[0])}, [%rd0], %r8;"
    if ".load.c" in opcode:
        return f"{opcode} {fragment(m, n, types[0])}, [%rd0], %r8;"
    if ".store" in opcode:
        return f"{opcode} [%rd0], {fragment(m, n, types[0])}, %r8;"
    d, a, b, c = types if len(types) == 4 else (types[0], "f16", "f16", types[1])
    return f"{opcode} {fragment(m, n, d)}, {multiplicand(m, k, a)}, {multiplicand(k, n, b)}, {fragment(m, n, c)};"


def binds(opcode: str) -> bool:
    """Whether the form is one that the pattern's function takes: some combinations of types are refused there."""
    types = _TYPE.findall(opcode)
    name = opcode.split(".")[0]
    if name == "mma":
        if ".m8n8k4." in opcode and types[1] == "f16":
            return (types[0], types[3]) != ("f16", "f32")
        return types[0] == types[3]
    return not (opcode.startswith("wmma.mma") and len(types) == 4 and types[1] != types[2])


@pytest.mark.parametrize(
    "entry", rows(), ids=lambda e: f"{e.group.removeprefix(GROUPS)}-{e.pattern}-{'-'.join(e.sets.values())[:60]}"
)
def test_ptxas_takes_what_the_pattern_takes(entry):
    opcodes = list(entry.opcodes())
    if len(opcodes) > 200:
        opcodes = opcodes[:: len(opcodes) // 100]
    taken = [o for o in opcodes if binds(o)]
    refused = ptxas_oracle.refused_everywhere([statement(o) for o in taken])
    assert not refused, {taken[n]: why for n, why in list(refused.items())[:4]}
    others = [o for o in opcodes if not binds(o)]
    if others:
        refused = ptxas_oracle.refused_everywhere([statement(o) for o in others])
        assert len(refused) == len(others), [others[n] for n in range(len(others)) if n not in refused][:4]


def _integral(opcode: str) -> bool:
    m, n, k = (int(v) for v in re.search(r"m(\d+)n(\d+)k(\d+)", opcode).groups())  # type: ignore[union-attr]
    d, a, b, c = _TYPE.findall(opcode)
    sizes = ((m, n, d), (m, k // 2 if ".sp" in opcode else k, a), (k, n, b), (m, n, c))
    return all(x * y * BITS[t] % (32 * max(32, BITS[t])) == 0 and x * y * BITS[t] <= 1024 * 16 for x, y, t in sizes)


def candidates(kind: str) -> list[str]:
    """Every shape with every combination of types that may be valid."""
    multiplicands = ["f64", "tf32", "f16", "bf16", "e4m3", "e5m2", "s8", "u8", "s4", "u4", "b1"]
    pairs = [(a, b) for a in multiplicands for b in multiplicands if a == b or BITS[a] == BITS[b] < 32]
    shapes = [f"m{m}n8k{k}" for m in (8, 16) for k in (4, 8, 16, 32, 64, 128, 256)]
    found = []
    for shape, (a, b), (d, c) in itertools.product(
        shapes, pairs, itertools.product(("f16", "f32", "f64", "s32"), repeat=2)
    ):
        suffixes = [".and.popc", ".xor.popc"] if a == "b1" else ["", ".rz"] if a == "f64" else [""]
        for infix, suffix in itertools.product(("", ".satfinite"), suffixes):
            found.append(f"{kind}.sync.aligned.{shape}.row.col{infix}.{d}.{a}.{b}.{c}{suffix}")
    return [o for o in found if _integral(o)]


UNDOCUMENTED = "mma.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32"
"""ptxas takes it; the manual has neither the shape nor its fragments."""


@pytest.mark.parametrize("kind", ["mma", "mma.sp", "mma.sp::ordered_metadata"])
def test_the_table_has_what_ptxas_takes(kind):
    opcodes = candidates(kind)
    refused = ptxas_oracle.refused([statement(o) for o in opcodes], "sm_90a")
    valid = [o for n, o in enumerate(opcodes) if n not in refused]
    assert len(valid) > 40
    missing = [o for o in valid if lookup(o) is None and o != UNDOCUMENTED]
    assert not missing
    extra = [o for n, o in enumerate(opcodes) if n in refused and lookup(o) is not None and binds(o)]
    assert not extra


def test_the_table_has_every_wgmma_that_ptxas_takes():
    types = ["tf32", "f16", "bf16", "e4m3", "e5m2", "s8", "u8", "b1"]
    opcodes = []
    for sp, n, (a, b), d in itertools.product(
        ("", ".sp"), (8, 40, 48, 256), itertools.product(types, repeat=2), ("f16", "f32", "s32")
    ):
        k = 256 // BITS[a] * (2 if sp else 1)
        for infix in ("", ".satfinite"):
            suffix = ".and.popc" if a == "b1" else ""
            opcodes.append(f"wgmma.mma_async{sp}.sync.aligned.m64n{n}k{k}{infix}.{d}.{a}.{b}{suffix}")
    refused = ptxas_oracle.refused([statement(o) for o in opcodes], "sm_90a")
    valid = [o for n, o in enumerate(opcodes) if n not in refused]
    assert len(valid) > 80
    assert not [o for o in valid if lookup(o) is None]
    assert not [o for n, o in enumerate(opcodes) if n in refused and lookup(o) is not None]


ANY_ORDER = [
    "mma.sync.aligned.row.col.m16n8k16.f32.bf16.bf16.f32",
    "mma.aligned.sync.m16n8k32.row.col.s32.s8.u8.s32.satfinite",
    "mma.m8n8k128.row.col.sync.aligned.xor.popc.s32.b1.b1.s32",
    "mma.sync.aligned.sp.m16n8k16.row.col.f32.f16.f16.f32",
    "ldmatrix.sync.aligned.x4.m8n8.trans.shared.b16",
    "ldmatrix.sync.aligned.m8n8.x2.shared.trans.b16",
    "stmatrix.sync.aligned.x1.m8n8.shared.b16",
    "wmma.load.a.sync.aligned.m16n16k16.row.global.f16",
    "wmma.load.c.sync.aligned.m16n16k16.shared.col.f32",
    "wmma.store.d.sync.aligned.m16n16k16.global.row.f32",
    "wmma.mma.sync.aligned.m16n16k16.row.col.f32.f32",
    "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8.satfinite",
    "wgmma.mma_async.sync.aligned.sp.m64n16k32.f32.f16.f16",
]


@pytest.mark.parametrize("opcode", ANY_ORDER)
def test_modifiers_may_stand_in_any_order(opcode):
    assert not ptxas_oracle.refused([statement(opcode)], "sm_90a")
    assert lookup(opcode) is not None


@pytest.mark.parametrize(
    "opcode",
    [
        "mma.sync.aligned.m16n8k16.col.row.f32.bf16.bf16.f32",
        "mma.sync.aligned.m16n8k16.row.col.f32.f32.bf16.bf16",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32.popc",
        "wgmma.mma_async.sync.aligned.m64n16k16.bf16.bf16.f32",
        "wmma.load.a.sync.aligned.row.col.m16n16k16.f16",
        "ldmatrix.sync.aligned.m8n8.x3.b16",
        "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue4m3",
        "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.f32.e2m1.e2m1.f32.ue8m0",
        "mma.sync.aligned.m16n8k32.row.col.kind::mxf4.block_scale.f32.e2m1.e2m1.f32.ue8m0",
        "mma.sync.aligned.m16n8k32.row.col.f32.e2m1.e2m1.f32",
    ],
)
def test_what_no_target_has_is_not_in_the_table(opcode):
    assert lookup(opcode) is None
