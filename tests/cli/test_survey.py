"""ptxkit survey."""

from __future__ import annotations

import csv
import io
import json

import pytest

from ptxkit import cli
from ptxkit.source_run.survey import Survey

KERNEL = "__global__ void k(float* x) { x[0] = 1; }\n"


def exit_of(*args):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["survey", *map(str, args)])
    return stopped.value.code


@pytest.fixture
def folder(tmp_path):
    where = tmp_path / "sources"
    where.mkdir()
    (where / "good.cu").write_text(KERNEL)
    (where / "bad.cu").write_text('#include "nosuch.h"\n' + KERNEL)
    return where


def test_the_table_the_summary_and_the_exit_code(folder, capsys):
    assert exit_of(folder, "--jobs", 1) == 4
    out = capsys.readouterr().out
    rows = {line.split()[0].rpartition("/")[2]: line for line in out.splitlines() if line.startswith(str(folder))}
    assert "compiles untouched" in rows["good.cu"]
    shown = (
        "missing header",
        "with --include",
        'cannot open source file "nosuch.h"',
        "50%",
        "1 of 2 files with device code",
    )
    assert [text for text in shown if text not in out] == []


def test_several_folders_are_counted_apart(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in (("one/a.cu", KERNEL), ("one/b.cu", '#include "nosuch.h"\n' + KERNEL), ("two/deep/c.cu", KERNEL)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    exit_of("one", "two", "--jobs", 1)
    rows = [line.split()[:5] for line in capsys.readouterr().out.splitlines()]
    assert ["one", "2", "1", "50%", "1"] in rows and ["two", "1", "1", "100%", "1"] in rows


def test_a_header_that_lies_in_the_folder_is_named(folder, capsys):
    (folder / "deep").mkdir()
    (folder / "deep" / "nosuch.h").write_text("")
    exit_of(folder, "--jobs", 1)
    assert f"--include {folder}/deep" in capsys.readouterr().out
    assert exit_of(folder, "--jobs", 1, "--include", folder / "deep") == 0


def test_csv_and_json_have_a_row_for_each_file(folder, tmp_path, capsys):
    assert exit_of(folder, "--jobs", 1, "--format", "csv", "--json", tmp_path / "s.json") == 4
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["verdict"] for row in rows] == ["fails", "compiles untouched"]
    written = json.loads((tmp_path / "s.json").read_text())
    assert written["schema"] == "ptxkit.survey/2" and written["complete"] is True
    assert written["verdicts"] == {"fails": {"files": 1, "share": 0.5}, "untouched": {"files": 1, "share": 0.5}}
    assert [f["reason"] for f in written["files"]] == ["missing header", ""]


def test_a_part_of_another_source_is_no_failure(tmp_path, capsys):
    (tmp_path / "part.cu").write_text(KERNEL.replace("float", "real"))
    (tmp_path / "whole.cu").write_text('#define real float\n#include "part.cu"\n')
    assert exit_of(tmp_path, "--jobs", 1, "--json", tmp_path / "s.json") == 0
    out = capsys.readouterr().out
    assert "1 of 1 file with device code compile (100%)" in out and f"compile {tmp_path / 'whole.cu'}, which" in out
    verdicts = {f["file"]: (f["verdict"], f["exit_code"]) for f in json.loads((tmp_path / "s.json").read_text())["files"]}
    assert verdicts[str(tmp_path / "part.cu")] == ("part", 0)


def test_a_macro_of_the_build_is_named(tmp_path, capsys):
    (tmp_path / "a.cu").write_text('#include "a.cuh"\n' + KERNEL.replace("float", "real"))
    (tmp_path / "a.cuh").write_text("#ifdef SINGLE\nusing real = float;\n#endif\n")
    assert exit_of(tmp_path, "--jobs", 1) == 4
    assert "--define SINGLE, as the build does" in capsys.readouterr().out
    assert exit_of(tmp_path, "--jobs", 1, "--define", "SINGLE") == 0


def test_an_interruption_shows_what_is_known(folder, monkeypatch, tmp_path, capsys):
    run = Survey.run

    def interrupted(self, say):
        def stop(text):
            if text.startswith("1 of"):
                raise KeyboardInterrupt

        run(self, stop)

    monkeypatch.setattr(Survey, "run", interrupted)
    assert exit_of(folder, "--jobs", 1, "--json", tmp_path / "s.json") == 130
    got = capsys.readouterr()
    assert "bad.cu" in got.out and "good.cu" not in got.out and "1 of 2 files" in got.err
    assert json.loads((tmp_path / "s.json").read_text())["complete"] is False


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["absent"], 2, "does not exist"),
        (["--arch", "sm_1", "."], 3, "sm_1"),
        (["--define", "1x", "."], 2, "--define"),
        (["--include", "absent", "."], 2, "no such directory"),
        (["--json", "absent/s.json", "."], 2, "absent/s.json"),
    ],
)
def test_bad_input(args, code, message, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert exit_of(*args) == code
    got = capsys.readouterr()
    assert message in got.err and got.err.count("\n") == 1
