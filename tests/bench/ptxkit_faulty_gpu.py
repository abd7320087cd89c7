"""A GPU without hardware, on which the kernels of scripted candidates fail, also in another process."""

from __future__ import annotations

import os
from types import SimpleNamespace

from ptxkit.bench import peers
from ptxkit.bench.measure import benchmark, roofs, session
from ptxkit.bench.measure.method import Method
from ptxkit.bench.results.ceiling import Roofs
from ptxkit.bench.results.results import Row
from ptxkit.errors import FaultError, PtxkitError, TrapError
from ptxkit.runtime.abilities import Sensors
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload.verify import Verdict

CUDA_ERROR = "CUDA_ERROR_ILLEGAL_INSTRUCTION: an illegal instruction was encountered"
METHOD = Method(iterations=8, modes=("cold",), fresh_inputs=False, percentiles=False)

WARM_UPS = 6  # replays of a candidate before its first sample


class FaultyGpu:
    """A failed kernel is reported when the GPU is synchronized, and each time afterwards."""

    name, kind, target = "a GPU", "gpu", Target.parse("sm_90a")
    times, emulates = True, False
    memory_bytes, lacks, l2_bytes = 1 << 40, frozenset(), 1 << 20

    def __init__(self):
        self.lost, self.failed = None, False
        self.timing = SimpleNamespace(replays=self.replays)

    def synchronize(self):
        if self.lost:
            raise FaultError(f"the GPU's context was lost when {self.lost}; start a new process")
        if self.failed:
            self.lost = f"a kernel failed on {self.name}: {CUDA_ERROR}"
            raise TrapError(f"{self.lost}; run it with --device emulator, which finds the line")

    def replays(self, graph, samples, warm):
        graph()
        self.synchronize()
        return [4.0] * samples

    def facts_for(self, target):
        return reference_facts("sm_90a")

    def sensors(self):
        return Sensors(1900)

    def reset_persisting_l2(self):
        pass


class Candidate:
    """A variant or a peer whose kernel fails in the step ``faults[name]``: prepared, raised, verified or timed.

    With "ended", it ends the process.
    """

    def __init__(self, device, faults, row):
        self.device, self.row, self.fault = device, row, faults.get(row.name)
        self.replays = 0
        self.at("prepared")
        if self.fault == "ended":
            os._exit(3)
        if self.at("raised"):
            raise PtxkitError("RuntimeError: internal error")

    def at(self, step):
        reached = self.fault == step
        self.device.failed |= reached
        return reached

    def check(self, percentiles):
        self.at("verified")
        return Verdict(True, 0, 0, 0, 10, 0), None

    def replay(self, order):
        return self.replayed

    def replayed(self):
        self.replays += 1
        if self.replays > WARM_UPS:
            self.at("timed")

    def check_graph(self, run, which):
        return Verdict(True, 0, 0, 0, 10, 0)


class Peer:
    def __init__(self, name):
        self.name = name

    def offers(self, workload):
        return True


def named(names):
    """Replaces ``ptxkit.bench.peers.peers``."""
    return [Peer(name) for name in names], []


def scripted(faults, patch=setattr):
    """A GPU; the candidates of this process are those of the script from now on.

    Args:
        faults: name -> the step in which its kernel fails. patch: replaces an attribute of a module.
    """
    device = FaultyGpu()

    def variant(sets, variant, tile, target):
        return Candidate(device, faults, Row(variant.name, target="sm_90a"))

    def peer(sets, peer):
        return Candidate(device, faults, Row(peer.name, kind="peer"))

    patch(session, "WARM_UP_S", 0.0)
    patch(benchmark, "VariantCandidate", variant)
    patch(benchmark, "PeerCandidate", peer)
    patch(peers, "peers", named)
    patch(roofs, "roofs", lambda device, works: Roofs(4000.0, 6000.0, {}, {"f32": 60.0}))
    return device
