"""Surveys of folders: every .cu and .ptx file in them is compiled, and gets a verdict with its reason.

Each job has a process of its own (:mod:`.survey_worker`), which is replaced when a file crashes it or takes too long.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from ptxkit.compiler.child import environment_of_children, how_it_ended
from ptxkit.compiler.sources import SOURCE_SUFFIXES
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.exit_codes import ExitCode, most_severe
from ptxkit.source_run.survey_reasons import PART, PLATFORM, Failure, Reason, crashed, timed_out, with_directories

SCHEMA = "ptxkit.survey/2"
HEADER_SUFFIXES = (".h", ".cuh", ".hpp", ".hxx", ".inl", ".inc")
PROGRAM = "ptxkit.source_run.survey_worker"
START_S = 120.0
"""Limit for a process to become ready, before the first file."""


class Verdict(Enum):
    """What became of a file."""

    UNTOUCHED = "compiles untouched"
    WITHOUT_HOST_CODE = "compiles with host code left out"
    NO_DEVICE_CODE = "no device code"
    PART = "part of another source"
    OTHER_PLATFORM = "for another platform"
    FAILS = "fails"


APART = {PART: Verdict.PART, PLATFORM: Verdict.OTHER_PLATFORM}
"""The reasons of sources that no CUDA compiler compiles alone, so that they count as no failures."""


@dataclass(frozen=True)
class Surveyed:
    """One file of a survey.

    Attributes:
        file: its path, as the folder was given.
        verdict: what became of it.
        kernels: of the compiled file. templates: that the source defines, if it has no kernel until one is instantiated.
        seconds: until the verdict was known. from_cache: the result was in the compile cache, so that they say little.
        target: it was compiled for; "" where that is not known.
        left_out: what was left out as host code, such as ``"3 functions"``.
        error: the first error; "" without one. reason: a few words that a summary counts. hint: what to do about it.
        exit_code: of ``ptxkit run`` for a file that fails.
    """

    file: str
    verdict: Verdict
    kernels: int = 0
    templates: int = 0
    seconds: float = 0.0
    from_cache: bool = False
    target: str = ""
    left_out: str = ""
    error: str = ""
    reason: str = ""
    hint: str = ""
    exit_code: int = 0

    @property
    def compiles(self) -> bool:
        """Whether it has device code that compiles."""
        return self.verdict in (Verdict.UNTOUCHED, Verdict.WITHOUT_HOST_CODE)

    @property
    def is_complete_source(self) -> bool:
        """Whether it is a CUDA source of its own with device code: the files of which the share that compiles is stated."""
        return self.compiles or self.verdict is Verdict.FAILS

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**vars(self), "verdict": self.verdict.name.lower()}


@dataclass(frozen=True)
class Settings:
    """How the files are compiled.

    Attributes:
        target: None for sm_90a, and for the target that a PTX file names.
        include_dirs, defines, options: for ``.cu`` files.
        limit_s: for one file. jobs: the number of processes.
    """

    target: str | None = None
    include_dirs: tuple[str, ...] = ()
    defines: Mapping[str, str | None] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    limit_s: float = 120.0
    jobs: int = 1


@dataclass(frozen=True)
class Found:
    """What lies in folders.

    Attributes:
        sources: the files to compile, in the order of the folders, sorted within each.
        headers: file name -> the headers with this name.
        unreadable: directories that cannot be read, each with the reason.
    """

    sources: tuple[Path, ...]
    headers: Mapping[str, Sequence[Path]]
    unreadable: tuple[str, ...] = ()


def find(folders: Iterable[str]) -> Found:
    """The sources and headers in folders and the folders below; hidden directories such as ``.git`` are left out.

    Args:
        folders: directories, or single .cu and .ptx files.

    Raises:
        UsageError: a folder does not exist, or is a file of another kind; or there is no source in any.
    """
    folders = tuple(folders)
    sources: dict[str, Path] = {}
    headers: dict[str, list[Path]] = {}
    unreadable: list[str] = []

    def complain(error: OSError) -> None:
        unreadable.append(f"{error.filename}: {error.strerror}")

    suffixes = tuple(f".{suffix}" for suffix in SOURCE_SUFFIXES)
    for folder in folders:
        path = Path(folder)
        if path.is_file() and path.suffix in suffixes:
            sources.setdefault(os.path.realpath(path), path)
            continue
        if not path.is_dir():
            what = "is no folder, and no .cu or .ptx file" if path.exists() else "does not exist"
            raise UsageError(f"{folder} {what}; name folders that hold .cu or .ptx files")
        for where, below, names in os.walk(path, onerror=complain):
            below[:] = sorted(name for name in below if not name.startswith("."))
            for name in sorted(names):
                file = Path(where) / name
                if file.suffix in suffixes and file.is_file():
                    sources.setdefault(
                        os.path.realpath(file), file
                    )  # a link to a file that is there already adds nothing
                elif file.suffix in HEADER_SUFFIXES:
                    headers.setdefault(name, []).append(file)
    if not sources:
        why = f" ({unreadable[0]})" if unreadable else ""
        raise UsageError(f"there is no .cu or .ptx file in {', '.join(folders)}{why}")
    return Found(tuple(sources.values()), headers, tuple(unreadable))


@dataclass
class Survey:
    """The files of a survey and what became of them.

    Args:
        found: of :func:`find`. settings: how to compile.
    """

    found: Found
    settings: Settings
    seconds: float = 0.0
    _done: dict[Path, Surveyed] = field(default_factory=dict)

    @property
    def files(self) -> tuple[Surveyed, ...]:
        """The files with a verdict, in the order of the folders; also after an interruption."""
        return tuple(self._done[file] for file in self.found.sources if file in self._done)

    @property
    def is_complete(self) -> bool:
        """Whether every file has a verdict."""
        return len(self._done) == len(self.found.sources)

    @property
    def exit_code(self) -> ExitCode:
        """That of the most serious failure; ``DONE`` if every file compiles or has no device code."""
        return most_severe(file.exit_code for file in self.files)

    def run(self, say: Callable[[str], None] = lambda text: None) -> None:
        """Compile the files. Whatever ends it, :attr:`files` has the verdicts that are known by then.

        Args:
            say: shows progress.

        Raises:
            UnavailableError: the processes that compile do not start.
        """
        begin = time.perf_counter()
        waiting: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for file in self.found.sources:
            waiting.put(file)
        answers: queue.SimpleQueue[tuple[Path, Surveyed] | BaseException] = queue.SimpleQueue()
        jobs = max(1, min(self.settings.jobs, len(self.found.sources)))
        workers = [_Worker() for _ in range(jobs)]
        threads = [threading.Thread(target=self._work, args=(w, waiting, answers), daemon=True) for w in workers]
        try:
            for thread in threads:
                thread.start()
            while not self.is_complete:
                say(f"{len(self._done)} of {len(self.found.sources)} files")
                got = answers.get()
                if isinstance(got, BaseException):
                    raise got
                self._done[got[0]] = got[1]
        finally:
            for worker in workers:
                worker.end()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            self.seconds = time.perf_counter() - begin

    def _work(self, worker: _Worker, waiting: queue.SimpleQueue[Path], answers: queue.SimpleQueue[Any]) -> None:
        """Compile files in one process until none is left; the function of a thread."""
        try:
            while not worker.is_over:
                try:
                    file = waiting.get_nowait()
                except queue.Empty:
                    return
                answers.put((file, self._verdict(file, worker)))
        except Exception as error:  # noqa: BLE001  # the main thread raises it
            answers.put(error)
        finally:
            worker.end()

    def _verdict(self, file: Path, worker: _Worker) -> Surveyed:
        settings = self.settings
        asked = {
            "file": str(file),
            "target": settings.target,
            "include_dirs": list(settings.include_dirs),
            "defines": dict(settings.defines),
            "options": list(settings.options),
            "limit_s": settings.limit_s,
        }
        begin = time.perf_counter()
        got = worker.ask(asked, settings.limit_s)
        if isinstance(got, Failure):
            code = ExitCode.TIME_LIMIT if got == timed_out(settings.limit_s) else ExitCode.INTERNAL
            seconds = time.perf_counter() - begin
            return Surveyed(
                str(file), Verdict.FAILS, seconds=seconds, error=got.message, reason=got.reason.name, hint=got.reason.hint,
                exit_code=int(code),
            )  # fmt: skip
        headers = tuple(got.pop("headers", ()))
        reason = with_directories(Reason(got.pop("reason", ""), got.pop("hint", ""), headers), self.found.headers)
        verdict = Verdict[got.pop("verdict").upper()]
        if verdict is Verdict.FAILS and reason.name in APART:
            verdict = APART[reason.name]
            got["exit_code"] = int(ExitCode.DONE)
        return Surveyed(str(file), verdict, reason=reason.name, hint=reason.hint, **got)

    def shares(self, of: Callable[[Surveyed], str]) -> dict[str, tuple[int, float]]:
        """Name -> (number of files, share of all files), the most frequent first; files with the name "" are not counted."""
        files = self.files
        counts: dict[str, int] = {}
        for file in files:
            if name := of(file):
                counts[name] = counts.get(name, 0) + 1
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return {name: (count, count / len(files)) for name, count in ordered}

    def to_json(self, folders: Sequence[str]) -> dict[str, Any]:
        """The survey as JSON values (ptxkit.survey/2).

        Args:
            folders: as they were given.
        """

        def counted(of: Callable[[Surveyed], str]) -> dict[str, Any]:
            return {name: {"files": n, "share": share} for name, (n, share) in self.shares(of).items()}

        settings = self.settings
        return {
            "schema": SCHEMA,
            "folders": list(folders),
            "target": settings.target,
            "include_dirs": list(settings.include_dirs),
            "defines": dict(settings.defines),
            "timeout_s": settings.limit_s,
            "complete": self.is_complete,
            "found": len(self.found.sources),
            "seconds": self.seconds,
            "verdicts": counted(lambda file: file.verdict.name.lower()),
            "reasons": counted(lambda file: file.reason),
            "unreadable": list(self.found.unreadable),
            "files": [file.to_json() for file in self.files],
        }


class _Worker:
    """A process that compiles files; it is started when it is first asked, and again after it ended."""

    def __init__(self) -> None:
        self.is_over = False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: Any = None

    def ask(self, asked: Mapping[str, Any], limit_s: float) -> dict[str, Any] | Failure:
        """The answer to a request, or how the process ended without one.

        Raises:
            UnavailableError: the process does not start.
        """
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
            got = self._line(process, limit_s)
        except OSError:
            got = b""
        if got is None:
            self._kill()
            return timed_out(limit_s)
        if not got.endswith(b"\n"):
            return crashed(self._how())
        answer: dict[str, Any] = json.loads(got)
        return answer

    def end(self) -> None:
        """End the process for good; from any thread."""
        self.is_over = True
        self._kill()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self.is_over:
                raise UnavailableError("the survey has ended")
            if self._process is not None:
                return self._process
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
            # a group of its own, which Ctrl-C does not reach, and which is killed with the processes that it started
            self._process = process = subprocess.Popen(
                [sys.executable, "-P", "-m", PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=environment_of_children(),
                start_new_session=True,
            )
        ready = self._line(process, START_S)
        if not ready or json.loads(ready) != "ready":
            over = self.is_over
            how = self._how() if ready is not None else f"not ready within {START_S:g} s"
            raise UnavailableError("the survey has ended" if over else f"a process for compiling does not start: {how}")
        return process

    @staticmethod
    def _line(process: subprocess.Popen[bytes], limit_s: float) -> bytes | None:
        """A line of the process's stdout; one without its end where it closed; None after ``limit_s`` seconds."""
        assert process.stdout is not None
        until = time.monotonic() + limit_s
        got = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not got.endswith(b"\n"):
                if not selector.select(max(0.0, until - time.monotonic())):
                    return None
                part = os.read(process.stdout.fileno(), 1 << 16)
                if not part:
                    break
                got += part
        return got

    def _how(self) -> str:
        """How the process ended, of which stdout is closed."""
        with self._lock:
            process, stderr = self._process, self._stderr
        if process is None:
            return "no answer"
        try:
            code = process.wait(5)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        stderr.seek(0)
        text = stderr.read()
        self._kill()
        return how_it_ended(code, text)

    def _kill(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, self._stderr):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
