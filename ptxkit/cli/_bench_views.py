"""Views of ``ptxkit bench`` on several cases of a kernel, and on machines without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ptxkit.cli._options import parse_arch, parse_pairs
from ptxkit.cli._output import stdout_set_aside
from ptxkit.errors import UsageError

if TYPE_CHECKING:
    from ptxkit.bench.report.tables import Table
    from ptxkit.targets import Target
    from ptxkit.targets.gpus import Gpu


def documented_roofline(
    words: Sequence[str],
    arch: str | None,
    gpu_name: str | None,
    sizes: str | None,
    options: Sequence[str],
    kind: Any,
    as_json: bool,
) -> int:
    """Count kernels in the emulator and print their intensities below documented roofs; return the exit code.

    Raises:
        UsageError: no such GPU or kernel, or a target that the GPU does not run. UnavailableError: no such target.
    """
    from ptxkit.bench.cases import parse_sizes, plans
    from ptxkit.bench.measure.benchmark import Benchmark
    from ptxkit.bench.report import documented_roofline as report
    from ptxkit.cli import _bench_verdict, _run_text
    from ptxkit.runtime.device import emulating_device

    target, gpu = target_and_gpu(parse_arch(arch), gpu_name)
    wanted = () if sizes is None else parse_sizes(sizes)
    with stdout_set_aside(), _run_text.progress() as say:
        chosen = plans(words, wanted, parse_pairs(options, "--option"), small=True)
        bench = Benchmark(emulating_device(), target=target, leave_out=not words)
        results = bench.run(chosen, say)
        made = report.to_json(results, gpu) if as_json else None
    printed(made, report.csv(results, gpu), [report.table(results, gpu)], kind)
    return _bench_verdict.complain(results)


def printed(made: dict[str, Any] | None, csv: str, tables: Sequence[Table], kind: Any) -> None:
    """Print a view as one JSON object where it is given, else as CSV or as tables."""
    from ptxkit.cli import _bench_text
    from ptxkit.cli._text import print_json

    if made is not None:
        print_json(made)
    else:
        click.echo(csv if kind == "csv" else _bench_text.rendered(tables, kind))


def target_and_gpu(target: Target | None, gpu_name: str | None) -> tuple[Target, Gpu]:
    """The target to compile for, and the GPU whose documented roofs apply: the one that is named, else the target's.

    Raises:
        UsageError: no documented GPU has this name, or it does not run code of the target.
    """
    from ptxkit.targets.gpus import REFERENCE_GPUS, find_gpu, reference_gpu, target_of

    if gpu_name is None:
        assert target is not None
        gpu = reference_gpu(target)
        if gpu.cc != target.cc:
            able = [repr(other.name) for other in REFERENCE_GPUS if target_of(other).accepts(target)]
            fix = f"give --gpu, such as {able[0]}" if able else "give another --arch"
            raise UsageError(f"no GPU of {target} is documented; {fix}")
        return target, gpu
    gpu = find_gpu(gpu_name)
    own = target_of(gpu)
    if target is not None and not own.accepts(target):
        raise UsageError(f"{gpu.name} does not run code for {target}; its own target is {own}")
    return target or own, gpu
