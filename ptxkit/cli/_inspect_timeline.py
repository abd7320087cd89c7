"""``ptxkit inspect --timeline`` and ``--overlap``: the emulated launches of variants, as a trace and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ptxkit.cli._output import stdout_set_aside
from ptxkit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ptxkit.inspect.subject import Settings, Subject
    from ptxkit.inspect.timeline import Request, Timed

SCHEMA = "ptxkit.overlap/1"


def show_timeline(
    words: str,
    settings: Settings,
    request: Request,
    file: str | None,
    as_json: bool,
    launch: Callable[[Sequence[Subject]], Subject] | None = None,
) -> None:
    """Record the variants, write the trace to ``file`` unless that is None, and print the figures.

    Args:
        launch: gives the kernel of a source file its launch, which is then recorded; None for a kernel with a description.

    Raises:
        UsageError, UnavailableError: see :func:`ptxkit.inspect.timeline.recorded`.
        FaultError: a launch has failed; everything up to there has been written and printed.
    """
    from ptxkit.cli._progress import progress
    from ptxkit.cli._text import print_json, to_stderr
    from ptxkit.files import check_writable, write_text
    from ptxkit.inspect.subject import subjects
    from ptxkit.inspect.timeline import recorded, recorded_file

    if file == "-" and as_json:
        raise UsageError("--timeline - writes the trace to stdout, where --json would print; name a file")
    if file not in (None, "-"):
        check_writable(file)
    with stdout_set_aside(), progress() as say:
        if launch is None:
            found = recorded(words, request, settings, say)
        else:
            found = recorded_file(launch(subjects(words, settings, say)), request)
    if file is not None:
        text = trace_text(found, request.latency)
        if file == "-":
            click.echo(text, nl=False)
        else:
            write_text(file, text)
    if as_json:
        print_json(summary(found, request.latency))
    elif file != "-":
        for line in lines_of(found, request.latency):
            click.echo(line)
    if file not in (None, "-"):
        to_stderr(f"wrote {file}")
    for timed in found:
        if timed.error is not None:
            raise timed.error


def trace_text(found: list[Timed], latency: int) -> str:
    """The trace as JSON text, one event in a line."""
    import json

    from ptxkit import __version__
    from ptxkit.inspect.trace import document

    facts = {"tool": f"ptxkit {__version__}", "sizes": found[0].sizes, "targets": sorted({t.target for t in found})}
    made = document([t.traced for t in found], latency, facts)
    events = ",\n".join(json.dumps(event) for event in made.pop("traceEvents"))
    return f'{{"traceEvents": [\n{events}\n],\n"otherData": {json.dumps(made["otherData"], indent=1)}}}\n'


def summary(found: list[Timed], latency: int) -> dict[str, Any]:
    """The figures as one object: schema ``ptxkit.overlap/1``."""
    from ptxkit.inspect.trace import UNIT

    launches = []
    for timed in found:
        for record, figures in zip(timed.traced.launches, timed.overlaps, strict=True):
            launches.append({
                **figures.to_json(),
                "target": timed.target,
                "ctas": record.ctas,
                "recorded_ctas": list(record.recorded),
                "left_out_spans": record.dropped,
                "ended_by": timed.traced.error or None,
            })  # fmt: skip
    return {
        "schema": SCHEMA,
        "sizes": found[0].sizes,
        "unit": UNIT.format(latency=latency),
        "latency_steps": latency,
        "launches": launches,
    }


def lines_of(found: list[Timed], latency: int) -> list[str]:
    """The figures as tables: what is in flight, and the machine code."""
    from ptxkit.cli._text import count, number_of, table
    from ptxkit.quantities import quantity

    figures = [o for timed in found for o in timed.overlaps]
    kernel = figures[0].variant.partition(":")[0] if figures else ""
    names = []
    for o in figures:
        name = o.variant.partition(":")[2]
        many = sum(p.variant == o.variant for p in figures) > 1
        names.append(f"{name} {o.launch}: {o.kernel}" if many else name)
    flight = [
        [
            name,
            count(o.steps),
            quantity(o.tma_bytes_max, "B"),
            quantity(o.tma_bytes_mean, "B"),
            count(o.products_max),
            f"{o.products_mean:.1f}",
            count(o.epilogue_steps),
            f"{o.overlapped / o.epilogue_steps:.0%}" if o.epilogue_steps else "",
            count(o.columns),
        ]
        for name, o in zip(names, figures, strict=True)
    ]
    headers = ["variant", "steps", "TMA max", "mean", "products max", "mean", "epilogue", "overlapped", "columns"]
    opcodes = [o for o in dict.fromkeys(k for f in figures for k in f.sass) if any(f.sass.get(o) for f in figures)]
    code = [
        [
            name,
            count(o.instructions),
            "" if o.registers is None else str(o.registers),
            *(str(o.sass.get(opcode, 0)) for opcode in opcodes),
        ]
        for name, o in zip(names, figures, strict=True)
    ]
    text = [f"{kernel}  {found[0].sizes}  on the emulator ({', '.join(sorted({t.target for t in found}))})", ""]
    text += table(flight, headers).split("\n")
    text += ["", *table(code, ["variant", "warp instructions", "registers", *opcodes]).split("\n"), ""]
    recorded = sorted({len(r.recorded) for t in found for r in t.traced.launches})
    ctas = sum(r.ctas - len(r.recorded) for t in found for r in t.traced.launches)
    spans = sum(r.dropped for t in found for r in t.traced.launches)
    text.append(
        f"One step is one warp instruction; all warps advance together, and an asynchronous operation takes {latency} steps or "
        "more. Steps are no time."
    )
    each = " or ".join(map(str, recorded[:-1])) + " or " * (len(recorded) > 1)
    left = f"recorded: {each}{number_of(recorded[-1], 'CTA')} of each launch; left out: {number_of(ctas, 'CTA')}"
    text.append(left + (f", and {number_of(spans, 'span')} beyond the limit" if spans else ""))
    return text
