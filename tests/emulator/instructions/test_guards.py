"""Every instruction that writes a register, under a guard: lanes for which it is false keep their registers and take no part.

Each statement is executed twice with the same destinations, once guarded and once after a branch around it, and the registers
are compared in all threads. Collectives of a warp get a guard that half of their lanes fulfil, aligned instructions a guard
that half of the warps fulfil.
"""

from __future__ import annotations

import re

import alu_forms
import gpu_comparison
import numpy as np
import ptxas_oracle
import pytest
from either import Bench

from ptxkit.compiler import assemble
from ptxkit.emulator.simt.opcode_patterns import CARRY
from ptxkit.emulator.simt.table import entries

THREADS, LANES, WARPS = 128, 0xAAAAAAAA, 4
"""Odd lanes take part, or odd warps."""

VARIABLES = """
.shared .align 16 .b8 tile[4096]; .shared .align 8 .b64 bar; .shared .align 16 .b8 own[2048];
.global .align 16 .b8 data[8192]; .const .align 16 .b8 table[64] = {1, 2, 3};
.func (.reg .u32 sum) plus (.reg .u32 a) { add.u32 sum, a, 3; ret; }
.func (.param .b32 sum) twice (.param .b32 a) { .reg .b32 t; ld.param.b32 t, [a]; add.u32 t, t, t; st.param.b32 [sum], t; ret; }
"""
SETUP = """
    mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 31; mov.u32 %r2, 5; mov.u32 %r3, tile; mov.u64 %rd2, data;
    mul.wide.u32 %rd3, %r0, 16; add.u64 %rd2, %rd2, %rd3; cvta.shared.u64 %rd4, tile; mad.lo.u32 %r6, %r0, 16, %r3;
    st.shared.v4.b32 [%r6], {%r0, %r1, %r2, %r3}; st.global.v4.b32 [%rd2], {%r0, %r1, %r2, %r2};
    mov.b64 %rd5, {%r0, %r2}; cvt.rn.f32.u32 %f0, %r0; mov.b128 %q0, {%rd5, %rd5}; cvt.u16.u32 %h0, %r0;
    cvt.rn.f64.u32 %d0, %r0; mov.u32 %r16, 0x44444444;
    mul.wide.u32 %rd6, %r0, 128; add.u64 %rd6, %rd6, %rd0;
    setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p2, %r0, %r0; @%p0 mbarrier.init.shared.b64 [bar], 4096; bar.sync 0;
    mov.u32 %r5, own; mad.lo.u32 %r5, %r0, 16, %r5; mbarrier.init.shared.b64 [%r5], 5; mbarrier.arrive.shared.b64 %rd16, [%r5];
    mbarrier.arrive.shared.b64 %rd9, [%r5]; mad.lo.u32 %r4, %r1, 16, %r3;
"""
GUARD = {
    "lanes": "and.b32 %r7, %r0, 1; setp.eq.u32 %p1, %r7, 1;",
    "warps": "and.b32 %r7, %r0, 32; setp.eq.u32 %p1, %r7, 32;",
}
_F = "{%r8, %r9, %r10, %r11, %r12, %r13, %r14, %r15}"
_G = "{%f8, %f9, %f10, %f11, %f12, %f13, %f14, %f15}"
_A = "{%r0, %r1, %r2, %r0, %r1, %r2, %r0, %r1}"
_C4 = "{%f0, %f0, %f0, %f0}"
_C = "{%f0, %f0, %f0, %f0, %f0, %f0, %f0, %f0}"

