import pytest

from ptxkit.errors import PtxSyntaxError
from ptxkit.isa.model import Loc, Predicate, Register, Symbol
from ptxkit.isa.parser import parse

HEADER = ".version 8.6\n.target sm_90a\n.address_size 64\n"


def kernel(body, before=""):
    return parse(f"{HEADER}{before}\n.visible .entry k(.param .u64 k_p)\n{{\n{body}\n}}\n").functions["k"]


def listing(function):
    return [str(i) for i in function.instructions]


def test_module_directives():
    module = parse(
        '.version 9.5\n.target sm_100a, texmode_independent, debug\n.address_size 64\n.file 1 "a.cu", 1339013327, 64118\n'
        '.file 2 "b.cuh"\n.pragma "nounroll";\n@@DWARF .byte 0x2b, 0x00\n.visible .entry k() { ret; }'
        "\n.section .debug_info { .b32 11430\n L: .b8 2, 0 .b32 L+12 { .b64 -1 } }"
    )
    assert (module.version, module.target, module.address_size) == ((9, 5), "sm_100a", 64)
    assert module.target_options == ("texmode_independent", "debug")
    assert module.files == {1: "a.cu", 2: "b.cuh"}
    assert list(module.entries) == ["k"]


def test_text_and_path_are_kept():
    module = parse(HEADER, "a.ptx")
    assert (module.text, module.path, module.functions) == (HEADER, "a.ptx", {})


class TestHeaders:
    def test_entry(self):
        function = parse(
            HEADER + ".visible .entry k(.param .u64 .ptr .global .align 16 a, .param .align 64 .b8 b[128],\n"
            ".param .f32 c) .maxntid 256, 1, 1\n.minnctapersm 2 .maxnreg 128 .reqnctapercluster 2, 1, 1 .explicitcluster\n"
            '.blocksareclusters .maxclusterrank 8 .language "ptx", 0x7 .pragma "nounroll"; { ret; }'
        ).functions["k"]
        assert function.is_entry
        assert (function.linkage, function.line, function.declared_only) == ("visible", 4, False)
        assert [(p.name, p.space, p.type.name, p.align, p.bytes, p.ptr) for p in function.params] == [
            ("a", "param", "u64", 8, 8, ("global", 16)), ("b", "param", "b8", 64, 128, None), ("c", "param", "f32", 4, 4, None),
        ]  # fmt: skip
        assert function.directives == {
            "maxntid": (256, 1, 1), "minnctapersm": (2,), "maxnreg": (128,), "reqnctapercluster": (2, 1, 1),
            "explicitcluster": (), "blocksareclusters": (), "maxclusterrank": (8,), "language": ("ptx", 7),
            "pragma": ("nounroll",),
        }  # fmt: skip

    def test_extents_have_three_dimensions(self):
        directives = parse(HEADER + ".entry k() .reqntid 64 .reqnctapercluster 2, 2 { ret; }").functions["k"].directives
        assert directives == {"reqntid": (64, 1, 1), "reqnctapercluster": (2, 2, 1)}

    def test_entry_without_parameter_list(self):
        assert parse(HEADER + ".entry k .minperctamemory 2048; { ret; }").functions["k"].directives == {
            "minperctamemory": (2048,)
        }

    def test_function_with_register_parameters(self):
        function = parse(
            HEADER + ".func (.reg .b32 rv) foo (.reg .b32 N, .reg .f64 d) { mov.b32 rv, N; ret; }"
        ).functions["foo"]
        assert [p.space for p in (*function.params, *function.returns)] == ["reg"] * 3
        assert {n: t.name for n, t in function.registers.items()} == {"rv": "b32", "N": "b32", "d": "f64"}
        assert function.instructions[0].operands == (Register("rv"), Register("N"))

    def test_prototype_then_definition(self):
        module = parse(
            HEADER + ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n"
            ".func (.param .b32 r) f (.param .b32 a, .param .align 4 .b8 b[])\n;\n"
            ".func (.param .b32 r) f (.param .b32 a, .param .align 4 .b8 b[]) .noreturn .abi_preserve 8 { ret; }\n"
            ".func (.param .b32 r) f (.param .b32 a, .param .align 4 .b8 b[]);"
        )
        assert module.functions["vprintf"].declared_only
        f = module.functions["f"]
        assert (f.declared_only, f.line, len(f.instructions)) == (False, 7, 1)
        assert f.params[1].shape == (0,)
        assert f.directives == {"noreturn": (), "abi_preserve": (8,)}

    def test_attribute_and_unnamed_parameters(self):
        f = parse(
            HEADER + ".func .attribute(.unified(1, 2)) f (.param .b8 _[24], .param .b32 _, .param .b64);"
        ).functions["f"]
        assert f.directives == {"attribute": ("unified",)}
        assert [(p.name, p.bytes) for p in f.params] == [("_", 24), ("_", 4), ("", 8)]

    def test_alias(self):
        module = parse(
            HEADER
            + ".visible .func foo() { ret; } .visible .func bar();\n.alias bar, foo;\n.entry k() { call bar; ret; }"
        )
        assert module.functions["bar"].instructions == module.functions["foo"].instructions
        assert module.functions["bar"].name == "bar"


