"""Error messages of NVRTC and ptxas, in the form in which the user sees them."""

import logging
import re

import pytest

from ptxkit.compiler import compile_source, front_end
from ptxkit.compiler.diagnostics import Diagnostic, SourceText, caret
from ptxkit.errors import CompileError, MissingKernelError

HEADER = """#pragma once
__device__ inline void bad(int x) {
    asm volatile("{ .reg .b32 t;\\n\\t"
                 "mov.b32 t, %0;\\n\\t"
                 "frobnicate.b32 t; }" ::"r"(x));
}
"""


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """Compiles a file in the working directory and returns the error."""
    monkeypatch.chdir(tmp_path)

    def compile_it(text, target="sm_90a", **options):
        (tmp_path / "mine.cu").write_text(text)
        with pytest.raises(CompileError) as caught:
            compile_source("mine.cu", target=target, **options)
        return caught.value

    return compile_it


def test_undefined_identifier(failing):
    error = failing("__global__ void f(int* p) {\n\t*p = nope;\n}\n")
    assert str(error) == 'mine.cu:2:7: error: identifier "nope" is undefined'
    assert error.log == 'mine.cu:2:7: error: identifier "nope" is undefined\n      *p = nope;\n           ^'
    assert error.exit_code == 4


def test_syntax_errors_are_counted_in_the_message_and_listed_in_the_log(failing):
    error = failing("__global__ void f(int* p) {\n  *p = 1\n}\n__device__ int g = ;\n")
    assert str(error) == 'mine.cu:3:1: error: expected a ";" (and 1 more error)'
    assert error.log == (
        'mine.cu:3:1: error: expected a ";"\n  }\n  ^\n'
        "mine.cu:4:20: error: expected an expression\n  __device__ int g = ;\n                     ^"
    )


def test_an_error_in_a_template_says_where_it_was_instantiated(failing):
    error = failing(
        'template <int T> __global__ void f() {\n  static_assert(T % 2 == 0, "T must be even");\n}\n',
        instantiate=["f<3>"],
    )
    assert str(error) == 'mine.cu:2:3: error: static assertion failed with "T must be even"'
    assert "detected during instantiation of" in error.log
    assert "[with T=3]" in error.log


def test_a_missing_header(failing):
    error = failing('#include "nowhere.cuh"\n')
    assert str(error) == 'mine.cu:1:23: error: cannot open source file "nowhere.cuh"'


def test_an_error_in_a_header_names_the_header(failing, tmp_path):
    (tmp_path / "lib.cuh").write_text("#pragma once\n__device__ inline int f(int x) { return y; }\n")
    error = failing('#include "lib.cuh"\n')
    assert str(error) == 'lib.cuh:2:41: error: identifier "y" is undefined'
    assert error.log.splitlines()[1:] == ["  __device__ inline int f(int x) { return y; }", " " * 42 + "^"]


def test_an_error_in_inline_ptx_of_a_header_is_mapped_to_the_asm_line_and_the_call(failing, tmp_path):
    (tmp_path / "lib.cuh").write_text(HEADER)
    error = failing('#include "lib.cuh"\n\n__global__ void f(int* p) {\n    bad(*p);\n}\n')
    assert str(error) == "lib.cuh:5:19: error: Not a name of any known instruction: 'frobnicate'"
    lines = error.log.splitlines()
    assert lines[1:3] == ['                   "frobnicate.b32 t; }" ::"r"(x));', " " * 20 + "^"]
    assert lines[3].startswith("  PTX line ")
    assert lines[3].endswith(": frobnicate.b32 t; }")
    assert lines[4:] == ["  inlined at mine.cu:4"]


def test_inline_ptx_in_a_source_text(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError) as caught:
        compile_source('__global__ void f() {\n    asm volatile("frobnicate;");\n}\n', target="sm_90a")
    assert str(caught.value) == "source.cu:2:19: error: Not a name of any known instruction: 'frobnicate'"
    assert '    asm volatile("frobnicate;");\n' in caught.value.log


