"""The outline of a module has the declarations of the parsed module, and reads a body where it is used."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.compiler.nvrtc import compile_source
from ptxkit.errors import PtxSyntaxError
from ptxkit.isa import outline as outlines
from ptxkit.isa.model import Function
from ptxkit.isa.outline import OutlinedFunction, outline
from ptxkit.isa.parser import parse
from ptxkit.isa.specials import reads_grid_workspace
from ptxkit.runtime.module_variables import module_globals, written_variables
from ptxkit.runtime.parameters import parameters_of
from ptxkit.workload import registry
from ptxkit.workload.build import build

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "ptx").rglob("*.ptx"), *(ROOT / "tests").rglob("*.ptx")])
HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
BODY = "{\n    .reg .b64 %rd<3>;\n    // } is no brace here\n    mov.u64 %rd1, 0;\n    ret;\n}\n"
TEXT = (
    HEAD
    + """.file 1 "one {.cu"
.global .align 8 .u64 table[2] = {generic(value), 7};
.visible .global .u32 value;
.global .align 1 .b8 unused[8];
.const .f32 factors[2] = {1.0, 2.0};
.extern .func (.param .b32 result) vprintf (.param .b64 format, .param .b64 values)
;
.func (.reg .u32 result) twice (.reg .u32 given)
{
    add.u32 result, given, given;
    ret;
}
.visible .entry first(.param .u64 out, .param .align 16 .b8 rest[32], .param .u64 image) .maxntid 128, 1, 1
{
    .reg .pred %p<2>;  // a brace: {
    .reg .b32 %r<5>;
    .reg .b64 %rd<4>;
    .reg .f32 %f<2>;
    .shared .align 16 .b8 tile[64];
    .global .u32 value;
    .loc 1 4 5
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd3, [image];
    mov.u32 %r1, %tid.x; /* } */
    griddepcontrol .wait;
    setp.lt.u32 %p1, %r1, 16;
    @!%p1 bra DONE;
    { .reg .b32 %r1; mov.u32 %r1, %envreg1; mov.u32 %r2, %envreg2; }
    tex.1d.v4.f32.s32 {%f1, _, _, _}, [%rd3, {%r1}];
    call (%r2), twice, (%r1);
    st.global.v2.u32 [%rd1+8], {%r1, %r2};
    st.global.u32 [value], %r1;
DONE:
    ret;
}
.visible .entry second(.param .u64 number) { ret; }
.section .debug_str
{
.b8 123, 125 // }
}
"""
)


def same(text):
    """Compare the outline with the whole: what a launch on a GPU takes, and then everything."""
    whole, found = parse(text, "one.ptx"), outline(text, "one.ptx")
    assert replace(found, functions={}) == replace(whole, functions={})
    assert list(found.functions) == list(whole.functions) and list(found.entries) == list(whole.entries)
    assert written_variables(found) == written_variables(whole)
    assert dict(module_globals(None, found, None)._variables) == dict(module_globals(None, whole, None)._variables)
    for name, function in whole.functions.items():
        mine = found.functions[name]
        opcodes = {i.opcode for i in function.instructions} | {"griddepcontrol.wait", "ret", "bar.sync", "mov"}
        assert {o for o in opcodes if mine.has_opcode(o)} == {o for o in opcodes if function.has_opcode(o)}
        assert reads_grid_workspace(mine) == reads_grid_workspace(function)
        assert parameters_of(mine, text, {}, text) == parameters_of(function, text, {}, text)
        for attribute in (f.name for f in fields(Function)):
            assert getattr(mine, attribute) == getattr(function, attribute), (name, attribute)
        assert mine.symbols() == function.symbols()
    return found


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_stored_programs(file):
    assert all(isinstance(f, OutlinedFunction) for f in same(file.read_text()).entries.values())


def test_everything_that_has_braces():
    assert isinstance(same(TEXT).functions["first"], OutlinedFunction)


def test_the_corpus_of_the_emulator():
    same(compile_source(ROOT / "scripts" / "emulator_corpus.cu", target="sm_90a").ptx)


CATALOGUE = [f"{kernel}:{variant}" for kernel in registry.names() for variant in registry.get(kernel).variants()]


@pytest.mark.sampled(len(CATALOGUE))
@pytest.mark.parametrize("name", CATALOGUE)
def test_bundled_variants(name):
    kernel, _, variant = name.partition(":")
    workload, own = registry.get(kernel)(), registry.get(kernel).variants()[variant]
    if own.refusal(workload) is not None:
        workload = registry.get(kernel)(**workload.emulator_sizes)
    while (
        reason := own.refusal(workload)
    ) is not None:  # a variant for long rows, or for options that are not the default
        first, *_, last = workload.sizes
        if workload.sizes[last] > 1 << 15 or first != "rows":
            pytest.skip(reason)
        workload = registry.get(kernel)(**{**workload.sizes, last: 2 * workload.sizes[last]})
    for image in build(workload, own).images:
        assert all(isinstance(f, OutlinedFunction) for f in same(image.ptx).entries.values())


PIECES = st.sampled_from(
    [
        ".global .align 4 .u32 {name} = 5;",
        ".global .align 4 .u32 {name};",
        ".global .align 8 .u64 {name}[2] = {{generic(other), 3}};",
        ".const .align 4 .b8 {name}[4] = {{123, 125, 34, 47}};",
        ".shared .align 16 .b8 {name}[64];",
        ".extern .func {name}(.param .b64 a);",
        ".func {name}(.param .b64 a)\n{{\n  ret;\n}}",
        ".visible .entry {name}(.param .u64 .ptr .global a, .param .f32 b) .maxntid 64 .minnctapersm 2 {{ ret; }}",
        ".entry {name}() {{ .reg .b32 r; {{ .reg .b32 r; mov.b32 r, 1; }} }}",
        ".entry {name}(.param .u64 a) {{ .reg .b64 x; ld.param.u64 x, [a]; ld.global.u64 x, [x]; st.global.u64 [other], x; }}",
        ".entry {name}() {{ .global .u32 other; .reg .b64 x; mov.u64 x, other; griddepcontrol.wait; }}",
        ".entry {name}() {{ // griddepcontrol.wait; }}\n  griddepcontrol.launch_dependents; }}",
        '.entry {name}() {{ .pragma "griddepcontrol.wait; }}"; ret; }}',
        ".entry {name}()\n{{\n{name}_1: bra {name}_1;\n}}",
        ".section .debug_{name} {{ .b8 1 }}",
        "// }} {{ {name}",
        "/* {{ \n */",
        '.pragma "}} {name}";',
        "# 1 {{",
    ]
)


@given(st.lists(st.tuples(PIECES, st.sampled_from(["\n", " \n\n", "\t\r\n"])), max_size=12))
def test_made_modules(pieces):
    text = HEAD + ".global .u64 other;\n" + "".join(p.format(name=f"n{i}") + end for i, (p, end) in enumerate(pieces))
    same(text)


@pytest.mark.parametrize(
    "text",
    [
        HEAD + ".global .u32 = 5;\n" + ".entry k() " + BODY,
        HEAD + ".entry k(.param .u64 a .param .u64 b) " + BODY,
        HEAD + ".entry k() " + BODY + ".entry k() " + BODY,
        HEAD + ".entry k() " + BODY + "}",
        HEAD + ".entry k() " + BODY[:-2],
        HEAD + ".entry k() \n" + BODY + "nonsense here;",
        HEAD.replace(".target sm_90a\n", "") + ".entry k() " + BODY,
        HEAD + ".entry k() " + BODY + ".alias a, b;",
        HEAD + ".reg .b32 %r0;\n.entry k() " + BODY,
        HEAD + '.entry k() " ' + BODY,
        "",
    ],
)
def test_wrong_declarations_give_the_error_of_the_parser(text):
    with pytest.raises(PtxSyntaxError) as expected:
        parse(text, "one.ptx")
    with pytest.raises(PtxSyntaxError) as found:
        outline(text, "one.ptx")
    assert (str(found.value), found.value.log) == (str(expected.value), expected.value.log)


def test_a_wrong_body_gives_the_error_of_the_parser_when_it_is_read():
    text = HEAD + ".entry fine() { ret; }\n.entry k() {\n  mov.u64 %rd1, 0;\n}\n"
    with pytest.raises(PtxSyntaxError) as expected:
        parse(text, "one.ptx")
    module = outline(text, "one.ptx")
    for name in ("k", "fine"):  # as when the module is parsed
        with pytest.raises(PtxSyntaxError) as found:
            _ = module.functions[name].instructions
        assert (str(found.value), found.value.log) == (str(expected.value), expected.value.log)


@pytest.mark.parametrize(
    "text",
    [
        HEAD + '.entry k() .pragma "nounroll"; ' + BODY,
        HEAD + ".func f " + BODY + ".alias g, f;\n.entry k() " + BODY,
        HEAD.replace("8.0", "2.3") + ".reg .b32 %r9;\n.func f\n.entry k() { mov.b32 %r9, 0; }\n.global .b8 x[1] = {1};",
        HEAD + ".func f()\n.global .b8 x[1] = {1};\n.entry k() " + BODY,
        HEAD + ".entry k() " + BODY + "\0 } garbage",
    ],
)
def test_what_is_written_in_an_unusual_way(text):
    same(text)


def test_a_launch_reads_no_body(monkeypatch):
    """What a GPU takes from a kernel whose parameters the name describes, and that has no textures and no variables."""
    body = "{\n  .reg .b64 %rd<2>;\n  ld.global.u32 %r1, [%rd1];\n  griddepcontrol.wait;\n  ret;\n}\n"
    text = HEAD + ".global .u32 unused = 5;\n.visible .entry _Z1kPfm(.param .u64 _Z1kPfm_param_0, .param .u64 "
    text += "_Z1kPfm_param_1)\n.maxntid 64 " + body
    module = outline(text)
    monkeypatch.setattr(outlines, "parse", lambda *_: pytest.fail("a body was read"))
    kernel = module.functions["_Z1kPfm"]
    assert [p.kind for p in parameters_of(kernel, None, {}, text)] == ["pointer", "int"]
    assert written_variables(module) == [] and list(module_globals(None, module, None)) == ["unused"]
    assert kernel.has_opcode("griddepcontrol.wait") and not reads_grid_workspace(kernel)
    assert kernel.directives == {"maxntid": (64, 1, 1)}
