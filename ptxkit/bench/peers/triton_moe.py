"""A mixture of experts in Triton, organised as vLLM's fused_moe is. Importing this imports Triton.

The pairs of a token and an expert are sorted by expert into an array of indices in which each expert begins at a multiple of
BLOCK_M, with the expert of each block beside it (vLLM's moe_align_block_size). Both products are one kernel, in which a program
has a block of pairs and BLOCK_N columns, reads tokens by index, and applies scales, and in the second one the routing weights,
to its sums (fused_moe_kernel). The results are added per token (moe_sum). Intermediate results are bf16. The organisation is
that of https://github.com/vllm-project/vllm/blob/main/vllm/model_executor/layers/fused_moe/fused_moe.py.

All kernels take the constants of a configuration, of which each uses some.
"""

import triton
import triton.language as tl


@triton.jit
def gate(
    logits_ptr, expert_ptr, weight_ptr, tokens, EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP_K: tl.constexpr,
    RENORMALIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The TOP_K experts of a token and the softmax of their logits; a program per token."""
    token = tl.program_id(0)
    lane = tl.arange(0, PADDED)
    logits = tl.load(logits_ptr + token * EXPERTS + lane, lane < EXPERTS, float("-inf"))
    largest = tl.max(logits, 0)
    terms = tl.exp(logits - largest)
    total = tl.sum(terms, 0)
    if RENORMALIZE:
        total = 0.0
        left = logits
        for _ in tl.static_range(TOP_K):
            best = tl.max(left, 0)
            chosen = tl.min(tl.where(left == best, lane, PADDED), 0)
            total += tl.exp(best - largest)
            left = tl.where(lane == chosen, float("-inf"), left)
    left = logits
    for slot in tl.static_range(TOP_K):
        best = tl.max(left, 0)
        chosen = tl.min(tl.where(left == best, lane, PADDED), 0)
        tl.store(expert_ptr + token * TOP_K + slot, chosen)
        tl.store(weight_ptr + token * TOP_K + slot, tl.exp(best - largest) / total)
        left = tl.where(lane == chosen, float("-inf"), left)


@triton.jit
def count(
    expert_ptr, counts_ptr, pairs, SCAN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The number of pairs of an expert; a program per expert."""
    mine = tl.program_id(0)
    lane = tl.arange(0, SCAN)
    found = tl.zeros((SCAN,), tl.int32)
    for first in range(0, pairs, SCAN):
        expert = tl.load(expert_ptr + first + lane, first + lane < pairs, -1)
        found += (expert == mine).to(tl.int32)
    tl.store(counts_ptr + mine, tl.sum(found, 0))


@triton.jit
def align(
    expert_ptr, counts_ptr, sorted_ptr, block_expert_ptr, padded_ptr, pairs, EXPERTS: tl.constexpr, PADDED: tl.constexpr,
    SCAN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """An expert's pairs in the sorted array, from a multiple of BLOCK_M; `pairs` where there is none. A program per expert."""
    mine = tl.program_id(0)
    experts = tl.arange(0, PADDED)
    counts = tl.load(counts_ptr + experts, experts < EXPERTS, 0)
    blocks = (counts + BLOCK_M - 1) // BLOCK_M
    first_block = tl.sum(tl.where(experts < mine, blocks, 0), 0)
    own = tl.sum(tl.where(experts == mine, counts, 0), 0)
    own_blocks = (own + BLOCK_M - 1) // BLOCK_M
    if mine == 0:
        tl.store(padded_ptr, tl.sum(blocks, 0) * BLOCK_M)
    at = first_block * BLOCK_M
    lane = tl.arange(0, SCAN)
    for first in range(0, pairs, SCAN):
        expert = tl.load(expert_ptr + first + lane, first + lane < pairs, -1)
        here = expert == mine
        rank = tl.cumsum(here.to(tl.int32), 0) - 1
        tl.store(sorted_ptr + at + rank, first + lane, here)
        at += tl.sum(here.to(tl.int32), 0)
    row = tl.arange(0, BLOCK_M)
    end = (first_block + own_blocks) * BLOCK_M
    tl.store(sorted_ptr + at + row, pairs, at + row < end)
    for block in range(own_blocks):
        tl.store(block_expert_ptr + first_block + block, mine)


@triton.jit
def grouped_product(
    a_ptr, b_ptr, c_ptr, a_scales_ptr, b_scales_ptr, weight_ptr, sorted_ptr, block_expert_ptr, padded_ptr, pairs, n, k,
    PAIRS_PER_ROW: tl.constexpr, WEIGHTED: tl.constexpr, INTEGER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """c[pair] = a[pair // PAIRS_PER_ROW] b[expert of the pair]^T with scales, in bf16; a program has BLOCK_M pairs."""
    program = tl.program_id(0)
    padded = tl.load(padded_ptr)
    blocks_m, blocks_n = padded // BLOCK_M, tl.cdiv(n, BLOCK_N)
    in_group = GROUP * blocks_n
    first_m = program // in_group * GROUP
    height = tl.minimum(blocks_m - first_m, GROUP)
    if first_m >= blocks_m:
        return
    block_m = first_m + program % in_group % height
    block_n = program % in_group // height
    pair = tl.load(sorted_ptr + block_m * BLOCK_M + tl.arange(0, BLOCK_M))
    inside = pair < pairs
    row = tl.where(inside, pair // PAIRS_PER_ROW, 0)
    expert = tl.load(block_expert_ptr + block_m).to(tl.int64)
    col = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    a = a_ptr + row[:, None].to(tl.int64) * k + depth[None, :]
    b = b_ptr + (expert * n + col % n)[None, :] * k + depth[:, None]
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.int32 if INTEGER else tl.float32)
    for first in range(0, k, BLOCK_K):
        left = tl.load(a, inside[:, None] & (depth[None, :] < k - first), 0.0)
        right = tl.load(b, depth[:, None] < k - first, 0.0)
        if INTEGER:
            sums = tl.dot(left, right, sums, out_dtype=tl.int32)
        else:
            sums = tl.dot(left, right, sums)
        a += BLOCK_K
        b += BLOCK_K
    scale = tl.load(a_scales_ptr + row)
    if WEIGHTED:
        scale *= tl.load(weight_ptr + pair, inside, 0.0)
    result = sums.to(tl.float32) * scale[:, None] * tl.load(b_scales_ptr + expert * n + col % n)[None, :]
    to = c_ptr + pair[:, None].to(tl.int64) * n + col[None, :]
    tl.store(to, result.to(c_ptr.dtype.element_ty), inside[:, None] & (col[None, :] < n))


@triton.jit
def swiglu_quantize(
    x_ptr, q_ptr, scales_ptr, cols, INTEGER: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """silu(gate) * factor of a pair, quantized; blocks of 8 gates and 8 factors alternate. A program per pair."""
    pair = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, PADDED)
    there = col < cols
    at = x_ptr + pair * 2 * cols + col // 8 * 16 + col % 8
    x = tl.load(at, there, 0.0).to(tl.float32)
    h = x / (1 + tl.exp(-x)) * tl.load(at + 8, there, 0.0).to(tl.float32)
    largest = tl.max(tl.abs(h), 0)
    if INTEGER:
        scale = largest / 127
        steps = tl.minimum(tl.maximum(h / tl.maximum(scale, 1e-30), -128.0), 127.0)
        q = (steps + 12582912.0 - 12582912.0).to(tl.int8)
    else:
        scale = largest / 448
        q = tl.minimum(tl.maximum(h / tl.maximum(scale, 1e-30), -448.0), 448.0).to(q_ptr.dtype.element_ty)
    tl.store(q_ptr + pair * cols + col, q, there)
    tl.store(scales_ptr + pair, scale)


@triton.jit
def add_experts(
    c_ptr, y_ptr, cols, TOP_K: tl.constexpr, COLS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The sum of the results of a token's pairs, which are weighted already."""
    token = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    total = tl.zeros((COLS,), tl.float32)
    for slot in tl.static_range(TOP_K):
        total += tl.load(c_ptr + (token * TOP_K + slot) * cols + col, col < cols, 0.0).to(tl.float32)
    tl.store(y_ptr + token * cols + col, total.to(y_ptr.dtype.element_ty), col < cols)
