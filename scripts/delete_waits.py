"""Delete the waits, fences and barriers of the Blackwell kernels one at a time, and say which are found to be missing.

    python scripts/delete_waits.py [--only VARIANT] [--match REGEX]

Every deletion is an edit of the compiled PTX, which the emulator then executes as late as is legal and with the race check,
at sizes at which rings of buffers wrap around and CTAs compute several tiles. A deletion is found where the launch raises an
error or gives a wrong result. A wait is named by the statement of the kernel's source that it was compiled from. Copies that
the compiler made of a statement are deleted one at a time, and all together where that finds none of them.

REASONS says of every wait that is not found why it is not. Exits with 1 where a wait is not found without a reason.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import PtxkitError
from ptxkit.isa.model import Instruction
from ptxkit.isa.parser import parse
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload import execute, registry
from ptxkit.workload.build import Build, build
from ptxkit.workload.workload import Workload

SOURCES = Path(__file__).resolve().parents[1] / "cu/kernels"
WAITS = re.compile(
    r"(?:mbarrier\.(?:try_wait|arrive)|tcgen05\.(?:wait|fence|commit)|fence\.(?:proxy|mbarrier_init)|griddepcontrol\.wait"
    r"|bar\.warp\.sync|bar(?:rier)?\.sync|barrier\.cluster\.wait|cp\.async\.(?:bulk\.)?(?:wait|commit)_(?:group|all))[^;]*;"
)
CLUSTER_ARRIVAL = re.compile(r"barrier\.cluster\.arrive[^;]*;")
MODES = {
    "warps": EmulatorSettings(completion="latest-legal", racecheck="warps", counting=False),
    "lanes": EmulatorSettings(completion="latest-legal", racecheck="lanes", counting=False),
}
"""In the order in which they are tried."""
SMS = 2

REASONS = {
    r"^fence\.mbarrier_init": "The emulator does not check it: kernels without it are common and run on hardware.",
    r"^griddepcontrol\.wait": "The emulator completes a grid before it starts the next.",
    r"^bar\.warp: (__syncwarp\(\);$|end_tensor_memory)": (
        "It brings the lanes of a warp together for the .aligned instruction that follows. In the emulator lanes that have "
        "left a branch join before they go on."
    ),
    r"^fence\.proxy\.async: fence_proxy_async_shared_cta\(\); <- (.*next_tile|more = read_answer)": (
        "It orders a read before a later asynchronous write of the same place. The emulator follows proxies from writes to "
        "reads alone, since common kernels have no fence in the other direction."
    ),
    r"^(matmul_tcgen05:step[123]|matmul_block_scaled:step1|inline_ptx:).*: tcgen05_fence_after_thread_sync": (
        "It is the only tcgen05.fence of the kernel. Kernels that have none are not checked for them, since CUTLASS's have "
        "none."
    ),
    r"^matmul_tcgen05:step4.*(sums_empty|release\(\)|after_thread_sync: tcgen05_fence_after_thread_sync)": (
        "For tiles after the first: steps 4 to 8 share the source, and in step 4 a CTA computes one tile."
    ),
    r"^(matmul_tcgen05:step[678]|matmul_block_scaled:step3).*try_wait.parity: mbarrier_wait\(empty\(at\.stage\)": (
        "These are the waits for the last arrivals before the CTA exits. The same thread commits the accumulator after the "
        "stages, its consumers wait for that, and the arrivals of one thread's commits are regarded as in order."
    ),
}
"""Why a wait is not found, by a regular expression for its name, or for the variant and its name."""


@dataclass(frozen=True)
class Subject:
    """A variant, and sizes at which each of its waits matters.

    Attributes:
        source: the file of its last kernel, without ``.cu``, where it is not that of the description.
    """

    kernel: str
    variant: str
    sizes: tuple[int, ...]
    target: str = "sm_100a"
    source: str = ""


SUBJECTS = (
    Subject("matmul_tcgen05", "step1_one_stage", (128, 128, 192)),
    Subject("matmul_tcgen05", "step2_two_stages", (128, 128, 256)),
    Subject("matmul_tcgen05", "step3_multistage", (128, 128, 576)),
    Subject("matmul_tcgen05", "step4_specialized", (128, 256, 384)),
    Subject("matmul_tcgen05", "step5_two_accumulators", (256, 768, 192)),
    Subject("matmul_tcgen05", "step6_cta_pairs", (256, 768, 192)),
    Subject("matmul_tcgen05", "step7_launch_control", (256, 1024, 192)),
    Subject("matmul_tcgen05", "step8_tma_store", (256, 1024, 192)),
    Subject("matmul_block_scaled", "step1_single_issuer", (128, 128, 640)),
    Subject("matmul_block_scaled", "step2_specialized", (256, 512, 384)),
    Subject("matmul_block_scaled", "step3_cta_pairs", (256, 768, 256)),
    Subject("matmul_block_scaled", "mma_sync", (128, 128, 640), "sm_120a", "matmul_mma_block_scaled"),
    Subject("inline_ptx", "tcgen05", (4096,)),
)


@dataclass(frozen=True)
class Deletion:
    """Waits of a kernel's PTX that are deleted together.

    Attributes:
        name: the opcode without its modifiers, and the statement that it was compiled from.
        edits: (begin, end, replacement) in the PTX, in order.
    """

    name: str
    edits: tuple[tuple[int, int, str], ...]

    def applied(self, ptx: str) -> str:
        """The PTX without them."""
        for begin, end, replacement in reversed(self.edits):
            ptx = ptx[:begin] + replacement + ptx[end:]
        return ptx


@dataclass(frozen=True)
class Outcome:
    """What became of a deletion.

    Attributes:
        mode: of :data:`MODES`; None where it was not found.
        message: the error, or ``"wrong result"``; where it was not found the reason, or "".
    """

    deletion: Deletion
    mode: str | None
    message: str


def statement(i: Instruction, source: str) -> str:
    """The innermost statement of the kernel's own file that an instruction was compiled from, and the one that calls it."""
    lines, found, loc = (SOURCES / source).read_text().splitlines(), [], i.loc
    while loc is not None:
        if Path(loc.file).name == source:
            found.append(lines[loc.line - 1].strip())
        loc = loc.inlined_at
    found = found or ["?"]
    return found[0] if len(found) == 1 else f"{found[0]} <- {found[-1]}"


