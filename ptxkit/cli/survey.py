"""``ptxkit survey``: compiles every source in folders, and says what became of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ptxkit.cli._bench_options import format_option
from ptxkit.cli._help import HeadedCommand
from ptxkit.cli._options import Seconds, WholeNumber, arch_option, parse_arch

if TYPE_CHECKING:
    from ptxkit.source_run.survey import Survey, Surveyed

HEADINGS = {
    "Compilation": ("--arch", "--include", "--define", "--compiler-option"),
    "Processes": ("--jobs", "--timeout"),
    "Output": ("--format", "--json"),
}


@click.command(cls=HeadedCommand, headings=HEADINGS)
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")
@arch_option
@click.option("-I", "--include", "include_dirs", multiple=True, metavar="DIR", help="Search DIR for headers.")
@click.option("-D", "--define", "defines", multiple=True, metavar="NAME[=VALUE]", help="Define a macro.")
@click.option(
    "--compiler-option",
    "compiler_options",
    multiple=True,
    metavar="OPTION",
    help="Pass an option to NVRTC, such as --std=c++20.",
)
@click.option(
    "--jobs",
    type=WholeNumber(1, 512),
    metavar="N",
    help="Compile in this many processes; default: one for each processor.",
)
@click.option(
    "--timeout",
    type=Seconds(min=0.1),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop a file that takes longer to compile.",
)
@format_option
@click.option("--json", "json_file", metavar="FILE", help="Write the survey (ptxkit.survey/2) to FILE, - for stdout.")
def command(folders: tuple[str, ...], **given: Any) -> int:
    """Compile the .cu and .ptx files of folders, and list verdicts.

    A file compiles untouched, compiles with its host code left out, has no device code, is part of another source that
    includes it, is written for another platform, or fails; a failure has its first error, a reason and what to do about it. A
    summary counts the verdicts and the reasons. Files are compiled in other
    processes, so that one that crashes a compiler or never ends does not end the survey. Ctrl-C shows what is known by then.
    The exit code is 0 only if no file fails.

    FOLDER: a folder, which is searched with all folders below it, or a single file.
    """
    import os

    from ptxkit.cli._progress import progress
    from ptxkit.cli._run_file import FileOptions, compile_options
    from ptxkit.cli._signals import Stop
    from ptxkit.cli._text import print_json, to_stderr
    from ptxkit.files import check_writable, write_json
    from ptxkit.source_run.survey import Settings, Survey, find

    json_file = given["json_file"]
    if json_file not in (None, "-"):
        check_writable(json_file)
    target = parse_arch(given["arch"])
    options = compile_options(
        FileOptions(**{name: given[name] for name in ("defines", "include_dirs", "compiler_options")})
    )
    settings = Settings(
        target.name if target is not None else None,
        options.include_dirs,
        options.defines,
        options.options,
        given["timeout"],
        given["jobs"] or len(os.sched_getaffinity(0)),
    )
    survey = Survey(find(folders), settings)
    for complaint in survey.found.unreadable:
        to_stderr(f"warning: not read: {complaint}", fg="yellow")
    stop = Stop()
    with stop.kept(), progress() as say:
        survey.run(say)
    if json_file == "-":
        print_json(survey.to_json(folders))
    elif survey.files or stop.reason is None:
        click.echo(text(survey, given["kind"]))
    if json_file not in (None, "-"):
        write_json(json_file, survey.to_json(folders))
    if stop.reason is not None:
        to_stderr(f"stopped: {len(survey.files)} of {len(survey.found.sources)} files have a verdict", fg="yellow")
        raise stop.reason
    return int(survey.exit_code)


COLUMNS = ("file", "verdict", "kernels", "seconds", "reason", "error", "what to do", "left out", "target")


def text(survey: Survey, kind: Any) -> str:
    """The files and the summary in the format of ``--format``; CSV has the files alone."""
    from ptxkit.bench.report import csv_text
    from ptxkit.bench.report.tables import Table
    from ptxkit.cli import _bench_text

    files = survey.files
    if kind == "csv":
        return csv_text.written(
            COLUMNS,
            (
                (
                    f.file,
                    f.verdict.value,
                    f.kernels,
                    f"{f.seconds:.3f}",
                    f.reason,
                    f.error,
                    f.hint,
                    f.left_out,
                    f.target,
                )
                for f in files
            ),
        )
    tables = [Table("", COLUMNS[:5], [_row(file) for file in files], texts=True)]
    failures = [[f.file, f.error, f.hint] for f in files if f.error]
    if failures:
        tables.append(Table("failures", ("file", "first error", "what to do"), failures, texts=True))
    if origins := _origins(files):
        tables.append(Table("", ("folder", "files", "compile", "share", "kernels", "seconds"), origins))
    for title, of in (("verdict", lambda f: f.verdict.value), ("reason", lambda f: f.reason)):
        rows = [[name, str(n), f"{share:.0%}"] for name, (n, share) in survey.shares(of).items()]
        if rows:
            tables.append(Table("", (title, "files", "share"), rows))
    tables.append(Table("", (), (), notes=[_total(survey)]))
    return _bench_text.rendered(tables, kind)


def _origins(files: tuple[Surveyed, ...]) -> list[list[str]]:
    """For each first folder of the paths: files with device code, how many compile, kernels, seconds; [] for one folder."""
    rows = []
    folders: dict[str, list[Surveyed]] = {}
    for file in files:
        first, _, rest = file.file.lstrip("./").partition("/")
        folders.setdefault(first if rest else ".", []).append(file)
    for folder, members in folders.items():
        meant = [f for f in members if f.is_complete_source]
        good = [f for f in meant if f.compiles]
        share = f"{len(good) / len(meant):.0%}" if meant else ""
        seconds = f"{sum(f.seconds for f in members):.1f}"
        rows.append([folder, str(len(meant)), str(len(good)), share, str(sum(f.kernels for f in good)), seconds])
    return rows if len(rows) > 1 else []


def _row(file: Surveyed) -> list[str]:
    kernels = str(file.kernels)
    if file.templates:
        kernels += f" (templates: {file.templates})"
    return [file.file, file.verdict.value, kernels, f"{file.seconds:.2f}", file.reason]


def _total(survey: Survey) -> str:
    """The last line: how many files compile, of those with device code."""
    from ptxkit.cli._text import number_of

    files = survey.files
    meant = [f for f in files if f.is_complete_source]
    good = sum(f.compiles for f in meant)
    share = f" ({good / len(meant):.0%})" if meant else ""
    kernels = number_of(sum(f.kernels for f in files), "kernel")
    cached = sum(f.from_cache for f in files)
    took = f"in {survey.seconds:.1f} s" + (f"; {cached} from the cache" if cached else "")
    return f"{good} of {number_of(len(meant), 'file')} with device code compile{share}, with {kernels}, {took}"