class TestScopes:
    def test_names_stay_where_nothing_clashes(self):
        function = kernel(
            "{ .reg .pred p; .reg .b32 %r1; @p mov.b32 %r1, 0; } { .reg .b32 t; L: mov.b32 t, 1; bra L; }"
        )
        assert listing(function) == ["@p mov.b32 %r1, 0;", "mov.b32 t, 1;", "bra L;"]
        assert function.labels == {"L": 1}

    def test_registers_shadow_and_come_back(self):
        function = kernel(
            ".reg .b32 a; mov.b32 a, 1; { .reg .b32 a; mov.b32 a, 2; { .reg .f64 a; mov.f64 a, 0d0000000000000000; } "
            "mov.b32 a, 3; } mov.b32 a, 4; { .reg .b32 a; mov.b32 a, 5; }"
        )
        assert [str(i.operands[0]) for i in function.instructions] == ["a", "a$1", "a$2", "a$1", "a", "a$3"]
        assert {n: t.name for n, t in function.registers.items()} == {
            "a": "b32",
            "a$1": "b32",
            "a$2": "f64",
            "a$3": "b32",
        }

    def test_a_suffix_that_is_taken_is_passed_over(self):
        function = kernel(".reg .b32 a, a$1; { .reg .b32 a; mov.b32 a, a$1; }")
        assert listing(function) == ["mov.b32 a$2, a$1;"]

    def test_labels_before_and_after_their_use(self):
        function = kernel("bra L; { bra L; L: bra L; } { L: bra L; } L: bra L; { bra M; } M: ret;")
        targets = [i.operands[0].name for i in function.instructions[:-1]]
        assert targets == ["L", "L$1", "L$1", "L$2", "L", "M"]
        assert function.labels == {"L$1": 2, "L$2": 3, "L": 4, "M": 6}

    def test_labels_at_the_end_and_in_a_row(self):
        function = kernel("bra B; ret; A: B:")
        assert function.labels == {"A": 2, "B": 2}

    def test_register_ranges(self):
        function = kernel(".reg .b32 %r<3>; { .reg .b32 %r<2>, x; mov.b32 %r1, %r2; }")
        assert list(function.registers) == ["%r0", "%r1", "%r2", "%r0$1", "%r1$1", "x"]
        assert listing(function) == ["mov.b32 %r1$1, %r2;"]

    def test_vector_registers(self):
        function = kernel(".reg .v2 .b32 v, w<2>; { .reg .v2 .f32 v; mov.f32 v.x, 0f00000000; } mov.b32 v.x, w1.y;")
        assert list(function.registers) == ["v$x", "v$y", "w0$x", "w0$y", "w1$x", "w1$y", "v$1$x", "v$1$y"]
        assert listing(function) == ["mov.f32 v$1$x, 0f00000000;", "mov.b32 v$x, w1$y;"]

    def test_variables(self):
        function = kernel(
            ".shared .align 4 .b8 s[16]; { .param .b32 param0; st.param.b32 [param0], 1; call f, (param0); }"
            "{ .param .b64 param0; st.param.b64 [param0+0], 1; .shared .f32 g; st.shared.f32 [g], 0f00000000; }"
            "ld.global.u32 _, [g]; mov.u32 _, s;",
            ".global .u32 g; .func f(.param .b32 a);",
        )
        assert {n: (v.name, v.type.name) for n, v in function.variables.items()} == {
            "s": ("s", "b8"), "param0": ("param0", "b32"), "param0$1": ("param0$1", "b64"), "g$1": ("g$1", "f32"),
        }  # fmt: skip
        assert [str(i.operands[0]) for i in function.instructions if i.name == "st"] == [
            "[param0]",
            "[param0$1]",
            "[g$1]",
        ]
        assert str(function.instructions[-2].operands[1]) == "[g]"

    def test_a_special_name_may_be_declared(self):
        assert kernel(".reg .b32 %clock; mov.b32 %clock, 1;").instructions[0].operands[0] == Register("%clock")

    @pytest.mark.parametrize(
        "body, message",
        [
            (".reg .b32 a; .reg .f32 a;", "'a' is declared twice in the same scope"),
            (".reg .b32 %r<3>; .reg .b32 %r2;", "'%r2' is declared twice"),
            (".reg .b32 a; a: ret;", "'a' is declared twice"),
            (".reg .b64 k_p;", "'k_p' is declared twice"),
            ("L: ret; L: ret;", "'L' is declared twice"),
            ("{ .reg .b32 a; } mov.b32 a, 1;", "'a' is not declared"),
            ("bra L; { L: }", "'L' is not declared"),
        ],
    )
    def test_errors(self, body, message):
        with pytest.raises(PtxSyntaxError, match=message):
            kernel(body)


