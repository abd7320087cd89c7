"""Groups of kernels, patterns of names, and the filters of ``list``."""

from __future__ import annotations

import json

import pytest

from ptxkit import cli
from ptxkit.errors import UsageError
from ptxkit.workload import registry


def exit_of(*args):
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(a) for a in args])
    return stopped.value.code


def test_every_kernel_is_in_one_group():
    groups = registry.groups()
    assert sorted(name for names in groups.values() for name in names) == sorted(registry.names())
    assert "softmax" in groups["rows"] and "cutlass_gemm" in groups["cutlass"]


@pytest.mark.parametrize(
    ("words", "within", "found"),
    [
        (["add_*"], (), ("add_activation", "add_activation_backward", "add_gelu", "add_mul_exp")),
        (["add_gel?", "saxpy"], (), ("add_gelu", "saxpy")),
        (["add_[gm]*:fused"], (), ("add_gelu:fused", "add_mul_exp:fused")),
        (["saxpy:scalar", "saxpy:scalar"], (), ("saxpy:scalar",)),
        (["*_ffn"], ["gemm"], ("sparse_swiglu_ffn", "swiglu_ffn")),
        ([], ["moe"], ("moe_int8", "moe_routed")),
        (["add_g*", "moe*", "saxpy"], ["moe", "elementwise"], ("add_gelu", "moe_int8", "moe_routed", "saxpy")),
        (["./mine[1].py"], (), ("./mine[1].py",)),
    ],
)
def test_patterns_and_groups_select_names(words, within, found):
    assert registry.selected(words, within) == found


@pytest.mark.parametrize(
    ("words", "within", "complaint"),
    [
        (["spaxy*"], (), "no kernel matches 'spaxy[*]'; did you mean 'saxpy'"),
        ([], ["attn"], "no group 'attn'; groups are attention, cutlass"),
        (["saxpy"], ["gemm"], "none of saxpy is in the group gemm, which has matmul"),
        (["saxpy"], ["moe", "attention"], "none of saxpy is in the groups moe, attention, which have moe_int8, moe_r"),
    ],
)
def test_what_selects_nothing_is_refused(words, within, complaint):
    with pytest.raises(UsageError, match=complaint):
        registry.selected(words, within)


def test_list_has_only_variants_that_require_a_feature(capsys):
    assert exit_of("list", "--group", "gemm", "--requires", "sm_90a", "--json") == 0
    kernels = json.loads(capsys.readouterr().out)["kernels"]
    assert "matmul_wgmma" in {k["name"] for k in kernels} and "matmul_mma" not in {k["name"] for k in kernels}
    assert {k["group"] for k in kernels} == {"gemm"}
    assert all("wgmma" in v["requires"] or "sm_90a" in v["requires"] for k in kernels for v in k["variants"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--requires", "wgma"], "did you mean wgmma"),
        (["saxpy", "--requires", "wgmma"], "no variant of these kernels requires wgmma"),
        (["--group", "attn"], "groups are attention"),
    ],
)
def test_one_line_for_a_filter_that_leaves_nothing(words, complaint, capsys):
    assert exit_of("list", *words) == 2
    err = capsys.readouterr().err
    assert complaint in err and err.count("\n") == 1


def test_groups_are_listed_with_their_kernels(capsys):
    assert exit_of("list", "--groups", "--json") == 0
    assert json.loads(capsys.readouterr().out)["groups"]["moe"] == ["moe_int8", "moe_routed"]


def test_run_takes_a_pattern_and_runs_each_kernel(capsys):
    words = ("add_*[nud]", "--variant", "fused", "--option", "dtype=f16", "--device", "emulator", "--json")
    assert exit_of("run", *words) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == "ptxkit.runs/1"
    assert [run["kernel"] for run in value["runs"]] == ["add_activation", "add_activation_backward", "add_gelu"]
    assert all(v["verified"] for run in value["runs"] for v in run["variants"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["add_*", "64"], "sizes are given with one kernel; these are 4"),
        (["--group", "rows", "64"], "sizes are given with one kernel"),
        (["add_*", "--variant", "fuesd"], "none of these kernels has the variant 'fuesd'"),
        (["add_*", "--option", "dtpye=f16"], "none of these kernels has the option 'dtpye'"),
        (["add_*", "--tile", "THREAD=64"], "none of these kernels has the tile parameter 'THREAD'"),
        ([], "missing argument 'KERNEL'"),
    ],
)
def test_one_line_for_wrong_words_of_several_kernels(words, complaint, capsys):
    assert exit_of("run", *words, "--device", "emulator") == 2
    err = capsys.readouterr().err
    assert complaint in err and err.count("\n") == 1


def test_a_pattern_of_one_kernel_takes_sizes_and_errors_name_it_once(capsys):
    words = ("--variant", "scalar", "--device", "emulator")
    assert exit_of("run", "sax*", "1000", *words) == 0
    assert "n=1000" in capsys.readouterr().out
    assert exit_of("run", "sax*", "0", *words) == 2
    assert capsys.readouterr().err.startswith("error: saxpy: size n must be")


def test_groups_are_united(capsys):
    assert exit_of("list", "--group", "moe", "--group", "cutlass", "--json") == 0
    assert {k["group"] for k in json.loads(capsys.readouterr().out)["kernels"]} == {"moe", "cutlass"}


def test_a_kernel_that_cannot_run_here_leaves_the_exit_code_to_the_others(capsys):
    words = ("m*_mma", "--arch", "sm_75", "--dry-run", "--device", "emulator")
    assert exit_of("run", *words) == 0
    assert "skipped" in capsys.readouterr().out


def test_bench_run_takes_patterns_and_groups(capsys):
    words = ("add_ge*:fused", "--group", "elementwise", "--sizes", "4096", "--device", "emulator")
    assert exit_of("bench", "run", *words) == 0
    out = capsys.readouterr().out
    assert "add_gelu n=4096" in out and "\nunfused" not in out
