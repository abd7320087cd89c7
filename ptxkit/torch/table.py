"""The bundled operations: how their arguments become those of a description, and their derivatives.

:mod:`ptxkit.torch.functions` has a function with a signature and a docstring for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Literal

import numpy as np
import torch

from ptxkit.kernels.gemm import micro_choice
from ptxkit.torch.calls import function_of
from ptxkit.torch.operations import (
    Gradient,
    Operation,
    Option,
    Result,
    TensorArgument,
    by_value,
    number_of,
)
from ptxkit.torch.plan import device_of
from ptxkit.torch.shapes import product as leading_product
from ptxkit.workload import registry
from ptxkit.workload.execute import lacking
from ptxkit.workload.variant import Variant
from ptxkit.workload.workload import Workload

ROW_VARIANTS = ("persistent", "vectorized", "fused")
"""Variants of the row kernels, best first: the first takes long rows only, the last any."""
GRADIENT_VARIANTS = ("pipelined", "vectorized", "fused")

CALLS: dict[str, Callable[..., Any]] = {}
"""Name of an operation -> the function that calls it."""


def of(kernel: str, variants: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Variants of a description as candidates."""
    return tuple((kernel, variant) for variant in variants)


Kept = Sequence[torch.Tensor]
Named = Mapping[str, Any]
Grads = Sequence[torch.Tensor]
Wanted = Sequence[bool]


# -- norms ---------------------------------------------------------------------------------------------------------------

ROWS = "*rows cols"
NORM_ACTIVATION = Option("activation", Literal["none", "relu", "gelu"], "none")


def _layernorm_gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Grads:
    found: Grads = CALLS["layernorm_backward"]((grads[0], *kept), (options["activation"],))
    return found


def _rmsnorm_gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Grads:
    found: Grads = CALLS["rmsnorm_backward"]((grads[0], *kept))
    return found


NORMS = (
    Operation(
        "layernorm",
        of("layernorm", ROW_VARIANTS),
        (TensorArgument("x", ROWS), TensorArgument("weight", "cols", "gamma"), TensorArgument("bias", "cols", "beta")),
        (NORM_ACTIVATION, Option("eps", float, 1e-5)),
        (Result("y", ROWS), Result("mean", "*rows", "f32", saved=True), Result("rstd", "*rows", "f32", saved=True)),
        autocast="f32",
        gradient=Gradient(
            lambda given, made: (given["x"], given["weight"], given["bias"], made["mean"], made["rstd"]),
            _layernorm_gradient,
        ),
    ),
    Operation(
        "layernorm_backward",
        of("layernorm_backward", GRADIENT_VARIANTS),
        (
            TensorArgument("dy", ROWS),
            TensorArgument("x", ROWS),
            TensorArgument("weight", "cols", "gamma"),
            TensorArgument("bias", "cols", "beta"),
            TensorArgument("mean", "*rows", kind="f32"),
            TensorArgument("rstd", "*rows", kind="f32"),
        ),
        (NORM_ACTIVATION,),
        (Result("dx", ROWS), Result("dgamma", "cols"), Result("dbeta", "cols")),
    ),
    Operation(
        "rmsnorm",
        of("rmsnorm", ROW_VARIANTS),
        (TensorArgument("x", ROWS), TensorArgument("weight", "cols", "gamma")),
        (Option("eps", float, 1e-6),),
        (Result("y", ROWS), Result("rstd", "*rows", "f32", saved=True)),
        autocast="f32",
        gradient=Gradient(lambda given, made: (given["x"], given["weight"], made["rstd"]), _rmsnorm_gradient),
    ),
    Operation(
        "rmsnorm_backward",
        of("rmsnorm_backward", GRADIENT_VARIANTS),
        (
            TensorArgument("dy", ROWS),
            TensorArgument("x", ROWS),
            TensorArgument("weight", "cols", "gamma"),
            TensorArgument("rstd", "*rows", kind="f32"),
        ),
        (),
        (Result("dx", ROWS), Result("dgamma", "cols")),
    ),
)


