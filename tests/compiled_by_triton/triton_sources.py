"""Triton kernels whose PTX for sm_100a is executed by the tests of this directory. Importing this imports Triton."""

import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, m, n, k, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c = a b^T by persistent programs; a, b and c are tensor descriptors that the host makes."""
    across = tl.cdiv(n, BN)
    for tile in range(tl.program_id(0), tl.cdiv(m, BM) * across, PROGRAMS):
        row, column = tile // across * BM, tile % across * BN
        total = tl.zeros((BM, BN), tl.float32)
        for at in range(0, k, BK):
            total = tl.dot(a.load([row, at]), b.load([column, at]).T, total)
        c.store([row, column], total.to(tl.float16))


@triton.jit
def matmul_specialized(a, b, c, m, n, k, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The same with descriptors that the kernel makes, and with warps that load, multiply and store."""
    a_tiles = tl.make_tensor_descriptor(a, [m, k], [k, 1], [BM, BK])
    b_tiles = tl.make_tensor_descriptor(b, [n, k], [k, 1], [BN, BK])
    c_tiles = tl.make_tensor_descriptor(c, [m, n], [n, 1], [BM, BN])
    across = tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, BM) * across, PROGRAMS, warp_specialize=True):
        row, column = tile // across * BM, tile % across * BN
        total = tl.zeros((BM, BN), tl.float32)
        for at in range(0, k, BK):
            total = tl.dot(a_tiles.load([row, at]), b_tiles.load([column, at]).T, total)
        c_tiles.store([row, column], total.to(tl.float16))


@triton.jit
def scaled_matmul(
    a,
    b,
    a_scale,
    b_scale,
    c,
    n,
    k,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    FORMAT: tl.constexpr,
    PACKED: tl.constexpr,
):
    """c = a b^T, whose rows have a factor 2^(e - 127) for each 32 elements; PACKED elements are in a byte."""
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    inner, factors = tl.arange(0, BK // PACKED), tl.arange(0, BK // 32)
    total = tl.zeros((BM, BN), tl.float32)
    for at in range(0, k, BK):
        x = tl.load(a + rows[:, None] * (k // PACKED) + (at // PACKED + inner)[None, :])
        y = tl.load(b + columns[None, :] * (k // PACKED) + (at // PACKED + inner)[:, None])
        x_scale = tl.load(a_scale + rows[:, None] * (k // 32) + (at // 32 + factors)[None, :])
        y_scale = tl.load(b_scale + columns[:, None] * (k // 32) + (at // 32 + factors)[None, :])
        total = tl.dot_scaled(x, x_scale, FORMAT, y, y_scale, FORMAT, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def attention(q, k, v, o, n, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    """o = softmax(scale q k^T) v of one head, with scale in units of log2 e; q, k, v, o are (n, D)."""
    first = tl.program_id(0) * BM
    k_tiles = tl.make_tensor_descriptor(k, [n, D], [D, 1], [BN, D])
    v_tiles = tl.make_tensor_descriptor(v, [n, D], [D, 1], [BN, D])
    queries = tl.make_tensor_descriptor(q, [n, D], [D, 1], [BM, D]).load([first, 0])
    rows = first + tl.arange(0, BM)
    largest = tl.full((BM,), -float("inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    for at in range(0, tl.minimum(n, first + BM) if CAUSAL else n, BN):
        scores = tl.dot(queries, k_tiles.load([at, 0]).T) * scale
        columns = at + tl.arange(0, BN)
        seen = (columns < n)[None, :]
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None])
        scores = tl.where(seen, scores, -float("inf"))
        grown = tl.maximum(largest, tl.max(scores, 1))
        p = tl.math.exp2(scores - grown[:, None])
        shrink = tl.math.exp2(largest - grown)
        weight = weight * shrink + tl.sum(p, 1)
        total = tl.dot(p.to(tl.float16), v_tiles.load([at, 0]), total * shrink[:, None])
        largest = grown
    tl.make_tensor_descriptor(o, [n, D], [D, 1], [BM, D]).store([first, 0], (total / weight[:, None]).to(tl.float16))
