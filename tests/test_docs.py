"""The pages under docs/: the kernel of docs/kernels.md runs, and commands that pages show have the options that they show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ptxkit import cli
from ptxkit.bench.measure.runner import Runner
from ptxkit.runtime.device import device
from ptxkit.workload import registry

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"(?:^\$ |^|`|; )(ptxkit [a-z][^`\n]*)", re.MULTILINE)


def commands() -> Iterator[tuple[str, str]]:
    """(page, words) of what pages show in code: blocks, transcripts and spans."""
    for page in PAGES:
        for found in COMMAND.findall(page.read_text(encoding="utf-8")):
            words = re.split(r" #|  |; | \| | > ", found)[0].strip()
            yield page.name, words


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> type[registry.Workload]:
    """What docs/kernels.md says to write, written."""
    where = tmp_path_factory.mktemp("docs")
    text = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    given = re.findall(r"<!-- to (\S+) -->\n```\w+\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in given] == ["add_rmsnorm.cu", "add_rmsnorm.py"]
    for name, content in given:
        (where / name).write_text(content, encoding="utf-8")
    return registry.load_file(where / "add_rmsnorm.py")


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("sizes", [(3, 257), (1, 1), (40, 1024)])
def test_the_kernel_of_the_page_is_right(kernel, dtype, sizes):
    emulator = device("emulator")
    report = Runner(kernel.make(sizes, {"dtype": dtype}), emulator).run()
    assert [(v.name, v.verified) for v in report.variants] == [("unfused", True), ("fused", True)]


def test_its_variants_agree_bit_for_bit_as_the_page_says(kernel):
    from ptxkit.bench.cases import Plan
    from ptxkit.bench.measure.run import BenchRun

    (target,) = BenchRun(device("emulator")).run([Plan(kernel.make((5, 300), {"dtype": "f16"}))]).targets
    assert len({row.accuracy.outputs_sha256 for row in target.rows}) == 1


def test_it_refuses_rows_that_do_not_fit(kernel):
    with pytest.raises(Exception, match="cols must be at most 57344"):
        kernel.make((1, 57345))
    report = Runner(kernel.make((1, 57344)), device("emulator"), variants=["fused"]).run()
    assert report.variants[0].verified


@pytest.mark.parametrize(("page", "words"), sorted(set(commands())))
def test_a_command_has_the_options_that_a_page_shows(page, words):
    given = shlex.split(words.replace("…", "..."))[1:]
    command: click.Command = cli.cli
    context = click.Context(command)
    while isinstance(command, click.Group) and given and not given[0].startswith("-"):
        found = command.get_command(context, given[0])
        assert found is not None, f"{page}: ptxkit has no {words!r}"
        command, given = found, given[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    shown = [word.split("=")[0] for word in given if re.match(r"--?[a-z]", word)]
    assert set(shown) <= known | {"--help"}, f"{page}: {words}"


def test_there_are_commands_to_look_at():
    assert len(set(commands())) > 50


@pytest.mark.parametrize(
    ("page", "words"), sorted({c for c in commands() if re.search(r" [a-z_0-9]+:[a-z_0-9]+", c[1])})
)
def test_variants_that_pages_name_are_there(page, words):
    for name, variant in re.findall(r" ([a-z_0-9]+):([a-z_0-9]+)", words):
        assert variant in registry.get(name).variants(), f"{page}: {words}"


@pytest.fixture
def in_page_directory(tmp_path, monkeypatch):
    """A working directory with the source file of docs/run.md."""
    text = (ROOT / "docs" / "run.md").read_text(encoding="utf-8")
    (content,) = re.findall(r"<!-- to saxpy.cu -->\n```cuda\n(.*?)```", text, re.DOTALL)
    (tmp_path / "saxpy.cu").write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return text


def run_line(line, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([*shlex.split(line)[1:], "--device", "emulator"])
    out, err = capsys.readouterr()
    assert stopped.value.code == 0, err
    return out


def test_transcripts_of_source_files_are_exact(in_page_directory, capsys):
    shown = re.findall(r"<!-- transcript -->\n```\n\$ (.*?)\n(.*?)```", in_page_directory, re.DOTALL)
    assert len(shown) == 2
    for line, output in shown:
        assert run_line(line, capsys) == output


def test_examples_of_source_files_run(in_page_directory, capsys):
    blocks = re.findall(r"<!-- run -->\n```\n(.*?)```", in_page_directory, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) == 6
    outputs = [run_line(line, capsys) for line in lines]
    assert any(output.find("verified: y, 64 elements") > 0 for output in outputs)