# -- softmax and other row kernels ---------------------------------------------------------------------------------------


def _softmax_gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Kept:
    y, seed = kept
    dy = grads[0]
    if options["p"]:  # y without dropout was kept; dy is dropped and scaled as the result was
        dy = dropped(dy, options["p"], seed)
    return (CALLS["softmax_backward"]((y, dy), (1.0,)),)


def _kept_by_softmax(given: Named, made: Mapping[str, torch.Tensor]) -> Kept:
    return (CALLS["softmax"]((given["x"],), (0.0,), 0) if given["p"] else made["y"], made["seed"])


def _masked_gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Sequence[torch.Tensor | None]:
    (y,) = kept
    scores, mask = (
        CALLS["softmax_backward"]((y, grads[0]), (scale,)) if needed else None
        for scale, needed in zip((options["scale"], 1.0), wanted, strict=True)
    )
    return scores, mask


def _l2norm_gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Kept:
    """x / sqrt(sum + eps) is rmsnorm with weights 1 / sqrt(cols) and eps / cols."""
    (x,) = kept
    cols = x.shape[-1]
    if not cols:
        return (torch.zeros_like(x),)
    weight = x.new_full((cols,), cols**-0.5)
    _, rstd = OPERATIONS["rmsnorm"].registered(x, weight, options["eps"] / cols, True)
    return (CALLS["rmsnorm_backward"]((grads[0], x, weight, rstd))[0],)


def dropped(x: torch.Tensor, p: float, seed: torch.Tensor) -> torch.Tensor:
    """Dropout of x with the mask that an operation has drawn from a seed."""
    zeros, bias = torch.zeros_like(x), x.new_zeros(x.shape[-1])
    found: torch.Tensor = CALLS["bias_dropout_residual"]((x, bias, zeros), (p,), seed)
    return found


P = Option("p", float, 0.0)


def drops(options: Named) -> bool:
    """Whether dropout draws random numbers."""
    return bool(options["p"])


ROW_KERNELS = (
    Operation(
        "softmax",
        of("softmax", ROW_VARIANTS),
        (TensorArgument("x", ROWS),),
        (P,),
        (Result("y", ROWS),),
        random=drops,
        autocast="f32",
        gradient=Gradient(_kept_by_softmax, _softmax_gradient),
    ),
    Operation(
        "softmax_backward",
        of("softmax_backward", ("vectorized", "fused")),
        (TensorArgument("y", ROWS), TensorArgument("dy", ROWS)),
        (Option("scale", float, 1.0),),
        (Result("dx", ROWS),),
    ),
    Operation(
        "scale_mask_softmax",
        of("scale_mask_softmax", ROW_VARIANTS[1:]),
        (TensorArgument("scores", ROWS, "s"), TensorArgument("mask", ROWS)),
        (Option("scale", float, 1.0),),
        (Result("y", ROWS),),
        autocast="f32",
        gradient=Gradient(lambda given, made: (made["y"],), _masked_gradient),
    ),
    Operation(
        "l2norm",
        of("fused_l2norm", ROW_VARIANTS),
        (TensorArgument("x", ROWS),),
        (Option("eps", float, 1e-12),),
        (Result("y", ROWS),),
        autocast="f32",
        gradient=Gradient(lambda given, made: (given["x"],), _l2norm_gradient),
    ),
    Operation(
        "layernorm_quantize",
        of("layernorm_quantize", ("pipelined", *ROW_VARIANTS[1:])),
        (TensorArgument("x", ROWS), TensorArgument("weight", "cols", "gamma"), TensorArgument("bias", "cols", "beta")),
        (Option("eps", float, 1e-5),),
        (Result("q", ROWS, "s8"), Result("scales", "*rows", "f32")),
        autocast="f32",
    ),
)

# -- element-wise kernels ------------------------------------------------------------------------------------------------

ELEMENTS = "*n"
SUM_ACTIVATION = Option("activation", Literal["gelu", "silu", "relu"], "gelu")


def _activation_gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Kept:
    dx = CALLS["add_activation_backward"]((grads[0], *kept), (options.get("activation", "gelu"),))
    return dx, dx