PER_LANE = [
    *(f"shfl.sync.{mode}.b32 %r8|%p8, %r0, 2, {clamp}, {LANES}" for mode, clamp in (("down", 31), ("up", 0), ("bfly", 31))),
    f"shfl.sync.idx.b32 %r8, %r0, 5, 31, {LANES}",
    *(f"vote.sync.{mode}.pred %p8, %p2, {LANES}" for mode in ("all", "any", "uni")),
    f"vote.sync.any.pred %p8, %p0, {LANES}",
    f"vote.sync.ballot.b32 %r8, %p2, {LANES}",
    f"match.any.sync.b32 %r8, %r2, {LANES}",
    f"match.all.sync.b64 %r8|%p8, %rd4, {LANES}",
    f"match.all.sync.b32 %r8|%p8, %r1, {LANES}",
    *(f"redux.sync.{op} %r8, %r0, {LANES}" for op in ("add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32")),
    f"elect.sync %r8|%p8, {LANES}",
    f"elect.sync _|%p8, {LANES}",
    "activemask.b32 %r8",
    "mbarrier.test_wait.parity.shared.b64 %p8, [bar], 1",
    "mbarrier.test_wait.parity.shared.b64 %p8, [bar], 0",
    "mbarrier.try_wait.parity.shared.b64 %p8, [bar], 1",
    "mbarrier.try_wait.parity.shared.b64 %p8, [bar], 0, 10",
    "mbarrier.pending_count.b64 %r8, %rd16",
    "mbarrier.arrive.shared.b64 %rd8, [%r5]",
    *(f"ld{space}.b32 %r8, [%rd2]" for space in ("", ".global", ".global.nc", ".volatile", ".acquire.gpu")),
    "ld.v4.b32 {%r8, %r9, %r10, %r11}, [%rd2]",
    "ld.global.v2.b64 {%rd8, %rd9}, [%rd2]",
    "ld.global.b128 %q8, [%rd2]",
    "ld.shared.v4.b32 {%r8, _, %r10, %r11}, [%r6]",
    "ld.shared::cluster.b32 %r8, [%r6]",
    "ld.const.b32 %r8, [table]",
    "ld.param.b16 %h8, [k_param_0+6]",
    "ldu.global.b32 %r8, [%rd2]",
    *(f"atom.global.{op} %r8, [%rd2], %r2" for op in ("add.u32", "exch.b32", "min.s32", "inc.u32", "xor.b32")),
    "atom.global.cas.b32 %r8, [%rd2], %r0, %r2",
    "atom.global.add.noftz.f16 %h8, [%rd2], %h0",
    "atom.global.add.v2.f32 {%f8, %f9}, [%rd2], {%f0, %f0}",
    "atom.global.exch.b128 %q8, [%rd2], %q0",
    "atom.shared.add.u32 %r8, [%r6], %r2",
    "atom.shared.cas.b64 %rd8, [%r6], %rd5, %rd4",
    "atom.add.u64 %rd8, [%rd2], %rd5",
    "cvta.to.shared.u64 %rd8, %rd4",
    "cvta.shared.u64 %rd8, %rd5",
    "isspacep.shared %p8, %rd4",
    "isspacep.global %p8, %rd4",
    "mapa.shared::cluster.u32 %r8, %r3, 0",
    "getctarank.shared::cluster.u32 %r8, %r3",
    "createpolicy.fractional.L2::evict_last.b64 %rd8, 1.0",
    "vadd.u32.u32.u32 %r8, %r0, %r2",
    "vset.u32.u32.lt %r8, %r0, %r2",
    "vmad.u32.u32.u32 %r8, %r0, %r2, %r1",
    "vadd4.u32.u32.u32 %r8, %r0, %r2, %r1",
    "mov.b64 {%r8, %r9}, %rd5",
    "mov.b64 {_, %r9}, %rd5",
    "mov.b32 {%h8, %h9}, %r0",
    "mov.b128 {%rd8, %rd9}, %q0",
    "mov.b64 %rd8, {%r0, %r2}",
    "mov.u32 %r8, %laneid",
    "mov.u32 %r8, tile",
    "mov.pred %p8, %p2",
    "call (%r8), plus, (%r0)",
    "call (%r8), twice, (%r0)",
]
PER_WARP = [
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r8}, [%r4]",
    "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r8, %r9}, [%r4]",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r8, %r9, %r10, %r11}, [%r4]",
    "movmatrix.sync.aligned.m8n8.trans.b16 %r8, %r0",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f8, %f9, %f10, %f11}, {%r0, %r1, %r2, %r0}, {%r1, %r2}, " + _C4,
    "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r8, %r9}, {%r0, %r1, %r2, %r0}, {%r1, %r2}, {%r2, %r2}",
    "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%r8, %r9, %r10, %r11}, {%r0, %r1}, {%r2}, {%r0, %r0, %r1, %r1}",
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f8, %f9, %f10, %f11}, {%r0, %r1, %r2, %r0}, {%r1, %r2}, " + _C4,
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d8, %d9}, {%d0}, {%d0}, {%d0, %d0}",
    (
        "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f8, %f9, %f10, %f11}, {%r0, %r1}, "
        "{%r1, %r2}, {%f0, %f0, %f0, %f0}, %r16, 0"
    ),
    f"wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {_F}, [tile]",
    f"wmma.load.c.sync.aligned.row.m16n16k16.shared.f32 {_G}, [tile]",
    f"wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {_G}, {_A}, {_A}, {_C}",
    "bar.red.popc.u32 %r8, 1, 64, %p2",
    "bar.red.and.pred %p8, 1, 64, %p0",
    "barrier.red.or.pred %p8, 1, 64, %p2",
    f"shfl.sync.idx.b32 %r8, %r0, 5, 31, {0xFFFFFFFF}",
    "vote.sync.ballot.b32 %r8, %p2, -1",
]
BLACKWELL = [
    f"redux.sync.min.f32 %f8, %f0, {LANES}",
    "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p8, %q0",
    "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r8, %r9, %r10, _}, %q0",

    "atom.global.add.u32 %r8, [%rd2], %r2",
]
"""For sm_100a alone."""



