"""Two kernels side by side: resources, mix, occupancy, and SASS aligned without regard to register numbers and addresses."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from dataclasses import dataclass

from ptxkit.inspect.classes import class_of, group_of
from ptxkit.inspect.model import SassFunction, SassInstruction
from ptxkit.inspect.residency import Occupancy, occupancy

_REGISTER = re.compile(r"\b(UR|UP|R|P|B|SB)(\d+)\b")
_LABEL = re.compile(r"\.L_x?_?\d+|\.L_\w+")
_SCRATCH = re.compile(r"\.reuse\b")


@dataclass(frozen=True)
class Line:
    """One line of an aligned diff.

    Attributes:
        mark: ``" "`` the same on both sides, ``"-"`` only left, ``"+"`` only right.
        left, right: the instruction on each side, or None.
    """

    mark: str
    left: SassInstruction | None
    right: SassInstruction | None


@dataclass(frozen=True)
class Difference:
    """What :func:`diff` found.

    Attributes:
        left, right: the kernels.
        resources: name -> (left, right): registers, shared and local bytes, spills, barriers, instructions, CTAs an SM.
        classes: instruction class -> (group, left count, right count), where the counts differ.
        lines: the aligned SASS.
    """

    left: SassFunction
    right: SassFunction
    resources: dict[str, tuple[int, int]]
    classes: dict[str, tuple[str, int, int]]
    lines: tuple[Line, ...]

    @property
    def same(self) -> bool:
        """Whether the code is the same but for registers and addresses, and the resources are too."""
        return all(line.mark == " " for line in self.lines) and all(a == b for a, b in self.resources.values())


def diff(
    left: SassFunction,
    right: SassFunction,
    occupancies: tuple[Occupancy, Occupancy] | None = None,
) -> Difference:
    """Compare two kernels.

    Args:
        left, right: disassembled.
        occupancies: of their launches; None takes each at the CTA size its directives name, else 256.
    """
    ours, theirs = occupancies or (occupancy(left), occupancy(right))
    one, two = left.resources, right.resources
    resources = {
        "instructions": (len(left.instructions), len(right.instructions)),
        "registers": (one.registers, two.registers),
        "shared bytes": (one.shared_bytes, two.shared_bytes),
        "local bytes": (one.local_bytes, two.local_bytes),
        "spill store bytes": (one.spill_store_bytes, two.spill_store_bytes),
        "spill load bytes": (one.spill_load_bytes, two.spill_load_bytes),
        "barriers": (one.barriers, two.barriers),
        "CTAs per SM": (ours.ctas_per_sm, theirs.ctas_per_sm),
        "warps per SM": (ours.warps_per_sm, theirs.warps_per_sm),
    }
    counts = [Counter((group_of(i), class_of(i)) for i in f.instructions) for f in (left, right)]
    changed = sorted(k for k in {*counts[0], *counts[1]} if counts[0][k] != counts[1][k])
    classes = {name: (group, counts[0][group, name], counts[1][group, name]) for group, name in changed}
    return Difference(left, right, resources, classes, tuple(_aligned(left, right)))


def normal(instruction: SassInstruction) -> str:
    """An instruction without what a recompile renumbers: registers, predicates, scoreboards, labels and reuse marks.

    Constants, special registers, memory offsets and which operand is RZ, PT or immediate stay.
    """
    text = _SCRATCH.sub("", str(instruction))
    return _LABEL.sub(".L", _REGISTER.sub(r"\1", text))


def _aligned(left: SassFunction, right: SassFunction) -> list[Line]:
    ours, theirs = left.instructions, right.instructions
    # autojunk would treat the commonest instructions, a kernel's very loop, as noise.
    matcher = difflib.SequenceMatcher(None, [normal(i) for i in ours], [normal(i) for i in theirs], autojunk=False)
    lines: list[Line] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            lines += [Line(" ", a, b) for a, b in zip(ours[i1:i2], theirs[j1:j2], strict=True)]
        else:
            lines += [Line("-", a, None) for a in ours[i1:i2]]
            lines += [Line("+", None, b) for b in theirs[j1:j2]]
    return lines