def test_inline_ptx_without_line_information_shows_the_ptx_line(failing):
    error = failing('__global__ void f() {\n    asm volatile("frobnicate;");\n}\n', lineinfo=False)
    assert str(error) == "error: Not a name of any known instruction: 'frobnicate'"
    assert error.log.splitlines()[1].endswith(": frobnicate;")


@pytest.mark.parametrize(
    "instruction, target, explained",
    [
        (
            "tcgen05.fence::before_thread_sync;",
            "sm_90a",
            "tcgen05.fence needs sm_100a, sm_103a, sm_107a or sm_110a, or an f form of these; the target is sm_90a",
        ),
        (
            "tcgen05.fence::before_thread_sync;",
            "sm_100",
            "tcgen05.fence needs sm_100a, sm_103a, sm_107a or sm_110a, or an f form of these; the target is sm_100",
        ),
        ("wgmma.fence.sync.aligned;", "sm_90", "wgmma.fence needs sm_90a; the target is sm_90"),
        ("wgmma.fence.sync.aligned;", "sm_100a", "wgmma.fence needs sm_90a; the target is sm_100a"),
        ("cp.async.wait_all;", "sm_75", "cp.async.wait_all needs sm_80 or newer; the target is sm_75"),
    ],
)
def test_an_instruction_that_the_target_lacks_is_explained(failing, instruction, target, explained):
    error = failing(f'__global__ void f() {{\n    asm volatile("{instruction}");\n}}\n', target=target)
    assert re.fullmatch(rf"mine.cu:2:19: error: {explained}; compile for (sm_\w+) \(--arch \1\)", str(error))


def test_instructions_that_need_the_same_target_are_one_error(failing):
    """The first is named with the fix, the others by their places."""
    body = "".join(f'    asm volatile("tcgen05.fence::{which}_thread_sync;");\n' for which in ("before", "after", "before"))
    error = failing(f"__global__ void f() {{\n{body}}}\n", target="sm_90a")
    assert error.log.count("--arch sm_100a") == 1
    assert error.log.startswith("mine.cu:2:19: error: tcgen05.fence needs sm_100a, ")
    assert error.log.endswith("\n  the same is needed at mine.cu:3, mine.cu:4")


def test_the_two_cta_groups_of_a_kernel_are_named_with_their_places(failing):
    """ptxas names the function alone."""
    text = "tcgen05.relinquish_alloc_permit.cta_group::{}.sync.aligned;"
    body = "".join(f'    asm volatile("{text.format(group)}");\n' for group in (1, 1, 2))
    error = failing(f"__global__ void f() {{\n{body}}}\n", target="sm_100a")
    assert str(error).startswith("mine.cu:4:19: error: Function ")
    assert error.log.endswith(f"\n  the other .cta_group at mine.cu:2: {text.format(1)}")


@pytest.mark.parametrize(
    "expression, reason",
    [
        ("f<float>", 'cannot determine which instance of function template "f" is intended'),
        ("g<4>", 'identifier "g" is undefined'),
    ],
)
def test_an_instantiation_that_does_not_exist(failing, expression, reason):
    error = failing("template <int T> __global__ void f() {}\n", instantiate=["f<3>", expression])
    assert str(error) == error.log == f"error: cannot instantiate {expression!r}: {reason}"


def test_an_unknown_option(failing):
    assert str(failing("__global__ void f() {}", options=["--bogus"])) == "error: unrecognized option --bogus found"


def test_no_noise_and_nothing_twice(failing):
    error = failing('__device__ int f() { return a + a; }\n__global__ void g() { asm("frobnicate;"); }\n')
    assert error.log.count('identifier "a" is undefined') == 1
    for noise in ("detected in the compilation", "Remark", "ptxas", "aborted", "Compilation terminated"):
        assert noise not in error.log


def test_warnings_are_kept_with_the_image_and_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "__global__ void f() {\n  int unused;\n}\n"
    expected = 'mine.cu:2:7: warning: variable "unused" was declared but never referenced\n    int unused;\n        ^'
    (tmp_path / "mine.cu").write_text(text)
    first, second = (compile_source("mine.cu", target="sm_90a") for _ in range(2))
    assert (first.log, second.log) == (expected, expected)
    assert second.from_cache
    monkeypatch.chdir("/")
    elsewhere = compile_source(tmp_path / "mine.cu", target="sm_90a")
    assert elsewhere.from_cache
    assert elsewhere.log == expected.replace("mine.cu", f"{tmp_path}/mine.cu")


