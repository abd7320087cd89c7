"""Findings about a kernel's SASS: performance problems, each with the source line where it occurs."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ptxkit.compiler.image import Image
from ptxkit.inspect.banks import register_banks
from ptxkit.inspect.classes import group_of, width_bits
from ptxkit.inspect.divergence import divergent_regions, varying_guards
from ptxkit.inspect.model import SassFunction, SassInstruction
from ptxkit.inspect.natural_loops import depth_of
from ptxkit.inspect.residency import occupancy
from ptxkit.inspect.slow_arithmetic import slow_arithmetic
from ptxkit.isa.model import Loc
from ptxkit.targets import TARGETS, Target, missing
from ptxkit.targets.sm import NAMED_BARRIERS

# A loop whose register-bank conflicts are reported loses at least this share of its issue slots,
MIN_LOST_SLOTS = 0.1
# consists of arithmetic to at least this share,
MIN_ARITHMETIC = 0.7
# and has at least this many arithmetic instructions per access to global memory; with fewer it waits for memory instead.
MIN_ARITHMETIC_PER_ACCESS = 32
_LOCAL = frozenset({"LDL", "STL"})
_WARP_MMA = frozenset({"HMMA", "IMMA", "QMMA", "BMMA", "OMMA"})
_LARGE_MMA = ("HGMMA", "IGMMA", "QGMMA", "BGMMA", "UTC")
_LARGE_MMA_FEATURES = {"wgmma": "HGMMA", "tcgen05": "UTCHMMA"}  # feature of targets -> its SASS
_DOUBLE = frozenset({"DFMA", "DADD", "DMUL"})
SLOW_FP64 = 2  # results of an SM in a clock with which double precision is a small fraction of single precision
_ADDRESS = re.compile(r"\[([^\]]*?)(?:\+(-?0x[0-9a-f]+))?\]")
_COMPILER_WARNING = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+)(?::\d+)?: warning: (?P<text>.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """One performance finding.

    Attributes:
        rule: its short name: ``"local-memory-in-loop"``.
        message: one sentence.
        source: the line where it occurs, or None when the cubin has no lines.
        ptx_line: the line of the PTX, or None.
        address: of the first affected instruction, or None when the finding comes from the compiler's log.
        count: number of affected instructions.
    """

    rule: str
    message: str
    source: Loc | None = None
    address: int | None = None
    count: int = 1
    ptx_line: int | None = None


def findings(function: SassFunction, image: Image | None = None) -> tuple[Finding, ...]:
    """All findings, in order of source lines.

    Args:
        function: the kernel.
                image: the image that contains the kernel, for the compiler's own warnings.
    """
    found = [
        *_local_memory(function),
        *_narrow_accesses(function),
        *_small_mma(function),
        *_barriers(function),
        *_barrier_numbers(function),
        *_generic_accesses(function, image),
        *_double_precision(function),
        *(_finding("slow-arithmetic", message, group) for message, group in slow_arithmetic(function)),
        *_register_banks(function),
        *(_from_compiler(image, function) if image else ()),
    ]
    unique = {(f.rule, f.message, f.source): f for f in found}
    return tuple(
        sorted(unique.values(), key=lambda f: (f.source.line if f.source else f.ptx_line or 0, f.address or 0))
    )


def _local_memory(function: SassFunction) -> Iterator[Finding]:
    depth = depth_of(function)
    array = "an array whose index is not a constant, or whose address is taken"
    if not function.spills_known:
        array = "an array, or spilled registers"
    for spilled, why in ((True, "registers are spilled"), (False, array)):
        chosen = [i for i in function.instructions if i.opcode in _LOCAL and i.is_spill == spilled]
        in_loops = [i for i in chosen if i.address in depth]
        for group in _by_line(in_loops):
            yield _finding("local-memory-in-loop", f"local memory traffic in a loop: {_counts(group)}; {why}", group)
        if chosen and not in_loops:
            yield _finding("local-memory", f"local memory traffic: {_counts(chosen)}; {why}", chosen)


def _counts(group: list[SassInstruction]) -> str:
    kinds = Counter(i.opcode for i in group)
    return " and ".join(f"{count} {opcode}" for opcode, count in sorted(kinds.items()))


def _narrow_accesses(function: SassFunction) -> Iterator[Finding]:
    """Runs of neighbouring accesses through one base address within a block, which one wider access would replace."""
    best: dict[tuple[Loc | None, str], Finding] = {}
    for block in function.blocks:
        version: Counter[str] = Counter()
        groups: dict[tuple[object, ...], dict[int, SassInstruction]] = defaultdict(dict)
        for instruction in block.instructions:
            match = _ADDRESS.search(instruction.operands.replace("desc[", "desc(", 1).replace("][", ")[", 1))
            if instruction.opcode in ("LDG", "STG", "LDS", "STS", "LD", "ST") and match:
                bases = tuple((r, version[r]) for r in re.findall(r"\bU?R\d+\b", match[1]))
                key = (instruction.opcode, instruction.modifiers, instruction.predicate, match[1], bases)
                groups[key].setdefault(int(match[2] or "0", 16), instruction)
            version.update(instruction.writes)
        for by_offset in groups.values():
            for found in _runs(by_offset):
                key_of_line = (found.source, found.message.split("(")[1][:3])
                if key_of_line not in best or best[key_of_line].count < found.count:  # keep the longest run of a line
                    best[key_of_line] = found
    yield from best.values()


def _runs(by_offset: dict[int, SassInstruction]) -> Iterator[Finding]:
    width = width_bits(next(iter(by_offset.values())))
    run: list[int] = []
    for offset in [*sorted(by_offset), None]:
        if run and (offset is None or offset != run[-1] + width // 8):
            bits = min(128, 1 << (len(run) * width).bit_length() - 1)
            if bits >= 4 * width or (bits == 128 and width == 64):
                group = [by_offset[o] for o in run]
                kind = "loads" if group[0].opcode.startswith("L") else "stores"
                message = (
                    f"{len(run)} neighbouring {width}-bit {kind} ({group[0].opcode}) where {bits}-bit ones would do, "
                    f"if the address is a multiple of {bits // 8}"
                )
                yield _finding("narrow-access", message, group)
            run = []
        if offset is not None:
            run.append(offset)


def _small_mma(function: SassFunction) -> Iterator[Finding]:
    small = [i for i in function.instructions if i.opcode in _WARP_MMA]
    if not small or any(i.opcode.startswith(_LARGE_MMA) for i in function.instructions):
        return
    better = _tensor_feature(function.target)
    if better:
        depth = depth_of(function)
        group = sorted(small, key=lambda i: -depth.get(i.address, 0))
        message = (
            f"{small[0].opcode} (mma.sync) on a GPU with {better}, which is needed for the tensor cores' full rate"
        )
        yield _finding("small-mma", message, group)


def _tensor_feature(target: Target) -> str:
    """The instructions for the full rate of the tensor cores, in words; "" where mma.sync is the only one."""
    for feature, opcode in _LARGE_MMA_FEATURES.items():
        if missing((feature,), target) is None:
            return f"{feature} ({opcode})"
        if f"{target.name}a" in TARGETS and missing((feature,), TARGETS[f"{target.name}a"]) is None:
            return f"{feature} ({opcode}; compile for {target.name}a)"
    return ""


def _barriers(function: SassFunction) -> Iterator[Finding]:
    barriers = [(b.index, i) for b in function.blocks for i in b.instructions if i.opcode == "BAR"]
    regions = divergent_regions(function) if barriers else {}
    varying = varying_guards(function) if barriers else frozenset()
    ptx = function.ptx.split("\n")
    for index, instruction in barriers:
        branch = instruction if instruction.address in varying else regions.get(index)
        line = instruction.ptx_line
        text = ptx[line - 1].strip() if line and 0 < line <= len(ptx) else ""
        not_aligned = text.startswith("barrier.") and ".aligned" not in text and ".cluster" not in text
        if branch is None or not_aligned or "ARV" in instruction.modifiers:
            continue
        where = f"in line {branch.source.line}" if branch.source else f"in PTX line {branch.ptx_line}"
        how = {"EXIT": f"may have left the kernel {where}", "BAR": "may skip it"}.get(
            branch.opcode, f"may have taken another path {where}"
        )
        message = f"a barrier that a whole warp must reach, but some of its threads {how}"
        yield _finding("divergent-barrier", message, [instruction])


def _barrier_numbers(function: SassFunction) -> Iterator[Finding]:
    """Findings for barriers whose number is not a constant: ptxas then allocates all 16 named barriers to each CTA, and an
    SM has only 16 to 64 of them for all its CTAs."""
    computed = [
        i
        for i in function.instructions
        if i.opcode == "BAR" and re.match(r"R\d+", i.operands.removeprefix("{").strip())
    ]
    if computed and function.target.cc >= 90 and function.resources.barriers == NAMED_BARRIERS:
        limit = occupancy(function).limits["barriers"]
        message = (
            f"the number of a barrier is not a constant, so a CTA takes all {NAMED_BARRIERS}: "
            f"no more than {limit} CTAs fit an SM"
        )
        yield _finding("all-barriers", message, computed)


def _generic_accesses(function: SassFunction, image: Image | None) -> Iterator[Finding]:
    generic = [i for i in function.instructions if i.opcode in ("LD", "ST", "ATOM") and not _is_distributed(i, image)]
    for group in _by_line(generic):
        message = (
            f"{len(group)} accesses by generic address ({group[0].opcode}): the compiler could not tell the state space"
        )
        yield _finding("generic-access", message, group)


def _is_distributed(instruction: SassInstruction, image: Image | None) -> bool:
    """Whether a generic access is to distributed shared memory, which SASS can only access by generic address."""
    if image is None or instruction.ptx_line is None:
        return False
    lines = image.ptx.splitlines()
    return instruction.ptx_line <= len(lines) and "shared::cluster" in lines[instruction.ptx_line - 1]


def _double_precision(function: SassFunction) -> Iterator[Finding]:
    if function.target.limits.fp64_per_clock != SLOW_FP64:
        return
    if any(i.opcode in ("LDG", "LDS", "LD") and width_bits(i) == 64 for i in function.instructions):
        return  # the kernel loads doubles, so its arithmetic on doubles is intended
    widened = any(i.opcode == "F2F" and {"F64", "F32"} <= set(i.modifiers) for i in function.instructions)
    if widened:
        for group in _by_line(i for i in function.instructions if i.opcode in _DOUBLE):
            message = f"{len(group)} double-precision instructions on floats, at a fraction of the rate; is a suffix f missing?"
            yield _finding("double-precision", message, group)


def _register_banks(function: SassFunction) -> Iterator[Finding]:
    """Findings for loops that are bound by issue: mostly arithmetic, with few accesses to global memory."""
    found = register_banks(function)
    if found is None or found.first is None or found.share < MIN_LOST_SLOTS:
        return
    if found.arithmetic < MIN_ARITHMETIC * found.slots:
        return
    if MIN_ARITHMETIC_PER_ACCESS * sum(group_of(i) == "global" for i in found.loop.instructions) > found.arithmetic:
        return
    message = (
        f"register banks: {found.delayed} of {found.arithmetic} arithmetic instructions of the hottest loop wait for an "
        f"operand, {found.share:.0%} of its issue slots (a model); let successive multiply-adds share an operand (one row "
        "forwards, the next one backwards), keep that order by --ptxas-options=-O1, have more of them in a thread, or try "
        "another tile"
    )
    yield Finding(
        "register-banks", message, found.first.source, found.first.address, found.delayed, found.first.ptx_line
    )


def _from_compiler(image: Image, function: SassFunction) -> Iterator[Finding]:
    """The compiler's warnings that name this kernel or no kernel, except about spills, which have a rule of their own."""
    names = {function.name, image.readable(function.name), image.readable(function.name).split("<")[0]}
    others = {n for m in image.functions if m != function.name for n in (m, image.readable(m))} - names
    for match in _COMPILER_WARNING.finditer(image.log):
        text = match["text"]
        words = set(re.findall(r"[\w$]+(?:<[^>]*>)?", text))
        if " spills registers " in text or (words & others and not words & names):
            continue
        rule = (
            "wgmma-serialised" if "serialized" in text else "wgmma" if re.search(r"\(C75\d\d\)", text) else "compiler"
        )
        yield Finding(rule, text.strip(), Loc(match["file"], int(match["line"])))


def _by_line(instructions: Iterable[SassInstruction]) -> list[list[SassInstruction]]:
    groups: dict[object, list[SassInstruction]] = {}
    for instruction in instructions:
        place = (instruction.source.file, instruction.source.line) if instruction.source else None
        groups.setdefault(place, []).append(instruction)
    return list(groups.values())


def _finding(rule: str, message: str, group: list[SassInstruction]) -> Finding:
    first = group[0]
    return Finding(rule, message, first.source, first.address, len(group), first.ptx_line)
