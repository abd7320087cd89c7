"""The bundled operations as functions on tensors.

All take tensors of a GPU, on torch's current stream, and of the CPU, in the emulator. Tensors may have any strides. Those of an
operation have one device and, except where stated, one type: float32, float16 or bfloat16. Results are contiguous. A
wrong device, type or shape is a :class:`ptxkit.errors.UsageError` that names the argument. Nothing is broadcast.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from ptxkit.errors import UsageError
from ptxkit.torch.operations import check_tensor, is_autocast
from ptxkit.torch.table import CALLS, product, rows_of, takes_any_rows

NormActivation: TypeAlias = Literal["none", "relu", "gelu"]
LinearActivation: TypeAlias = Literal["none", "relu", "gelu", "silu"]
SumActivation: TypeAlias = Literal["gelu", "silu", "relu"]


PRODUCT_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def _filled(x: Tensor, value: float) -> Tensor:
    """A vector of the columns of x with the same value everywhere. What is no tensor is refused later, by its name."""
    return x.new_full(x.shape[-1:], value) if _is_strided(x) else x


def _is_strided(x: object) -> bool:
    """Whether an argument is a tensor whose elements lie in memory with strides."""
    return isinstance(x, Tensor) and x.layout is torch.strided and not x.is_nested and not x.is_quantized


def _matrix(operation: str, name: str, tensor: Tensor) -> None:
    check_tensor(operation, name, tensor)
    if tensor.ndim != 2:
        raise UsageError(f"{operation}: {name} has the shape {tuple(tensor.shape)}, but must be a matrix")


# -- norms ---------------------------------------------------------------------------------------------------------------


def layernorm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    activation: NormActivation = "none",
    eps: float = 1e-5,
) -> Tensor:
    """``activation((x - mean) / sqrt(variance + eps) * weight + bias)`` of each row, in one launch.

    Args:
        x: (..., cols).
        weight, bias: (cols,); None for ones and zeros.
        activation: gelu is the tanh formula.
        eps: at least 0.

    Returns:
        As x. Its derivative is computed by ``layernorm_backward``.
    """
    weight, bias = _filled(x, 1) if weight is None else weight, _filled(x, 0) if bias is None else bias
    return CALLS["layernorm"]((x, weight, bias), (activation, eps))


def layernorm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor, activation: NormActivation = "none"
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias of ``layernorm``.

    Args:
        dy, x: (..., cols).
        weight, bias: (cols,).
        mean, rstd: (...), float32: the mean and 1 / sqrt(variance + eps) of each row.

    Returns:
        dx (..., cols), dweight (cols,), dbias (cols,).
    """
    return CALLS["layernorm_backward"]((dy, x, weight, bias, mean, rstd), (activation,))


