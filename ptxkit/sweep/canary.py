"""The canary cases of a GPU: small computations with known results that show whether it computes right, and how fast.

They do not depend on what is swept: a configuration with a wrong result may be wrong on every GPU, and a canary case never is.
One uses the tensor cores and shared memory, the other the bandwidth of device memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ptxkit.workload import execute, registry
from ptxkit.workload.resolve import unavailable

CASES = (("matmul_mma", "step5_coalesced", (1024, 1024, 1024)), ("saxpy", "vectorized", (1 << 23,)))
SAMPLES = 15
CANARY_S = 60.0  # between the canary cases of a GPU


@dataclass(frozen=True)
class Reading:
    """What the canary cases found.

    Attributes:
        wrong: what is wrong, in words; "" if everything is right.
        times_us: kernel -> median time with a cold L2 cache. digests: kernel -> of its outputs, the same on every right GPU of
            one model.
    """

    wrong: str
    times_us: Mapping[str, float]
    digests: Mapping[str, str]


class Canary:
    """The canary cases on a GPU, ready to be launched at any time.

    Args:
        device: the GPU; cases that its target does not support are left out.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._prepared: dict[str, execute.Prepared] = {}
        self._digests: dict[str, str] = {}
        for name, variant, sizes in CASES:
            workload = registry.get(name).make(list(sizes)).on(device.facts_for(None))
            chosen = workload.variant(variant)
            if unavailable(chosen, device.target, workload) is None:
                self._prepared[name] = execute.prepare(execute.Case(workload, device), chosen)

    def read(self) -> Reading:
        """Launch all cases, verify and time them. A result that differs in one bit from the first of this process is wrong.

        Raises:
            FaultError: a launch failed.
        """
        wrong, times, digests = "", {}, {}
        for name, prepared in self._prepared.items():
            verdict = prepared.verify()
            digests[name] = " ".join(str(digest) for digest in prepared.case.digests().values())
            before = self._digests.setdefault(name, digests[name])
            if not verdict.verified:
                wrong = wrong or f"canary case {name}: {verdict.worst}"
            elif digests[name] != before:
                wrong = wrong or f"canary case {name}: its result is not the same as before"
            times[name] = statistics.median(self._device.timing.cold(prepared.launch, SAMPLES))
        return Reading(wrong, times, digests)
