"""``ptxkit run ./k.cu`` and ``./k.ptx`` without a description: listed, run, compared, saved; every mistake is one line."""

from __future__ import annotations

import json
import os
import shlex
import signal

import numpy as np
import ptxkit_processes
import pytest

from ptxkit import cli

SAXPY = """
__global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
ODD = """
#include <cuda_fp16.h>
struct Pair { float a; int b; };
template <typename T, int N> __global__ void scale(T* x, Pair p) { x[threadIdx.x] = T(float(x[threadIdx.x]) * p.a + p.b + N); }
extern "C" __global__ void half_argument(float* x, __half s) { x[threadIdx.x] = __half2float(s); }
__global__ void over(int* a) { a[0] = 1; }
__global__ void over(float* a) { a[0] = 1; }
__global__ void silent() { printf("hello"); }
__global__ void racy(int* out) {
    __shared__ int s[256]; s[threadIdx.x] = threadIdx.x; out[threadIdx.x] = s[255 - threadIdx.x];
}
__global__ void __cluster_dims__(2, 1, 1) ranks(unsigned* out) {
    unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); out[blockIdx.x] = r;
}
__global__ void dynamic(int* out) {
    extern __shared__ int s[]; s[threadIdx.x] = threadIdx.x; __syncthreads();
    out[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
#ifdef FACTOR
__global__ void factor(int* out) { out[threadIdx.x] = FACTOR; }
#endif
"""
PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry inc(.param .u64 data, .param .b32 step, .param .b64 unused) .reqntid 64
{
    .reg .b32 %r<9>; .reg .b64 %d<9>;
    ld.param.u64 %d1, [data]; ld.param.b32 %r2, [step];
    mov.u32 %r3, %tid.x; mul.wide.u32 %d2, %r3, 4; add.s64 %d3, %d1, %d2;
    ld.global.u32 %r4, [%d3]; add.u32 %r4, %r4, %r2; st.global.u32 [%d3], %r4;
    ret;
}
"""
SAXPY_ARGUMENTS = "--arg a=2 --arg x=float32[1024]:uniform --arg y=float32[1024]:ones --grid 4 --block 256"


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """The sources, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("saxpy.cu", SAXPY), ("odd.cu", ODD), ("k.ptx", PTX), ("empty.cu", "// nothing\n")):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def run(capsys):
    """Run a command line in the emulator: (exit code, stdout, stderr)."""

    def call(words):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["run", *shlex.split(words), "--device", "emulator"])
        out, err = capsys.readouterr()
        return stopped.value.code, out, err

    return call


def test_kernels_are_listed_and_the_suggested_line_runs(run):
    for words in ("saxpy.cu", "k.ptx", "odd.cu", "odd.cu --instantiate 'scale<float, 4>'"):
        code, out, err = run(words)
        assert (code, err) == (0, "")
        suggested = [line.split("ptxkit run ")[1] for line in out.splitlines() if "ptxkit run" in line]
        assert suggested
        for line in suggested:
            if "dynamic" not in line:
                assert run(line)[0] == 0, line


def test_a_listing_names_parameters_types_and_overloads(run):
    _, out, _ = run("odd.cu")
    assert "odd.cu:over(float*)" in out and "float* a" in out and "int* a" in out and "odd.cu:silent" in out
    assert "Templates without an instance:\n  scale<typename T, int N>: --instantiate 'scale<...>'" in out
    assert "Templates" not in run("odd.cu --instantiate 'scale<float, 4>'")[1]
    value = json.loads(run("saxpy.cu --json")[1])
    assert value["schema"] == "ptxkit.entries/1" and value["templates"] == []
    (entry,) = value["entries"]
    assert [p["declaration"] for p in entry["parameters"]] == ["float a", "const float* x", "float* y", "int n"]
    assert [p["example"] for p in entry["parameters"]] == [
        "1.0",
        "float32[1024]:uniform",
        "float32[1024]:zeros",
        "1024",
    ]


def test_arrays_are_summarised_saved_and_compared(run, files):
    code, out, _ = run(f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1000 --output y=y.npy --output x=x.npy --json")
    value = json.loads(out)
    x, y = np.load("x.npy"), np.load("y.npy")
    wanted = np.ones(1024, np.float32)
    wanted[:1000] += 2 * x[:1000]
    assert code == 0 and value["verified"] is None
    assert np.allclose(y, wanted, rtol=1e-6)
    found = {a["name"]: a for a in value["arrays"]}
    assert found["x"]["changed"] == 0 and found["y"]["changed"] == np.count_nonzero(y != 1)
    assert found["y"]["min"] == y.min() and found["y"]["max"] == y.max() and found["y"]["first"] == y[:8].tolist()
    assert abs(found["y"]["mean"] - y.mean(dtype=np.float64)) < 1e-9 and found["y"]["nan"] == 0
    assert value["counted"]["store_bytes"] == 4000 and value["grid"] == [4, 1, 1]
    np.save("reference.npy", wanted.astype(np.float64))
    code, out, _ = run(f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1000 --expect y=reference.npy")
    assert code == 0 and "verified: y, 1,024 elements" in out
    wanted[7] += 1
    np.save("reference.npy", wanted)
    code, out, err = run(f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1000 --expect #2=reference.npy")
    assert code == 1 and "WRONG: y, 1 of 1,024 elements" in out and "y[7] is" in err
    assert not [f for f in files.iterdir() if f.name.startswith(".")]


def test_no_comparison_is_not_called_verified(run):
    code, out, _ = run(f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1")
    assert code == 0 and "not verified" in out


def test_another_seed_gives_other_numbers_and_arguments_do_not_disturb_each_other(run):
    def first(words):
        return json.loads(run(f"saxpy.cu --arg a=0 {words} --arg n=0 --grid 1 --block 1 --json")[1])["arrays"]

    one = first("--arg x=float32[8]:uniform --arg y=float32[8]:uniform")
    other = first("--arg x=float32[900]:ones --arg y=float32[8]:uniform")
    assert one[1] == other[1] and one[0]["first"] != one[1]["first"]
    assert first("--arg x=float32[8]:uniform --arg y=float32[8]:uniform --seed 1")[1] != one[1]


def test_what_was_not_written_is_seen(run):
    value = json.loads(run("saxpy.cu --arg a=1 --arg x=null --arg y=float32[6] --arg n=0 --grid 1 --block 1 --json")[1])
    (y,) = value["arrays"]
    assert (y["initialised"], y["changed"]) == (False, 0)
    _, out, _ = run("saxpy.cu --arg a=1 --arg x=null --arg y=float32[6] --arg n=0 --grid 1 --block 1")
    assert "not written" in out


def test_nan_and_infinity_are_counted_apart(run):
    words = "saxpy.cu --arg a=nan --arg x=float32[8]:ones --arg y=float32[8]:inf --arg n=3 --grid 1 --block 8"
    y = json.loads(run(f"{words} --json")[1])["arrays"][1]
    assert (y["nan"], y["inf"], y["mean"]) == (3, 5, None)


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("odd.cu:'scale<float, 4>' --arg x=float32[32]:ones --arg p=bytes(0000004002000000)", 8),
        ("odd.cu --template 'scale<__half,1>' --arg x=half[32]:2 --arg p=bytes(0000803f00000000)", 3),
        ("odd.cu:half_argument --arg x=float[32] --arg s=half(1.5)", 1.5),
        ("odd.cu:_Z4overPf --arg a=float32[1]", 1),
        ("odd.cu:dynamic --arg out=int[32] --shared 128", 31),
        ("odd.cu:factor -D FACTOR=7 --arg 0=s32[32]", 7),
        ("odd.cu:half_argument --compiler-option -DX=1 --arg #0=f32[32] --arg #1=1", 1),
    ],
)
def test_unusual_kernels(run, words, first):
    code, out, err = run(f"{words} --grid 1 --block 32 --json")
    assert code == 0, err
    assert json.loads(out)["arrays"][0]["first"][0] == first


def test_ptx_with_a_required_block_takes_bits_by_their_type(run):
    code, out, err = run("k.ptx --arg data=int32[8x8]:arange --arg step=5 --arg unused=null --grid 1 --json")
    assert code == 0, err
    value = json.loads(out)
    assert (
        value["arrays"][0]["first"] == list(range(5, 13))
        and value["block"] == [64, 1, 1]
        and value["target"] == "sm_80"
    )
    words = "k.ptx --arg data=int32[64]:zeros --arg step=float(1.5) --arg unused=-1 --grid 1 --json"
    assert json.loads(run(words)[1])["arrays"][0]["max"] == np.float32(1.5).view(np.int32)


def test_clusters_and_headers(run, files):
    assert json.loads(run("odd.cu:ranks --arg out=u32[4] --grid 4 --block 1 --json")[1])["arrays"][0]["first"] == [
        0,
        1,
        0,
        1,
    ]
    (files / "inc").mkdir()
    (files / "inc" / "seven.h").write_text("#define SEVEN 7\n")
    (files / "h.cu").write_text('#include "seven.h"\n__global__ void k(int* x) { x[0] = SEVEN; }\n')
    assert run("h.cu --arg x=int[1] --grid 1 --block 1")[0] == 4
    code, out, _ = run("h.cu -I inc --arg x=int[1] --grid 1 --block 1 --json")
    assert code == 0 and json.loads(out)["arrays"][0]["first"] == [7]


def test_faults_and_races_are_those_of_described_kernels(run):
    words = (
        "saxpy.cu --arg a=2 --arg x=float32[1000]:uniform --arg y=float32[1024]:ones --arg n=1024 --grid 4 --block 256"
    )
    code, out, err = run(words)
    assert code == 5 and out == "" and "past the end of 'x' (4,000 bytes)" in err and "saxpy.cu:4" in err
    code, _, err = run("odd.cu:racy --arg out=int[256] --grid 1 --block 256 --racecheck")
    assert code == 5 and "a race in shared memory" in err


def test_what_a_kernel_prints_stays_out_of_json():
    done = ptxkit_processes.run(*shlex.split("run odd.cu:silent --grid 1 --block 1 --json --device emulator"))
    assert json.loads(done.stdout)["arrays"] == [] and done.stderr == "hello"


GRID = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void neighbours(int* out, int* total) {
    out[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x;
    cg::this_grid().sync();
    if (threadIdx.x == 0) total[blockIdx.x] = out[(blockIdx.x + 1) % gridDim.x * blockDim.x];
}
"""
ASYNC = """
__global__ void copied(const int* x, int* y) {
    __shared__ int s[32];
    unsigned to = (unsigned)__cvta_generic_to_shared(s + threadIdx.x);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + threadIdx.x));
#ifdef WAIT
    asm volatile("cp.async.wait_all;");
#endif
    y[threadIdx.x] = s[threadIdx.x];
}
__global__ void ranks(unsigned* out) {
    unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); out[blockIdx.x] = r;
}
__global__ void spins(volatile int* x) { while (x[0] == 0) x[1] = x[1] + 1; }
__global__ void divides(int* x, int d) { x[threadIdx.x] = (int)threadIdx.x / d; }
__global__ void unwritten(int* y) { __shared__ int s[32]; y[threadIdx.x] = s[threadIdx.x]; }
"""


@pytest.fixture(scope="module")
def hard_directory(tmp_path_factory):
    """One place for the sources, so that they are compiled once: the key of the cache contains the path.

    cooperative_groups.h takes NVRTC a second, so only the kernel that uses it includes it.
    """
    directory = tmp_path_factory.mktemp("hard")
    (directory / "hard.cu").write_text(ASYNC)
    (directory / "grid.cu").write_text(GRID)
    return directory


@pytest.fixture
def hard(run, files, hard_directory, monkeypatch):
    """Run a kernel of a file whose launches need more than a grid and a block."""
    monkeypatch.chdir(hard_directory)
    return lambda words: run(f"{'grid' if words.startswith('neighbours') else 'hard'}.cu:{words}")


def test_a_cluster_that_only_the_launch_names(hard):
    words = "ranks --arg out=u32[8] --grid 8 --block 1 --json"
    code, out, _ = hard(f"{words} --cluster-dims 4")
    assert code == 0 and json.loads(out)["arrays"][0]["first"] == [0, 1, 2, 3] * 2
    assert json.loads(out)["cluster"] == [4, 1, 1]
    assert json.loads(hard(words)[1])["arrays"][0]["first"] == [0] * 8
    code, _, err = hard(f"{words} --cluster-dims 3")
    assert code == 2 and err.count("\n") == 1 and "cluster" in err


def test_a_cooperative_launch_synchronizes_its_grid_and_an_ordinary_one_cannot(hard):
    words = "neighbours --arg out=int[128]:zeros --arg total=int[4]:zeros --grid 4 --block 32 --json"
    code, out, err = hard(f"{words} --cooperative")
    assert code == 0, err
    assert json.loads(out)["arrays"][1]["first"] == [1, 2, 3, 0]
    assert hard(words)[0] == 5


def test_a_cooperative_grid_that_is_not_resident_is_refused(hard):
    code, _, err = hard("neighbours --arg out=int[1] --arg total=int[1] --grid 100000 --block 1024 --cooperative")
    assert code == 2 and err.count("\n") == 1 and "cooperative" in err


def test_the_latest_completion_shows_a_missing_wait(hard):
    words = "copied --arg x=int[32]:arange(5) --arg y=int[32] --grid 1 --block 32 --json"
    eager = json.loads(hard(words)[1])
    assert eager["arrays"][1]["first"] == list(range(5, 13))
    waits = json.loads(hard(f"{words} -D WAIT --completion latest-legal")[1])
    assert waits["arrays"][1]["first"] == list(range(5, 13))
    missing = json.loads(hard(f"{words} --completion latest-legal")[1])
    assert missing["arrays"][1]["first"] != list(range(5, 13))


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ("spins --arg x=int[2]:zeros --grid 1 --block 1 --max-instructions 5000", 5, "stopped by max_instructions"),
        ("spins --arg x=int[2]:zeros --grid 1 --block 1 --timeout 0.5", 8, "not done within 0.5 s"),
        ("divides --arg x=int[32] --arg d=0 --grid 1 --block 32 --trap div0", 5, "divides an integer by zero"),
        ("unwritten --arg y=int[32] --grid 1 --block 32 --initcheck", 5, "never initialised"),
        ("divides --arg x=int[32] --arg d=1 --grid 1 --block 32 --trap zero", 2, "--trap takes div0"),
    ],
)
def test_the_emulators_checks_and_limits_are_for_source_files_too(hard, words, code, complaint):
    found, out, err = hard(words)
    assert (found, out) == (code, "") and complaint in err


