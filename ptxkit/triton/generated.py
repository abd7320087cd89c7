"""Kernels that torch.compile generates: a file of its cache with one kernel, or the wrapper that launches several.

``TORCH_LOGS=output_code`` names the wrapper of each compiled function. The wrapper is executed on the CPU, with tensors of the
shapes that it was compiled for and with functions in place of those that need a GPU: its launches are recorded, operations of
torch between them run on the CPU. A kernel has the configuration that torch selected on a GPU, if that is still in torch's
cache, else the first one.

The form of these files is that of torch/_inductor/codegen/wrapper.py and torch/_inductor/runtime/triton_heuristics.py.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from ptxkit import environment
from ptxkit.compiler.cache import digest
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.files import read_text, refused, user_directory, write_text
from ptxkit.triton.loading import Blamed, imported
from ptxkit.triton.recorded import Launch, launch_of

_SELECTED = ".best_config"
_PATH = re.compile(r"^# kernel path: (\S+)\n(?:#.*\n)*(\w+) = async_compile\.triton", re.MULTILINE)
_COMPILER_OPTIONS = ("num_warps", "num_stages")


def is_wrapper(text: str) -> bool:
    """Whether a file is a wrapper of torch.compile, which contains kernels as texts."""
    return "AsyncCompile()" in text and "async_compile.triton(" in text


def is_kernel(text: str) -> bool:
    """Whether a file is a kernel of torch.compile."""
    return "torch._inductor.runtime" in text and "triton_heuristics" in text


def is_generated(layer: Any) -> bool:
    """Whether an object is a kernel that torch.compile has decorated."""
    return type(layer).__name__ in ("CachingAutotuner", "DebugAutotuner") and hasattr(layer, "triton_meta")


def fixed(layer: Any) -> dict[str, Any]:
    """Types, constants and options that the decorator fixes, by name."""
    meta = layer.triton_meta
    names = [p.name for p in layer.fn.params]
    config = _config(layer)
    marked = _divisible(meta.get("configs", ()), names)
    found: dict[str, Any] = dict(config)
    for name, word in meta["signature"].items():
        if word != "constexpr":
            found[name] = f"{word}:16" if name in marked else word
    for key, value in meta.get("constants", {}).items():
        found[key if isinstance(key, str) else names[key[0] if isinstance(key, tuple) else key]] = value
    return found


def _divisible(configs: Sequence[Any], names: Sequence[str]) -> set[str]:
    """Names of the parameters that are multiples of 16."""
    if not configs or not isinstance(configs[0], Mapping):
        return set()
    return {
        names[key[0]]
        for key, marks in configs[0].items()
        if any(tuple(mark) == ("tt.divisibility", 16) for mark in marks)
    }


def _config(layer: Any) -> dict[str, Any]:
    """The constants and options of the configuration that torch selected, or of the first one."""
    config = layer.configs[0]
    chosen = {**config.kwargs, **{n: getattr(config, n) for n in _COMPILER_OPTIONS}}
    file = getattr(layer, "filename", None)
    if file and (beside := Path(file).with_suffix(_SELECTED)).is_file():
        saved = json.loads(beside.read_text(encoding="utf-8"))
        chosen |= {n: v for n, v in saved.items() if n in chosen}
    return chosen


def load(file: Path, shown: Path, launches: list[Launch]) -> tuple[ModuleType, dict[str, Any]]:
    """A wrapper as a module, and its kernels by name; its launches are appended.

    Raises:
        UsageError: the file has no function ``call``, or no ``get_args``, as those of old versions of torch.
        DescriptionError: one of them raises an exception; the message has its line.
    """
    kernels: dict[str, Any] = {}
    paths = {name: path for path, name in _PATH.findall(read_text(file))}

    def made(_: Any, name: str, source: str, device_str: str = "cuda", **__: Any) -> Any:
        layer = _kernel(name, source)
        layer.filename = paths.get(name)
        kernels[name] = _Recorder(layer, launches)
        return kernels[name]

    with without_gpu(made):
        module = imported(file, shown)
        missing = next((n for n in ("call", "get_args") if not callable(getattr(module, n, None))), None)
        if missing is not None:
            raise UsageError(f"{shown} has no function {missing}(); wrappers of torch 2.9 and later have one")
        with Blamed(file):
            module.call(list(module.get_args()))
    return module, {name: recorder.layer for name, recorder in kernels.items()}


class _Recorder:
    """Takes the place of a kernel in a wrapper."""

    def __init__(self, layer: Any, launches: list[Launch]) -> None:
        self.layer = layer
        self._launches = launches

    def run(self, *args: Any, stream: Any = None, **keywords: Any) -> None:
        """Record a launch."""
        from torch._inductor.runtime.triton_heuristics import GridExpr

        config = _config(self.layer)
        given = {n: v for n, v in {**config, **keywords}.items() if n in self.layer.fn.arg_names}
        names = [n for n in self.layer.fn.arg_names if n not in given]
        values = {**dict(zip(names, args, strict=False)), **given}
        grid = GridExpr.from_meta(self.layer.inductor_meta, self.layer.configs[0], mode="python").eval_slow(values)
        options = {n: config[n] for n in _COMPILER_OPTIONS}
        self._launches.append(launch_of(self.layer.fn, args, {**given, **options}, tuple(grid)))


def _kernel(name: str, source: str) -> Any:
    """The decorated function of a kernel's text."""
    # the path, which becomes part of the line table, is the same in each process
    directory = user_directory(environment.CACHE_DIR, "cache") / "triton" / digest(source.encode())[:16]
    path = directory / f"{name}.py"
    if not path.is_file():
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refused(f"the directory {directory} of Triton's sources", error, "make") from error
        write_text(path, source)
    return getattr(imported(path, path), name)


@contextmanager
def without_gpu(triton: Callable[..., Any] | None = None) -> Iterator[None]:
    """A context in which code of torch.compile runs on the CPU; ``triton`` takes the texts of kernels.

    Raises:
        UnavailableError: torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError("code that torch.compile generates needs torch, which is not installed: pip install torch")
    import torch
    import torch._dynamo.testing
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.runtime import triton_helpers

    rand = torch._dynamo.testing.rand_strided

    def rand_strided(size: Any, stride: Any, dtype: Any = torch.float32, device: Any = None, **more: Any) -> Any:
        return rand(size, stride, dtype=dtype, device="cpu", **more)

    def empty_strided(size: Any, stride: Any, dtype: Any) -> Any:
        return torch.empty_strided(size, stride, dtype=dtype)

    replaced: tuple[tuple[Any, str, Any], ...] = (
        (AsyncCompile, "triton", triton),
        (AsyncCompile, "wait", lambda *_: None),
        (triton_helpers, "set_driver_to_gpu", lambda: None),
        (torch._C, "_cuda_getCurrentRawStream", lambda _: 0),
        (torch._C._dynamo.guards, "_empty_strided_cuda", empty_strided),
        (torch._dynamo.testing, "rand_strided", rand_strided),
        (torch.cuda, "_DeviceGuard", lambda _: nullcontext()),
        (torch.cuda, "set_device", lambda _: None),
    )
    with ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(_attribute(owner, name, value))
        yield


@contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """A context in which an attribute has another value."""
    absent = object()
    before = owner.__dict__.get(name, absent) if hasattr(owner, "__dict__") else getattr(owner, name, absent)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is absent:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
