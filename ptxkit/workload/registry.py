"""Finding kernels by name: the bundled descriptions, those of installed packages, and a user's own file.

Kernels are not listed in a file: each module below ``ptxkit/kernels/`` that defines a :class:`Workload` is a kernel, and so is
each class or module that a package offers under the entry point group ``ptxkit.kernels``, as ``ptxkit.cutlass`` does.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from ptxkit.errors import DescriptionError, PtxkitError, UsageError
from ptxkit.files import read_text
from ptxkit.workload.blame import mistake, place
from ptxkit.workload.helper_modules import beside
from ptxkit.workload.workload import Workload, suggestion

ENTRY_POINT_GROUP = "ptxkit.kernels"
CATALOGUE = "ptxkit.kernels"  # the package that holds the bundled descriptions, in sub-packages by family
FILE_MODULE = "_ptxkit_"  # prefix of the names of modules that are read from a user's file


def names() -> tuple[str, ...]:
    """The names of all kernels, sorted.

    Raises:
        DescriptionError: two have the same name, or a description cannot be imported.
    """
    return tuple(sorted({**_bundled(), **_offered()}))


def get(name: str) -> type[Workload]:
    """The description called ``name``.

    Raises:
        UsageError: no such kernel; the message names similar ones.
    """
    for file in _description_files():
        if file.stem == name:  # imports one module instead of all
            for workload in _described(_imported(file)):
                if workload.name == name:
                    return workload
    known = {**_bundled(), **_offered()}
    if name not in known:
        if Path(name).suffix in (".cu", ".ptx"):
            raise UsageError(
                f"{name} is not a description; give a kernel's name or a .py file (ptxkit new NAME writes one)"
            )
        beside = [f"./{name}{suffix}" for suffix in (".py", ".cu", ".ptx") if Path(f"{name}{suffix}").is_file()]
        if beside:
            raise UsageError(f"there is no kernel {name!r}; to run a file, give its path: {beside[0]}")
        kernel, _, variant = name.partition(":")
        if kernel in known and variant:
            raise UsageError(f"{name!r} names a variant: give the kernel, {kernel}, and the option --variant {variant}")
        raise UsageError(f"there is no kernel {name!r}; {suggestion(name, sorted(known))}")
    return known[name]


def find(name: str) -> type[Workload]:
    """The description called ``name``, or the one in the file ``name`` if that ends in ``.py``.

    Raises:
        UsageError, DescriptionError: see :func:`get` and :func:`load_file`.
    """
    return load_file(name) if name.endswith(".py") else get(name)


def group_of(kernel: type[Workload]) -> str:
    """The group of a kernel: the folder of the catalogue that holds its description, or the package that offers it.

    Kernels directly in the catalogue are in the group ``"other"``, and descriptions in files of a user in the group ``"file"``.
    """
    parts = kernel.__module__.split(".")
    catalogue = CATALOGUE.split(".")
    if parts[: len(catalogue)] == catalogue:
        return parts[len(catalogue)] if len(parts) > len(catalogue) + 1 else "other"
    if parts[0].startswith(FILE_MODULE):
        return "file"
    return parts[1] if parts[0] == catalogue[0] and len(parts) > 1 else parts[0]


def groups() -> dict[str, tuple[str, ...]]:
    """Group -> the names of its kernels; both sorted.

    Raises:
        DescriptionError: see :func:`names`.
    """
    found: dict[str, list[str]] = {}
    for name in names():
        found.setdefault(group_of(get(name)), []).append(name)
    return {group: tuple(found[group]) for group in sorted(found)}


def is_pattern(word: str) -> bool:
    """Whether a word of a command line is a pattern of names, such as ``attention*``, rather than a name or a file."""
    return bool(set(word) & set("*?[")) and "/" not in word and not word.endswith((".py", ".cu", ".ptx"))


def selected(words: Iterable[str] = (), within: Iterable[str] = ()) -> tuple[str, ...]:
    """The kernels that words name: names and files stay, a pattern stands for every name that it matches.

    Args:
        words: names, files, or patterns of the shell (``*``, ``?``, ``[ab]``), each perhaps with ``:VARIANT``; none for all.
        within: keep only kernels of these groups; none for all.

    Raises:
        UsageError: a pattern matches no name, there is no such group, or nothing is left of what the words name.
    """
    wanted = tuple(dict.fromkeys(within))
    known = groups() if wanted else {}
    for group in wanted:
        if group not in known:
            raise UsageError(f"there is no group {group!r}; groups are {', '.join(known)}")
    members = tuple(name for group in wanted for name in known[group])
    given = tuple(words)
    found: list[str] = []
    for word in given or members or names():
        name, colon, variant = word.partition(":")
        matches = fnmatch.filter(names(), name) if is_pattern(word) else [name]
        if not matches:
            raise UsageError(f"no kernel matches {name!r}; {suggestion(name.strip('*?'), names())}")
        found += [f"{match}{colon}{variant}" for match in matches]
    kept = [word for word in dict.fromkeys(found) if not wanted or group_of(find(word.partition(":")[0])) in wanted]
    if not kept:
        of = f"group {wanted[0]}, which has" if len(wanted) == 1 else f"groups {', '.join(wanted)}, which have"
        raise UsageError(f"none of {', '.join(given)} is in the {of} {', '.join(members)}")
    return tuple(kept)


def is_bundled(workload: Workload) -> bool:
    """Whether the description is a bundled one; a user's description may have the same name as a bundled kernel."""
    module = type(workload).__module__
    return module.startswith(f"{CATALOGUE}.") and module.endswith(f".{workload.name}")


