"""Surveys: files in folders, processes that end, and the reasons of failures."""

from __future__ import annotations

from pathlib import Path, PurePath

import pytest

from ptxkit.errors import UnavailableError, UsageError
from ptxkit.source_run import survey as surveys
from ptxkit.source_run.survey import Settings, Survey, Surveyed, Verdict, find
from ptxkit.source_run.survey_reasons import (
    CRASH,
    MISSING_HEADER,
    OTHER,
    PART,
    PLATFORM,
    TIME_LIMIT,
    UNDECLARED,
    Reason,
    missing_headers,
    reason_of,
    with_directories,
)
from ptxkit.source_run.survey_worker import answer

KERNEL = "__global__ void k(float* x) { x[0] = 1; }\n"
PTX = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"

STAND_IN = """
import json, os, sys, time
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["file"].endswith("crash.cu"):
        sys.stderr.write("free(): invalid pointer\\n")
        sys.stderr.flush()
        os.abort()
    if asked["file"].endswith("endless.cu"):
        time.sleep(1000)
    print(json.dumps({"verdict": "untouched", "kernels": 1, "seconds": 0.5}), flush=True)
"""


def asked(path, **changes):
    return {
        "file": str(path),
        "target": None,
        "include_dirs": [],
        "defines": {},
        "options": [],
        "limit_s": 60,
        **changes,
    }


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_cu", ".cu").replace("_ptx", ".ptx")).write_text(text)
    return folder


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A program in place of the compilers, which crashes or never ends by the name of the file."""
    (tmp_path / "survey_stand_in.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(surveys, "PROGRAM", "survey_stand_in")
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


# the files


def test_sources_are_found_in_folders_below_once_and_sorted(tmp_path):
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    for name in ("b/c/z.ptx", "b/a.cu", "k.cu", ".git/no.cu", "k.cpp"):
        (tmp_path / name).write_text("")
    (tmp_path / "h.cuh").write_text("")
    (tmp_path / "link.cu").symlink_to(tmp_path / "k.cu")
    (tmp_path / "b" / "up").symlink_to(tmp_path)
    found = find([str(tmp_path), str(tmp_path / "b" / "a.cu")])
    assert [str(p.relative_to(tmp_path)) for p in found.sources] == ["k.cu", "b/a.cu", "b/c/z.ptx"]
    assert found.headers == {"h.cuh": [tmp_path / "h.cuh"]}


@pytest.mark.parametrize(
    ("name", "message"),
    [("absent", "does not exist"), ("x.txt", "no .cu or .ptx file"), ("empty", "there is no .cu or .ptx file in")],
)
def test_folders_that_hold_nothing_are_refused(name, message, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(UsageError, match=message):
        find([str(tmp_path / name)])


# the verdicts


@pytest.mark.parametrize(
    ("name", "text", "verdict", "kernels"),
    [
        ("k.cu", KERNEL, "untouched", 1),
        ("k.cu", "#include <iostream>\n" + KERNEL + "int main() {}\n", "without_host_code", 1),
        ("k.cu", "#include <iostream>\nint main() {}\n", "no_device_code", 0),
        ("k.cu", "template <class T> __global__ void k(T* x) {}\n", "untouched", 0),
        ("k.cu", "__device__ float f() { return 1; }\n", "untouched", 0),
        ("k.cu", KERNEL.replace("= 1", "= y"), "fails", 0),
        ("k.ptx", PTX, "untouched", 1),
        ("k.ptx", PTX.partition(".visible")[0], "no_device_code", 0),
        ("k.ptx", "nothing\n", "fails", 0),
    ],
)
def test_the_verdict_on_a_file(name, text, verdict, kernels, tmp_path):
    (tmp_path / name).write_text(text)
    found = answer(asked(tmp_path / name))
    assert (found["verdict"], found["kernels"]) == (verdict, kernels), found


def test_templates_without_an_instance_are_counted(tmp_path):
    (tmp_path / "k.cu").write_text("template <class T> __global__ void k(T* x) {}\n")
    assert answer(asked(tmp_path / "k.cu"))["templates"] == 1


def test_macros_directories_and_target_apply(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "h.cuh").write_text("#define TWO 2\n")
    (tmp_path / "k.cu").write_text('#include "h.cuh"\n__global__ void k(int* x) { x[0] = N + TWO; }\n')
    found = answer(asked(tmp_path / "k.cu", defines={"N": "3"}, include_dirs=[str(tmp_path / "below")], target="sm_80"))
    assert (found["verdict"], found["target"]) == ("untouched", "sm_80")


def test_ptx_is_assembled_for_the_target_that_it_names_or_the_default(tmp_path):
    targets = {}
    for named in ("sm_80", "sm_52"):
        (tmp_path / "k.ptx").write_text(PTX.replace("sm_80", named))
        targets[named] = answer(asked(tmp_path / "k.ptx"))["target"]
    assert targets == {"sm_80": "sm_80", "sm_52": "sm_90a"}


def test_a_file_that_is_not_text_fails_with_its_reason(tmp_path):
    (tmp_path / "k.cu").write_bytes(b"a\0b")
    found = answer(asked(tmp_path / "k.cu"))
    assert (found["reason"], found["exit_code"]) == ("not readable", 2) and "NUL byte" in found["error"]


# the reasons


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        ('#include "nosuch.h"\n' + KERNEL, "missing header", "directory of nosuch.h with --include"),
        ("#include <cutlass/nosuch.h>\n" + KERNEL, "missing header", "pip install nvidia-cutlass"),
        (
            '#include "nosuch.h"\n#include <iostream>\n' + KERNEL.replace("= 1", "= MISSING") + "int main() {}\n",
            "missing header",
            "directory of nosuch.h",
        ),
        (KERNEL + "__global__ void p(float* x) { k<<<1, 1>>>(x); }\n", "dynamic parallelism", "from the host"),
        ("__global__ void k() { cudaDeviceSynchronize(); }\n", "dynamic parallelism", "from the host"),
        (
            "extern __device__ float f(float);\n__global__ void k(float* x) { x[0] = f(x[0]); }\n",
            "separate compilation",
            "ptxkit.compile([",
        ),
        (
            "texture<float, 1> t;\n__global__ void k(float* x) { x[0] = tex1Dfetch(t, 3); }\nint main() {}\n",
            "texture reference",
            "cudaTextureObject_t",
        ),
        (
            "float h(float x) { return x; }\n__global__ void k(float* x) { x[0] = h(1); }\nint main() {}\n",
            "host code in device code",
            "function h in line 1",
        ),
        ("__global__ void k(int* x) { x[0] = TILE; }\n", "undeclared name", "--define TILE="),
        ('__global__ void k() { asm("tcgen05.fence::before_thread_sync;"); }\n', "target", "--arch sm_100a"),
        ('#error "say N"\n' + KERNEL, "#error", "condition"),
        ("__global__ void k() { static_assert(1 == 2); }\n", "static assertion", "condition"),
        ("__global__ void k() { {\nint main() {}\n", "braces", "brace"),
        ('__global__ void k() { asm("bogus.u32 1;"); }\n', "instruction", "instruction"),
        ("__global__ void k() { int a = ; }\n", OTHER, "error names"),
    ],
)
def test_the_reason_and_the_hint(text, reason, hint, tmp_path):
    (tmp_path / "k.cu").write_text(text)
    found = answer(asked(tmp_path / "k.cu"))
    assert found["reason"] == reason and hint in found["hint"], found
    assert "\n" not in found["error"] and found["exit_code"] == 4


def test_missing_headers_are_read_from_errors_and_notes():
    log = (
        'a.cu:1:2: error: cannot open source file "x/y.h"\nnote: headers that were not found: b.h, c.h, ... (give -I)\n'
    )
    assert missing_headers(log) == ("x/y.h", "b.h", "c.h")


def test_a_missing_header_is_found_in_the_folders():
    reason = reason_of('cannot open source file "x/y.h"')
    files = {"y.h": [PurePath("far/away/x/y.h"), PurePath("in/x/y.h"), PurePath("y.h")]}
    assert with_directories(reason, files).hint == "--include in"


# the processes


def test_a_part_of_another_source_is_named_with_it(tmp_path):
    written(tmp_path, whole_cu='#define fp float\n#include "./part.cu"\n', part_cu=KERNEL.replace("float", "fp"))
    (tmp_path / "below").mkdir()
    written(tmp_path / "below", part_cu=KERNEL.replace("float", "fp"))
    found = answer(asked(tmp_path / "part.cu"))
    assert (found["verdict"], found["reason"]) == ("fails", PART)
    assert found["hint"] == f"compile {tmp_path / 'whole.cu'}, which includes this file after declaring what it needs"
    assert answer(asked(tmp_path / "below" / "part.cu"))["reason"] == UNDECLARED
    assert answer(asked(tmp_path / "whole.cu"))["kernels"] == 1
    written(tmp_path, part_cu=KERNEL.replace("float", "fp") + "int main() { return 0; }\n")
    assert answer(asked(tmp_path / "part.cu"))["reason"] == UNDECLARED  # a program, although the other source includes it


def test_a_source_for_another_platform_is_named():
    reason = with_directories(Reason(MISSING_HEADER, "", ("own.h", "hip/hip_bf16.h")), {})
    assert (reason.name, "AMD's HIP" in reason.hint) == (PLATFORM, True)


def test_a_crash_and_an_endless_compilation_end_one_file_only(stand_in):
    folder = written(stand_in, a_cu="", crash_cu="", endless_cu="", z_cu="")
    survey = Survey(find([str(folder)]), Settings(limit_s=2.0, jobs=2))
    survey.run()
    got = {Path(f.file).stem: f for f in survey.files}
    assert list(got) == ["a", "crash", "endless", "z"] and survey.is_complete
    assert [name for name, f in got.items() if f.verdict is Verdict.UNTOUCHED] == ["a", "z"]
    assert (got["crash"].reason, got["crash"].exit_code) == (CRASH, 9)
    assert "SIGABRT (free(): invalid pointer)" in got["crash"].error
    assert (got["endless"].reason, got["endless"].exit_code) == (TIME_LIMIT, 8)
    assert survey.exit_code == 9


def test_an_interruption_keeps_the_verdicts_and_ends_the_processes(stand_in):
    folder = written(stand_in, a_cu="", endless_cu="")
    survey = Survey(find([str(folder)]), Settings(limit_s=500.0, jobs=1))

    def say(text):
        if text.startswith("1 of"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        survey.run(say)
    assert [Path(f.file).stem for f in survey.files] == ["a"] and not survey.is_complete


def test_a_program_that_does_not_start_is_reported(stand_in, monkeypatch):
    written(stand_in, a_cu="")
    monkeypatch.setattr(surveys, "PROGRAM", "no_such_program_of_a_survey")
    with pytest.raises(UnavailableError, match="No module named"):
        Survey(find([str(stand_in)]), Settings()).run()


# the summary


def test_shares_count_the_most_frequent_first():
    done = {
        Path(str(i)): Surveyed(str(i), Verdict.FAILS, reason=reason) for i, reason in enumerate(["b", "a", "b", ""])
    }
    survey = Survey(surveys.Found(tuple(done), {}), Settings(), 0.0, done)
    assert survey.shares(lambda f: f.reason) == {"b": (2, 0.5), "a": (1, 0.25)}
