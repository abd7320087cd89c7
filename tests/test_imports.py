"""Who may import whom, and how quickly the package starts. The layers themselves are import-linter's, in pyproject.toml."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ptxkit"
DRIVER = ("cuda.core", "cuda.bindings.driver", "cuda.bindings.runtime", "cuda.bindings.cufile")
HEAVY = ("numpy", "cuda", "ml_dtypes", "tabulate", "hypothesis", "torch")


def imported_names(path: Path) -> set[str]:
    """Absolute names of everything a file imports, at its top or inside its functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def importers(*prefixes: str) -> set[str]:
    """Package files, relative, that import a name with one of the prefixes."""
    return {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(n == p or n.startswith(p + ".") for n in imported_names(path) for p in prefixes)
    }


def test_only_the_gpu_device_and_cutlass_touch_the_driver():
    strangers = {f for f in importers(*DRIVER) if f != "runtime/gpu.py" and not f.startswith(("runtime/gpu_", "cutlass/"))}
    assert not strangers


def test_click_is_imported_by_the_command_line_alone():
    assert {f for f in importers("click") if not f.startswith("cli/")} == set()
    assert "cli/__init__.py" in importers("click")


def test_layers():
    if importlib.util.find_spec("importlinter") is None:
        pytest.skip("import-linter is not installed; make lint installs and runs it")
    done = subprocess.run([Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("statement", ["import ptxkit", "import ptxkit.cli", "import ptxkit.errors"])
def test_import_starts_nothing_heavy(statement):
    code = f"{statement}\nimport sys\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", [[], ["run"], ["list"], ["doctor"], ["new"], ["cache"]])
def test_help_starts_nothing_heavy(command):
    code = (
        "import sys\nfrom ptxkit.cli import main\n"
        f"try:\n    main({[*command, '--help']!r})\nexcept SystemExit as e:\n    assert not e.code\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: ptxkit")
    assert done.stdout.splitlines()[-1] == "[]"


def fastest_ms(*args: str) -> float:
    """The best of several starts, less the interpreter's own, so that a busy machine does not fail the test."""

    def best(command: list[str]) -> float:
        times = []
        for _ in range(7):
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - start)
        return 1e3 * min(times)

    return best([sys.executable, *args]) - best([sys.executable, "-c", "pass"])


def test_import_takes_less_than_50_ms():
    assert fastest_ms("-c", "import ptxkit") < 50


def test_help_takes_less_than_200_ms():
    assert fastest_ms("-m", "ptxkit", "--help") < 200