def load_file(path: str | Path) -> type[Workload]:
    """The description in a user's ``.py`` file. Its source is searched for in the same directory.

    Raises:
        UsageError: no such file.
        DescriptionError: the file cannot be imported (the message has its line), or does not define one Workload.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise UsageError(missing_file(path))
    try:
        read_text(file)  # reports bytes that are not text, with their line
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    # Each path has its own module name, so that two files called mine.py do not replace each other in sys.modules.
    module_name = f"{FILE_MODULE}{hashlib.sha256(os.fsencode(file)).hexdigest()[:12]}_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # get_type_hints looks modules up there
    try:
        with beside(file):
            spec.loader.exec_module(module)
    except DescriptionError as error:
        raise DescriptionError(f"{place(error, file)}: {error}") from None
    except (PtxkitError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise DescriptionError(f"{place(error, file)}: {mistake(error)}") from error
    found = _described(module)
    if len(found) != 1:
        what = ", ".join(w.__name__ for w in found) or "none"
        raise DescriptionError(f"{path} must define one Workload; it defines {what}")
    return found[0]


def missing_file(path: str | Path) -> str:
    """Why a path is not a description file, as a message."""
    file, (start, colon, variant) = Path(path), str(path).rpartition(":")
    if colon and Path(start).is_file():
        return f"there is no file {path}; for one variant of a file give {start} --variant {variant}"
    if file.is_dir():
        return f"{path} is a directory; give the .py file of a description"
    if file.is_symlink():
        return f"{path} is a link that leads to no file"
    near = difflib.get_close_matches(file.name, _neighbours(file), n=1, cutoff=0.75)
    return f"there is no file {path}" + (f"; did you mean {file.with_name(near[0])}?" if near else "")


def _neighbours(file: Path) -> list[str]:
    try:
        return [p.name for p in file.parent.iterdir() if p.suffix == file.suffix]
    except OSError:
        return []


@functools.cache
def _bundled() -> dict[str, type[Workload]]:
    found: dict[str, type[Workload]] = {}
    for file in _description_files():
        for workload in _described(_imported(file)):
            if workload.name in found:
                raise DescriptionError(f"two kernels are called {workload.name}; {file.name} defines the second")
            if workload.name != file.stem:
                raise DescriptionError(f"{file.name} describes {workload.name}: file and kernel must have one name")
            found[workload.name] = workload
    return found


@functools.cache
def _offered() -> dict[str, type[Workload]]:
    """The kernels of other packages; an entry point names a Workload or a module that defines some."""
    from importlib.metadata import entry_points

    found: dict[str, type[Workload]] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            value = point.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            what = f"entry point {point.name} = {point.value} cannot be loaded"
            raise DescriptionError(f"{what}: {mistake(error)}") from error
        described = _described(value) if isinstance(value, ModuleType) else [value]
        for workload in described:
            if not (isinstance(workload, type) and issubclass(workload, Workload)):
                raise DescriptionError(
                    f"entry point {point.name} = {point.value} is neither a Workload nor a module that defines one"
                )
            if workload.name in found or workload.name in _bundled():
                raise DescriptionError(f"two kernels are called {workload.name}; {point.value} is the second")
            found[workload.name] = workload
    return found


@functools.cache
def _description_files() -> tuple[Path, ...]:
    """The modules of the catalogue, in alphabetical order of their names."""
    return tuple(sorted((f for f in _catalogue().rglob("*.py") if f.stem != "__init__"), key=lambda file: file.stem))


def _imported(file: Path) -> ModuleType:
    return importlib.import_module(".".join((CATALOGUE, *file.relative_to(_catalogue()).with_suffix("").parts)))


def _catalogue() -> Path:
    return Path(__file__).parents[1].joinpath(*CATALOGUE.split(".")[1:])


def _described(module: ModuleType) -> list[type[Workload]]:
    """The workloads with variants that ``module`` itself defines; those without variants are base classes."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Workload)
        and value.__module__ == module.__name__
        and value.variants()
    ]
