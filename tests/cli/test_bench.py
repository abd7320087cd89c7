"""``ptxkit bench`` on the emulator: counts, result files, and every wrong argument."""

from __future__ import annotations

import csv
import io
import itertools
import json
import signal
import subprocess
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import pytest
from ptxkit_processes import Command

from ptxkit import cli

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from ptxkit_bench_samples import make_results

SLOW = """
import numpy as np
from ptxkit import Launch, Work, Workload, variant

class Slow(Workload):
    source = "slow.cu"
    n: int = 4096
    def inputs(self, rng):
        return {"x": np.zeros(self.n, np.float32)}
    def outputs(self):
        return {"x": (self.n, np.float32)}
    def reference(self, x):
        return {"x": x}
    def work(self):
        return Work(flops=1, bytes=8 * self.n)
    @variant()
    def only(self, t):
        return [Launch("slow", grid=1, block=32, args=("x", 1 << 28))]
"""
SLOW_CU = """
extern "C" __global__ void slow(float* x, int rounds) {
    float v = x[threadIdx.x];
    for (int i = 0; i < rounds; ++i) v = v * 0.5f;
    x[threadIdx.x] = v;
}
"""


def exit_of(*args):
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(a) for a in args])
    return stopped.value.code


@pytest.fixture(scope="module")
def result_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("bench") / "r.json"
    assert exit_of("bench", "run", "saxpy", "--sizes", "2048", "--device", "emulator", "--json", file) == 0
    return file


def test_counts_are_shown_and_said_to_be_counts(result_file, capsys):
    assert exit_of("bench", "run", "saxpy", "--sizes", "2048", "--device", "emulator") == 0
    out = capsys.readouterr().out
    assert "the emulator has no times" in out
    assert "24.6 kB" in out  # 12 bytes an element, the minimum


def test_the_file_holds_counts_and_hashes(result_file):
    value = json.loads(result_file.read_text())
    assert value["schema"] == "ptxkit.bench/4"
    (case,) = value["cases"]
    assert len(case["inputs_sha256"]) == 64
    counted = {row["name"]: row["counted"] for row in case["rows"]}
    assert counted["scalar"]["load_bytes"] == 2 * 4 * 2048
    assert counted["scalar"]["store_bytes"] == 4 * 2048
    assert all(row["cold"] is None for row in case["rows"])


