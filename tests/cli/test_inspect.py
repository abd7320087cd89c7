"""ptxkit inspect: pages, views, comparisons, JSON, graphs, errors."""

from __future__ import annotations

import json
import os
import pty
import re
from pathlib import Path

import pytest
from ptxkit_processes import Command

from ptxkit import cli
from ptxkit.cli import inspect as inspect_command

SAMPLES = Path(__file__).parents[1] / "inspect" / "samples.cu"


def output_of(capsys, *args, code=0):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["inspect", *map(str, args)])
    out, err = capsys.readouterr()
    assert stopped.value.code == code, err
    return out if code == 0 else err


def test_the_page(capsys):
    out = output_of(capsys, f"{SAMPLES}:nested")
    assert out.startswith("samples.cu:nested  sm_90a\n")
    assert "\x1b" not in out
    for text in (
        "live at most at samples.cu:",
        "shared     1024 B",
        "spills 0 B stored, 0 B loaded",
        "occupancy  8 CTAs of 256 threads: 64 of 64 warps (100%), limited by threads",
        "CTAs by each limit: threads 8, registers 16, shared memory 114, CTA slots 32, barriers 64",
        "LDG.32 1, STG.32 1",
        "  samples.cu:47    47-52",
        "  > samples.cu:51  51-51",
        "PTX (49 instructions)",
    ):
        assert text in out, text


def test_warnings_name_their_lines(capsys):
    out = output_of(capsys, f"{SAMPLES}:spilling", f"{SAMPLES}:narrow", "--target", "sm_90a")
    assert re.search(
        r"samples.cu:3[46]: local memory traffic in a loop: \d+ LDL and \d+ STL; registers are spilled", out
    )
    assert "samples.cu:8: 4 neighbouring 32-bit loads (LDG)" in out
    assert "(assumed; --block N)" in out


def test_a_warning_in_a_header_names_its_caller(capsys, tmp_path):
    (tmp_path / "four.cuh").write_text(
        "__device__ __forceinline__ float four(const float* x) {\n    return x[0] + x[1] * x[2] + x[3];\n}\n"
    )
    path = tmp_path / "k.cu"
    path.write_text(
        '#include "four.cuh"\nextern "C" __global__ void k(const float* x, float* y) {\n    *y = four(x);\n}\n'
    )
    assert "  four.cuh:2, inlined at k.cu:3: 4 neighbouring 32-bit loads" in output_of(capsys, path)


def test_an_impossible_launch(capsys):
    out = output_of(capsys, "saxpy:scalar", "--shared", 300000)
    assert "occupancy  none with 256 threads: 300000 bytes of shared memory; a CTA gets 232448 at most" in out


def test_sass_with_source_and_ptx(capsys):
    out = output_of(capsys, "saxpy:scalar@sm_90a", "--sass", "--source", "--ptx").split("\n")
    load = next(n for n, line in enumerate(out) if "LDG.E" in line)
    assert any("ld.global" in line and line.startswith("    ptx:") for line in out[:load])
    assert any(line.startswith("saxpy.cu:6  if (i < n) y[i] = fmaf") for line in out[:load])
    assert any(line.endswith(":") and "saxpy" in line for line in out)


def test_sass_alone_and_its_columns(capsys):
    plain = output_of(capsys, "saxpy:scalar@sm_90a", "--sass")
    assert "0000  LDC R1, c[0x0][0x28]\n" in plain and "saxpy.cu" not in plain
    full = output_of(capsys, "saxpy:scalar@sm_90a", "--control", "--encoding", "--registers")
    line = next(line for line in full.split("\n") if "S2R" in line)
    assert re.search(r"B------:R-:W\d:-:S\d\d  +\d+ .*[0-9a-f]{16} [0-9a-f]{16}$", line)
    assert re.search(r"// block 0: \d+ stall cycles", full)
    assert re.search(r"at most \d+ registers are live, first at 0x", full)


def test_inlined_code_names_its_callers(capsys):
    out = output_of(capsys, "fused_l2norm:vectorized@sm_90a", "--sass", "--source")
    assert re.search(r"\w+\.cuh:\d+  .*\n  inlined at \w+\.cuh?:\d+\n", out)


