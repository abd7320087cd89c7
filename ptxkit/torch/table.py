"""The bundled operations: how their arguments become those of a description, and their derivatives.

:mod:`ptxkit.torch.functions` has a function with a signature and a docstring for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch

from ptxkit.torch.operation import Gradient, Operation, Option, Result, TensorArgument, function_of

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
    found: Grads = CALLS["layernorm_backward"](grads[0], *kept, options["activation"])
    return found


def _rmsnorm_gradient(kept: Kept, options: Named, grads: Grads, wanted: Wanted) -> Grads:
    found: Grads = CALLS["rmsnorm_backward"](grads[0], *kept)
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
            lambda given, made: (given["x"], given["weight"], given["bias"], made["mean"], made["rstd"]), _layernorm_gradient
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

OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in (*NORMS,)}
CALLS.update({name: function_of(operation) for name, operation in OPERATIONS.items()})
