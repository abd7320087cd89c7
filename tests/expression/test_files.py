"""The generated kernel, description and test work without changes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from ptxkit import cli
from ptxkit.errors import UsageError
from ptxkit.testing import assert_verified
from ptxkit.workload import registry


def exit_of(*args):
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(args))
    return stopped.value.code


def generated(directory, monkeypatch, formula, *options):
    monkeypatch.chdir(directory)
    assert exit_of("new", "mine", "--expression", formula, *options) == 0
    return registry.find("./mine.py")


@pytest.mark.parametrize(
    ("formula", "launches"),
    [
        ("gelu(x + bias) * y", 3),
        ("dropout(gelu(x)) + residual", 3),
        ("mean(dropout(x) + bias) * alpha", 4),
        ("exp(first - max(first)) / sum(exp(first - max(first)))", 5),
        ("(x - mean(x)) * rsqrt(mean(square(x - mean(x))) + eps) * gamma + beta", 9),
        ("k + i * v - T * out_", 4),
        ("exp(x) / sum(exp(x)) * t1", 4),  # t1 is a name of the chain and of the reference
        ("linux * NULL + operation * xor", 3),  # macros, a word of the kernels, an operator of C++
        ("a + b + c + d + e + f + g", 6),
        ("-x", 1),
    ],
)
def test_every_variant_is_verified_in_two_types(formula, launches, tmp_path, monkeypatch):
    """One element, which has tiles of its own, is computed in one type: the tile does not depend on how a type is converted."""
    cls = generated(tmp_path, monkeypatch, formula)
    one, many = (
        ({"rows": 1, "cols": 1}, {"rows": 3, "cols": 1032}) if "rows" in cls.size_names() else ({"n": 1}, {"n": 2500})
    )
    for dtype, sizes in (("f32", [many]), ("bf16", [one, many])):
        for size in sizes:
            results = assert_verified(cls(**size, dtype=dtype), device="emulator", racecheck=True)
            assert list(results) == ["unfused", "fused", "vectorized"]
            assert [r.launches for r in results.values()] == [launches, 1, 1]


def test_long_rows_are_computed_by_clusters_or_refused_by_name(tmp_path, monkeypatch):
    cls = generated(tmp_path, monkeypatch, "x / norm(x)")
    results = assert_verified(
        cls(rows=1, cols=140_000, dtype="bf16"), device="emulator", variants=["fused", "vectorized"]
    )
    assert results["vectorized"].tile["CLUSTER"] > 1
    with pytest.raises(UsageError, match="columns do not fit in the registers"):
        assert_verified(cls(rows=1, cols=300_000), device="emulator", variants="vectorized")


def test_the_written_test_passes(tmp_path, monkeypatch):
    generated(tmp_path, monkeypatch, "relu(x + bias)")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    some = ["-k", "races or traffic or (17 and f16)"]
    done = subprocess.run([*command, *some], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_a_changed_kernel_is_wrong(tmp_path, monkeypatch):
    cls = generated(tmp_path, monkeypatch, "(x + y) * z")
    source = tmp_path / "mine.cu"
    source.write_text(source.read_text().replace("const float t2 = x + y;", "const float t2 = x - y;"))
    with pytest.raises(AssertionError, match="fused"):
        assert_verified(cls(n=100), device="emulator", variants="fused")


def test_ranges_and_scalars_reach_the_inputs(tmp_path, monkeypatch):
    cls = generated(tmp_path, monkeypatch, "x * alpha + y / z", "--range", "x=5:6", "--scalar", "alpha=-2.5")
    inputs = cls(n=1000).inputs(np.random.default_rng(0))
    assert inputs["x"].min() >= 5 and inputs["x"].max() < 6
    assert inputs["y"].min() < 0 and inputs["z"].min() >= 0.5
    assert inputs["alpha"] == -2.5
    assert cls(n=10, alpha=1.5).inputs(np.random.default_rng(0))["alpha"] == 1.5


def test_a_type_that_cannot_be_verified_is_left_out(tmp_path, monkeypatch, capsys):
    generated(tmp_path, monkeypatch, "1000 * (x + 1000) - 1000 * (x + 1000 - y)")
    assert "bf16 is left out" in capsys.readouterr().err
    assert '"bf16"' not in (tmp_path / "mine.py").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--expression", "log(x - y)", "--range", "x=0:1", "--range", "y=0:1"],
            "are NaN or infinite with x in 0:1, y in 0:1",
        ),
        (["--expression", "x + 1", "--range", "y=0:1"], "the expression has no array 'y'"),
        (["--expression", "x + alpha", "--range", "alpha=0:1"], "the expression has no array 'alpha'"),
        (["--expression", "x + 1", "--range", "x=1:0"], "LOW must be less than HIGH"),
        (["--expression", "x + 1", "--range", "x=nan:1"], "LOW must be less than HIGH"),
        (["--expression", "x + 1", "--range", "x"], "write NAME=LOW:HIGH"),
        (["--expression", "x + 1", "--scalar", "x=a"], "write NAME or NAME=VALUE"),
        (["--expression", "x * y", "--scalar", "y=1e39"], "scalars are float32, which holds numbers up to"),
        (["--expression", "x + 1", "--scalar", "a"], "no input of this name"),
        (["--expression", "x * options", "--scalar", "options"], "'options' cannot name a number"),
        (["--expression", "gleu(x)"], "did you mean 'gelu'"),
        (["--column", "bias"], "only with --expression"),
        (["--range", "x=0:1"], "only with --expression"),
    ],
)
def test_a_mistake_writes_nothing(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert exit_of("new", "mine", *options) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_mine.py").write_text("precious")
    assert exit_of("new", "mine", "--expression", "x + 1") == 2
    assert "test_mine.py exists already" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["test_mine.py"]


def test_torch_agrees(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    formula = "clamp(gelu(x + bias), 0.1, alpha) * silu(y) + max(x) - norm(y) / 3 + (x > y) + min(x, 0.5)"
    workload = generated(tmp_path, monkeypatch, formula)(rows=3, cols=40)
    inputs = workload.inputs(np.random.default_rng(0))
    tensors = {name: torch.from_numpy(v) if v.ndim else v for name, v in inputs.items()}
    expected = workload.reference(**inputs)["out"]
    np.testing.assert_allclose(workload.torch(**tensors).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_lines_of_the_source_are_short(tmp_path, monkeypatch):
    long = " + ".join(f"another_input_{n} * weight_{n}" for n in range(12))
    cls = generated(tmp_path, monkeypatch, f"gelu({long} + bias) * y + z * weight")
    assert max(map(len, (tmp_path / "mine.cu").read_text().splitlines())) <= 120
    assert_verified(cls(rows=2, cols=40), device="emulator", variants=["fused", "vectorized"])


@pytest.mark.parametrize(
    ("formula", "sizes"),
    [
        ("(x - mean(x)) / norm(x - mean(x))", "[(3, 17), (5, 1000), (2, 4096)]"),
        ("log(sum(exp(x))) - x", "[(3, 17), (5, 1000), (2, 4096)]"),
        ("x / mean(x + 2)", "[(1, 1), (3, 17), (5, 1000), (2, 4096)]"),
        ("log(1.001 + x) * y", "[1, 31, 4096, 5001]"),
    ],
)
def test_sizes_of_the_written_test_have_sensible_results(tmp_path, monkeypatch, formula, sizes):
    """A row of one element minus its mean is 0, and 0/0 is NaN, with which nothing can be compared."""
    generated(tmp_path, monkeypatch, formula)
    assert f", {sizes})" in (tmp_path / "test_mine.py").read_text()
