"""``ptxkit debug``: step through a kernel in the emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ptxkit.cli._help import EMULATOR_CHECKS, SOURCE_FILE_HEADINGS, HeadedCommand
from ptxkit.cli._kernel import find_kernel, kernel_argument
from ptxkit.cli._options import (
    arch_option,
    emulator_changes,
    emulator_options,
    kernel_option,
    parse_arch,
    parse_pairs,
    refuse_options,
    renamed_option,
    seed_option,
    tile_option,
)
from ptxkit.cli._output import stdout_set_aside
from ptxkit.cli._run_file import FileOptions, file_options, names_source_file, refuse_described
from ptxkit.errors import UsageError

if TYPE_CHECKING:
    from ptxkit.debugger.session import Session


HEADINGS = {
    "Kernel": ("--variant", "--tile", "--option", "--seed", "--arch", "-G"),
    "Breakpoints and commands": ("--break", "--thread", "--cta", "--command", "--command-file"),
    "Checks in the emulator": EMULATOR_CHECKS,
    "Limits": ("--max-instructions",),
    "Output": ("--json",),
    **SOURCE_FILE_HEADINGS,
}


@click.command(cls=HeadedCommand, headings=HEADINGS, context_settings={"ignore_unknown_options": True})
@click.argument("kernel", shell_complete=kernel_argument)
@click.argument("sizes", nargs=-1, metavar="[SIZE]...")
@click.option("--variant", "variant_name", metavar="NAME", help="Debug this variant (default: the first one).")
@arch_option
@seed_option
@tile_option
@kernel_option
@click.option(
    "-G", "debug_info", is_flag=True, help="Compile unoptimised, with the locations of C variables (nvcc -G)."
)
@emulator_options
@click.option(
    "--break", "breaks", multiple=True, metavar="LOCATION", help="Stop at file.cu:12, file.ptx:40 or a function."
)
@click.option("--thread", metavar="T", help="Focus on this thread, linear or x,y,z; --break stops for it only.")
@click.option("--cta", metavar="C", help="Focus on this CTA, linear or x,y,z; --break stops for it only.")
@click.option(
    "--command", "-ex", "commands", multiple=True, metavar="COMMAND", help="Execute a debugger command, then end."
)
@click.option(
    "--command-file",
    "-x",
    type=click.Path(),
    metavar="FILE",
    help="Execute the commands of a file, one per line, then end.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (schema ptxkit.debug/1) at the end.")
@file_options
@renamed_option("--cluster", "--cluster-dims")
def command(
    kernel: str,
    sizes: tuple[str, ...],
    variant_name: str | None,
    arch: str | None,
    seed: int,
    tiles: tuple[str, ...],
    options: tuple[str, ...],
    debug_info: bool,
    breaks: tuple[str, ...],
    thread: str | None,
    cta: str | None,
    commands: tuple[str, ...],
    command_file: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Step through KERNEL in the emulator, as in cuda-gdb.

    KERNEL: a name from `ptxkit list`, a description file such as ./mine.py, or a source file such as ./k.cu[:ENTRY] or ./k.ptx
    with --arg, --grid and --block as for `ptxkit run`. `help` at the prompt lists the commands; docs/debug.md explains them.
    """
    from ptxkit.cli._debug_shell import run_session
    from ptxkit.debugger.commands.interpreter import coordinates

    refuse_options(sizes)
    settings = emulator_changes(given)
    lines = list(commands)
    if command_file is not None:
        lines += _lines(command_file)
    scripted = bool(commands) or command_file is not None
    chosen_thread = coordinates(thread, "thread") if thread is not None else None
    chosen_cta = coordinates(cta, "CTA") if cta is not None else None
    file = FileOptions.of(given)
    target = parse_arch(arch)
    if names_source_file(kernel):
        refuse_described({"--tile": tiles, "--option": options, "--variant": (variant_name,) if variant_name else ()})
        session = _file_session(kernel, sizes, file, target, seed, debug_info, settings)
    else:
        file.refuse(kernel)
        with stdout_set_aside():  # the description may print
            session = _kernel_session(
                kernel, sizes, variant_name, target, parse_pairs(tiles, "--tile"), parse_pairs(options, "--option"), seed,
                debug_info, settings,
            )  # fmt: skip
    with session:
        if chosen_thread is not None or chosen_cta is not None:
            session.focus(chosen_thread, chosen_cta)
        for location in breaks:
            session.break_at(location, thread=chosen_thread, cta=chosen_cta)
        return run_session(session, lines if scripted else None, as_json, started=bool(breaks) and not scripted)


def _lines(command_file: str) -> list[str]:
    from ptxkit.files import read_text, refused

    try:
        text = read_text(command_file)
    except OSError as error:
        raise refused(command_file, error, "read the --command-file") from None
    return [line for line in text.splitlines() if line.strip()]


def _kernel_session(
    kernel: str,
    sizes: tuple[str, ...],
    variant_name: str | None,
    target: Any,
    tile: dict[str, str],
    options: dict[str, str],
    seed: int,
    debug_info: bool,
    settings: dict[str, Any],
) -> Session:
    from ptxkit.debugger.workloads import session_of
    from ptxkit.runtime.device import emulating_device
    from ptxkit.workload import execute
    from ptxkit.workload.build import compiled
    from ptxkit.workload.resolve import resolve

    workload_class = find_kernel(kernel)
    if variant_name is not None:
        workload_class.variant(variant_name)
    device = emulating_device()
    workload = workload_class.make(sizes, options, small=True)
    variant = workload.variant(variant_name) if variant_name else next(iter(workload.variants().values()))
    unknown = sorted(set(tile) - set(variant.tile))
    if unknown:
        known = ", ".join(variant.tile) or "none"
        raise UsageError(f"variant {variant.name} has no tile parameter {unknown[0]}; it has {known}")
    lacks = execute.lacking(variant, device, workload.name)
    if lacks is not None:
        from ptxkit.errors import UnavailableError

        raise UnavailableError(lacks)
    case = execute.Case(workload, device, seed, target=target)
    resolved = resolve(workload, variant, target, tile, device=device, debug_info=debug_info)
    return session_of(case, compiled(resolved), settings)


def _file_session(
    words: str,
    sizes: tuple[str, ...],
    options: FileOptions,
    target: Any,
    seed: int,
    debug_info: bool,
    settings: dict[str, Any],
) -> Session:
    from dataclasses import replace
    from functools import partial

    from ptxkit.cli._run_file import call_of, tolerance_of
    from ptxkit.debugger.workloads import session_of
    from ptxkit.runtime.device import emulating_device
    from ptxkit.source_run.run import compared
    from ptxkit.source_run.workload import Prepared, built_of
    from ptxkit.workload import execute

    if sizes:
        raise UsageError(f"a source file takes no sizes, so {' '.join(sizes)} has no meaning; give sizes with --arg")
    if options.saved:
        raise UsageError("--output is for 'ptxkit run'; 'print' shows arrays here")
    if debug_info and words.split(":")[0].endswith(".ptx"):
        raise UsageError("-G is for CUDA C++; a .ptx has the debugging information that it was compiled with")
    if debug_info:
        options = replace(options, compiler_options=(*options.compiler_options, "-G"))
    device = emulating_device()
    tolerance = tolerance_of(options)
    call = call_of(words, options, target)
    prepared = Prepared(call)
    _ = prepared.expected  # a missing file is an error now
    built = built_of(prepared)
    case = execute.Case(built.workload, device, seed)
    compare = partial(compared, prepared, tolerance=tolerance, smallest_store=built.smallest_store)
    return session_of(case, built, settings, compare)
