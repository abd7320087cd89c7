"""The tcgen05 patterns compared with ptxas: they accept the forms that it accepts for sm_100a, sm_103a or sm_110a."""

from __future__ import annotations

import random

import manual_forms
import ptxas_oracle
import pytest

from ptxkit.emulator.simt.orders import is_type
from ptxkit.emulator.simt.table import Entry, entries, lookup
from ptxkit.emulator.tensor_core.tcgen05 import fragments

GROUP = "ptxkit.emulator.tensor_core.tcgen05."
TARGETS = ("sm_100a", "sm_103a", "sm_110a")


_GROUP = "{.cta_group::1|.cta_group::2}"
_A, _USE = ".collector::a", "{::fill|::use|::lastuse|::discard}"
_PLAIN = "{.kind::f16|.kind::tf32|.kind::f8f6f4|.kind::i8}"
_VECTOR = "{|.scale_vec::1X|.scale_vec::2X|.scale_vec::4X|.block16|.block32}"
_SCALED = "{.kind::mxf8f6f4|.kind::mxf4|.kind::mxf4nvf4}.block_scale" + _VECTOR
_NUM = "{.x1|.x2|.x4|.x8|.x16|.x32|.x64|.x128}"
_ROWS = "{.32x32b|.16x32bx2}"
_SHAPES = "{.16x64b|.16x128b|.16x256b|.32x32b|.16x32bx2}"
_UNPACKING = "{|.b8x16.b6x16_p32|.b8x16.b4x16_p64}"
MANUAL = (
    f"alloc{_GROUP}.sync.aligned{{|.exclusive}}{{|.shared::cta}}.b32",
    f"dealloc{_GROUP}.sync.aligned.b32",
    f"relinquish_alloc_permit{_GROUP}.sync.aligned",
    f"ld.sync.aligned{_SHAPES}{_NUM}{{|.pack::16b}}.b32",
    f"ld.red.sync.aligned{_ROWS}{_NUM}{{.min|.max}}{{|.abs}}{{|.NaN}}.f32",
    f"ld.red.sync.aligned{_ROWS}{_NUM}{{.min|.max}}{{.u32|.s32}}",
    f"st.sync.aligned{_SHAPES}{_NUM}{{|.unpack::16b}}.b32",
    "{wait::ld|wait::st}.sync.aligned",
    f"cp{_GROUP}{{.128x256b|.4x256b|.128x128b|.64x128b.warpx2::02_13|.64x128b.warpx2::01_23|.32x128b.warpx4}}{_UNPACKING}",
    f"shift{_GROUP}.down",
    f"mma{{|.sp}}{_GROUP}{_PLAIN}",
    f"mma{{|.sp}}{_GROUP}{_PLAIN}{_A}{_USE}",
    f"mma{{|.sp}}{_GROUP}{_PLAIN}.ashift",
    f"mma{{|.sp}}{_GROUP}{_PLAIN}.ashift{_A}{_USE}",
    f"mma{{|.sp}}{_GROUP}{_SCALED}",
    f"mma{{|.sp}}{_GROUP}{_SCALED}{_A}{_USE}",
    f"mma.ws{{|.sp}}.cta_group::1{_PLAIN}",
    f"mma.ws{{|.sp}}.cta_group::1{_PLAIN}.collector{{::b0|::b1|::b2|::b3}}{_USE}",
    "fence::before_thread_sync",
    "fence::after_thread_sync",
    f"commit{_GROUP}.mbarrier::arrive::one{{|.shared::cluster}}{{|.multicast::cluster}}.b64",
)
"""The syntax of every tcgen05 instruction in PTX ISA 9.1, and ``.exclusive`` of PTX ISA 9.4."""


def rows() -> list[Entry]:
    return [e for e in entries() if e.group.startswith(GROUP)]


def vector(count: int) -> str:
    return "{" + ", ".join(f"%r{k % 16}" for k in range(count)) + "}"


