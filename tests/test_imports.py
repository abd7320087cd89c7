"""Import cycles, forbidden imports, and the modules that a start loads. import-linter checks the layers
(pyproject.toml)."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ptxkit"
DRIVER = ("cuda.core", "cuda.bindings.driver", "cuda.bindings.runtime", "cuda.bindings.cufile")
HEAVY = ("numpy", "cuda", "ml_dtypes", "tabulate", "hypothesis", "torch", "dask", "distributed")


@cache
def imported_names(path: Path) -> frozenset[str]:
    """Absolute names of all modules and names that a file imports, at its top or inside its functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports would not be seen here"
            assert node.module
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


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


BELOW_THE_KERNELS = ("workload", "runtime", "compiler", "emulator", "isa", "targets", "files", "arguments", "columns")


def test_packages_below_the_kernels_do_not_import_names_of_the_root():
    """The root offers names of all packages, so that an import of one of them could point upward unseen."""
    roots = [path for name in BELOW_THE_KERNELS for path in (PACKAGE / name, PACKAGE / f"{name}.py") if path.exists()]
    assert len(roots) == len(BELOW_THE_KERNELS)
    offenders = {}
    for path in (p for root in roots for p in (root.rglob("*.py") if root.is_dir() else [root])):
        names = {n.removeprefix("ptxkit.") for n in imported_names(path) if n == "ptxkit" or n.startswith("ptxkit.")}
        own = {n for n in names if "." not in n} - {"__version__"}
        if found := {n for n in own if not (PACKAGE / n).is_dir() and not (PACKAGE / f"{n}.py").exists()}:
            offenders[str(path.relative_to(PACKAGE))] = found
    assert offenders == {}


def import_graph() -> dict[str, set[str]]:
    """Module -> modules of the package that it imports: at its top, inside its functions, or for type checking alone."""
    paths = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {}
    for name, path in paths.items():
        found = set()
        for imported in imported_names(path):
            module = imported
            while module not in paths and "." in module:
                module = module.rpartition(".")[0]
            found.add(module)
        graph[name] = found & set(paths) - {name}
    return graph


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """A cycle, its first module repeated at the end; empty where there is none."""
    finished: set[str] = set()
    for start in sorted(graph):
        if start in finished:
            continue
        way, todo = [start], [(start, iter(sorted(graph[start])))]
        while todo:
            following = next((m for m in todo[-1][1] if m in graph and m not in finished), None)
            if following is None:
                finished.add(todo.pop()[0])
                way.pop()
            elif following in way:
                return [*way[way.index(following) :], following]
            else:
                way.append(following)
                todo.append((following, iter(sorted(graph[following]))))
    return []


def test_no_import_cycle():
    """Without ``ptxkit`` itself, which offers the names of its packages."""
    modules = {module: names for module, names in import_graph().items() if module != "ptxkit"}
    assert len(modules) > 400
    assert " -> ".join(find_cycle(modules)) == ""


@pytest.mark.parametrize(
    "graph, cycle",
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b", "c", "b"]),
        ({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": {"outside"}}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}}, ["a", "b", "c", "a"]),
    ],
)
def test_a_cycle_is_found(graph, cycle):
    assert find_cycle(graph) == cycle


def test_imports_inside_functions_and_for_type_checking_count():
    graph = import_graph()
    assert "ptxkit.emulator.settings" in graph["ptxkit"]  # for type checking alone
    assert "ptxkit.emulator.settings" in graph["ptxkit.cli._options"]  # inside a function


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


@pytest.mark.parametrize("command", [[], ["run"], ["list"], ["doctor"], ["new"], ["cache"], ["cluster"]])
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


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_its_operations_say_what_to_install():
    with pytest.raises(ImportError, match=r"ptxkit.torch needs torch.*pip install 'ptxkit\[torch\]'"):
        importlib.import_module("ptxkit.torch")


def test_only_the_operations_on_tensors_comparisons_and_graphs_import_torch():
    strangers = {f for f in importers("torch") if not f.startswith(("torch/", "bench/", "fusion/", "triton/"))}
    assert not strangers