def test_a_result_file_runs_again_with_the_same_counts(result_file, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    from ptxkit.runtime import registry

    monkeypatch.setattr(registry, "gpu_present", lambda: False)
    assert exit_of("bench", "rerun", result_file) == 0
    out = capsys.readouterr().out
    assert "same counts" in out
    assert "other counts" not in out


def test_json_alone_on_stdout(capsys):
    assert exit_of("bench", "run", "saxpy:scalar", "--sizes", "64", "--device", "emulator", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["cases"][0]["rows"][0]["name"] == "scalar"


def test_list_names_kernels_and_sizes(capsys):
    assert exit_of("bench", "list", "--format", "csv") == 0
    out = capsys.readouterr().out
    assert out.startswith("kernel,sizes,variants,peers\n")
    assert "\nfused_l2norm,rows=16384 cols=8192" in out


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["run", "saxpyy"], 2, "saxpy"),
        (["run", "saxpy", "--sizes", "x"], 2, "--sizes takes sizes"),
        (["run", "saxpy", "--sizes", ""], 2, "--sizes takes sizes"),
        (["run", "./k.cu"], 2, "./k.cu is not a description"),
        (["run", "saxpy:"], 2, "saxpy has no variant ''"),
        (["run", "softmax", "--option", "dtpye=f16"], 2, "did you mean 'dtype'"),
        (["run", "saxpy", "--tile", "THREAD=1"], 2, "did you mean 'THREADS'"),
        (["run", "saxpy", "--json", ""], 2, "--json takes the name of a file"),
        (["run", "saxpy", "--json", "nowhere/r.json"], 2, "cannot write nowhere/r.json"),
        (["run", "saxpy", "--json", "."], 2, "Is a directory"),
        (["run", "saxpy", "--time-budget", "nan"], 2, "not a number of seconds"),
        (["run", "saxpy", "--time-budget", "inf"], 2, "not a number of seconds"),
        (["run", "saxpy", "--option", "a"], 2, "NAME=VALUE"),
        (["run", "saxpy", "--tile", "WARPS=3"], 2, "tile parameter WARPS"),
        (["run", "saxpy", "--profile", "ncu"], 2, "needs a GPU"),
        (["compare", "nowhere.json"], 2, "No such file"),
        (["roofline", "nowhere.json"], 2, "No such file"),
        (["rerun", "nowhere.json"], 2, "No such file"),
    ],
)
def test_one_line_for_bad_words(words, code, complaint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    extra = ["--device", "emulator"] if words[0] == "run" else []
    assert exit_of("bench", *words, *extra) == code
    err = capsys.readouterr().err
    assert complaint in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("option", [["--profile", "nsys"], ["--profile", "ncu"]])
def test_where_no_gpu_is_present_its_options_are_not_available(option, capsys, monkeypatch):
    from ptxkit.runtime import registry

    monkeypatch.setattr(registry, "gpu_present", lambda: False)
    assert exit_of("bench", "run", "saxpy", *option) == 3
    assert capsys.readouterr().err == f"error: {option[0]} needs a GPU; the emulator has no times\n"


@pytest.fixture
def cutlass_missing(monkeypatch):
    """``bench run`` of a catalogue of two kernels, one of which needs a package that is not installed."""
    import importlib.metadata

    from ptxkit.workload import registry

    installed = importlib.metadata.version

    def version(name):
        if name == "nvidia-cutlass":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(registry, "names", lambda: ("cutlass_gemm", "saxpy"))


def test_a_kernel_whose_package_is_missing_is_a_note_where_no_kernel_is_named(cutlass_missing, capsys):
    assert exit_of("bench", "run", "--device", "emulator") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    notes = [line for line in captured.out.splitlines() if "cutlass" in line]
    assert len(notes) == 1 and notes[0].startswith(
        "cutlass_gemm: not available, CUTLASS is not installed; run: pip install"
    )


def test_a_kernel_whose_package_is_missing_is_an_error_where_it_is_named(cutlass_missing, capsys):
    assert exit_of("bench", "run", "cutlass_gemm", "saxpy", "--device", "emulator") == 3
    (line,) = capsys.readouterr().err.splitlines()  # one message for all variants
    tma = "one_sm, two_sm, one_sm_stream_k, stream_k, pingpong, cooperative"
    assert f"multistage, {tma}: CUTLASS is not installed; run: pip install" in line


def test_a_catalogue_of_which_nothing_can_run_verified_nothing(cutlass_missing, capsys, monkeypatch):
    from ptxkit.workload import registry

    monkeypatch.setattr(registry, "names", lambda: ("cutlass_gemm",))
    assert exit_of("bench", "run", "--device", "emulator") == 6
    assert "nothing was verified" in capsys.readouterr().err


def test_a_peer_that_is_named_and_not_installed_is_refused_before_measuring(monkeypatch):
    from ptxkit.cli._kernel import refuse_absent
    from ptxkit.errors import UnavailableError

    with pytest.raises(UnavailableError, match="--peers torch: no torch here"):
        refuse_absent(["torch"], [("torch", "no torch here")])
    refuse_absent(None, [("torch", "no torch here")])


def test_a_roofline_needs_times(result_file, capsys):
    assert exit_of("bench", "roofline", result_file) == 2
    assert "needs times" in capsys.readouterr().err


def test_an_unknown_peer_is_named(capsys):
    from ptxkit.bench.peers import peers
    from ptxkit.errors import UsageError

    with pytest.raises(UsageError, match="torch"):
        peers(["torhc"])


def test_a_users_own_kernel_is_found_again_by_its_file(tmp_path, capsys, monkeypatch):
    from ptxkit.runtime import registry

    monkeypatch.setattr(registry, "gpu_present", lambda: False)
    assert exit_of("new", "mine", "--directory", tmp_path) == 0
    result_file = tmp_path / "r.json"
    assert (
        exit_of("bench", "run", tmp_path / "mine.py", "--sizes", "512", "--device", "emulator", "--json", result_file)
        == 0
    )
    capsys.readouterr()
    assert exit_of("bench", "rerun", result_file) == 0
    assert "same counts" in capsys.readouterr().out
    (tmp_path / "mine.py").unlink()
    assert exit_of("bench", "rerun", result_file) == 2
    assert "there is no file" in capsys.readouterr().err


def test_counts_are_compared_where_there_are_no_times(result_file, capsys):
    assert exit_of("bench", "compare", result_file, result_file) == 0
    out = capsys.readouterr().out
    assert "load bytes" in out
    assert "same" in out
    assert exit_of("bench", "compare", result_file) == 0
    assert "identical, bit for bit" in capsys.readouterr().out


def test_a_misspelt_peer_is_said_without_a_gpu(capsys):
    assert exit_of("bench", "run", "saxpy", "--sizes", "64", "--device", "emulator", "--peers", "torhc") == 2
    assert "torch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sent", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize("what", ["run", "rerun"])
def test_what_was_measured_survives_being_stopped(tmp_path, what, sent, code, word):
    """The first case is short; the second one is still running when the signal arrives."""
    file = tmp_path / "r.json"
    slow = tmp_path / "slow.py"
    slow.write_text(SLOW)
    (tmp_path / "slow.cu").write_text(SLOW_CU)
    words = ["bench", "run", "saxpy", str(slow), "--sizes", "4096", "--device", "emulator", "--json", str(file)]
    if what == "rerun":
        words = ["bench", "rerun", str(slow_result_file(tmp_path, slow)), "--json", str(file)]
    child = Command(words)
    deadline = time.monotonic() + 60
    while not (file.exists() and json.loads(file.read_text())["cases"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(sent)
    out, err = child.communicate(timeout=60)
    assert child.returncode == code, err
    assert word in err and "1 of 2 cases" in err
    assert "saxpy n=4096" in out
    assert what == "run" or "same counts" in out
    value = json.loads(file.read_text())
    assert value["partial"] is True
    assert [t["kernel"] for t in value["cases"]] == ["saxpy"]
    assert [p.name for p in tmp_path.glob(".*")] == []


def slow_result_file(where, slow):
    """Results of saxpy and of a kernel that takes minutes."""
    file = where / "before.json"
    assert exit_of("bench", "run", "saxpy", "--sizes", "4096", "--device", "emulator", "--json", file) == 0
    value = json.loads(file.read_text())
    (first,) = value["cases"]
    rows = [{**first["rows"][0], "name": "only", "tile": {}}]
    value["cases"].append({**first, "kernel": "slow", "description": str(slow), "rows": rows})
    file.write_text(json.dumps(value))
    return file


def test_an_earlier_file_stays_until_there_is_something_to_write(gpu, tmp_path, monkeypatch):
    from ptxkit.bench.measure import benchmark

    def stopped(*_):
        raise KeyboardInterrupt

    file = tmp_path / "r.json"
    file.write_text("an earlier file")
    monkeypatch.setattr(benchmark.Benchmark, "run", stopped)
    assert gpu.bench("--json", file) == 130
    assert file.read_text() == "an earlier file"


def test_options_of_measuring_are_said_not_to_apply_to_counts(capsys):
    words = ["saxpy:scalar", "--sizes", "64", "--device", "emulator"]
    assert exit_of("bench", "run", *words, "--iterations", "5", "--peers", "torch, triton") == 0
    assert "--iterations and --peers do not apply to counts." in capsys.readouterr().out
    assert exit_of("bench", "ladder", *words, "--iterations", "5") == 0
    assert capsys.readouterr().err == "--iterations does not apply to counts.\n"
    assert exit_of("bench", "run", *words) == 0
    assert "not apply" not in capsys.readouterr().out


def test_a_kernel_named_with_and_without_a_variant_is_measured_whole(capsys):
    assert exit_of("bench", "run", "saxpy:scalar", "saxpy", "--sizes", "64", "--device", "emulator", "--json", "-") == 0
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    assert [row["name"] for row in case["rows"]] == ["scalar", "vectorized", "ptx"]


def test_csv_is_one_table_for_all_targets(capsys):
    words = ["saxpy", "add_gelu", "--sizes", "64,4096", "--device", "emulator", "--format", "csv"]
    assert exit_of("bench", "run", *words) == 0
    header, *lines = csv.reader(io.StringIO(capsys.readouterr().out))
    assert {len(line) for line in lines} == {len(header)}
    assert [line[:2] for line in lines][::3] == [
        ["saxpy n=64", "scalar"],
        ["saxpy n=4096", "scalar"],
        ["add_gelu n=64 dtype=f32", "unfused"],
        ["add_gelu n=4096 dtype=f32", "unfused"],
    ]


def test_what_does_not_compile_has_its_exit_code(tmp_path, capsys):
    assert exit_of("new", "mine", "--directory", tmp_path) == 0
    source = tmp_path / "mine.cu"
    source.write_text(source.read_text().replace("fma.rn.f32", "fma.f32"))
    assert exit_of("bench", "run", tmp_path / "mine.py", "--sizes", "512", "--device", "emulator") == 4
    assert "mine n=512 simple: " in capsys.readouterr().err


def test_two_results_that_have_nothing_in_common(result_file, tmp_path, capsys):
    other = tmp_path / "other.json"
    assert exit_of("bench", "run", "saxpy", "--sizes", "64", "--device", "emulator", "--json", other) == 0
    capsys.readouterr()
    assert exit_of("bench", "compare", result_file, other) == 2
    assert (
        "nothing in common: one has counts of saxpy n=2048, the other counts of saxpy n=64" in capsys.readouterr().err
    )


def test_a_run_that_ended_is_not_partial(result_file):
    assert json.loads(result_file.read_text())["partial"] is False


class Gpu:
    """A GPU with known results, for ``ptxkit bench run`` on a machine without a GPU."""

    def __init__(self, monkeypatch, where):
        from ptxkit.bench.measure import benchmark
        from ptxkit.bench.results import expectations
        from ptxkit.targets.gpus import reference_facts

        found = types.SimpleNamespace(
            kind="gpu",
            times=True,
            emulates=False,
            name="NVIDIA H200",
            target=None,
            l2_bytes=50 << 20,
            memory_bytes=1 << 37,
            lacks=frozenset(),
            facts_for=lambda target: reference_facts("sm_90a"),
        )
        monkeypatch.setattr("ptxkit.runtime.device.device", lambda kind: found)
        monkeypatch.setattr(expectations, "directory", lambda: where)
        monkeypatch.setattr(benchmark.Benchmark, "run", self.run)
        self.results = make_results()
        self.stop = None

    def run(self, plans, say, done):
        done(self.results)
        if self.stop:
            raise self.stop
        return self.results

    def bench(self, *words):
        return exit_of("bench", "run", "saxpy", "--peers", "none", *words)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    return Gpu(monkeypatch, tmp_path / "expectations")


def test_check_needs_expectations_and_holds_to_them(gpu, capsys):
    assert gpu.bench("--check") == 3
    assert "nvidia-h200.json" in capsys.readouterr().err
    assert gpu.bench("--update-expectations") == 0
    assert gpu.bench("--check") == 0
    assert "4 times compared with expectations: 0 slower" in capsys.readouterr().err
    gpu.results = make_results(fused=30.0)
    assert gpu.bench("--check") == 1
    assert "fused cold: 30 us, expected 25 us: slower" in capsys.readouterr().err


def test_a_ladder_on_a_gpu_has_times_and_ratios(gpu, capsys):
    assert exit_of("bench", "ladder", "saxpy", "--peers", "none") == 0
    out = capsys.readouterr().out
    assert "x unfused" in out and "cold / hot" in out and "NVIDIA H200" in out and "nothing was timed" not in out


@pytest.mark.parametrize("stopped", [False, True])
def test_dtypes_on_a_gpu_have_times_as_far_as_they_were_measured(gpu, capsys, monkeypatch, stopped):
    from ptxkit.bench.measure import benchmark, precision
    from ptxkit.bench.results.results import Accuracy, Row

    def compared(workloads, device, **_):
        rows = (Row("fused", verified=True, accuracy=Accuracy(1, 0.5, 0.5, 0.5)),)
        return [precision.OfDtype(value, w, rows) for value, w in workloads.items()]

    def run(plans, say, done):
        (sample,) = gpu.results.cases
        made = [
            replace(sample, kernel=p.workload.name, sizes=p.workload.sizes, options=p.workload.options)
            for p in plans[: 1 if stopped else None]
        ]
        done(replace(gpu.results, cases=tuple(made)))
        if stopped:
            raise KeyboardInterrupt
        return gpu.results

    monkeypatch.setattr(benchmark.Benchmark, "run", lambda self, *args: run(*args))
    monkeypatch.setattr(precision, "compare_dtypes", compared)
    assert exit_of("bench", "precision", "swiglu", "--sizes", "2x64") == (130 if stopped else 0)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("f32", "f16", "bf16"))]
    assert ["25 us" in line for line in lines] == ([True, False, False] if stopped else [True] * 3)


def test_targets_without_expectations_are_named(gpu, capsys, tmp_path):
    assert gpu.bench("--update-expectations") == 0
    (case,) = gpu.results.cases
    other = replace(case, sizes={"n": 7})
    gpu.results = replace(gpu.results, cases=(case, other))
    capsys.readouterr()
    assert gpu.bench("--check") == 0
    assert "saxpy n=7: no expectations found" in capsys.readouterr().err
    gpu.results = replace(gpu.results, cases=(other,))
    assert gpu.bench("--check") == 3
    assert "no expectations found for saxpy n=7; --update-expectations records them" in capsys.readouterr().err
    gpu.stop = KeyboardInterrupt()
    assert gpu.bench("--check", "--update-expectations") == 130
    assert "saxpy n=7" in (tmp_path / "expectations" / "nvidia-h200.json").read_text()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"cases": {"saxpy n=1000": 3}}, "cases['saxpy n=1000'] must be an object"),
        (
            {"cases": {"saxpy n=1000": {"rows": {"fused": {"cold": {"median_us": 0}}}}}},
            "median_us must be a number above 0",
        ),
        ({"schema": "ptxkit.expectations/9"}, "does not hold ptxkit.expectations/3"),
    ],
)
def test_expectations_that_somebody_edited_are_refused_by_their_place(gpu, capsys, tmp_path, change, complaint):
    assert gpu.bench("--update-expectations") == 0
    file = tmp_path / "expectations" / "nvidia-h200.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    capsys.readouterr()
    assert gpu.bench("--check") == 2
    err = capsys.readouterr().err
    assert complaint in err and "nvidia-h200.json" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda where: where.write_text("a file"), "cannot write"),
        (lambda where: (where.mkdir(), (where / "nvidia-h200.json").write_text("{")), "cannot be read as expectations"),
        (lambda where: (where / "nvidia-h200.json").mkdir(parents=True), "Is a directory"),
    ],
)
def test_expectations_that_cannot_be_recorded_are_said_before_measuring(gpu, capsys, tmp_path, spoil, complaint):
    spoil(tmp_path / "expectations")
    gpu.stop = AssertionError("measured")
    assert gpu.bench("--update-expectations") == 2
    assert complaint in capsys.readouterr().err


