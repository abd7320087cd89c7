"""The kernels as a PyTorch user would write them. One definition serves eager mode and torch.compile.

A definition is a function of the workload and the torch module; it returns a function of the workload's inputs, as tensors
(those passed by value as Python numbers), that gives the output or a tuple of them. Nothing here imports torch.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ptxkit.kernels.ffn.linear import library_tolerance
from ptxkit.kernels.gemm import sparse
from ptxkit.kernels.gemm.product import Gemm, gemm_of
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.launch import Tolerance
from ptxkit.workload.registry import is_bundled
from ptxkit.workload.workload import Workload

Function = Callable[..., Any]


@dataclass(frozen=True)
class TorchOp:
    """One kernel in PyTorch.

    Attributes:
        define: (workload, torch) -> function of the inputs by name.
        outputs: names of the function's results, in order.
        when: sizes and options that it supports.
        random: whether the outputs depend on torch's random numbers.
        tolerance: see :class:`ptxkit.bench.peers.base.PeerCall`; or a function of the workload that gives it.
        mode: mode of torch.compile, if it is not the default.
        inputs: names of the function's inputs, in order; None for the names of its parameters.
    """

    define: Callable[[Any, Any], Function]
    outputs: tuple[str, ...]
    when: Callable[[Any], bool]
    random: Callable[[Any], bool]
    tolerance: Tolerance | Callable[[Any], Tolerance] | None = None
    mode: str | None = None
    inputs: tuple[str, ...] | None = None

    def takes(self, function: Function) -> tuple[str, ...]:
        """Names of the inputs that the defined function takes, in order."""
        return self.inputs if self.inputs is not None else tuple(inspect.signature(function).parameters)

    def tolerance_of(self, workload: Workload) -> Tolerance | None:
        """The tolerance for a workload; None for its own."""
        given = self.tolerance
        return given if given is None or isinstance(given, Tolerance) else given(workload)


AUTOTUNED = "max-autotune-no-cudagraphs"
"""The mode of torch.compile that also tries Triton kernels for products; graphs are captured separately."""

OPS: dict[str, TorchOp] = {}
"""Kernel name -> its implementation in torch."""


def op(
    kernel: str,
    *outputs: str,
    when: Callable[[Any], bool] = lambda w: True,
    random: Callable[[Any], bool] = lambda w: False,
    tolerance: Tolerance | Callable[[Any], Tolerance] | None = None,
    mode: str | None = None,
) -> Callable[[Callable[[Any, Any], Function]], Callable[[Any, Any], Function]]:
    """Register a definition; the arguments are :class:`TorchOp`'s."""

    def register(define: Callable[[Any, Any], Function]) -> Callable[[Any, Any], Function]:
        if kernel in OPS:
            raise ValueError(f"two definitions of {kernel} in torch")
        OPS[kernel] = TorchOp(define, outputs, when, random, tolerance, mode)
        return define

    return register


def find(workload: Workload) -> TorchOp | None:
    """The definition for a workload: that of this module for a bundled kernel, else that of its method ``torch``, or None.

    The method takes the inputs by name, as tensors, and returns the outputs in the order of ``outputs()``, or of the reference
    where none are declared. ``torch_is_random = True`` in the workload says that they depend on torch's random numbers. A
    workload with a method ``gemm`` is a matrix product: see :class:`ptxkit.kernels.gemm.product.Gemm`.
    """
    own = getattr(workload, "torch", None)
    if callable(own):
        random = bool(getattr(workload, "torch_is_random", False))
        return TorchOp(lambda w, torch: own, tuple(workload.outputs()), lambda w: True, lambda w: random)
    gemm = gemm_of(workload)
    if gemm is not None and gemm.compute != "f32":
        return None
    if gemm is not None:
        return TorchOp(
            lambda w, torch: product(w, gemm, torch),
            outputs=(gemm.c,),
            when=lambda w: True,
            random=lambda w: False,
            mode=AUTOTUNED,
            inputs=product_inputs(gemm),
        )
    bundled = is_bundled(workload)
    found = OPS.get(workload.name) if bundled else None
    return found if found is not None and found.when(workload) else None


