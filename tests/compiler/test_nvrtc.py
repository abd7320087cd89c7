import re
import subprocess
import sys
from pathlib import Path

import pytest

from ptxkit.compiler import child, compile_source
from ptxkit.compiler.nvrtc import stays_in_process
from ptxkit.errors import CompileError, UsageError
from ptxkit.isa.mangled import base_name

SCALE = """
extern "C" __global__ void scale(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= FACTOR;
}
"""
REVERSE = """
template <int T, typename U> __global__ void reverse(U* x) {
    __shared__ U s[T];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[T - 1 - threadIdx.x];
}
"""


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_100f", "sm_120a", "sm_121f"])
def test_one_compile_gives_ptx_and_cubin(target):
    image = compile_source(SCALE, target=target, defines={"FACTOR": "2.f"})
    assert image.target == target
    assert f".target {target}" in image.ptx
    assert image.cubin is not None
    assert image.cubin[:4] == b"\x7fELF"
    assert image.functions["scale"].registers > 0
    assert image.log == ""


def test_typed_instantiations_share_a_program():
    image = compile_source(REVERSE, target="sm_90a", instantiate=["reverse<128, float>", "reverse<64, double>"])
    assert {base_name(name) for name in image.functions} == {"reverse"}
    assert [image.functions[image.names[e]].shared_bytes for e in image.names] == [512, 512]
    assert image.functions[image.entry("reverse<128,float>")].barriers == 1


def test_defines_of_every_kind():
    source = """
#if !defined(FLAG) || YES != 1 || NO != 0 || COUNT != 3
#error wrong
#endif
__global__ void k(NAME* x) { *x = COUNT; }
"""
    defines = {"FLAG": None, "YES": True, "NO": False, "COUNT": 3, "NAME": "unsigned int"}
    assert compile_source(source, target="sm_90a", defines=defines).functions


def test_lineinfo_holds_absolute_paths_and_can_be_left_out(tmp_path):
    path = tmp_path / "scale.cu"
    path.write_text(SCALE)
    image = compile_source(path, target="sm_90a", defines={"FACTOR": 3})
    assert f'.file\t1 "{path}"' in image.ptx
    assert ".loc" in image.ptx
    assert image.source_name == "scale.cu"
    assert image.sources[0] == str(path)
    assert ".loc" not in compile_source(path, target="sm_90a", defines={"FACTOR": 3}, lineinfo=False).ptx


def test_spills_are_counted_and_warned_of():
    source = """__global__ void __launch_bounds__(1024, 2) heavy(float* p) {
    float a[64];
#pragma unroll
    for (int i = 0; i < 64; i++) a[i] = p[i * blockDim.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; i++) p[i * 7 + threadIdx.x] = a[i] * a[63 - i];
}"""
    image = compile_source(source, target="sm_90a")
    used = image.functions[image.entry("heavy")]
    assert used.spill_store_bytes > 0
    assert used.local_bytes >= used.spill_store_bytes
    assert image.log == (
        f"source.cu:1: warning: heavy spills registers at 32 a thread: {used.spill_store_bytes} bytes stored, "
        f"{used.spill_load_bytes} bytes loaded"
    )


def test_standard_headers_and_the_tensor_map_are_there():
    includes = (
        "stdint.h cstdint stddef.h cstddef climits cfloat cmath cassert cstdio cstring stdlib.h cuda.h cuda_fp16.h"
    )
    source = "".join(f"#include <{name}>\n" for name in includes.split())
    source += """
static_assert(sizeof(std::int64_t) == 8 && sizeof(CUtensorMap) == 128 && alignof(CUtensorMap) == 64);
static_assert(UINT32_MAX == 4294967295u && INT64_MIN < 0 && FLT_MAX > 3e38f && CHAR_BIT == 8);
__global__ void k(float* x, const __grid_constant__ CUtensorMap map) {
    assert(x);
    x[0] = std::sqrt(x[1]) + INFINITY + (std::isnan(x[2]) ? std::size_t(1) : offsetof(float2, y));
}
"""
    assert compile_source(source, target="sm_90a").log == ""


def test_libcu_plus_plus_gets_along_with_the_standard_headers():
    includes = "".join(f"#include <{name}>\n" for name in ("climits", "cstdint", "cuda/std/cstdint"))
    source = f"{includes}__global__ void k(cuda::std::int64_t* x) {{}}\n"
    assert compile_source(source, target="sm_90a").log == ""


@pytest.mark.parametrize(
    "name, message",
    [
        ("scael", "source.cu has no kernel 'scael'; did you mean scale?"),
        (
            "reverse<32, float>",
            "source.cu has no kernel 'reverse<32, float>'; did you mean reverse<64, float>, reverse<8, float>?",
        ),
        ("gemm", "source.cu has no kernel 'gemm'; it has reverse<64, float>, reverse<8, float>, scale"),
        ("reverse", "source.cu has 2 kernels 'reverse': reverse<64, float>, reverse<8, float>"),
    ],
)
def test_a_missing_entry_names_the_nearest(name, message):
    image = compile_source(
        SCALE + REVERSE, target="sm_90a", defines={"FACTOR": 2}, instantiate=["reverse<64, float>", "reverse<8, float>"]
    )
    with pytest.raises(CompileError) as caught:
        image.entry(name)
    assert str(caught.value) == message


def test_entry_by_plain_name_inside_a_namespace():
    image = compile_source("namespace a { namespace b { __global__ void copy(float* x) {} } }", target="sm_90a")
    assert image.entry("copy") == "_ZN1a1b4copyEPf"