def test_a_stopped_run_is_shown_recorded_and_still_stopped(gpu, capsys, tmp_path):
    gpu.stop = KeyboardInterrupt()
    assert gpu.bench("--update-expectations") == 130
    out, err = capsys.readouterr()
    assert "fused" in out and "stopped" in err
    assert "saxpy n=1000" in (tmp_path / "expectations" / "nvidia-h200.json").read_text()


def test_a_fault_keeps_its_exit_code_and_what_was_measured_before(gpu, capsys, tmp_path):
    from ptxkit.errors import FaultError

    gpu.stop = FaultError("a kernel failed")
    assert gpu.bench("--json", tmp_path / "r.json") == 5
    out, err = capsys.readouterr()
    assert "a kernel failed" in err and "4x" in out


def test_a_profiler_that_is_not_here_is_said_before_anything_is_measured(gpu, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    gpu.stop = AssertionError("measured")
    assert gpu.bench("--profile", "ncu") == 3
    assert "Nsight Compute" in capsys.readouterr().err


def test_expectations_are_replaced_whole_or_not_at_all(gpu, capsys, monkeypatch, tmp_path):
    assert gpu.bench("--update-expectations") == 0
    file = tmp_path / "expectations" / "nvidia-h200.json"
    before = file.read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    gpu.results = make_results(fused=20.0)
    monkeypatch.setattr("os.replace", full)
    assert gpu.bench("--update-expectations") == 7
    assert "No space left" in capsys.readouterr().err
    assert file.read_text() == before
    assert [p.name for p in file.parent.iterdir()] == [file.name]


@pytest.fixture
def counts(monkeypatch, tmp_path):
    """A directory of expectations for the emulator, and a function that runs ``bench run`` there."""
    from ptxkit.bench.results import expectations

    monkeypatch.setattr(expectations, "directory", lambda: tmp_path / "expectations")

    def bench(*words):
        return exit_of("bench", "run", "--device", "emulator", *words)

    bench.file = tmp_path / "expectations" / "emulator-sm_90a.json"
    return bench


SMALL = ("saxpy:scalar", "--sizes", "2048")


def test_counts_are_recorded_and_compared_without_a_gpu(counts, capsys):
    assert counts(*SMALL, "--check") == 3
    assert "emulator-sm_90a.json" in capsys.readouterr().err
    assert counts(*SMALL, "--update-expectations") == 0
    assert counts(*SMALL, "--check") == 0
    assert "counts of 1 variant compared with expectations: 0 differ" in capsys.readouterr().err


def test_more_bytes_than_recorded_are_a_regression(counts, capsys):
    assert counts(*SMALL, "--update-expectations") == 0
    value = json.loads(counts.file.read_text())
    (case,) = value["cases"].values()
    case["rows"]["scalar"]["counts"]["load_bytes"] -= 4
    counts.file.write_text(json.dumps(value))
    capsys.readouterr()
    assert counts("--check") == 1  # without a kernel: the recorded cases
    assert "error: saxpy n=2048 scalar: load bytes: 16,384, expected 16,380" in capsys.readouterr().err


def test_each_target_has_a_file_of_its_own(counts, capsys):
    assert counts(*SMALL, "--arch", "sm_80", "--update-expectations") == 0
    assert counts.file.with_name("emulator-sm_80.json").is_file()
    assert counts(*SMALL, "--check") == 3
    assert counts("--arch", "sm_80", "--check") == 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schema": "ptxkit.expectations/3"}, "does not hold ptxkit.counts/2"),
        ({"cases": {"saxpy n=2048": {"kernel": "saxpy"}}}, ".sizes is missing"),
    ],
)
def test_counts_that_somebody_edited_are_refused_by_their_place(counts, capsys, change, complaint):
    assert counts(*SMALL, "--update-expectations") == 0
    counts.file.write_text(json.dumps({**json.loads(counts.file.read_text()), **change}))
    capsys.readouterr()
    assert counts(*SMALL, "--check") == 2
    err = capsys.readouterr().err
    assert complaint in err and "emulator-sm_90a.json" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda row: row["counts"].pop("load_bytes"), "counts.load_bytes is missing"),
        (lambda row: row["counts"].update(flops=-1), "counts.flops must be 0 or more, not -1"),
        (lambda row: row["by_class"].update(move=-2), "by_class.move must be 0 or more, not -2"),
        (lambda row: row.update(launches=0), "launches must be 1 or more, not 0"),
    ],
)
def test_counts_that_nothing_can_have_are_refused(counts, capsys, change, complaint):
    assert counts(*SMALL, "--update-expectations") == 0
    value = json.loads(counts.file.read_text())
    change(value["cases"]["saxpy n=2048"]["rows"]["scalar"])
    counts.file.write_text(json.dumps(value))
    capsys.readouterr()
    assert counts(*SMALL, "--check") == 2
    assert complaint in capsys.readouterr().err


