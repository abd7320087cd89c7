"""``ptxkit inspect``: PTX and SASS of a kernel, its resources, mix, loops, registers, scheduling and occupancy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ptxkit.cli._help import HeadedCommand
from ptxkit.cli._kernel import kernel_argument
from ptxkit.cli._options import WholeNumber, parse_arch, parse_pairs, renamed_option, tile_option
from ptxkit.cli._output import stdout_set_aside
from ptxkit.errors import UnavailableError, UsageError
from ptxkit.targets import SM_LIMITS, SmLimits

if TYPE_CHECKING:
    from ptxkit.inspect.subject import Settings, Subject


HEADINGS = {
    "Compilation": ("--target", "--option", "--tile", "--define", "--compiler-option"),
    "Listings": ("--source", "--ptx", "--plain", "--output", "--sass", "--registers", "--control", "--encoding"),
    "Comparison": ("--diff", "--no-time"),
    "Occupancy": ("--occupancy-curve", "--block", "--shared", "--cluster-dims"),
    "Files": ("--html", "--cfg", "--json"),
    "Timelines from the emulator": ("--overlap", "--timeline", "--ctas", "--latency", "--sms"),
    "Launch of a source file's kernel, for --html, --overlap and --timeline": ("--arg", "--grid", "--cooperative"),
}


@click.command(cls=HeadedCommand, headings=HEADINGS)
@click.argument("subjects", nargs=-1, required=True, metavar="SUBJECT...", shell_complete=kernel_argument)
@click.option("--diff", "as_diff", is_flag=True, help="Compare two subjects: resources, mix, and aligned SASS.")
@click.option(
    "--no-time", is_flag=True, help="Do not time the variants that --diff compares, even where there is a GPU."
)
@click.option("--source", is_flag=True, help="Show source lines, each with its SASS instructions.")
@click.option("--ptx", is_flag=True, help="Show PTX; with --source, below the source lines.")
@click.option("--plain", is_flag=True, help="Show only the text of --ptx, which `ptxkit run` and compilers accept.")
@click.option("-o", "--output", metavar="FILE.ptx", help="Write the text of --ptx to a file.")
@click.option("--sass", is_flag=True, help="Show SASS; with --source or --ptx, below those lines.")
@click.option("--registers", is_flag=True, help="Show the live registers beside each SASS instruction.")
@click.option(
    "--control",
    is_flag=True,
    help="Show the scheduling fields of each SASS instruction: waits, read and write scoreboard, yield, stall.",
)
@click.option("--encoding", is_flag=True, help="Show the 128-bit encoding of each SASS instruction, high word first.")
@click.option(
    "--occupancy-curve", is_flag=True, help="Show how occupancy changes with registers, shared memory and threads."
)
@click.option("--cfg", metavar="FILE", help="Write the control-flow graph to FILE.svg or FILE.dot, or - for stdout.")
@click.option("--html", "html_file", metavar="FILE", help="Write one self-contained HTML page; - is stdout.")
@click.option(
    "--overlap",
    is_flag=True,
    help="Launch KERNEL[:VARIANT] [SIZES] in the emulator and show what is in flight at the same time.",
)
@click.option(
    "--timeline",
    "timeline_file",
    metavar="FILE",
    help="Show the table of --overlap, and write a trace for Perfetto or chrome://tracing; - is stdout.",
)
@click.option("--ctas", metavar="LIST", help="Record these CTAs in the timeline, such as 0-3,8, instead of the first.")
@click.option(
    "--latency",
    type=WholeNumber(0, 10**6),
    metavar="STEPS",
    help="Let each asynchronous operation of the timeline take this many steps, 500 by default.",
)
@click.option(
    "--sms",
    type=WholeNumber(1, 1024),
    metavar="N",
    help="Emulate a GPU of N SMs for the timeline, so that each CTA of a persistent kernel has several tiles.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object (schema ptxkit.inspect/1).")
@click.option("--target", "--arch", "target", metavar="TARGET", help="Compile for this target, such as sm_90a.")
@click.option(
    "--option",
    "kernel_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an option or a size of a kernel, such as dtype=f16.",
)
@tile_option
@click.option("-D", "--define", "defines", multiple=True, metavar="NAME=VALUE", help="Define a macro for a .cu file.")
@click.option(
    "--compiler-option", "options", multiple=True, metavar="OPTION", help="Pass an option to NVRTC for a .cu file."
)
@click.option(
    "--block",
    type=WholeNumber(1, SmLimits.threads_per_cta),
    metavar="N",
    help="Compute occupancy for CTAs of this many threads.",
)
@click.option(
    "--shared",
    type=WholeNumber(min=0),
    metavar="BYTES",
    help="Compute occupancy for this dynamic shared memory per CTA.",
)
@click.option(
    "--cluster-dims",
    "cluster",
    type=WholeNumber(1, max(limits.largest_cluster for limits in SM_LIMITS.values())),
    metavar="N",
    help="Compute occupancy for thread block clusters of this many CTAs.",
)
@renamed_option("--cluster", "--cluster-dims")
@click.option(
    "--arg",
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    help="Launch the kernel with this argument, in the form that `ptxkit run` takes.",
)
@click.option("--grid", metavar="X[,Y[,Z]]", help="Launch this many CTAs, of --block threads each.")
@click.option("--cooperative", is_flag=True, help="Launch with all CTAs resident at once, as grid.sync() requires.")
def command(
    subjects: tuple[str, ...],
    as_diff: bool,
    no_time: bool,
    source: bool,
    ptx: bool,
    plain: bool,
    output: str | None,
    sass: bool,
    registers: bool,
    control: bool,
    encoding: bool,
    occupancy_curve: bool,
    cfg: str | None,
    html_file: str | None,
    overlap: bool,
    timeline_file: str | None,
    ctas: str | None,
    latency: int | None,
    sms: int | None,
    as_json: bool,
    target: str | None,
    kernel_options: tuple[str, ...],
    tiles: tuple[str, ...],
    defines: tuple[str, ...],
    options: tuple[str, ...],
    block: int | None,
    shared: int | None,
    cluster: int | None,
    arguments: tuple[str, ...],
    grid: str | None,
    cooperative: bool,
) -> None:
    """Show the code that the compiler generated for SUBJECT. Needs no GPU.

    SUBJECT: KERNEL[:VARIANT] of `ptxkit list`, or FILE[:ENTRY] with a .cu, .ptx, cubin, fatbin or a library that contains one;
    a template is named with its arguments, 'k.cu:saxpy<256>'; or triton:FILE.py:FUNCTION (docs/triton.md). Settings for this
    subject may follow: 'saxpy:scalar@sm_80,THREADS=128', 'softmax@dtype=f16,cols=64', 'k.cu@FAST=1,-use_fast_math'.
    """
    from ptxkit.cli._progress import progress
    from ptxkit.files import check_writable
    from ptxkit.inspect.subject import Settings
    from ptxkit.inspect.subject import subjects as found_subjects

    settings = Settings(
        target=parse_arch(target),
        kernel=parse_pairs(kernel_options, "--option"),
        tile=parse_pairs(tiles, "--tile"),
        defines=parse_pairs(defines, "--define"),
        options=options,
        block=block,
        shared_bytes=shared,
        cluster=cluster,
    )
    if (plain or output is not None) and (not ptx or source or sass):
        option = "--plain" if plain else "--output"
        raise UsageError(f"{option} applies to PTX only: give --ptx, without --source and --sass")
    if overlap or timeline_file is not None:
        refuse_together(
            "--overlap" if timeline_file is None else "--timeline",
            {
                "--diff": as_diff, "--html": html_file, "--cfg": cfg, "--source": source, "--ptx": ptx, "--sass": sass,
                "--registers": registers, "--control": control, "--encoding": encoding, "--no-time": no_time,
                "--occupancy-curve": occupancy_curve,
                **({} if arguments or grid else {"--block": block, "--shared": shared, "--cluster-dims": cluster}),
            },
        )  # fmt: skip
        launch = None
        if arguments or grid is not None or cooperative:
            from ptxkit.cli._inspect_launch import launched

            launch = partial(launched, arguments=arguments, grid=grid, cooperative=cooperative)
        record_timeline(subjects, settings, timeline_file, ctas, latency, sms, as_json, launch)
        return
    for option, given in (("--ctas", ctas), ("--latency", latency), ("--sms", sms)):
        if given is not None:
            raise UsageError(f"{option} applies to --timeline and --overlap; add one of these")
    kinds = {"--json": as_json, "--html": html_file is not None, "--cfg": cfg is not None}
    wanted = [option for option, given in kinds.items() if given]
    if len(wanted) > 1:
        raise UsageError(f"{' and '.join(wanted)} are different outputs; give one of them")
    launches = bool(arguments) or grid is not None or cooperative
    if launches and (html_file is None or as_diff):
        raise UsageError(
            "--arg, --grid and --cooperative describe the launch that --html shows counts of; give --html FILE"
        )
    if as_diff:
        compare(subjects, settings, as_json=as_json, whole=sass, control=control, timed=not no_time)
        return
    for file in (output, html_file, cfg):
        if file not in (None, "-"):
            check_writable(file)  # before anything is compiled
    if cfg not in (None, "-") and Path(cfg).suffix not in (".dot", ".gv", ".svg"):
        raise UsageError(f"--cfg writes FILE.svg or FILE.dot, not {cfg}")
    with stdout_set_aside(), progress() as say:
        chosen = [subject for words in subjects for subject in found_subjects(words, settings, say)]
    if launches:
        from ptxkit.cli._inspect_launch import launched

        chosen = [launched(chosen, arguments, grid, cooperative)]
    if plain or output is not None:
        write_ptx(chosen, output)
    elif html_file is not None:
        write_page(chosen, html_file)
    elif cfg is not None:
        write_graph(chosen, cfg)
    elif as_json:
        from ptxkit.cli._text import print_json
        from ptxkit.inspect.report import document

        print_json(document(chosen))
    else:
        show(text_of(chosen, source, ptx, sass, registers, control, encoding, occupancy_curve))


def refuse_together(option: str, others: Mapping[str, object]) -> None:
    """Raise UsageError for an option that shows machine code, which a timeline does not."""
    for other, given in others.items():
        if given not in (None, False):
            raise UsageError(f"{option} and {other} do not go together; give one of them")


def record_timeline(
    subjects: tuple[str, ...],
    settings: Settings,
    file: str | None,
    ctas: str | None,
    latency: int | None,
    sms: int | None,
    as_json: bool,
    launch: Callable[[Sequence[Subject]], Subject] | None,
) -> None:
    """``--timeline`` and ``--overlap``: the words after the subject are its sizes; ``launch`` is for a source file."""
    from ptxkit.cli._inspect_timeline import show_timeline
    from ptxkit.emulator.timeline.record import DEFAULT_LATENCY
    from ptxkit.inspect.timeline import Request, parse_ctas

    request = Request(
        sizes=subjects[1:],
        ctas=None if ctas is None else parse_ctas(ctas),
        latency=DEFAULT_LATENCY if latency is None else latency,
        sms=sms,
    )
    show_timeline(subjects[0], settings, request, file, as_json, launch)


def text_of(
    chosen: Iterable[Subject],
    source: bool,
    ptx: bool,
    sass: bool,
    registers: bool,
    control: bool,
    encoding: bool,
    occupancy_curve: bool,
) -> Iterator[str]:
    """The lines of every subject, in the requested views; the default page when none is requested."""
    from ptxkit.cli import _inspect_text as texts
    from ptxkit.cli._inspect_listing import Columns, listing

    beside = Columns(encoding=encoding, control=control, registers=registers)
    in_columns = registers or control or encoding
    for index, subject in enumerate(chosen):
        if index:
            yield ""
        if occupancy_curve:
            yield from texts.curves(subject)
        elif source or ptx or sass or in_columns:
            yield from listing(subject, source=source, ptx=ptx, sass=sass or in_columns, columns=beside)
        else:
            yield from texts.page(subject)


def compare(
    words: tuple[str, ...], settings: Settings, *, as_json: bool, whole: bool, control: bool, timed: bool
) -> None:
    """Print the difference of two subjects, each of which must be one kernel."""
    from ptxkit.cli import _inspect_text as texts
    from ptxkit.cli._progress import progress
    from ptxkit.cli._text import print_json
    from ptxkit.inspect import report
    from ptxkit.inspect.compare import diff
    from ptxkit.inspect.subject import subjects as found_subjects

    if len(words) != 2:
        raise UsageError(f"--diff compares two subjects, not {len(words)}")
    sides = []
    for name in words:
        with stdout_set_aside(), progress() as say:
            found = found_subjects(name, settings, say)
        if len(found) != 1:
            raise UsageError(f"{name} has {len(found)} kernels; --diff needs one: {', '.join(_name(s) for s in found)}")
        sides.append(found[0])
    left, right = sides
    result = diff(left.function, right.function, (left.occupancy, right.occupancy))
    with stdout_set_aside():
        times = (time_of(left), time_of(right)) if timed else (None, None)
    if as_json:
        print_json(report.difference(result, (words[0], words[1]), times))
    else:
        show(texts.difference(result, words, times, whole=whole, control=control))


def time_of(subject: Subject) -> float | None:
    """The time of a subject's variant on a GPU; None where no GPU can run it."""
    from ptxkit.runtime.device import gpu_present, timed_device

    if subject.build is None or not gpu_present():
        return None
    from ptxkit.inspect.timing import time_us

    return time_us(subject, timed_device())


