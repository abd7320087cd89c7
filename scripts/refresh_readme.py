"""Run the commands of the transcripts in README.md and docs/kernels.md again and put in what they print now.

A transcript is a ``console`` block; its lines that start with ``$ `` are commands, what follows a command is its output. The
commands of a page share one empty directory and an empty compile cache, and see no GPU, so that it shows what everybody gets.
Blocks marked ``<!-- to FILE -->`` are written to that file before; those marked ``<!-- from FILE -->`` are filled with it as
the commands left it.

    .venv/bin/python scripts/refresh_readme.py            rewrite them
    .venv/bin/python scripts/refresh_readme.py --check    exit with 1 when it would change
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "kernels.md")
CONSOLE = re.compile(r"(?<=```console\n).*?(?=```)", re.DOTALL)
GIVEN = re.compile(r"<!-- to (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
INCLUDED = re.compile(r"(<!-- from (\S+) -->\n```\w+\n).*?(?=```)", re.DOTALL)


def transcript(block: str, work: Path, home: Path) -> str:
    """The block with every command's output as it is now."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "PTXKIT_", "XDG_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    env |= {"HOME": str(home), "PATH": path, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100", "NO_COLOR": "1"}
    lines = []
    for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
        done = subprocess.run(
            command, shell=True, cwd=work, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        shown = done.stdout.replace(f"{work}/", "").replace(str(home), "~").replace(str(ROOT), "~/ptxkit")
        lines.append(f"$ {command}\n{shown.strip(chr(10))}\n" if shown.strip() else f"$ {command}\n")
    return "\n".join(lines)


def refreshed(text: str) -> str:
    """A page with all transcripts run anew, in order."""
    with tempfile.TemporaryDirectory() as scratch:
        work, home = Path(scratch, "work"), Path(scratch, "home")
        work.mkdir()
        home.mkdir()
        for name, given in GIVEN.findall(text):
            (work / name).write_text(given)
        text = CONSOLE.sub(lambda m: transcript(m[0], work, home), text)
        return INCLUDED.sub(lambda m: m[1] + (work / m[2]).read_text(), text)


def main() -> int:
    """Rewrite the pages, or compare with them."""
    changed = 0
    for page in PAGES:
        before = page.read_text()
        after = refreshed(before)
        if "--check" in sys.argv:
            sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), after.splitlines(True), page.name, "now"))
            changed |= before != after
        else:
            page.write_text(after)
    return int(changed)


if __name__ == "__main__":
    sys.exit(main())
