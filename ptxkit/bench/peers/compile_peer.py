"""PyTorch through torch.compile."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from types import FunctionType
from typing import Any

from ptxkit import environment
from ptxkit.bench.peers.tensors import Torch
from ptxkit.bench.peers.torch_ops import TorchOp
from ptxkit.bench.peers.torch_peer import TorchPeer
from ptxkit.files import user_directory

LOGGERS = ("torch._inductor.select_algorithm", "torch._subclasses.fake_tensor")


class CompilePeer(TorchPeer):
    """The functions of the torch peer, compiled for fixed shapes."""

    name = "compile"
    keeps_code = True
    summary = "PyTorch, torch.compile"

    def version(self) -> str:
        """See :meth:`Peer.version`."""
        return f"{super().version()} compiled"

    def made(self, function: Callable[..., Any], definition: TorchOp, torch: Torch) -> Callable[..., Any]:
        """See :meth:`TorchPeer.made`. What torch compiles is kept in ptxkit's cache, if the user names no other directory."""
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(user_directory(environment.CACHE_DIR, "cache") / "torchinductor"))
        compiled: Callable[..., Any] = torch.module.compile(
            _copied(function), dynamic=False, fullgraph=True, mode=definition.mode
        )
        return compiled

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """See :meth:`TorchPeer.warming_up`. Suppresses torch's messages about autotuning, and about sizes that it refuses, for
        which it raises an exception as well."""
        loggers = [logging.getLogger(name) for name in LOGGERS]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            with redirect_stderr(io.StringIO()):
                yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _copied(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of the function with its own code object.

    torch caches compiled code by code object, and falls back to eager mode after eight sets of shapes for one object.
    """
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__.replace(co_name=function.__name__)
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
