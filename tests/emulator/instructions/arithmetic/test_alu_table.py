"""The whole arithmetic table: the opcodes that it matches, their acceptance by ptxas, and every form executed as a program."""

from __future__ import annotations

from collections import Counter

import alu_forms
import alu_oracle as oracle
import numpy as np
import ptxas_oracle
import pytest
from programs import Run

from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.emulator.simt.table import entries, lookup

ALL = list(alu_forms.forms())


def test_no_opcode_matches_two_patterns():
    every = Counter(opcode for e in entries() if e.kind == "alu" for opcode in e.opcodes())
    assert not [opcode for opcode, n in every.items() if n > 1]
    for opcode in list(every)[::50]:
        found = lookup(opcode)
        assert found is not None and found[1].opcode == opcode


def test_ptxas_takes_every_form():
    refused = ptxas_oracle.refused_everywhere([alu_forms.statement(f) for f in ALL])
    assert not {str(ALL[n]): message for n, message in refused.items()}


@pytest.mark.parametrize(
    "opcode",
    [
        "add.sat.u64",
        "add.cc.u16",
        "mul.u32",
        "fma.f32",
        "cvt.f32.s32",
        "cvt.sat.u32.u16",
        "cvt.rn.f64.f32",
        "setp.lo.s32",
        "setp.lt.b32",
        "min.ftz.f64",
        "selp.f16",
        "shl.u32",
        "bfe.b32",
        "ex2.approx.ftz.f16",
        "neg.u32",
        "abs.ftz.bf16",
        "lop3.xor.b32",
        "cvt.rn.bf16x2.f16x2",
    ],
)
def test_what_ptxas_refuses_is_not_in_the_table(opcode):
    assert lookup(opcode) is None


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("add.ftz.rn.f32", "add.rn.ftz.f32"),
        ("cvt.rn.satfinite.relu.f16.f32", "cvt.rn.relu.satfinite.f16.f32"),
        ("prmt.f4e.b32", "prmt.b32.f4e"),
        ("setp.and.lt.s32", "setp.lt.and.s32"),
        ("min.NaN.ftz.f32", "min.ftz.NaN.f32"),
    ],
)
def test_modifiers_come_in_any_order(written, canonical):
    found = lookup(written)
    assert found is not None and found[1].opcode == canonical
    assert lookup("cvt.s32.f32.rzi.sat") is None or lookup("cvt.s32.f32.rzi.sat")[1].opcode == "cvt.rzi.sat.s32.f32"


def test_every_pattern_runs_as_a_program():
    """One form of each pattern through parser, binder and wave: the lane function's operands and results, and their types."""
    chosen = {}
    for form in ALL:
        chosen.setdefault((form.entry.pattern, str(form.entry.sets), form.pair, form.leave_out), form)
    forms = list(chosen.values())
    threads = 64
    text = alu_forms.module(forms, "sm_100a", threads=threads)
    run = Run(text, target="sm_100a")
    machine = run.machine
    source, target = machine.allocate(5 * threads * 8), machine.allocate(4 * threads * 8)
    for n, form in enumerate(forms):
        words = alu_forms.inputs(form, threads)
        machine.write(source, np.ascontiguousarray(words).view(np.uint8).reshape(-1))
        params = np.array([source, target], np.uint64).tobytes()
        run.program.launch(
            f"k{n}", params, grid=(1, 1, 1), block=(threads, 1, 1), settings=EmulatorSettings(counting=False)
        )
        destinations, sources = form.types()
        if any(t.name == "cc" for t in (*destinations, *sources)):
            continue
        lanes = list(words[: len(sources)])
        for k, t in enumerate(sources):
            lanes[k] = lanes[k] & np.uint64((1 << t.bits) - 1)
        if form.immediate is not None:
            lanes[3] = np.array([form.immediate])
        result = oracle.apply(form.opcode, *lanes, pair=form.pair)
        outs = result if isinstance(result, tuple) else (result,)
        slots = machine.read(target, 4 * threads * 8).view(np.uint64).reshape(4, threads)
        for k, (t, out) in enumerate(zip(destinations, outs, strict=False)):
            got = slots[k] & np.uint64((1 << t.bits) - 1)
            assert got.tolist() == [v & (1 << t.bits) - 1 for v in oracle.bits_of(out, threads)], (str(form), t.name)
