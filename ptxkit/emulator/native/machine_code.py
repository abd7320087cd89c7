"""Compiles LLVM text to machine code of the host, by llvmlite, and keeps it on disk."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from typing import Any, Protocol

from ptxkit.emulator.native.runtime import exported, runtime_text
from ptxkit.isa.model import Function

_LOCK = threading.Lock()  # llvmlite's own state is shared
QUICK, THOROUGH = 0, 2
"""LLVM's levels for generating code: of a function's blocks, which are many, and of what all of them call."""


class Store(Protocol):
    """Keeps object files under keys that identify their content, such as :class:`ptxkit.compiler.cache.Cache`."""

    def get(self, key: str) -> bytes | None:
        """What is kept under a key."""

    def put(self, key: str, data: bytes) -> None:
        """Keep an object file."""


_stores: list[Callable[[], Store]] = []  # the last one counts


def keep_in(store: Callable[[], Store]) -> None:
    """Let machine code be kept in a store, so that it is not compiled once more by the next process."""
    _stores[:] = [store]


def was_compiled(function: Function) -> bool:
    """Whether machine code of a function has been kept, probably for the same host and kernel."""
    return bool(_stores) and _stores[-1]().get(_name_of(function)) is not None


def note_compiled(function: Function) -> None:
    """Let :func:`was_compiled` be true for a function."""
    if _stores:
        _stores[-1]().put(_name_of(function), b"compiled")


def _name_of(function: Function) -> str:
    text = "\n".join([function.name, *map(str, function.instructions)])
    return blake2b(f"compiled {text}".encode(), digest_size=20).hexdigest()


@cache
def is_installed() -> bool:
    """Whether llvmlite can be imported; it is not imported here."""
    return find_spec("llvmlite") is not None


@cache
def _llvm() -> Any:
    """llvmlite's binding module, initialised for this host."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _machine(llvm: Any, level: int) -> Any:
    """A target machine for this host; each engine owns one."""
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=level,
        jit=True,
    )


def _object_code(llvm: Any, text: str, level: int) -> bytes:
    """The object file of a module."""
    machine = _machine(llvm, level)
    module = llvm.parse_assembly(text)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    # a few passes: LLVM's own pipelines take ten times as long, and gain little for code without inner loops
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    passes.run(module, llvm.create_pass_builder(machine, options))
    return bytes(machine.emit_object(module))


def _engine(llvm: Any, text: str, level: int) -> Any:
    """Machine code of a module that can be called: what is kept of it, or else compiled now."""
    store, key = _stores[-1]() if _stores else None, ""
    code = None
    if store is not None:
        host = f"{llvm.llvm_version_info} {llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()} {level}"
        key = blake2b(f"{host}\n{text}".encode(), digest_size=20).hexdigest()
        code = store.get(key)
    if code is None:
        code = _object_code(llvm, text, level)
        if store is not None:
            store.put(key, code)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(llvm, level))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


@cache
def _runtime() -> Any:
    """The functions that all machine code calls, by their names."""
    llvm = _llvm()
    engine = _engine(llvm, runtime_text(), THOROUGH)
    for name in exported():
        llvm.add_symbol(name, engine.get_function_address(name))
    return engine


class Compiled:
    """Machine code; it lives as long as this object.

    Attributes:
        run: the function ``run``: context -> status; it is at ``address``.
    """

    def __init__(self, text: str) -> None:
        with _LOCK:
            _runtime()
            self._engine = _engine(_llvm(), text, QUICK)
            address = self._engine.get_function_address("run")
        self.address = address
        self.run: Callable[[int], int] = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int)
"""The type of the function that machine code calls: (request, number, first active row) -> how to go on."""
