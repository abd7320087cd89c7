"""A description in a user's file is treated as a bundled kernel; and the peers that select a kernel."""

import numpy as np
import pytest

from ptxkit.bench.peers import alternatives
from ptxkit.bench.peers.alternatives import same_product
from ptxkit.bench.peers.cutlass_peer import CutlassPeer
from ptxkit.bench.peers.ptxkit_gemm_peer import PtxkitGemmPeer
from ptxkit.errors import LaunchError, UnavailableError
from ptxkit.runtime.device import Measurement, device
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.workload import ahead, execute, registry
from ptxkit.workload.case import Case
from ptxkit.workload.resolve import resolvable
from ptxkit.workload.variant import Variant

MINE = """
import numpy as np
from ptxkit import Work, Workload, uniform, variant
from ptxkit.cutlass.description import GemmDescription
from ptxkit.cutlass.program import GemmProgram

class Projection(Workload):
    \"\"\"projection: c = silu(x w / 2).\"\"\"
    m: int = 64
    n: int = 64
    k: int = 32

    def inputs(self, rng):
        return {"x": uniform(rng, (self.m, self.k), "f16"), "w": uniform(rng, (self.n, self.k), "f16")}

    def reference(self, x, w):
        c = x.astype(np.float64) @ w.astype(np.float64).T / 2
        return {"c": c / (1 + np.exp(-c))}

    def outputs(self):
        return {"c": ((self.m, self.n), "f32")}

    def work(self):
        return Work(flops=2 * self.m * self.n * self.k, bytes=2 * (self.m + self.n) * self.k + 4 * self.m * self.n)

    @variant(requires=["sm_80"])
    def small(self):
        \"\"\"By mma.sync.\"\"\"
        d = GemmDescription(80, "multistage", "f16", "f32", tile=(64, 64, 32), stages=3, epilogue="silu")
        return [GemmProgram(d, self.m, self.n, self.k, alpha=0.5, a="x", b="w").launch()]
"""


@pytest.fixture(scope="module")
def projection(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "projection.py"
    path.write_text(MINE)
    return registry.load_file(path)


def test_a_users_description_runs(projection):
    w = projection(72, 80, 48)
    case = execute.Case(w, device("emulator"))
    result = execute.run(case, w.variant("small"))
    assert result.verdict.verified, result.verdict.worst


def test_sizes_that_cutlass_cannot_compute_are_refused_by_its_own_word(projection):
    w = projection(64, 64, 36)
    with pytest.raises(LaunchError, match="cannot compute m=64, n=64, k=36; rows must be multiples of 8 elements"):
        execute.run(execute.Case(w, device("emulator")), w.variant("small"))


def test_sizes_outside_the_alignment_have_no_tile():
    w = registry.get("cutlass_gemm")(64, 64, 36)
    assert w.variant("multistage").refusal(w) == "k=36 must be a multiple of 8"
    assert w.variant("simt").refusal(w) == "schedule simt is for f32, not bf16"
    odd = registry.get("cutlass_gemm")(65, 67, 33, dtype="f32", layout="nt")
    assert odd.variant("simt").refusal(odd) is None


def names(peer, kernel, **options):
    workload = registry.get(kernel).make((), options)
    return [f"{other.name}:{variant.name}" for other, variant in peer.candidates(workload)]


def test_peers_of_each_user_gemm():
    assert "cutlass_gemm:cooperative" in names(CutlassPeer(), "matmul_wgmma")
    assert "cutlass_gemm:simt" in names(CutlassPeer(), "micro_tiling_matmul")
    assert "matmul_wgmma:step8_tma_store" in names(PtxkitGemmPeer(), "cutlass_gemm")
    mma = {f"matmul_mma:{step}" for step in ("step4_registers_ahead", "step5_coalesced", "step6_tma")}
    wgmma = {f"matmul_wgmma:{step}" for step in ("step6_multicast", "step7_setmaxnreg", "step8_tma_store")}
    assert set(names(PtxkitGemmPeer(), "cutlass_gemm", dtype="f16")) == mma | wgmma
    assert set(names(PtxkitGemmPeer(), "cutlass_gemm", dtype="f16", layout="nt")) == wgmma
    assert "cutlass_gemm:cooperative" in names(CutlassPeer(), "matmul_wgmma", layout="nn")
    assert "micro_tiling_matmul:step8_ring" in names(PtxkitGemmPeer(), "cutlass_gemm", dtype="f32", layout="tt")
    assert names(PtxkitGemmPeer(), "matmul_mma")[-1] == "matmul_wgmma:step8_tma_store"
    assert names(PtxkitGemmPeer(), "matmul_mma", dtype="f16")[-1] == "matmul_wgmma:step8_tma_store"
    assert names(PtxkitGemmPeer(), "matmul_wgmma") == []
    assert names(PtxkitGemmPeer(), "micro_tiling_matmul") == []
    assert names(CutlassPeer(), "cutlass_gemm") == []
    assert names(CutlassPeer(), "saxpy") == []
    assert names(CutlassPeer(), "matmul_wgmma", beta=1.0) == []
    assert names(CutlassPeer(), "matmul_wgmma", epilogue="bias_gelu") == []
    assert names(PtxkitGemmPeer(), "cutlass_gemm", dtype="s8") == []


def test_the_same_product_has_the_same_operands():
    w = registry.get("matmul_mma").make(["256", "128", "64"], {"dtype": "f16", "alpha": "2"})
    other = same_product(w, "cutlass_gemm", layout="tn")
    assert other.sizes == w.sizes
    assert (other.dtype, other.alpha) == ("f16", 2.0)
    assert same_product(w, "cutlass_gemm", layout="tt") is None
    assert same_product(w, "micro_tiling_matmul") is None  # the type of that one is f32


@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
def test_the_same_product_has_the_same_layouts(layout):
    w = registry.get("cutlass_gemm").make([64, 128, 64], {"layout": layout})
    assert same_product(w, "matmul_wgmma").layout == layout
    assert (same_product(w, "matmul_mma") is not None) is (layout == "tn")


def test_the_fastest_is_chosen_once_and_uses_the_arrays_it_is_given(monkeypatch):
    peer = PtxkitGemmPeer()
    w = registry.get("cutlass_gemm")(128, 128, 64)
    on = device("emulator")
    case = execute.Case(w, on)
    inputs = {name: case.argument(name) for name in ("a", "b")}
    fastest = registry.get("matmul_mma")(128, 128, 64)
    asked = []

    def chosen(self, workload, given):
        asked.append(workload)
        return fastest, fastest.variant("step3_multistage")

    monkeypatch.setattr(alternatives.Alternatives, "enter", lambda self, given: on)
    monkeypatch.setattr(alternatives.Alternatives, "_fastest", chosen)
    call = peer.prepare(w, inputs)
    again = peer.prepare(w, inputs)
    assert asked == [w]
    assert call.note.startswith("matmul_mma:step3_multistage")
    call.launch()
    result = call.outputs["c"].numpy()
    assert np.abs(result.astype(float) - case.expected["c"]).max() < 0.1
    assert again.outputs["c"].address != call.outputs["c"].address


def test_the_fastest_of_the_candidates_is_taken(monkeypatch):
    on = device("emulator")
    w = registry.get("cutlass_gemm")(128, 128, 64)
    mma, wgmma = registry.get("matmul_mma")(128, 128, 64), registry.get("matmul_wgmma")(128, 128, 64)
    candidates = [
        (wgmma, wgmma.variant("step1_tma")),
        (mma, mma.variant("step3_multistage")),
        (w, w.variant("two_sm")),  # cannot run, and is left out
    ]
    peer = PtxkitGemmPeer()
    case = execute.Case(w, on)
    inputs = {name: case.argument(name) for name in ("a", "b")}
    times = iter([(3.0, 9.0, 4.0), (2.0, 3.0, 90.0)])
    monkeypatch.setattr(
        alternatives, "unavailable", lambda variant, target, workload: "no" if variant.name == "two_sm" else None
    )
    monkeypatch.setattr(alternatives.Alternatives, "enter", lambda self, given: on)
    monkeypatch.setattr(alternatives.Alternatives, "device", on)
    monkeypatch.setattr(peer, "candidates", lambda workload: candidates)
    monkeypatch.setattr(on, "measure", lambda launch, samples: Measurement(times_us=next(times)))
    assert peer._fastest(w, inputs)[1].name == "step3_multistage"


def test_an_absent_cutlass_is_an_absent_peer(monkeypatch):
    from ptxkit.cutlass import package

    def missing():
        raise UnavailableError("CUTLASS is not installed; run: pip install 'nvidia-cutlass==4.2.0.0'")

    monkeypatch.setattr(package, "check", missing)
    assert "pip install" in CutlassPeer().absent()


@pytest.mark.parametrize(
    "memory, processors, most, fit", [(24e9, 2, 8, 2), (24e9, 16, 8, 6), (1e9, 16, 8, 1), (None, 16, 3, 3)]
)
def test_as_many_compiles_as_memory_and_processors_allow(monkeypatch, memory, processors, most, fit):
    monkeypatch.setattr("ptxkit.workload.memory.free_host_bytes", lambda: memory)
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda pid: set(range(processors)))
    assert ahead.processes(most) == fit


