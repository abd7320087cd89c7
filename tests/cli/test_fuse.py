"""ptxkit fuse."""

from __future__ import annotations

import html
import json
import re

import pytest

from ptxkit import cli


def exit_of(*args):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["fuse", *map(str, args)])
    return stopped.value.code


def test_a_model_as_text(capsys):
    assert exit_of("--model", "gpt2", "--no-compile") == 0
    out = capsys.readouterr().out
    assert "gpt2, one of 12 layers, 4096 tokens; NVIDIA H200" in out
    assert "up + up_bias + gelu" in out and "matmul_wgmma 4096 3072 768 --option epilogue=bias_gelu" in out
    assert "Total, 12 times" in out


def test_markdown_has_tables(capsys):
    assert exit_of("--model", "llama3-8b", "--tokens", "1e3", "--format", "markdown", "--no-compile") == 0
    assert "|---" in capsys.readouterr().out.replace("|:--", "|---")


def test_json_holds_the_whole_report(capsys):
    assert exit_of("--model", "llama3-8b", "--tokens", 1, "--context", 4096, "--json", "-", "--no-compile") == 0
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == "ptxkit.fuse/1" and value["repeat"] == 32
    planned = [name for group in value["plan"] for name in group["operations"]]
    assert sorted(planned) == sorted(operation["name"] for operation in value["operations"])
    assert value["fused"]["launches"] == 32 * len(value["plan"]) < value["unfused"]["launches"]
    assert {pair["verdict"] for pair in value["pairs"]} == {"FUSE", "IF", "DO NOT FUSE"}


def test_the_page_draws_every_operation_twice(tmp_path, capsys):
    file = tmp_path / "report.html"
    assert exit_of("--model", "mixtral-8x7b", "--html", file, "--no-compile") == 0
    text = file.read_text()
    drawn = [html.unescape(word) for word in re.findall(r"<text x=[^>]*>([^<]*)</text>", text)]
    assert drawn.count("gating") == drawn.count("combine") == 2
    assert "Roofline" in text and "<script" not in text and "nan" not in text


@pytest.mark.parametrize(
    ("model", "dtype", "named"),
    [("mixtral-8x7b", "s8", True), ("mixtral-8x7b", "e4m3", True), ("mixtral-8x7b", None, False), ("deepseek-v3", "s8", False)],
)
def test_quantized_experts_are_a_bundled_kernel_where_its_gating_is_the_model_s(model, dtype, named, capsys):
    """DeepSeek-V3 scores experts by the sigmoid, moe_routed by the softmax."""
    options = ("--experts-dtype", dtype) if dtype else ()
    assert exit_of("--model", model, "--tokens", 64, *options, "--json", "-", "--no-compile") == 0
    found = [group for group in json.loads(capsys.readouterr().out)["bundled"] if " moe_routed " in group["command"]]
    assert [group["command"] for group in found] == [f"ptxkit run moe_routed 64 4096 14336 8 2 --option dtype={dtype}"] * named
    assert all("alternating" in group["note"] for group in found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--model", "mixtral-8x7b", "--experts-dtype", "f16"), "the type of experts must be one of s8, e4m3, not 'f16'"),
        (("--model", "gpt2", "--experts-dtype", "s8"), "gpt2 has no routed experts"),
        (("--model", "gpt2", "--dtype", "s8"), "activations are floating-point numbers, not s8"),
        (("net.json", "--experts-dtype", "s8"), "--experts-dtype belongs to --model"),
    ],
)
def test_types_of_experts_that_are_refused(given, message, capsys):
    assert exit_of(*given) == 2
    assert message in capsys.readouterr().err


def test_a_file_with_a_compiled_kernel(tmp_path, capsys):
    operations = [{"kind": "layernorm", "inputs": ["x", "g", "b"]}, {"kind": "gelu", "inputs": ["layernorm"]}]
    inputs = {"x": {"shape": [256, 1024], "dtype": "f32"}} | {n: {"shape": [1024], "dtype": "f32"} for n in "gb"}
    file = tmp_path / "net.json"
    file.write_text(json.dumps({"inputs": inputs, "operations": operations}))
    assert exit_of(file, "--json", "-") == 0
    (group,) = json.loads(capsys.readouterr().out)["plan"]
    assert group["fusion"]["registers_source"] == "compiled" and 0 < group["fusion"]["compiled"]["occupancy"] <= 1
    assert group["fusion"]["command"].startswith("ptxkit run layernorm 256 1024 ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a graph, or --model"),
        (["x.json", "--model", "gpt2"], "give a graph, or --model"),
        (["absent.json"], "there is no file absent.json"),
        (["absent.json", "--tokens", "3"], "--tokens belongs to --model"),
        (["--model", "gtp2"], "did you mean 'gpt2'"),
        (["--model", "gpt2", "--tokens", "0"], "--tokens"),
        (["--model", "gpt2", "--dtype", "bf61"], "no dtype 'bf61'"),
        (["--model", "gpt2", "--gpu", "H300"], "no documented GPU 'H300'"),
        (["--model", "gpt2", "--weight", "memory"], "--weight takes NAME=VALUE"),
        (["--model", "gpt2", "--weight", "size=1"], "there is no weight 'size'"),
        (["--model", "gpt2", "--threshold", "score=x"], "the threshold of score must be a number"),
        (["--model", "gpt2", "--launch-us", "-1"], "--launch-us"),
        (["--model", "gpt2", "--launch-us", "nan"], "is not a finite number"),
        (["--model", "gpt2", "--gpu", ""], "--gpu is empty"),
        (["--model", "gpt2", "--dtype", ""], "--dtype is empty"),
        (["--model", "gpt2", "--json", ""], "--json is empty"),
        (["--model", "gpt2", "--json", "-", "--html", "-"], "both write to stdout"),
        (["x.json", "--json", "x.json"], "GRAPH and --json name the same file"),
        (["x.json", "--html", "./x.json"], "GRAPH and --html name the same file"),
        (["--model", "gpt2", "--json", "r", "--html", "./r"], "--json and --html name the same file"),
    ],
)
def test_bad_input_has_one_line_and_code_2(words, message, capsys):
    assert exit_of(*words) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_an_output_that_cannot_be_written_is_refused_before_the_analysis(tmp_path, capsys):
    assert exit_of("--model", "gpt2", "--html", tmp_path / "absent" / "x.html") in (2, 7)
    assert "absent" in capsys.readouterr().err


def test_a_page_on_stdout(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert exit_of("--model", "gpt2", "--html", "-", "--no-compile") == 0
    assert capsys.readouterr().out.startswith("<!doctype html>") and not list(tmp_path.iterdir())


def test_names_with_bars_and_line_breaks_stay_in_their_cells(tmp_path, capsys):
    names = ["p|q", "n\nl"]
    operations = [{"kind": "relu", "inputs": [source], "name": name} for source, name in zip(["x", *names], names)]
    file = tmp_path / "net.json"
    inputs = {"x": {"shape": [64, 64], "dtype": "f32"}}
    file.write_text(json.dumps({"name": "a\nb", "inputs": inputs, "operations": operations}))
    assert exit_of(file, "--format", "markdown", "--no-compile") == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| p", "| n"))]
    assert rows[0].startswith("| p\\|q ") and any(line.startswith("| n\\nl ") for line in rows)
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in rows[:2]}) == 1