def _swiglu_gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Kept:
    found: Kept = CALLS["swiglu_backward"]((grads[0], *kept))
    return found


def _dropout_gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Sequence[torch.Tensor | None]:
    """Without dropout, the gradient of x is that of the result, as is that of the residual."""
    dx: torch.Tensor | None = grads[0]
    if options["p"]:
        dx = dropped(grads[0], options["p"], kept[0]) if wanted[0] or wanted[1] else None
    dbias = rows_of(dx).sum(0) if dx is not None and wanted[1] else None
    return dx, dbias, grads[0]


def _exponential_gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Kept:
    gradient = 2 * kept[0] * grads[0]
    return gradient, gradient


def _saxpy_gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Kept:
    return options["a"] * grads[0], grads[0]


@lru_cache(maxsize=1024)
def _steps(scale: float, zero_point: float) -> dict[str, np.generic]:
    workload = registry.get("quantize_int8").of({"n": 1, "scale": scale, "zero_point": zero_point})  # type: ignore[dict-item]
    return by_value(workload)


ELEMENTWISE = (
    Operation(
        "add_gelu",
        of("add_gelu", ("vectorized",)),
        (TensorArgument("x", ELEMENTS), TensorArgument("y", ELEMENTS)),
        (),
        (Result("out", ELEMENTS),),
        gradient=Gradient(lambda given, made: (given["x"], given["y"]), _activation_gradient),
    ),
    Operation(
        "add_activation",
        of("add_activation", ("vectorized",)),
        (TensorArgument("x", ELEMENTS), TensorArgument("residual", ELEMENTS)),
        (SUM_ACTIVATION,),
        (Result("out", ELEMENTS),),
        gradient=Gradient(lambda given, made: (given["x"], given["residual"]), _activation_gradient),
    ),
    Operation(
        "add_activation_backward",
        of("add_activation_backward", ("vectorized",)),
        (TensorArgument("dy", ELEMENTS), TensorArgument("x", ELEMENTS), TensorArgument("residual", ELEMENTS)),
        (SUM_ACTIVATION,),
        (Result("dx", ELEMENTS),),
    ),
    Operation(
        "add_mul_exp",
        of("add_mul_exp", ("vectorized",)),
        (TensorArgument("x", ELEMENTS), TensorArgument("y", ELEMENTS)),
        (),
        (Result("out", ELEMENTS),),
        gradient=Gradient(lambda given, made: (made["out"],), _exponential_gradient),
    ),
    Operation(
        "saxpy",
        of("saxpy", ("vectorized",)),
        (TensorArgument("x", ELEMENTS), TensorArgument("y", ELEMENTS)),
        (Option("a", float, 1.0, by_value=True),),
        (Result("y", ELEMENTS),),
        values=lambda options: {"a": number_of("saxpy", "a", np.float32, options["a"])},
        gradient=Gradient(lambda given, made: (), _saxpy_gradient),
    ),
    Operation(
        "swiglu",
        of("swiglu", ("vectorized",)),
        (TensorArgument("gate", ROWS), TensorArgument("up", ROWS)),
        (),
        (Result("out", ROWS),),
        gradient=Gradient(lambda given, made: (given["gate"], given["up"]), _swiglu_gradient),
    ),
    Operation(
        "swiglu_backward",
        of("swiglu_backward", ("vectorized",)),
        (TensorArgument("dy", ROWS), TensorArgument("gate", ROWS), TensorArgument("up", ROWS)),
        (),
        (Result("dgate", ROWS), Result("dup", ROWS)),
    ),
    Operation(
        "bias_dropout_residual",
        of("bias_dropout_residual", ("vectorized", "fused")),
        (TensorArgument("x", ROWS), TensorArgument("bias", "cols"), TensorArgument("residual", ROWS)),
        (Option("p", float, 0.1),),
        (Result("out", ROWS),),
        random=drops,
        gradient=Gradient(lambda given, made: (made["seed"],), _dropout_gradient),
    ),
    Operation(
        "quantize_int8",
        of("quantize_int8", ("vectorized",)),
        (TensorArgument("x", ELEMENTS),),
        (Option("scale", float, 1.0, by_value=True), Option("zero_point", float, 0.0, by_value=True)),
        (Result("q", ELEMENTS, "s8"),),
        values=lambda options: _steps(options["scale"], options["zero_point"]),
    ),
)

