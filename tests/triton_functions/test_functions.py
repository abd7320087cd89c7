"""Functions of Triton as calls: types, recorded launches, and what the emulator computes. Needs no GPU."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from ptxkit.errors import CompileError, DescriptionError, UnavailableError, UsageError
from ptxkit.inspect.subject import Settings, subjects
from ptxkit.runtime.device import device
from ptxkit.source_run import triton_call
from ptxkit.source_run.call import Geometry
from ptxkit.source_run.grammar import parse_argument
from ptxkit.source_run.run import run_call

PAGE = Path(__file__).resolve().parents[2] / "docs" / "triton.md"
EXAMPLE = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]

ADD = '''
import triton
import triton.language as tl

@triton.jit
def double(value):
    return value * 2

@triton.jit
def add(x, y, n, step, function: tl.constexpr, BLOCK: tl.constexpr):
    at = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) * step
    inside = at < n
    tl.store(y + at, tl.load(x + at, inside) + function(tl.load(y + at, inside)), inside)
'''
WRAPPER = '''
import torch
from torch._inductor.async_compile import AsyncCompile
from torch._C import _cuda_getCurrentRawStream as get_raw_stream
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
async_compile = AsyncCompile()

scale = async_compile.triton('scale', """
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'x': 256}, filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
                 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9,
                                            regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
                                            warp_size=32),
                 'constants': {}, 'configs': [{(0,): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid1D', 'kernel_name': 'scale', 'mutated_arg_names': [], 'autotune_hints': set()},
    min_elem_per_thread=0)
@triton.jit
def scale(in_ptr0, out_ptr0, xnumel, XBLOCK: tl.constexpr):
    at = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(out_ptr0 + at, tl.load(in_ptr0 + at, at < xnumel) * 3, at < xnumel)
""", device_str='cuda')

async_compile.wait(globals())
del async_compile

def call(args):
    (x,) = args
    args.clear()
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        out = empty_strided_cuda((200,), (1,), torch.float32)
        scale.run(x, out, 200, stream=get_raw_stream(0))
    return (out,)

def get_args():
    from torch._dynamo.testing import rand_strided
    return [rand_strided((200,), (1,), device='cuda:0', dtype=torch.float32)]
'''


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A function that writes a file of functions, and returns its path."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))

    def written(text, name="kernels.py"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


def launched(path, name, arguments=(), grid=None, **defines):
    """The launch in the emulator: its call, and all arrays after it."""
    texts = [parse_argument(text) for text in arguments]
    found = triton_call.compiled(f"triton:{path}:{name}", defines, texts)
    call = triton_call.call_of(found, texts, Geometry(grid=grid), {}, {})
    outputs = path.parent / "outputs"
    outputs.mkdir(exist_ok=True)
    files = {name: str(outputs / f"{name}.npy") for name in call.arrays}
    run_call(triton_call.call_of(found, texts, Geometry(grid=grid), {}, files), device("emulator"))
    return call, {name: np.load(f) for name, f in files.items()}


def test_the_recorded_launch_of_the_page(file):
    call, arrays = launched(file(EXAMPLE), "rmsnorm")
    x = arrays["x"].astype(np.float64)
    expected = x / np.sqrt(np.square(x).mean(1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(arrays["y"], expected, rtol=1e-5, atol=1e-6)
    assert call.geometry.grid == (4, 1, 1)
    assert call.geometry.block == (128, 1, 1)
    assert [p.name for p in call.entry.parameters][:5] == ["x", "weight", "y", "cols", "eps"]


def test_arguments_instead_of_a_launch(file):
    arguments = ["x=float32[100]:arange", "y=float32[100]:ones", "n=100", "step=1"]
    call, arrays = launched(file(ADD), "add", arguments, (2, 1, 1), function="double", BLOCK="64", num_warps="2")
    np.testing.assert_array_equal(arrays["y"], np.arange(100) + 2)
    assert call.geometry.block == (64, 1, 1)
    assert "step" not in [p.name for p in call.entry.parameters]  # 1 is a constant of the code


@pytest.mark.parametrize("step, count", [(2, 4), (16, 4)])
def test_numbers_are_arguments_unless_they_are_1(file, step, count):
    found = triton_call.compiled(
        f"triton:{file(ADD)}:add",
        {"function": "double", "BLOCK": "32"},
        [parse_argument(t) for t in ("x=f32[64]:ones", "y=f32[64]:ones", "n=64", f"step={step}")],
    )
    assert len(found.kernel.signature.types) == count
    assert found.kernel.signature.types["step"].divisible == (step == 16)


def test_one_array_for_two_parameters(file):
    text = ADD + '''
def launch():
    import torch
    x = torch.arange(32, dtype=torch.float32)
    add[lambda meta: (32 // meta["BLOCK"],)](x, x, 32, 1, double, BLOCK=16)
'''
    call, arrays = launched(file(text), "add")
    assert list(arrays) == ["x"]
    np.testing.assert_array_equal(arrays["x"], np.arange(32) * 3)
    assert call.geometry.grid == (2, 1, 1)


def test_an_autotuned_function_is_launched_in_its_first_configuration(file):
    text = ADD.replace(
        "@triton.jit\ndef add",
        "@triton.autotune([triton.Config({'BLOCK': b}, num_warps=w) for b, w in ((32, 1), (64, 2))], key=['n'])\n"
        "@triton.jit\ndef add",
    )
    text += '''
def launch():
    import torch
    add[lambda meta: (triton.cdiv(70, meta["BLOCK"]),)](torch.ones(70), torch.zeros(70), 70, 1, double)
'''
    call, arrays = launched(file(text), "add")
    assert call.geometry.grid == (3, 1, 1)
    assert call.geometry.block == (32, 1, 1)
    np.testing.assert_array_equal(arrays["y"], np.ones(70))


def test_a_wrapper_of_torch_compile(file):
    call, arrays = launched(file(WRAPPER), "scale")
    np.testing.assert_array_equal(arrays["out_ptr0"], arrays["in_ptr0"] * 3)
    assert arrays["in_ptr0"].shape == (200,)


def test_inspection(file):
    path = file(EXAMPLE)
    (recorded,) = subjects(f"triton:{path}:rmsnorm")
    assert recorded.block == 128
    assert "BLOCK=1024" in recorded.tile
    signature = "x=*fp32:16,weight=*fp32:16,y=*fp32:16,cols=i32:16,eps=fp32,BLOCK=1024,num_warps=8"
    (other,) = subjects(f"triton:{path}:rmsnorm@sm_80,{signature}")
    assert (other.function.target.name, other.block) == ("sm_80", 256)
    (wide,) = subjects(f"triton:{path}:rmsnorm", Settings(defines={"BLOCK": "2048"}))
    assert "BLOCK=2048" in wide.tile


@pytest.mark.parametrize(
    "name, given, error, message",
    [
        ("missing", {}, UsageError, "no function of Triton 'missing'; .*rmsnorm"),
        ("rmsnorm", {"WARPS": "4"}, UsageError, "no parameter or option 'WARPS'"),
        ("rmsnorm", {"BLOCK": "many"}, UsageError, "BLOCK=many is neither a value"),
        ("rmsnorm", {"BLOCK": "1000"}, CompileError, "Triton cannot compile"),
        ("rmsnorm", {"x": "*fp31"}, UsageError, "no element type 'fp31'"),
        ("rmsnorm", {"num_warps": "3"}, CompileError, "Triton cannot compile"),
    ],
)
def test_wrong_settings(file, name, given, error, message):
    with pytest.raises(error, match=message) as found:
        triton_call.compiled(f"triton:{file(EXAMPLE)}:{name}", given)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "text, error, message",
    [
        ("x = 1\n", UsageError, "no function with @triton.jit"),
        (ADD, UsageError, "2 functions of Triton: double, add"),
        ("import nothing_of_this_name\n", UnavailableError, r"kernels.py:1: nothing_of_this_name is not installed"),
        ("def f(:\n", DescriptionError, r"kernels.py:1: SyntaxError"),
        (WRAPPER.replace("args.clear()", "1 / 0"), DescriptionError, r"kernels.py:\d+: ZeroDivisionError"),
        (WRAPPER.replace("def get_args", "def arguments"), UsageError, r"no function get_args\(\)"),
        (EXAMPLE.replace("1000, 1e-6", "1000"), UsageError, "kernels.py:.*the launch of rmsnorm: missing"),
        (EXAMPLE.replace("torch.ones(1000)", "'ones'"), UsageError, "weight must be a tensor or a number, not a str"),
        (EXAMPLE.replace("[(4,)]", "[(4, 1, 1, 1)]"), UsageError, "the grid must be one to three whole numbers"),
        (EXAMPLE.replace("[(4,)]", "[(0,)]"), UsageError, "empty grid"),
        (EXAMPLE.replace("def launch():", "def start():"), UsageError, r"neither types nor values are known of x, weight"),
    ],
)
def test_wrong_files(file, text, error, message):
    with pytest.raises(error, match=message) as found:
        launched(file(text), "")
    assert "\n" not in str(found.value)
