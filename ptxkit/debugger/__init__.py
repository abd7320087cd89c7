"""The debugger for kernels in the emulator, behind ``ptxkit debug`` and :func:`ptxkit.debug`. See docs/debug.md."""

from ptxkit.debugger.api import debug
from ptxkit.debugger.session import Session
from ptxkit.debugger.stop import Stop, ThreadView

__all__ = ["Session", "Stop", "ThreadView", "debug"]
