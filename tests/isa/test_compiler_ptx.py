"""PTX as NVRTC writes it: parsed, printed flat, and assembled to the same SASS as the original."""

import re
import subprocess

import pytest

from ptxkit.compiler.assemble import assemble
from ptxkit.isa.locate import loc_at_line
from ptxkit.isa.parser import parse
from ptxkit.isa.printer import format_module

nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
pathfinder = pytest.importorskip("cuda.pathfinder")

SOURCE = r"""
#include <cuda_fp16.h>
extern "C" __device__ int printf(const char*, ...);
__constant__ float table[4] = {1.f, 2.5f, -3.f, 4.f};
__device__ int counter = 7;
__device__ const int* pointer = &counter;
struct S { int a; double b; const int* q; };
__device__ S record = {1, 2.0, &counter};
__device__ int add(int a, int b) { return a + b; }
__device__ int sub(int a, int b) { return a - b; }
__device__ int (*table_of_functions[2])(int, int) = {add, sub};
struct Big { int x[10]; float4 y; };
__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__device__ __noinline__ Big make(Big b, int i) { b.x[i] = i; return b; }
__device__ __forceinline__ float inlined(float x) { return __expf(x) + sinf(x); }
extern "C" __global__ void __launch_bounds__(256, 2)
k(float* x, const __half2* h, int n, Big b, const __grid_constant__ Big c) {
  __shared__ float tile[256];
  extern __shared__ char dynamic[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  asm volatile("{ .reg .pred p; .reg .b32 %%r1; setp.ne.b32 p, %0, 0; L1: @p bra L2; mov.b32 %%r1, 1; bra L1; L2: }" :: "r"(n));
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %0, 0; L1: @p bra L2; bra L1; L2: }" :: "r"(n));
  switch (n) {
    case 0: x[0] = 1; break;
    case 1: x[1] = 2.f; break;
    case 2: x[5] = inlined(x[0]); break;
    case 3: x[7] = table[i & 3]; break;
    case 4: x[9] = clock64(); break;
    case 5: x[8] = i; break;
    case 6: x[3] = 9; break;
  }
  printf("%d %f\n", i, x[0]);
  tile[threadIdx.x] = __shfl_down_sync(~0u, x[i], 1);
  __syncthreads();
  x[i] += tile[n] + fib(n) + table_of_functions[n & 1](n, i) + dynamic[i] + b.x[n & 7] + c.x[i & 7];
  Big r = make(b, n);
  x[i] += r.x[3] + r.y.x + *pointer + *record.q;
  __half2 v = __hfma2(h[i], h[i + 1], h[i + 2]);
  x[i + 3] = __half2float(v.x) + sqrt((double)x[0]) / 3.0;
}
"""


def call(function, *arguments):
    status, *results = function(*arguments)
    assert int(status) == 0, f"{function.__name__}: {status}"
    return results[0] if results else None


@pytest.fixture(scope="module", params=["sm_75", "sm_90a", "sm_100a"])
def ptx(request):
    headers = pathfinder.find_nvidia_header_directory("cudart")
    if headers is None:
        pytest.skip("the CUDA headers are not installed")
    program = call(nvrtc.nvrtcCreateProgram, SOURCE.encode(), b"k.cu", 0, [], [])
    options = [f"--gpu-architecture={request.param}".encode(), b"-lineinfo", f"-I{headers}".encode()]
    nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = b" " * call(nvrtc.nvrtcGetProgramLogSize, program)
    call(nvrtc.nvrtcGetProgramLog, program, log)
    assert b"error" not in log, log.decode()
    text = b" " * call(nvrtc.nvrtcGetPTXSize, program)
    call(nvrtc.nvrtcGetPTX, program, text)
    return text.decode().rstrip("\0")


@pytest.fixture(scope="module")
def module(ptx):
    return parse(ptx, "k.ptx")


def test_functions_and_variables(module):
    k = module.entries["k"]
    assert [p.bytes for p in k.params] == [8, 8, 4, 64, 64]
    assert (k.directives["maxntid"], k.directives["minnctapersm"]) == ((256, 1, 1), (2,))
    assert module.functions["_Z3fibi"].returns[0].type.name == "b32"
    assert module.variables["record"].relocations == ((16, "counter", 0, True, 0),)
    assert [r[1] for r in module.variables["table_of_functions"].relocations] == ["_Z3addii", "_Z3subii"]
    assert module.variables["dynamic"].linkage == "extern"
    assert any(name.endswith("tile") and v.space == "shared" and v.bytes == 1024 for name, v in k.variables.items())


def test_inline_assembly_scopes_do_not_collide(module):
    k = module.entries["k"]
    branches = [i for i in k.instructions if i.opcode == "bra" and i.operands[0].name.startswith("L")]
    assert [i.operands[0].name for i in branches] == ["L2", "L1", "L2$1", "L1$1"]
    assert [str(i.predicate) for i in branches] == ["@p", "None", "@p$1", "None"]
    assert "%r1$1" in k.registers


def test_every_instruction_has_the_location_a_line_scan_finds(ptx, module):
    here = [i for f in module.functions.values() for i in f.instructions]
    assert {i.loc.file.rsplit("/")[-1].split(".")[0] for i in here if i.loc} == {"k", "cuda_fp16"}
    assert any(i.loc.inlined_at for i in here if i.loc)
    for instruction in here[::11]:
        assert loc_at_line(ptx, instruction.line) == instruction.loc


def test_indirect_call(module):
    k = module.entries["k"]
    indirect = [i for i in k.instructions if i.name == "call" and len(i.operands) == 4]
    (found,) = [k.prototypes[i.operands[3].name] for i in indirect]
    assert (len(found.returns), len(found.params), found.noreturn) == (1, 2, False)


def test_printed_flat_it_assembles_to_the_same_sass(ptx, module, tmp_path):
    original, flat = (sass(text, module.target, tmp_path) for text in (ptx, format_module(module)))
    assert original.keys() == flat.keys()
    assert original["k"].count("\n") > 300
    assert original == flat


def sass(text, target, folder):
    """Function name -> its SASS."""
    cuobjdump = pathfinder.find_nvidia_binary_utility("cuobjdump")
    if cuobjdump is None:
        pytest.skip("cuobjdump is not installed")
    bare = re.sub(r"(?m)^\s*\.loc\s.*$", "", text)  # line tables differ: the printed text has other lines
    image = assemble(bare, target=target, name="k.ptx", lineinfo=False, cache=False)
    assert image.cubin is not None
    path = folder / "k.cubin"
    path.write_bytes(image.cubin)
    listing = subprocess.run([cuobjdump, "-sass", path], capture_output=True, text=True, check=True).stdout
    return {part.split("\n", 1)[0]: part for part in listing.split("Function : ")[1:]}