def test_ptx_and_source_views(capsys):
    out = output_of(capsys, "saxpy:scalar@sm_90a", "--ptx")
    assert "fma.rn.f32" in out and ".entry" in out
    out = output_of(capsys, "saxpy:scalar@sm_90a", "--ptx", "--source")
    assert re.search(r"saxpy.cu:6  if .*\n +\d+  ", out) and ".loc" not in out
    out = output_of(capsys, f"{SAMPLES}:wide", "--source")
    assert re.search(r"^ +\d+ +15          float4 v = x\[i\];$", out, re.MULTILINE)
    assert "..." not in out.split("\n")[3]


def test_a_cubin_has_its_ptx_and_the_source_of_its_lines(capsys, tmp_path):
    from ptxkit.compiler import compile_source

    path = tmp_path / "k.cubin"
    path.write_bytes(compile_source(SAMPLES, target="sm_90a").cubin)
    out = output_of(capsys, f"{path}:wide", "--ptx", "--source")
    heading, load = out.index("samples.cu:15  float4 v = x[i];"), out.index("ld.global.v4")
    assert heading < load < out.index("samples.cu:17  y[i] = v;")


def test_a_cubin_without_lines_says_so(capsys, tmp_path):
    from ptxkit.compiler import compile_source

    path = tmp_path / "bare.cubin"
    source = 'extern "C" __global__ void k(float* y) { *y = 1; }'
    path.write_bytes(compile_source(source, target="sm_90a", lineinfo=False).cubin)
    assert "the cubin has no source lines" in output_of(capsys, path, "--source")
    assert "the PTX is not known" in output_of(capsys, path, "--ptx")
    assert "STG" in output_of(capsys, path, "--sass", "--source", "--ptx")
    assert "SASS" in output_of(capsys, path)


def test_the_occupancy_curve(capsys):
    out = output_of(capsys, "saxpy:scalar@sm_90a", "--occupancy-curve")
    assert re.search(r"1 to 32 +<- \d+ now +8 +64 +100%", out)
    assert re.search(r"\d+ registers more: 48 warps instead of 64", out)
    assert "kB more: 56 warps instead of 64" in out


def test_differences(capsys):
    out = output_of(capsys, "--diff", "saxpy:scalar", "saxpy:vectorized")
    assert re.search(r"LDG.128 \(global\) +0 +2 +\+2", out) and re.search(r"^\+ 0.*LDG.E.128", out, re.MULTILINE)
    out = output_of(capsys, "--diff", "saxpy:scalar@THREADS=128", "saxpy:scalar@THREADS=256")
    assert re.search(r"CTAs per SM +16 +8 +-8", out) and "LEA R7, R7, R0, 0x7" in out
    out = output_of(capsys, "--diff", "saxpy:scalar", "saxpy:scalar")
    assert "the same instructions, but for register numbers and addresses" in out
    value = json.loads(output_of(capsys, "--diff", "saxpy:scalar@sm_80", "saxpy:scalar@sm_90a", "--json"))
    assert value["schema"] == "ptxkit.inspect/1" and not value["diff"]["same"]
    whole = output_of(capsys, "--diff", "saxpy:scalar@sm_80", "saxpy:scalar@sm_90a", "--sass", "--control")
    assert "..." not in whole and re.search(r"\+ 0000  LDC .*B------:R-:W-:-:S01", whole)


def test_differences_are_joined_with_times(capsys, monkeypatch):
    monkeypatch.setattr(inspect_command, "time_of", lambda subject: 10.0 if "scalar" in subject.title else 9.0)
    out = output_of(capsys, "--diff", "saxpy:scalar", "saxpy:vectorized")
    assert re.search(r"time \(us\) +10.00 +9.00 +-10.0%", out)
    assert "time" not in output_of(capsys, "--diff", "saxpy:scalar", "saxpy:vectorized", "--no-time")
    value = json.loads(output_of(capsys, "--diff", "saxpy:scalar", "saxpy:vectorized", "--json"))
    assert value["diff"]["time_us"] == [10.0, 9.0]


@pytest.mark.parametrize(
    ("code", "gpu", "runs"),
    [
        ("sm_90a", "sm_90a", True),
        ("sm_90", "sm_90a", True),
        ("sm_80", "sm_90a", False),
        ("sm_80", "sm_86", True),
        ("sm_86", "sm_80", False),
        ("sm_100f", "sm_103a", True),
        ("sm_100a", "sm_103a", False),
    ],
)
def test_which_code_runs_where(code, gpu, runs):
    from ptxkit.inspect.timing import runs_on
    from ptxkit.targets import Target

    assert runs_on(Target.parse(code), Target.parse(gpu)) is runs