_KIND = re.compile(r"%(rd|r|f|d|h|p|q)(?:8|9|1[0-5])\b")


@pytest.fixture
def run(device) -> Bench:
    return Bench(device, "eager")


def written(statement: str) -> dict[str, str]:
    """Each register that it writes, which are numbered from 8, and its kind."""
    return {m[0]: m[1] for m in _KIND.finditer(statement)}


def preset(register: str, kind: str, true: bool) -> str:
    """Gives a destination a value."""
    if kind in "fd":
        return f"cvt.rn.f{32 if kind == 'f' else 64}.u32 {register}, %r2;"
    values = {"p": f"setp.{'eq' if true else 'ne'}.u32 {register}, %r0, %r0;", "q": f"mov.b128 {register}, {{%rd4, %rd3}};"}
    return values.get(kind) or f"mov.u{ {'r': 32, 'rd': 64, 'h': 16}[kind]} {register}, 77;"


def stored(register: str, kind: str, word: int) -> str:
    """Stores a register as 64 bits (of 128 the first 64) in a word of the thread."""
    text = {
        "p": f"selp.u64 %rd7, 1, 0, {register};",
        "r": f"cvt.u64.u32 %rd7, {register};",
        "rd": f"mov.u64 %rd7, {register};",
        "h": f"cvt.u64.u16 %rd7, {register};",
        "f": f"mov.b32 %r7, {register}; cvt.u64.u32 %rd7, %r7;",
        "d": f"mov.b64 %rd7, {register};",
        "q": f"mov.b128 {{%rd7, _}}, {register};",
    }[kind]
    return f"{text} st.global.u64 [%rd6+{8 * word}], %rd7;"


def body(statement: str, which: str, true: bool, branch: bool) -> str:
    """Stores the destinations as they were in the first 8 words of each thread, and after the instruction in the others."""
    registers = written(statement)
    lines = [".reg .b128 %q<16>;", SETUP, GUARD[which]]
    lines += [preset(r, kind, true) for r, kind in registers.items()]
    lines += [stored(r, kind, n) for n, (r, kind) in enumerate(registers.items())]
    lines.append(f"@!%p1 bra PAST; {statement}; PAST:" if branch else f"@%p1 {statement};")
    lines += [stored(r, kind, 8 + n) for n, (r, kind) in enumerate(registers.items())]
    return "\n".join(lines)