def test_serialised_wgmma_is_warned_of_at_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = """__global__ void f(float* p, unsigned long long d) {
    float a0 = p[0], a1 = p[1], a2 = p[2], a3 = p[3];
    asm volatile("wgmma.fence.sync.aligned;");
    for (int i = 0; i < p[9]; i++) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                     : "+f"(a0), "+f"(a1), "+f"(a2), "+f"(a3) : "l"(d), "l"(d));
        a0 += 1;
    }
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;");
    p[0] = a0; p[1] = a1; p[2] = a2; p[3] = a3;
}
"""
    log = compile_source(source, target="sm_90a").log
    assert "source.cu:7:" in log
    assert "is injected by the compiler to allow use of registers defined by GMMA in function 'f' (C7517)" in log


def test_front_end_takes_messages_of_several_lines_and_notes():
    log = (
        'a.cu(2): error: no instance of overloaded function "f" matches the argument list\n'
        "            argument types are: (int)\n"
        "    f(1);\n"
        "    ^\n"
        "a.cu(1): note #3326-D: candidate rejected\n"
        "  void f(char*);\n"
        "       ^\n"
        "\n"
        '1 error detected in the compilation of "a.cu".\n'
    )
    (found,) = front_end.read(log, SourceText({"a.cu": "void f(char*);\n  f(1);\n"}))
    assert found.headline == (
        'a.cu:2:3: error: no instance of overloaded function "f" matches the argument list argument types are: (int)'
    )
    assert found.notes == ("a.cu:1: note: candidate rejected",)


@pytest.mark.parametrize("text, column, under", [("int x;", 5, "x"), ("\tint x;", 6, "x"), ("\t\tfoo(\tbar);", 8, "b")])
def test_the_caret_stands_under_its_column(text, column, under):
    line, mark = caret(text, column)
    assert line[mark.index("^")] == under


def test_a_diagnostic_without_a_place():
    assert str(Diagnostic("error", "no space", notes=("try again",))) == "error: no space\n  try again"


def test_nothing_is_logged_by_an_ordinary_compile(caplog):
    with caplog.at_level(logging.DEBUG, "ptxkit"):
        compile_source("__global__ void f() {}", target="sm_90a")
    assert caplog.records == []


def test_a_launch_hears_of_its_own_stack_size_only():
    from ptxkit.compiler.ptxas import concerning

    sizes = [f"warning: Stack size for entry function '{name}' cannot be statically determined" for name in ("a", "b")]
    log = "\n".join([sizes[0], "warning: variable 'x' was declared but never referenced", sizes[1]])
    assert concerning(log, "a").splitlines() == log.splitlines()[:2]
    assert concerning(log, "c").splitlines() == log.splitlines()[1:2]


def test_too_much_static_shared_memory_is_one_line_in_bytes():
    text = "__global__ void k(int* x) { __shared__ int s[100000]; s[threadIdx.x] = 1; __syncthreads(); *x = s[*x]; }\n"
    with pytest.raises(CompileError, match=r"error: k has 400,000 bytes of static shared memory; at most [\d,]+ are possible"):
        compile_source(text, target="sm_90a")


def test_a_function_of_another_source_is_named_with_the_fix():
    with pytest.raises(CompileError, match=r"Unresolved extern function.*link both: ptxkit\.compile"):
        compile_source("extern __device__ int f(int);\n__global__ void k(int* x) { *x = f(*x); }\n", target="sm_90a")


def test_a_template_is_named_with_its_arguments():
    image = compile_source("__global__ void k() {}\ntemplate <int N> __global__ void t() {}\nint main() {}\n", target="sm_90a")
    with pytest.raises(MissingKernelError, match=r"no kernel 't'; it is a template.*'t<\.\.\.>' for <int N>"):
        image.entry("t")
