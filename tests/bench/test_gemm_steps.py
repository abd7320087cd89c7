"""scripts/gemm_steps.py: tables made from results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ptxkit.bench.results.results import CaseResult, Results, Row, Timed


@pytest.fixture(scope="module")
def steps(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("gemm_steps")


def timed(us: float) -> Timed:
    return Timed(us, us, 0.0, (us, us), us / 100, 20)


def results(**rows: Row) -> Results:
    sizes = {"m": 64, "n": 64, "k": 64}
    case = CaseResult("matmul_mma", sizes, {}, 524288, 24576, "bf16", 24576, "L2", 0, "", tuple(rows.values()))
    return Results("2026-01-02T03:04:05", "0", (), "gpu", "A GPU", {"cuda_driver": "13.0"}, {}, (case,))


WAITS = {"stall_wait": 0.25, "stall_gmma": 3.0, "stall_misc": 0.001, "l2_hit_percent": 78.6}
STEPS = {
    "step1": Row("step1_plain", cold=timed(300.0), tflops=1.5, measured=WAITS),
    "step2": Row("step2_more", cold=timed(200.0), tflops=2.25),
    "cublas": Row("cublas", "peer", cold=timed(150.0)),
}


def test_gains_over_the_step_before_and_ratios_to_peers(steps: ModuleType) -> None:
    lines = [[cell.strip() for cell in line.split("|")] for line in steps.tables(results(**STEPS)).splitlines()]
    rows = {line[1]: line for line in lines if len(line) > 2}
    assert rows["step2_more"][2:7] == ["200.0", "1.0%", "2.2", "+50.0%", "0.750"]
    assert rows["step1_plain"][rows[""].index("L2 hits")] == "79%"


def test_longest_stalls_first(steps: ModuleType) -> None:
    assert steps.stalls(WAITS) == "gmma 3.00, wait 0.25"


def test_only_what_is_between_the_markers_is_replaced(steps: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{steps.BEGIN}\nold\n{steps.END}\nafter\n")
    steps.write(page, "new")
    assert page.read_text() == f"before\n{steps.BEGIN}\n\nnew\n\n{steps.END}\nafter\n"


def test_each_run_has_its_heading(steps: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("a.json", "b.json")]
    for file in files:
        file.write_text(json.dumps(results(**STEPS).to_json()))
    assert steps.main([str(file) for file in files]) == 0
    assert capsys.readouterr().out.count("ptxkit bench run of 2026-01-02") == 2


def test_a_page_without_markers_stays(steps: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, given = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text("text\n")
    given.write_text(json.dumps({"schema": "ptxkit.bench/2"}))
    assert steps.main([str(given), "--write", str(page)]) == 2
    assert page.read_text() == "text\n" and "error:" in capsys.readouterr().err