def test_a_variant_is_timed_as_it_was_built(monkeypatch):
    from types import SimpleNamespace

    from ptxkit.bench.measure import run as measured_run
    from ptxkit.inspect.subject import subjects
    from ptxkit.inspect.timing import time_us
    from ptxkit.runtime.device import device
    from ptxkit.targets import Target

    asked = {}

    class Recorder:
        def __init__(self, workload, on, **settings):
            asked.update(settings, workload=workload.name)

        def run(self):
            row = SimpleNamespace(cold=SimpleNamespace(median_us=3.5))
            return SimpleNamespace(cases=[SimpleNamespace(rows=[row])])

    monkeypatch.setattr(measured_run, "Run", Recorder)
    (subject,) = subjects("saxpy:scalar@sm_90a,THREADS=512")
    assert time_us(subject, SimpleNamespace(target=Target.parse("sm_90a"))) == 3.5
    assert asked == {
        "workload": "saxpy",
        "variants": ("scalar",),
        "target": Target.parse("sm_90a"),
        "tile": {"THREADS": 512},
    }
    assert time_us(subject, SimpleNamespace(target=Target.parse("sm_80"))) is None
    assert time_us(subject, device("emulator")) is None
    (file,) = subjects(f"{SAMPLES}:wide")
    assert inspect_command.time_of(file) is None


def test_differences_need_two_kernels(capsys):
    assert "--diff compares two subjects, not 1" in output_of(capsys, "--diff", "saxpy:scalar", code=2)
    err = output_of(capsys, "--diff", "saxpy", "saxpy", code=2)
    assert "saxpy has 3 kernels; --diff needs one: saxpy:scalar (saxpy<256>)" in err


def test_json(capsys):
    value = json.loads(output_of(capsys, "saxpy", "--json"))
    assert value["schema"] == "ptxkit.inspect/1"
    assert [k["title"] for k in value["kernels"]] == ["saxpy:scalar", "saxpy:vectorized", "saxpy:ptx"]


def test_the_graph(capsys, tmp_path, monkeypatch):
    assert output_of(capsys, "saxpy:scalar", "--cfg", "-").startswith("digraph cfg {")
    path = tmp_path / "graph.dot"
    output_of(capsys, "saxpy:scalar", "--cfg", path)
    assert path.read_text().startswith("digraph cfg {")
    monkeypatch.setattr(inspect_command.shutil, "which", lambda name: None)
    err = output_of(capsys, "saxpy:scalar", "--cfg", tmp_path / "graph.svg", code=3)
    assert "graphviz's dot" in err and "graph.dot" in err
    assert "--cfg writes FILE.svg or FILE.dot" in output_of(capsys, "saxpy:scalar", "--cfg", "graph.png", code=2)
    assert "--cfg draws one kernel" in output_of(capsys, "saxpy", "--cfg", "-", code=2)
    drawer = tmp_path / "dot"
    drawer.write_text("#!/bin/sh\necho '<svg>'; cat > /dev/null\n")
    drawer.chmod(0o755)
    monkeypatch.setattr(inspect_command.shutil, "which", lambda name: str(drawer))
    output_of(capsys, "saxpy:scalar", "--cfg", tmp_path / "graph.svg")
    assert (tmp_path / "graph.svg").read_text() == "<svg>\n"


def test_settings(capsys, tmp_path):
    path = tmp_path / "k.cu"
    path.write_text('extern "C" __global__ void k(float* y) { y[threadIdx.x] = VALUE; }\n')
    out = output_of(
        capsys, path, "-D", "VALUE=2", "--arch", "sm_80", "--compiler-option", "-maxrregcount=32", "--block", 64
    )
    assert "k.cu:k  sm_80" in out and "CTAs of 64 threads:" in out
    out = output_of(capsys, "saxpy:scalar", "--tile", "THREADS=512", "--cluster-dims", 2)
    assert "THREADS=512" in out and "clusters of 2" in out


