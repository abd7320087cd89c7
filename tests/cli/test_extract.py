"""ptxkit extract."""

from __future__ import annotations

import pytest

from ptxkit import cli

SOURCE = "#include <iostream>\n__global__ void k(float* x) { x[0] = 1; }\nint main() { k<<<1, 1>>>(nullptr); }\n"


def exit_of(*args):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["extract", *map(str, args)])
    return stopped.value.code


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "k.cu"
    file.write_text(SOURCE)
    return file


def test_the_device_code_on_stdout_and_in_a_file(source, tmp_path, capsys):
    assert exit_of(source) == 0
    out = capsys.readouterr().out
    assert out.split("\n")[1] == SOURCE.split("\n")[1] and "main" not in out and out.count("\n") == 3
    assert exit_of(source, "-o", tmp_path / "device.cu") == 0
    assert (tmp_path / "device.cu").read_text() == out


def test_the_list_names_what_is_left_out(source, capsys):
    assert exit_of(source, "--list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "line 1: include iostream: of the host",
        "line 3: function main: a host function",
    ]


@pytest.mark.parametrize("name", ["k.cu", "h.cuh"])
def test_files_that_are_read_are_not_overwritten(name, source, tmp_path, capsys):
    (tmp_path / "h.cuh").write_text("void host();\n")
    source.write_text('#include "h.cuh"\n' + SOURCE)
    before = (tmp_path / name).read_text()
    assert exit_of(source, "-o", tmp_path / name) == 2
    assert "would be lost" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == before


def test_bad_input(source, tmp_path, capsys):
    assert exit_of(tmp_path / "absent.cu") == 2
    assert exit_of("x.ptx") == 2
    source.write_text("int main() {}\n")
    assert exit_of(source, "-o", tmp_path / "device.cu") == 2
    assert "no device code" in capsys.readouterr().err and not (tmp_path / "device.cu").exists()
    source.write_text("int main() {}\n__global__ void k() { nothing(); }\n")
    assert exit_of(source) == 4
    assert "k.cu:2" in capsys.readouterr().err
