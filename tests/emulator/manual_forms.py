"""The forms of the memory, asynchronous, synchronising and collective instructions that the PTX ISA manual lists.

Each :class:`Row` is a line of syntax of the manual, written down with its choices: ``{.a|.b}`` is one of them, ``{|.a}`` may be
left out. The arithmetic instructions have their own table (``alu_forms.py``), so have the matrix products
(``tensor_core/test_matrix_table.py``).
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

TYPES = "{.b8|.b16|.b32|.b64|.u8|.u16|.u32|.u64|.s8|.s16|.s32|.s64|.f32|.f64}"
WITH_B128 = "{.b8|.b16|.b32|.b64|.b128|.u8|.u16|.u32|.u64|.s8|.s16|.s32|.s64|.f32|.f64}"
SCOPE = "{.cta|.cluster|.gpu|.sys}"
SHARED = "{.shared|.shared::cta}"
VECTOR = "{|.v2|.v4|.v8}"
L1 = "{|.L1::evict_normal|.L1::evict_unchanged|.L1::evict_first|.L1::evict_last|.L1::no_allocate}"
L2 = "{|.L2::evict_normal|.L2::evict_first|.L2::evict_last}"
HINT = "{|.L2::cache_hint}"
SIZE = "{|.L2::64B|.L2::128B|.L2::256B}"
BYTES = ".mbarrier::complete_tx::bytes"
DIM = "{.1d|.2d|.3d|.4d|.5d}"
POLICY = "<.L2::cache_hint:, %rd2>"
"""In operands, ``<part:text>`` is text for the opcodes that have the part."""


@dataclass(frozen=True)
class Row:
    """One line of the manual's syntax.

    Attributes:
        section: the instruction's section in the manual.
        opcode: with choices.
        operands: with choices; ``$v`` stands for the value or vector of the opcode's type, ``$s`` for a scalar of it, ``$c``
            for the coordinates of a tensor, ``$o`` for its im2col offsets.
    """

    section: str
    opcode: str
    operands: str = ""

    def statements(self, opcodes: Iterable[str]) -> Iterator[str]:
        """Every instruction with one of the row's opcodes."""
        for opcode in opcodes:
            given = re.sub(r"<([^:>]+(?:::[^:>]+)*):([^>]*)>", lambda m: m[2] if m[1] in opcode else "", self.operands)
            for operands in expand(given):
                yield f"{opcode} {filled(operands, opcode)}".strip() + ";"


def expand(text: str) -> Iterator[str]:
    """All choices of ``{a|b}``; braces without a bar belong to PTX."""
    return ("".join(parts) for parts in itertools.product(*_choices(text)))


def _choices(text: str) -> list[list[str]]:
    pieces = re.split(r"(\{[^{}]*\|[^{}]*\})", text)
    return [p[1:-1].split("|") if p.startswith("{") and "|" in p else [p] for p in pieces]


_LETTERS = {"b128": "q", "f32": "f", "f64": "d", "pred": "p"}


def _letter(t: str) -> str:
    if t in _LETTERS:
        return _LETTERS[t]
    if t in ("f16x2", "bf16x2", "e4m3x4", "e5m2x4"):
        return "r"
    bits = int(re.sub(r"^bf|^[busf]", "", t)) if not t.startswith("e") else 8
    return {8: "h", 16: "h", 32: "r", 64: "rd"}[bits]


def filled(operands: str, opcode: str) -> str:
    """The operands with ``$v``, ``$s``, ``$c`` and ``$o`` filled in."""
    if "$" not in operands:
        return operands
    letter = _letter(opcode.rsplit(".", 1)[1]) if "$v" in operands or "$s" in operands else ""
    found = re.search(r"\.v([248])\.", opcode)
    count = int(found[1]) if found else 1
    vector = f"%{letter}8" if count == 1 else "{" + ", ".join(f"%{letter}{8 + k}" for k in range(count)) + "}"
    dim = re.search(r"\.([1-5])d", opcode)
    rank = int(dim[1]) if dim else 1
    coordinates = "{" + ", ".join(f"%r{k + 1}" for k in range(rank)) + "}"
    offsets = "{" + ", ".join(f"%h{k + 1}" for k in range(max(rank - 2, 1))) + "}"
    for name, value in (("$v", vector), ("$s", f"%{letter}9"), ("$c", coordinates), ("$o", offsets)):
        operands = operands.replace(name, value)
    return operands


_LD = "{|.const|.global|.local|.param|.shared|.shared::cta|.shared::cluster}"
_ST = "{|.global|.local|.shared|.shared::cta|.shared::cluster}"
_ATOM = "{|.global|.shared|.shared::cta|.shared::cluster}"
_INTEGERS = "{.b32|.u32|.s32|.b64|.u64|.s64}"
_ATOMIC = "{.b32|.b64|.u32|.u64|.s32|.s64|.f32|.f64}"
_ANY = "{|.shared|.shared::cta|.shared::cluster}"
_CTA = "{|.shared|.shared::cta}"
_LOADED = "cp.async.bulk.tensor"

