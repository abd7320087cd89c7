"""Commands of ptxkit in processes of their own, which are forked from a process that has imported the package.

Most tests of the command line need a process for its exit code, its streams, its signals and what it leaves behind, not for the
imports, which take most of the time of a short command. The process that is forked has compiled nothing and opened no device,
so a command starts here in the same state as from a shell after its imports. What concerns the imports themselves, the locale,
or streams that are closed before Python starts needs ``python -m ptxkit``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 120
CLOSED = -1


class Command:
    """A running ``ptxkit`` with the given words; SIGINT interrupts it also if this process ignores it.

    Args:
        words: of the command line after ``ptxkit``.
        cwd: its working directory; by default that of this process.
        env: its whole environment; by default that of this process.
        stdin, stdout, stderr: file descriptors, or CLOSED. By default there is no input, and :meth:`communicate` returns what
            is written.
    """

    def __init__(
        self,
        words: Sequence[object],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        self.words = [str(word) for word in words]
        self.returncode: int | None = None
        closed = [number for number, file in enumerate((stdin, stdout, stderr)) if file == CLOSED]
        request = {
            "words": self.words,
            "cwd": os.fspath(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "closed": closed,
        }
        with contextlib.ExitStack() as theirs:  # descriptors that only the command needs
            self.stdout, out = (None, stdout) if stdout is not None else _piped(theirs)
            self.stderr, err = (None, stderr) if stderr is not None else _piped(theirs)
            if stdin is None:
                stdin = os.open(os.devnull, os.O_RDONLY)
                theirs.callback(os.close, stdin)
            report, reported = os.pipe()
            theirs.callback(os.close, reported)
            streams = [reported if file == CLOSED else file for file in (stdin, out, err)]
            socket.send_fds(_server(), [json.dumps(request).encode()], [*streams, reported])
        self._report = os.fdopen(report)
        self.pid = int(self._report.readline())

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the command has been waited for."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float = LIMIT_S) -> int:
        """The exit code, or the negative number of the signal that ended the command, as ``subprocess`` has it."""
        if self.returncode is None:
            ended = threading.Timer(timeout, os.kill, (self.pid, signal.SIGKILL))
            ended.start()
            status = self._report.readline()
            self._report.close()
            late = ended.finished.is_set()
            ended.cancel()
            if late:
                raise subprocess.TimeoutExpired(self.words, timeout)
            self.returncode = os.waitstatus_to_exitcode(int(status))
        return self.returncode

    def communicate(self, timeout: float = LIMIT_S) -> tuple[str, str]:
        """Wait until the command ends: what it wrote to stdout and to stderr since the last read."""
        texts = ["", ""]

        def read(index: int, file: object) -> None:
            texts[index] = file.read()
            file.close()

        readers = [
            threading.Thread(target=read, args=(index, file))
            for index, file in enumerate((self.stdout, self.stderr))
            if file is not None
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return texts[0], texts[1]


def run(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; ``options`` are those of :class:`Command`."""
    command = Command(words, **options)
    out, err = command.communicate()
    return subprocess.CompletedProcess(["ptxkit", *command.words], command.returncode, out, err)


def _piped(theirs: contextlib.ExitStack) -> tuple[object, int]:
    ours, written = os.pipe()
    theirs.callback(os.close, written)
    return os.fdopen(ours, encoding="utf-8"), written


@functools.cache
def _server() -> socket.socket:
    """The connection with the process that is forked, which ends when this one does."""
    ours, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with served:
        server = subprocess.Popen(
            [sys.executable, __file__, str(served.fileno())],
            pass_fds=[served.fileno()],
            env={**os.environ, "PYTHONPATH": path},
        )
    atexit.register(server.wait)
    atexit.register(ours.close)
    return ours


# The process that is forked


def _import_all() -> None:
    """Import what commands import, with NVRTC, except optional libraries and their users."""
    import ptxkit
    from ptxkit.compiler import toolkit

    optional = ("ptxkit.bench.peers.", "ptxkit.cutlass.", "ptxkit.torch", "ptxkit.__main__")
    for module in pkgutil.walk_packages(ptxkit.__path__, "ptxkit."):
        if not module.name.startswith(optional) and "._data" not in module.name:
            importlib.import_module(module.name)
    toolkit.preload(toolkit.nvrtc())
    import tabulate  # noqa: F401


def _serve(connection: socket.socket) -> dict[str, object]:
    """Fork for each request; returns the request in the process that is to be the command."""
    while True:
        message, files, _, _ = socket.recv_fds(connection, 1 << 20, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            connection.close()
            if _forked_command(files):
                return json.loads(message)
        for file in files:
            os.close(file)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # the processes that reported exit codes
                pass


def _forked_command(files: list[int]) -> bool:
    """Fork the command with these stdin, stdout and stderr: True in it. Its parent reports its pid and status, and ends."""
    *streams, report = files
    pid = os.fork()
    if pid == 0:
        for number, file in enumerate(streams):
            os.dup2(file, number)
        os.closerange(3, max(files) + 1)
        return True
    os.write(report, f"{pid}\n".encode())
    for file in (0, 1, 2, *streams):
        with contextlib.suppress(OSError):
            os.close(file)
    os.write(report, f"{os.waitpid(pid, 0)[1]}\n".encode())
    os._exit(0)


def _become(request: dict[str, object]) -> None:
    """Take the state that ``python -m ptxkit`` has when it has imported the command line."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[0] = request["cwd"]
    sys.argv = ["ptxkit", *request["words"]]
    sys.modules["__main__"].__spec__ = importlib.util.find_spec("ptxkit.__main__")  # multiprocessing looks there
    streams = [  # they are open until the process ends
        open(0, encoding="utf-8", closefd=False),  # noqa: SIM115
        open(1, "w", encoding="utf-8", closefd=False),  # noqa: SIM115
        open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False),  # noqa: SIM115
    ]
    for number in request["closed"]:
        os.close(number)
        streams[number] = None
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = streams


if __name__ == "__main__":
    _import_all()
    gc.freeze()  # the memory of what is imported stays shared
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
    from ptxkit.start import main

    main()