def test_a_file_without_cases_and_a_run_without_results_are_said(counts, capsys):
    counts.file.parent.mkdir()
    counts.file.write_text(json.dumps({"schema": "ptxkit.counts/2", "target": "sm_90a", "cases": {}}))
    assert counts("--check") == 3
    assert "no case is recorded in" in capsys.readouterr().err
    counts.file.unlink()
    counts.file.parent.rmdir()
    assert counts(*SMALL, "--max-instructions", "1", "--update-expectations") != 0
    err = capsys.readouterr().err
    assert "nothing is recorded in" in err and not counts.file.parent.exists()


def edited(counts, change):
    """Apply a change to the only recorded case."""
    value = json.loads(counts.file.read_text())
    (key,) = value["cases"]
    change(value["cases"], key)
    counts.file.write_text(json.dumps(value))


def test_counts_are_compared_with_the_recorded_seed_and_tile(counts, capsys):
    assert counts(*SMALL, "--seed", "3", "--tile", "THREADS=128", "--update-expectations") == 0
    capsys.readouterr()
    assert counts("--check") == counts(*SMALL, "--check") == 0
    err = capsys.readouterr().err
    assert err.count("counts of 1 variant compared with expectations: 0 differ") == 2
    assert err.count("compared with the recorded THREADS=128; the default is now THREADS=256") == 2
    assert counts(*SMALL, "--check", "--seed", "4") == 3
    assert "not compared, the counts are recorded with --seed 3" in capsys.readouterr().err