_PLACES = {
    "1d": "{%r1}", "a1d": "{%r1, %r2}", "2d": "{%r1, %r2}", "3d": "{%r1, %r2, %r3, %r4}", "a2d": "{%r1, %r2, %r3, %r4}",
    "cube": "{%r1, %r2, %r3, %r4}", "acube": "{%r1, %r2, %r3, %r4}",
}  # fmt: skip
_GRADIENTS = {
    "1d": "{%f3}", "a1d": "{%f3}", "2d": "{%f3, %f4}", "a2d": "{%f3, %f4}", "3d": "{%f3, %f4, %f5, %f6}",
    "cube": "{%f3, %f4, %f5, %f6}", "acube": "{%f3, %f4, %f5, %f6}",
}  # fmt: skip
_FLAT = ("1d", "a1d", "2d", "3d", "a2d")


def _texture_rows() -> Iterator[Row]:
    """tex, tld4 and the surface instructions with as many coordinates as each geometry has."""
    results = {
        ".v4.f32": "{%f8, %f9, %f10, %f11}",
        ".v4{.u32|.s32}": "{%r8, %r9, _, %r11}",
        ".v4.f16": "{%h8, %h9, %h10, %h11}",
        ".v2.f16x2": "{%r8, %r9}",
        ".v4.f16x2": "{%r8, %r9, %r10, %r11}",
        ".v2.f32": "{%f8, %f9}",
    }
    for geometry, place in _PLACES.items():
        for vec, result in results.items():
            yield Row("tex", f"tex{{|.base}}.{geometry}{vec}{{.f32|.s32}}", f"{result}{{|§%p1}}, [%rd0, {place}]")
        quad = f"{results['.v4.f32']}, [%rd0, {place}]"
        yield Row("tex", f"tex.level.{geometry}.v4.f32{{.f32|.s32}}", f"{quad}, {{%r3|0}}")
        yield Row("tex", f"tex.grad.{geometry}.v4.f32.f32", f"{quad}, {_GRADIENTS[geometry]}, {_GRADIENTS[geometry]}")
        yield Row("tld4", f"tld4{{.r|.g|.b|.a}}.{geometry}.v4.f32.f32", quad)
    yield Row("tex", "tex{|.base}.2d.v4.f32.f32", "{%f8, %f9, %f10, %f11}, [%rd0, {%f1, %f2}], {4, -8}")
    yield Row("tex", "tex.3d.v4.f32.f32", "{%f8, %f9, %f10, %f11}, [%rd0, {%f1, %f2, %f3, %f4}], {4, -8, 7, 0}")
    yield Row("tex", "tex.1d.v4.f32.s32", "{%f8, %f9, %f10, %f11}, [%rd0, %r1]")
    yield Row("tex", "tex.3d.v4.f32.f32", "{%f8, %f9, %f10, %f11}, [%rd0, {%f1, %f2, %f3}]")
    yield Row("tld4", "tld4.g.2d.v4{.f32|.u32|.s32}.f32", "{%r8, %r9, %r10, %r11}, [%rd0, {%f1, %f2}], {1, 2}")
    yield Row("txq", "txq{.width|.height|.depth}.b32", "%r8, [%rd0]")
    yield Row("txq", "txq.level{.width|.height|.depth}.b32", "%r8, [%rd0], {%r1|2}")
    yield Row("istypep", "istypep{.texref|.samplerref|.surfref}", "%p1, {%rd0|%r0}")
    yield Row("suq", "suq{.width|.height|.depth}.b32", "%r8, [%rd0]")
    for geometry in _FLAT:
        place = f"[%rd0, {_PLACES[geometry]}]"
        for count in (1, 2, 4):
            for letter, types in (("h", "{.b8|.b16}"), ("r", ".b32"), ("rd", ".b64")):
                vec = f".v{count}" if count > 1 else ""
                value = ", ".join(f"%{letter}{8 + k}" for k in range(count))
                value = "{" + value + "}" if count > 1 else value
                clamp = "{.trap|.clamp|.zero}"
                yield Row("suld", f"suld.b.{geometry}{{|.ca|.cg|.cs|.cv}}{vec}{types}{clamp}", f"{value}, {place}")
                yield Row("sust", f"sust.b.{geometry}{{|.wb|.cg|.cs|.wt}}{vec}{types}{clamp}", f"{place}, {value}")
                yield Row("sust", f"sust.p.{geometry}{{|.cs}}{vec}{types}{clamp}", f"{place}, {value}")
    for geometry in ("1d", "2d", "3d"):
        place = f"[%rd0, {_PLACES[geometry]}]"
        yield Row("sured", f"sured.b{{.add|.min|.max}}.{geometry}{{.u32|.s32}}{{.trap|.clamp|.zero}}", f"{place}, %r8")
        yield Row("sured", f"sured.b{{.and|.or}}.{geometry}.b32{{.trap|.clamp|.zero}}", f"{place}, %r8")
        yield Row("sured", f"sured.b{{.min|.max}}.{geometry}{{.u64|.s64}}{{.trap|.clamp|.zero}}", f"{place}, %rd8")
        yield Row("sured", f"sured.p{{.add|.min|.max|.and|.or}}.{geometry}.b32{{.trap|.clamp|.zero}}", f"{place}, %r8")
        yield Row("sured", f"sured.p{{.min|.max}}.{geometry}.b64{{.trap|.clamp|.zero}}", f"{place}, %rd8")


