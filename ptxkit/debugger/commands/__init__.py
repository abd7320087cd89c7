"""The debugger's commands, named after those of gdb and cuda-gdb. A module for each group; each fills the table."""

from ptxkit.debugger.commands import data, info, points, running, threads
from ptxkit.debugger.commands.interpreter import Interpreter, Reply

__all__ = ["Interpreter", "Reply", "data", "info", "points", "running", "threads"]
