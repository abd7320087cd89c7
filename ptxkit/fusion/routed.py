"""Routed mixtures of experts: the choice of experts for each token, and products with the weights of the chosen ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ptxkit.errors import UsageError
from ptxkit.fusion.attributes import Attributes, boolean, dtype_of, number
from ptxkit.fusion.tensors import Tensor, promoted
from ptxkit.workload.blame import short

SCORES = ("softmax", "sigmoid", "none")
INDICES = ("s32", "s64")


def chosen(inputs: Sequence[Tensor], attributes: Attributes) -> list[tuple[tuple[int, ...], str]]:
    """Positions and scores (..., k) of the largest elements of each row. Raises UsageError."""
    (logits,) = inputs
    if not logits.shape:
        raise UsageError("the first input has no axis along which a row could lie")
    if "k" not in attributes:
        raise UsageError("needs the attribute 'k', a number")
    if (k := number(attributes, "k", 1)) > logits.shape[-1]:
        raise UsageError(f"k is {k}, but the rows have {logits.shape[-1]} elements")
    if (scores := attributes.get("scores", SCORES[0])) not in SCORES:
        raise UsageError(f"scores must be one of {', '.join(SCORES)}, not {short(scores)}")
    if "renormalize" in attributes:
        boolean(attributes, "renormalize")
    shape = (*logits.shape[:-1], k)
    if (indices := attributes.get("indices", INDICES[0])) not in INDICES:
        raise UsageError(f"indices must be one of {', '.join(INDICES)}, not {short(indices)}")
    return [(shape, indices), (shape, dtype_of(attributes, "f32"))]


def products(inputs: Sequence[Tensor], attributes: Attributes) -> list[tuple[tuple[int, ...], str]]:
    """The product (..., choices, n) of the rows of x and the weights of their experts. Raises UsageError."""
    x, w, expert = inputs[:3]
    if len(w.shape) != 3:
        raise UsageError(f"the weights must be (experts, n, k), not {list(w.shape)}")
    experts, n, k = w.shape
    if not expert.shape or expert.dtype not in INDICES:
        raise UsageError(f"the experts must be (..., choices) of s32 or s64, not {list(expert.shape)} of {expert.dtype}")
    if x.shape not in (rows := ((*expert.shape[:-1], k), (*expert.shape, k))):
        raise UsageError(f"x must be {list(rows[0])} or {list(rows[1])}, not {list(x.shape)}")
    if (hit := number(attributes, "experts", experts)) > experts:
        raise UsageError(f"experts is {hit}, but the weights have {experts}")
    if len(inputs) == 4:
        raise UsageError("takes the scales of x and of the weights, or neither")
    for tensor, what, shape in zip(inputs[3:], ("x", "the weights"), ((*x.shape[:-1], 1), (experts, n)), strict=False):
        if tensor.shape != shape:
            raise UsageError(f"the scales of {what} must be {list(shape)}, not {list(tensor.shape)}")
    found = "f32" if len(inputs) == 5 else promoted([x.dtype, w.dtype])
    return [((*expert.shape, n), dtype_of(attributes, found))]


def flops(inputs: Sequence[Tensor], outputs: Sequence[Tensor], _: Attributes) -> float:
    """Two for each term of a sum, and two for the scales."""
    return (2.0 * inputs[1].shape[2] + 2 * (len(inputs) == 5)) * outputs[0].elements


def read(i: int, inputs: Sequence[Tensor], _: Sequence[Tensor], attributes: Attributes) -> float:
    """Of the weights and their scales, those of the experts that have rows: ``experts``, at most one for each choice."""
    if i not in (1, 4):
        return inputs[i].bytes
    experts = inputs[1].shape[0]
    hit = min(number(attributes, "experts", experts), math.prod(inputs[2].shape))
    return inputs[i].bytes * hit / experts
