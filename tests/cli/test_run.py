"""``ptxkit run`` from end to end on the emulator: a correct kernel, and every kind of mistake that a user can make."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest
from ptxkit_processes import run

from ptxkit import cli
from ptxkit.bench.measure.benchmark import Benchmark
from ptxkit.cli._signals import Terminated

EMULATOR = ("--device", "emulator")


def exit_of(*args):
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(a) for a in args])
    return stopped.value.code


@pytest.fixture
def mine(tmp_path, capsys):
    """The files that `ptxkit new` writes. A call replaces text in both files and returns the path of the description."""
    assert exit_of("new", "mine", "--directory", tmp_path) == 0
    capsys.readouterr()

    def broken(*replacements):
        for old, new in replacements:
            files = [f for f in (tmp_path / "mine.py", tmp_path / "mine.cu") if old in f.read_text()]
            assert files, f"{old!r} is in neither file"
            for file in files:
                file.write_text(file.read_text().replace(old, new))
        return tmp_path / "mine.py"

    return broken


def one_error(capsys, *parts):
    out, err = capsys.readouterr()
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, err
    for part in parts:
        assert part in err
    return out


def test_table_of_a_bundled_kernel(capsys):
    assert exit_of("run", "fused_l2norm", 4, 100, 7, *EMULATOR) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "fused_l2norm  rows=4 cols=100  on ptxkit emulator (sm_90a)" in out
    for name in ("unfused", "fused", "vectorized", "ptx"):
        (row,) = [line for line in out.splitlines() if line.startswith(f"{name} ")]
        assert "verified" in row
    assert "ITERATIONS do not apply" in out and "bank conflicts" in out


def test_json_is_alone_on_stdout_and_exact():
    done = run("run", "fused_l2norm", 4, 100, 7, "--json", *EMULATOR)
    assert (done.returncode, done.stderr) == (0, "")
    value = json.loads(done.stdout)
    assert value["schema"] == "ptxkit.run/3"
    assert value["sizes"] == {"rows": 4, "cols": 100} and value["iterations"] == 7
    assert value["device"] == {"kind": "emulator", "name": "ptxkit emulator", "target": "sm_90a"}
    assert [v["name"] for v in value["variants"]] == ["unfused", "fused", "vectorized", "persistent", "ptx"]
    assert value["variants"][3].pop("skipped") == "requires cols >= 16384"
    del value["variants"][3]
    for v in value["variants"]:
        assert v["verified"] is True and v["skipped"] is None and v["time_us"] is None
        assert v["max_rel_error"] < 1e-6 and v["launches"] >= 1
        assert v["bandwidth_gbs"] is v["roof_fraction"] is v["speedup"] is None
        assert v["counted"]["load_bytes"] >= 4 * 100 * 4 <= v["counted"]["store_bytes"]
    counts = {v["name"]: v["counted"] for v in value["variants"]}
    assert counts["fused"]["load_bytes"] == counts["fused"]["store_bytes"] == 1600


def test_counts_repeat_exactly():
    command = ("run", "fused_l2norm", 3, 50, "--variant", "fused", "--json", "--seed", 5, *EMULATOR)
    first, second = (run(*command).stdout for _ in range(2))
    assert json.loads(first) == json.loads(second)


@pytest.mark.parametrize("words", [("run",), ("bench", "run"), ("list",), ("inspect",), ("sweep", "tiles")])
def test_what_a_description_and_its_kernel_print_goes_to_stderr(mine, words, tmp_path):
    file = mine(
        ("class ", "print('imported')\nclass "),
        ("    def inputs(self, rng):\n", "    def inputs(self, rng):\n        print('inputs')\n"),
        ("    def reference(self, a, x, y):\n", "    def reference(self, a, x, y):\n        print('reference')\n"),
        ("    def work(self):\n", "    def work(self):\n        print('work')\n"),
        ("y[i] = sum;", 'y[i] = sum; if (i == 0) printf("kernel\\n");'),
    )
    more = {"run": (*EMULATOR,), "bench": EMULATOR, "sweep": (*EMULATOR, "--evaluations", 1)}
    sizes = () if words[0] in ("list", "inspect", "bench") else (1000,)
    env = {**os.environ, "PTXKIT_STATE_DIR": str(tmp_path)}
    done = run(*words, file, *sizes, *more.get(words[0], ()), env=env)
    assert done.returncode == 0, done.stderr
    for text in ("imported", "inputs", "reference", "work", "kernel"):
        assert text not in done.stdout.splitlines()
    assert "imported" in done.stderr
    if words[0] == "run":
        assert {"inputs", "reference", "work", "kernel"} <= set(done.stderr.splitlines())


def test_only_the_variant_asked_for(capsys):
    assert exit_of("run", "fused_l2norm", 2, 10, "--variant", "fused", "--json", *EMULATOR) == 0
    assert [v["name"] for v in json.loads(capsys.readouterr().out)["variants"]] == ["fused"]


def test_dry_run_lists_launches(capsys):
    assert exit_of("run", "fused_l2norm", 2, 10, "--dry-run", *EMULATOR) == 0
    out = capsys.readouterr().out
    assert "l2norm_fused<256, true> from fused_l2norm.cu: grid 2x1x1, block 256x1x1" in out
    assert exit_of("run", "fused_l2norm", 2, 10, "--dry-run", "--json", *EMULATOR) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "ptxkit.plan/1"


def test_no_color_and_pipes_get_plain_text():
    for env in ({}, {"NO_COLOR": "1"}):
        assert "\x1b" not in run("run", "saxpy", 4, *EMULATOR, env={**os.environ, **env}).stdout


def test_users_own_file_runs(mine, capsys):
    assert exit_of("run", mine(), 1000, *EMULATOR) == 0
    assert "verified" in capsys.readouterr().out


def test_wrong_result_is_1_and_names_an_element(mine, capsys):
    assert exit_of("run", mine(("y[i] = sum;", "y[i] = sum + 1;")), 1000, *EMULATOR) == 1
    assert "WRONG" in one_error(capsys, "mine simple: wrong result: y[0] is", "the reference says")


def test_an_unwritten_element_is_a_wrong_result(mine, capsys):
    extra = ('"y": y}', '"z": y}'), ('{"y": np', '{"z": np'), ('"x", "y", self.n', '"x", "y", "z", self.n')
    kernel = ("float* __restrict__ y, int", "float* y, float* z, int"), ("y[i] = sum;", "if (i != 7) z[i] = sum;")
    assert exit_of("run", mine(*extra[1:], *kernel), 1000, *EMULATOR) == 1
    one_error(capsys, "z[7] is")


def test_source_that_does_not_compile_is_4_with_its_line(mine, capsys):
    assert exit_of("run", mine(("float sum;", "flaot sum;")), 1000, *EMULATOR) == 4
    one_error(capsys, "mine.cu:9", "flaot sum;\n", "^")


def test_variants_that_share_a_broken_source_fail_once(mine, capsys):
    launch = 'Launch("mine", 1, 128, ("a", "x", "y", self.n), template=(128,))'
    again = f"\n    @variant\n    def twice(self):\n        return [{launch}]\n"
    file = mine(("float sum;", "flaot sum;"))
    file.write_text(file.read_text() + again)
    assert exit_of("run", file, 1000, *EMULATOR) == 4
    one_error(capsys, "error: mine simple, twice: ")


def test_bad_inline_ptx_is_4_with_its_line(mine, capsys):
    assert exit_of("run", mine(("fma.rn.f32", "fma.rnn.f32")), 1000, *EMULATOR) == 4
    one_error(capsys, "mine.cu:10", "'.rnn'", "^")


def test_source_without_the_entry_is_4_and_lists_what_is_there(mine, capsys):
    assert exit_of("run", mine(('Launch("mine"', 'Launch("mien"')), 1000, *EMULATOR) == 4
    one_error(capsys, "mien")


def test_missing_source_is_usage(mine, capsys):
    assert exit_of("run", mine(('"mine.cu"', '"gone.cu"')), 1000, *EMULATOR) == 2
    one_error(capsys, "gone.cu")


def test_description_that_is_not_python_is_usage_with_its_line(mine, capsys):
    assert exit_of("run", mine(("def work(self):", "def work(self:")), 1000, *EMULATOR) == 2
    one_error(capsys, "mine.py:")


def test_out_of_bounds_is_5_and_names_the_line(mine, capsys):
    assert exit_of("run", mine(("if (i >= n) return;", "")), 1000, *EMULATOR) == 5
    one_error(capsys, "mine.cu:")


def test_variant_for_another_target_is_skipped_or_asked_for_an_error(mine, capsys):
    file = mine(('"THREADS": [256, 128, 512]}', '"THREADS": [256, 128, 512]}, requires=["sm_100a"]'))
    assert exit_of("run", file, 1000, "--arch", "sm_90a", *EMULATOR) == 6
    assert "simple: skipped" in capsys.readouterr().out
    assert exit_of("run", file, 1000, "--arch", "sm_90a", "--variant", "simple", *EMULATOR) == 3
    one_error(capsys, "sm_100a")
    assert exit_of("run", file, 1000, *EMULATOR) == 0
    assert "(sm_100a)" in capsys.readouterr().out


def test_huge_sizes_are_refused_at_once(capsys):
    start = time.monotonic()
    assert exit_of("run", "fused_l2norm", 2_000_000, 1_000_000, *EMULATOR) == 3
    one_error(capsys, "GB")
    assert time.monotonic() - start < 5


def test_no_gpu_is_3_and_says_what_to_do(capsys):
    done = run("run", "fused_l2norm", 4, 4, "--device", "gpu", env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 3
    assert "emulator" in done.stderr and done.stderr.count("\n") == 1


def no_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def test_full_disk_still_runs_and_says_why_it_is_slow(tmp_path):
    env = {**os.environ, "PTXKIT_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "ptxkit", "run", "saxpy", "10", *EMULATOR]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, preexec_fn=no_files)
    assert done.returncode == 0, done.stderr
    assert "cannot be written" in done.stderr and done.stderr.count("\n") == 1
    assert not list((tmp_path / "cache").iterdir())


def test_unwritable_cache_still_runs_and_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    env = {**os.environ, "PTXKIT_CACHE_DIR": str(tmp_path / "file" / "cache")}
    done = run("run", "saxpy", 10, *EMULATOR, env=env)
    assert done.returncode == 0, done.stderr
    assert "cannot be written" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("delay", [0.05, 0.3, 1.0, 2.0])
def test_ctrl_c_is_130_and_leaves_nothing_half_written(delay, tmp_path):
    env = {**os.environ, "PTXKIT_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", READY, "run", "fused_l2norm", "4096", "4096", "--json", *EMULATOR]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert child.stderr.readline() == "ready\n"
    time.sleep(delay)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130, err
    assert out == "" and err.lstrip().startswith("error: interrupted")  # where the threads were follows if the kernel had begun
    assert not list(tmp_path.glob("cache/*.tmp"))


@pytest.mark.parametrize("kind, code", [(KeyboardInterrupt, 130), (Terminated, 143)])
@pytest.mark.parametrize("names", [["saxpy", "1000"], ["saxp*"]])
def test_an_interrupted_run_shows_the_variants_that_were_complete(monkeypatch, capsys, kind, code, names):
    monkeypatch.setattr(Benchmark, "_emulated", _interrupted_at("vectorized", kind))
    assert exit_of("run", *names, *EMULATOR) == code
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert any(line.startswith("scalar ") and "verified" in line for line in lines)
    assert {"vectorized: skipped, not run: interrupted", "ptx: skipped, not run: interrupted"} <= set(lines)
    assert err.strip() == ("error: interrupted" if code == 130 else "error: terminated")


def test_an_interrupted_run_prints_one_json_object(monkeypatch, capsys):
    monkeypatch.setattr(Benchmark, "_emulated", _interrupted_at("ptx", KeyboardInterrupt))
    assert exit_of("run", "saxpy", 1000, "--json", *EMULATOR) == 130
    variants = {row["name"]: row for row in json.loads(capsys.readouterr().out)["variants"]}
    assert variants["vectorized"]["verified"] and variants["ptx"]["skipped"] == "not run: interrupted"


def test_a_run_that_is_interrupted_at_its_first_variant_prints_no_table(monkeypatch, capsys):
    monkeypatch.setattr(Benchmark, "_emulated", _interrupted_at("scalar", KeyboardInterrupt))
    assert exit_of("run", "saxpy", 1000, *EMULATOR) == 130
    out, err = capsys.readouterr()
    assert (out, err.strip()) == ("", "error: interrupted")


def _interrupted_at(name, kind):
    emulated = Benchmark._emulated

    def stopped(self, plan, case, variant):
        if variant.name == name:
            raise kind
        return emulated(self, plan, case, variant)

    return stopped


def test_an_interrupt_inside_a_finalizer_is_not_lost(tmp_path):
    (tmp_path / "description.py").write_text(INTERRUPTED_FINALIZER)
    done = subprocess.run(
        [sys.executable, "-c", READY, "list", str(tmp_path / "description.py")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.split() == ["ready", "error:", "interrupted"]


INTERRUPTED_FINALIZER = """
import os, signal, time

