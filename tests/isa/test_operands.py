"""Every form of an operand, in whole statements: each is printed as it was written."""

import pytest

from ptxkit.errors import PtxSyntaxError
from ptxkit.isa.model import (
    Address,
    Immediate,
    Negated,
    Pair,
    ParameterList,
    Register,
    Selection,
    SpecialRegister,
    Symbol,
    Vector,
)
from ptxkit.isa.parser import parse

R1, R2, D1, P, Q = (Register(name) for name in ("%r1", "%r2", "%rd1", "p", "q"))

HEADER = """.version 8.6
.target sm_90a
.address_size 64
.global .u32 g[4];
.func f(.param .b32 x) { ret; }
.visible .entry k(.param .u64 k_p) {
.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred p, q; .reg .v4 .f32 v; .reg .b128 w;
.shared .v2 .u32 s[8]; .param .b32 arg; .param .b32 ret0;
"""


def instruction(statement):
    instructions = parse(f"{HEADER}{statement}\n}}").functions["k"].instructions
    assert len(instructions) == 1
    assert instructions[0].line == HEADER.count("\n") + 1
    return instructions[0]


@pytest.mark.parametrize(
    "statement, operands",
    [
        ("mov.u32 %r1, %r2;", (R1, R2)),
        ("mov.u32 %r1, %tid.x;", (R1, SpecialRegister("%tid.x"))),
        ("mov.u32 %r1, %tid.r;", (R1, SpecialRegister("%tid.x"))),
        ("mov.v4.u32 {%r1,%r2,_,_}, %nctaid;", (Vector((R1, R2, None, None)), SpecialRegister("%nctaid"))),
        *((f"mov.u64 %rd1, {name};", (D1, SpecialRegister(name))) for name in (
            "%clock64", "%globaltimer", "%envreg3", "%pm0_64", "%pm7", "%lanemask_lt", "%cluster_ctarank", "%laneid",
            "%cluster_nctaid.z", "%is_explicit_cluster", "%reserved_smem_offset_begin", "%dynamic_smem_size", "%smid",
        )),
        ("mov.u32 %r1, WARP_SZ;", (R1, Immediate(32))),
        ("mov.u32 %r1, -5;", (R1, Immediate(-5))),
        ("mov.u32 %r1, 1+2*3;", (R1, Immediate(7))),
        ("mov.u32 %r1, (.u64)5;", (R1, Immediate(5))),
        ("mov.f32 %r1, 0f3F800000;", (R1, Immediate(1.0, 32, 0x3F800000))),
        ("mov.u64 %rd1, g;", (D1, Symbol("g"))),
        ("mov.u64 %rd1, g+16;", (D1, Symbol("g", 16))),
        ("mov.u64 %rd1, g-4;", (D1, Symbol("g", -4))),
        ("mov.u64 %rd1, g[2];", (D1, Symbol("g", 8))),
        ("mov.u64 %rd1, s[1];", (D1, Symbol("s", 8))),
        ("mov.u64 %rd1, f;", (D1, Symbol("f"))),
        ("mov.b64 %rd1, {%r1, %r2};", (D1, Vector((R1, R2)))),
        ("mov.b64 {%r1, _}, %rd1;", (Vector((R1, None)), D1)),
        ("mov.b64 %rd1, {%r1, 0};", (D1, Vector((R1, Immediate(0))))),
        ("mov.b128 w, {%rd1, %rd1};", (Register("w"), Vector((D1, D1)))),
        ("mov.f32 v.y, v.x;", (Register("v$y"), Register("v$x"))),
        ("mov.f32 v.g, v.r;", (Register("v$y"), Register("v$x"))),
        ("ld.global.v4.f32 v, [%rd1];", (Vector(tuple(Register(f"v${c}") for c in "xyzw")), Address(D1))),
        ("ld.global.u32 %r1, [%rd1+16];", (R1, Address(D1, 16))),
        ("ld.global.u32 %r1, [%rd1+-4];", (R1, Address(D1, -4))),
        ("ld.global.u32 %r1, [%rd1 - 4];", (R1, Address(D1, -4))),
        ("ld.global.u32 %r1, [%rd1+(4*8)+1];", (R1, Address(D1, 33))),
        ("ld.global.u32 %r1, [%rd1+0xfffffffffffffffc];", (R1, Address(D1, -4))),
        ("ld.global.u32 %r1, [g+WARP_SZ];", (R1, Address(Symbol("g"), 32))),
        ("ld.global.u32 %r1, [g];", (R1, Address(Symbol("g")))),
        ("ld.global.u32 %r1, [g].unified;", (R1, Address(Symbol("g")))),
        ("ld.global.u32 %r1, g[3];", (R1, Address(Symbol("g"), 12))),
        ("ld.shared.u32 %r1, [64];", (R1, Address(None, 64))),
        ("st.local.s32 [100], %r1;", (Address(None, 100), R1)),
        ("ld.param.u64 %rd1, [k_p];", (D1, Address(Symbol("k_p")))),
        ("st.param.b32 [arg+0], %r1;", (Address(Symbol("arg")), R1)),
        ("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r1, %r2}], [%r2];",
         (Address(R1), Address(D1, 0, (R1, R2)), Address(R2))),
        ("cp.async.bulk.tensor.3d.im2col.x [%r1], [%rd1, {%r1, 0, %r2}, {%r1, 1}], [%r2];",
         (Address(R1), Address(D1, 0, (R1, Immediate(0), R2), (R1, Immediate(1))), Address(R2))),
        ("tex.1d.v4.f32.f32 v, [%rd1, %rd1, {%r1}];",
         (Vector(tuple(Register(f"v${c}") for c in "xyzw")), Address(D1, 0, (R1,), (D1,)))),
        ("setp.lt.and.s32 p|q, %r1, %r2, !p;", (Pair(P, Q), R1, R2, Negated(P))),
        ("shfl.sync.down.b32 %r1|p, %r2, 1, 31, -1;", (Pair(R1, P), R2, Immediate(1), Immediate(31), Immediate(-1))),
        ("elect.sync _|p, 0xffffffff;", (Pair(None, P), Immediate(0xFFFFFFFF))),
        ("elect.sync %r1|_, -1;", (Pair(R1, None), Immediate(-1))),
        ("tld4.r.2d.v4.f32.f32 {%r1,%r1,%r1,%r1}|p, [%rd1, {%r1,%r2}], %r1;",
         (Pair(Vector((R1,) * 4), P), Address(D1, 0, (R1, R2)), R1)),
        ("atom.shared.add.u32 _, [%r1], 1;", (None, Address(R1), Immediate(1))),
        ("vset.u32.u32.lt %r1, %r2, -%r1;", (R1, R2, Negated(R1, "-"))),
        ("vadd.s32.u32.s32.sat %r1, %r2.b0, %r1.h1;", (R1, Selection(R2, "b0"), Selection(R1, "h1"))),
        ("call.uni f, (arg);", (Symbol("f"), ParameterList((Symbol("arg"),)))),
        ("call (ret0), %rd1, (arg, 4), f;",
         (ParameterList((Symbol("ret0"),)), D1, ParameterList((Symbol("arg"), Immediate(4))), Symbol("f"))),
        ("call f;", (Symbol("f"),)),
        ("call f, ();", (Symbol("f"), ParameterList(()))),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r1,%r2},{%r1},{%r2},{%r1,%r2};",
         (Vector((R1, R2)), Vector((R1,)), Vector((R2,)), Vector((R1, R2)))),
        ("bar.sync 0;", (Immediate(0),)),
        ("ret;", ()),
    ],
)  # fmt: skip
def test_operands(statement, operands):
    assert instruction(statement).operands == operands