# -- matrix products -----------------------------------------------------------------------------------------------------

TENSOR_CORES = (
    ("matmul_tcgen05", "step8_tma_store"),
    ("matmul_wgmma", "step20_dot"),  # for one row of a
    ("matmul_wgmma", "step15_multicast"),  # for up to some hundred rows of a
    ("matmul_wgmma", "step14_cluster_k"),  # for a small c
    ("matmul_wgmma", "step18_row_classes"),  # for few rows of a, and rows of b of any length
    ("matmul_wgmma", "step19_short_k"),  # for small products with a short k
    ("matmul_wgmma", "step17_shifted"),  # for rows of any length, and a short k or few rows of a
    ("matmul_wgmma", "step16_direct"),  # for few rows of a, of any length
    ("matmul_wgmma", "step13_stream_k"),  # for few rows of a, and for tiles that would fill little of the last wave
    ("matmul_wgmma", "step10_split_k"),  # for a long k and few results
    ("matmul_wgmma", "step9_swapped"),  # for few rows of a
    ("matmul_wgmma", "step12_aligned_copy"),  # for rows that TMA cannot read, or of the result that it cannot write
    ("matmul_wgmma", "step8_tma_store"),
    ("matmul_mma", "step6_tma"),
    ("matmul_mma", "step5_coalesced"),
)
"""Matrix products of 16-bit types, best first; those to which their description objects at the sizes of a call are left out."""


ANY_ROWS = ("matmul_wgmma", "step13_stream_k")
WITH_BIAS = tuple(step for step in TENSOR_CORES if step[0] == "matmul_wgmma")
"""Those with a bias alone as their epilogue."""
WITH_EPILOGUE = of("matmul_fused", ("multicast", "cluster_k", "stream_k", "fused"))
"""Products with bias, activation and residual."""
F32 = of(
    "micro_tiling_matmul",
    (
        *("step12_few_rows", "step13_few_columns", "step10_cluster_k", "step14_two_launches", "step9_stream_k"),
        *("step8_ring", "step6_warps", "step5_async", "step3_registers", "step1_naive"),
    ),
)
"""Products in f32."""
WAITING = ("step11_partial_sums",)
"""Steps of micro_tiling_matmul that no operation takes: each CTA of a tile waits for all the others, so that a launch must be
cooperative and starts only when all of its CTAs fit beside those of other streams. In step 9 a CTA waits for CTAs with
lower numbers alone, which is safe if CTAs begin in the order of their numbers; CUDA does not promise this order."""


