"""Runs the variants of a kernel in the emulator for their timelines: ``ptxkit inspect --timeline`` and ``--overlap``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxkit.emulator.timeline.record import DEFAULT_LATENCY, MOST_CTAS
from ptxkit.emulator.timeline.recorder import Timeline
from ptxkit.errors import FaultError, UnavailableError, UsageError
from ptxkit.inspect.overlap import Overlap, overlaps
from ptxkit.inspect.subject import Settings, Subject, built_subjects, resolved_variants
from ptxkit.inspect.trace import Traced

if TYPE_CHECKING:
    from ptxkit.runtime.emulated import EmulatedDevice
    from ptxkit.workload.build import Build


@dataclass(frozen=True)
class Request:
    """What to record.

    Attributes:
        sizes: of the kernel, in the order of ``ptxkit list``; none for its sizes in the emulator.
        ctas: linear indices; None is the first CTA, or the first cluster.
        latency: steps for which an asynchronous operation is in flight at least.
        sms: of the emulated GPU; None for those of the target's reference GPU.
    """

    sizes: tuple[str, ...] = ()
    ctas: tuple[int, ...] | None = None
    latency: int = DEFAULT_LATENCY
    sms: int | None = None


@dataclass(frozen=True)
class Timed:
    """A variant that was recorded.

    Attributes:
        traced: its launches. overlaps: their figures. sizes: as text. target: of its code.
        error: what ended its launches, or None.
    """

    traced: Traced
    overlaps: tuple[Overlap, ...]
    sizes: str
    target: str
    error: FaultError | None = None


def recorded(
    words: str, request: Request, settings: Settings, say: Callable[[str], None] = lambda what: None
) -> list[Timed]:
    """Launch the variants that ``words`` name once in the emulator, and record them.

    Raises:
        UsageError: a file without a description, which has no launch; no such kernel, variant, size or CTA.
        UnavailableError: none of the variants runs in the emulator.
    """
    from ptxkit.emulator import Machine
    from ptxkit.runtime.emulated import EmulatedDevice
    from ptxkit.workload import execute

    device = EmulatedDevice(Machine(sms=request.sms))
    workload, variants = resolved_variants(words, request.sizes, settings, device, say)
    found, refused = [], ""
    for resolved in variants:
        lacks = execute.lacking(resolved.variant, device, workload.name)
        if lacks is not None:
            refused = lacks
            continue
        subjects = built_subjects(resolved, settings)
        build = subjects[0].build
        assert build is not None
        say(f"recording {workload.name}:{resolved.variant.name}")
        found.append(_recorded(f"{workload.name}:{resolved.variant.name}", build, subjects, request, device))
    if not found:
        raise UnavailableError(refused or f"{words} has no variant that runs in the emulator")
    return found


def recorded_file(subject: Subject, request: Request) -> list[Timed]:
    """Launch the kernel of a source file, with the launch that its subject was given, and record it.

    Raises:
        UsageError: there are sizes, which a file does not have; no such CTA.
    """
    from ptxkit.emulator import Machine
    from ptxkit.runtime.emulated import EmulatedDevice

    if request.sizes:
        raise UsageError(f"{subject.title} has no sizes; remove {' '.join(request.sizes)}")
    assert subject.launched is not None
    device = EmulatedDevice(Machine(sms=request.sms))
    return [_recorded(subject.title, subject.launched, [subject], request, device)]


def _recorded(title: str, build: Build, subjects: Sequence[Subject], request: Request, device: EmulatedDevice) -> Timed:
    timeline = Timeline(request.ctas, request.latency)
    error = _launch(build, device, timeline)
    traced = Traced(title, timeline.launches, str(error or "").split("\n")[0])
    if error is None:
        _check_ctas(traced, request.ctas)
    figures = tuple(overlaps(traced, [s.function for s in subjects]))
    return Timed(traced, figures, build.workload.size_text(), build.target.name, error)


def _launch(build: Build, device: EmulatedDevice, timeline: Timeline) -> FaultError | None:
    """Launch a build once with its own arrays; the fault that ended it, or None."""
    from ptxkit.workload import execute

    case = execute.Case(build.workload, device, target=build.target)
    prepared = execute.bound(case, build)
    prepared.state.restore()
    if build.workload.outputs():
        case.reset()
    try:
        with device.settings(timeline=timeline, counting=False):
            prepared.launch()
            device.synchronize()
    except FaultError as error:
        return error
    finally:
        timeline.finish()
    return None


def _check_ctas(traced: Traced, ctas: Sequence[int] | None) -> None:
    """A CTA that no launch has is a mistake."""
    most = max((record.ctas for record in traced.launches), default=0)
    beyond = [cta for cta in ctas or () if cta >= most]
    if beyond:
        raise UsageError(
            f"--ctas names CTA {beyond[0]}, and {traced.title} has CTAs 0 to {most - 1}; name one of these"
        )


def parse_ctas(text: str) -> tuple[int, ...]:
    """``"0-3,8"`` as linear indices of CTAs.

    Raises:
        UsageError: it is something else, or more than :data:`~ptxkit.emulator.timeline.record.MOST_CTAS` CTAs.
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (_number(first) and (_number(last) if dash else True)) or (dash and int(last) < int(first)):
            raise UsageError(f"--ctas takes numbers and ranges of CTAs such as 0-3,8; it cannot be {text!r}")
        end = int(last) if dash else int(first)
        if end - int(first) >= MOST_CTAS or len(found) >= MOST_CTAS:
            raise UsageError(f"--ctas {text} names more than {MOST_CTAS} CTAs, the most that one timeline has")
        found += range(int(first), end + 1)
    if len(set(found)) > MOST_CTAS:
        raise UsageError(f"--ctas {text} names more than {MOST_CTAS} CTAs, the most that one timeline has")
    return tuple(dict.fromkeys(found))


def _number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10
