"""``ptxkit inspect k.cu --html k.html --arg x=float32[1024] --grid 4``: the launch whose counts the page shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ptxkit.errors import UsageError
from ptxkit.inspect.subject import Subject


def launched(chosen: Sequence[Subject], arguments: Sequence[str], grid: str | None, cooperative: bool) -> Subject:
    """The only subject, a kernel of a source file, with the launch that the options describe.

    Block, cluster and shared memory are those for which the subject's occupancy is computed.

    Raises:
        UsageError: several subjects, no source file, or an argument that is missing or does not fit.
    """
    from ptxkit.source_run.call import Geometry, make_call
    from ptxkit.source_run.entries import CompiledFile
    from ptxkit.source_run.grammar import parse_argument, parse_dim3
    from ptxkit.source_run.workload import Prepared, built_of

    if len(chosen) != 1:
        names = ", ".join(subject.title for subject in chosen)
        raise UsageError(f"--arg and --grid describe the launch of one kernel; name one of {names}")
    (subject,) = chosen
    if subject.build is not None:
        raise UsageError(
            f"--arg and --grid are for source files; the description of {subject.title} gives its launches"
        )
    image = subject.image
    if image is None or not image.ptx:
        raise UsageError(
            f"{subject.title} holds no PTX, which the emulator executes; give --arg with a .cu or .ptx file"
        )
    geometry = Geometry(
        grid=None if grid is None else parse_dim3(grid, "--grid"),
        block=(subject.block, 1, 1) if subject.block_known else None,
        cluster=(subject.cluster, 1, 1) if subject.cluster > 1 else None,
        shared=subject.dynamic_shared_bytes,
        cooperative=cooperative,
    )
    path = Path(image.sources[0] if image.sources else image.source_name)
    file = CompiledFile(path, image)
    call = make_call(
        file, file.entry(subject.function.name), [parse_argument(text) for text in arguments], geometry, {}, {}
    )
    return replace(subject, launched=built_of(Prepared(call)))
