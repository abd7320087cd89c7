import importlib
import logging
import re
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from ptxkit.compiler import assemble, compile_source, toolkit
from ptxkit.errors import CompileError, PtxSyntaxError, UsageError

assembling = importlib.import_module("ptxkit.compiler.assemble")  # the package has the function under this name

PTX = """// stores each thread's number
.version 8.0
.target sm_80
.address_size 64
.visible .entry number(.param .u64 p)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    .shared .b8 room[256];
    ld.param.u64 %rd1, [p];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd3, %rd2, %rd3;
    st.shared.u32 [room], %r1;
    st.global.u32 [%rd3], %r1;
    ret;
}
"""


@pytest.fixture
def failing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def assemble_it(text, target="sm_90a", kind=CompileError):
        (tmp_path / "mine.ptx").write_text(text)
        with pytest.raises(kind) as caught:
            assemble("mine.ptx", target=target)
        return caught.value

    return assemble_it


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_90a", "sm_100f", "sm_120a"])
def test_ptx_is_assembled_for_the_target_asked_for(target):
    image = assemble(PTX, target=target)
    assert image.target == target
    assert image.cubin is not None
    assert image.cubin[:4] == b"\x7fELF"
    assert image.ptx == PTX
    assert image.functions["number"].registers > 0
    assert image.functions["number"].shared_bytes >= 256
    assert image.entry("number") == "number"


def test_the_texts_own_target_is_the_default():
    assert assemble(PTX).target == "sm_80"


@pytest.mark.parametrize(
    ("version", "target", "has_cubin"), [("8.0", "sm_52", True), ("3.1", "sm_30", True), ("3.0", "sm_20", False)]
)
def test_ptx_of_old_targets_is_for_sm_90a_and_of_old_versions_for_the_driver(version, target, has_cubin):
    text = f".version {version}\n.target {target}\n.address_size 64\n.entry k() {{ exit; }}\n"
    image = assemble(text)
    assert (image.target, image.cubin is not None) == ("sm_90a", has_cubin)
    assert assembling.text_for_the_driver(text) == (b"" if has_cubin else text.encode() + b"\0")


def test_the_second_time_comes_from_the_cache():
    images = [assemble(PTX, target="sm_90a") for _ in range(2)]
    assert [image.from_cache for image in images] == [False, True]
    assert images[0].cubin == images[1].cubin
    assert not assemble(PTX + "\n", target="sm_90a").from_cache
    assert not assemble(PTX, target="sm_90").from_cache
    assert not assemble(PTX, target="sm_90a", cache=False).from_cache


def test_compile_source_takes_a_ptx_path(tmp_path):
    path = tmp_path / "number.ptx"
    path.write_text(PTX)
    image = compile_source(path, target="sm_90a")
    assert (image.source_name, image.sources) == ("number.ptx", (str(path),))
    assert image.cubin


def test_without_a_cubin_nothing_is_assembled():
    image = assemble(PTX.replace("sm_80", "sm_52").replace("st.global", "st.nowhere"), cubin=False)
    assert (image.target, image.cubin) == ("sm_90a", None)
    assert list(image.functions) == ["number"]
    assert image.functions["number"].registers == 0


def test_what_nvrtc_makes_can_be_assembled_again():
    source = '__global__ void k(float* x) { printf("%f\\n", *x); assert(*x > 0); }'
    image = compile_source(source, target="sm_90a")
    assert assemble(image.ptx, target="sm_90a").functions.keys() == image.functions.keys()


def test_line_information_can_be_left_out():
    assert b"nv_debug_line_sass" in (assemble(PTX).cubin or b"")
    assert b"nv_debug_line_sass" not in (assemble(PTX, lineinfo=False).cubin or b"")


@pytest.mark.parametrize(
    "written, asked", [("sm_80", "sm_75"), ("sm_90a", "sm_100a"), ("sm_90a", "sm_90"), ("sm_100f", "sm_120f")]
)
def test_a_target_that_cannot_run_it(failing, written, asked):
    error = failing(PTX.replace("sm_80", written), target=asked)
    assert str(error) == f"mine.ptx:3: error: .target {written} cannot be assembled for {asked}"


def test_a_version_newer_than_the_linker(failing):
    error = failing(PTX.replace("8.0", "99.1"))
    assert str(error).startswith("mine.ptx:2:1: error: .version 99.1 is newer than nvJitLink ")
    assert str(error).endswith("lower it, or run: pip install -U nvidia-nvjitlink")


def test_an_unknown_modifier_shows_the_line_and_a_caret(failing):
    error = failing(PTX.replace("st.global", "st.globbal"))
    assert str(error) == "mine.ptx:16:7: error: Unknown modifier '.globbal'"
    assert error.log.splitlines()[1:] == ["      st.globbal.u32 [%rd3], %r1;", "        ^"]


def test_a_syntax_error(failing):
    error = failing(PTX.replace("%r1, %tid.x", "%r1 %tid.x"))
    assert str(error) == "mine.ptx:12:17: error: Parsing error near '%tid': syntax error"


def test_an_instruction_that_the_target_directive_lacks(failing):
    error = failing(PTX.replace("ret;", "wgmma.fence.sync.aligned; ret;"))
    assert str(error) == "mine.ptx:17:5: error: wgmma.fence needs sm_90a; the target is sm_80; compile for sm_90a"
    assert error.log.endswith("\n  the text is for this target because of .target sm_80 in line 3")