def rmsnorm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` of each row.

    Args:
        x: (..., cols).
        weight: (cols,); None for ones.
        eps: at least 0.

    Returns:
        As x. Its derivative is computed by ``rmsnorm_backward``.
    """
    return CALLS["rmsnorm"]((x, _filled(x, 1) if weight is None else weight), (eps,))


def rmsnorm_backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and weight of ``rmsnorm``.

    Args:
        dy, x: (..., cols). weight: (cols,).
        rstd: (...), float32: 1 / sqrt(mean(x^2) + eps) of each row.

    Returns:
        dx (..., cols), dweight (cols,).
    """
    return CALLS["rmsnorm_backward"]((dy, x, weight, rstd))


def l2norm(x: Tensor, eps: float = 1e-12) -> Tensor:
    """``x / sqrt(sum(x^2) + eps)`` of each row, the kernel ``fused_l2norm``.

    Args:
        x: (..., cols), float32.
        eps: at least 0.

    Returns:
        As x. Its derivative is computed by ``rmsnorm`` and ``rmsnorm_backward``.
    """
    return CALLS["l2norm"]((x,), (eps,))


def layernorm_quantize(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Layer normalization v of each row, quantized: ``q = round(v / scale)``, ``scale = max(|v|) / 127``. It has no derivative.

    Args:
        x: (..., cols). weight, bias: (cols,); None for ones and zeros.

    Returns:
        q (..., cols) int8, and the scales (...) float32.
    """
    weight, bias = _filled(x, 1) if weight is None else weight, _filled(x, 0) if bias is None else bias
    return CALLS["layernorm_quantize"]((x, weight, bias), (eps,))


# -- softmax -------------------------------------------------------------------------------------------------------------


def softmax(x: Tensor, p: float = 0.0, seed: int | None = None) -> Tensor:
    """Softmax of each row, with dropout where p is not 0.

    Args:
        x: (..., cols).
        p: probability of an element to be dropped; the others are divided by 1 - p.
        seed: of the random numbers, 0 to 2^63 - 1; None draws one from torch's default generator of the CPU.

    Returns:
        As x. Its derivative is computed by ``softmax_backward``.
    """
    return CALLS["softmax"]((x,), (p,), seed)


def softmax_backward(y: Tensor, dy: Tensor, scale: float = 1.0) -> Tensor:
    """``scale * y * (dy - sum(y * dy))`` of each row: the gradient of softmax from its result y.

    Args:
        y, dy: (..., cols).
        scale: factor of the scores before softmax.
    """
    return CALLS["softmax_backward"]((y, dy), (scale,))


def scale_mask_softmax(scores: Tensor, mask: Tensor, scale: float = 1.0) -> Tensor:
    """``softmax(scores * scale + mask)`` of each row; zeros where all columns are masked.

    Args:
        scores: (..., cols).
        mask: as scores; minus infinity hides a column.
        scale: factor of the scores.

    Returns:
        As scores. Its derivative is computed by ``softmax_backward``.
    """
    return CALLS["scale_mask_softmax"]((scores, mask), (scale,))


# -- element-wise --------------------------------------------------------------------------------------------------------


def add_gelu(x: Tensor, y: Tensor) -> Tensor:
    """``gelu(x + y)`` by the tanh formula, for tensors of one shape. Its derivative is computed by
    ``add_activation_backward``."""
    return CALLS["add_gelu"]((x, y))


def add_activation(x: Tensor, residual: Tensor, activation: SumActivation = "gelu") -> Tensor:
    """``activation(x + residual)`` for tensors of one shape; gelu is the tanh formula.

    Its derivative is computed by ``add_activation_backward``.
    """
    return CALLS["add_activation"]((x, residual), (activation,))


def add_activation_backward(dy: Tensor, x: Tensor, residual: Tensor, activation: SumActivation = "gelu") -> Tensor:
    """``dy * activation'(x + residual)`` for tensors of one shape: the gradient of x and of residual."""
    return CALLS["add_activation_backward"]((dy, x, residual), (activation,))


def add_mul_exp(x: Tensor, y: Tensor) -> Tensor:
    """``exp((x + y) * 2)`` for float32 tensors of one shape. Its derivative is computed by torch's operations."""
    return CALLS["add_mul_exp"]((x, y))


def saxpy(a: float, x: Tensor, y: Tensor) -> Tensor:
    """``a * x + y`` for float32 tensors of one shape, which are not changed. Its derivative is computed by torch's
    operations."""
    return CALLS["saxpy"]((x, y), (a,))


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up`` for tensors of one shape, (..., cols). Its derivative is computed by ``swiglu_backward``."""
    return CALLS["swiglu"]((gate, up))


def swiglu_backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients ``dy * up * silu'(gate)`` and ``dy * silu(gate)`` of ``swiglu``, all of one shape, (..., cols)."""
    return CALLS["swiglu_backward"]((dy, gate, up))


def bias_dropout_residual(x: Tensor, bias: Tensor, residual: Tensor, p: float = 0.1, seed: int | None = None) -> Tensor:
    """``residual + dropout(x + bias)``, without a mask in memory.

    Args:
        x, residual: (..., cols). bias: (cols,).
        p: probability of an element to be dropped; the others are divided by 1 - p. Pass 0 outside of training.
        seed: as for :func:`softmax`.

    Returns:
        As x. Its derivative draws the same mask again, with the same kernel; the sum for bias is torch's.
    """
    return CALLS["bias_dropout_residual"]((x, bias, residual), (p,), seed)


def quantize_int8(x: Tensor, scale: float = 1.0, zero_point: float = 0.0) -> Tensor:
    """``clamp(round(x / scale + zero_point), -128, 127)``, ties to even, as int8. It has no derivative.

    Args:
        x: float32, any shape.
        scale: magnitude between 1e-30 and 1e30.
        zero_point: between -128 and 127.
    """
    return CALLS["quantize_int8"]((x,), (scale, zero_point))


# -- matrix products -----------------------------------------------------------------------------------------------------


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The product a b of a tensor and a matrix, with sums in float32.

    On tensor cores for bfloat16 and float16, where b is read as it lies in memory if it or its transpose is contiguous, and the
    device has a kernel for its layout; otherwise it is copied. On the CUDA cores for float32.

    Args:
        a: (..., m, k) or (k,). b: (k, n).

    Returns:
        (..., m, n) or (n,). Its derivative consists of two more products.
    """
    _matrix("matmul", "b", b)
    check_tensor("matmul", "a", a)
    if is_autocast(a):
        a, b = _lower(a, a.device.type), _lower(b, a.device.type)
    _operands("matmul", "a", a, "b", b.t())
    return product(rows_of(a), b.t()).view(*a.shape[:-1], b.shape[1])


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: LinearActivation = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """``activation(x weight^T + bias) + residual``, with sums in float32.

    In bfloat16 and float16 on tensor cores. Bias, activation and residual are part of the product's launch where the device has
    wgmma and k is a multiple of 8, and bias alone, or with gelu, for any k; elsewhere they are launches of their own, as is
    an activation without bias and residual. In float32 on the CUDA cores.

    Args:
        x: (..., k). weight: (n, k). bias: (n,) or None, of the type and on the device of weight; autocast converts all.
        activation: gelu is the tanh formula.
        residual: (..., n) or None, of the type and on the device of weight.

    Returns:
        (..., n). Its derivative consists of two more products, and of ``add_activation_backward`` for an activation.
    """
    _matrix("linear", "weight", weight)
    if activation not in get_args(LinearActivation):
        raise UsageError(f"linear: activation must be one of {', '.join(get_args(LinearActivation))}, not {activation!r}")
    check_tensor("linear", "x", x)
    shapes = {"bias": (bias, tuple(weight.shape[:1])), "residual": (residual, (*x.shape[:-1], weight.shape[0]))}
    for name, (tensor, shape) in shapes.items():
        if tensor is None:
            continue
        check_tensor("linear", name, tensor)
        if tuple(tensor.shape) != shape:
            raise UsageError(f"linear: {name} has the shape {tuple(tensor.shape)}, but must be {shape}")
        if tensor.device != weight.device:
            raise UsageError(f"linear: {name} is on {tensor.device}, but weight is on {weight.device}")
    if is_autocast(x):
        kind = x.device.type
        x, weight = _lower(x, kind), _lower(weight, kind)
        bias, residual = (None if each is None else _lower(each, kind) for each in (bias, residual))
    _operands("linear", "x", x, "weight", weight)
    for name, tensor in (("bias", bias), ("residual", residual)):
        if tensor is not None and tensor.dtype != weight.dtype:
            raise UsageError(f"linear: {name} has the type {tensor.dtype}, but weight has {weight.dtype}")
    n, k = weight.shape
    fused = x.dtype != torch.float32 and takes_any_rows(x.device)
    if residual is not None and fused and not k % 8:
        rows = rows_of(residual)
        if bias is None:
            return CALLS["linear_residual"]((rows_of(x), weight, rows), (activation,)).view(residual.shape)
        return CALLS["linear_bias_residual"]((rows_of(x), weight, bias, rows), (activation,)).view(residual.shape)
    if bias is not None and activation == "none" and fused:
        y = CALLS["linear_bias"]((rows_of(x), weight, bias)).view(*x.shape[:-1], n)
    elif bias is not None and activation == "gelu" and (fused or (x.dtype != torch.float32 and not (n % 8 or k % 8))):
        y = CALLS["linear_gelu"]((rows_of(x), weight, bias)).view(*x.shape[:-1], n)
    elif bias is not None and activation != "none" and fused and not k % 8:
        y = CALLS["linear_activation"]((rows_of(x), weight, bias), (activation,)).view(*x.shape[:-1], n)
    else:
        y = product(rows_of(x), weight).view(*x.shape[:-1], n)
        if activation != "none":
            shift = y.new_zeros(()) if bias is None else bias
            y = CALLS["add_activation"]((y, shift.expand_as(y)), (activation,))
        elif bias is not None:
            y = y + bias
    return y if residual is None else y + residual


def _lower(tensor: Tensor, device: str) -> Tensor:
    """A tensor in the 16-bit type of autocast; those of other than floating-point types unchanged."""
    return tensor.to(torch.get_autocast_dtype(device)) if tensor.is_floating_point() else tensor


def _operands(operation: str, name: str, x: Tensor, other: str, weight: Tensor) -> None:
    """Raise UsageError unless x weight^T can be computed."""
    if x.ndim == 0 or x.shape[-1] != weight.shape[1]:
        raise UsageError(f"{operation}: {name} has the shape {tuple(x.shape)}, but must be (..., {weight.shape[1]})")
    if x.device != weight.device:
        raise UsageError(f"{operation}: {other} is on {weight.device}, but {name} is on {x.device}")
    if x.dtype != weight.dtype:
        raise UsageError(f"{operation}: {name} has the type {x.dtype}, but the other operand {weight.dtype}")
    if x.dtype not in PRODUCT_TYPES:
        known = ", ".join(map(str, PRODUCT_TYPES))
        raise UsageError(f"{operation}: {name} has the type {x.dtype}, but must have one of {known}")


def swiglu_ffn(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """A gated feed-forward layer, ``(silu(x gate^T) * (x up^T)) down^T``, in two launches, in bfloat16 or float16, for sm_90a.

    Args:
        x: (..., hidden). gate, up: (ffn, hidden). down: (hidden, ffn). hidden and ffn are multiples of 8.

    Returns:
        As x. Its derivative computes the products with gate and up again, and consists of eight products and
        ``swiglu_backward``.
    """
    return CALLS["swiglu_ffn"]((x, gate, up, down))


def linear_layernorm_gelu(
    x: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5
) -> Tensor:
    """``gelu(layer_norm(x weight^T + bias) * gamma + beta)``, in bfloat16 or float16, in two launches.

    Args:
        x: (..., hidden). weight: (features, hidden). bias, gamma, beta: (features,). hidden and features are multiples of 8.

    Returns:
        (..., features). Its derivative computes the product and its statistics again, and consists of two products and
        ``layernorm_backward``; the sum for bias is torch's.
    """
    return CALLS["linear_layernorm_gelu"]((x, weight, bias, gamma, beta), (eps,))


def ffn_sublayer(
    x: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, residual: Tensor, eps: float = 1e-5
) -> Tensor:
    """``residual + gelu((layer_norm(x) * gamma + beta) weight^T + bias)``, in bfloat16 or float16, in two launches.

    Args:
        x: (..., hidden). weight: (features, hidden). bias: (features,). gamma, beta: (hidden,). hidden and features are
            multiples of 8.
        residual: (..., features).

    Returns:
        As residual. Its derivative computes rows and product again, and consists of two products, ``add_activation_backward``
        and ``layernorm_backward``; the sum for bias is torch's.
    """
    return CALLS["ffn_sublayer"]((x, weight, bias, gamma, beta, residual), (eps,))


# -- attention -----------------------------------------------------------------------------------------------------------


def attention(query: Tensor, key: Tensor, value: Tensor, causal: bool = False) -> Tensor:
    """``softmax(query key^T / sqrt(d)) value`` of each head.

    Heads follow tokens: ``x.transpose(1, 2)`` of a tensor with heads first, as torch's scaled_dot_product_attention takes it.

    Args:
        query: (..., q, heads, d), bfloat16 or float16. d is 64, 128 or 256.
        key, value: (..., k, kv_heads, d). kv_heads divides heads.
        causal: query i of q sees the keys up to i + k - q.

    Returns:
        As query. Its derivative is computed by ``attention_backward``, for d of 64 and 128; it is not deterministic on a GPU.
        A value that is infinite or NaN changes results of its own sequence only.
    """
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        # a derivative keeps these copies, instead of copying the tensors again
        query, key, value = map(_contiguous, (query, key, value))
    return CALLS["attention"]((query, key, value), (causal,))


def _contiguous(x: Tensor) -> Tensor:
    """A tensor that a derivative will need, as its kernels read it. What is no tensor is refused later, by its name."""
    return x.contiguous() if _is_strided(x) and x.requires_grad else x


def attention_backward(
    do: Tensor, query: Tensor, key: Tensor, value: Tensor, o: Tensor, lse: Tensor, causal: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value of ``attention``.

    Args:
        do, query, o: (..., q, heads, d). key, value: (..., k, kv_heads, d). d is 64 or 128.
        lse: (heads, ..., q), float32: log-sum-exp of the scaled scores.

    Returns:
        dq, dk, dv, with the shapes of query, key and value.
        With d of 64, infinite numbers and NaN may also change gradients of the sequence before (docs/attention.md).
    """
    return CALLS["attention_backward"]((do, query, key, value, o, lse), (causal,))


def attention_e4m3(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_scale: Tensor,
    key_scale: Tensor,
    value_scale: Tensor,
    causal: bool = False,
) -> Tensor:
    """:func:`attention` of float8_e4m3fn elements times the scales of their heads, for sm_90. It has no derivative.

    Args:
        query, key, value: as for attention.
        query_scale: (heads,), float32. key_scale, value_scale: (kv_heads,), float32.

    Returns:
        As query, in bfloat16. A NaN among the values may also change results of the sequence before it (docs/attention.md).
    """
    return CALLS["attention_e4m3"]((query, key, value, query_scale, key_scale, value_scale), (causal,))


def attention_scores(query: Tensor, key: Tensor, mask: Literal["none", "causal"] = "none") -> Tensor:
    """The probabilities ``softmax(query key^T / sqrt(d))`` of each head. It has no derivative.

    Args:
        query: (..., q, heads, d), bfloat16 or float16. key: (..., k, kv_heads, d).
        mask: causal hides keys after i + k - q from query i.

    Returns:
        (..., heads, q, k).
    """
    return CALLS["attention_scores"]((query, key), (mask,))
