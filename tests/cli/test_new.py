from __future__ import annotations

import os

import pytest

from ptxkit import cli
from ptxkit.cli import new
from ptxkit.errors import UsageError


def exit_of(*args):
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(args))
    return stopped.value.code


def test_the_pair_runs_and_verifies_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert exit_of("new", "my_saxpy") == 0
    assert "ptxkit run ./my_saxpy.py" in capsys.readouterr().out
    assert {p.name for p in tmp_path.iterdir()} == {"my_saxpy.py", "my_saxpy.cu"}
    assert exit_of("run", "./my_saxpy.py", "1000", "--device", "emulator") == 0
    assert "verified" in capsys.readouterr().out


def test_the_command_that_it_proposes_is_quoted_for_the_shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert exit_of("new", "mine", "--directory", "two words") == 0
    assert capsys.readouterr().out.endswith("now: ptxkit run './two words/mine.py'\n")


def test_a_path_that_is_not_utf_8_is_refused_before_a_description_that_names_it(tmp_path):
    source = tmp_path / os.fsdecode(b"caf\xe9.ptx")
    source.write_text(".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }\n")
    with pytest.raises(UsageError, match="is not UTF-8 and cannot be written in mine.py; rename it"):
        new.describe(str(source), "mine", "Mine", "", tmp_path)


@pytest.mark.parametrize("name", ["Abc", "1st", "a-b", "a b", "", "../x", "ä", "_x", "x__y", "a.py"])
def test_a_name_that_is_no_identifier_is_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert exit_of("new", "--", name) == 2
    assert "cannot name a kernel" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["int", "class", "template", "lambda", "main"])
def test_a_keyword_of_either_language_is_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert exit_of("new", name) == 2
    assert "keyword" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["json", "numpy", "ptxkit", "triton"])
def test_a_name_that_would_hide_a_module_is_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert exit_of("new", name) == 2
    assert f"{name}.py would hide the Python module {name}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "options"), [("launch", ()), ("work", ("--expression", "x + 1"))])
def test_a_name_whose_class_would_hide_an_import_is_refused(name, options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert exit_of("new", name, *options) == 2
    assert f"would hide the {name.capitalize()} that {name}.py imports" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("existing", ["mine.py", "mine.cu"])
def test_nothing_is_overwritten(existing, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / existing).write_text("precious")
    assert exit_of("new", "mine") == 2
    assert "exists already" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "precious"


def test_an_unwritable_place_is_one_line_and_leaves_nothing(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert exit_of("new", "mine", "--directory", str(tmp_path / "file" / "below")) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "file" in err
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_half_a_pair_is_never_left(tmp_path):
    first, second = tmp_path / "a.cu", tmp_path / "a.py"
    with pytest.raises(TypeError):
        new.write_pair({first: "kernel", second: None})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["conv_2d", "a_b", "my_saxpy"])
def test_the_kernel_has_the_name_of_its_files(name, tmp_path):
    from ptxkit.workload import registry

    assert exit_of("new", name, "--directory", str(tmp_path)) == 0
    assert registry.load_file(tmp_path / f"{name}.py").name == name
