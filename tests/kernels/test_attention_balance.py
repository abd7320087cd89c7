"""The steps of persistent CTAs with a fixed stride: counted tile by tile, and as an H200 has shown them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptxkit.kernels.attention import balance
from ptxkit.targets.gpus import reference_facts
from ptxkit.workload import registry
from ptxkit.workload.choice import choose

FACTS = reference_facts("sm_90a")


def make(kernel="attention", **fields):
    return registry.get(kernel)(**fields).on(FACTS)


def counted(w, rows, columns):
    """For each tile of ``rows`` queries in the order of its work item, the tiles of ``columns`` keys that a query sees."""
    found = []
    for i in range(w.batch):
        q, k = (part.stop - part.start for part in w.rows(i))
        tiles = range(0, w.q, rows)
        of_head = []
        for first in reversed(tiles) if w.causal else tiles:
            seen = [key for n in range(first, min(first + rows, q)) for key in range(k) if not w.causal or key <= n + k - q]
            of_head.append(-(-(max(seen) + 1) // columns) if seen else 0)
        found += of_head * w.heads
    return found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("q", "k"), [(130, 130), (70, 200), (200, 70)])
@pytest.mark.parametrize("lengths", ["equal", "random", "empty"])
def test_steps_of_tiles_of_queries(causal, q, k, lengths):
    w = make(batch=3, heads=2, q=q, k=k, d=64, causal=causal, lengths=lengths)
    assert balance.steps_of_queries(w, 64, 32).tolist() == counted(w, 64, 32)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("q", "k"), [(130, 130), (70, 200), (200, 70)])
def test_steps_of_tiles_of_keys(causal, q, k):
    w = make("attention_backward", batch=2, heads=4, q=q, k=k, d=64, causal=causal, kv_heads=2)
    found = balance.steps_of_keys(w, 64, 32).tolist()
    expected = []
    for first in range(0, k, 64):
        tiles = {n // 32 for n in range(q) if not causal or n + k - q >= first}
        expected.append(2 * len(tiles))
    assert found == expected * 2 * 2


def test_the_steps_of_equal_sequences_are_computed_once():
    """A batch of thousands of short sequences must not delay the choice of a variant."""
    computed = []

    def of_head(n, m):
        computed.append((n, m))
        return np.array([n, m])

    found = balance.of_all_heads(2, of_head, [(1, 5), (2, 7), (1, 5)])
    assert found.tolist() == [1, 5] * 2 + [2, 7] * 2 + [1, 5] * 2
    assert sorted(computed) == [(1, 5), (2, 7)]


@pytest.mark.parametrize(("batch", "tokens", "times"), [(8, 2048, 1.11), (4, 4096, 1.05), (2, 8192, 1.02), (1, 16384, 1.55)])
def test_a_causal_mask_gives_the_busiest_cta_more(batch, tokens, times):
    sizes = {"batch": batch, "q": tokens, "k": tokens, "causal": True}
    persistent = make(**sizes).variant("step5_persistent")
    assert f"{times:.2f} times the steps" in persistent.slower(make(**sizes))
    assert persistent.slower(make(**{**sizes, "causal": False})) is None


def in_sections(steps, tiles, heads, alone=0):
    """The steps in the order of ``attention_dynamic``, from those of ``steps_of_queries`` with ``tiles`` of a head."""
    of_heads = steps.reshape(-1, tiles)
    sections = [of_heads[first : first + heads].T.ravel() for first in range(alone, len(of_heads), heads)]
    return np.concatenate([of_heads[:alone].ravel(), *sections])


@pytest.mark.parametrize(
    ("batch", "tokens", "heads"), [(8, 2048, 16), (4, 4096, 8), (2, 8192, 4), (1, 16384, 2), (1, 1 << 20, 1)]
)
def test_sections_of_heads_that_l2_holds_share_tiles_equally(batch, tokens, heads):
    """With the longest tiles of the last section first, the busiest SM has at most 2.6% more steps than the mean."""
    w = make(batch=batch, q=tokens, k=tokens, causal=True)
    assert balance.section(w) == heads
    steps = balance.steps_of_queries(w, 128, 128)
    found = balance.first_free(in_sections(steps, tokens // 128, heads, balance.alone(w)), FACTS.sms)
    assert found <= 1.026 * (steps + balance.FIXED).sum() / FACTS.sms
    if tokens <= 16384:
        assert found <= balance.first_free(steps, FACTS.sms)


def test_order_of_sections():
    w = make(batch=1, heads=3, q=256, k=256, d=64, causal=True)
    steps = balance.steps_of_queries(w, 128, 128)  # of each head the last tile first
    assert steps.tolist() == [2, 1] * 3
    assert in_sections(steps, 2, 2).tolist() == [2, 2, 1, 1, 2, 1]
    assert in_sections(steps, 2, 2, alone=1).tolist() == [2, 1, 2, 2, 1, 1]


def test_equal_tiles_need_no_section():
    assert balance.alone(make(batch=8, q=2048, k=2048)) == 8 * 16
    assert balance.alone(make(batch=8, q=2048, k=2048, causal=True)) == 7 * 16
    assert balance.alone(make(batch=8, q=2048, k=2048, lengths="random")) == 7 * 16


@pytest.mark.parametrize(
    ("tokens", "causal", "keys"), [(2048, False, 160), (2048, True, 128), (4096, True, 128), (16384, True, 160)]
)
def test_the_tile_of_keys_of_continuous_tiles(tokens, causal, keys):
    """As an H200 has shown: narrower tiles have fewer hidden keys."""
    w = make(batch=16384 // tokens, q=tokens, k=tokens, causal=causal)
    assert choose(w, target=w.device.target).variant == "step7_continuous"
    assert choose(w, target=w.device.target).tile["BN"] == keys


@pytest.mark.parametrize("causal", [False, True])
def test_no_tile_follows_where_there_are_as_many_sms(causal):
    w = make(batch=1, q=1024, k=1024, causal=causal)
    assert choose(w, target=w.device.target).variant == "step5_persistent"
    assert "132 SMs have 128 tiles" in w.variant("step7_continuous").slower(w)


def test_ctas_for_all_tiles_are_no_disadvantage():
    assert balance.strided_remark(make(batch=1, heads=1, q=1000, k=1000, causal=True), np.array([3, 0, 1])) is None


def test_few_sms():
    steps = np.array([5, 1, 5, 1])
    assert (balance.strided(steps, 2), balance.first_free(steps, 2)) == (12, 8)
    w = make(batch=1, q=128, k=128).on(replace(FACTS, sms=2))
    assert "1.50 times" in balance.strided_remark(w, steps)


PROMPTS = {  # sizes; warpgroups, keys and stages of a tile of step 5
    "64_queries_on_60_sms": ({"heads": 12, "q": 300, "k": 300, "d": 64, "causal": True}, (1, 64, 2)),
    "more_keys": ({"heads": 12, "q": 300, "k": 400, "d": 64}, (2, 128, 2)),
    "128_queries_on_100_sms": ({"heads": 25, "q": 450, "k": 450, "d": 64, "causal": True}, (2, 128, 2)),
    "long": ({"heads": 12, "q": 601, "k": 601, "d": 64}, (2, 192, 3)),
    "heads_of_128": ({"heads": 28, "kv_heads": 4, "q": 100, "k": 100, "d": 128, "causal": True}, (1, 64, 2)),
    "heads_of_256": ({"heads": 16, "kv_heads": 8, "q": 300, "k": 300, "d": 256, "causal": True}, (2, 64, 2)),
}


@pytest.mark.parametrize(("sizes", "expected"), PROMPTS.values(), ids=PROMPTS)
def test_tiles_of_short_prompts_leave_room_for_the_next_launch(sizes, expected):
    w = make(batch=1, **sizes)
    choice = choose(w, target=w.device.target)
    assert choice.variant == "step5_persistent"
    assert tuple(choice.tile[name] for name in ("CONSUMERS", "BN", "STAGES")) == expected