def test_a_tile_parameter_newer_than_the_record_has_its_default_there(counts, capsys):
    """The recorded counts are compared, and the default is named only where it is another tile."""

    def without_staged(cases, key):
        del cases[key]["rows"]["vectorized"]["tile"]["STAGED"]

    narrow = ("softmax:vectorized", "--sizes", "2x32")
    assert counts(*narrow, "--update-expectations") == 0
    edited(counts, without_staged)
    capsys.readouterr()
    assert counts("--check") == counts(*narrow, "--check") == 0
    err = capsys.readouterr().err
    assert err.count("counts of 1 variant compared with expectations: 0 differ") == 2
    assert "the default is now" not in err
    assert counts(*narrow, "--tile", "NO_EARLY_LAUNCH=True", "--update-expectations") == 0
    edited(counts, lambda cases, key: cases[key]["rows"]["vectorized"]["tile"].pop("EVEN"))
    capsys.readouterr()
    assert counts("--check") == 0
    err = capsys.readouterr().err
    assert err.count("the default is now") == 1 and "recorded THREADS" in err and "EVEN=False" in err


def test_variants_without_counts_are_part_of_the_recorded_case(counts, capsys):
    """persistent cannot run at this size, and nothing of it is recorded."""
    small = ("--sizes", "2x32")
    assert counts("softmax:fused", *small, "--update-expectations") == 0
    capsys.readouterr()
    assert counts("softmax", *small, "--check") == 0
    seen = capsys.readouterr()
    assert "counts of 1 variant compared" in seen.err and "error" not in seen.err
    assert seen.out.count("persistent: skipped") == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda cases, key: cases.update({"zzz n=1": {**cases[key], "kernel": "zzz"}}), "zzz n=1: is recorded, but there"),
        (lambda cases, key: cases.update({"saxpy n=0": {**cases[key], "sizes": {"n": 0}}}), "saxpy n=0: is recorded, but"),
        (lambda cases, key: cases.update({"saxpy n=4": {**cases[key], "options": {"k": 1}}}), "saxpy n=4: is recorded, but"),
        (lambda cases, key: cases[key]["rows"].update(old=cases[key]["rows"]["scalar"]), "has no variant 'old' any more"),
        (lambda cases, key: cases[key]["rows"]["scalar"]["tile"].update(WIDTH=2), "with WIDTH=2, which is no tile parameter"),
    ],
)
def test_what_is_recorded_and_no_longer_exists_is_an_error(counts, capsys, change, complaint):
    assert counts(*SMALL, "--update-expectations") == 0
    edited(counts, change)
    capsys.readouterr()
    assert counts("--check") in (1, 3)
    assert complaint in capsys.readouterr().err


def test_a_named_kernel_is_checked_for_variants_that_no_longer_exist(counts, capsys):
    assert counts(*SMALL, "--update-expectations") == 0
    edited(counts, lambda cases, key: cases[key]["rows"].update(old=cases[key]["rows"]["scalar"]))
    capsys.readouterr()
    assert counts(*SMALL, "--check") == 1
    assert "saxpy n=2048 old: is recorded" in capsys.readouterr().err
    assert counts(*SMALL, "--update-expectations") == 0  # leaves it out
    assert counts(*SMALL, "--check") == 0