class TestStatements:
    def test_inline_assembly_on_one_line_and_code_after_ret(self):
        function = kernel("{ .reg .pred p; setp.eq.s32 p, 1, 2; @p bra L; @!p ret; trap; L: }ret;exit;")
        assert listing(function) == [
            "setp.eq.s32 p, 1, 2;", "@p bra L;", "@!p ret;", "trap;", "ret;", "exit;",
        ]  # fmt: skip
        assert function.instructions[2].predicate == Predicate(Register("p"), negated=True)
        assert {i.line for i in function.instructions} == {7}

    def test_branch_targets(self):
        function = kernel(".reg .u32 a; ts: .branchtargets A, N<2>; brx.idx a, ts; A: ret; N0: ret; N1: ret;")
        assert function.branch_targets == {"ts": ("A", "N0", "N1")}
        assert function.instructions[0].operands[1] == Symbol("ts")
        assert function.labels == {"A": 1, "N0": 2, "N1": 3}

    def test_branch_targets_in_scopes_are_the_scopes_own(self):
        function = kernel(".reg .u32 a; L: { ts: .branchtargets L; brx.idx a, ts; L: ret; } { ts: .branchtargets L; }")
        assert function.branch_targets == {"ts": ("L$1",), "ts$1": ("L",)}

    def test_call_targets_and_prototypes(self):
        function = kernel(
            ".reg .u64 a; t: .calltargets f, g; call a, (1), t; p0: .callprototype _; p1 : .callprototype (.param .b32 _) _ "
            "(.param .b32 _, .param .align 8 .b8 _[12]) .noreturn .abi_preserve 10; call a, p1;",
            ".func f(.reg .b32 x); .func g(.reg .b32 x);",
        )
        assert function.branch_targets == {"t": ("f", "g")}
        first, second = function.prototypes["p0"], function.prototypes["p1"]
        assert (first.returns, first.params, first.noreturn) == ((), (), False)
        assert [v.bytes for v in second.returns] == [4] and [v.bytes for v in second.params] == [4, 12]
        assert second.noreturn

    def test_a_function_may_be_defined_after_its_use(self):
        module = parse(HEADER + ".entry k() { call f; ret; }\n.func f() { ret; }")
        assert module.functions["k"].instructions[0].operands == (Symbol("f"),)

    def test_pragma_and_stray_semicolons(self):
        assert listing(kernel('.pragma "nounroll", "x"; ;; ret;; {} { ; }')) == ["ret;"]

    @pytest.mark.parametrize(
        "body, message",
        [
            ("@p ret;", "found 'p', expected a declared predicate register"),
            (".reg .pred p; @p { ret; }", "found '{', expected an instruction after its guard"),
            (".reg .pred p; @p", "found '}', expected an instruction after its guard"),
            ("5;", "found '5', expected an instruction, a directive, a label or '}'"),
            (".entry x;", "found '.entry', expected a directive that may stand in a function body"),
            (".reg .b32 5;", "expected a register name"),
            (".reg .b32 a b;", "found 'b', expected ';' after the registers"),
            (".reg .b32 a<b>;", "expected the number of names"),
            (".extern .u32 x;", "expected a state space"),
            ("ts: .branchtargets 5;", "expected a label or a function"),
            ("ts: .branchtargets nowhere;", "'nowhere' is not declared"),
            ("p: .callprototype (.param .b32 _) (.param .b32 _);", "expected '_'"),
            (".loc 1 x;", "found 'x', expected a line"),
            (".loc 1 2 3, elsewhere 4;", "expected function_name or inlined_at"),
        ],
    )
    def test_errors(self, body, message):
        with pytest.raises(PtxSyntaxError, match=message):
            kernel(body)


