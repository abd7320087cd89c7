"""Kernels that work on rows, in Triton: a program holds ROWS whole rows. Importing this imports Triton.

BLOCK is a power of two and no less than the number of columns. Sums are in f32.
"""

import triton
import triton.language as tl

from ptxkit.bench.peers.triton_kernels import random_word, random_words, to_int8


@triton.jit
def elements(rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Row numbers (ROWS, 1), columns (1, BLOCK), and which of the elements there are."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    return row, col, (row < rows) & (col < cols)


@triton.jit
def l2norm(x_ptr, y_ptr, rows, cols, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, col, inside = elements(rows, cols, ROWS, BLOCK)
    x = tl.load(x_ptr + row * cols + col, inside, other=0.0)
    norm = tl.sqrt(tl.sum(x * x, 1, keep_dims=True) + eps)
    tl.store(y_ptr + row * cols + col, x / norm, inside)


@triton.jit
def standardized(x, inside, cols, eps):
    """(x - mean) * rstd, mean and rstd."""
    mean = tl.sum(x, 1, keep_dims=True) / cols
    centred = tl.where(inside, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, 1, keep_dims=True) / cols + eps)
    return centred * rstd, mean, rstd


@triton.jit
def layernorm(
    x_ptr,
    gamma_ptr,
    beta_ptr,
    y_ptr,
    mean_ptr,
    rstd_ptr,
    rows,
    cols,
    eps,
    activation: tl.constexpr,
    TRAINING: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, col, inside = elements(rows, cols, ROWS, BLOCK)
    x = tl.load(x_ptr + row * cols + col, inside, other=0.0).to(tl.float32)
    gamma = tl.load(gamma_ptr + col, col < cols).to(tl.float32)
    beta = tl.load(beta_ptr + col, col < cols).to(tl.float32)
    normal, mean, rstd = standardized(x, inside, cols, eps)
    tl.store(y_ptr + row * cols + col, activation(normal * gamma + beta), inside)
    if TRAINING:
        tl.store(mean_ptr + row, mean, row < rows)
        tl.store(rstd_ptr + row, rstd, row < rows)


@triton.jit
def layernorm_quantize(
    x_ptr, gamma_ptr, beta_ptr, q_ptr, scales_ptr, rows, cols, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row, col, inside = elements(rows, cols, ROWS, BLOCK)
    x = tl.load(x_ptr + row * cols + col, inside, other=0.0).to(tl.float32)
    gamma = tl.load(gamma_ptr + col, col < cols, other=0.0).to(tl.float32)
    beta = tl.load(beta_ptr + col, col < cols, other=0.0).to(tl.float32)
    normal, _mean, _rstd = standardized(x, inside, cols, eps)
    v = normal * gamma + beta
    largest = tl.max(tl.abs(v), 1, keep_dims=True)
    inverse = tl.where(largest == 0, 0.0, 127 / largest)
    tl.store(q_ptr + row * cols + col, to_int8(v * inverse), inside)
    tl.store(scales_ptr + row, largest / 127, row < rows)


@triton.jit
def rmsnorm(
    x_ptr,
    gamma_ptr,
    y_ptr,
    rstd_ptr,
    rows,
    cols,
    eps,
    TRAINING: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, col, inside = elements(rows, cols, ROWS, BLOCK)
    x = tl.load(x_ptr + row * cols + col, inside, other=0.0).to(tl.float32)
    gamma = tl.load(gamma_ptr + col, col < cols).to(tl.float32)
    rstd = 1 / tl.sqrt(tl.sum(x * x, 1, keep_dims=True) / cols + eps)
    tl.store(y_ptr + row * cols + col, x * rstd * gamma, inside)
    if TRAINING:
        tl.store(rstd_ptr + row, rstd, row < rows)


@triton.jit
def softmax(
    x_ptr,
    y_ptr,
    rows,
    cols,
    threshold,
    scale,
    seed,
    DROPOUT: tl.constexpr,
    QUADS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, col, inside = elements(rows, cols, ROWS, BLOCK)
    x = tl.load(x_ptr + row * cols + col, inside, other=float("-inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, 1, keep_dims=True))
    y = e / tl.sum(e, 1, keep_dims=True)
    if DROPOUT:
        if QUADS:
            words = random_words(seed, row * cols, ROWS, BLOCK)
        else:
            words = random_word(seed, row * cols + col)
        y = tl.where(words >= threshold, y * scale, 0.0)
    tl.store(y_ptr + row * cols + col, y, inside)


@triton.jit
def softmax_backward(y_ptr, dy_ptr, dx_ptr, rows, cols, scale, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, col, inside = elements(rows, cols, ROWS, BLOCK)
    y = tl.load(y_ptr + row * cols + col, inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + row * cols + col, inside, other=0.0).to(tl.float32)
    total = tl.sum(y * dy, 1, keep_dims=True)
    tl.store(dx_ptr + row * cols + col, scale * y * (dy - total), inside)


@triton.jit
def scale_mask_softmax(s_ptr, mask_ptr, y_ptr, rows, cols, scale, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, col, inside = elements(rows, cols, ROWS, BLOCK)
    s = tl.load(s_ptr + row * cols + col, inside, other=float("-inf")).to(tl.float32)
    mask = tl.load(mask_ptr + row * cols + col, inside, other=float("-inf")).to(tl.float32)
    x = tl.where(inside, s * scale + mask, float("-inf"))
    largest = tl.max(x, 1, keep_dims=True)
    e = tl.exp(x - tl.where(largest == float("-inf"), 0.0, largest))
    total = tl.sum(e, 1, keep_dims=True)
    tl.store(y_ptr + row * cols + col, e / tl.where(total == 0, 1.0, total), inside)