def test_a_description_is_found_again_from_another_directory(counts, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert exit_of("new", "mine") == 0
    assert counts("./mine.py", "--sizes", "2048", "--update-expectations") == 0
    assert json.loads(counts.file.read_text())["cases"]["mine n=2048"]["description"] == "mine.py"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert counts("--check") == 0


def test_the_emulator_does_nothing_without_counts(counts, capsys):
    assert counts(*SMALL, "--no-counts") == 2
    assert "--no-counts is for a GPU" in capsys.readouterr().err


@pytest.mark.parametrize("view", ["ladder", "precision"])
def test_views_of_one_kernel_refuse_a_pattern_of_several(view, capsys):
    assert exit_of("bench", view, "add_*", "--device", "emulator") == 2
    assert f"bench {view} takes one kernel; these are 4: add_activation" in capsys.readouterr().err


def test_expectations_that_cannot_be_read_are_an_error_of_access(counts, capsys, monkeypatch):
    from ptxkit.bench.results import expectations

    def closed(path):
        raise PermissionError(13, "Permission denied")

    assert counts(*SMALL, "--update-expectations") == 0
    monkeypatch.setattr(expectations, "read_text", closed)
    capsys.readouterr()
    assert counts(*SMALL, "--check") == 7
    assert "emulator-sm_90a.json: Permission denied" in capsys.readouterr().err


def test_the_recorded_counts_of_the_catalogue_hold(capsys):
    """A few of ``expectations/emulator-sm_90a.json``; ``bench run --device emulator --check`` compares all."""
    kernels = ("saxpy:scalar", "add_gelu:fused", "swiglu")
    assert exit_of("bench", "run", *kernels, "--device", "emulator", "--check") == 0
    assert "0 variants with more than expected" in capsys.readouterr().err


@pytest.fixture
def exit_of_rerun(monkeypatch, tmp_path):
    """``bench rerun`` of a result file, on a GPU whose results the test chose."""
    from ptxkit.bench.measure import rerun
    from ptxkit.files import write_json

    write_json(tmp_path / "r.json", make_results().to_json())
    monkeypatch.setattr(
        "ptxkit.runtime.device.device",
        lambda kind: types.SimpleNamespace(kind="gpu", times=True, emulates=False, name="NVIDIA H200"),
    )

    def exit_after(now, *words, stop=None):
        def again(before, device, budget_s, peers, say, done, tell):
            done(now)
            if stop:
                raise stop

        monkeypatch.setattr(rerun, "again", again)
        return exit_of("bench", "rerun", tmp_path / "r.json", *words)

    return exit_after


def test_rerun_judges_each_candidate_and_the_distance_from_peers(exit_of_rerun, capsys, tmp_path):
    environment = {"gpu": "NVIDIA H200", "cuda_driver": "13.0", "torch": "2.12"}
    assert exit_of_rerun(make_results(peer=35.0, environment=environment), "--json", tmp_path / "now.json") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines.count(["saxpy", "n=1000"]) == 2  # a table of times, one of ratios
    assert ["torch", "cold", "40", "us", "±", "0.1%", "35", "us", "±", "0.1%", "-12.5%", "0.5%", "faster",
            "same", "version"] in lines  # fmt: skip
    assert "fused over torch cold 1.6x 1.4x +14.3% 0.5% slower".split() in lines
    assert "torch: not installed before, 2.12 now".split() in lines
    assert json.loads((tmp_path / "now.json").read_text())["schema"] == "ptxkit.bench/4"


def test_rerun_fails_for_our_own_alone(exit_of_rerun, capsys):
    assert exit_of_rerun(make_results(peer=400.0)) == 0
    assert exit_of_rerun(make_results(fused=30.0)) == 1
    capsys.readouterr()


def test_a_rerun_that_is_stopped_says_and_keeps_what_there_is(exit_of_rerun, capsys, tmp_path):
    assert exit_of_rerun(make_results(fused=30.0), "--json", tmp_path / "now.json", stop=KeyboardInterrupt()) == 130
    out, err = capsys.readouterr()
    assert "slower" in out and "stopped: 1 of 1 cases are measured" in err and "interrupted" in err
    assert json.loads((tmp_path / "now.json").read_text())["cases"]


def test_a_variant_that_has_no_time_any_more_is_no_success(exit_of_rerun, capsys):
    now = make_results()
    (case,) = now.cases
    rows = [replace(row, cold=None, skipped="it needs sm_90a") if row.name == "fused" else row for row in case.rows]
    assert exit_of_rerun(replace(now, cases=(replace(case, rows=rows),))) == 1
    out, err = capsys.readouterr()
    assert "saxpy n=1000 fused: no time, it needs sm_90a" in out
    assert "saxpy n=1000 fused: has a time in the result file, and none now" in err


def test_rerun_for_programs(exit_of_rerun, capsys):
    assert exit_of_rerun(make_results(), "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["cases"][0]["kernel"] == "saxpy"
    assert exit_of_rerun(make_results(), "--format", "csv") == 0
    assert capsys.readouterr().out.startswith("case,candidate,kind,mode,before_us,")


def test_a_result_file_without_targets(result_file, tmp_path, capsys):
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps({**json.loads(result_file.read_text()), "cases": []}))
    assert exit_of("bench", "rerun", empty) == 2
    assert "has no cases" in capsys.readouterr().err


def test_the_help_of_every_command_starts_no_library():
    """``ptxkit bench --help`` is as quick as ``ptxkit --help``: it imports neither numpy nor the types of results."""
    code = (
        "import sys; from click.testing import CliRunner; from ptxkit.cli import bench; "
        "assert CliRunner().invoke(bench.command, ['run', '--help']).exit_code == 0; "
        "print(sorted(m for m in sys.modules if m in ('numpy', 'tabulate') or m.startswith('ptxkit.bench')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["--arch", "sm_90a", "--mode", "hot", "saxpy"], 2, "--mode draws or shows the times of a result file"),
        (["--gpu", "H200", "-o", "r.svg"], 2, "--output draws"),
        (["saxpy", "--json"], 2, "add --arch or --gpu"),
        ([], 2, "give a result file"),
        (["saxpy"], 2, "saxpy is a kernel; give a result file of bench run --json, or --arch TARGET"),
        (["--gpu", "H300", "saxpy"], 2, "no documented GPU 'H300'"),
        (["--gpu", "B200", "--arch", "sm_90a", "saxpy"], 2, "its own target is sm_100a"),
        (["--arch", "sm_107a", "saxpy"], 2, "give another --arch"),
        (["--arch", "sm_88", "saxpy"], 2, "give --gpu, such as 'NVIDIA L40S'"),
        (["--arch", "sm_9", "saxpy"], 3, "no target 'sm_9'"),
        (["--arch", "sm_90a", "spaxy"], 2, "did you mean 'saxpy'"),
    ],
)
def test_one_line_for_wrong_words_of_a_roofline(words, code, complaint, capsys):
    assert exit_of("bench", "roofline", *words) == code
    err = capsys.readouterr().err
    assert complaint in err and err.count("\n") == 1