def product(w: Any, gemm: Gemm, torch: Any) -> Function:
    """A matrix product of a, b and, if present, bias and c, in the inputs' type or, if declared, in f32."""
    act, alpha, beta = activation(gemm.activation, torch), gemm.alpha, gemm.beta
    declared = w.outputs().get(gemm.c)
    wide = {"out_dtype": torch.float32} if declared and dtype_of(declared[1]) == dtype_of("f32") else {}

    scales: dict[Any, Any] = {}

    def scale(a: Any) -> Any:
        if a.device not in scales:
            scales[a.device] = torch.ones((), device=a.device)
        return scales[a.device]

    def laid_out(a: Any, b: Any) -> tuple[Any, Any]:
        return a.T if gemm.a_transposed else a, b.T if gemm.b_transposed else b

    def plain(a: Any, b: Any) -> Any:
        a, b = laid_out(a, b)
        if a.element_size() == 1 and a.is_floating_point():  # torch.mm takes no 8-bit types
            return torch._scaled_mm(a, b, scale(a), scale(a), out_dtype=torch.bfloat16)
        c = torch.mm(a, b) if a.dtype == torch.float32 else torch.mm(a, b, **wide)
        return act(c if alpha == 1 else c * alpha)

    def biased(a: Any, b: Any, bias: Any) -> Any:
        return act(torch.addmm(bias, *laid_out(a, b), alpha=alpha))

    def accumulated(a: Any, b: Any, c: Any) -> Any:
        return act(torch.addmm(c, *laid_out(a, b), beta=beta, alpha=alpha))

    def both(a: Any, b: Any, bias: Any, c: Any) -> Any:
        return act(torch.addmm(c, *laid_out(a, b), beta=beta, alpha=alpha) + bias)

    if gemm.bias is not None:
        return both if beta else biased
    return accumulated if beta else plain


def product_inputs(gemm: Gemm) -> tuple[str, ...]:
    """Names of the inputs of :func:`product`, in order."""
    return (gemm.a, gemm.b, *([gemm.bias] if gemm.bias else []), *([gemm.c] if gemm.beta else []))


def gelu(torch: Any) -> Function:
    """The tanh formula, as everywhere in ptxkit."""
    return lambda x: torch.nn.functional.gelu(x, approximate="tanh")


def activation(name: str, torch: Any) -> Function:
    """none, relu, silu or gelu."""
    functions: dict[str, Function] = {
        "none": lambda x: x,
        "relu": torch.nn.functional.relu,
        "silu": torch.nn.functional.silu,
        "gelu": gelu(torch),
    }
    return functions[name]


# -- element by element ----------------------------------------------------------------------------------------------------


@op("saxpy", "y")
def saxpy(w: Any, torch: Any) -> Function:
    return lambda a, x, y: torch.add(y, x, alpha=a)


@op("add_mul_exp", "out")
def add_mul_exp(w: Any, torch: Any) -> Function:
    return lambda x, y: torch.exp((x + y) * 2)


# torch multiplies by the inverse of a number instead of dividing, which changes values next to a tie
@op("quantize_int8", "q", tolerance=Tolerance(ulp=1))
def quantize_int8(w: Any, torch: Any) -> Function:
    scale, zero_point = w.scale, w.zero_point
    return lambda x: torch.clamp(torch.round(x / scale + zero_point), -128, 127).to(torch.int8)


@op("add_gelu", "out")
def add_gelu(w: Any, torch: Any) -> Function:
    act = gelu(torch)
    return lambda x, y: act(x + y)


@op("add_activation", "out")
def add_activation(w: Any, torch: Any) -> Function:
    act = activation(w.activation, torch)
    return lambda x, residual: act(x + residual)


@op("add_activation_backward", "dx")
def add_activation_backward(w: Any, torch: Any) -> Function:
    aten = torch.ops.aten
    slopes: dict[str, Function] = {
        "gelu": lambda dy, z: aten.gelu_backward(dy, z, approximate="tanh"),
        "silu": aten.silu_backward,
        "relu": lambda dy, z: aten.threshold_backward(dy, z, 0),
    }
    slope = slopes[w.activation]
    return lambda dy, x, residual: slope(dy, x + residual)


