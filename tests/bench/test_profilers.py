"""Parsing of the output of ncu."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from ptxkit_bench_samples import make_results

from ptxkit.bench.measure import profilers
from ptxkit.errors import UnavailableError

COLUMNS = {
    "ID": ("", "0", "1"),
    "Kernel Name": ("", "first", "second"),
    "dram__bytes_read.sum": ("Mbyte", "2.5", "0.5"),
    "dram__bytes_write.sum": ("byte", "1,000,000", "0"),
    "gpu__time_duration.sum": ("us", "10", "30"),
    "launch__registers_per_thread": ("register/thread", "32", "40"),
    "lts__t_sector_hit_rate.pct": ("%", "40", "60"),
}
ROWS = [list(COLUMNS), *zip(*COLUMNS.values(), strict=True)]
RAW = "==PROF== Connected\n" + "\n".join(",".join(f'"{cell}"' for cell in row) for row in ROWS) + "\n"


def test_bytes_add_up_and_ratios_are_of_the_longest_kernel():
    found = profilers.read_ncu(RAW)
    assert found["dram_read_bytes"] == 3e6
    assert found["dram_bytes"] == 4e6
    assert found["registers"] == 40
    assert found["l2_hit_percent"] == 60
    assert found["profiled_ns"] == 40_000


def test_no_kernel_is_said():
    with pytest.raises(UnavailableError, match="no kernel"):
        profilers.read_ncu("==PROF== nothing\n")


def test_a_profiler_that_is_not_there(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnavailableError, match="Nsight Compute"):
        profilers.find("ncu")


NSYS = """#!{python}
import json, pathlib, sys
arguments = sys.argv[1:]
with open("calls.jsonl", "a") as file:
    file.write(json.dumps(arguments) + "\\n")
if {writes}:
    (output,) = [a.removeprefix("--output=") for a in arguments if a.startswith("--output=")]
    pathlib.Path(output + ".nsys-rep").write_text("a report")
print("no GPU", file=sys.stderr)
sys.exit({code})
"""


@pytest.fixture
def nsys(tmp_path, monkeypatch):
    """A replacement of nsys that records its arguments and runs nothing."""

    def install(writes=True, code=0):
        program = tmp_path / "bin" / "nsys"
        program.parent.mkdir(exist_ok=True)
        program.write_text(NSYS.format(python=sys.executable, writes=writes, code=code))
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)
    install()
    return install


def test_nsys_leaves_a_report_of_one_call_of_each_variant(nsys, tmp_path):
    results = make_results()
    rows = [replace(row, note="WARPS=4") if row.name == "fused" else row for row in results.cases[0].rows]
    seen = []
    found = profilers.profiled(
        replace(results, cases=(replace(results.cases[0], rows=rows),)), "nsys", lambda what: None, seen.append
    )
    notes = {row.name: row.note for row in found.cases[0].rows}
    assert notes["unfused"] == "profile in saxpy-n=1000-unfused.nsys-rep"
    assert notes["fused"] == "WARPS=4, profile in saxpy-n=1000-fused.nsys-rep"
    assert notes["torch"] == "3 launches"  # a peer is not profiled
    assert (tmp_path / "saxpy-n=1000-fused.nsys-rep").is_file()
    assert [r.partial for r in seen] == [True, False]  # everything has been measured, and nothing profiled, at this point
    calls = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert len(calls) == 2
    options, child = calls[1][: calls[1].index(sys.executable)], calls[1][calls[1].index(sys.executable) :]
    assert options[0] == "profile"
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--trace=cuda"} < set(options)
    assert child[1:3] == ["-m", "ptxkit.bench.measure.profiled_call"]
    call = profilers.call_of(child[3])
    assert (call["kernel"], call["sizes"], call["variant"], call["tile"]) == (
        "saxpy",
        {"n": 1000},
        "fused",
        {"THREADS": 128},
    )


def test_a_nsys_that_fails_or_writes_nothing_is_said(nsys):
    nsys(writes=False)
    with pytest.raises(UnavailableError, match="wrote no saxpy-n=1000-unfused.nsys-rep"):
        profilers.profiled(make_results(), "nsys", lambda what: None)
    nsys(code=1)
    with pytest.raises(UnavailableError, match="nsys failed: no GPU"):
        profilers.profiled(make_results(), "nsys", lambda what: None)


def test_reports_of_targets_that_differ_in_an_option_have_names_of_their_own():
    (case,) = make_results().cases
    names = {profilers.report_name(replace(case, options={"dtype": d}), case.rows[1]) for d in ("f32", "f16")}
    assert names == {"saxpy-n=1000-dtype=f32-fused", "saxpy-n=1000-dtype=f16-fused"}
    assert "/" not in profilers.report_name(replace(case, options={"where": "a/b"}), case.rows[1])
