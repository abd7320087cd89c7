"""Instructions with their modifiers in other orders, from one or two forms of each row of the tables of forms."""

from __future__ import annotations

import itertools
import random
import re

import alu_forms
import manual_forms
import ptxas_oracle

from ptxkit.emulator.simt.orders import is_type

_A = "{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}"
_D = "{%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}"
_MMA = "{%f8, %f9, %f10, %f11}, {%r0, %r1, %r2, %r3}, {%r1, %r2}, {%f0, %f0, %f0, %f0};"
_MMA_S32 = "{%r8, %r9, %r10, %r11}, {%r0, %r1, %r2, %r3}, {%r1, %r2}, {%r0, %r0, %r1, %r1};"
OTHERS = (
    f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {_MMA}",
    f"mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32 {_MMA_S32}",
    f"mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc {_MMA_S32}",
    (
        "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f8, %f9, %f10, %f11}, {%r0, %r1}, "
        "{%r1, %r2}, {%f0, %f0, %f0, %f0}, %r4, 0;"
    ),
    f"wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {_A}, [buffer];",
    f"wmma.load.c.sync.aligned.row.m16n16k16.shared.f32 {_D}, [buffer];",
    f"wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [buffer], {_D};",
    f"wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {_D}, {_A}, {_A}, {_D};",
    f"wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.s8.s32.satfinite {_A}, {{%r0, %r1}}, {{%r0, %r1}}, {_A};",
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f8, %f9, %f10, %f11}, %rd0, %rd1, 1, 1, 1, 0, 0;",
    "wgmma.fence.sync.aligned;",
    "vadd.u32.u32.u32.sat %r1, %r2, %r3;",
    "vadd4.u32.u32.u32.sat %r1, %r2, %r3, %r4;",
    "vset.u32.s32.lt.add %r1, %r2, %r3, %r4;",
    "vshl.u32.u32.u32.clamp.add %r1, %r2, %r3, %r4;",
    "vmad.u32.u32.u32.sat.shr7 %r1, %r2, %r3, %r4;",
    "cvta.to.global.u64 %rd1, %rd2;",
    "bfind.shiftamt.u32 %r1, %r2;",
)
"""Matrix products and video instructions, which have tables of another kind."""


def forms(target: str) -> list[str]:
    """Instructions that ptxas takes for a target: of each row the one with the most modifiers, and any other one."""
    rng = random.Random(0)
    found = [f for row in manual_forms.ROWS for f in _two(manual_forms.sample(row), rng, lambda s: s.split(" ")[0])]
    rows: dict[str, list[alu_forms.Form]] = {}
    for form in alu_forms.forms():
        rows.setdefault(form.entry.pattern, []).append(form)
    found += [alu_forms.statement(f) for same in rows.values() for f in _two(same, rng, lambda f: f.opcode)]
    found = list(dict.fromkeys([*found, *OTHERS]))
    refused = ptxas_oracle.refused(found, target, compiled=False)
    return [s for n, s in enumerate(found) if n not in refused]


def _two(same, rng, opcode):
    if not same:
        return []
    return [max(same, key=lambda s: (opcode(s).count("."), rng.random())), rng.choice(same)]


def orders(statement: str, rng: random.Random, count: int) -> list[str]:
    """The statement with each part of its opcode moved to either end, with neighbours exchanged, and ``count`` random ones.

    Types keep their order: with another one it is another instruction.
    """
    opcode, rest = re.fullmatch(r"([\w.:]+)(.*)", statement).groups()
    name, *parts = opcode.split(".")
    moved = set()
    for k in range(len(parts)):
        left = parts[:k] + parts[k + 1 :]
        moved |= {(*left, parts[k]), (parts[k], *left)}
    for k in range(len(parts) - 1):
        moved.add((*parts[:k], parts[k + 1], parts[k], *parts[k + 2 :]))
    mixed = (tuple(rng.sample(parts, len(parts))) for _ in range(count))
    moved |= set(itertools.permutations(parts) if len(parts) <= 3 else mixed)
    types = [p for p in parts if is_type(p)]
    kept = [m for m in moved if [p for p in m if is_type(p)] == types and m != tuple(parts)]
    return [".".join((name, *m)) + rest for m in sorted(kept)]
