"""``ptxkit extract``: writes the device code of a source that also contains host code."""

from __future__ import annotations

from pathlib import Path

import click

from ptxkit.cli._options import arch_option, parse_arch
from ptxkit.cli._output import stdout_set_aside


@click.command()
@click.argument("source", metavar="FILE")
@click.option("-o", "--output", metavar="FILE", help="Write the device code to this file instead of stdout.")
@click.option(
    "-I", "--include", "include_dirs", multiple=True, metavar="DIR", help="Search this directory for headers."
)
@click.option(
    "--list", "listed", is_flag=True, help="List what is left out, with lines and reasons, instead of the code."
)
@arch_option
def command(source: str, output: str | None, include_dirs: tuple[str, ...], listed: bool, arch: str | None) -> None:
    """Write the device code of a .cu file that contains host code.

    Host functions, host variables and headers of the host become blanks, so that lines keep their numbers; conditions are
    decided as by NVRTC. Headers of the file's own are not written: their host code is left out when the file is compiled,
    and --list shows it. Headers of the C++ standard library that the device code uses stay, and need ptxkit's replacements
    or libcu++. `run` and `inspect` do the same by themselves.

    FILE: a .cu file.
    """
    from ptxkit.compiler.host_code.compile import compile_device_part, extracted
    from ptxkit.compiler.nvrtc import compile_request
    from ptxkit.compiler.request import request
    from ptxkit.errors import UsageError
    from ptxkit.files import check_writable, write_text

    if Path(source).suffix not in (".cu", ".cuh"):
        raise UsageError(f"{source} is no CUDA source; give a .cu file")
    if output is not None:
        check_writable(output)
    with stdout_set_aside():
        wanted = request(source, parse_arch(arch) or "sm_90a", None, {}, (), (), include_dirs, True)
        found = extracted(wanted)
        if not found.has_device_code and not listed:
            raise UsageError(f"{source} has no device code, nor has a header of its own; --list shows what would be left out")
        read = {Path(inclusion.path).resolve() for inclusion in found.part.unit.inclusions}
        if output is not None and Path(output).resolve() in read:
            raise UsageError(
                f"--output {output} is one of the files that are read; its host code would be lost: name another file"
            )
        compile_device_part(wanted, found, compile_request)
    text = "".join(f"{dropped}\n" for dropped in found.dropped) if listed else found.text
    if output is not None:
        write_text(output, text)
    else:
        click.echo(text, nl=False)
