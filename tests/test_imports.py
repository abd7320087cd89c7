"""Who may import whom, and how little a start loads. The layers themselves are import-linter's, in pyproject.toml."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
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
    strangers = {f for f in importers(*DRIVER) if not f.startswith(("runtime/gpu/", "cutlass/"))}
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


@pytest.mark.parametrize("statement, most", [("import ptxkit", 60), ("import ptxkit.cli", 130)])
def test_import_loads_few_modules(statement, most):
    """A start is quick when it loads little: the number of modules stands for its time, which depends on the machine."""
    code = f"import sys\nbefore = set(sys.modules)\n{statement}\nprint(len(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= most