def test_a_time_limit_ends_a_launch_on_several_workers_and_names_its_threads(hard, monkeypatch):
    monkeypatch.setenv("PTXKIT_EMULATOR_THREADS", "2")
    code, out, err = hard("spins --arg x=int[2]:zeros --grid 64 --block 256 --timeout 0.5 --device emulator")
    assert (code, out) == (8, "")
    assert "spins: not done within 0.5 s, the limit of --timeout, after" in err and "where its threads are" in err


def test_compiling_is_outside_the_time_limit(run, monkeypatch):
    from ptxkit.compiler import nvrtc

    compile_source, limits = nvrtc.compile_source, []

    def observed(*args, **kwargs):
        limits.append(signal.getitimer(signal.ITIMER_REAL)[0])
        return compile_source(*args, **kwargs)

    monkeypatch.setattr(nvrtc, "compile_source", observed)
    monkeypatch.setattr("ptxkit.source_run.entries.compile_source", observed, raising=False)
    code, _, err = run(f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1024 --timeout 500")
    assert code == 0, err
    assert limits == [0.0]


def test_the_tolerance_of_a_comparison_can_be_set(run):
    np.save("reference.npy", 1.001 * np.arange(64))
    words = "saxpy.cu --arg a=0 --arg x=float[64]:zeros --arg y=float[64]:arange --arg n=64 --grid 1 --block 64"
    words += " --expect y=reference.npy"
    code, _, err = run(words)
    assert code == 1
    assert "63 of 64 elements of y are wrong" in err and "tolerance: relative=1e-05" in err and "--tolerance relative=" in err
    assert run(f"{words} --tolerance relative=2e-3")[0] == 0
    assert run(f"{words} --tolerance relative=9e-4")[0] == 1
    assert run(f"{words} --tolerance exact")[0] == 1
    np.save("reference.npy", np.arange(64) + 1e-4)
    assert run(words)[0] == 1
    assert run(f"{words} --tolerance sums=100000")[0] == 0
    assert run(f"{words} --tolerance sums=2")[0] == 1


def test_elements_that_were_never_written_are_counted_in_a_wrong_result(run):
    np.save("reference.npy", np.full(64, 7))
    words = "saxpy.cu --arg a=0 --arg x=float[64]:zeros --arg y=float[64] --arg n=0 --grid 1 --block 64"
    words += " --expect y=reference.npy"
    code, _, err = run(words)
    assert code == 1 and "written" in err


@pytest.mark.parametrize("kind", ["float", "int32", "uint8"])
def test_expected_values_that_the_same_kernel_never_wrote_are_not_verified(run, files, kind):
    (files / "part.cu").write_text(
        f"typedef {'unsigned char' if kind == 'uint8' else 'int' if kind == 'int32' else 'float'} T;"
        'extern "C" __global__ void part(T* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 3; }'
    )
    words = f"part.cu --arg y={kind}[64] --grid 1 --block 64"
    assert run(f"{words} --arg n=63 --output y=y.npy")[0] == 0
    code, _, err = run(f"{words} --arg n=63 --expect y=y.npy")
    assert code == 1 and "y[63]" in err  # of one byte, the first launch has other contents already
    assert kind == "uint8" or "with other contents of the arrays that start uninitialised: y[63]" in err
    assert run(f"{words} --arg n=64 --output y=y.npy")[0] == 0
    assert run(f"{words} --arg n=64 --expect y=y.npy")[0] == 0


def test_a_dry_run_launches_nothing(run, files):
    code, out, _ = run(f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1 --output y=y.npy --dry-run")
    assert code == 0 and "grid 4x1x1, block 256x1x1" in out and "float32[1024]:uniform" in out
    assert not (files / "y.npy").exists()


def test_directories_with_colons_and_at_signs(run, files, tmp_path):
    for name in ("a:b", "x.cu:y", "d@e", "with space", "ünï"):
        (files / name).mkdir()
        (files / name / "saxpy.cu").write_text(SAXPY)
        code, out, err = run(shlex.quote(f"./{name}/saxpy.cu:saxpy"))
        assert code == 0 and "saxpy.cu:saxpy" in out, err


@pytest.mark.parametrize(
    ("words", "code", "match"),
    [
        ("no.cu", 2, "there is no file no.cu"),
        ("saxpi.cu", 2, "did you mean 'saxpy.cu'"),
        ("saxpy.cu:saxpi", 2, "did you mean saxpy"),
        ("odd.cu --grid 1", 2, "odd.cu has 7 kernels: "),
        ("odd.cu:over --grid 1", 2, "2 kernels 'over': over(float*), over(int*)"),
        ("empty.cu", 2, "empty.cu has no kernels; a kernel is a __global__ function"),
        ("saxpy.cu --arg a=1", 2, "lacks --arg x=... (const float* x), --arg y=... (float* y), --arg n=... (int n), --grid"),
        ("odd.cu:ranks --arg out=int[300]", 2, "'out=int32[300]:empty' --grid 2 --block 256"),
        (f"saxpy.cu {SAXPY_ARGUMENTS}", 2, "for example: ptxkit run ./saxpy.cu --arg a=2 --arg 'x=float32[1024]:uniform'"),
        (f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1 --arg m=1", 2, "saxpy has no parameter 'm'; there are a, x, y, n"),
        (f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1 --arg 3=1", 2, "parameter n is given already, as n=1"),
        (f"saxpy.cu {SAXPY_ARGUMENTS} --arg 4=1", 2, "saxpy has 4 parameters, which are #0 to #3"),
        (f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1.5", 2, "the type is int32; write a whole number"),
        (f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=3000000000", 2, "int32 holds -2147483648 to 2147483647"),
        (f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=int[4]", 2, "int n is one number, not an array; write n=1024"),
        ("saxpy.cu --arg a=1 --arg x=5 --arg y=f32[1] --arg n=1 --grid 1 --block 1", 2, "const float* x is a pointer; write"),
        ("saxpy.cu --arg a=null --arg x=null --arg y=f32[1] --arg n=1 --grid 1 --block 1", 2, "float a is not a pointer"),
        ("saxpy.cu --arg a=1 --arg x=f32[9] --arg y=f32[99999999999999] --arg n=1 --grid 1 --block 1", 3, "needs"),
        (f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1 --block 2048", 2, "2,048; the limit is 1,024"),
        (f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1 --output n=n.npy", 2, "n is passed by value; there are x, y"),
        (f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1 --output z=n.npy", 2, "z is not a parameter; there are x, y"),
        (f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1 --output y=no/y.npy", 2, "cannot write no/y.npy"),
        (f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1 --expect y=no.npy", 2, "there is no file no.npy"),
        (f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1 --tile T=1", 2, "--tile is for kernels with a description"),
        (f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1 5 6", 2, "a source file takes no sizes"),
        (f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1 --tolerance exact", 2, "give --expect NAME=FILE.npy, too"),
        (
            f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1 --output y=out.npy --output x=./out.npy",
            2,
            "--output x=./out.npy: y is written to that file; name another one",
        ),
        (f"saxpy.cu {SAXPY_ARGUMENTS} --arg n=1 --expect y=y.npy --tolerance 3", 2, "such as relative=1e-3"),
        ("saxpy --tolerance exact", 2, "--tolerance is for source files"),
        ("saxpy.cu --include nodir", 2, "there is no such directory"),
        ("saxpy.cu --define 3=4", 2, "--define takes NAME or NAME=VALUE"),
        ("k.ptx --define X", 2, "k.ptx is PTX, which takes no"),
        ("k.ptx --arg step=1.5 --arg data=f32[64] --arg unused=0 --grid 1", 2, "name it: float32(1.5)"),
        ("k.ptx --arg step=double(1) --arg data=f32[64] --arg unused=0 --grid 1", 2, "has 4 bytes and float64 has 8"),
        ("k.ptx --arg step=1 --arg data=f32[64] --arg unused=0 --grid 1 --block 32", 2, "requires (64, 1, 1)"),
        ("k.ptx --arch sm_75", 4, "cannot be assembled for sm_75"),
        ("saxpy --grid 4", 2, "--grid is for source files, such as ./k.cu"),
        ("odd.cu:'scale<float,1>' --arg x=f32[32] --arg p=bytes(00) --grid 1 --block 32", 2, "has 8 bytes, not 1"),
        ("odd.cu:'scale<float,1>' --arg x=f32[32] --arg p=3 --grid 1 --block 32", 2, "write p=bytes(0000000000000000)"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(run, words, code, match):
    found, out, err = run(words)
    assert (found, out) == (code, ""), err
    assert match in err and err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("make", "code", "complaint"),
    [
        (lambda path: path.symlink_to(path), 2, "is a link that leads to no file"),
        (lambda path: path.symlink_to("nowhere.cu"), 2, "is a link that leads to no file"),
        (lambda path: path.mkdir(), 2, "is a directory; name a .cu or .ptx file"),
        (os.mkfifo, 2, "is a pipe, not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), 2, "is a device, not a regular file"),
        (lambda path: path.write_bytes(b"\x7fELF\0"), 2, "there is a NUL byte"),
        (lambda path: path.write_text(""), 2, "has no kernels"),
        (lambda path: path.write_text(SAXPY, encoding="utf-16"), 2, "the text is UTF-16"),
    ],
)
def test_what_is_no_source_file_is_one_line(run, files, make, code, complaint):
    make(files / "odd_one.cu")
    found, out, err = run("./odd_one.cu")
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert "odd_one.cu" in err and complaint in err


TEXTURE = """__global__ void sample(float* out, cudaTextureObject_t image) { *out = tex2D<float>(image, 0, 0); }
int main() { sample<<<1, 1>>>(nullptr, 0); }
"""


def test_no_value_is_suggested_for_the_handle_of_a_texture(tmp_path, capsys):
    source = tmp_path / "t.cu"
    source.write_text(TEXTURE)
    with pytest.raises(SystemExit):
        cli.main(["run", str(source)])
    out = capsys.readouterr().out
    assert "image=" not in out and "cannot create" in out


def test_a_kernel_that_takes_the_handle_of_a_texture_is_refused(tmp_path, capsys):
    source = tmp_path / "t.cu"
    source.write_text(TEXTURE)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["run", str(source), "--arg", "out=float32[1]", "--arg", "image=1", "--grid", "1", "--block", "1"])
    assert stopped.value.code == 2
    assert "sample takes a handle of a texture or surface (image)" in capsys.readouterr().err