@op("swiglu_backward", "dgate", "dup")
def swiglu_backward(w: Any, torch: Any) -> Function:
    silu, silu_backward = torch.nn.functional.silu, torch.ops.aten.silu_backward
    return lambda dy, gate, up: (silu_backward(dy * up, gate), dy * silu(gate))


@op("swiglu", "out")
def swiglu(w: Any, torch: Any) -> Function:
    return lambda gate, up: torch.nn.functional.silu(gate) * up


@op("bias_dropout_residual", "out", random=lambda w: w.p > 0)
def bias_dropout_residual(w: Any, torch: Any) -> Function:
    p = w.p
    return lambda x, bias, residual: residual + torch.nn.functional.dropout(x + bias, p, training=True)


def gate(w: Any, torch: Any) -> Function:
    """gelu(x) * gate."""
    act = gelu(torch)
    return lambda x, gate: act(x) * gate


op("two_stage_pipeline", "y")(gate)
op("warp_specialized", "y")(gate)


def chain(w: Any, torch: Any) -> Function:
    """v = a*v + b, repeated."""
    steps = w.fmas

    def repeated(x: Any, a: float, b: float) -> Any:
        for _ in range(steps):
            x = x * a + b
        return x

    return repeated


LONGEST_CHAIN = 32  # torch.compile unrolls the loop; eager mode launches two kernels per step
op("memory_bound", "out", when=lambda w: w.fmas <= LONGEST_CHAIN)(chain)
op("compute_bound", "out", when=lambda w: w.fmas <= LONGEST_CHAIN)(chain)


# -- row by row ------------------------------------------------------------------------------------------------------------


@op("fused_l2norm", "y", tolerance=Tolerance(relative=2e-6))
def fused_l2norm(w: Any, torch: Any) -> Function:
    eps = w.eps
    return lambda x: x / torch.sqrt((x * x).sum(1, keepdim=True) + eps)


@op("layernorm", "y", "mean", "rstd")
def layernorm(w: Any, torch: Any) -> Function:
    act, shape, eps = activation(w.activation, torch), (w.cols,), w.eps

    def kept(x: Any, gamma: Any, beta: Any) -> Any:
        y, mean, rstd = torch.native_layer_norm(x, shape, gamma, beta, eps)
        return act(y), mean.reshape(-1), rstd.reshape(-1)

    if w.training:
        return kept
    return lambda x, gamma, beta: act(torch.nn.functional.layer_norm(x, shape, gamma, beta, eps))


@op("rmsnorm", "y", "rstd")
def rmsnorm(w: Any, torch: Any) -> Function:
    shape, eps = (w.cols,), w.eps

    def kept(x: Any, gamma: Any) -> Any:
        wide = x.float()
        rstd = torch.rsqrt(wide.square().mean(1, keepdim=True) + eps)
        return (wide * rstd * gamma).to(x.dtype), rstd.reshape(-1)

    if w.training:
        return kept
    return lambda x, gamma: torch.nn.functional.rms_norm(x, shape, gamma, eps)


@op("softmax", "y", random=lambda w: w.p > 0)
def softmax(w: Any, torch: Any) -> Function:
    functional, p = torch.nn.functional, w.p
    if p > 0:
        return lambda x: functional.dropout(functional.softmax(x, dim=-1), p, training=True)
    return lambda x: functional.softmax(x, dim=-1)


def no_row_is_masked(w: Any) -> bool:
    """Whether fully masked rows are unlikely, for which torch returns NaN."""
    return bool(w.rows * w.masked**w.cols < 1e-6)


@op("scale_mask_softmax", "y", when=no_row_is_masked)
def scale_mask_softmax(w: Any, torch: Any) -> Function:
    scale = w.scale
    return lambda s, mask: torch.nn.functional.softmax(s * scale + mask, dim=-1)


