"""Assertions on the machine code of kernels, which need no device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ptxkit.arguments import MAPPING, NOTHING, STRINGS, takes, whole
from ptxkit.errors import UsageError

if TYPE_CHECKING:
    from ptxkit.compiler.image import Image
    from ptxkit.inspect.model import SassFunction, SassInstruction
    from ptxkit.inspect.subject import Subject

_SHOWN = 6  # offending instructions in a message


@takes(
    has=STRINGS | MAPPING,
    lacks=STRINGS,
    **dict.fromkeys(("spills", "max_registers", "max_instructions", "min_ctas_per_sm"), whole(0) | NOTHING),
)
def assert_sass(
    kernel: str | Image | SassFunction | Subject,
    *,
    has: str | Iterable[str] | Mapping[str, int] = (),
    lacks: str | Iterable[str] = (),
    spills: int | None = None,
    max_registers: int | None = None,
    max_instructions: int | None = None,
    min_ctas_per_sm: int | None = None,
) -> None:
    """Check the machine code of a kernel.

    Args:
        kernel: words that ``ptxkit inspect`` takes, such as ``"fused_l2norm:vectorized@sm_90a,VECTORS=4"`` or
            ``"mine.cu:copy<256>"``; or a compiled or disassembled kernel. All kernels that it names are checked.
        has: instructions that must be there: opcodes (``"HGMMA"``), opcodes with modifiers (``"LDG.E.128"``), classes
            (``"LDG.128"``) or groups (``"tensor"``) of :func:`ptxkit.inspect.mix`; a mapping gives the minimum count of each.
        lacks: instructions that must not be there.
        spills: the maximum of the bytes of spill stores and loads together.
        max_registers: per thread.
        max_instructions: of the kernel.
        min_ctas_per_sm: CTAs of its launch that an SM must hold.

    Raises:
        AssertionError: a condition is not met; the message shows the instructions that violate it.
        UsageError: no such kernel, or ``spills`` for an old cubin, which does not mark spills.
    """
    __tracebackhide__ = True
    wanted = dict(has) if isinstance(has, Mapping) else dict.fromkeys([has] if isinstance(has, str) else has, 1)
    unwanted = [lacks] if isinstance(lacks, str) else list(lacks)
    complaints: list[str] = []
    for subject in _subjects(kernel):
        found = [
            *(_too_few(subject.function, name, least) for name, least in wanted.items()),
            *(_present(subject.function, name) for name in unwanted),
            _spilled(subject, spills),
            _registers(subject.function, max_registers),
            _length(subject.function, max_instructions),
            _ctas(subject, min_ctas_per_sm),
        ]
        if any(found):
            complaints.append(f"{subject.title} {subject.kernel} ({subject.function.target})")
            complaints += [text for text in found if text]
    if complaints:
        raise AssertionError("\n".join(complaints))


def _subjects(kernel: str | Image | SassFunction | Subject) -> tuple[Subject, ...]:
    from ptxkit.compiler.image import Image
    from ptxkit.inspect.disassembly import sass
    from ptxkit.inspect.model import SassFunction
    from ptxkit.inspect.residency import default_block
    from ptxkit.inspect.subject import Subject, subjects

    if isinstance(kernel, str):
        return subjects(kernel)
    if isinstance(kernel, Subject):
        return (kernel,)
    if isinstance(kernel, SassFunction):
        return (Subject("kernel", kernel.name, kernel, block=default_block(kernel)),)
    if isinstance(kernel, Image):
        return tuple(
            Subject(kernel.source_name, kernel.readable(name), function, kernel, block=default_block(function))
            for name, function in sass(kernel).items()
        )
    raise UsageError(f"assert_sass takes words, an Image or a disassembled kernel, not {type(kernel).__name__}")


def _matching(function: SassFunction, name: str) -> list[SassInstruction]:
    from ptxkit.inspect.classes import class_of, group_of

    parts = name.split(".")
    return [
        i
        for i in function.instructions
        if name in (i.opcode, class_of(i), group_of(i)) or i.name.split(".")[: len(parts)] == parts
    ]


def _too_few(function: SassFunction, name: str, least: int) -> str:
    from ptxkit.inspect.classes import class_of

    found = _matching(function, name)
    if len(found) >= least:
        return ""
    if found:
        return f"  has {len(found)} {name}, fewer than {least}:\n{_lines(found)}"
    opcode = name.split(".")[0]
    near = [i for i in function.instructions if i.opcode == opcode]
    near = near or [i for i in function.instructions if i.opcode[-3:] == opcode[-3:]]  # HMMA where HGMMA is wanted
    kinds = ", ".join(dict.fromkeys(class_of(i) for i in near))
    return f"  has no {name}; it has {kinds}:\n{_lines(near)}" if near else f"  has no {name}, and nothing like it"


def _present(function: SassFunction, name: str) -> str:
    found = _matching(function, name)
    return f"  has {len(found)} {name}, which it must not:\n{_lines(found)}" if found else ""


def _spilled(subject: Subject, most: int | None) -> str:
    if most is None:
        return ""
    resources = subject.function.resources
    local = [i for i in subject.function.instructions if i.is_spill]
    if not subject.function.spills_known:
        raise UsageError(
            f"{subject.title}: this cubin does not distinguish spills from other local memory; compile the source"
        )
    total = resources.spill_store_bytes + resources.spill_load_bytes
    if total <= most:
        return ""
    stored, loaded = resources.spill_store_bytes, resources.spill_load_bytes
    return f"  spills {total} bytes ({stored} stored, {loaded} loaded), more than {most}:\n{_lines(local)}"


def _registers(function: SassFunction, most: int | None) -> str:
    used = function.resources.registers
    if most is None or used <= most:
        return ""
    peak = function.peak
    where = f"; {peak.live['R']} are live at most:\n{_lines([peak])}" if peak else ""
    return f"  uses {used} registers, more than {most}{where}"


def _length(function: SassFunction, most: int | None) -> str:
    count = len(function.instructions)
    return f"  has {count} instructions, more than {most}" if most is not None and count > most else ""


def _ctas(subject: Subject, least: int | None) -> str:
    found = subject.occupancy
    if least is None or found.ctas_per_sm >= least:
        return ""
    why = found.impossible or f"limited by {' and '.join(found.limiters)}"
    return f"  fits {found.ctas_per_sm} CTAs of {found.block} threads on an SM, fewer than {least}: {why}"


def _lines(instructions: list[SassInstruction]) -> str:
    shown = []
    for i in instructions[:_SHOWN]:
        place = f"{i.source.file.rsplit('/', 1)[-1]}:{i.source.line}" if i.source else f"PTX line {i.ptx_line}"
        shown.append(f"    {place}  {i.address:04x}  {i}")
    if len(instructions) > _SHOWN:
        shown.append(f"    and {len(instructions) - _SHOWN} more")
    return "\n".join(shown)
