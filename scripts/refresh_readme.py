"""Run the commands of README.md's transcripts again and put in what they print now.

A transcript is a ``console`` block; its lines that start with ``$ `` are commands, what follows a command is its output. The
commands share one empty directory and an empty compile cache, and see no GPU, so that the README shows what everybody gets.
Blocks marked ``<!-- from FILE -->`` are filled with that file as the commands left it.

    .venv/bin/python scripts/refresh_readme.py            rewrite README.md
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
README = ROOT / "README.md"
CONSOLE = re.compile(r"(?<=```console\n).*?(?=```)", re.DOTALL)
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
    """The README with all transcripts run anew, in order."""
    with tempfile.TemporaryDirectory() as scratch:
        work, home = Path(scratch, "work"), Path(scratch, "home")
        work.mkdir()
        home.mkdir()
        text = CONSOLE.sub(lambda m: transcript(m[0], work, home), text)
        return INCLUDED.sub(lambda m: m[1] + (work / m[2]).read_text(), text)


def main() -> int:
    """Rewrite README.md, or compare with it."""
    before = README.read_text()
    after = refreshed(before)
    if "--check" in sys.argv:
        sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), after.splitlines(True), "README.md", "now"))
        return int(before != after)
    README.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