@op("layernorm_quantize", "q", "scales")
def layernorm_quantize(w: Any, torch: Any) -> Function:
    functional, shape, eps = torch.nn.functional, (w.cols,), w.eps

    def quantized(x: Any, gamma: Any, beta: Any) -> Any:
        y = functional.layer_norm(x.float(), shape, gamma.float(), beta.float(), eps)
        scale = y.abs().amax(-1, keepdim=True) / 127
        q = torch.clamp(torch.round(y / scale), -128, 127).to(torch.int8)
        return q, scale.reshape(-1)

    return quantized


# -- gradients -------------------------------------------------------------------------------------------------------------


@op("softmax_backward", "dx")
def softmax_backward(w: Any, torch: Any) -> Function:
    scale, backward = w.scale, torch.ops.aten._softmax_backward_data
    return lambda y, dy: backward(dy, y, -1, y.dtype) if scale == 1 else backward(dy, y, -1, y.dtype) * scale


@op("layernorm_backward", "dx", "dgamma", "dbeta")
def layernorm_backward(w: Any, torch: Any) -> Function:
    cols, aten = [w.cols], torch.ops.aten

    def gradients(x: Any, dy: Any, gamma: Any, mean: Any, rstd: Any) -> Any:
        shapes = mean.unsqueeze(1), rstd.unsqueeze(1)
        return aten.native_layer_norm_backward(dy, x, cols, *shapes, gamma, gamma, [True, True, True])

    def gradients_with_activation(x: Any, dy: Any, gamma: Any, beta: Any, mean: Any, rstd: Any) -> Any:
        shapes = mean.unsqueeze(1), rstd.unsqueeze(1)
        wide, scale = x.float(), gamma.float()
        z = (wide - shapes[0]) * shapes[1] * scale + beta.float()
        if w.activation == "relu":
            dz = aten.threshold_backward(dy.float(), z, 0)
        else:
            dz = aten.gelu_backward(dy.float(), z, approximate="tanh")
        found = aten.native_layer_norm_backward(dz, wide, cols, *shapes, scale, scale, [True, True, True])
        return tuple(gradient.to(x.dtype) for gradient in found)

    return gradients if w.activation == "none" else gradients_with_activation


@op("rmsnorm_backward", "dx", "dgamma")
def rmsnorm_backward(w: Any, torch: Any) -> Function:
    def gradients(x: Any, dy: Any, gamma: Any, rstd: Any) -> Any:
        factor = rstd.unsqueeze(1)
        normalized = x.float() * factor
        weighted = dy.float() * gamma.float()
        dx = (weighted - normalized * (weighted * normalized).mean(1, keepdim=True)) * factor
        return dx.to(x.dtype), (dy.float() * normalized).sum(0).to(gamma.dtype)

    return gradients


# -- 2:4 sparsity ----------------------------------------------------------------------------------------------------------


