"""Gradients of layernorm and rmsnorm in Triton. Importing this imports Triton.

Programs are persistent, as in Triton's tutorial on layer normalization, with partial sums of dgamma and dbeta in registers; a
second launch adds these up. Sums are in f32.
"""

import triton
import triton.language as tl


@triton.jit
def derivative(z, ACTIVATION: tl.constexpr):
    """The derivative of relu, or of gelu's tanh approximation."""
    if ACTIVATION == "relu":
        return tl.where(z <= 0, 0.0, 1.0)
    rising = tl.sigmoid(1.5957691 * z * (1 + 0.044715 * z * z))
    return rising * (1 + z * (1 - rising) * (1.5957691 + 0.21406445 * z * z))


@triton.jit
def rows(
    x_ptr,
    dy_ptr,
    gamma_ptr,
    beta_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    gammas_ptr,
    betas_ptr,
    rows,
    cols,
    CENTERED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """dx, and a row of partial sums for each program."""
    col = tl.arange(0, BLOCK)
    inside = col < cols
    gamma = tl.load(gamma_ptr + col, inside, other=0.0).to(tl.float32)
    if ACTIVATION != "none":
        beta = tl.load(beta_ptr + col, inside, other=0.0).to(tl.float32)
    dgamma = tl.zeros((BLOCK,), tl.float32)
    dbeta = tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0), rows, PROGRAMS):
        first = row.to(tl.int64) * cols
        n = tl.load(x_ptr + first + col, inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + first + col, inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        if CENTERED:
            n = tl.where(inside, n - tl.load(mean_ptr + row), 0.0)
        n *= rstd
        if ACTIVATION != "none":
            dy *= derivative(n * gamma + beta, ACTIVATION)
        if CENTERED:
            dbeta += dy
        dgamma += dy * n
        w = dy * gamma
        dx = w - n * (tl.sum(w * n, 0) / cols)
        if CENTERED:
            dx -= tl.sum(w, 0) / cols
        tl.store(dx_ptr + first + col, dx * rstd, inside)
    start = tl.program_id(0).to(tl.int64) * cols
    tl.store(gammas_ptr + start + col, dgamma, inside)
    if CENTERED:
        tl.store(betas_ptr + start + col, dbeta, inside)


@triton.jit
def column_sum(parts_ptr, out_ptr, cols, PROGRAMS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Sums over PROGRAMS rows of COLS columns."""
    row = tl.arange(0, ROWS)[:, None]
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    total = tl.zeros((ROWS, COLS), tl.float32)
    for start in range(0, PROGRAMS, ROWS):
        inside = (start + row < PROGRAMS) & (col < cols)[None, :]
        total += tl.load(parts_ptr + (start + row) * cols + col[None, :], inside, other=0.0)
    tl.store(out_ptr + col, tl.sum(total, 0), col < cols)


@triton.jit
def finish(
    gammas_ptr,
    betas_ptr,
    dgamma_ptr,
    dbeta_ptr,
    cols,
    CENTERED: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """dgamma and dbeta from their partial sums."""
    column_sum(gammas_ptr, dgamma_ptr, cols, PROGRAMS, ROWS, COLS)
    if CENTERED:
        column_sum(betas_ptr, dbeta_ptr, cols, PROGRAMS, ROWS, COLS)
