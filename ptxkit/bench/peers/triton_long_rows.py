"""Kernels in Triton for rows that do not fit in a program's registers: a program reads a row in passes of BLOCK columns.

Importing this imports Triton. The partial results of a row are kept by column of the block and reduced once.
"""

import triton
import triton.language as tl

from ptxkit.bench.peers.triton_kernels import random_word, to_int8


@triton.jit
def squares(x_ptr, cols, BLOCK: tl.constexpr):
    """Sum of the squares of a row."""
    col = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        x = tl.load(x_ptr + start + col, start + col < cols, other=0.0).to(tl.float32)
        total += x * x
    return tl.sum(total, 0)


@triton.jit
def statistics(x_ptr, cols, eps, BLOCK: tl.constexpr):
    """Mean and rstd of a row."""
    col = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        total += tl.load(x_ptr + start + col, start + col < cols, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / cols
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        x = tl.load(x_ptr + start + col, start + col < cols, other=0.0).to(tl.float32)
        centred = tl.where(start + col < cols, x - mean, 0.0)
        total += centred * centred
    return mean, 1 / tl.sqrt(tl.sum(total, 0) / cols + eps)


@triton.jit
def l2norm(x_ptr, y_ptr, rows, cols, eps, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, BLOCK)
    norm = tl.sqrt(squares(x_ptr + first, cols, BLOCK) + eps)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        x = tl.load(x_ptr + first + start + col, inside)
        tl.store(y_ptr + first + start + col, x / norm, inside)


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
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, BLOCK)
    mean, rstd = statistics(x_ptr + first, cols, eps, BLOCK)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        x = tl.load(x_ptr + first + start + col, inside).to(tl.float32)
        gamma = tl.load(gamma_ptr + start + col, inside).to(tl.float32)
        beta = tl.load(beta_ptr + start + col, inside).to(tl.float32)
        tl.store(y_ptr + first + start + col, activation((x - mean) * rstd * gamma + beta), inside)
    if TRAINING:
        tl.store(mean_ptr + tl.program_id(0), mean)
        tl.store(rstd_ptr + tl.program_id(0), rstd)


@triton.jit
def layernorm_quantize(x_ptr, gamma_ptr, beta_ptr, q_ptr, scales_ptr, rows, cols, eps, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, BLOCK)
    mean, rstd = statistics(x_ptr + first, cols, eps, BLOCK)
    most = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        x = tl.load(x_ptr + first + start + col, inside).to(tl.float32)
        gamma = tl.load(gamma_ptr + start + col, inside, other=0.0).to(tl.float32)
        beta = tl.load(beta_ptr + start + col, inside, other=0.0).to(tl.float32)
        v = tl.where(inside, (x - mean) * rstd * gamma + beta, 0.0)
        most = tl.maximum(most, tl.abs(v))
    largest = tl.max(most, 0)
    inverse = tl.where(largest == 0, 0.0, 127 / largest)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        x = tl.load(x_ptr + first + start + col, inside).to(tl.float32)
        gamma = tl.load(gamma_ptr + start + col, inside).to(tl.float32)
        beta = tl.load(beta_ptr + start + col, inside).to(tl.float32)
        tl.store(q_ptr + first + start + col, to_int8(((x - mean) * rstd * gamma + beta) * inverse), inside)
    tl.store(scales_ptr + tl.program_id(0), largest / 127)


@triton.jit
def rmsnorm(x_ptr, gamma_ptr, y_ptr, rstd_ptr, rows, cols, eps, TRAINING: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, BLOCK)
    rstd = 1 / tl.sqrt(squares(x_ptr + first, cols, BLOCK) / cols + eps)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        x = tl.load(x_ptr + first + start + col, inside).to(tl.float32)
        gamma = tl.load(gamma_ptr + start + col, inside).to(tl.float32)
        tl.store(y_ptr + first + start + col, x * rstd * gamma, inside)
    if TRAINING:
        tl.store(rstd_ptr + tl.program_id(0), rstd)


@triton.jit
def online(x, largest, total):
    """The running maximum and the sum of exp(x - maximum), by column, with one more x; empty columns hold -inf and 0."""
    most = tl.maximum(largest, x)
    safe = tl.where(most == float("-inf"), 0.0, most)
    return most, total * tl.exp(largest - safe) + tl.exp(x - safe)


@triton.jit
def whole(largest, total):
    """The maximum, 0 where all is -inf, and the sum, 1 where it is 0."""
    most = tl.max(largest, 0)
    most = tl.where(most == float("-inf"), 0.0, most)
    every = tl.sum(total * tl.exp(largest - most), 0)
    return most, tl.where(every == 0, 1.0, every)


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
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        x = tl.load(x_ptr + first + start + col, start + col < cols, other=float("-inf")).to(tl.float32)
        largest, total = online(x, largest, total)
    most, every = whole(largest, total)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        y = tl.exp(tl.load(x_ptr + first + start + col, inside).to(tl.float32) - most) / every
        if DROPOUT:
            y = tl.where(random_word(seed, first + start + col) >= threshold, y * scale, 0.0)
        tl.store(y_ptr + first + start + col, y, inside)


@triton.jit
def scale_mask_softmax(s_ptr, mask_ptr, y_ptr, rows, cols, scale, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        s = tl.load(s_ptr + first + start + col, inside, other=0.0).to(tl.float32)
        mask = tl.load(mask_ptr + first + start + col, inside, other=float("-inf")).to(tl.float32)
        largest, total = online(s * scale + mask, largest, total)
    most, every = whole(largest, total)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        s = tl.load(s_ptr + first + start + col, inside).to(tl.float32)
        mask = tl.load(mask_ptr + first + start + col, inside).to(tl.float32)
        tl.store(y_ptr + first + start + col, tl.exp(s * scale + mask - most) / every, inside)
