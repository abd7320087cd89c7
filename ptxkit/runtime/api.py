"""``ptxkit.compile``: from a source to kernels that can be called."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ptxkit.arguments import NOTHING, TEXT, shown, takes
from ptxkit.errors import UsageError
from ptxkit.runtime.abilities import DEVICE, TARGET
from ptxkit.runtime.device import Device
from ptxkit.runtime.device import device as open_device

if TYPE_CHECKING:
    from ptxkit.runtime.kernel import LoadedModule
    from ptxkit.targets import Target


@takes(target=TEXT | TARGET | NOTHING, device=TEXT | DEVICE | NOTHING)
def compile(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: Target | str | None = None,
    defines: Mapping[str, object] | None = None,
    device: Device | str | None = None,
    *,
    instantiate: Sequence[str] = (),
    options: Sequence[str] = (),
    include_dirs: Sequence[str | os.PathLike[str]] = (),
) -> LoadedModule:
    """Compile a ``.cu`` or ``.ptx`` file, or source text, and load it on a device.

    Args:
        source: a path, or the text itself (it holds a newline or a brace). PTX text begins with ``.version``; for the
            emulator it is not assembled, so that some operands pass that ptxas refuses (``ptxkit inspect FILE.ptx`` assembles
            it). Or a list of CUDA sources, which are linked: one may use functions and variables that another defines.
        target: ``"sm_90a"``; None takes the device's own, and in the emulator sm_90a or the PTX's own.
        defines: preprocessor macros.
        device: a device, or ``"gpu"``, ``"emulator"``, ``"auto"``; None is ``"auto"``.
        instantiate: templates to instantiate, as name expressions: ``["l2norm<256, float>"]``.
        options: for NVRTC, as they are.
        include_dirs: besides ``cu/`` and the CUDA headers.

    Returns:
        The kernels by name: ``module["saxpy"]``, ``module["l2norm<256, float>"]``.

    Raises:
        CompileError: with the diagnostics in ``log``; of several sources also if a function or variable is defined nowhere, or
            twice. UsageError: no such file, or PTX among several sources. UnavailableError: no such device or target.
    """
    from ptxkit.compiler.assemble import assemble
    from ptxkit.compiler.nvrtc import compile_source
    from ptxkit.compiler.sources import is_path

    for name, given in (("instantiate", instantiate), ("options", options), ("include_dirs", include_dirs)):
        _check_list(name, given)
    _check_macros(defines)
    for directory in include_dirs:
        if not Path(directory).is_dir():
            raise UsageError(f"include_dirs: there is no directory {os.fspath(directory)}")
    where = open_device(device or "auto") if isinstance(device, str | None) else device
    chosen = target or where.target
    several = _several(source)
    if len(several) > 1:
        from ptxkit.compiler.link import link_sources

        image = link_sources(
            several,
            target=chosen or "sm_90a",
            defines=defines or {},
            instantiate=tuple(instantiate),
            options=tuple(options),
            include_dirs=[Path(d) for d in include_dirs],
            cubin=not where.emulates,
        )
        return where.load(image, image.expanded)
    (source,) = several
    if _is_ptx(source):
        if defines or instantiate or options or include_dirs:
            raise UsageError("PTX takes no defines, instantiate, options or include_dirs; they are for CUDA C++")
        image = assemble(source, target=chosen, cubin=not where.emulates)
    else:
        directories = [Path(d) for d in include_dirs]
        image = compile_source(
            source,
            target=chosen or "sm_90a",
            defines=defines or {},
            instantiate=tuple(instantiate),
            options=tuple(options),
            include_dirs=directories,
        )
    return where.load(image, None if is_path(source) else str(source))


def _several(source: object) -> tuple[str | os.PathLike[str], ...]:
    """The sources of a compilation: one, or those of a list.

    Raises:
        UsageError: the list is empty, or has PTX beside other sources.
    """
    if not isinstance(source, (list, tuple)):
        return (source,)  # type: ignore[return-value]  # _is_ptx refuses what is no source
    if not source:
        raise UsageError("the list of sources is empty: give a path, or several")
    for one in source if len(source) > 1 else ():
        if _is_ptx(one):
            what = os.fspath(one) if Path(one).suffix == ".ptx" else "PTX text"
            raise UsageError(f"{what} cannot be linked with other sources; only CUDA sources can")
    return tuple(source)


def _check_list(name: str, given: object) -> None:
    """Raise UsageError unless an argument is a list of strings; a single string would be taken as a list of letters."""
    if isinstance(given, (str, bytes, os.PathLike)):
        raise UsageError(f"{name} takes a list: {name}=[{shown(given)}]")
    if not isinstance(given, Iterable):
        raise UsageError(f"{name} takes a list, not {shown(given)}")
    for item in given:
        if not isinstance(item, (str, os.PathLike) if name == "include_dirs" else str):
            raise UsageError(f"{name} takes a list of strings; {shown(item)} is not a string")


def _check_macros(defines: object) -> None:
    if defines is None:
        return
    if not isinstance(defines, Mapping):
        raise UsageError(f"defines takes a dict such as {{'THREADS': 256}}, not {shown(defines)}")
    for name in defines:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*(\([^()]*\))?", name):
            raise UsageError(f"defines: {name!r} is not the name of a macro")


def _is_ptx(source: str | os.PathLike[str]) -> bool:
    from ptxkit.compiler.sources import is_path
    from ptxkit.isa.comments import without_comments

    if not isinstance(source, (str, os.PathLike)):
        raise UsageError(f"a source is a path or a text, not a {type(source).__name__}")
    if is_path(source):
        return Path(source).suffix == ".ptx"
    return without_comments(str(source)).lstrip().startswith(".version")