@pytest.mark.parametrize(
    ("args", "code", "reason"),
    [
        (["saxpi"], 2, "did you mean 'saxpy'?"),
        (["saxpy:vectorised"], 2, "did you mean 'vectorized'?"),
        (["saxpy", "--target", "sm_12"], 3, "there is no target 'sm_12'"),
        (["nowhere.cubin"], 2, "cannot read nowhere.cubin: No such file or directory"),
        ([SAMPLES.with_name("conftest.py")], 2, "must define one Workload"),
        (["/etc/passwd"], 2, "is not a cubin: it starts with"),
        (["saxpy", "-D", "A=1"], 2, "are for files"),
        (["saxpy", "--tile", "THREADS"], 2, "--tile takes NAME=VALUE"),
        ([f"{SAMPLES}:nestd"], 2, "did you mean nested?"),
        ([], 2, "missing argument"),
    ],
)
def test_errors_are_one_line(capsys, args, code, reason):
    err = output_of(capsys, *args, code=code)
    assert err.startswith("error: ") and err.count("\n") == 1 and reason in err


def test_a_missing_disassembler_says_how_to_get_it(capsys, monkeypatch):
    from ptxkit.compiler import toolkit
    from ptxkit.inspect import disassembly

    monkeypatch.setattr(disassembly, "digest", lambda data: "no-such-entry")
    found = toolkit._find
    monkeypatch.setattr(toolkit, "_find", lambda wanted: None if wanted.name == "nvdisasm" else found(wanted))
    err = output_of(capsys, "saxpy:scalar", code=3)
    assert err == "error: nvdisasm is not installed; run: pip install 'nvidia-cuda-nvdisasm>=13,<14'\n"


def on_a_terminal(*args, **environment):
    """The output of the command on a terminal of 24 lines, with a pager that prints a mark and then the text."""
    parent, child = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "PAGER": "sed s/^/PAGED/", "LINES": "24", "COLUMNS": "200", **environment}
    process = Command(["inspect", *args], stdout=child, stderr=child, stdin=child, env=env)
    os.close(child)
    out = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:
            break
        if not piece:
            break
        out += piece
    process.wait()
    os.close(parent)
    return out.decode()


def test_a_terminal_gets_colour_and_a_pager_for_what_is_long():
    short = on_a_terminal("saxpy:scalar", "--help")
    assert "PAGED" not in short
    out = on_a_terminal("saxpy:scalar", "--sass", "--source", "--ptx")
    assert "PAGED" in out and "LDG" in out
    whole = on_a_terminal("saxpy:scalar", "--sass", "--source", LINES="500")
    assert "PAGED" not in whole and "\x1b[32m" in whole
    assert "\x1b" not in on_a_terminal("saxpy:scalar", "--sass", LINES="500", NO_COLOR="1")


def test_a_kernel_is_inspected_with_its_options_and_sizes(capsys):
    """The kernel is compiled as `run` would compile it: by --option, and by the settings of the subject."""
    given = (["softmax:fused", "--option", "dtype=f16"], ["softmax:fused@dtype=f16,cols=64"], ["softmax:fused"])
    first, second, plain = (json.loads(output_of(capsys, *words, "--json"))["kernels"][0] for words in given)
    assert "f16" in first["kernel"] and first["kernel"] == second["kernel"] != plain["kernel"]
    assert second["launch"]["dynamic_shared_bytes"] < first["launch"]["dynamic_shared_bytes"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["softmax:fused", "--option", "dtpye=f16"], "softmax has no size or option 'dtpye'; did you mean 'dtype'?"),
        (["softmax:fused@dtype=f61"], "option dtype must be one of f32, f16, bf16, not 'f61'"),
        (["softmax:fused@cols=x"], "size cols must be a whole number"),
        ([SAMPLES, "--option", "dtype=f16"], "has no options, which only kernels with a description have"),
    ],
)
def test_options_that_a_kernel_lacks(words, complaint, capsys):
    assert complaint in output_of(capsys, *words, code=2)


def test_tiles_of_a_users_description_can_be_fixed(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["new", "mine", "--directory", str(tmp_path)])
    capsys.readouterr()
    assert "mine<512>" in output_of(capsys, f"{tmp_path}/mine.py:simple", "--tile", "THREADS=512")


