"""``ptxkit inspect --timeline`` and ``--overlap``: valid traces, and figures that tell the steps of a kernel apart."""

from __future__ import annotations

import json

import pytest

from ptxkit import cli

FAULTY = '''
"""Writes beyond y in its second launch."""
import numpy as np
from ptxkit import Launch, Work, Workload, variant


class Faulty(Workload):
    source = "faulty.cu"
    n: int = 256

    def inputs(self, rng):
        return {"x": rng.random(self.n, np.float32)}

    def reference(self, x):
        return {"y": x}

    def work(self):
        return Work(flops=0, bytes=8 * self.n)

    @variant
    def beyond(self):
        return [Launch("copy", 1, 256, ("x", "y", 0)), Launch("copy", 1, 256, ("x", "y", 1 << 20))]
'''
COPY = "extern \"C\" __global__ void copy(const float* x, float* y, int at) { y[at + threadIdx.x] = x[threadIdx.x]; }"
TCGEN05 = "matmul_tcgen05 512 256 128 --sms 2".split()


def run(capsys, *words: str, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["inspect", *words])
    captured = capsys.readouterr()
    assert stopped.value.code == code, captured.err
    return captured.out, captured.err


def events_of(text: str) -> tuple[list[dict], dict]:
    document = json.loads(text)
    assert set(document) == {"traceEvents", "otherData"}
    return document["traceEvents"], document["otherData"]


def check(events: list[dict]) -> None:
    """What the format requires: fields, steps in order, and spans of one track that do not overlap."""
    steps = [e["ts"] for e in events if e["ph"] != "M"]
    assert steps == sorted(steps) and all(isinstance(ts, int) and ts >= 0 for ts in steps)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    tracks: dict[tuple[int, int], int] = {}
    for e in events:
        assert e["ph"] in "MXC"
        if e["ph"] == "X":
            track = e["pid"], e["tid"]
            assert track in named and e["dur"] >= 0
            assert e["ts"] >= tracks.get(track, 0), e
            tracks[track] = e["ts"] + e["dur"]
    for name in {e["name"] for e in events if e["ph"] == "C"}:
        if name != "tensor memory columns":
            last = [e for e in events if e["ph"] == "C" and e["name"] == name][-1]
            assert list(last["args"].values()) == [0]


def test_a_trace_is_valid_and_the_same_each_time(capsys, tmp_path):
    words = ("matmul_tcgen05:step5_two_accumulators", *TCGEN05[1:])
    texts = []
    for name in ("a.json", "b.json"):
        _, err = run(capsys, *words, "--timeline", str(tmp_path / name))
        assert err.endswith(f"wrote {tmp_path / name}\n")
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "b.json"]
    events, other = events_of(texts[0])
    check(events)
    categories = {e["cat"] for e in events if e["ph"] == "X"}
    assert {"run", "wait", "epilogue", "TMA load", "tcgen05.mma", "mbarrier"} <= categories
    assert "not time" in other["unit"] and other["latency_steps"] == 500
    assert other["launches"][0]["left_out_ctas"] == other["launches"][0]["ctas"] - 1
    loads = [e for e in events if e["ph"] == "X" and e["cat"] == "TMA load"]
    # 2 tiles of 128 x 256, k = 128: two stages each of 128 rows of a and 256 of b with 128 bytes
    assert sum(e["args"]["bytes"] for e in loads) == 2 * 2 * (128 + 256) * 128


def test_stdout_gets_the_trace_alone(capsys):
    out, err = run(capsys, "saxpy:scalar", "4096", "--timeline", "-")
    events, _ = events_of(out)
    check(events)
    assert "wrote" not in err


def test_the_steps_of_matmul_tcgen05_differ_in_what_they_overlap(capsys):
    out, _ = run(capsys, *TCGEN05, "--overlap", "--json")
    document = json.loads(out)
    assert document["schema"] == "ptxkit.overlap/1"
    steps = {o["variant"].partition(":")[2][:5]: o for o in document["launches"]}
    assert len(steps) == 8
    assert steps["step1"]["tma_bytes_max"] == (128 + 128) * 128 and steps["step2"]["tma_bytes_max"] == 2 * (128 + 128) * 128
    assert all(steps[f"step{n}"]["overlapped"] == 0 for n in (1, 2, 3, 4))
    assert steps["step5"]["overlapped"] > 0
    assert [steps[f"step{n}"]["columns"] for n in (1, 4, 5)] == [128, 256, 512]
    assert all(o["sass"]["UTCHMMA"] and o["sass"]["LDTM"] and o["registers"] for o in steps.values())
    assert all(0 <= o["overlapped"] <= o["epilogue_steps"] <= o["steps"] for o in steps.values())
    assert all(0 < o["tma_bytes_mean"] <= o["tma_bytes_max"] for o in steps.values())