def deletions(ptx: str, entry: str, source: str) -> Iterator[Deletion]:
    """All waits of a kernel of a program. Of barrier.cluster both instructions are deleted together."""
    by_line: dict[int, list[Instruction]] = {}
    for i in parse(ptx, "kernel.ptx").functions[entry].instructions:
        by_line.setdefault(i.line, []).append(i)
    arrivals = [found.span() for found in CLUSTER_ARRIVAL.finditer(ptx)]
    for found in WAITS.finditer(ptx):
        line = ptx.count("\n", 0, found.start()) + 1
        mine = next((i for i in by_line.get(line, ()) if found[0].startswith(i.opcode)), None)
        if mine is None:
            continue  # in a directive or in another kernel
        edits = [(*found.span(), "")]
        if "try_wait" in mine.opcode:
            predicate = re.search(r"\.b64\s+(\S+),", found[0])
            assert predicate is not None
            edits = [(*found.span(), f"setp.eq.u32 {predicate[1]}, 0, 0;")]
        if mine.opcode.startswith("barrier.cluster.wait"):
            edits.insert(0, (*[span for span in arrivals if span[1] <= found.start()][-1], ""))
        opcode = re.sub(r"\.(shared|sync|aligned|cta_group|b64|mbarrier|multicast|acquire)\b.*", "", mine.opcode)
        yield Deletion(f"{opcode}: {statement(mine, source)}", tuple(edits))


def attempt(subject: Subject, whole: Build, deletion: Deletion | None, settings: EmulatorSettings) -> str | None:
    """Run a variant with a deletion in the kernel of its last launch; the error, or ``"wrong result"``, or None."""
    if deletion is not None:
        *others, last = whole.steps
        image = replace(last.image, ptx=deletion.applied(last.image.ptx), key=f"{last.image.key} without {deletion.edits}")
        whole = replace(whole, steps=(*others, replace(last, image=image)))
    device = EmulatedDevice(Machine(sms=SMS), settings)
    case = execute.Case(registry.get(subject.kernel).make(subject.sizes, {}), device, seed=5)
    try:
        verdict = execute.bound(case, whole).verify()
    except PtxkitError as error:
        return str(error)
    return None if verdict.verified else "wrong result"


def examine(subject: Subject, match: str = "", modes: Iterable[str] = tuple(MODES)) -> list[Outcome]:
    """Delete each wait of a variant whose name the regular expression ``match`` finds."""
    with patch.object(Workload, "device", replace(reference_facts(subject.target), sms=SMS)):
        kind = registry.get(subject.kernel)
        whole = build(kind.make(subject.sizes, {}), kind.variant(subject.variant))
        for mode in modes:
            complaint = attempt(subject, whole, None, MODES[mode])
            assert complaint is None, f"{subject.variant} as it is, {mode}: {complaint}"

        def outcome(d: Deletion) -> Outcome:
            for mode in modes:
                complaint = attempt(subject, whole, d, MODES[mode])
                if complaint is not None:
                    return Outcome(d, mode, " ".join(complaint.split()))
            step = f"{subject.kernel}:{subject.variant} {d.name}"
            reason = next((r for pattern, r in REASONS.items() if re.search(pattern, d.name) or re.search(pattern, step)), "")
            return Outcome(d, None, reason)

        last, source = whole.steps[-1], f"{subject.source or subject.kernel}.cu"
        waits = deletions(last.image.ptx, last.image.entry(last.launch.entry), source)
        chosen = [d for d in waits if re.search(match, d.name)]
        found = [outcome(d) for d in chosen]
        missed = [o.deletion for o in found if o.mode is None and not o.message]
        for name in sorted({d.name for d in missed}):
            copies = [d for d in missed if d.name == name]
            if len(copies) < 2:
                continue
            o = outcome(Deletion(name, tuple(edit for d in copies for edit in d.edits)))
            if o.mode is not None:  # each of them does what the others do
                found = [o if f.deletion in copies else f for f in found]
        return found


def main(arguments: list[str]) -> int:
    """Print every deletion with its outcome."""
    parser = argparse.ArgumentParser(description="Delete the waits of the Blackwell kernels one at a time.")
    parser.add_argument("--only", default="", help="examine only variants whose kernel:variant contains this text")
    parser.add_argument("--match", default="", help="delete only waits whose name matches this regular expression")
    given = parser.parse_args(arguments)
    unexplained = 0
    for subject in SUBJECTS:
        name = f"{subject.kernel}:{subject.variant}"
        if given.only not in name:
            continue
        outcomes = examine(subject, given.match)
        missed = [o for o in outcomes if o.mode is None]
        unexplained += sum(not o.message for o in missed)
        print(f"{name} {'x'.join(map(str, subject.sizes))}: {len(outcomes) - len(missed)} of {len(outcomes)} found", flush=True)
        for o in outcomes:
            print(f"  {o.mode or 'not found':9} {o.deletion.name}\n            {o.message[:400]}", flush=True)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
