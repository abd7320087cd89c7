"""A C++ extension of torch that launches the kernel of ptxkit.torch.layernorm, for scripts/torch_overhead.py.

The extension does what one that is written for this kernel does for each call: it checks the arguments, allocates the result by
``at::empty_like``, and calls ``cuLaunchKernel`` on torch's current stream. It is built with g++ and torch's headers; a CUDA
toolkit is not needed.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ptxkit.runtime.kernel import PreparedLaunch

NAME = "ptxkit_torch_extension"
SOURCE = """
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <torch/extension.h>

using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);

struct LayerNorm {
    void* function;
    std::vector<unsigned> grid, block;
    unsigned shared;
    std::string buffer;           // all parameters; the addresses of the tensors are written at each call
    std::vector<size_t> offsets;  // of each parameter
    std::vector<void*> pointers;
    Launch launch;

    LayerNorm(size_t f, std::vector<unsigned> g, std::vector<unsigned> b, unsigned s, py::bytes data, std::vector<size_t> o)
        : function(reinterpret_cast<void*>(f)), grid(g), block(b), shared(s), buffer(data), offsets(o) {
        for (size_t offset : offsets) pointers.push_back(buffer.data() + offset);
        launch = reinterpret_cast<Launch>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel"));
        TORCH_CHECK(launch, "no driver");
    }

    at::Tensor operator()(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
        for (const at::Tensor* tensor : {&x, &weight, &bias})
            TORCH_CHECK(tensor->is_cuda() && tensor->scalar_type() == at::kFloat && tensor->is_contiguous(), "float32");
        TORCH_CHECK(x.dim() == 2 && weight.numel() == x.size(1) && bias.numel() == x.size(1), "shapes");
        at::Tensor y = at::empty_like(x);
        const void* addresses[4] = {x.data_ptr(), weight.data_ptr(), bias.data_ptr(), y.data_ptr()};
        for (int i = 0; i < 4; i++) std::memcpy(pointers[i], &addresses[i], 8);
        c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
        void* stream = guard.getStream(x.device()).native_handle();
        int code = launch(
            function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, stream, pointers.data(), nullptr
        );
        TORCH_CHECK(code == 0, "cuLaunchKernel: ", code);
        return y;
    }
};

PYBIND11_MODULE(ptxkit_torch_extension, m) {
    py::class_<LayerNorm>(m, "LayerNorm")
        .def(py::init<size_t, std::vector<unsigned>, std::vector<unsigned>, unsigned, py::bytes, std::vector<size_t>>())
        .def("__call__", &LayerNorm::operator());
}
"""


def built(folder: Path) -> Any:
    """The module of the extension, compiled in a folder unless it has been; None where there is no g++.

    Raises:
        CalledProcessError: it does not compile.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    from torch.utils.cpp_extension import include_paths

    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / f"{NAME}.cpp", folder / f"{NAME}.so"
    if not library.exists() or source.read_text(encoding="utf-8") != SOURCE:
        _compile(compiler, source, library, include_paths())
    spec = importlib.util.spec_from_file_location(NAME, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compile(compiler: str, source: Path, library: Path, headers: list[str]) -> None:
    """Write the source and compile it; the library is there once it is complete."""
    library.unlink(missing_ok=True)
    source.write_text(SOURCE, encoding="utf-8")
    made = library.with_suffix(".part")
    libraries = Path(torch.__file__).parent / "lib"
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    words = [compiler, "-O1", "-w", "-std=c++20", "-shared", "-fPIC", abi]
    words += [f"-I{path}" for path in (*headers, sysconfig.get_paths()["include"])]
    words += [str(source), f"-L{libraries}", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl", "-o", str(made)]
    subprocess.run(words, check=True)
    made.replace(library)


def layernorm(module: Any, launch: PreparedLaunch, rows: int, cols: int, eps: float = 1e-5) -> Callable[..., torch.Tensor]:
    """The extension's call with the function and the geometry of a prepared launch of ``layernorm:vectorized``."""
    kernel, geometry = launch.kernel, launch.geometry
    values = [0] * (len(kernel.parameters) - 3) + [rows, cols, eps]
    size = max(p.offset + p.size for p in kernel.parameters)
    buffer = bytearray(size)
    for p, value in zip(kernel.parameters, values, strict=True):
        data = np.asarray(value, p.dtype).tobytes() if value else bytes(p.size)
        buffer[p.offset : p.offset + p.size] = data
    offsets = [p.offset for p in kernel.parameters]
    made: Callable[..., torch.Tensor] = module.LayerNorm(
        kernel.handle.value, geometry.grid, geometry.block, geometry.shared, bytes(buffer), offsets
    )
    return made
