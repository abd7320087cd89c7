"""scripts/sustained_clock.py: its arguments, and how blocks of calls are measured."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from ptxkit.errors import UsageError
from ptxkit.runtime.abilities import Sensors


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("sustained_clock")


def test_words_are_variants_with_tiles_or_peers(script: ModuleType) -> None:
    workload, variant, tile = script.parse("matmul_mma:step6_tma@BK=64,STAGES=3", ["64", "72", "80"])
    assert (workload.name, workload.n, variant, tile) == ("matmul_mma", 72, "step6_tma", {"BK": "64", "STAGES": "3"})
    assert script.parse("cublas", ["64"]) is None
    with pytest.raises(UsageError, match="a tile is NAME=VALUE"):
        script.parse("matmul_mma:step6_tma@64", ["64"] * 3)


def test_the_later_half_of_a_block_counts(script: ModuleType) -> None:
    times = [100.0, 90.0, 44.0, 40.0, 42.0]
    device = SimpleNamespace(
        timing=SimpleNamespace(replays=lambda replay, samples, warm: times),
        sensors=lambda: Sensors(1500, power_w=690.0),
    )
    track = script.Track("a", None, 1.0, lambda: None, calls=2, replays=5)
    track.take(device)
    assert (track.times_us, track.clocks_mhz, track.power_w) == ([21.0], [1500], [690.0])


def test_ratios_are_taken_round_by_round(script: ModuleType) -> None:
    slow = script.Track("slow", None, 8000.0, lambda: None, 2, 2, [40.0, 80.0, 60.0], [1500.0] * 3, [690.0] * 3)
    fast = script.Track("fast", None, 8000.0, lambda: None, 2, 2, [20.0, 40.0, 30.0], [1400.0] * 3, [690.0] * 3)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in script.table([slow, fast]).splitlines()[2:]]
    assert lines[0] == ["fast", "30.00", "16.7%", "266.7", "2.000 ± 0.000", "1400", "690"]
    assert lines[1][0] == "slow" and lines[1][4] == "1.000 ± 0.000"


def test_a_track_owns_the_memory_that_its_graph_works_on(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph contains addresses only: memory without a reference would be freed while the graph uses it."""

    class Candidate:
        def __init__(self, sets: object, *_: object) -> None:
            self.sets = SimpleNamespace(workload=SimpleNamespace(work=lambda: SimpleNamespace(flops=10**6)))

        def replay(self, order: object) -> Callable[[], None]:
            return lambda: None

        def check(self, percentiles: bool) -> tuple[None, None]:
            return None, None

        def check_graph(self, run: object, which: int) -> None:
            return None

    made: list[Candidate] = []
    monkeypatch.setattr(script, "BufferSets", lambda *_, **__: object())
    monkeypatch.setattr(script, "VariantCandidate", lambda *_: made.append(Candidate(None)) or made[-1])
    device = SimpleNamespace(timing=SimpleNamespace(replays=lambda replay, samples, warm: [10.0] * samples))
    (track,) = script.tracks(device, ["saxpy:scalar"], ["64"], 1e6, script.method_of(1.0, 30.0))
    assert track.candidate is made[0]
    assert (track.calls * 5.0 * track.replays) == pytest.approx(1e6, rel=0.01)


def test_rounds_end_with_the_time_but_not_before_the_third(script: ModuleType) -> None:
    method = script.method_of(0.7, 30.0)
    assert not method.over([[1.0] * 2] * 2, 300.0)
    assert method.over([[1.0] * 3] * 2, 31.0)
    assert not method.over([[1.0, 1.1] * 50] * 2, 29.0)
