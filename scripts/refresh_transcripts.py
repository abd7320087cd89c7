"""Run the commands of the transcripts in README.md and docs/*.md again and replace the output that the pages show.

A transcript is a ``console`` block: a line that starts with ``$ `` is a command, and the lines after it are what it prints. The
commands of a page share one directory, which is empty at the start, and run without a GPU, so that every reader gets the same
output. A page may contain files and marks, each on the line before the block that it describes:

    <!-- to FILE -->      the block is written to FILE before the first command runs
    <!-- from FILE -->    the block shows FILE as the commands left it
    <!-- varies -->       the output depends on the machine (times, paths, versions); the test compares only the exit code
    <!-- slow -->         the commands take long; the test executes them with ``--slow`` only

``tests/test_docs.py`` compares every transcript with what the commands print. The pages whose transcripts a test of their own
checks are not rewritten here; they have no ``console`` block that starts with ``$``, except docs/debug.md.

    python scripts/refresh_transcripts.py [PAGE...]            rewrite these pages, or all
    python scripts/refresh_transcripts.py --check [PAGE...]    print the difference, and exit with 1 if there is one
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSOLE = re.compile(r"(<!-- (?:varies|slow) -->\n)?```console\n(.*?)```", re.DOTALL)
GIVEN = re.compile(r"<!-- to (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
INCLUDED = re.compile(r"(<!-- from (\S+) -->\n```\w+\n)(.*?)(?=```)", re.DOTALL)
NVRTC = re.compile(r"(?<=taken with NVRTC )\d+\.\d+")  # in docs/README.md: the version that the counts belong to
COLUMNS = 100
TESTED_ELSEWHERE = ("debug.md",)  # tests/debugger/test_documents.py


@dataclass(frozen=True)
class Step:
    """A command of a transcript, what the page shows, whether that varies from machine to machine, whether it is slow."""

    command: str
    shown: str
    varies: bool
    slow: bool


def pages() -> list[Path]:
    """The pages with transcripts or included files."""
    candidates = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [p for p in candidates if p.name not in TESTED_ELSEWHERE and "```console\n" in p.read_text(encoding="utf-8")]


def steps(text: str) -> Iterator[Step]:
    """The commands of a page, in order."""
    for mark, block in CONSOLE.findall(text):
        _, *parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
        for part in parts:
            command, _, shown = part.partition("\n")
            yield Step(command, shown.strip("\n"), "varies" in mark, "slow" in mark)


def write_given(text: str, work: Path) -> None:
    """Write the files that the page gives."""
    for name, content in GIVEN.findall(text):
        (work / name).write_text(content, encoding="utf-8")


def portable(output: str, work: Path, home: Path) -> str:
    """The output without the directories of this machine."""
    output = output.replace(f"{work}/", "").replace(sys.prefix, "~/ptxkit/.venv")
    return output.replace(str(home), "~").replace(str(ROOT), "~/ptxkit").strip("\n")


def environment(home: Path) -> dict[str, str]:
    """The environment of a command: no GPU, no colour, no settings of this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "PTXKIT_", "XDG_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    added = {"HOME": str(home), "PATH": path, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
    return kept | added


def run_in_shell(command: str, work: Path, env: dict[str, str]) -> tuple[int, str]:
    """The exit code of a command, and its stdout and stderr together."""
    done = subprocess.run(
        command, shell=True, cwd=work, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


def refreshed(text: str, run: Callable[[str], str], work: Path) -> str:
    """The page with every command's output as ``run`` returns it, in order."""

    def block(found: re.Match[str]) -> str:
        outputs = [(step.command, run(step.command)) for step in steps(found[0])]
        shown = "\n".join(f"$ {command}\n{output}\n" if output else f"$ {command}\n" for command, output in outputs)
        return f"{found[1] or ''}```console\n{shown}```"

    text = CONSOLE.sub(block, text)
    return INCLUDED.sub(lambda found: found[1] + (work / found[2]).read_text(encoding="utf-8"), text)


def refreshed_page(text: str) -> str:
    """The page with current outputs; its commands share an empty directory and an empty compile cache."""
    with tempfile.TemporaryDirectory() as scratch:
        work, home = Path(scratch, "work"), Path(scratch, "home")
        work.mkdir()
        home.mkdir()
        write_given(text, work)
        env = environment(home)
        return refreshed(text, lambda command: portable(run_in_shell(command, work, env)[1], work, home), work)


def main() -> int:
    """Rewrite the pages, or compare with them."""
    from ptxkit.compiler.nvrtc import nvrtc_version

    names = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    chosen = [Path(name).resolve() for name in names] or [*pages(), ROOT / "docs" / "README.md"]
    changed = False
    for page in chosen:
        before = page.read_text(encoding="utf-8")
        after = NVRTC.sub(nvrtc_version(), refreshed_page(before))
        changed |= before != after
        if "--check" in sys.argv:
            sys.stdout.writelines(
                difflib.unified_diff(before.splitlines(True), after.splitlines(True), page.name, "now")
            )
        else:
            page.write_text(after, encoding="utf-8")
    return int(changed and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