ROWS = (
    *_texture_rows(),
    # loads and stores
    Row("ld", f"ld{{|.weak}}{_LD}{{|.ca|.cg|.cs|.lu|.cv}}{HINT}{SIZE}{VECTOR}{WITH_B128}", f"$v, [%rd0]{POLICY}"),
    Row("ld", f"ld{{|.weak}}{_LD}{L1}{L2}{HINT}{SIZE}{VECTOR}{WITH_B128}", f"$v, [%rd0]{POLICY}"),
    Row("ld", f"ld.volatile{_LD}{SIZE}{VECTOR}{WITH_B128}", "$v, [%rd0]"),
    Row("ld", f"ld{{.relaxed|.acquire}}{SCOPE}{_LD}{L1}{L2}{HINT}{SIZE}{VECTOR}{WITH_B128}", f"$v, [%rd0]{POLICY}"),
    Row("ld", f"ld.mmio.relaxed.sys{{|.global}}{WITH_B128}", "$v, [%rd0]"),
    Row("ld.global.nc", f"ld.global{{|.ca|.cg|.cs}}.nc{HINT}{SIZE}{VECTOR}{WITH_B128}", f"$v, [%rd0]{POLICY}"),
    Row("ld.global.nc", f"ld.global.nc{L1}{L2}{HINT}{SIZE}{VECTOR}{WITH_B128}", f"$v, [%rd0]{POLICY}"),
    Row("ldu", f"ldu{{|.global}}{{|.v2|.v4}}{WITH_B128}", "$v, [%rd0]"),
    Row("st", f"st{{|.weak}}{_ST}{{|.wb|.cg|.cs|.wt}}{HINT}{VECTOR}{WITH_B128}", f"[%rd0], $v{POLICY}"),
    Row("st", f"st{{|.weak}}{_ST}{L1}{L2}{HINT}{VECTOR}{WITH_B128}", f"[%rd0], $v{POLICY}"),
    Row("st", f"st.volatile{_ST}{VECTOR}{WITH_B128}", "[%rd0], $v"),
    Row("st", f"st{{.relaxed|.release}}{SCOPE}{_ST}{L1}{L2}{HINT}{VECTOR}{WITH_B128}", f"[%rd0], $v{POLICY}"),
    Row("st", f"st.mmio.relaxed.sys{{|.global}}{WITH_B128}", "[%rd0], $v"),
    Row("st.bulk", "st.bulk{|.weak}{|.shared::cta}", "[%rd0], %rd1, 0"),
    # atomics
    Row(
        "atom",
        f"atom{{|.relaxed|.acquire|.release|.acq_rel}}{{|.cta|.cluster|.gpu|.sys}}{_ATOM}"
        f"{{.and|.or|.xor|.exch|.add|.inc|.dec|.min|.max}}{HINT}{_ATOMIC}",
        f"$v, [%rd0], $s{POLICY}",
    ),
    Row(
        "atom",
        f"atom{{|.relaxed|.acquire|.release|.acq_rel}}{{|.cta|.cluster|.gpu|.sys}}{_ATOM}.cas"
        "{.b16|.b32|.b64|.b128|.u32|.u64}",
        "$v, [%rd0], $s, $s",
    ),
    Row(
        "atom",
        f"atom{{|.relaxed|.acq_rel}}{{|.cta|.gpu}}{_ATOM}.exch{HINT}.b128",
        f"$v, [%rd0], $s{POLICY}",
    ),
    Row(
        "atom",
        f"atom{{|.relaxed|.acquire|.release|.acq_rel}}{{|.cta|.cluster|.gpu|.sys}}{_ATOM}.add.noftz{HINT}"
        "{.f16|.f16x2|.bf16|.bf16x2}",
        f"$v, [%rd0], $s{POLICY}",
    ),
    Row("atom", f"atom{{|.relaxed|.acquire}}{{|.gpu}}{{|.global}}.add{HINT}{{.v2|.v4}}.f32", f"$v, [%rd0], $v{POLICY}"),
    Row(
        "atom",
        f"atom{{|.relaxed}}{{|.gpu}}{{|.global}}{{.add|.min|.max}}.noftz{HINT}{{.v2|.v4|.v8}}{{.f16|.bf16}}",
        f"$v, [%rd0], $v{POLICY}",
    ),
    Row(
        "atom",
        f"atom{{|.relaxed}}{{|.gpu}}{{|.global}}{{.add|.min|.max}}.noftz{HINT}{{.v2|.v4}}{{.f16x2|.bf16x2}}",
        f"$v, [%rd0], $v{POLICY}",
    ),
    Row(
        "red",
        f"red{{|.relaxed|.release}}{{|.cta|.cluster|.gpu|.sys}}{_ATOM}{{.and|.or|.xor|.add|.inc|.dec|.min|.max}}{HINT}{_ATOMIC}",
        f"[%rd0], $s{POLICY}",
    ),
    Row(
        "red",
        f"red{{|.relaxed|.release}}{{|.cta|.cluster|.gpu|.sys}}{_ATOM}.add.noftz{HINT}{{.f16|.f16x2|.bf16|.bf16x2}}",
        f"[%rd0], $s{POLICY}",
    ),
    Row("red", f"red{{|.relaxed|.release}}{{|.gpu}}{{|.global}}.add{HINT}{{.v2|.v4}}.f32", f"[%rd0], $v{POLICY}"),
    Row(
        "red",
        f"red{{|.relaxed}}{{|.gpu}}{{|.global}}{{.add|.min|.max}}.noftz{HINT}{{.v2|.v4|.v8}}{{.f16|.bf16}}",
        f"[%rd0], $v{POLICY}",
    ),
    Row(
        "red",
        f"red{{|.relaxed}}{{|.gpu}}{{|.global}}{{.add|.min|.max}}.noftz{HINT}{{.v2|.v4}}{{.f16x2|.bf16x2}}",
        f"[%rd0], $v{POLICY}",
    ),
    # asynchronous copies without bulk
    Row(
        "cp.async",
        f"cp.async{{.ca|.cg}}{SHARED}.global{HINT}{SIZE}",
        f"[%r0], [%rd0], {{4|8|16}}{{|, %r1|, 3|, %p1}}{POLICY}",
    ),
    Row("cp.async.commit_group", "cp.async.commit_group"),
    Row("cp.async.wait_group", "cp.async.wait_group", "{0|3}"),
    Row("cp.async.wait_all", "cp.async.wait_all"),
    # bulk copies
    Row("cp.async.bulk", f"cp.async.bulk.shared::cta.global{BYTES}{HINT}", f"[%r0], [%rd0], %r1, [%r2]{POLICY}"),
    Row(
        "cp.async.bulk",
        f"cp.async.bulk.shared::cluster.global{BYTES}{{|.multicast::cluster}}{HINT}",
        f"[%r0], [%rd0], {{%r1|64}}, [%r2]<.multicast::cluster:, %h1>{POLICY}",
    ),
    Row("cp.async.bulk", f"cp.async.bulk.shared::cluster.shared::cta{BYTES}", "[%r0], [%r1], %r2, [%r3]"),
    Row(
        "cp.async.bulk",
        f"cp.async.bulk.global.shared::cta.bulk_group{HINT}{{|.cp_mask}}",
        f"[%rd0], [%r1], %r2{POLICY}<.cp_mask:, %h1>",
    ),
    Row(
        "cp.reduce.async.bulk",
        f"cp.reduce.async.bulk.shared::cluster.shared::cta{BYTES}{{.and|.or|.xor|.add|.inc|.dec|.min|.max}}"
        "{.b32|.u32|.s32|.b64|.u64}",
        "[%r0], [%r1], %r2, [%r3]",
    ),
    Row(
        "cp.reduce.async.bulk",
        f"cp.reduce.async.bulk.global.shared::cta.bulk_group{HINT}{{.and|.or|.xor|.add|.inc|.dec|.min|.max}}"
        "{.f16|.bf16|.b32|.u32|.s32|.b64|.u64|.s64|.f32|.f64}",
        f"[%rd0], [%r1], %r2{POLICY}",
    ),
    Row(
        "cp.reduce.async.bulk",
        f"cp.reduce.async.bulk.global.shared::cta.bulk_group{HINT}.add.noftz{{.f16|.bf16}}",
        f"[%rd0], [%r1], %r2{POLICY}",
    ),
    Row("cp.async.bulk.prefetch", f"cp.async.bulk.prefetch.L2.global{HINT}", f"[%rd0], {{%r1|64}}{POLICY}"),
    Row("cp.async.bulk.commit_group", "cp.async.bulk.commit_group"),
    Row("cp.async.bulk.wait_group", "cp.async.bulk.wait_group{|.read}", "{0|3}"),
    # tensor copies
    Row(
        "cp.async.bulk.tensor",
        f"{_LOADED}{DIM}.shared::cta.global{{|.tile}}{BYTES}{HINT}",
        f"[%r0], [%rd0, $c], [%r6]{POLICY}",
    ),
    Row(
        "cp.async.bulk.tensor",
        f"{_LOADED}{DIM}.shared::cluster.global{{|.tile}}{BYTES}{{|.multicast::cluster}}{HINT}",
        f"[%r0], [%rd0, $c], [%r6]<.multicast::cluster:, %h1>{POLICY}",
    ),
    Row(
        "cp.async.bulk.tensor",
        f"{_LOADED}{{.3d|.4d|.5d}}.shared::cluster.global.im2col{BYTES}{{|.multicast::cluster}}{HINT}",
        f"[%r0], [%rd0, $c], [%r6], $o<.multicast::cluster:, %h1>{POLICY}",
    ),
    Row(
        "cp.async.bulk.tensor",
        f"{_LOADED}{{.3d|.4d|.5d}}.shared::cta.global.im2col{BYTES}{HINT}",
        f"[%r0], [%rd0, $c], [%r6], $o{POLICY}",
    ),
    Row(
        "cp.async.bulk.tensor",
        f"{_LOADED}{DIM}.global.shared::cta{{|.tile}}.bulk_group{HINT}",
        f"[%rd0, $c], [%r6]{POLICY}",
    ),
    Row(
        "cp.async.bulk.tensor",
        f"{_LOADED}{{.3d|.4d|.5d}}.global.shared::cta.im2col_no_offs.bulk_group{HINT}",
        f"[%rd0, $c], [%r6]{POLICY}",
    ),
    Row(
        "cp.async.bulk.tensor",
        f"{_LOADED}.2d{{.shared::cta|.shared::cluster}}.global.tile::gather4{BYTES}{HINT}",
        f"[%r0], [%rd0, {{%r1, %r2, %r3, %r4, %r5}}], [%r6]{POLICY}",
    ),
    Row(
        "cp.async.bulk.tensor",
        f"{_LOADED}.2d.global.shared::cta.tile::scatter4.bulk_group{HINT}",
        f"[%rd0, {{%r1, %r2, %r3, %r4, %r5}}], [%r6]{POLICY}",
    ),
    Row(
        "cp.async.bulk.tensor",
        f"{_LOADED}{{.3d|.4d|.5d}}.shared::cluster.global{{.im2col::w|.im2col::w::128}}{BYTES}{HINT}",
        f"[%r0], [%rd0, $c], [%r6], {{%h1, %h2}}{POLICY}",
    ),
    Row(
        "cp.async.bulk.tensor",
        f"{_LOADED}{{.3d|.4d|.5d}}.shared::cta.global{{.im2col::w|.im2col::w::128}}{BYTES}{HINT}",
        f"[%r0], [%rd0, $c], [%r6], {{%h1, %h2}}{POLICY}",
    ),
    Row(
        "cp.async.bulk.tensor",
        f"{_LOADED}{{.3d|.4d|.5d}}.shared::cluster.global{{.im2col::w|.im2col::w::128}}{BYTES}.multicast::cluster{HINT}",
        f"[%r0], [%rd0, $c], [%r6], {{%h1, %h2}}, %h3{POLICY}",
    ),
    Row(
        "cp.async.bulk.tensor",
        f"{_LOADED}{DIM}{{.shared::cta|.shared::cluster}}.global{BYTES}{{.cta_group::1|.cta_group::2}}{HINT}",
        f"[%r0], [%rd0, $c], [%r6]{POLICY}",
    ),
    Row(
        "cp.reduce.async.bulk.tensor",
        f"cp.reduce.async.bulk.tensor{DIM}.global.shared::cta{{.add|.min|.max|.inc|.dec|.and|.or|.xor}}"
        f"{{|.tile|.im2col_no_offs}}.bulk_group{HINT}",
        f"[%rd0, $c], [%r6]{POLICY}",
    ),
    Row(
        "cp.async.bulk.prefetch.tensor",
        f"cp.async.bulk.prefetch.tensor{DIM}.L2.global{{|.tile}}{HINT}",
        f"[%rd0, $c]{POLICY}",
    ),
    Row(
        "cp.async.bulk.prefetch.tensor",
        f"cp.async.bulk.prefetch.tensor{{.3d|.4d|.5d}}.L2.global.im2col{HINT}",
        f"[%rd0, $c], $o{POLICY}",
    ),
    Row(
        "cp.async.bulk.prefetch.tensor",
        f"cp.async.bulk.prefetch.tensor{{.3d|.4d|.5d}}.L2.global{{.im2col::w|.im2col::w::128}}{HINT}",
        f"[%rd0, $c], {{%h1, %h2}}{POLICY}",
    ),
    Row(
        "tensormap.replace",
        "tensormap.replace.tile.global_address{|.global|.shared::cta}.b1024.b64",
        "[%rd0], %rd1",
    ),
    Row("tensormap.replace", "tensormap.replace.tile.rank{|.global|.shared::cta}.b1024.b32", "[%rd0], %r1"),
    Row(
        "tensormap.replace",
        "tensormap.replace.tile{.box_dim|.global_dim|.element_stride}{|.global|.shared::cta}.b1024.b32",
        "[%rd0], {0|1|4}, %r1",
    ),
    Row(
        "tensormap.replace",
        "tensormap.replace.tile.global_stride{|.global|.shared::cta}.b1024.b64",
        "[%rd0], {0|1|3}, %rd1",
    ),
    Row(
        "tensormap.replace",
        "tensormap.replace.tile{.elemtype|.interleave_layout|.swizzle_mode|.swizzle_atomicity|.fill_mode}"
        "{|.global|.shared::cta}.b1024.b32",
        "[%rd0], {0|1}",
    ),
    Row(
        "tensormap.cp_fenceproxy",
        f"tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release{SCOPE}.sync.aligned",
        "[%rd0], [%rd1], 128",
    ),
    # mbarrier
    Row("mbarrier.init", f"mbarrier.init{_CTA}.b64", "[%rd0], {%r1|5}"),
    Row("mbarrier.inval", f"mbarrier.inval{_CTA}.b64", "[%rd0]"),
    Row("mbarrier.expect_tx", f"mbarrier{{.expect_tx|.complete_tx}}{_ANY}.b64", "[%rd0], {%r1|64}"),
    Row(
        "mbarrier.expect_tx",
        f"mbarrier{{.expect_tx|.complete_tx}}.relaxed{{.cta|.cluster}}{_ANY}.b64",
        "[%rd0], %r1",
    ),
    Row(
        "mbarrier.arrive",
        f"mbarrier{{.arrive|.arrive_drop}}{{|.release.cta|.release.cluster|.relaxed.cta|.relaxed.cluster}}{_CTA}.b64",
        "{%rd8|_}, [%rd0]{|, %r1|, 2}",
    ),
    Row(
        "mbarrier.arrive",
        "mbarrier{.arrive|.arrive_drop}{|.release.cta|.release.cluster|.relaxed.cta|.relaxed.cluster}.shared::cluster.b64",
        "_, [%rd0]{|, %r1|, 2}",
    ),
    Row(
        "mbarrier.arrive",
        "mbarrier{.arrive|.arrive_drop}.expect_tx"
        f"{{|.release.cta|.release.cluster|.relaxed.cta|.relaxed.cluster}}{_CTA}.b64",
        "{%rd8|_}, [%rd0], {%r1|64}",
    ),
    Row(
        "mbarrier.arrive",
        "mbarrier{.arrive|.arrive_drop}.expect_tx"
        "{|.release.cta|.release.cluster|.relaxed.cta|.relaxed.cluster}.shared::cluster.b64",
        "_, [%rd0], {%r1|64}",
    ),
    Row(
        "mbarrier.arrive",
        f"mbarrier{{.arrive|.arrive_drop}}.noComplete{{|.release.cta}}{_CTA}.b64",
        "%rd8, [%rd0], {%r1|2}",
    ),
    Row("cp.async.mbarrier.arrive", f"cp.async.mbarrier.arrive{{|.noinc}}{_CTA}.b64", "[%rd0]"),
    Row(
        "mbarrier.test_wait",
        f"mbarrier.test_wait{{|.acquire.cta|.acquire.cluster|.relaxed.cta|.relaxed.cluster}}{_CTA}.b64",
        "%p1, [%rd0], %rd1",
    ),
    Row(
        "mbarrier.test_wait",
        f"mbarrier.test_wait.parity{{|.acquire.cta|.acquire.cluster|.relaxed.cta|.relaxed.cluster}}{_CTA}.b64",
        "%p1, [%rd0], {%r1|1}",
    ),
    Row(
        "mbarrier.try_wait",
        f"mbarrier.try_wait{{|.acquire.cta|.acquire.cluster|.relaxed.cta|.relaxed.cluster}}{_CTA}.b64",
        "%p1, [%rd0], %rd1{|, %r1|, 1000}",
    ),
    Row(
        "mbarrier.try_wait",
        f"mbarrier.try_wait.parity{{|.acquire.cta|.acquire.cluster|.relaxed.cta|.relaxed.cluster}}{_CTA}.b64",
        "%p1, [%rd0], {%r1|1}{|, %r2|, 1000}",
    ),
    Row("mbarrier.pending_count", "mbarrier.pending_count.b64", "%r1, %rd1"),
    # clusters
    Row("mapa", "mapa.shared::cluster.u32", "%r8, {%r1|buffer|buffer + 16}, {%r2|1}"),
    Row("mapa", "mapa.shared::cluster.u64", "%rd8, {%rd1|buffer|buffer + 16}, {%r2|1}"),
    Row("mapa", "mapa.u64", "%rd8, %rd1, {%r2|1}"),
    Row("getctarank", "getctarank.shared::cluster.u32", "%r8, {%r1|buffer|buffer + 16}"),
    Row("getctarank", "getctarank.shared::cluster.u64", "%r8, %rd1"),
    Row("getctarank", "getctarank.u64", "%r8, %rd1"),
    Row(
        "st.async",
        f"st.async{{|.weak|.cluster}}{{|.shared::cluster}}{BYTES}{{|.v2|.v4}}{{.b32|.b64|.u32|.u64|.s32|.s64|.f32|.f64}}",
        "[%rd0], $v, [%rd1]",
    ),
    Row("st.async", f"st.async{{|.mmio}}.release{{.gpu|.sys}}{{|.global}}{TYPES}", "[%rd0], $v"),
    Row(
        "red.async",
        f"red.async.relaxed.cluster{{|.shared::cluster}}{BYTES}{{.inc|.dec|.min|.max|.and|.or|.xor|.add}}"
        "{.u32|.s32|.b32|.u64}",
        "[%rd0], $v, [%rd1]",
    ),
    Row("red.async", "red.async{|.mmio}.release{.gpu|.cluster}{|.global}.add{.u32|.s32|.u64|.s64}", "[%rd0], $v"),
    Row("barrier.cluster", "barrier.cluster.arrive{|.release|.relaxed}{|.aligned}"),
    Row("barrier.cluster", "barrier.cluster.wait{|.acquire}{|.aligned}"),
    # barriers and fences
    Row("barrier", "barrier{|.cta}.sync{|.aligned}", "{%r1|2}{|, %r2|, 64}"),
    Row("barrier", "barrier{|.cta}.arrive{|.aligned}", "{%r1|2}, {%r2|64}"),
    Row("barrier", "barrier{|.cta}.red.popc{|.aligned}.u32", "%r8, {%r1|2}{|, %r2|, 64}, {|!}%p1"),
    Row("barrier", "barrier{|.cta}.red{.and|.or}{|.aligned}.pred", "%p2, {%r1|2}{|, %r2|, 64}, {|!}%p1"),
    Row("bar", "bar{|.cta}.sync", "{%r1|2}{|, %r2|, 64}"),
    Row("bar", "bar{|.cta}.arrive", "{%r1|2}, {%r2|64}"),
    Row("bar", "bar{|.cta}.red.popc.u32", "%r8, {%r1|2}{|, %r2|, 64}, {|!}%p1"),
    Row("bar", "bar{|.cta}.red{.and|.or}.pred", "%p2, {%r1|2}{|, %r2|, 64}, {|!}%p1"),
    Row("bar.warp.sync", "bar.warp.sync", "{%r1|0xffffffff}"),
    Row("fence", f"fence{{|.sc|.acq_rel|.acquire|.release}}{SCOPE}"),
    Row("fence", "fence.acquire.sync_restrict::shared::cluster.cluster"),
    Row("fence", "fence.release.sync_restrict::shared::cta.cluster"),
    Row("fence", "fence.mbarrier_init.release.cluster"),
    Row("fence", "{fence|membar}.proxy{.alias|.async|.async.global|.async.shared::cta|.async.shared::cluster}"),
    Row("fence", f"fence.proxy.tensormap::generic.release{SCOPE}"),
    Row("fence", f"fence.proxy.tensormap::generic.acquire{SCOPE}", "[%rd0], 128"),
    Row("fence", "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster"),
    Row("fence", "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster"),
    Row("membar", "membar{.cta|.gl|.sys}"),
    # warps
    Row("shfl.sync", "shfl.sync{.up|.down|.bfly|.idx}.b32", "{%r8|%r8§%p1}, %r1, {%r2|1}, {%r3|31}, {%r4|-1}"),
    Row("vote.sync", "vote.sync{.all|.any|.uni}.pred", "%p2, {|!}%p1, {%r1|-1}"),
    Row("vote.sync", "vote.sync.ballot.b32", "%r8, {|!}%p1, {%r1|-1}"),
    Row("match.sync", "match.any.sync{.b32|.b64}", "%r8, $s, {%r1|-1}"),
    Row("match.sync", "match.all.sync{.b32|.b64}", "{%r8|%r8§%p1}, $s, {%r1|-1}"),
    Row("activemask", "activemask.b32", "%r8"),
    Row("redux.sync", "redux.sync{.add|.min|.max}{.u32|.s32}", "%r8, %r1, {%r2|-1}"),
    Row("redux.sync", "redux.sync{.and|.or|.xor}.b32", "%r8, %r1, {%r2|-1}"),
    Row("redux.sync", "redux.sync{.min|.max}{|.abs}{|.NaN}.f32", "%f8, %f1, %r2"),
    Row("elect.sync", "elect.sync", "{%r8|_}§%p1, {%r1|-1}"),
    Row("griddepcontrol", "griddepcontrol{.launch_dependents|.wait}"),
    Row("setmaxnreg", "setmaxnreg{.inc|.dec}.sync.aligned.u32", "{24|128|256}"),
    # shared memory and matrices
    Row("ldmatrix", f"ldmatrix.sync.aligned.m8n8.x1{{|.trans}}{_CTA}.b16", "{%r8}, [%rd0]"),
    Row("ldmatrix", f"ldmatrix.sync.aligned.m8n8.x2{{|.trans}}{_CTA}.b16", "{%r8, %r9}, [%rd0]"),
    Row("ldmatrix", f"ldmatrix.sync.aligned.m8n8.x4{{|.trans}}{_CTA}.b16", "{%r8, %r9, %r10, %r11}, [%rd0]"),
    Row("ldmatrix", f"ldmatrix.sync.aligned.m8n16.x1{_CTA}.b8x16{{.b6x16_p32|.b4x16_p64}}", "{%r8}, [%rd0]"),
    Row("ldmatrix", f"ldmatrix.sync.aligned.m8n16.x2{_CTA}.b8x16{{.b6x16_p32|.b4x16_p64}}", "{%r8, %r9}, [%rd0]"),
    Row(
        "ldmatrix",
        f"ldmatrix.sync.aligned.m16n16.x1.trans{_CTA}{{.b8|.b8x16.b6x16_p32|.b8x16.b4x16_p64}}",
        "{%r8, %r9}, [%rd0]",
    ),
    Row("stmatrix", f"stmatrix.sync.aligned.m8n8.x1{{|.trans}}{_CTA}.b16", "[%rd0], {%r8}"),
    Row("stmatrix", f"stmatrix.sync.aligned.m8n8.x2{{|.trans}}{_CTA}.b16", "[%rd0], {%r8, %r9}"),
    Row("stmatrix", f"stmatrix.sync.aligned.m8n8.x4{{|.trans}}{_CTA}.b16", "[%rd0], {%r8, %r9, %r10, %r11}"),
    Row("stmatrix", f"stmatrix.sync.aligned.m16n8.x2.trans{_CTA}.b8", "[%rd0], {%r8, %r9}"),
    Row("movmatrix", "movmatrix.sync.aligned.m8n8.trans.b16", "%r8, %r1"),
    Row("wgmma.fence", "wgmma{.fence|.commit_group}.sync.aligned"),
    Row("wgmma.wait_group", "wgmma.wait_group.sync.aligned", "{0|3}"),
    # caches and other instructions
    Row("prefetch", "prefetch{|.global|.local}{.L1|.L2}", "[%rd0]"),
    Row("prefetch", "prefetch.global{.L2::evict_last|.L2::evict_normal}", "[%rd0]"),
    Row("prefetch", "prefetchu.L1", "[%rd0]"),
    Row("prefetch", "prefetch{|.const|.param}.tensormap", "[%rd0]"),
    Row("applypriority", "applypriority{|.global}.L2::evict_normal", "[%rd0], 128"),
    Row("discard", "discard{|.global}.L2", "[%rd0], 128"),
    Row(
        "createpolicy",
        "createpolicy.range{|.global}{.L2::evict_last|.L2::evict_normal|.L2::evict_first|.L2::evict_unchanged}"
        "{|.L2::evict_first|.L2::evict_unchanged}.b64",
        "%rd8, [%rd0], {%r1|64}, {%r2|128}",
    ),
    Row(
        "createpolicy",
        "createpolicy.fractional{.L2::evict_last|.L2::evict_normal|.L2::evict_first|.L2::evict_unchanged}"
        "{|.L2::evict_first|.L2::evict_unchanged}.b64",
        "%rd8{|, %f1|, 0.5}",
    ),
    Row("createpolicy", "createpolicy.cvt.L2.b64", "%rd8, %rd1"),
    Row(
        "isspacep",
        "isspacep{.const|.global|.local|.shared|.shared::cta|.shared::cluster|.param|.param::entry}",
        "%p1, %rd0",
    ),
    Row(
        "cvta",
        "cvta{|.to}{.const|.global|.local|.shared|.shared::cta|.shared::cluster|.param|.param::entry}.u64",
        "%rd8, %rd0",
    ),
    Row("nanosleep", "nanosleep.u32", "{%r1|20}"),
    Row("pmevent", "pmevent", "3"),
    Row("pmevent", "pmevent.mask", "0xff"),
    Row("trap", "{trap|brkpt|exit|ret}"),
    Row(
        "multimem",
        "multimem.ld_reduce{|.weak|.relaxed.gpu|.acquire.sys|.acquire|.weak.gpu}{|.global}"
        f"{{.min|.max|.add|.and|.or|.xor}}{_INTEGERS}",
        "$v, [%rd0]",
    ),
    Row(
        "multimem",
        "multimem.ld_reduce{|.weak|.relaxed.gpu}{|.global}{.min|.max|.add|.and}{|.acc::f32|.acc::f16}{|.v2|.v4|.v8}"
        "{.f16|.f16x2|.bf16|.bf16x2|.f32|.f64}",
        "$v, [%rd0]",
    ),
    Row("multimem", f"multimem.st{{|.weak|.relaxed.gpu|.release.sys|.release}}{{|.global}}{_INTEGERS}", "[%rd0], $v"),
    Row(
        "multimem",
        "multimem.st{|.weak|.release.cta}{|.global}{|.v2|.v4|.v8}{.f16|.f16x2|.bf16|.bf16x2|.f32|.f64}",
        "[%rd0], $v",
    ),
    Row(
        "multimem",
        f"multimem.red{{|.relaxed.gpu|.release.sys|.release}}{{|.global}}{{.min|.max|.add|.and|.or|.xor}}{_INTEGERS}",
        "[%rd0], $v",
    ),
    Row(
        "multimem",
        "multimem.red{|.relaxed.gpu}{|.global}{.min|.add}{|.v2|.v4|.v8}{.f16|.f16x2|.bf16|.bf16x2|.f32|.f64}",
        "[%rd0], $v",
    ),
    Row(
        "clusterlaunchcontrol",
        f"clusterlaunchcontrol.try_cancel.async{{|.shared::cta}}{BYTES}{{|.multicast::cluster::all}}.b128",
        "[%rd0], [%rd1]",
    ),
    Row("clusterlaunchcontrol", "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128", "%p1, %q1"),
)

LIMIT = 1000
"""So many instructions of a row are tried; of a longer one a sample with every pair of choices, many times over."""


@cache
def sample(row: Row) -> list[str]:
    """The row's instructions, or some :data:`LIMIT` of them, the same ones every time."""
    choices = _choices(row.opcode)
    draw = random.Random(row.opcode)
    if math.prod(len(c) for c in choices) <= LIMIT:
        opcodes = ["".join(parts) for parts in itertools.product(*choices)]
    else:
        opcodes = list(dict.fromkeys("".join(draw.choice(c) for c in choices) for _ in range(LIMIT)))
    found = [s.replace("§", "|") for s in row.statements(opcodes)]
    return found if len(found) <= LIMIT else draw.sample(found, LIMIT)
