"""Sample results for tests without a GPU."""

from __future__ import annotations

from dataclasses import replace

from ptxkit.bench.results.ceiling import Ceiling, Roofs
from ptxkit.bench.results.results import Accuracy, CaseResult, Counted, Results, Row, Timed


def timed(median, spread=0.05, **more):
    return Timed(median, median, spread, (median - spread, median + spread), spread, 30, **more)


def make_results(*, fused=25.0, unfused=100.0, peer=40.0, gpu="NVIDIA H200", alarms=(), cubin="c1", code="", **changes):
    moved = Counted(1000, 600, 800, 400, 25, 13, 0, 0.5)
    rows = (
        Row(
            "unfused",
            target="sm_90a",
            launches=3,
            verified=True,
            cold=timed(unfused),
            hot=timed(90.0),
            counted=moved,
            cubin_sha256="u",
        ),
        Row(
            "fused",
            target="sm_90a",
            tile={"THREADS": 128},
            launches=1,
            verified=True,
            accuracy=Accuracy(100, 1e-6, 1e-7, 1.0),
            cold=timed(fused),
            hot=timed(20.0),
            bandwidth_gbs=4000.0,
            roof_fraction=0.94,
            tflops=0.1,
            alarms=alarms,
            registers=32,
            counted=moved,
            source_sha256="s",
            cubin_sha256=cubin,
            code_sha256=code,
        ),
        Row("torch", kind="peer", version="torch 2.11", verified=True, cold=timed(peer), note="3 launches"),
    )
    case = CaseResult("saxpy", {"n": 1000}, {}, 2000, 1200, "f32", 12000, "DRAM", 0, "i", rows)
    case = replace(case, ceiling=Ceiling("memory", 4250.0, "measured", 1200 / 4250 / 1e3))
    base = {
        "created": "2026-01-02T03:04:05+00:00",
        "ptxkit": "0.1.0",
        "command": ("ptxkit", "bench", "run"),
        "device_kind": "gpu",
        "device": gpu,
        "environment": {"gpu": gpu, "cuda_driver": "13.0"},
        "method": {"budget_s": 2.0},
        "cases": (case,),
        "roofs": Roofs(4250.0, 6200.0, {"f32": 60.0}),
    }
    return Results(**{**base, **changes})
