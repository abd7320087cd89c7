"""Element-wise kernels in Triton, and the functions that all of them share. Importing this imports Triton.

Elements are read in their own type, computed on in f32 and rounded once. The offset of a program's first element is
64-bit, and offsets from it are 32-bit.
"""

import triton
import triton.language as tl

# -- functions of elements -------------------------------------------------------------------------------------------------


@triton.jit
def identity(x):
    return x


@triton.jit
def relu(x):
    return tl.maximum(x, 0.0)


@triton.jit
def silu(x):
    return x / (1 + tl.exp(-x))


@triton.jit
def gelu(x):
    """The tanh formula: 0.5 x (1 + tanh u) = x / (1 + exp(-2 u))."""
    return x / (1 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))


@triton.jit
def add_mul_exp(x, y):
    return tl.exp((x + y) * 2)


@triton.jit
def add_gelu(x, y):
    return gelu(x + y)


@triton.jit
def add_silu(x, y):
    return silu(x + y)


@triton.jit
def add_relu(x, y):
    return relu(x + y)


@triton.jit
def silu_mul(gate, up):
    return silu(gate) * up


@triton.jit
def gelu_mul(x, gate):
    return gelu(x) * gate


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def relu_slope(x):
    return tl.where(x > 0, 1.0, 0.0)


@triton.jit
def silu_slope(x):
    s = sigmoid(x)
    return s * (1 + x * (1 - s))


@triton.jit
def gelu_slope(x):
    """Of x sigmoid(z) with z = 2 u of the tanh formula."""
    s = sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return s + x * s * (1 - s) * 1.5957691216057308 * (1 + 0.134145 * x * x)


@triton.jit
def to_int8(x):
    """Clamps and rounds, ties to even: adding 1.5 * 2^23 removes the fractional bits."""
    return (tl.minimum(tl.maximum(x, -128.0), 127.0) + 12582912.0 - 12582912.0).to(tl.int8)


@triton.jit
def random_words(seed, first, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Philox words of the elements ``first`` (ROWS, 1), a multiple of four, and the BLOCK - 1 that follow: (ROWS, BLOCK)."""
    counters = first // 4 + tl.arange(0, BLOCK // 4)[None, :]
    a, b, c, d = tl.randint4x(seed, counters)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (ROWS, BLOCK))


@triton.jit
def random_word(seed, element):
    """The Philox word of each element at any position; four times the work of :func:`random_words`."""
    a, b, c, d = tl.randint4x(seed, element // 4)
    which = element % 4
    return tl.where(which == 0, a, tl.where(which == 1, b, tl.where(which == 2, c, d)))


# -- kernels ---------------------------------------------------------------------------------------------------------------


@triton.jit
def binary(x_ptr, y_ptr, out_ptr, n, function: tl.constexpr, BLOCK: tl.constexpr):
    """out = function(x, y)."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    inside = lane < n - start
    x = tl.load(x_ptr + start + lane, inside).to(tl.float32)
    y = tl.load(y_ptr + start + lane, inside).to(tl.float32)
    tl.store(out_ptr + start + lane, function(x, y), inside)


@triton.jit
def add_activation_backward(dy_ptr, x_ptr, residual_ptr, dx_ptr, n, slope: tl.constexpr, BLOCK: tl.constexpr):
    """dx = dy * slope(x + residual)."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    inside = lane < n - start
    dy = tl.load(dy_ptr + start + lane, inside).to(tl.float32)
    x = tl.load(x_ptr + start + lane, inside).to(tl.float32)
    residual = tl.load(residual_ptr + start + lane, inside).to(tl.float32)
    tl.store(dx_ptr + start + lane, dy * slope(x + residual), inside)


@triton.jit
def swiglu_backward(dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, n, BLOCK: tl.constexpr):
    """The gradients of silu(gate) * up."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    inside = lane < n - start
    dy = tl.load(dy_ptr + start + lane, inside).to(tl.float32)
    gate = tl.load(gate_ptr + start + lane, inside).to(tl.float32)
    up = tl.load(up_ptr + start + lane, inside).to(tl.float32)
    tl.store(dgate_ptr + start + lane, dy * up * silu_slope(gate), inside)
    tl.store(dup_ptr + start + lane, dy * silu(gate), inside)


@triton.jit
def saxpy(a, x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out = a*x + y."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    inside = lane < n - start
    x = tl.load(x_ptr + start + lane, inside)
    y = tl.load(y_ptr + start + lane, inside)
    tl.store(out_ptr + start + lane, tl.fma(a + tl.zeros_like(x), x, y), inside)


@triton.jit
def quantize(x_ptr, q_ptr, n, inverse, zero_point, BLOCK: tl.constexpr):
    """q = clamp(round(x * inverse + zero_point))."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    inside = lane < n - start
    x = tl.load(x_ptr + start + lane, inside)
    tl.store(q_ptr + start + lane, to_int8(x * inverse + zero_point), inside)


@triton.jit
def chain(x_ptr, out_ptr, n, a, b, steps, BLOCK: tl.constexpr):
    """v = a*v + b, ``steps`` times."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    inside = lane < n - start
    v = tl.load(x_ptr + start + lane, inside)
    for _ in range(steps):
        v = v * a + b
    tl.store(out_ptr + start + lane, v, inside)


@triton.jit
def bias_dropout_residual(
    x_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    rows,
    cols,
    threshold,
    scale,
    seed,
    QUADS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = residual + (kept ? (x + bias) * scale : 0); QUADS where cols is a multiple of four."""
    across = tl.cdiv(cols, BLOCK)  # programs of a row
    start = tl.program_id(0) % across * BLOCK
    row = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = start + tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (col < cols)
    element = row * cols + col
    bias = tl.load(bias_ptr + col, col < cols).to(tl.float32)
    x = tl.load(x_ptr + element, inside).to(tl.float32)
    residual = tl.load(residual_ptr + element, inside).to(tl.float32)
    if QUADS:
        words = random_words(seed, row * cols + start, ROWS, BLOCK)
    else:
        words = random_word(seed, element)
    kept = tl.where(words >= threshold, (x + bias) * scale, 0.0)
    tl.store(out_ptr + element, residual + kept, inside)
