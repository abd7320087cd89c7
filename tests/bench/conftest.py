"""Sample results for tests without a GPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the sample results; tests are imported without their directory

from ptxkit_bench_samples import make_results


@pytest.fixture
def results():
    return make_results()


@pytest.fixture(scope="session")
def load_script() -> Callable[[str], ModuleType]:
    """Imports a file of scripts/ by its name, without ``.py``."""

    def load(name: str) -> ModuleType:
        path = Path(__file__).parents[2] / "scripts" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up there
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def started(monkeypatch) -> list[subprocess.Popen[bytes]]:
    """The processes that are started during the test."""
    found = []
    original = subprocess.Popen

    def start(*arguments, **options):
        found.append(original(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return found
