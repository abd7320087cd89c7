"""Python files of a user as modules, with exceptions that name their lines."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from ptxkit.errors import DescriptionError, PtxkitError, UnavailableError, UsageError
from ptxkit.workload.blame import mistake, place
from ptxkit.workload.helper_modules import beside


def imported(file: Path, shown: Path) -> ModuleType:
    """A Python file as a module of its own.

    Raises:
        DescriptionError: it raises an exception.
        UnavailableError: it imports a package that is not installed.
    """
    name = f"ptxkit_triton_{hashlib.sha256(os.fsencode(file)).hexdigest()[:12]}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{shown} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with Blamed(file), beside(file):
        spec.loader.exec_module(module)
    return module


class Blamed:
    """A context that turns exceptions of a user's file into errors that name its line."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, KeyboardInterrupt | UnavailableError):
            return
        where = place(error, self.file)
        if isinstance(error, ModuleNotFoundError) and error.name and importlib.util.find_spec(error.name.split(".")[0]) is None:
            package = error.name.split(".")[0]
            raise UnavailableError(f"{where}: {package} is not installed: pip install {package}") from None
        if isinstance(error, PtxkitError):
            raise type(error)(f"{where}: {error}") from None
        raise DescriptionError(f"{where}: {mistake(error)}") from error
