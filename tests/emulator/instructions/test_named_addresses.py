"""Addresses that name a variable, in instructions with and without a state space: what ptxas takes, the emulator takes."""

from __future__ import annotations

import re

import numpy as np
import ptxas_oracle
import pytest
from either import Bench

from ptxkit.emulator import Machine
from ptxkit.errors import UnsupportedError
from ptxkit.isa.parser import parse

HEAD = (
    ".const .align 16 .b8 constant[64]; .global .align 16 .b8 global[64];\n"
    ".entry k(.param .b64 k_param) { .local .align 16 .b8 local[64];"
)
SPACES = ("", ".global", ".shared", ".shared::cta", ".shared::cluster", ".local", ".const", ".param")
FRAGMENT = "{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}"
TO_SHARED = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
FORMS = (
    "ld{}.b32 %r1, [$];",
    "st{}.b32 [$], %r1;",
    "atom{}.add.u32 %r1, [$], %r2;",
    "red{}.add.u32 [$], %r2;",
    "mbarrier.init{}.b64 [$], 1;",
    "ldmatrix.sync.aligned.m8n8.x1{}.b16 {{%r1}}, [$];",
    "prefetch{}.L1 [$];",
    f"wmma.load.a.sync.aligned.row.m16n16k16{{}}.f16 {FRAGMENT.replace('{', '{{').replace('}', '}}')}, [$];",
    "cvta{}.u64 %rd1, $;",
    "cvta.to{}.u64 %rd1, $;",
)
OTHERS = (
    "cp.async.ca.shared.global [$], [%rd0], 4;",
    "cp.async.ca.shared.global [%r0], [$], 4;",
    "ldu.global.b32 %r1, [$];",
    "ld.global.nc.b32 %r1, [$];",
    "st.async.mbarrier::complete_tx::bytes.b32 [$], %r1, [buffer];",
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [buffer], %r1, [$];",
    f"{TO_SHARED} [$], [%rd0], 16, [buffer];",
    f"{TO_SHARED} [buffer], [$], 16, [buffer];",
    "mapa.shared::cluster.u64 %rd1, $, 0;",
    "mov.u64 %rd1, $;",
)
VARIABLES = ("local", "buffer", "constant", "global", "k_param")
STATEMENTS = [f.format(s).replace("$", v) for v in VARIABLES for f in FORMS for s in SPACES]
STATEMENTS += [f.replace("$", v) for v in VARIABLES for f in OTHERS]

CRASHES = {"atom.add.u32 %r1, [local], %r2;", "red.add.u32 [local], %r2;"}
"""ptxas takes them when it checks the text, and ends with a segmentation fault when it compiles them."""


def test_the_state_space_of_a_variable_is_compared_with_the_instructions(monkeypatch):
    whole = ptxas_oracle.module
    monkeypatch.setattr(ptxas_oracle, "module", lambda *a: whole(*a).replace(".entry k() {", HEAD))
    monkeypatch.setattr(ptxas_oracle, "FIRST_LINE", ptxas_oracle.FIRST_LINE + 1)
    theirs = {STATEMENTS[n] for n in ptxas_oracle.refused(STATEMENTS, "sm_90a", compiled=False)}
    program = Machine(capacity=1 << 20).load(
        parse(ptxas_oracle.module(STATEMENTS, "sm_90a", "8.8"), "f.ptx"), "sm_90a"
    )
    with pytest.raises(UnsupportedError) as e:
        program.bind("k")
    lines = re.findall(r"(?:f\.ptx:|line )(\d+)", "\n".join(e.value.places))
    ours = {STATEMENTS[int(n) - ptxas_oracle.FIRST_LINE] for n in lines}
    assert ours - theirs == CRASHES
    assert not theirs - ours


VALUES = np.arange(32, dtype=np.uint32)
ADDRESS = "mov.u32 %r0, %tid.x; mad.wide.u32 %rd9, %r0, 4, %rd0;"


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("st.b32 [own+4], %r0; ld.b32 %r1, [own+4];", VALUES),
        ("st.v2.b32 [own+8], {%r0, %r0}; ld.v2.b32 {%r1, _}, [own+8];", VALUES),
        ("st.volatile.b32 [own], %r0; ld.volatile.b32 %r1, [own];", VALUES),
        ("st.b32 [tile+4], 7; bar.sync 0; ld.b32 %r1, [tile+4];", 7),
        ("st.b32 [tile+4], 7; bar.sync 0; cvta.shared.u64 %rd8, tile; ld.b32 %r1, [%rd8+4];", 7),
        ("st.b32 [tile], 0; bar.sync 0; red.add.u32 [tile], 2; bar.sync 0; atom.exch.b32 %r1, [tile], 64;", 64),
        ("st.b32 [word], 0; bar.sync 0; ld.b32 %r1, [word];", 0),
        ("ld.const.b32 %r1, [table+4];", 2),
        ("cp.async.ca.shared.global [tile], [word], 4; cp.async.wait_all; bar.sync 0; ld.b32 %r1, [tile];", 5),
    ],
)
def test_the_variable_is_accessed(device, body, want):
    if "atom.exch" in body:
        body += "min.u32 %r1, %r1, 64;"
    before = ".shared .align 16 .b8 tile[64]; .global .b32 word = 5; .const .b32 table[2] = {1, 2};"
    text = f"{ADDRESS} {{ .local .align 16 .b8 own[64]; {body} st.global.u32 [%rd9], %r1; }}"
    (out,) = Bench(device, "eager")(text, np.zeros(32, np.uint32), before=before)
    np.testing.assert_array_equal(out, np.broadcast_to(want, 32))