def statement(opcode: str) -> str:
    """The instruction with operands of the right kinds."""
    parts = opcode.split(".")
    what = parts[1]
    if what == "alloc":
        return f"{opcode} [%{'r' if 'shared::cta' in opcode else 'rd'}0], 64;"
    if what == "dealloc":
        return f"{opcode} %r0, 64;"
    if what in ("ld", "st"):
        shape = next(p for p in parts if p in fragments.SHAPES.split())
        count = fragments.registers(shape, int(next(p for p in parts if p[0] == "x" and p[1:].isdigit())[1:]))
        split = ", 8" if shape == "16x32bx2" else ""
        if what == "st":
            return f"{opcode} [%r0]{split}, {vector(count)};"
        reduced = ", %r1" if "red" in parts else ""
        values = vector(count).replace("%r", "%f") if parts[-1] == "f32" else vector(count)
        reduced = reduced.replace("%r", "%f") if parts[-1] == "f32" else reduced
        return f"{opcode} {values}{reduced}, [%r0]{split};"
    if what == "commit":
        return f"{opcode} [%rd0]{', %h0' if 'multicast::cluster' in opcode else ''};"
    if what == "cp":
        return f"{opcode} [%r0], %rd0;"
    if what == "shift":
        return f"{opcode} [%r0];"
    if what == "mma":
        left = "[%r1]" if "ashift" in parts else "%rd1"
        metadata = " [%r4]," if "sp" in parts else ""
        scales = " [%r5], [%r6]," if "block_scale" in parts else ""
        return f"{opcode} [%r0], {left}, %rd2,{metadata} %r3,{scales} %p0;"
    return f"{opcode};"


def exists(opcode: str) -> bool:
    """Whether the form exists among those of its pattern."""
    parts = opcode.split(".")
    if parts[1] in ("ld", "st"):
        shape = next(p for p in parts if p in fragments.SHAPES.split())
        repeat = int(next(p for p in parts if p[0] == "x" and p[1:].isdigit())[1:])
        return fragments.registers(shape, repeat) <= fragments.MAX_REGISTERS
    if "ashift" in parts:
        return not any(p in ("collector::a::use", "collector::a::fill") for p in parts)
    return True


def refused_by_all(statements: list[str]) -> dict[int, str]:
    """The forms that none of the targets accepts."""
    found: dict[int, str] = {}
    for group in ("cta_group::1", "cta_group::2"):  # ptxas does not accept both in one function
        found |= _refused({n: s for n, s in enumerate(statements) if (group[-1] == "2") == ("cta_group::2" in s)})
    return found


def _refused(left: dict[int, str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for target in TARGETS:
        if not left:
            break
        numbers = list(left)
        refused = ptxas_oracle.refused([left[n] for n in numbers], target, compiled=False)
        found = {numbers[k]: why for k, why in refused.items()}
        left = {n: left[n] for n in found}
    return found


@pytest.mark.parametrize("entry", rows(), ids=lambda e: e.pattern)
def test_ptxas_takes_what_the_pattern_takes(entry):
    opcodes = [o for o in entry.opcodes() if exists(o)]
    if len(opcodes) > 120:
        opcodes = opcodes[:: len(opcodes) // 60]
    refused = refused_by_all([statement(o) for o in opcodes])
    assert not refused, {opcodes[n]: why for n, why in list(refused.items())[:4]}


@pytest.mark.parametrize("entry", rows(), ids=lambda e: e.pattern)
def test_the_order_of_the_modifiers_does_not_matter(entry):
    generator = random.Random(entry.pattern)
    for opcode in list(entry.opcodes())[:40]:
        name, what, *rest = opcode.split(".")
        types = iter([p for p in rest if is_type(p)])
        generator.shuffle(rest)
        rest = [next(types) if is_type(p) else p for p in rest]
        found = lookup(".".join([name, what, *rest]))
        assert found is not None, rest
        assert found[1].opcode == opcode


@pytest.mark.parametrize("syntax", MANUAL)
def test_every_form_of_the_manual_that_ptxas_takes_is_executed(syntax):
    opcodes = [f"tcgen05.{form}" for form in manual_forms.expand(syntax)]
    known = {o for o in opcodes if exists(o)}
    assert known
    missing = [o for o in opcodes if o in known and lookup(o) is None]
    refused = refused_by_all([statement(o) for o in missing])
    assert len(refused) == len(missing), [o for n, o in enumerate(missing) if n not in refused]