def test_slow_programs_are_compiled_in_processes_of_their_own_and_only_once(projection, monkeypatch):
    from ptxkit.cutlass.program import GemmProgram

    monkeypatch.setattr(GemmProgram, "slow", True)
    w = projection(64, 64, 64)
    variant: Variant = w.variant("small")
    assert ahead.is_slow(w, variant)
    ahead.compile_ahead(resolvable(w, [variant]))  # whether or not another test has compiled it
    monkeypatch.setattr(ahead, "_start", lambda request: pytest.fail("it is in the cache"))
    assert ahead.compile_ahead(resolvable(w, [variant, variant])) == 0


def test_a_compile_that_fails_ahead_is_reported_by_the_build(monkeypatch):
    said = []
    monkeypatch.setattr(
        ahead, "_slow", lambda *_: [{"text": "not C++ {", "name": "bad.cu", "target": "sm_90a", "defines": {}}]
    )
    w = registry.get("saxpy")()
    assert ahead.compile_ahead(resolvable(w, [w.variant("scalar")]), said.append) == 1
    assert said[0] == "compiling 1 of 1 large programs, half a minute each, 0 s"


def test_what_the_emulator_cannot_run_is_said_before_it_is_compiled(monkeypatch):
    w = registry.get("cutlass_gemm")(128, 128, 64)
    monkeypatch.setattr(EmulatedDevice, "lacks", frozenset({"tcgen05"}))
    case = execute.Case(w, device("emulator"))
    monkeypatch.setattr(execute, "compiled", lambda *_: pytest.fail("compiled for nothing"))
    result = execute.run(case, w.variant("two_sm"))
    reason = "the emulator has no tcgen05 yet; `ptxkit inspect cutlass_gemm:two_sm` shows what is compiled"
    assert result.skipped == reason
    with pytest.raises(UnavailableError, match="the emulator has no tcgen05 yet"):
        execute.run(case, w.variant("two_sm"), explicit=True)
    assert ahead.compile_ahead(Case(w, device("emulator")).resolvable([w.variant("two_sm")])) == 0