@pytest.mark.parametrize(
    "words",
    [
        "saxpy 4096",  # nothing asynchronous
        "softmax:unfused 4 100",  # several launches
        "layernorm_backward:pipelined 3 512",  # TMA loads and barriers
        "inline_ptx 4096",  # cp.async, clusters
        "matmul_wgmma:step6_multicast 128 256 64",  # clusters with multicast
        "matmul_wgmma:step8_tma_store 128 128 64",  # TMA stores
    ],
)
def test_traces_of_other_kernels_are_valid(words, capsys, tmp_path):
    run(capsys, *words.split(), "--timeline", str(tmp_path / "t.json"))
    events, other = events_of((tmp_path / "t.json").read_text())
    check(events)
    assert {e["pid"] for e in events} == set(range(1, 1 + sum(len(r["recorded_ctas"]) for r in other["launches"])))


def test_a_source_file_is_recorded_with_the_launch_that_is_given(capsys, tmp_path):
    (tmp_path / "k.cu").write_text(COPY)
    words = "--arg x=float32[64] --arg y=float32[64] --arg at=0 --grid 1 --block 64".split()
    run(capsys, str(tmp_path / "k.cu"), *words, "--timeline", str(tmp_path / "t.json"))
    events, other = events_of((tmp_path / "t.json").read_text())
    check(events)
    assert other["launches"][0]["kernel"] == "copy" and other["launches"][0]["block"] == [64, 1, 1]
    _, err = run(capsys, str(tmp_path / "k.cu"), "64", *words, "--overlap", code=2)
    assert "has no sizes; remove 64" in err


def test_a_fault_leaves_the_trace_up_to_it(capsys, tmp_path):
    (tmp_path / "faulty.py").write_text(FAULTY)
    (tmp_path / "faulty.cu").write_text(COPY)
    file = tmp_path / "t.json"
    _, err = run(capsys, str(tmp_path / "faulty.py"), "--timeline", str(file), code=5)
    assert f"wrote {file}\n" in err and "error: " in err
    events, other = events_of(file.read_text())
    check(events)
    assert len(other["launches"]) == 2 and "y" in other["launches"][1]["ended_by"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("saxpy --timeline {0}/no/t.json", "cannot write"),
        ("saxpy --timeline {0}", "Is a directory"),
        ("saxpy 1 2 --overlap", "too many"),
        ("saxpy x --overlap", "must be a whole number"),
        ("saxpy@n=5 7 --overlap", "the size n is given twice"),
        ("saxpy:nope --overlap", "no variant 'nope'"),
        ("{0}/k.cu --overlap", "no description with a launch"),
        ("saxpy --ctas 0", "--ctas applies to --timeline and --overlap"),
        ("saxpy --sms 4", "--sms applies to --timeline and --overlap"),
        ("saxpy 4096 --overlap --ctas 3-1", "--ctas takes numbers and ranges"),
        ("saxpy 4096 --overlap --ctas 0-64", "more than 64 CTAs"),
        ("saxpy 4096 --overlap --ctas 16", "--ctas names CTA 16, and saxpy:scalar has CTAs 0 to 15"),
        ("saxpy --overlap --sass", "--overlap and --sass do not go together"),
        ("saxpy --timeline - --json", "name a file"),
        ("matmul_tcgen05 --overlap --target sm_90a", "no variant of matmul_tcgen05 can be compiled for sm_90a"),
    ],
)
def test_wrong_uses_are_refused_in_one_line(words, part, capsys, tmp_path):
    (tmp_path / "k.cu").write_text(COPY)
    out, err = run(capsys, *words.format(tmp_path).split(), code=2)
    assert out == "" and part in err
    assert err.startswith("error: ") and err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["k.cu"]