def test_a_documented_roofline_counts_and_needs_no_gpu(capsys):
    assert exit_of("bench", "roofline", "--arch", "sm_80", "saxpy:scalar", "--sizes", "2048", "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["gpu"], value["target"], value["timed"]) == ("NVIDIA A100-SXM4-80GB", "sm_80", False)
    (variant,) = value["variants"]
    assert (variant["counted"]["flops"], variant["counted"]["bytes"]) == (2 * 2048, 12 * 2048)


def test_a_ladder_has_all_sizes_in_one_table_and_one_file(tmp_path, capsys):
    file = tmp_path / "r.json"
    words = ("saxpy:scalar", "--steps", "3", "--device", "emulator", "--json", file)
    assert exit_of("bench", "ladder", *words) == 0
    out = capsys.readouterr().out
    assert [f"n={n} " in out for n in (65536, 131072, 262144, 32768)] == [True, True, True, False]
    assert [case["sizes"]["n"] for case in json.loads(file.read_text())["cases"]] == [65536, 131072, 262144]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["saxpy", "--along", "m"], "no size 'm'"),
        (["saxpy", "--along", "n", "--sizes", "64"], "leave out --along"),
        (["saxpy", "--steps", "0"], "--steps"),
        (["softmax", "--option", "dtpye=f16"], "did you mean 'dtype'"),
        (["saxpy", "--tile", "THREAD=1"], "did you mean 'THREADS'"),
        (["spaxy"], "did you mean 'saxpy'"),
        (["saxpy:scaler"], "did you mean 'scalar'"),
    ],
)
def test_one_line_for_wrong_words_of_a_ladder(words, complaint, capsys):
    assert exit_of("bench", "ladder", *words, "--device", "emulator") == 2
    err = capsys.readouterr().err
    assert complaint in err and err.count("\n") == 1


def test_dtypes_are_compared_in_one_table(capsys):
    assert exit_of("bench", "precision", "swiglu:fused", "--sizes", "2x64", "--device", "emulator") == 0
    out = capsys.readouterr().out
    assert all(f"\n{dtype} " in out for dtype in ("f32", "f16", "bf16")) and "nothing was timed" in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["saxpy"], "no option 'dtype'"),
        (["swiglu", "--values", "f64"], "no value 'f64'"),
        (["swiglu", "--option", "dtype=f16"], "give --values f16"),
        (["swiglu", "--sizes", "2x64,4x64"], "bench ladder compares sizes"),
        (["swiglu:fuesd"], "did you mean 'fused'"),
    ],
)
def test_one_line_for_wrong_words_of_a_precision(words, complaint, capsys):
    assert exit_of("bench", "precision", *words, "--device", "emulator") == 2
    err = capsys.readouterr().err
    assert complaint in err and err.count("\n") == 1


def test_a_result_for_another_target_is_run_again_for_that_target(tmp_path, capsys, monkeypatch):
    from ptxkit.runtime import registry

    monkeypatch.setattr(registry, "gpu_present", lambda: False)
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    assert exit_of("bench", "run", *SMALL, "--device", "emulator", "--arch", "sm_80", "--json", before) == 0
    assert exit_of("bench", "rerun", before, "--json", after) == 0
    assert json.loads(after.read_text())["target"] == "sm_80"
    (case,) = json.loads(after.read_text())["cases"]
    assert {row["target"] for row in case["rows"]} == {"sm_80"}


def test_a_sample_of_shapes_is_counted_verified_and_written(tmp_path, capsys):
    file = tmp_path / "shapes.json"
    words = ("shapes", "--family", "elementwise", "--sample", "2", "--device", "emulator")
    assert exit_of("bench", *words, "--json", file) == 0
    out = capsys.readouterr().out
    assert "Nothing was timed" in out and out.count("verified") == 2
    value = json.loads(file.read_text())
    assert value["schema"] == "ptxkit.bench/4" and not value["partial"]
    assert [case["chosen"] for case in value["cases"]] == [case["rows"][0]["name"] for case in value["cases"]]
    assert exit_of("bench", "rerun", file) == 0
    assert capsys.readouterr().out.count("same counts") == 2


def test_the_list_of_shapes_has_the_refused_ones_and_is_the_same_each_time(capsys):
    words = ("bench", "shapes", "--list", "--family", "attention")
    assert exit_of(*words) == 0
    first = capsys.readouterr().out
    assert "d must be one of 64, 128" in first and "qwen2.5-7b" in first
    assert exit_of(*words) == 0
    assert capsys.readouterr().out == first
    assert exit_of(*words, "--format", "csv") == 0
    assert capsys.readouterr().out.startswith("family,origin,kernel,sizes,bytes,work\n")