def check(run: Bench, statement: str, which: str, target: str = "sm_90a") -> None:
    thread = np.arange(THREADS)
    odd = (thread if which == "lanes" else thread // 32) % 2 == 1
    changes = False
    for true in (False, True):
        results = []
        for branch in (False, True):
            text = body(statement, which, true, branch)
            zeros = np.zeros((THREADS, 16), np.uint64)
            results.append(run(text, zeros, block=THREADS, before=VARIABLES, target=target)[0].reshape(THREADS, 2, 8))
        guarded, around = results
        np.testing.assert_array_equal(guarded[~odd, 1], guarded[~odd, 0], err_msg="threads whose guard is false")
        np.testing.assert_array_equal(guarded, around, err_msg="guarded, and after a branch")
        changes = changes or bool((guarded[odd, 1] != guarded[odd, 0]).any())
    assert changes, "the instruction changes nothing here, so that nothing was tested"


@pytest.mark.parametrize("statement", PER_LANE)
def test_lanes_keep_their_registers(run, statement):
    check(run, statement, "lanes")


@pytest.mark.parametrize("statement", PER_WARP)
def test_warps_keep_their_registers(run, statement):
    check(run, statement, "warps")


@pytest.mark.parametrize("statement", BLACKWELL)
def test_lanes_keep_their_registers_on_blackwell(run, statement):
    if run.device.kind == "gpu" and run.device.target.cc < 100:
        pytest.skip("needs sm_100")
    check(run, statement, "lanes", target="sm_100a")


def one_form_of_each() -> list[alu_forms.Form]:
    """One form of each arithmetic pattern that neither reads nor writes the carry flag."""
    found = []
    for e in entries():
        if e.kind == "alu":
            form = alu_forms.Form(next(iter(e.opcodes())), pair="x2" in e.pattern and e.pattern.startswith("cvt"))
            form = next((f for f in alu_forms.forms(form.opcode) if f.entry is e), None)
            if form is not None and CARRY not in {t.name for side in form.types() for t in side}:
                found.append(form)
    return found


def guarded_kernel(form: alu_forms.Form, name: str, threads: int) -> str:
    """The form's kernel with destinations that have values before, and with a guard that odd threads fulfil."""
    text, statement = alu_forms.kernel(form, name, threads), alu_forms.statement(form)
    registers = re.findall(r"%([a-z]+)[45]\b", statement)
    before = "mov.u32 %r15, %tid.x; and.b32 %r15, %r15, 1; setp.eq.u32 %p7, %r15, 1;"
    for n, kind in enumerate(registers, 4):
        value = {"p": f"setp.ne.u32 %p{n}, %r0, %r0;", "f": f"mov.b32 %f{n}, 77;", "d": f"mov.b64 %d{n}, 77;"}
        bits = {"r": "b32", "rd": "b64", "h": "b16"}.get(kind)
        before += value.get(kind) or (f"mov.{bits} %{kind}{n}, 77;" if bits else f"cvt.u8.u32 %c{n}, 77;")
    assert text.count(statement) == 1
    return text.replace(statement, f"{before} @%p7 {statement}")


ASSEMBLED_DIFFERENTLY = re.compile(r"set\.\w+(\.and)?\.bf16\.f(16|32)|testp\.\w+\.f32")
"""Guarded instructions for which the machine code of nvJitLink 13.0 writes lanes whose guard is false, as an H200 shows: in
those, ``set`` converts the earlier value of a bf16 register as if it were a number, and ``testp`` writes its result."""


def equal(form: alu_forms.Form, a: np.ndarray, b: np.ndarray) -> bool:
    """Whether results agree; any NaN of abs and neg does, whose payload depends on the machine instruction that is chosen."""
    if form.opcode in ("abs.f32", "neg.f32"):
        a, b = (np.where((x & 0x7FFFFFFF) > 0x7F800000, 0x7FFFFFFF, x) for x in (a, b))
    return bool((a == b).all())


def test_lanes_keep_their_registers_in_arithmetic(device):
    """All patterns of the instruction table, with the operands of the comparison with ptxas."""
    threads = 64
    target = device.target.name if device.kind == "gpu" else "sm_100a"
    version = ptxas_oracle.newest_version()
    forms = gpu_comparison.valid(one_form_of_each(), target, version)
    assert len(forms) > 150
    head = f".version {version}\n.target {target}\n.address_size 64\n"
    text = head + "".join(
        alu_forms.kernel(f, f"k{n}", threads) + guarded_kernel(f, f"g{n}", threads) for n, f in enumerate(forms)
    )
    loaded = device.load(assemble(text, target=target, name="guards.ptx", cubin=device.kind == "gpu", cache=False))
    odd, wrong = np.arange(threads) % 2 == 1, []
    for n, form in enumerate(forms):
        given = np.zeros((gpu_comparison.INPUT_ROWS, threads), np.uint64)
        rows = alu_forms.inputs(form, threads)
        given[: len(rows)] = rows
        results = []
        for kernel in (loaded[f"k{n}"], loaded[f"g{n}"]):
            out = np.zeros((gpu_comparison.OUTPUT_ROWS, threads), np.uint64)
            kernel(given, out, grid=1, block=threads)
            results.append(out)
        whole, guarded = results
        kinds = [t.name for t in form.types()[0]]
        kept = np.array([0 if k == "pred" else 77 for k in kinds], np.uint64)[:, None]
        rows = len(kinds)
        if device.kind == "gpu" and ASSEMBLED_DIFFERENTLY.fullmatch(form.opcode):
            continue
        if not equal(form, guarded[:rows, odd], whole[:rows, odd]) or (guarded[:rows, ~odd] != kept).any():
            wrong.append(str(form))
    assert not wrong


def test_lanes_keep_the_carry_flag(run):
    body = SETUP + GUARD["lanes"] + "add.cc.u32 %r8, -1, 1; @%p1 add.cc.u32 %r8, %r0, 0; addc.u32 %r9, 0, 0;"
    out = run(
        ".reg .b128 %q<16>;" + body + stored("%r9", "r", 0),
        np.zeros((THREADS, 16), np.uint64),
        block=THREADS,
        before=VARIABLES,
    )[0]
    np.testing.assert_array_equal(out[:, 0], np.arange(THREADS) % 2 == 0)