def _f32_objection(workload: Workload, variant: Variant) -> str | None:
    """Why another of the steps that may be taken is faster."""
    return micro_choice.slower(workload, variant.name, WAITING) if variant.slower is not None else None


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a b^T of matrices: a (m, k), b (n, k).

    In 16-bit types, operands that are transposes of contiguous matrices are read as they lie in memory where the device has a
    kernel for it, and copied elsewhere. Where rows of k or n elements are no multiples of 16 bytes, devices with wgmma have
    kernels for them, and zeros are appended for the others.
    """
    if a.dtype == torch.float32:
        found: torch.Tensor = CALLS["matmul_f32"]((a, b.t()))
        return found
    n, k = b.shape
    more_n, more_k = -n % 8, -k % 8
    if (more_n or more_k) and takes_any_rows(a.device):
        more_n = more_k = 0
    c: torch.Tensor = CALLS["matmul_nt"]((padded(a, 0, more_k), padded(b, more_n, more_k)))
    return c[:, :n].contiguous() if more_n else c


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def takes_any_rows(device: torch.device) -> bool:
    """Whether a device has kernels for products of matrices with rows of any length in 16-bit types."""
    return device.type in ("cpu", "cuda") and able(*ANY_ROWS, device.type, device.index)


@cache
def able(kernel: str, step: str, kind: str, index: int | None) -> bool:
    """Whether a device of torch, by its type and index, has what a variant of a kernel requires."""
    return lacking(registry.get(kernel).variants()[step], device_of(torch.device(kind, index)), kernel) is None


def padded(x: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """A matrix with rows and columns of zeros appended, which lies in memory like x: the transpose of a contiguous matrix
    stays one."""
    if not rows and not cols:
        return x
    if x.stride(0) == 1 and not x.is_contiguous():
        return torch.nn.functional.pad(x.t(), (0, rows, 0, cols)).t()
    return torch.nn.functional.pad(x, (0, cols, 0, rows))


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """A tensor as a matrix, with its leading dimensions as one."""
    return x.reshape(leading_product(x.shape[:-1]), x.shape[-1])


def _linear_gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Sequence[torch.Tensor | None]:
    """Of c = a b^T: da = dc b and db = dc^T a, as products of the same form with transposed operands."""
    a, b = kept
    da = product(grads[0], b.t()) if wanted[0] else None
    db = product(grads[0].t(), a.t()) if wanted[1] else None
    return da, db


def _matmul_f32_gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Sequence[torch.Tensor | None]:
    a, b = kept
    da = CALLS["matmul_f32"]((grads[0], b.t())) if wanted[0] else None
    db = CALLS["matmul_f32"]((a.t(), grads[0])) if wanted[1] else None
    return da, db


def _epilogue_gradient(activation: str = "") -> Callable[[Kept, Named, Grads, Wanted], Sequence[torch.Tensor | None]]:
    """The gradient of x, weight, bias unless there is none, and residual where it is an argument.

    For an activation, the product is computed again.

    Args:
        activation: of the operation; "" for that of its option.
    """

    def gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Sequence[torch.Tensor | None]:
        x, weight, *bias = kept
        dy, name = grads[0], activation or options["activation"]
        dz = dy
        if name != "none":
            shift = bias[0] if bias else dy.new_zeros(())
            dz = CALLS["add_activation_backward"]((dy, product(x, weight), shift.expand_as(dy)), (name,))
        found = [*_linear_gradient((x, weight), options, (dz,), wanted)]
        if bias:
            found.append(dz.sum(0) if wanted[2] else None)
        return [*found, dy][: len(wanted)]

    return gradient


def _swiglu_ffn_gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Sequence[torch.Tensor | None]:
    x, gate, up, down = kept
    dy = rows_of(grads[0])
    x2 = rows_of(x)
    g, u = product(x2, gate), product(x2, up)
    dg, du = CALLS["swiglu_backward"]((product(dy, down.t()), g, u))
    dx = (product(dg, gate.t()) + product(du, up.t())).view(x.shape) if wanted[0] else None
    dgate = product(dg.t(), x2.t()) if wanted[1] else None
    dup = product(du.t(), x2.t()) if wanted[2] else None
    return dx, dgate, dup, product(dy.t(), CALLS["swiglu"]((g, u)).t()) if wanted[3] else None


def _linear_layernorm_gelu_gradient(
    kept: Kept, options: Named, grads: Grads, wanted: Wanted
) -> Sequence[torch.Tensor | None]:
    """The product and the statistics of its rows are computed again."""
    x, weight, bias, gamma, beta = kept
    dy, x2 = rows_of(grads[0]), rows_of(x)
    z = product(x2, weight) + bias
    _, mean, rstd = OPERATIONS["layernorm"].registered(z, gamma, beta, "gelu", options["eps"], True)
    dz, dgamma, dbeta = CALLS["layernorm_backward"]((dy, z, gamma, beta, mean, rstd), ("gelu",))
    dx = product(dz, weight.t()).view(x.shape) if wanted[0] else None
    dw = product(dz.t(), x2.t()) if wanted[1] else None
    return dx, dw, dz.sum(0) if wanted[2] else None, dgamma, dbeta


def _ffn_sublayer_gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Sequence[torch.Tensor | None]:
    """The normalized rows and the product are computed again."""
    x, weight, bias, gamma, beta = kept
    dy, x2 = rows_of(grads[0]), rows_of(x)
    rows, mean, rstd = OPERATIONS["layernorm"].registered(x2, gamma, beta, "none", options["eps"], True)
    dz = CALLS["add_activation_backward"]((dy, product(rows, weight), bias.expand_as(dy)), ("gelu",))
    dw = product(dz.t(), rows.t()) if wanted[1] else None
    dx, dgamma, dbeta = CALLS["layernorm_backward"]((product(dz, weight.t()), x2, gamma, beta, mean, rstd), ("none",))
    return dx.view(x.shape), dw, dz.sum(0) if wanted[2] else None, dgamma, dbeta, grads[0]


def _kept(*names: str) -> Callable[[Named, Mapping[str, torch.Tensor]], Kept]:
    """Keeps arguments and results by name."""
    return lambda given, made: tuple(given[name] if name in given else made[name] for name in names)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    """gelu by the tanh formula, in float32."""
    return torch.nn.functional.gelu(x.float(), approximate="tanh")


def _empty_linear(activation: str = "") -> Callable[[Kept, Named], Kept]:
    """The result of a product over no elements, which is 0: bias, if any, activated, and residual where it is an argument.

    Args:
        activation: see :func:`_epilogue_gradient`.
    """

    def result(tensors: Kept, options: Named) -> Kept:
        x, weight, *rest = tensors
        added = [tensor.float() for tensor in rest if tensor.ndim == 1]
        z = added[0] if added else torch.zeros(len(weight), device=x.device)
        activated = ACTIVATED[activation or options["activation"]](z).expand(len(x), -1)
        residual = [tensor for tensor in rest if tensor.ndim == 2]
        return ((activated + residual[0] if residual else activated).to(x.dtype).contiguous(),)

    return result


ACTIVATED: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "relu": torch.nn.functional.relu,
    "gelu": _gelu,
    "silu": torch.nn.functional.silu,
}
LINEAR = (
    TensorArgument("x", "m k", "a", layouts="tn"),
    TensorArgument("weight", "n k", "b", layouts="nt"),
    TensorArgument("bias", "n"),
)
RESIDUAL = TensorArgument("residual", "m n")
LINEAR_ACTIVATION = Option("activation", Literal["none", "relu", "gelu", "silu"], "none")


def _linear_epilogue(name: str, bias: bool, residual: bool) -> Operation:
    """A product with bias, activation and residual by ``matmul_fused``."""
    tensors = (*LINEAR[: 3 if bias else 2], *((RESIDUAL,) if residual else ()))
    names = ("x", "weight", *(("bias",) if bias else ()))
    return Operation(
        name,
        WITH_EPILOGUE,
        tensors,
        (LINEAR_ACTIVATION,),
        (Result("c", "m n"),),
        kinds=("bf16", "f16"),
        fixed={"bias": bias, "residual": residual},
        empty=_empty_linear(),
        autocast="lower",
        gradient=Gradient(_kept(*names), _epilogue_gradient()),
    )


def _empty_linear_layernorm_gelu(tensors: Kept, options: Named) -> Kept:
    """As :func:`_empty_linear`."""
    x, _, bias, gamma, beta = tensors
    rows = bias.expand(*x.shape[:-1], -1).contiguous()
    return (CALLS["layernorm"]((rows, gamma, beta), ("gelu", options["eps"])),)


def _empty_ffn_sublayer(tensors: Kept, options: Named) -> Kept:
    """As :func:`_empty_linear`, with the residual."""
    bias, residual = tensors[2], tensors[5]
    return ((residual.float() + _gelu(bias)).to(residual.dtype).contiguous(),)


FFN_SUBLAYER = (
    "cluster",
    "row_kernels_swapped",
    "row_kernels_early",
    "row_kernels_wgmma",
    "row_kernels",
)
"""The variants of ``ffn_sublayer`` that read the weights as they are."""
PRODUCTS = (
    Operation(
        "matmul_nt",
        TENSOR_CORES,
        (TensorArgument("a", "m k", layouts="tn"), TensorArgument("b", "n k", layouts="nt")),
        (),
        (Result("c", "m n"),),
        kinds=("bf16", "f16"),
        autocast="lower",
        gradient=Gradient(_kept("a", "b"), _linear_gradient),
    ),
    Operation(
        "linear_gelu",
        TENSOR_CORES,
        LINEAR,
        (),
        (Result("c", "m n"),),
        kinds=("bf16", "f16"),
        fixed={"epilogue": "bias_gelu"},
        empty=_empty_linear("gelu"),
        autocast="lower",
        gradient=Gradient(_kept("x", "weight", "bias"), _epilogue_gradient("gelu")),
    ),
    Operation(
        "linear_bias",
        WITH_BIAS,
        LINEAR,
        (),
        (Result("c", "m n"),),
        kinds=("bf16", "f16"),
        fixed={"epilogue": "bias"},
        empty=_empty_linear("none"),
        autocast="lower",
        gradient=Gradient(_kept("x", "weight", "bias"), _epilogue_gradient("none")),
    ),
    _linear_epilogue("linear_activation", bias=True, residual=False),
    _linear_epilogue("linear_residual", bias=False, residual=True),
    _linear_epilogue("linear_bias_residual", bias=True, residual=True),
    Operation(
        "matmul_f32",
        F32,
        (TensorArgument("a", "m k"), TensorArgument("b", "k n")),
        (),
        (Result("c", "m n"),),
        objects=_f32_objection,
        autocast="",
        gradient=Gradient(_kept("a", "b"), _matmul_f32_gradient),
    ),
    Operation(
        "swiglu_ffn",
        of("swiglu_ffn", ("step4_few_tokens", "step3_multicast")),
        (
            TensorArgument("x", "*tokens hidden"),
            TensorArgument("gate", "ffn hidden"),
            TensorArgument("up", "ffn hidden"),
            TensorArgument("down", "hidden ffn"),
        ),
        (),
        (Result("y", "*tokens hidden"),),
        autocast="lower",
        gradient=Gradient(_kept("x", "gate", "up", "down"), _swiglu_ffn_gradient),
    ),
    Operation(
        "linear_layernorm_gelu",
        of("linear_layernorm_gelu", ("row_kernels_multicast", "row_kernels_swapped", "row_kernels_wgmma", "row_kernels")),
        (
            TensorArgument("x", "*rows hidden"),
            TensorArgument("weight", "features hidden", "w"),
            TensorArgument("bias", "features"),
            TensorArgument("gamma", "features"),
            TensorArgument("beta", "features"),
        ),
        (Option("eps", float, 1e-5),),
        (Result("out", "*rows features"),),
        empty=_empty_linear_layernorm_gelu,
        autocast="lower",
        gradient=Gradient(_kept("x", "weight", "bias", "gamma", "beta"), _linear_layernorm_gelu_gradient),
    ),
    Operation(
        "ffn_sublayer",
        of("ffn_sublayer", FFN_SUBLAYER),
        (
            TensorArgument("x", "*rows hidden"),
            TensorArgument("weight", "features hidden", "w"),
            TensorArgument("bias", "features"),
            TensorArgument("gamma", "hidden"),
            TensorArgument("beta", "hidden"),
            TensorArgument("residual", "*rows features"),
        ),
        (Option("eps", float, 1e-5),),
        (Result("out", "*rows features"),),
        fixed={"weights": "plain"},
        empty=_empty_ffn_sublayer,
        autocast="lower",
        gradient=Gradient(_kept("x", "weight", "bias", "gamma", "beta"), _ffn_sublayer_gradient),
    ),
)

# -- attention -----------------------------------------------------------------------------------------------------------

QUERIES, KEYS, LSE = "*batch q heads d", "*batch k kv_heads d", "heads *batch q"
QUERY_MEMORY, KEY_MEMORY, LSE_MEMORY = "batch*q heads d", "batch*k kv_heads d", "heads batch*q"
CAUSAL = Option("causal", bool, False)


def _starts(workload: Any) -> Mapping[str, np.ndarray[Any, Any]]:
    """Where the sequences begin."""
    return dict(zip(("q_starts", "k_starts"), workload.starts(), strict=True))


def _no_shared_heads(sizes: Mapping[str, int]) -> str | None:
    """Why queries cannot share the heads of keys. A description takes 0 of these for as many as queries have."""
    heads = sizes["heads"]
    return f"key has no heads, and query has {heads}" if heads and not sizes["kv_heads"] else None


def _attention_gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Kept:
    found: Kept = CALLS["attention_backward"]((grads[0], *kept), (options["causal"],))
    return found


ATTENTION = (
    Operation(
        "attention",
        of(
            "attention",
            (
                *("step10_decode_wgmma", "step9_decode_tma", "step8_decode"),
                *("private_counter", "step5_persistent", "step4_ping_pong", "step1_tiled"),
            ),
        ),
        (
            TensorArgument("query", QUERIES, memory=QUERY_MEMORY),
            TensorArgument("key", KEYS, memory=KEY_MEMORY),
            TensorArgument("value", KEYS, memory=KEY_MEMORY),
        ),
        (CAUSAL,),
        (Result("o", QUERIES), Result("lse", LSE, "f32", saved=True)),
        constants=_starts,
        refuses=_no_shared_heads,
        autocast="lower",
        gradient=Gradient(_kept("query", "key", "value", "o", "lse"), _attention_gradient),
    ),
    Operation(
        "attention_backward",
        of("attention_backward", ("step6_deferred", "step5_persistent", "step4_overlap", "step1_tiled")),
        (
            TensorArgument("do", QUERIES, memory=QUERY_MEMORY),
            TensorArgument("query", QUERIES, memory=QUERY_MEMORY),
            TensorArgument("key", KEYS, memory=KEY_MEMORY),
            TensorArgument("value", KEYS, memory=KEY_MEMORY),
            TensorArgument("o", QUERIES, memory=QUERY_MEMORY),
            TensorArgument("lse", LSE, kind="f32", memory=LSE_MEMORY),
        ),
        (CAUSAL,),
        (Result("dq", QUERIES), Result("dk", KEYS), Result("dv", KEYS)),
        constants=_starts,
        refuses=_no_shared_heads,
    ),
    Operation(
        "attention_e4m3",
        of("attention_e4m3", ("step6_decode", "step5_continuous", "step4_persistent", "step3_overlap", "unfused")),
        (
            TensorArgument("query", QUERIES, memory=QUERY_MEMORY),
            TensorArgument("key", KEYS, memory=KEY_MEMORY),
            TensorArgument("value", KEYS, memory=KEY_MEMORY),
            TensorArgument("query_scale", "heads", kind="f32"),
            TensorArgument("key_scale", "kv_heads", kind="f32"),
            TensorArgument("value_scale", "kv_heads", kind="f32"),
        ),
        (CAUSAL,),
        (Result("o", QUERIES, "bf16"),),
        constants=_starts,
        refuses=_no_shared_heads,
        autocast="",
    ),
    Operation(
        "attention_scores",
        of("attention_scores", ("step3_cluster", "step2_wgmma", "step1_two_passes")),
        (
            TensorArgument("query", QUERIES, memory="batch q heads d"),
            TensorArgument("key", KEYS, memory="batch k kv_heads d"),
        ),
        (Option("mask", Literal["none", "causal"], "none"),),
        (Result("p", "*batch heads q k"),),
        refuses=_no_shared_heads,
        autocast="lower",
    ),
)

OPERATIONS: dict[str, Operation] = {
    operation.name: operation for operation in (*NORMS, *ROW_KERNELS, *ELEMENTWISE, *PRODUCTS, *ATTENTION)
}
"""The bundled operations by name."""

CALLS.update({name: function_of(operation) for name, operation in OPERATIONS.items()})
