"""Parsing of the output of ncu."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from ptxkit_bench_samples import make_results

from ptxkit.bench.measure import profilers
from ptxkit.bench.measure.profilers import Profile
from ptxkit.bench.report.details import kernels_table
from ptxkit.errors import PtxkitError, UnavailableError, UsageError

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
        replace(results, cases=(replace(results.cases[0], rows=rows),)), Profile("nsys"), lambda what: None, seen.append
    )
    notes = {row.name: row.note for row in found.cases[0].rows}
    assert notes["unfused"] == "profile in saxpy-n=1000-unfused.nsys-rep"
    assert notes["fused"] == "WARPS=4, profile in saxpy-n=1000-fused.nsys-rep"
    assert notes["torch"] == "3 launches, profile in saxpy-n=1000-torch.nsys-rep"
    assert (tmp_path / "saxpy-n=1000-fused.nsys-rep").is_file()
    assert [r.partial for r in seen] == [True, False]  # everything has been measured, and nothing profiled, at this point
    calls = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert len(calls) == 3
    peer = profilers.call_of(calls[2][-1])
    assert (peer["peer"], "variant" in peer) == ("torch", False)
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
        profilers.profiled(make_results(), Profile("nsys"), lambda what: None)
    nsys(code=1)
    with pytest.raises(UnavailableError, match="nsys failed to profile unfused: no GPU"):
        profilers.profiled(make_results(), Profile("nsys"), lambda what: None)


def test_reports_of_targets_that_differ_in_an_option_have_names_of_their_own():
    (case,) = make_results().cases
    names = {profilers.report_name(replace(case, options={"dtype": d}), case.rows[1]) for d in ("f32", "f16")}
    assert names == {"saxpy-n=1000-dtype=f32-fused", "saxpy-n=1000-dtype=f16-fused"}
    assert "/" not in profilers.report_name(replace(case, options={"where": "a/b"}), case.rows[1])


NCU = """#!{python}
import json, pathlib, sys
arguments = sys.argv[1:]
with open("calls.jsonl", "a") as file:
    file.write(json.dumps(arguments) + "\\n")
if "--export" in arguments:
    pathlib.Path(arguments[arguments.index("--export") + 1]).write_text("a report")
else:
    print({raw!r})
"""


@pytest.fixture
def ncu(nsys, tmp_path):
    """A replacement of ncu that writes a report, or prints the counters of one."""
    program = tmp_path / "bin" / "ncu"
    program.write_text(NCU.format(python=sys.executable, raw=RAW))
    program.chmod(0o755)

    def calls():
        return [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]

    return calls


def test_ncu_keeps_a_report_in_the_directory_and_reads_its_counters(ncu, tmp_path):
    profile = Profile("ncu", tmp_path / "reports" / "new", ("SpeedOfLight", "Occupancy"))
    profile.check()
    found = profilers.profiled(make_results(), profile, lambda what: None)
    rows = {row.name: row for row in found.cases[0].rows}
    assert rows["fused"].measured["dram_bytes"] == 4e6
    assert rows["torch"].measured["dram_bytes"] == 4e6
    report = tmp_path / "reports" / "new" / "saxpy-n=1000-fused.ncu-rep"
    assert report.is_file()
    assert str(report) in rows["fused"].note
    first, second = ncu()[:2]
    assert [first[i + 1] for i, word in enumerate(first) if word == "--section"] == ["SpeedOfLight", "Occupancy"]
    assert second[-2] == "--import"


def test_ncu_keeps_nothing_without_a_directory(ncu, tmp_path):
    found = profilers.profiled(make_results(), Profile("ncu"), lambda what: None)
    assert found.cases[0].rows[0].measured["registers"] == 40
    assert not list(tmp_path.glob("*.ncu-rep"))
    assert not any("--section" in call or "--set" in call for call in ncu())


@pytest.mark.parametrize(
    "tool, directory, sections, message",
    [
        ("nsys", "d", ("full",), "of Nsight Compute"),
        ("ncu", None, ("full",), "give --profile-dir"),
        ("ncu", "d", ("full", "SpeedOfLight"), "either minimal, full or names"),
        ("ncu", "d", ("Speed Of Light",), "not 'Speed Of Light'"),
        ("ncu", "d", ("",), "not ''"),
    ],
)
def test_sections_that_do_not_apply(ncu, tmp_path, tool, directory, sections, message):
    profile = Profile(tool, None if directory is None else tmp_path / directory, sections)
    with pytest.raises(UsageError, match=message):
        profile.check()
    assert not (tmp_path / "d").exists()


def test_a_directory_that_cannot_be_made(ncu, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PtxkitError, match="file"):
        Profile("ncu", tmp_path / "file" / "reports").check()


TRACE = {
    "traceEvents": [
        {"cat": "kernel", "name": "first", "dur": 2.5},
        {"cat": "cpu_op", "name": "aten::add", "dur": 100},
        {"cat": "gpu_memcpy", "name": "Memcpy DtoD", "dur": 30},
        {"cat": "kernel", "name": "first", "dur": 1.5},
    ]
}


def test_kernels_of_a_trace():
    found = profilers.read_trace(json.dumps(TRACE))
    assert [(k.name, k.launches, k.time_us) for k in found] == [("Memcpy DtoD", 1, 30.0), ("first", 2, 4.0)]
    with pytest.raises(UnavailableError, match="saw no kernel"):
        profilers.read_trace('{"traceEvents": []}')
    (case,) = make_results().cases
    assert kernels_table(case) is None
    rows = [replace(case.rows[0], kernels=found * 5)]
    table = kernels_table(replace(case, rows=rows))
    assert table.rows[0] == [case.rows[0].name, "Memcpy DtoD", "1", "30.00 us", "18%"]
    assert table.rows[-1][1:3] == ["2 others", "3"]
