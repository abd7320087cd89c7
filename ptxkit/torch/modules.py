"""``torch.nn.Module``s whose ``state_dict`` is that of torch's modules of the same name."""

from __future__ import annotations

import operator
import typing
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ptxkit.errors import UsageError
from ptxkit.torch import functions


def _columns(module: str, shape: int | Sequence[int]) -> int:
    """The length of the rows that a norm normalizes; UsageError unless it is one dimension."""
    try:
        sizes = (operator.index(shape),) if hasattr(shape, "__index__") else tuple(map(operator.index, shape))
    except TypeError:
        raise UsageError(
            f"{module}: normalized_shape must be a whole number, or a list of one, not {shape!r}"
        ) from None
    if len(sizes) != 1:
        raise UsageError(
            f"{module}: normalized_shape must be one dimension, the last, not {sizes}; flatten the others before"
        )
    return sizes[0]


def _activation(module: str, activation: str, kinds: Any) -> None:
    """Raise UsageError unless a module has the activation."""
    known = typing.get_args(kinds)
    if activation not in known:
        raise UsageError(f"{module}: activation must be one of {', '.join(known)}, not {activation!r}")


def _shown(activation: str) -> str:
    """An activation as the end of a module's representation."""
    return f", activation={activation}" if activation != "none" else ""


class LayerNorm(nn.LayerNorm):
    """``torch.nn.LayerNorm`` of the last dimension, with an activation in the same launch.

    Args:
        normalized_shape: length of the last dimension.
        eps, elementwise_affine, bias, device, dtype: as for ``torch.nn.LayerNorm``.
        activation: ``"none"``, ``"relu"`` or ``"gelu"`` (the tanh formula).

    Raises:
        UsageError: more than one dimension would be normalized; no such activation.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: functions.NormActivation = "none",
    ) -> None:
        columns = _columns("LayerNorm", normalized_shape)
        _activation("LayerNorm", activation, functions.NormActivation)
        super().__init__(columns, eps, elementwise_affine, bias, device, dtype)
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        """The normalized rows of a tensor (..., normalized_shape)."""
        return functions.layernorm(input, self.weight, self.bias, self.activation, self.eps)

    def extra_repr(self) -> str:
        """As torch's, with the activation."""
        return super().extra_repr() + _shown(self.activation)


class RMSNorm(nn.RMSNorm):
    """``torch.nn.RMSNorm`` of the last dimension; the arguments are the same.

    Raises:
        UsageError: more than one dimension would be normalized.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(_columns("RMSNorm", normalized_shape), eps, elementwise_affine, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The normalized rows of a tensor (..., normalized_shape).

        Without eps, it is ``torch.finfo(torch.float32).eps``, also for the 16-bit types and under autocast: torch takes the
        eps of the type in which it computes, and the kernels compute in float32.
        """
        eps = torch.finfo(torch.float32).eps if self.eps is None else self.eps
        return functions.rmsnorm(x, self.weight, eps)


class Linear(nn.Linear):
    """``torch.nn.Linear`` with an activation, which in bfloat16 and float16 is part of the same launch if there is a bias.

    Args:
        in_features, out_features, bias, device, dtype: as for ``torch.nn.Linear``.
        activation: ``"none"`` or ``"gelu"`` (the tanh formula).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: functions.LinearActivation = "none",
    ) -> None:
        _activation("Linear", activation, functions.LinearActivation)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation: functions.LinearActivation = activation

    def forward(self, input: Tensor) -> Tensor:
        """The product of a tensor (..., in_features) with the weights, plus bias, activated."""
        return functions.linear(input, self.weight, self.bias, self.activation)

    def extra_repr(self) -> str:
        """As torch's, with the activation."""
        return super().extra_repr() + _shown(self.activation)


class FFN(nn.Module):
    """The feed-forward layer of a transformer: linear, gelu (the tanh formula), linear.

    Args:
        features: of input and output.
        hidden: features between the two products.
        bias, device, dtype: as for ``torch.nn.Linear``.

    Its parameters have the names of ``torch.nn.TransformerEncoderLayer``: ``linear1.weight``, ``linear1.bias``,
    ``linear2.weight`` and ``linear2.bias``.
    """

    def __init__(self, features: int, hidden: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.linear1 = Linear(features, hidden, bias, device, dtype, activation="gelu")
        self.linear2 = Linear(hidden, features, bias, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """From (..., features) to the same shape."""
        result: Tensor = self.linear2(self.linear1(x))
        return result


class SwiGLU(nn.Module):
    """A gated feed-forward layer: ``down(silu(gate(x)) * up(x))``, without biases.

    Args:
        features: of input and output.
        hidden: features between the products.
        device, dtype: as for ``torch.nn.Linear``.

    Its parameters are ``gate_proj.weight``, ``up_proj.weight`` and ``down_proj.weight``.
    """

    def __init__(self, features: int, hidden: int, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.gate_proj = Linear(features, hidden, False, device, dtype)
        self.up_proj = Linear(features, hidden, False, device, dtype)
        self.down_proj = Linear(hidden, features, False, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """From (..., features) to the same shape."""
        result: Tensor = self.down_proj(functions.swiglu(self.gate_proj(x), self.up_proj(x)))
        return result
