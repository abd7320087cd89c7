"""Files that contain cubins: a cubin itself, a fatbin, or a host program or library (through cuobjdump)."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from ptxkit.compiler import toolkit
from ptxkit.compiler.elf import Cubin, is_cubin, is_elf
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.files import read_bytes
from ptxkit.targets import Target

_FATBIN = bytes.fromhex("50ed55ba")


def read_cubin(path: Path, target: Target | None = None) -> Cubin:
    """The cubin in a file, or the one for ``target`` among several.

    Raises:
        UsageError: the file cannot be read, contains no cubin, or contains several of which ``target`` selects none.
        UnavailableError: cuobjdump is needed and not installed.
    """
    try:
        data = read_bytes(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if len(data) < 64 or is_cubin(data) or not (data[:4] == _FATBIN or is_elf(data) or data[:8] == b"!<arch>\n"):
        found = [Cubin(data, str(path))]
    else:
        found = [Cubin(piece, str(path)) for piece in _extracted(path)]
    return _chosen(found, path, target)


def _chosen(found: list[Cubin], path: Path, target: Target | None) -> Cubin:
    if not found:
        raise UsageError(f"{path} contains no cubin; if it contains PTX only, inspect that")
    if target is not None:
        found = [c for c in found if c.target == target] or found
    have = ", ".join(sorted({c.target.name for c in found}))
    if target is not None and found[0].target != target:
        raise UsageError(f"{path} was not compiled for {target}; it is for {have}")
    if len(found) > 1:
        raise UsageError(f"{path} contains {len(found)} cubins, for {have}; choose one with --target, or extract one")
    return found[0]


def _extracted(path: Path) -> list[bytes]:
    tool = toolkit.cuobjdump()
    with tempfile.TemporaryDirectory() as directory:
        try:
            done = subprocess.run(
                [str(tool.path), "--extract-elf", "all", str(path.absolute())],
                cwd=directory,
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            raise UnavailableError(
                f"cuobjdump at {tool.path} cannot be run ({error.strerror}); "
                f"run: pip install --force-reinstall 'nvidia-cuda-cuobjdump>=13.2,<14'"
            ) from error
        pieces = [piece.read_bytes() for piece in sorted(Path(directory).iterdir())]
    if not pieces and done.returncode:
        complaint = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise UsageError(f"cuobjdump cannot read {path}: {complaint[0]}")
    return [piece for piece in pieces if is_cubin(piece)]
