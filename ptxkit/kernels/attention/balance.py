"""How equally persistent CTAs with a fixed stride share tiles of unequal length.

CTA c of n takes the tiles c, c + n, c + 2 n, ... Tiles of a causal mask, and of sequences of different lengths, take unequal
times. With one CTA for each tile, the hardware starts the next tile on the first SM that is free. On an H200, causal
``attention`` of 16384 queries and 16 heads took 1.53 times as long with the stride as without, where the steps of the busiest
CTA are 1.55 times as many; 1.07, 1.04 and 1.03 at 2048, 4096 and 8192 queries, where they are 1.11, 1.05 and 1.02 times as
many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace

import numpy as np
import numpy.typing as npt

from ptxkit import cdiv
from ptxkit.kernels.attention.sizes import AttentionSizes
from ptxkit.workload.inputs import dtype_of

FIXED = 1  # steps that take as long as what each tile does once, such as its stores

Steps = npt.NDArray[np.int64]


def strided_remark(w: AttentionSizes, steps: Steps) -> str | None:
    """``slower`` of a persistent step: None where its CTAs share the tiles at least as equally as the hardware would.

    Args:
        steps: of the tiles in the order of their work items; 0 for those that do not exist.
    """
    stride, free = strided(steps, w.device.sms), first_free(steps, w.device.sms)
    if stride <= free:
        return None
    return f"the busiest CTA has {stride / free:.2f} times the steps that it has if the hardware assigns the tiles"


def strided(steps: Steps, ctas: int) -> int:
    """The most steps of a CTA with a fixed stride."""
    rounds = cdiv(len(steps), ctas)
    padded = np.zeros(rounds * ctas, np.int64)
    padded[: len(steps)] = np.where(steps > 0, steps + FIXED, 0)
    return int(padded.reshape(rounds, ctas).sum(axis=0).max(initial=0))


def first_free(steps: Steps, ctas: int) -> int:
    """The most steps of an SM if each tile, in order, goes to the first one that is free."""
    loads = [0] * ctas
    heapify(loads)
    for count in steps[steps > 0].tolist():
        heapreplace(loads, loads[0] + count + FIXED)
    return max(loads)


def busiest(steps: Steps, sms: int) -> float:
    """About the steps of the SM that has most of them if each tile goes to the first one that is free: of tiles of equal steps
    whole ones, of others at least the mean of all SMs and the longest tile."""
    longest = int(steps.max(initial=0))
    if longest == steps.min(initial=longest):
        return float(cdiv(len(steps), sms) * longest)
    return float(max(longest, steps.sum() / sms))


def section(w: AttentionSizes) -> int:
    """Heads of a section of steps 6 and 7 of ``attention``, which compute the longest tiles of all of them first.

    The most heads whose keys and values are in half of the L2 cache, with those that share them, and which divide the heads of
    all sequences: a last section of few heads would have too few tiles for the SMs.
    """
    heads, of_kv_head = w.batch * w.heads, 2 * w.k * w.d * dtype_of(w.dtype).itemsize
    most = max(1, w.device.l2_bytes // 2 // of_kv_head * (w.heads // w.shared_heads))
    return max(count for count in range(1, min(most, heads) + 1) if heads % count == 0)


def alone(w: AttentionSizes) -> int:
    """Heads of all sequences that come one after the other, before the last section: their tiles read the same keys and values
    at the same time. Which SM has the most steps depends on the last tiles only. Without a mask, equal sequences have equal
    tiles, which need no section."""
    heads = w.batch * w.heads
    return heads if not w.causal and w.lengths == "equal" else heads - section(w)


def steps_of_queries(w: AttentionSizes, queries: int, keys: int) -> Steps:
    """The steps of tiles of ``queries`` with ``keys`` each: the tiles of a head, the last first with a causal mask, then those
    of the next head."""

    def of_head(n: int, m: int) -> Steps:
        first = np.arange(cdiv(w.q, queries)) * queries
        last = np.minimum(first + queries, n) - 1
        visible = np.clip(last + 1 + m - n, 0, m) if w.causal else np.full(len(first), m)
        steps = np.where(first < n, -(-visible // keys), 0)
        return steps[::-1] if w.causal else steps

    return of_all_heads(w.heads, of_head, w.sequence_lengths())


def steps_of_keys(w: AttentionSizes, keys: int, queries: int) -> Steps:
    """The steps of tiles of ``keys``, of all heads that share them, with ``queries`` each."""

    def of_head(n: int, m: int) -> Steps:
        first = np.arange(cdiv(w.k, keys)) * keys
        seen_from = np.maximum(first + n - m, 0) // queries if w.causal else np.zeros(len(first), np.int64)
        steps = np.maximum(-(-n // queries) - seen_from, 0) * (w.heads // w.shared_heads)
        return np.where(first < m, steps, 0)

    return of_all_heads(w.shared_heads, of_head, w.sequence_lengths())


def of_all_heads(heads: int, of_head: Callable[[int, int], Steps], lengths: Sequence[tuple[int, int]]) -> Steps:
    """The steps of all sequences. Those of equal lengths have the same ones, which are computed once."""
    of_lengths = {counts: np.tile(of_head(*counts), heads) for counts in set(lengths)}
    return np.concatenate([of_lengths[counts] for counts in lengths])
