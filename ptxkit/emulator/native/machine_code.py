"""Compiles LLVM text to machine code of the host, by llvmlite, and keeps it on disk."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from typing import Any, Protocol

from ptxkit.emulator.native.atomic_code import LOCK
from ptxkit.emulator.native.forms import Form
from ptxkit.emulator.native.runtime import RUN, common, exported, runtime_text

_LOCK = threading.Lock()  # llvmlite's own state is shared
LEAST_LLVM = 20  # that of llvmlite 0.45
QUICK, THOROUGH = 0, 2
"""LLVM's levels for generating code. At the lower one it takes a quarter of the time, and the code twice as long."""


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


@cache
def is_installed() -> bool:
    """Whether llvmlite can be imported; it is not imported here."""
    return find_spec("llvmlite") is not None


@cache
def can_compile() -> bool:
    """Whether llvmlite, which is imported here, can be used; a warning says why not."""
    try:
        version = _llvm().llvm_version_info[0]
        why = "" if version >= LEAST_LLVM else f"it contains LLVM {version}"
    except (ImportError, OSError, RuntimeError) as error:
        why = str(error)
    if why:
        import logging  # imported here, because most runs do not need it

        text = "the emulator executes everything by numpy: llvmlite cannot be used (%s); install llvmlite 0.45 or newer"
        logging.getLogger("ptxkit").warning(text, why)
    return not why


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
    passes.add_simplify_cfg_pass()
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    passes.run(module, llvm.create_pass_builder(machine, options))
    return bytes(machine.emit_object(module))


@cache
def _host(llvm: Any) -> str:
    """Identifies what machine code of this process may consist of."""
    return f"{llvm.llvm_version_info} {llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def _key(text: str, level: int) -> str:
    return blake2b(f"{_host(_llvm())} {level}\n{text}".encode(), digest_size=20).hexdigest()


class _Nothing:
    """Keeps nothing."""

    def get(self, key: str) -> bytes | None:
        """None."""
        return None

    def put(self, key: str, data: bytes) -> None:
        """Forget it."""


def _store() -> Store:
    return _stores[-1]() if _stores else _Nothing()


def _loaded(code: bytes, level: int) -> Any:
    """An engine with an object file."""
    llvm = _llvm()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(llvm, level))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


class _Level:
    """What is loaded of one level.

    Attributes:
        run: address of the function that executes machine code; 0 if it is not loaded.
        forms: addresses of forms, by name.
    """

    def __init__(self, level: int) -> None:
        self.level = level
        self.run = 0
        self.forms: dict[str, int] = {}
        self._runtime: Any = None
        self._engines: dict[str, Any] = {}  # which contain them, by the keys of their object files

    def load_runtime(self, compiles: bool) -> bool:
        """Load the functions that all machine code consists of besides the forms; false if that would need compiling."""
        if self.run:
            return True
        llvm, key, store = _llvm(), _key(runtime_text(), self.level), _store()
        code = store.get(key)
        if code is None:
            if not compiles:
                return False
            code = _object_code(llvm, runtime_text(), self.level)
            store.put(key, code)
        engine = _loaded(code, self.level)
        for name in exported():
            llvm.add_symbol(name, engine.get_function_address(name))
        self._engines[key] = self._runtime = engine
        self.run = engine.get_function_address(RUN)
        return True

    def address(self, name: str) -> int:
        """Where a function is that all machine code shares."""
        return int(self._runtime.get_function_address(name))

    def load(self, forms: Sequence[Form], compiles: bool) -> None:
        """Load forms from the object files that were kept with them, and compile the others together."""
        keys, store = {form.name: _key(f"{common()} {form.text}", self.level) for form in forms}, _store()
        files: dict[str, bytes] = {}  # by key, those with some of the forms
        new, old = [], []
        for form in forms:
            file = store.get(keys[form.name])
            name = "" if file is None else file.decode()
            content = files.get(name) or (store.get(name) if name else None)
            if content is None:
                new.append(form)
            else:
                files[name] = content
                old.append(form)
        if new and compiles:
            text = "\n".join([common(), *(form.text for form in new)])
            name = _key(text, self.level)
            files[name] = _object_code(_llvm(), text, self.level)
            store.put(name, files[name])
            for form in new:
                store.put(keys[form.name], name.encode())
            old += new
        for name, content in files.items():  # two files may contain the same form
            engine = self._engines.get(name)
            if engine is None:
                engine = self._engines[name] = _loaded(content, self.level)
            for form in old:
                self.forms[form.name] = self.forms.get(form.name) or engine.get_function_address(form.name)


_quick, _thorough = _Level(QUICK), _Level(THOROUGH)


def run_function(thorough: bool) -> Callable[[int, int], int]:
    """The function that executes machine code: (address of the context, address of a function's records) -> status.

    Args:
        thorough: it must be of the higher level.
    """
    with _LOCK:
        level = _thorough if _thorough.load_runtime(thorough) else _quick
        level.load_runtime(True)
    found: Callable[[int, int], int] = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(level.run)
    return found


@cache
def lock_function() -> Callable[[int, int], object]:
    """The function by which Python takes and releases the lock of atomics; see :mod:`ptxkit.emulator.memory.atomic_lock`."""
    run_function(False)
    with _LOCK:
        found = _quick if _quick.run else _thorough
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
        locks: Callable[[int, int], object] = kind(found.address(LOCK))
    return locks


def addresses(forms: Mapping[str, Form], thorough: bool) -> Mapping[str, int]:
    """The addresses of forms, which are compiled if they are not kept.

    Args:
        forms: by name.
        thorough: they must be of the higher level; otherwise, those are that are kept.
    """
    run_function(thorough)
    with _LOCK:
        missing = [form for name, form in forms.items() if name not in _thorough.forms]
        if missing:
            _thorough.load(missing, thorough)
        missing = [f for f in missing if f.name not in _thorough.forms and f.name not in _quick.forms]
        if missing:
            _quick.load(missing, True)
        return {name: _thorough.forms.get(name) or _quick.forms[name] for name in forms}


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int)
"""The type of the function that machine code calls: (request, number, first active row) -> how to go on."""