class TestLocations:
    FILES = '.file 1 "a.cu"\n.file 2 "b.cuh"\n'

    def test_the_last_one_before_an_instruction_holds(self):
        function = kernel("ret;\n.loc 1 12 3\nret;\nret;\n.loc 2 5\nret;", self.FILES)
        here = Loc("a.cu", 12, 3)
        assert [i.loc for i in function.instructions] == [None, here, here, Loc("b.cuh", 5)]

    def test_it_ends_with_its_function(self):
        module = parse(f"{HEADER}{self.FILES}.func f() {{ .loc 1 1 1 \n ret; }} .func g() {{ ret; }}")
        assert module.functions["g"].instructions[0].loc is None

    def test_inlining_chains(self):
        function = kernel(
            ".loc 1 21 3\nret;\n.loc 1 9 3, function_name $L__info_string0, inlined_at 1 21 3\nret;\n"
            ".loc 2 15 3, function_name .debug_str+16, inlined_at 1 9 3 // c\nret;\n"
            ".loc 2 1 1, function_name s, inlined_at 1 8 8\nret;",
            self.FILES,
        )
        call = Loc("a.cu", 21, 3)
        middle = Loc("a.cu", 9, 3, call)
        assert [i.loc for i in function.instructions] == [
            call, middle, Loc("b.cuh", 15, 3, middle), Loc("b.cuh", 1, 1, Loc("a.cu", 8, 8)),
        ]  # fmt: skip

    def test_an_unknown_file_is_named_by_its_index(self):
        assert str(kernel(".loc 7 1 1\nret;").instructions[0].loc) == "<file 7>:1"

    def test_intermediate_language_locations_are_passed_over(self):
        assert kernel(".loc 1 2 3\n.loc_intermediate 2 3 4\nret;", self.FILES).instructions[0].loc == Loc("a.cu", 2, 3)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "<ptx>:1:1: found the end of the text, expected a .version directive"),
        (".version 8.6", "expected a .target directive"),
        (".version x", "<ptx>:1:10: found 'x', expected a version"),
        (".target 5", "expected a target"),
        (HEADER + "ret;", "<ptx>:4:1: found 'ret', expected a directive of module scope"),
        (HEADER + ".entry k() { ret;", "<ptx>:4:12: found '{', but its '}' is missing"),
        (HEADER + ".entry k() { ret; } }", "<ptx>:4:21: found '}' with no '{' before it"),
        (HEADER + ".entry k() ret;", "found 'ret', expected '{' or ';' after the header"),
        (HEADER + ".entry k(.global .u32 x) {}", "found '.global', expected a parameter"),
        (HEADER + ".entry k(.param .u32 x .param .u32 y) {}", r"expected ',' or '\)'"),
        (HEADER + ".entry () {}", "expected the function's name"),
        (HEADER + ".entry k() {} .entry k() {}", r"'k' is defined twice \(before at line 4\)"),
        (HEADER + ".alias a, b;", "'b', which 'a' stands for, is not a function"),
        (HEADER + ".section .debug_str", "expected '{' and the content of the section"),
        (HEADER + ".entry k() {\n  call missing;\n}", "<ptx>:5:8: 'missing' is not declared"),
    ],
)
def test_errors(text, message):
    with pytest.raises(PtxSyntaxError, match=message):
        parse(text)