@pytest.mark.parametrize("statement", ["mov .u32 %r1, %r2;", "mov\n.u32 %r1,\n%r2\n;", "mov.u32 /* a */ %r1, %r2;"])
def test_white_space_within_an_instruction(statement):
    assert str(instruction(statement)) == "mov.u32 %r1, %r2;"


def test_modifiers():
    assert instruction("fence.proxy.async::generic.acquire.sync_restrict::shared::cta.cluster;").modifiers == (
        "proxy", "async::generic", "acquire", "sync_restrict::shared::cta", "cluster",
    )  # fmt: skip


@pytest.mark.parametrize(
    "statement, message",
    [
        ("mov.u32 %r1, %r2", "found '}', expected ',' or ';' after an operand of 'mov.u32'"),
        ("mov.u32 %r1, ;", "found ';', expected an operand"),
        ("mov.u32 %r1 %r2;", "found '%r2', expected ',' or ';'"),
        ("mov.u32 %r1, %r99;", "'%r99' is not declared: there is no register"),
        ("mov.u32 %r1, nowhere;", "'nowhere' is not declared"),
        ("mov.u32 %r1, %tid.q;", "'%tid.q' is not declared"),
        ("mov.u32 %r1, %r2.q;", "'%r2' has no component '.q'"),
        ("ld.global.u32 %r1, [%rd1+%rd2];", "PTX adds no register to an address"),
        ("ld.global.u32 %r1, [];", "expected an address"),
        ("ld.global.u32 %r1, [%rd1;", r"expected '\]' after the address"),
        ("ld.global.u32 %r1, [%tid.x];", "expected a register or a variable as the base"),
        ("ld.global.u32 %r1, [%rd1+1.5];", "expected a byte offset, an integer"),
        ("ld.global.u32 %r1, g[%r2];", "expected a constant"),
        ("mov.b64 %rd1, {%r1 %r2};", "expected ',' or '}'"),
        ("mov.b64 %rd1, {%r1, %r2;", "its '}' is missing"),
        ("call (ret0, f;", r"expected ',' or '\)'"),
    ],
)  # fmt: skip
def test_errors(statement, message):
    with pytest.raises(PtxSyntaxError, match=message) as caught:
        instruction(statement)
    assert caught.value.log.endswith("^")


@pytest.mark.parametrize("statement", ["mov.u64 %rd1, generic(g);", "ld.u32 %r1, [generic(g)+4];"])
def test_generic_is_for_initial_values_alone(statement):
    """As nvJitLink, which accepts the operator in initial values and refuses it in operands."""
    with pytest.raises(PtxSyntaxError, match=r"generic\(\) is only for initial values of variables; use mov and cvta"):
        instruction(statement)