@op("sparse_compress", "values", "metadata")
def sparse_compress(w: Any, torch: Any) -> Function:
    size, group, pair = (1, torch.int32, torch.int16) if w.dtype == "e4m3" else (2, torch.int64, torch.int32)
    bits, every = 8 * size, (1 << 8 * size) - 1
    shape = sparse.metadata_shape(w.rows, w.k, size)
    stages = shape[1] // sparse.block_words(size)
    padding = (0, stages * sparse.stage_elements(size) // 4 - w.k // 4, 0, shape[0] * sparse.ROWS - w.rows)
    parts, order = sparse.metadata_order(shape[0], stages, size)

    def compress(dense: Any) -> Any:
        """A sorting network of element-wise operations, which torch.compile fuses, on four elements as one integer."""
        fours = dense.view(group)
        elements = [fours >> bits * i & every for i in range(4)]
        keys = [(x & every >> 1).to(torch.int32) * 4 + (3 - i) for i, x in enumerate(elements)]  # of equals, the lower is first
        low, high = torch.maximum(keys[0], keys[1]), torch.maximum(keys[2], keys[3])
        others = torch.maximum(torch.minimum(keys[0], keys[1]), torch.minimum(keys[2], keys[3]))
        first, second = torch.maximum(low, high), torch.maximum(torch.minimum(low, high), others)
        positions = 3 - (first & 3), 3 - (second & 3)
        one, two = torch.minimum(*positions), torch.maximum(*positions)  # at most 2, and at least 1
        lower = torch.where(one == 0, elements[0], torch.where(one == 1, elements[1], elements[2]))
        upper = torch.where(two == 1, elements[1], torch.where(two == 2, elements[2], elements[3]))
        values = (lower | upper << bits).to(pair).view(dense.dtype)
        padded = torch.nn.functional.pad(one | two << 2, padding, value=sparse.FIRST_TWO)
        eights = padded.view(parts).permute(order).reshape(*shape, 8)
        words = eights[..., 0]
        for i in range(1, 8):
            words = words | eights[..., i] << 4 * i
        return values, words.view(torch.uint32)

    return compress


# -- Linear layers with layer normalization --------------------------------------------------------------------------------


@op("ffn_sublayer", "out", mode=AUTOTUNED, tolerance=library_tolerance)
def ffn_sublayer(w: Any, torch: Any) -> Function:
    of, act, shape, eps = torch.nn.functional, gelu(torch), (w.hidden,), w.eps

    def sublayer(x: Any, gamma: Any, beta: Any, w: Any, bias: Any, residual: Any) -> Any:
        return residual + act(of.linear(of.layer_norm(x, shape, gamma, beta, eps), w, bias))

    return sublayer


@op("linear_layernorm_gelu", "out", mode=AUTOTUNED)
def linear_layernorm_gelu(w: Any, torch: Any) -> Function:
    of, act, shape, eps = torch.nn.functional, gelu(torch), (w.features,), w.eps

    def layer(x: Any, w: Any, bias: Any, gamma: Any, beta: Any) -> Any:
        return act(of.layer_norm(of.linear(x, w, bias), shape, gamma, beta, eps))

    return layer


# -- Gated feed-forward layers ---------------------------------------------------------------------------------------------


def gated_ffn(w: Any, torch: Any) -> Function:
    silu, linear = torch.nn.functional.silu, torch.nn.functional.linear

    def layer(x: Any, gate: Any, up: Any, down: Any) -> Any:
        return linear(silu(linear(x, gate)) * linear(x, up), down)

    return layer


op("swiglu_ffn", "y", mode=AUTOTUNED)(gated_ffn)
op("sparse_swiglu_ffn", "y", mode=AUTOTUNED)(gated_ffn)  # with the pruned weights


# -- Attention -------------------------------------------------------------------------------------------------------------


def equal_and_visible(w: Any) -> bool:
    """Not sequences of different lengths, nor rows without a visible key, which torch makes NaN."""
    return w.lengths == "equal" and not (w.causal and w.q > w.k)


@op("attention", "o", when=equal_and_visible)
def attention(w: Any, torch: Any) -> Function:
    attend = torch.nn.functional.scaled_dot_product_attention
    options: dict[str, Any] = {"enable_gqa": True} if w.shared_heads != w.heads else {}
    if w.causal and w.q == w.k:
        options["is_causal"] = True
    elif w.causal:
        bias = importlib.import_module("torch.nn.attention.bias")  # importing torch does not import it
        options["attn_mask"] = bias.causal_lower_right(w.q, w.k)

    def by_head(x: Any, count: int) -> Any:
        return x.view(w.batch, count, -1, w.d).transpose(1, 2)

    def scaled_dot_product(query: Any, key: Any, value: Any) -> Any:
        o = attend(by_head(query, w.q), by_head(key, w.k), by_head(value, w.k), **options)
        return o.transpose(1, 2).reshape(query.shape)

    return scaled_dot_product


def flexible_attention(w: Any, device: str) -> Function:
    """``attention`` by flex_attention, which must be compiled; without, torch computes it by separate operations.

    Args:
        device: of the table of the blocks of a causal mask, such as ``"cuda:0"``.
    """
    flex = importlib.import_module("torch.nn.attention.flex_attention")

    def sees(sequence: Any, head: Any, query: Any, key: Any) -> Any:
        return query + (w.k - w.q) >= key

    blocks = flex.create_block_mask(sees, None, None, w.q, w.k, device=device) if w.causal else None
    grouped = w.shared_heads != w.heads

    def by_head(x: Any, count: int) -> Any:
        return x.view(w.batch, count, -1, w.d).transpose(1, 2)

    def flexible(query: Any, key: Any, value: Any) -> Any:
        arrays = by_head(query, w.q), by_head(key, w.k), by_head(value, w.k)
        o = flex.flex_attention(*arrays, block_mask=blocks, enable_gqa=grouped)
        return o.transpose(1, 2).reshape(query.shape)

    return flexible


# torch's scaled_dot_product_attention takes no 8-bit types
@op("attention_e4m3", "o", when=equal_and_visible)
def attention_e4m3(w: Any, torch: Any) -> Function:
    in_bf16 = attention(w, torch)

    def dequantized(elements: Any, scale: Any) -> Any:
        return (elements.float() * scale.unsqueeze(1)).to(torch.bfloat16)

    def of_scaled(query: Any, key: Any, value: Any, query_scale: Any, key_scale: Any, value_scale: Any) -> Any:
        scaled = (query, query_scale), (key, key_scale), (value, value_scale)
        return in_bf16(*(dequantized(elements, scale) for elements, scale in scaled))

    return of_scaled


def every_row_sees_a_key(w: Any) -> bool:
    """Whether rows without a visible key, which torch makes NaN, are impossible or, with a random mask, unlikely."""
    if w.mask == "array":
        return bool(w.masks[0] * w.masks[1] * w.q * w.masked**w.k < 1e-6)
    return not (w.mask == "causal" and w.q > w.k)


# torch rounds the product, the scaled product and their sum with the mask to 16 bits: errors of up to 2^-8 of a score of up to
# 8, three times, in the exponent of a bf16 probability
@op("attention_scores", "p", when=every_row_sees_a_key, tolerance=Tolerance(relative=3 * 8 * 2**-8))
def attention_scores(w: Any, torch: Any) -> Function:
    scale, groups = 1 / math.sqrt(w.d), w.heads // w.shared_heads

    def product(query: Any, key: Any) -> Any:
        q = query.transpose(1, 2).unflatten(1, (w.shared_heads, groups))
        k = key.transpose(1, 2).unsqueeze(2)
        return torch.matmul(q, k.transpose(-1, -2)).flatten(1, 2) * scale

    def plain(query: Any, key: Any) -> Any:
        return torch.nn.functional.softmax(product(query, key), dim=-1)

    def added_to(query: Any, key: Any, added: Any) -> Any:
        return torch.nn.functional.softmax(product(query, key) + added, dim=-1)

    def causal(query: Any, key: Any) -> Any:
        invisible = torch.ones(w.q, w.k, dtype=torch.bool, device=query.device).triu(w.k - w.q + 1)
        return torch.nn.functional.softmax(product(query, key).masked_fill(invisible, -math.inf), dim=-1)

    defined: dict[str, Function] = {"none": plain, "array": added_to, "causal": causal}
    return defined[w.mask]


# Causal masks are offered for sequences of equal numbers of queries and keys only, for which all implementations agree.
@op("attention_backward", "dq", "dk", "dv", when=lambda w: w.lengths == "equal" and not (w.causal and w.q != w.k))
def attention_backward(w: Any, torch: Any) -> Function:
    scale = w.d**-0.5
    group = w.heads // w.shared_heads

    def by_head(x: Any) -> Any:  # (batch, heads, tokens, d)
        heads = x.shape[1]
        return x.view(w.batch, -1, heads, w.d).transpose(1, 2)

    def shared(x: Any) -> Any:
        return by_head(x).repeat_interleave(group, 1) if group > 1 else by_head(x)

    def by_token(x: Any) -> Any:
        return x.transpose(1, 2).reshape(-1, x.shape[1], w.d)

    def summed(x: Any) -> Any:
        return by_token(x.view(w.batch, -1, group, w.k, w.d).sum(2) if group > 1 else x)

    def gradients(query: Any, key: Any, value: Any, o: Any, lse: Any, do: Any) -> Any:
        q, k, v, results, gradient = by_head(query), shared(key), shared(value), by_head(o), by_head(do)
        sums = lse.view(w.heads, w.batch, w.q).transpose(0, 1).unsqueeze(3)
        p = torch.exp((q @ k.mT).float() * scale - sums)
        if w.causal:
            p = p.tril()
        delta = (gradient.float() * results.float()).sum(3, keepdim=True)
        ds = (p * ((gradient @ v.mT).float() - delta) * scale).to(q.dtype)
        return by_token(ds @ k), summed(ds.mT @ q), summed(p.to(q.dtype).mT @ gradient)

    return gradients


def attention_gradients(w: Any, torch: Any, backend: str) -> Function:
    """The gradients of attention by torch's backward operators of ``FLASH_ATTENTION`` or ``CUDNN_ATTENTION``.

    The results and logarithms of the forward pass are inputs of the workload. For more than one sequence, the logarithms are
    copied to the order of the operators, (batch, heads, tokens), which is part of the call.
    """

    def by_head(x: Any) -> Any:
        return x.view(w.batch, -1, x.shape[1], w.d).transpose(1, 2)

    def by_token(x: Any) -> Any:
        return x.transpose(1, 2).reshape(-1, x.shape[1], w.d)

    def gradients(query: Any, key: Any, value: Any, o: Any, lse: Any, do: Any) -> Any:
        q, k, v, results, gradient = (by_head(x) for x in (query, key, value, o, do))
        sums = lse.view(w.heads, w.batch, w.q).transpose(0, 1).contiguous()
        unused = torch.empty(0, dtype=torch.int64, device=query.device)  # random state of a dropout
        sizes = None, None, w.q, w.k, 0.0, w.causal
        if backend == "FLASH_ATTENTION":
            call = torch.ops.aten._scaled_dot_product_flash_attention_backward
            found = call(gradient, q, k, v, results, sums, *sizes, unused, unused)
        else:
            call = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
            found = call(gradient, q, k, v, results, sums.unsqueeze(3), unused, unused, None, *sizes)
        return tuple(by_token(x) for x in found[:3])

    return gradients


FEWEST_ROWS = 32  # torch._int_mm takes more than 16 rows; rows of zeros are added to fewer


# The sums of torch._int_mm are exact. torch._scaled_mm applies both scales, and rounds to bf16.
@op(
    "moe_int8",
    *("out", "scales"),
    tolerance=Tolerance(relative=2**-6, typical=2**-6, ulp=1),
)
def moe_int8(w: Any, torch: Any) -> Function:
    integer = w.dtype == "s8"

    def product(a: Any, b: Any, a_scales: Any, b_scales: Any) -> Any:
        if integer:
            rows = a if w.m > 16 else torch.nn.functional.pad(a, (0, 0, 0, FEWEST_ROWS - w.m))
            return torch._int_mm(rows, b.t())[: w.m].float() * a_scales[:, None] * b_scales
        return torch._scaled_mm(a, b.t(), a_scales[:, None], b_scales[None, :], out_dtype=torch.bfloat16)

    def quantized(c: Any, scales: Any) -> Any:
        steps = c.float() / scales[:, None]
        if integer:
            return torch.clamp(torch.round(steps), -128, 127).to(torch.int8)
        return torch.clamp(steps, -448, 448).to(torch.float8_e4m3fn)

    def by_token(a: Any, b: Any, a_scales: Any, b_scales: Any) -> Any:
        c = product(a, b, a_scales, b_scales)
        scales = c.abs().amax(-1).float() / (127 if integer else 448)
        return quantized(c, scales), scales

    def given(a: Any, b: Any, a_scales: Any, b_scales: Any, scales: Any) -> Any:
        return quantized(product(a, b, a_scales, b_scales), scales)

    def wide(a: Any, b: Any, a_scales: Any, b_scales: Any) -> Any:
        return product(a, b, a_scales, b_scales).to(torch.bfloat16)

    forms: dict[str, Function] = {"token": by_token, "given": given, "bf16": wide}
    return forms[w.output]