def test_a_source_without_kernels_says_so():
    with pytest.raises(CompileError, match="it has no kernels"):
        compile_source("__device__ int f() { return 1; }", target="sm_90a").entry("f")


@pytest.mark.parametrize("source, reason", [("/nowhere/x.cu", "No such file"), ("/", "Is a directory")])
def test_a_file_that_cannot_be_read(source, reason):
    with pytest.raises(UsageError, match=f"cannot read {source}: {reason}"):
        compile_source(source, target="sm_90a")


def test_neither_path_nor_environment_leads_to_another_toolkit(tmp_path):
    # A toolkit at CUDA_HOME with broken libraries and headers must have no effect.
    for name in ("lib64/libnvrtc.so.13", "lib64/libnvJitLink.so.13", "include/cuda_fp16.h", "bin/nvdisasm"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("#error wrong toolkit")
    program = """
import ptxkit.compiler as c, sys
from ptxkit.compiler import toolkit
im = c.compile_source("#include <cuda_fp16.h>\\n__global__ void k(half* x) { *x += *x; }", target="sm_90a", cache=False)
c.assemble(im.ptx, target="sm_90a", cache=False)
toolkit.nvdisasm(), toolkit.cuobjdump()
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "libnvrtc" in line or "libnvJitLink" in line}
print(*libraries, *(t.path for t, _ in toolkit.survey().values() if t), sep="\\n")
"""
    environment = {"PATH": f"{tmp_path}/bin", "CUDA_HOME": str(tmp_path), "CUDA_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    found = [Path(line) for line in done.stdout.split()]
    assert len(found) >= 8
    assert all({"site-packages", "dist-packages"} & set(path.parts) for path in found)


def test_a_cache_hit_loads_no_cuda_library():
    compile_source(SCALE, target="sm_90a", defines={"FACTOR": 4})
    program = f"""
import sys
from ptxkit.compiler import child, compile_source
from ptxkit.compiler.nvrtc import stays_in_process
assert compile_source({SCALE!r}, target="sm_90a", defines={{"FACTOR": 4}}).from_cache
loaded = [name for name in sys.modules if name.split(".")[0] in ("cuda", "numpy")]
assert not loaded, loaded
assert "libnvrtc" not in open("/proc/self/maps").read()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


SENSITIVE = Path(__file__).parents[2] / "cu" / "kernels" / "matmul_wgmma.cu"
HARMLESS = [
    "--ptxas-options=-O0", "--use_fast_math", "-use_fast_math", "-maxrregcount=24", "--maxrregcount=32", "--std=c++20",
    "-std=c++17", "--device-int128", "-default-device", "--fmad=false", "--ftz=true", "--prec-div=false",
    "--prec-sqrt=false", "-lineinfo", "-DX=1", "-UX", "-I/nowhere", "-w", "--pre-include=stdint.h",
]  # fmt: skip


def ptx_of_sensitive():
    """PTX whose code differs when NVRTC has compiled with -G before, without the name that contains the process ID."""
    image = compile_source(SENSITIVE, target="sm_90a", instantiate=[INSTANCE], cache=False)
    return re.sub(r"_ZN\d+_INTERNAL_\w+", "internal", image.ptx)


INSTANCE = "matmul_specialized<WgmmaTile<128, 256, 2, 4, 1, 1, 1, 0, 0, 1>, ptxkit::bf16, Operands<0, 0>, 0>"
HERE = str(Path(__file__).parent)
IN_A_NEW_PROCESS = f"import sys; sys.path.insert(0, {HERE!r}); import test_nvrtc; print(test_nvrtc.ptx_of_sensitive())"


def test_options_do_not_change_the_code_of_later_programs():
    """The same source gives the same code, so that counts do not depend on what a process compiled before."""
    assert all(stays_in_process([option]) for option in HARMLESS)
    for option in [*HARMLESS, "-G", "--Ofast-compile=max"]:
        compile_source(SCALE, target="sm_90a", defines={"FACTOR": "2.f"}, options=[option], lineinfo=False, cache=False)
    new = subprocess.run([sys.executable, "-c", IN_A_NEW_PROCESS], capture_output=True, text=True, check=True)
    assert ptx_of_sensitive().strip() == new.stdout.strip()


@pytest.mark.parametrize("options", [["-G"], ["--device-debug"], ["--Ofast-compile=max"], ["-I", "folder"], ["--new=1"]])
def test_options_not_known_to_be_harmless_get_a_process_of_their_own(options):
    assert not stays_in_process(options)


def test_a_crash_of_nvrtc_is_one_line(monkeypatch):
    def crash(program, request):
        raise child.ChildCrashError("SIGSEGV")

    monkeypatch.setattr(child, "answer", crash)
    with pytest.raises(CompileError, match=r"mine\.cu: error: NVRTC \S+ ended with SIGSEGV when .* -G; compile it without"):
        compile_source(SCALE, name="mine.cu", target="sm_90a", defines={"FACTOR": "2.f"}, options=["-G"], cache=False)


def test_types_of_the_drivers_handles():
    """Headers of libraries name them in declarations that device code shares with host code."""
    source = """#include <cuda.h>
    #include <cuda_runtime.h>
    struct Shared { CUdeviceptr address; CUmemGenericAllocationHandle memory; CUstream stream; CUcontext context; };
    static_assert(sizeof(CUdevice) == 4 && sizeof(Shared) == 32);
    CUstream same(cudaStream_t stream);
    __device__ cudaStream_t other(CUstream stream) { return stream; }
    extern "C" __global__ void k(Shared* x) { x->address += sizeof(CUevent) + sizeof(CUfunction) + sizeof(CUmodule); }
    """
    assert compile_source(source, target="sm_90a").entry("k")
