"""The table of features against the real ptxas, inside nvJitLink."""

import re

import pytest

from ptxkit.compiler.assemble import assemble
from ptxkit.compiler.explain import explain
from ptxkit.errors import CompileError
from ptxkit.targets import FEATURES, TARGETS

KERNEL = """.visible .entry k{number}()
{{
 .reg .b16 %h<5>; .reg .b32 %r<10>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .f64 %fd<5>; .reg .pred %p<3>;
 .shared .align 1024 .b8 sm[1024];
 {code}
 ret;
}}
"""
A4, B2, F4 = "{%r1,%r2,%r3,%r4}", "{%r5,%r6}", "{%f1,%f2,%f3,%f4}"
PROBES = {
    "mma.f16": f"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {F4},{B2},{{%r3}},{F4};",
    "mma.int8": "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r1,%r2},{%r3},{%r4},{%r1,%r2};",
    "mma.bf16": f"mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {F4},{B2},{{%r3}},{F4};",
    "mma.tf32": f"mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {F4},{B2},{{%r3}},{F4};",
    "mma.f64": "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%fd1,%fd2},{%fd3},{%fd4},{%fd1,%fd2};",
    "mma.sp": f"mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {F4},{B2},{B2},{F4},%r7,0;",
    "mma.fp8": f"mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {F4},{A4},{B2},{F4};",
    "mma.block_scale": "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0 "
    f"{F4},{A4},{B2},{F4},%r7,{{0,0}},%r8,{{0,0}};",
    "ldmatrix": "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1},[sm];",
    "stmatrix": "stmatrix.sync.aligned.m8n8.x1.shared.b16 [sm],{%r1};",
    "bf16": "fma.rn.bf16 %h1,%h2,%h3,%h4;",
    "bf16.add": "add.rn.bf16 %h1,%h2,%h3;",
    "cp.async": "cp.async.ca.shared.global [sm],[%rd1],16;",
    "mbarrier": "mbarrier.init.shared.b64 [sm],1;",
    "mbarrier.try_wait": "mbarrier.try_wait.shared.b64 %p1,[sm],%rd1;",
    "redux": "redux.sync.add.s32 %r1,%r2,-1;",
    "redux.f32": "redux.sync.min.f32 %f1,%f2,-1;",
    "cache_hint": "createpolicy.fractional.L2::evict_last.b64 %rd1;",
    "fp8": "cvt.rn.satfinite.e4m3x2.f32 %h1,%f1,%f2;",
    "fp4": "cvt.rn.satfinite.e2m3x2.f32 %h1,%f1,%f2;",
    "tma": "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [sm],[%rd1],16,[sm];",
    "tensormap.replace": "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [sm],%rd1;",
    "clusters": "barrier.cluster.arrive;",
    "dsmem": "ld.shared::cluster.u32 %r1,[sm];",
    "st.async": "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [sm],%r1,[sm];",
    "elect": "elect.sync %r1|%p1,-1;",
    "griddepcontrol": "griddepcontrol.wait;",
    "multimem": "multimem.red.relaxed.sys.global.add.u32 [%rd1],%r1;",
    "wgmma": "wgmma.fence.sync.aligned;",
    "setmaxnreg": "setmaxnreg.inc.sync.aligned.u32 240;",
    "f32x2": "add.rn.f32x2 %rd1,%rd2,%rd3;",
    "ld.256": "ld.global.v8.b32 {%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8},[%rd1];",
    "tcgen05": "tcgen05.fence::before_thread_sync;",
    "clusterlaunchcontrol.multicast": "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
    ".multicast::cluster::all.b128 [sm],[sm];",
    "clusterlaunchcontrol": "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [sm],[sm];",
}
TENSOR = "sm_100a, sm_103a, sm_107a or sm_110a, or an f form of these"
SAMPLE = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100f", "sm_110a", "sm_120a")


def test_every_feature_is_probed():
    assert PROBES.keys() == FEATURES.keys()


def module(features, target):
    """A kernel for each feature, and the line on which each feature's probe is. ptxas reports all that it refuses."""
    text, lines = f".version 9.0\n.target {target}\n.address_size 64\n", {}
    for number, feature in enumerate(features):
        text += KERNEL.format(number=number, code=PROBES[feature])
        lines[feature] = text[: text.rindex(PROBES[feature])].count("\n") + 1
    return text, lines


@pytest.mark.parametrize("name", SAMPLE)
def test_ptxas_takes_what_the_table_has(name):
    target = TARGETS[name]
    text, _ = module([feature for feature in PROBES if feature in target.features], name)
    assert assemble(text, target=target, cache=False).cubin


@pytest.mark.parametrize("name", [name for name in SAMPLE if PROBES.keys() - TARGETS[name].features])
def test_what_the_table_has_not_is_refused_and_explained(name):
    target = TARGETS[name]
    text, lines = module([feature for feature in PROBES if feature not in target.features], name)
    with pytest.raises(CompileError) as caught:
        assemble(text, target=target, cache=False)
    log = caught.value.log
    explained = re.findall(rf"source.ptx:(\d+):\d+: error: .* needs sm_.*; the target is {name}; compile for sm_", log)
    for others in re.findall(r"the same is needed at (.*)", log):
        explained += re.findall(r"source.ptx:(\d+)", others)
    assert {feature for feature, line in lines.items() if str(line) not in explained} == set()


@pytest.mark.parametrize(
    "message, instruction, target, explained",
    [
        (
            "Instruction 'tcgen05.fence' not supported on .target 'sm_90a'",
            "tcgen05.fence::before_thread_sync;",
            "sm_90a",
            f"tcgen05.fence needs {TENSOR}; the target is sm_90a; compile for sm_100a (--arch sm_100a)",
        ),
        (
            "Feature '.cta_group::1' not supported on .target 'sm_90a'",
            "@%p1 cp.async.bulk.tensor.2d.tile.cta_group::1 [%r1], [%rd1, {%r2, %r3}], [%r4];",
            "sm_90a",
            (
                f"cp.async.bulk.tensor.2d.tile.cta_group::1 (.cta_group::1) needs {TENSOR}; the target is sm_90a; "
                "compile for sm_100a (--arch sm_100a)"
            ),
        ),
        (
            "Feature '.scale_vec::1X' not supported on .target 'sm_100f'",
            "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1;",
            "sm_100f",
            (
                "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X (.scale_vec::1X) needs sm_100a, sm_103a, "
                "sm_107a or sm_110a; the target is sm_100f; compile for sm_100a (--arch sm_100a)"
            ),
        ),
        (
            "Feature 'add.bf16' requires .target sm_90 or higher",
            "add.rn.bf16 %h1,%h2,%h3;",
            "sm_86",
            "add.bf16 needs sm_90 or newer; the target is sm_86; compile for sm_90 (--arch sm_90)",
        ),
        ("Arguments mismatch for instruction 'mov'", "mov.u32 %r1, %f1;", "sm_90a", None),
        ("Instruction 'unheard.of' not supported on .target 'sm_90a'", "unheard.of;", "sm_90a", None),
    ],
)
def test_explain(message, instruction, target, explained):
    assert explain(message, instruction, TARGETS[target]) == explained
