"""What follows when a failed kernel has made the context of this process unusable.

Every later call of the driver returns the error of that kernel. Destructors of other libraries, which unload modules and free
memory, report it again, each with a traceback, until the process ends.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

_errors: list[str] = []  # names of the errors that made a context unusable, such as CUDA_ERROR_ILLEGAL_INSTRUCTION


def context_lost() -> bool:
    """Whether a kernel has made a context of this process unusable. Its end must not run destructors of CUDA libraries then."""
    return bool(_errors)


def lose_context(message: str) -> None:
    """Enter that a context is unusable; destructors that report the same error are silent from now on.

    Args:
        message: the driver's: ``"CUDA_ERROR_ILLEGAL_INSTRUCTION: an illegal instruction was encountered"``.
    """
    if not _errors:
        _silence_destructors()
    _errors.extend(part for part in message.split(": ") if part not in _errors)


def _silence_destructors() -> None:
    """Cython reports an exception in a destructor twice: to ``sys.excepthook``, and to ``sys.unraisablehook``.

    The former also gets an exception that ends the program, which may be the error of the kernel itself.
    """
    unraisable, uncaught = sys.unraisablehook, sys.excepthook

    def hook(found: sys.UnraisableHookArgs) -> None:
        if not _repeats(found.exc_value):
            unraisable(found)

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        if _left_program(trace) or not _repeats(error):
            uncaught(kind, error, trace)

    sys.unraisablehook, sys.excepthook = hook, report


def _left_program(trace: TracebackType | None) -> bool:
    """Whether an exception has passed the outermost frame of the program: a module's, or that of ``python -m``."""
    return trace is not None and trace.tb_frame.f_code.co_name in ("<module>", "_run_module_as_main")


def _repeats(error: BaseException | None) -> bool:
    return any(text in str(error) for text in _errors)