def test_ptx_alone_is_what_run_takes_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["inspect", "saxpy:scalar", "--ptx", "-o", "out.ptx"])
    assert stopped.value.code == 0 and "wrote out.ptx" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["inspect", "saxpy:scalar", "--ptx", "--plain"])
    assert capsys.readouterr().out == (tmp_path / "out.ptx").read_text()
    words = "run out.ptx --arg 0=2 --arg 1=f32[64]:ones --arg 2=f32[64]:ones --arg 3=64 --grid 1 --block 256 --device emulator"
    with pytest.raises(SystemExit) as stopped:
        cli.main(words.split())
    assert stopped.value.code == 0 and "#2: 3 3 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ("saxpy:scalar --plain", "--plain applies to PTX only"),
        ("saxpy:scalar -o x.ptx", "--output applies to PTX only"),
        ("saxpy:scalar --ptx --sass --plain", "without --source and --sass"),
        ("saxpy:scalar --ptx -o x.txt", "--output writes FILE.ptx, not x.txt"),
        ("saxpy --ptx --plain", "name a kernel of one"),
        ("saxpy:scalar --ptx -o no/x.ptx", "cannot write no/x.ptx"),
    ],
)
def test_ptx_that_cannot_be_written(words, match, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["inspect", *words.split()])
    err = capsys.readouterr().err
    assert stopped.value.code == 2 and match in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("#!/bin/sh\necho 'Format: \"svg\" not recognized.' >&2; exit 1", "Format: \"svg\" not recognized"),
        ("#!/bin/sh\nexit 0", "it exited with 0"),
        ("#!/nonexistent/sh\n", "cannot be executed: No such file or directory"),
        ("#!/bin/sh\nkill -9 $$", "it exited with -9"),
    ],
)
def test_a_graphviz_that_does_not_work_is_unavailable(capsys, tmp_path, monkeypatch, script, why):
    (tmp_path / "dot").write_text(script)
    (tmp_path / "dot").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    err = output_of(capsys, "saxpy:scalar", "--cfg", tmp_path / "graph.svg", code=3)
    assert err.count("\n") == 1 and why in err and f"use --cfg {tmp_path}/graph.dot" in err
    assert not (tmp_path / "graph.svg").exists()


TEMPLATE = """
template <int N> __global__ void add(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += N;
}
template __global__ void add<3>(float*, int);
extern "C" __global__ void other(float* x) { x[0] = 1; }
"""
LAUNCH = ["--arg", "x=float32[128]:ones", "--arg", "n=100", "--grid", "2", "--block", "64"]


def test_a_source_file_has_heat_of_the_launch_that_is_given(capsys, tmp_path):
    file, page = tmp_path / "t.cu", tmp_path / "t.html"
    file.write_text(TEMPLATE)
    output_of(capsys, f"{file}:add<3>", "--html", page, *LAUNCH)
    (kernel,) = json.loads(re.search(r"<script[^>]*json[^>]*>(.*?)</script>", page.read_text(), re.DOTALL)[1])["kernels"]
    assert kernel["heat"]["sizes"] == "counted in the emulator, x=float32[128]"
    (file_counts,) = kernel["heat"]["metrics"]["bytes"].values()
    assert file_counts == {"4": 100 * 8}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["t.cu:add<3>", "--grid", "2"], 2, "give --html FILE"),
        (["t.cu", "--html", "t.html", *LAUNCH], 2, "describe the launch of one kernel; name one of"),
        (["saxpy:ptx", "--html", "t.html", *LAUNCH], 2, "the description of saxpy:ptx gives its launches"),
        (["t.cu:add<3>", "--html", "t.html", *LAUNCH[:4], "--grid", "2"], 2, "lacks --block"),
        (["t.cu:add<3>", "--html", "t.html", "--arg", "x=float64[128]", *LAUNCH[2:]], 2, "pass an array of float32"),
        (["t.cu:add<3>", "--html", "t.html", "--arg", "x=float32[9]", *LAUNCH[2:]], 5, "t.cu:4) ld.global"),
    ],
)
def test_a_launch_that_cannot_be_counted_is_an_error_and_no_page(capsys, tmp_path, monkeypatch, words, code, message):
    monkeypatch.chdir(tmp_path)
    Path("t.cu").write_text(TEMPLATE)
    err = output_of(capsys, *words, code=code)
    assert message in err and not Path("t.html").exists()


@pytest.mark.parametrize("options", [["--html", "x.html", "--json"], ["--html", "x.html", "--cfg", "x.dot"]])
def test_only_one_output_is_written(capsys, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    assert "are different outputs; give one of them" in output_of(capsys, "saxpy:ptx", *options, code=2)
    assert not list(tmp_path.iterdir())