class Kept:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)  # the handler runs here

Kept()
time.sleep(30)
"""


# The handler of interrupts is restored: a shell that starts the tests in the background may ignore them.
READY = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from ptxkit.cli import main
print('ready', file=sys.stderr, flush=True)
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "where, call",
    [
        ("import numpy as np\n", "import sys; sys.exit(0)\n"),
        ("import numpy as np\n", "import os; os._exit(0)\n"),
        ("import numpy as np\n", "raise BaseException('no')\n"),
        ("    def inputs(self, rng):\n", "        raise SystemExit(0)\n"),
        ("    def reference(self, a, x, y):\n", "        raise SystemExit\n"),
        ("    def work(self):\n", "        exit(0)\n"),
    ],
)
def test_a_description_that_ends_the_program_verifies_nothing(mine, capsys, where, call):
    file = mine()
    text = file.read_text()
    assert where in text
    file.write_text(text.replace(where, where + call))
    assert exit_of("run", file, 1000, *EMULATOR) == 2
    out, err = capsys.readouterr()
    assert (
        "verified" not in out
        and err.startswith("error: ")
        and "verified" not in err.replace("nothing was verified", "")
    )


def test_a_run_that_skips_every_variant_verified_nothing(capsys):
    assert exit_of("run", "matmul_wgmma", 64, 64, 64, "--arch", "sm_80", *EMULATOR) == 6
    out, err = capsys.readouterr()
    assert "step1_tma: skipped" in out and "nothing was verified" in err


VARIANTS = """    @variant
    def endless(self): return [Launch("endless", 1, 32, ("y",))]

    @variant
    def faulty(self): return [Launch("faulty", 1, 32, ("y", self.n))]

    @variant(tile"""
TWO = ("    @variant(tile", VARIANTS)
KERNELS = """__global__ void endless(float* y) { unsigned i = 1; while (i) { i = i * 5 + 2; if (i == 1) i = 3; } y[0] = i; }
__global__ void faulty(float* y, int n) { y[n + threadIdx.x] = 1; }
// mine:"""
ENDLESS = ("// mine:", KERNELS)


def test_after_a_fault_the_emulator_goes_on_with_the_other_variants(mine, capsys):
    file = mine(TWO, ENDLESS)
    assert exit_of("run", file, 1000, "--variant", "faulty", "--variant", "simple", *EMULATOR) == 5
    out, err = capsys.readouterr()
    rows = {line.split()[0]: line for line in out.splitlines() if line}
    assert "fault" in rows["faulty"] and "verified" in rows["simple"]
    assert "mine.cu:" in err


def test_a_variant_beyond_its_time_limit_is_ended_and_the_others_run(mine):
    done = run(
        "run",
        mine(TWO, ENDLESS),
        1000,
        "--variant",
        "endless",
        "--variant",
        "simple",
        "--timeout",
        4,
        "--json",
        *EMULATOR,
    )
    assert done.returncode == 8, done.stderr
    endless, simple = json.loads(done.stdout)["variants"]
    assert "not done within 4 s, the limit of --timeout" in endless["error"] and simple["verified"]


def test_inputs_and_compiling_are_outside_the_time_limit(mine, monkeypatch, capsys):
    from ptxkit.compiler import nvrtc

    compile_source, limits = nvrtc.compile_source, []

    def observed(*args, **kwargs):
        limits.append(signal.getitimer(signal.ITIMER_REAL)[0])
        return compile_source(*args, **kwargs)

    monkeypatch.setattr(nvrtc, "compile_source", observed)
    unlimited = "        import signal\n        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0\n"
    heads = ("    def inputs(self, rng):\n", "    def reference(self, a, x, y):\n")
    file = mine(*((head, head + unlimited) for head in heads))
    assert exit_of("run", file, 1000, "--timeout", 500, *EMULATOR) == 0, capsys.readouterr().err
    assert limits and not any(limits)


def test_the_chosen_tile_is_shown_and_why_it_is_not_the_default(mine, capsys):
    constraint = (
        "512]})",
        '512]}, constraint=lambda w, t: w.n >= 64 * t.THREADS or f"n={w.n} gives {t.THREADS} threads too little")',
    )
    file = mine(constraint)
    assert exit_of("run", file, 10_000, *EMULATOR) == 0
    why = "not the default THREADS=256: n=10000 gives 256 threads too little"
    assert f"simple: THREADS=128 ({why})" in capsys.readouterr().out
    assert exit_of("run", file, 10_000, "--json", *EMULATOR) == 0
    (row,) = json.loads(capsys.readouterr().out)["variants"]
    assert (row["tile"], row["tile_note"]) == ({"THREADS": 128}, why)
    assert exit_of("run", file, 100_000, *EMULATOR) == 0
    assert "simple: THREADS=256\n" in capsys.readouterr().out


def test_a_wrong_result_says_how_many_where_and_by_which_tolerance(mine, capsys):
    assert exit_of("run", mine(("y[i] = sum;", "if (i % 4 != 1) y[i] = sum;")), 1000, *EMULATOR) == 1
    err = capsys.readouterr().err
    for part in (
        "250 of 1,000 elements of y are wrong",
        "worst: y[",
        "every 4th element from 1",
        "the default for float32",
        "tolerance = Tolerance(",
        "docs/verification.md",
    ):
        assert part in err


TWO_VARIANTS = """
import numpy as np
from ptxkit import Launch, Work, Workload, variant

class Two(Workload):
    source = "two.cu"
    n: int = 32

    def inputs(self, rng): return {"x": np.ones(self.n, np.float32)}
    def reference(self, x): return {"y": 2.0 * x}
    def work(self): return Work(self.n, 8 * self.n)
    def launch(self, factor): return [Launch("times", 1, self.n, ("x", "y", factor))]

    @variant
    def right(self): return self.launch(2)

    @variant
    def wrong(self): return self.launch(3)
"""


def test_a_chosen_variant_that_is_wrong_is_not_recommended(tmp_path, capsys):
    (tmp_path / "two.py").write_text(TWO_VARIANTS)
    kernel = 'extern "C" __global__ void times(const float* x, float* y, int a) { y[threadIdx.x] = a * x[threadIdx.x]; }'
    (tmp_path / "two.cu").write_text(kernel)
    assert exit_of("run", tmp_path / "two.py", *EMULATOR) == 1
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("Choice: wrong") and last.endswith("but it failed in this run, so name another one by --variant.")


def test_a_run_without_a_variant_names_the_chosen_one(capsys):
    assert exit_of("run", "saxpy", 4096, *EMULATOR) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("Choice: vectorized THREADS=256: the last without an objection; ptx: written in PTX by hand")
    assert exit_of("run", "saxpy", 4096, "--json", *EMULATOR) == 0
    assert json.loads(capsys.readouterr().out)["choice"]["variant"] == "vectorized"
    assert exit_of("run", "saxpy", 4096, "--dry-run", *EMULATOR) == 0
    assert "choice: vectorized" in capsys.readouterr().out


def test_a_run_of_named_variants_has_no_choice(capsys):
    assert exit_of("run", "saxpy", 4096, "--variant", "scalar", "--json", *EMULATOR) == 0
    assert "choice" not in json.loads(capsys.readouterr().out)
