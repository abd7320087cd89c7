"""A process that executes functions one after another for this one, keeps a state between them, and may die or hang alone."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from ptxkit.errors import FaultError, PtxkitError, TimeLimitError
from ptxkit.processes.interrupts import interrupts_blocked
from ptxkit.processes.orphans import end_with

START_S = 300.0  # to import, open the device and make the state


class ChildDied(PtxkitError):
    """The process ended while it executed a function."""


class Child:
    """One process; it is started by the first request, and again after it has ended.

    Args:
        make: called in the process with ``arguments``; returns the state that functions get as their first argument.
        gpu: whether the process sees the GPU of this one; else it sees none.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any, gpu: bool) -> None:
        self._make, self._arguments, self._gpu = make, arguments, gpu
        self._process: Any = None
        self._pipe: Connection | None = None
        self._lock = threading.Lock()
        self._over = False

    def ask(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        limit_s: float | None = None,
        take: Callable[[Any], None] | None = None,
    ) -> Any:
        """Execute ``function(state, *arguments)`` in the process and return its result.

        Args:
            limit_s: how long it may take. take: called with each value that the function sends before its result; the function
                then gets one more argument, which sends a value, and the limit is for each of them.

        Raises:
            PtxkitError: what the function, or making the state, raised.
            TimeLimitError: it was not done within ``limit_s``. ChildDied: the process ended. Another request starts it again.
        """
        pipe = self._started()
        self._exchange(pipe.send, (function, arguments, take is not None))
        while True:
            if not self._exchange(pipe.poll, limit_s):
                self.stop()
                raise TimeLimitError(f"not done within {limit_s:g} s; its process was ended")
            done, found = self._exchange(pipe.recv)
            if done is None and take is not None:
                take(found)
            elif done:
                return found
            else:
                raise found

    def _exchange(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the pipe.

        Raises:
            ChildDied: the process has ended.
        """
        try:
            return call(*arguments)
        except (EOFError, OSError):
            raise ChildDied(f"its process ended{self._how()}; is there enough memory?") from None

    def stop(self) -> None:
        """End the process, also during a request; the next request starts another one."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()

    def end(self) -> None:
        """End the process for good; from any thread."""
        self._over = True
        self.stop()

    def _how(self) -> str:
        """How the process ended, in words, and forget it."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return ""
        process.join(5)
        code = process.exitcode
        return (
            f" by signal {signal.Signals(-code).name}" if code is not None and code < 0 else f" with exit code {code}"
        )

    def _started(self) -> Connection:
        with self._lock:
            if self._over:
                raise FaultError("the command has ended")
            if self._process is None:
                context = multiprocessing.get_context("spawn")
                self._pipe, theirs = context.Pipe()
                arguments = (theirs, os.getpid(), self._gpu, self._make, self._arguments)
                self._process = context.Process(target=_serve, args=arguments, daemon=False)
                with interrupts_blocked():
                    self._process.start()
                theirs.close()
                fresh = True
            else:
                fresh = False
            pipe = self._pipe
        assert pipe is not None
        if fresh:
            try:
                if not pipe.poll(START_S):
                    self.stop()
                    raise TimeLimitError(f"its process was not ready within {START_S:g} s")
                error = pipe.recv()
            except (EOFError, OSError):
                raise ChildDied(f"its process ended{self._how()} before it was ready") from None
            if error is not None:
                self.stop()
                raise error
        return pipe


def _serve(pipe: Connection, parent: int, gpu: bool, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The main function of the process: answers requests until the pipe closes or its parent process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    end_with(parent)
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    if not gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        state = make(*arguments)
    except (PtxkitError, MemoryError) as error:
        pipe.send(_sendable(error))
        return
    pipe.send(None)
    while True:
        try:
            function, given, sends = pipe.recv()
        except EOFError:
            return
        try:
            more = (partial(_send, pipe),) if sends else ()
            answer: tuple[bool, Any] = True, function(state, *given, *more)
        except (PtxkitError, MemoryError) as error:
            answer = False, _sendable(error)
        pipe.send(answer)


def _send(pipe: Connection, value: Any) -> None:
    """Send a value before the result."""
    pipe.send((None, value))


def _sendable(error: BaseException) -> PtxkitError:
    """An error that another process can read: itself, or one with its text and exit code."""
    if not isinstance(error, PtxkitError):
        return FaultError(f"too little memory: {error}" if str(error) else "too little memory")
    try:
        again = pickle.loads(pickle.dumps(error))
        if type(again) is type(error) and str(again) == str(error):
            return error
    except (TypeError, AttributeError, pickle.PicklingError):
        pass
    plain = PtxkitError(str(error))
    plain.exit_code = error.exit_code
    return plain
