"""The pages: commands print the transcripts, Python code runs, and commands have the options that pages show."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from ptxkit_processes import Command

from ptxkit import cli
from ptxkit.bench.measure.run import Run
from ptxkit.runtime.device import device
from ptxkit.workload import registry

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
IN_BLOCK = re.compile(r"^(?:.*\| |\$ |.*; )?(ptxkit [a-z][^`\n]*)", re.MULTILINE)
IN_SPAN = re.compile(r"`(?:[^`\n]*; )?(ptxkit [a-z][^`\n]*)`")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def commands() -> Iterator[tuple[str, str]]:
    """(page, words) of the code on pages: blocks, transcripts and spans."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = "\n".join(FENCED.findall(text)).replace("\\\n", " ")
        for found in [*IN_BLOCK.findall(blocks), *IN_SPAN.findall(FENCED.sub("", text))]:
            words = re.split(r" #|  |; | \| | > ", found)[0].strip()
            yield page.name, words


def load_script():
    spec = importlib.util.spec_from_file_location("refresh_transcripts", ROOT / "scripts" / "refresh_transcripts.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


TRANSCRIPTS = load_script()
ROUNDING = re.compile(r"\b\d+(\.\d+)?e-\d+")  # rounding errors in the last bits differ between processors


PTXKIT = re.compile(r"ptxkit ([^|<>;&]*?)( 2>&1)?(?: \| (.*))?")


@pytest.fixture
def shell(tmp_path):
    """A function that runs a command of a transcript without a GPU, with a compile cache of the page's own.

    What a program is compiled to may depend on what NVRTC compiled before it in the same process, so each command has a process
    of its own, as in a shell.
    """
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    env = TRANSCRIPTS.environment(home)
    env |= {"PYTHONPATH": str(ROOT), "PTXKIT_CACHE_DIR": str(tmp_path / "cache")}

    def run(command: str) -> tuple[int, str]:
        found = PTXKIT.fullmatch(command)
        code, output = run_forked(*found.groups()) if found else TRANSCRIPTS.run_in_shell(command, work, env)
        return code, TRANSCRIPTS.portable(output, work, home)

    def run_forked(words: str, both: str | None, pipeline: str | None) -> tuple[int, str]:
        with tempfile.TemporaryFile("w+", dir=tmp_path) as own, tempfile.TemporaryFile("w+", dir=tmp_path) as shown:
            stderr = shown if pipeline and not both else own
            streams = {"stdout": own.fileno(), "stderr": stderr.fileno()}
            code = Command(shlex.split(words), cwd=work, env=env, **streams).wait()
            own.seek(0)
            if pipeline is None:
                return code, own.read()
            piped = subprocess.run(pipeline, shell=True, stdin=own, stdout=shown, check=False)
            shown.seek(0)
            return piped.returncode, shown.read()

    return SimpleNamespace(run=run, work=work)


def comparable(output: str) -> str:
    """The output without rounding errors; without any figures where NVRTC is not the one that the pages were made with."""
    output = ROUNDING.sub("~", output)
    if not same_nvrtc():
        output = re.sub(r"[\d.,]+( [kMG]?(B|flop))?", "#", output)
    return re.sub(r"[ -]+", " ", output).strip()


@functools.cache
def same_nvrtc() -> bool:
    from ptxkit.compiler.nvrtc import nvrtc_version

    return TRANSCRIPTS.NVRTC.search((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))[0] == nvrtc_version()


@pytest.mark.parametrize("page", TRANSCRIPTS.pages(), ids=lambda page: page.name)
def test_transcripts_are_what_the_commands_print(page, shell, request):
    text = page.read_text(encoding="utf-8")
    TRANSCRIPTS.write_given(text, shell.work)
    for step in TRANSCRIPTS.steps(text):
        if step.slow and not request.config.getoption("--slow"):
            continue
        code, printed = shell.run(step.command)
        if step.varies:
            assert code == 0, f"{step.command}\n{printed}"
            assert bool(printed) == bool(step.shown)
        else:
            hint = f"$ {step.command}\n(scripts/refresh_transcripts.py {page.relative_to(ROOT)} writes it again)"
            assert comparable(printed) == comparable(step.shown), hint
    for _, name, shown in TRANSCRIPTS.INCLUDED.findall(text):
        assert (shell.work / name).read_text(encoding="utf-8") == shown


def test_the_python_of_the_api_page_runs(monkeypatch, capsys):
    from ptxkit.runtime import device as devices
    from ptxkit.runtime import registry as device_registry

    for module in (device_registry, devices):
        monkeypatch.setattr(module, "gpu_present", lambda: False)
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) > 4
    exec(compile("\n".join(blocks), "python.md", "exec"), {"__name__": "python.md"})
    out = capsys.readouterr().out
    assert "25000 sectors of 32 bytes loaded" in out
    assert "argument 3 'y' (float*)" in out
    assert "past the end of" in out


def test_the_python_of_the_inspect_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saxpy.cu").write_text(
        (ROOT / "cu" / "kernels" / "saxpy.cu").read_text(encoding="utf-8"), encoding="utf-8"
    )
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(block, "inspect.md", "exec"), {"__name__": "inspect.md"})
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_on_a_page_parses(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        if page.name != "api.md":  # signatures
            ast.parse(textwrap.dedent(block.replace("@variant(tolerance=Tolerance(ulp=4))", "#")))


def test_the_schemas_of_the_json_page_are_those_of_the_code():
    written = re.compile(r"\bptxkit\.[a-z]+/\d+")
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "ptxkit").rglob("*.py"))
    declared = set(re.findall(r"""^(?:SCHEMA\w* = |.*"schema": )"(ptxkit\.[a-z]+/\d+)\"""", sources, re.MULTILINE))
    assert len(declared) > 8
    assert set(written.findall((ROOT / "docs" / "json.md").read_text(encoding="utf-8"))) == declared


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> type[registry.Workload]:
    """The files that docs/kernels.md describes."""
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
    report = Run(kernel.make(sizes, {"dtype": dtype}), emulator).run()
    assert [(v.name, v.verified) for v in report.cases[0].rows] == [("unfused", True), ("fused", True)]


def test_its_variants_agree_bit_for_bit_as_the_page_says(kernel):
    from ptxkit.bench.cases import Plan
    from ptxkit.bench.measure.benchmark import Benchmark

    (case,) = Benchmark(device("emulator")).run([Plan(kernel.make((5, 300), {"dtype": "f16"}))]).cases
    assert len({row.accuracy.outputs_sha256 for row in case.rows}) == 1


def test_it_refuses_rows_that_do_not_fit(kernel):
    with pytest.raises(Exception, match="cols must be at most 57344"):
        kernel.make((1, 57345))
    report = Run(kernel.make((1, 57344)), device("emulator"), variants=["fused"]).run()
    assert report.cases[0].rows[0].verified


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
    ("page", "words"), sorted({c for c in commands() if re.search(r" (?!triton:)[a-z_0-9]+:[a-z_0-9]+", c[1])})
)
def test_variants_that_pages_name_are_there(page, words):
    for name, variant in re.findall(r" (?!triton:)([a-z_0-9]+):([a-z_0-9]+)", words):
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