def _name(subject: Subject) -> str:
    return subject.title if subject.kernel in subject.title else f"{subject.title} ({subject.kernel})"


def write_graph(chosen: list[Subject], file: str) -> None:
    """Write the control-flow graph of one kernel as dot text or, with graphviz, as svg."""
    from ptxkit.cli._text import to_stderr
    from ptxkit.files import write_text
    from ptxkit.inspect.blocks import dot

    if len(chosen) != 1:
        raise UsageError(f"--cfg draws one kernel; name one of {', '.join(_name(s) for s in chosen)}")
    text = dot(chosen[0].function, chosen[0].title)
    if file == "-":
        click.echo(text, nl=False)
        return
    path = Path(file)
    if path.suffix == ".svg":
        graphviz = shutil.which("dot")
        if graphviz is None:
            raise UnavailableError(
                f"graphviz's dot, which draws {file}, is not on PATH; install graphviz or use --cfg {path.with_suffix('.dot')}"
            )
        text = _drawn(graphviz, text, file)
    write_text(path, text)
    to_stderr(f"wrote {file}")


def _drawn(graphviz: str, text: str, file: str) -> str:
    """Graphviz's drawing of dot text, as SVG.

    Raises:
        UnavailableError: graphviz does not work here.
    """
    instead = f"use --cfg {Path(file).with_suffix('.dot')}"
    try:
        done = subprocess.run(
            [graphviz, "-Tsvg"],
            check=False,
            input=text,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise UnavailableError(
            f"{graphviz}, which draws {file}, cannot be executed: {error.strerror}; {instead}"
        ) from None
    if done.returncode or "<svg" not in done.stdout:
        why = next(iter(done.stderr.strip().splitlines()), "") or f"it exited with {done.returncode}"
        raise UnavailableError(f"{graphviz} could not draw {file}: {why}; {instead}")
    return done.stdout


def write_page(chosen: list[Subject], file: str) -> None:
    """Write the HTML page of some kernels; a failure leaves no partial file."""
    from ptxkit.cli._text import to_stderr
    from ptxkit.files import write_text
    from ptxkit.inspect.html_page import page

    if file == "-":
        click.echo(page(chosen))
        return
    write_text(file, page(chosen))
    to_stderr(f"wrote {file}")


def write_ptx(chosen: list[Subject], file: str | None) -> None:
    """Write the PTX of some kernels of one program unchanged to a file, or to stdout for None."""
    from ptxkit.cli._text import to_stderr
    from ptxkit.files import write_text

    texts = {subject.function.ptx: subject for subject in chosen}
    if "" in texts:
        raise UsageError(f"the PTX of {_name(texts[''])} is not known: the cubin was made without line information")
    if len(texts) > 1:
        names = ", ".join(_name(subject) for subject in texts.values())
        raise UsageError(f"these are {len(texts)} PTX programs; name a kernel of one: {names}")
    (text,) = texts
    text = text.rstrip("\0\n") + "\n"
    if file is None:
        click.echo(text, nl=False)
        return
    if not file.endswith(".ptx") and file != "/dev/null":
        raise UsageError(f"--output writes FILE.ptx, not {file}")
    write_text(file, text)
    to_stderr(f"wrote {file}")


def show(lines: Iterable[str]) -> None:
    """Print lines, through a pager when they do not fit the terminal."""
    text = "\n".join(lines) + "\n"
    if sys.stdout.isatty() and text.count("\n") >= shutil.get_terminal_size().lines:
        click.echo_via_pager(text)
    else:
        click.echo(text, nl=False)
