"""Attention, forward, in Triton: a program computes BLOCK_Q queries of one head. Importing this imports Triton.

Arrays, sequences and masks are those of :class:`ptxkit.kernels.attention.attention.Attention`. Blocks of keys that all queries
of the program see are multiplied without a mask.
"""

import triton
import triton.language as tl


@triton.jit
def add_keys(
    q,
    visible,
    sums,
    highest,
    results,
    k_ptr,
    v_ptr,
    begin,
    end,
    keys,
    stride,
    scale,
    MASKED: tl.constexpr,
    D: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Adds the keys and values from ``begin`` to ``end`` to the results, sums and maxima of the queries: an online softmax."""
    key = tl.arange(0, BLOCK_K)
    column = tl.arange(0, D)
    for first in range(begin, end, BLOCK_K):
        row = first + key
        at = row.to(tl.int64)[:, None] * stride + column[None, :]
        if MASKED:
            k = tl.load(k_ptr + at, row[:, None] < keys, other=0.0)
            v = tl.load(v_ptr + at, row[:, None] < keys, other=0.0)
        else:
            k = tl.load(k_ptr + at)
            v = tl.load(v_ptr + at)
        scores = tl.dot(q, tl.trans(k)) * scale
        if MASKED:
            scores = tl.where(row[None, :] < visible[:, None], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        exponentials = tl.exp2(scores - base[:, None])
        factor = tl.exp2(highest - base)
        sums = sums * factor + tl.sum(exponentials, 1)
        results = tl.dot(exponentials.to(v.dtype), v, results * factor[:, None])
        highest = higher
    return sums, highest, results


@triton.jit
def attention(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    q_starts,
    k_starts,
    tokens,
    heads,
    kv_heads,
    scale,
    CAUSAL: tl.constexpr,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """``scale`` includes log2(e): exponentials are powers of two."""
    tile = tl.program_id(0)
    if CAUSAL:  # the last queries see most keys: their programs start first
        tile = tl.num_programs(0) - 1 - tile
    head = tl.program_id(1)
    kv_head = head // (heads // kv_heads)
    sequence = tl.program_id(2)
    q_first = tl.load(q_starts + sequence)
    k_first = tl.load(k_starts + sequence)
    queries = tl.load(q_starts + sequence + 1) - q_first
    keys = tl.load(k_starts + sequence + 1) - k_first

    row = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    column = tl.arange(0, D)
    at = ((q_first + row).to(tl.int64) * heads + head)[:, None] * D + column[None, :]
    inside = row < queries
    q = tl.load(q_ptr + at, inside[:, None], other=0.0)
    if CAUSAL:
        visible = tl.minimum(tl.maximum(row + 1 + keys - queries, 0), keys)
        unmasked = tl.maximum(tile * BLOCK_Q + 1 + keys - queries, 0)
        end = tl.maximum(tl.minimum((tile + 1) * BLOCK_Q, queries) + keys - queries, 0)
    else:
        visible = row * 0 + keys
        unmasked = keys
        end = keys
    unmasked = tl.minimum(unmasked, keys) // BLOCK_K * BLOCK_K
    if tile * BLOCK_Q >= queries:
        unmasked = 0
        end = 0

    sums = tl.zeros([BLOCK_Q], tl.float32)
    highest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    results = tl.zeros([BLOCK_Q, D], tl.float32)
    stride = kv_heads * D
    first = (k_first.to(tl.int64) * kv_heads + kv_head) * D
    k_ptr += first
    v_ptr += first
    sums, highest, results = add_keys(
        q, visible, sums, highest, results, k_ptr, v_ptr, 0, unmasked, keys, stride, scale, False, D, BLOCK_K
    )
    sums, highest, results = add_keys(
        q, visible, sums, highest, results, k_ptr, v_ptr, unmasked, end, keys, stride, scale, True, D, BLOCK_K
    )
    empty = sums == 0
    results = results / tl.where(empty, 1.0, sums)[:, None]
    tl.store(o_ptr + at, results.to(o_ptr.dtype.element_ty), inside[:, None])
    logarithm = (highest + tl.log2(tl.where(empty, 1.0, sums))) * 0.6931471805599453
    tl.store(lse_ptr + head.to(tl.int64) * tokens + q_first + row, logarithm, inside)