def test_several_errors_are_counted(failing):
    error = failing(PTX.replace("%r1, %tid.x", "%r1, %r7"))
    assert str(error).endswith("(and 1 more error)")
    assert "Unknown symbol '%r7'" in error.log


@pytest.mark.parametrize("directive", [".version", ".target"])
def test_a_text_that_is_not_ptx(failing, directive):
    error = failing(PTX.replace(directive, "// "), kind=PtxSyntaxError)
    assert str(error) == f"mine.ptx:1:1: error: there is no {directive} directive, so this is not PTX"


def test_a_target_that_does_not_exist(failing):
    error = failing(PTX.replace("sm_80", "sm_905"), kind=PtxSyntaxError)
    assert str(error).startswith("mine.ptx:3: error: there is no target sm_905; targets are sm_75, ")


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        assemble(tmp_path / "none.ptx", target="sm_90a")
    (tmp_path / "binary.ptx").write_bytes(b"ab\n\xff")
    with pytest.raises(UsageError, match=r"binary.ptx:2: the byte 0xff is not UTF-8"):
        assemble(tmp_path / "binary.ptx", target="sm_90a")


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch, caplog):
    (tmp_path / "blocker").write_text("")
    monkeypatch.setenv("PTXKIT_CACHE_DIR", str(tmp_path / "blocker" / "cache"))
    with caplog.at_level(logging.WARNING, "ptxkit"):
        assert assemble(PTX).cubin
    assert len(caplog.records) == 1


def test_a_crash_of_the_assembler_is_one_line(failing, monkeypatch, tmp_path):
    crash = tmp_path / "crash.py"
    crash.write_text("import os, sys\nprint('free(): invalid pointer', file=sys.stderr, flush=True)\nos.abort()\n")
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: run([*command[:-1], str(crash)], **options))
    error = failing(PTX + "// as no other test has it")
    assert re.fullmatch(
        r"mine\.ptx: error: nvJitLink \S+ ended with SIGABRT \(free\(\): invalid pointer\) "
        r"when it assembled this text for sm_90a; .*",
        str(error),
    )


BEHIND_STATIC = """.version 8.0
.target sm_90
.address_size 64
.extern .shared .align {align} .b8 ring[];
.func (.reg .b32 at) where() {{ mov.u32 at, ring; ret; }}
.entry k(.param .u64 p) {{
    .reg .b32 %r<3>; .reg .b64 %rd<2>; .shared .b8 own[{size}];
    st.volatile.shared.b8 [own], 1; ld.param.u64 %rd1, [p]; {body} and.b32 %r1, %r1, 1023; st.global.u32 [%rd1], %r1; ret;
}}
"""
DIRECT, CALL = "mov.u32 %r1, ring;", "call (%r1), where;"


@pytest.mark.parametrize("body", [DIRECT, CALL])
@pytest.mark.parametrize(("align", "size", "fails"), [(1024, 40, True), (128, 120, False), (128, 100, True), (16, 40, False)])
def test_dynamic_shared_memory_whose_alignment_nvjitlink_drops_is_an_error(body, align, size, fails, monkeypatch):
    """nvJitLink 13.0.88 makes of the text the cubin that 13.1 makes of it with an alignment of 16."""
    text = BEHIND_STATIC.format(align=align, size=size, body=body)
    cubin = assemble(text.replace(f".align {align}", ".align 16"), cache=False).cubin
    log = "ptxas info    : Compiling entry function 'k' for 'sm_90'"
    monkeypatch.setattr(assembling, "run_nvjitlink", lambda *_: (cubin, log))
    old = replace(toolkit.nvjitlink(), version="13.0.88")
    monkeypatch.setattr(toolkit, "nvjitlink", lambda: old)
    if not fails:
        assert assemble(text, cache=False).cubin == cubin
        return
    with pytest.raises(CompileError, match=rf":4: error: .*drops the .align {align} of 'ring' after the \d+ bytes .* of k,"):
        assemble(text, cache=False)


def test_static_memory_of_another_kernel_is_no_error(monkeypatch):
    other = ".entry other() { .shared .b8 own[40]; st.volatile.shared.b8 [own], 1; ret; }"
    text = BEHIND_STATIC.format(align=1024, size=1024, body=DIRECT) + other
    old = replace(toolkit.nvjitlink(), version="13.0.88")
    monkeypatch.setattr(toolkit, "nvjitlink", lambda: old)
    assert assemble(text, cache=False).cubin


def test_dynamic_shared_memory_is_aligned_or_refused(device):
    text = BEHIND_STATIC.format(align=1024, size=40, body=DIRECT)
    out = np.full(1, 7, np.uint32)
    try:
        image = assemble(text, target=device.target and device.target.name, cubin=device.kind == "gpu", cache=False)
    except CompileError as error:
        assert toolkit.nvjitlink().version.startswith("13.0.") and "drops the .align" in str(error)
        return
    device.load(image)["k"](out, grid=1, block=1, shared=2048)
    assert out == [0]


def test_ptx_that_was_saved_with_its_nul_is_read(tmp_path):
    (tmp_path / "k.ptx").write_bytes(b".version 8.0\r\n.target sm_80\r\n.address_size 64\r\n.visible .entry k() { ret; }\r\n\0")
    assert list(assemble(tmp_path / "k.ptx", target="sm_80").functions) == ["k"]
