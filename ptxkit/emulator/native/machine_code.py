"""Compiles LLVM text to machine code of the host, by llvmlite."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

_LOCK = threading.Lock()  # llvmlite's own state is shared
OPTIMISATION = 1
"""LLVM's level for generating code."""


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


class Compiled:
    """Machine code; it lives as long as this object.

    Attributes:
        run: the function ``run``: context -> status.
    """

    def __init__(self, text: str) -> None:
        with _LOCK:
            llvm = _llvm()
            # each engine owns its target machine
            machine = llvm.Target.from_default_triple().create_target_machine(
                cpu=llvm.get_host_cpu_name(),
                features=llvm.get_host_cpu_features().flatten(),
                opt=OPTIMISATION,
                jit=True,
            )
            module = llvm.parse_assembly(text)
            module.triple = machine.triple
            module.data_layout = str(machine.target_data)
            # a few passes: LLVM's own pipelines take ten times as long, and gain little for code without inner loops
            passes = llvm.create_new_module_pass_manager()
            passes.add_always_inliner_pass()
            passes.add_sroa_pass()
            passes.add_instruction_combine_pass()
            passes.add_simplify_cfg_pass()
            options = llvm.create_pipeline_tuning_options(speed_level=OPTIMISATION)
            passes.run(module, llvm.create_pass_builder(machine, options))
            self._engine = llvm.create_mcjit_compiler(module, machine)
            self._engine.finalize_object()
            address = self._engine.get_function_address("run")
        self.run: Callable[[int], int] = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)
"""The type of the function that machine code calls: (segment, first active row) -> how to go on."""
