"""The cases of a sample as they are measured: on a GPU at their sizes, in the emulator at smaller ones, by chosen variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxkit.bench.cases import Plan
from ptxkit.bench.shapes.grid import Shape, alternatives
from ptxkit.bench.shapes.reduced import reduced
from ptxkit.errors import UnavailableError
from ptxkit.runtime.abilities import is_emulating
from ptxkit.workload.choice import choose
from ptxkit.workload.memory import check_memory

if TYPE_CHECKING:
    from ptxkit.runtime.abilities import Device
    from ptxkit.targets import Target


@dataclass(frozen=True)
class Planned:
    """What is measured of a sample.

    Attributes:
        plans: the cases. left_out: ``"kernel sizes: reason"`` for each case that this machine cannot run.
    """

    plans: tuple[Plan, ...]
    left_out: tuple[str, ...]


def planned(
    shapes: Sequence[Shape], device: Device, target: Target | None = None, *, every_variant: bool = False
) -> Planned:
    """The plans for a sample, without two equal ones.

    Args:
        target: to compile for; None for that of the device.
        every_variant: measure all variants of a case, not only the chosen one.
    """
    plans: dict[str, Plan] = {}
    left_out = []
    for shape in shapes:
        refusal = ""
        for candidate in (shape.workload, *alternatives(shape)):
            workload = reduced(candidate) if is_emulating(device) else candidate
            try:
                check_memory(workload, device)
                chosen = choose(workload, device, target).variant
            except UnavailableError as error:
                refusal = refusal or f"{workload.name} {workload.size_text()}: {error}"
                continue
            break
        else:
            left_out.append(refusal)
            continue
        plan = Plan(workload, () if every_variant else (chosen,), chosen=chosen)
        plans.setdefault(repr(workload), plan)
    return Planned(tuple(plans.values()), tuple(left_out))
