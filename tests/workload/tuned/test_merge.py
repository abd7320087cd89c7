"""Merging is commutative, associative and idempotent, and every decision has a reason."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxkit.errors import UsageError
from ptxkit.workload.tuned import exchange, store
from ptxkit.workload.tuned.merge import ENOUGH, merged, rank, reason
from ptxkit.workload.tuned.record import Record, distance, parsed, size_class

DATES = st.sampled_from(["", *(f"2026-11-{day}T{hour}:00:00+00:00" for day in (25, 26) for hour in ("01", "23"))])
RECORDS = st.builds(
    Record,
    st.sampled_from(["saxpy", "softmax"]),
    st.sampled_from([{"n": 4}, {"n": 5}]),
    st.just({}),
    st.sampled_from(["scalar", "vectorized"]),
    st.sampled_from([{"THREADS": 128}, {"THREADS": 256}]),
    st.sampled_from(["tile", "variant"]),
    st.sampled_from([None, 1.0, 2.5]),
    st.sampled_from([None, 0.1]),
    st.sampled_from([0, ENOUGH - 1, ENOUGH, 400]),
    DATES,
    nvrtc=st.sampled_from(["13.0", "13.5"]),
    code=st.sampled_from(["", "c"]),
)
SETS = st.lists(RECORDS, max_size=6)


def union(*sets):
    found = []
    for one in sets:
        found, _ = merged(found, one)
    return [r.text for r in found]


@settings(max_examples=300, deadline=None)
@given(SETS, SETS, SETS)
def test_merging_is_commutative_associative_and_idempotent(a, b, c):
    ab, _ = merged(merged([], a)[0], b)
    bc, _ = merged(merged([], b)[0], c)
    assert union(a, b) == union(b, a)
    assert union(ab, c) == union(a, bc) == union(c, b, a)
    assert union(a, a) == union(a)
    assert union(ab, b) == union(ab)


@settings(max_examples=200, deadline=None)
@given(SETS, SETS)
def test_every_change_and_every_conflict_is_a_decision(a, b):
    mine, _ = merged([], a)
    theirs, _ = merged([], b)
    result, decisions = merged(mine, theirs)
    before = {r.key: r.text for r in mine}
    assert {d.kept.key for d in decisions} == {r.key for r in theirs if before.get(r.key) != r.text}
    for r in result:
        taken = any(d.taken for d in decisions if d.kept.key == r.key)
        assert taken == (before.get(r.key) != r.text)
    for d in decisions:
        assert d.dropped is None or rank(d.kept) > rank(d.dropped)
        assert d.kept.winner in str(d) and d.reason in str(d)


@settings(max_examples=200, deadline=None)
@given(RECORDS)
def test_a_record_is_what_its_json_says(record):
    again = parsed(record.to_json())
    assert again == record and again.text == record.text and again.key == record.key


A = Record(
    *("saxpy", {"n": 4}, {}, "scalar", {"THREADS": 128}, "tile", 2.0, 0.1, 40, "2026-11-26T10:00:00+00:00"),
    target="sm_90a",
    code="c",
)


@pytest.mark.parametrize(
    "loser, why",
    [
        ({"code": "", "at": "2026-11-27T10:00:00+00:00"}, "it has a hash of its machine code"),
        ({"samples": ENOUGH - 1, "at": "2026-11-27T10:00:00+00:00"}, "at least 16 samples"),
        ({"samples": 4000, "at": "2026-11-25T23:59:59+00:00"}, "measured on a later day"),
        ({"samples": 39, "at": "2026-11-26T23:00:00+00:00"}, "more samples on the same day"),
        ({"at": "2026-11-26T10:30:00+01:00"}, "measured later on the same day"),
        ({"spread_us": 0.2}, "a smaller spread"),
        ({"tile": {"THREADS": 1024}}, "the same time and samples; the order of their text decides"),
    ],
)
def test_the_order_of_records(loser, why):
    other = dataclasses.replace(A, **loser)
    assert rank(A) > rank(other)
    assert reason(A, other) == why


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 1 << 40), st.integers(1, 1 << 40))
def test_sizes_of_a_class_are_close_and_divisible_alike(a, b):
    assert size_class({"n": a}) == size_class({"n": a})
    if size_class({"n": a}) == size_class({"n": b}):
        assert max(a, b) / min(a, b) < 1.1893
        assert (a <= 16) == (b <= 16) and (a > 16 or a == b)
        assert all((a % d == 0) == (b % d == 0) for d in (2, 4, 8, 16, 32, 64) if a > 16)
        assert distance({"n": a}, {"n": b}) < 0.1734


def test_push_and_pull_exchange_what_is_better(config, tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    better = dataclasses.replace(A, variant="scalar", tile={"THREADS": 512}, at="2026-11-26T11:00:00+00:00")
    store.record("GPU 1", A)
    dry = exchange.push(shared, dry=True)
    assert [str(d) for d in dry.parts[0].decisions] == [
        "saxpy n=4: takes scalar THREADS=128 (2 us, 40 samples, 2026-11-26): it is new here"
    ]
    assert list(shared.iterdir()) == []
    exchange.push(shared)
    monkeypatch.setenv("PTXKIT_CONFIG_DIR", str(tmp_path / "other machine"))
    store.record("GPU 1", better)
    store.record("GPU 2", A)
    (part, _) = exchange.push(shared).parts
    assert [d.reason for d in part.decisions] == ["measured later on the same day"]
    assert store.read(store.path_for("GPU 1", shared)) == (better,)
    monkeypatch.setenv("PTXKIT_CONFIG_DIR", str(config))
    (part,) = exchange.pull(shared, "gpu 1").parts
    assert [d.taken for d in part.decisions] == [True]
    assert store.read(store.path_for("GPU 1")) == (better,)
    assert [p.decisions for p in exchange.pull(shared, "gpu 1").parts] == [()]
    assert store.gpus() == ["GPU 1"]


def test_a_push_into_a_file_of_another_gpu_changes_nothing(tmp_path):
    store.record("GPU 0", A)
    store.record("GPU 1", A)
    file = store.path_for("GPU 1", tmp_path)
    text = json.dumps({"schema": store.SCHEMA, "gpu": "GPU 2", "records": [dataclasses.replace(A, time_us=77.0).to_json()]})
    file.write_text(text)
    for dry in (True, False):
        with pytest.raises(UsageError, match=r"gpu-1.json has the winners of 'GPU 2', whose file is gpu-2.json; rename it"):
            exchange.push(tmp_path, dry=dry)
    assert file.read_text() == text and not store.path_for("GPU 0", tmp_path).exists()


def test_several_records_of_a_case_in_the_destination_are_a_decision(tmp_path):
    """As after copying by hand; also where nothing that is pushed belongs to their case."""
    store.record("GPU 1", dataclasses.replace(A, sizes={"n": 5}))
    slower = dataclasses.replace(A, tile={"THREADS": 512}, time_us=9.0, samples=41)
    value = {"schema": store.SCHEMA, "gpu": "GPU 1", "records": [r.to_json() for r in (A, slower, A)]}
    store.path_for("GPU 1", tmp_path).write_text(json.dumps(value))
    (part,) = exchange.push(tmp_path).parts
    small = "scalar THREADS=128 (2 us, 40 samples, 2026-11-26)"
    kept = f"saxpy n=4: keeps scalar THREADS=512 (9 us, 41 samples, 2026-11-26), not {small}: more samples on the same day"
    assert [str(d) for d in part.decisions] == [kept, kept, f"saxpy n=5: takes {small}: it is new here"]
    assert exchange.push(tmp_path).parts[0].decisions == ()


def test_each_of_several_records_of_a_case_in_the_origin_is_judged(tmp_path):
    """One that is not exchanged does not let another one be left out, or be taken with it."""
    future = dataclasses.replace(A, at="2999-01-01T00:00:00+00:00")
    value = {"schema": store.SCHEMA, "gpu": "GPU 1", "records": [A.to_json(), future.to_json()]}
    store.path_for("GPU 1", tmp_path).write_text(json.dumps(value))
    (part,) = exchange.pull(tmp_path).parts
    assert [d.kept for d in part.decisions] == [A] and len(part.left_out) == 1


def test_the_days_of_a_decision_are_those_that_decided(tmp_path):
    later = dataclasses.replace(A, at="2026-11-26T23:00:00-05:00")
    _, (decision,) = merged([A], [later])
    assert "2026-11-27), not" in str(decision) and "2026-11-26): measured on a later day" in str(decision)


def test_records_without_evidence_are_left_out(tmp_path):
    store.record("GPU 1", dataclasses.replace(A, code=""))
    store.record("GPU 1", dataclasses.replace(A, sizes={"n": 5}, at="2999-01-01T00:00:00+00:00"))
    (part,) = exchange.push(tmp_path).parts
    assert part.decisions == () and part.offered == 2
    assert ["older version" in text or "in the future" in text for text in part.left_out] == [True, True]


def test_a_directory_is_not_merged_with_itself(config):
    store.record("GPU 1", A)
    with pytest.raises(UsageError, match="own directory"):
        exchange.push(config / "tuned")