@pytest.mark.parametrize(
    ("words", "complaint", "code"),
    [
        (["--family", "row"], "there is no family 'row'", 2),
        (["--list", "--json", "-"], "--json is for results", 2),
        (["--device", "emulator", "-o", "x.svg"], "--output draws times", 3),
        (["--sample", "0"], "0 is not in the range", 2),
    ],
)
def test_one_line_for_wrong_words_of_shapes(words, complaint, code, capsys):
    assert exit_of("bench", "shapes", *words) == code
    err = capsys.readouterr().err
    assert complaint in err and len(err.strip().splitlines()) <= 3


@pytest.mark.parametrize("stopped", [False, True])
def test_shapes_on_a_gpu_have_speeds_as_far_as_they_were_measured(gpu, capsys, tmp_path, stopped):
    (case,) = gpu.results.cases
    gpu.results = replace(gpu.results, cases=(replace(case, chosen="fused"),), partial=stopped)
    gpu.stop = KeyboardInterrupt() if stopped else None
    file = tmp_path / "shapes.json"
    words = ("--family", "elementwise", "--sample", "3", "--peers", "none", "--json", file)
    assert exit_of("bench", "shapes", *words) == (130 if stopped else 0)
    out, err = capsys.readouterr()
    assert "1.600x" in out and "on NVIDIA H200" in out and "Nothing was timed" not in out
    assert ("stopped: 1 of 3 cases are measured" in err) == stopped
    assert json.loads(file.read_text())["partial"] is stopped


def test_only_the_chosen_variants_of_shapes_are_measured_unless_all_are_wanted(gpu, monkeypatch):
    from ptxkit.bench.measure import benchmark

    asked = []
    monkeypatch.setattr(
        benchmark.Benchmark, "run", lambda self, plans, *args: asked.extend(plans) or gpu.run(plans, *args)
    )
    words = ("bench", "shapes", "--family", "rows", "--sample", "2", "--peers", "none")
    assert exit_of(*words) == 0
    assert exit_of(*words, "--variants", "all") == 0
    assert [len(plan.variants) for plan in asked] == [1, 1, 0, 0] and all(plan.chosen for plan in asked)


def test_only_cases_without_a_record_are_measured(counts, capsys, tmp_path):
    assert counts(*SMALL, "--update-expectations") == 0
    words = ("saxpy:scalar", "--sizes", "2048,4096", "--unrecorded", "--update-expectations")
    assert counts(*words, "--json", tmp_path / "r.json") == 0
    assert [case["sizes"]["n"] for case in json.loads((tmp_path / "r.json").read_text())["cases"]] == [4096]
    assert list(json.loads(counts.file.read_text())["cases"]) == ["saxpy n=2048", "saxpy n=4096"]
    capsys.readouterr()
    assert counts(*words) == 0
    assert capsys.readouterr().out.startswith("all of 2 cases are recorded in ")
    assert counts(*words, "--check") == 2


def test_a_case_without_a_record_of_the_chosen_variant_is_measured(counts, capsys):
    assert counts("saxpy:ptx", "--sizes", "2048", "--update-expectations") == 0
    assert counts("saxpy:ptx", "--sizes", "2048", "--unrecorded") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("all of 1 cases are recorded in ")
    assert counts("saxpy", "--sizes", "2048", "--unrecorded", "--update-expectations") == 0
    assert {"ptx", "scalar", "vectorized"} == set(json.loads(counts.file.read_text())["cases"]["saxpy n=2048"]["rows"])
    capsys.readouterr()
    assert counts("saxpy", "--sizes", "2048", "--unrecorded") == 0
    assert capsys.readouterr().out.startswith("all of 1 cases are recorded in ")


def test_each_case_is_recorded_before_the_next_one_begins(counts, monkeypatch):
    from ptxkit.bench.measure.benchmark import Benchmark

    measure, recorded = Benchmark._measure, []

    def spied(self, plan, *rest):
        recorded.append(counts.file.read_text() if counts.file.is_file() else "")
        measure(self, plan, *rest)

    monkeypatch.setattr(Benchmark, "_measure", spied)
    assert counts("saxpy:scalar", "--sizes", "2048,4096", "--update-expectations") == 0
    assert [("n=2048" in text, "n=4096" in text) for text in recorded] == [(False, False), (True, False)]
    assert "n=4096" in counts.file.read_text()


def test_no_case_begins_after_the_limit(counts, capsys, tmp_path, monkeypatch):
    from ptxkit.bench.measure import benchmark

    clock = types.SimpleNamespace(perf_counter=itertools.count().__next__)  # a second passes between any two readings
    monkeypatch.setattr(benchmark, "time", clock)
    words = ("saxpy:scalar", "--sizes", "2048,4096", "--stop-after", "1", "--json", tmp_path / "r.json")
    assert counts(*words) == 0
    assert "--stop-after 1: 1 of 2 cases are measured" in capsys.readouterr().err
    value = json.loads((tmp_path / "r.json").read_text())
    assert (len(value["cases"]), value["partial"]) == (1, True)


def test_cases_without_memory_are_left_out_of_a_long_run(counts, capsys, monkeypatch):
    from ptxkit.errors import UnavailableError
    from ptxkit.workload import execute

    def check(workload, device):
        if workload.n == 4096:
            raise UnavailableError("saxpy with n=4096 needs 157 GB")

    monkeypatch.setattr(execute, "check_memory", check)
    words = ("saxpy:scalar", "--sizes", "2048,4096")
    assert counts(*words) == 3
    assert counts(*words, "--unrecorded") == 0
    out = capsys.readouterr().out
    assert "saxpy n=4096: not available, saxpy with n=4096 needs 157 GB" in out