def test_an_error_shows_its_line():
    with pytest.raises(PtxSyntaxError) as caught:
        parse(HEADER + ".entry k() {\n\tmov.u32 %r1, 5;\n}", "saxpy.ptx")
    assert str(caught.value).startswith("saxpy.ptx:5:10: '%r1' is not declared")
    assert caught.value.log == f"{caught.value}\n  \tmov.u32 %r1, 5;\n  \t        ^"
    assert caught.value.exit_code == 4


class TestOlderCompilers:
    def test_prototypes_need_no_semicolon(self):
        text = ".extern .func (.param .b32 r) foo (.param .b32 a)\n.extern .func bar\n.func baz .noreturn\n.entry k() { ret; }"
        functions = parse(HEADER + text).functions
        assert [f.declared_only for f in functions.values()] == [True, True, True, False]
        assert "noreturn" in functions["baz"].directives

    def test_text_ends_at_a_nul(self):
        text = HEADER + ".entry k() { ret; }\n"
        assert parse(text + "\0").functions == parse(text).functions == parse(text + "\0\n{{{").functions

    def test_textures_of_module_scope(self):
        module = parse(".version 1.4\n.target sm_10\n.tex .u32 a, b;\n.tex .u64 t<2>;")
        assert [(v.name, v.space, v.type.name) for v in module.variables.values()] == [
            (name, "global", "texref") for name in ("a", "b", "t0", "t1")
        ]
        with pytest.raises(PtxSyntaxError, match="'.tex' does not exist since version 1.5"):
            parse(".version 1.5\n.target sm_20\n.tex .u32 a;")


OLD = ".version 2.0\n.target sm_20\n.local .align 4 .b8 x[16], y[4];\n.reg .u32 %g<3>, u;\n"


def test_registers_and_local_variables_of_module_scope_are_those_of_each_kernel_that_names_them():
    module = parse(OLD + ".entry k() {\n.reg .u32 u;\nst.local.u32 [x+4], %g1;\nmov.u32 u, %g2;\n}\n.entry e() { ret; }\n")
    assert (list(module.functions["k"].variables), list(module.functions["e"].variables)) == (["x", "y"], [])
    assert listing(module.functions["k"]) == ["st.local.u32 [x+4], %g1;", "mov.u32 u$1, %g2;"]
    assert not module.functions["e"].registers


@pytest.mark.parametrize("use", ["mov.u32 u, 3;", "st.local.u32 [x], 3;"])
def test_functions_cannot_use_registers_and_local_variables_of_module_scope(use):
    with pytest.raises(PtxSyntaxError, match="a function that it calls cannot"):
        parse(OLD + f".func f() {{ {use} }}\n")


@pytest.mark.parametrize("line", [".reg .u32 u;", ".local .b32 x[4];"])
def test_later_versions_have_no_registers_and_local_variables_at_module_scope(line):
    with pytest.raises(PtxSyntaxError, match=r"4:1: (registers|local variables) belong into a function: PTX 3.0"):
        parse(f"{HEADER}{line}\n")
