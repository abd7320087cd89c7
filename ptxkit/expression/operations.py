"""The operations of an expression, each in CUDA, numpy and torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Operation:
    """An operation on elements.

    Attributes:
        operands: how many.
        cuda, numpy, torch: the operation as text; ``{0}``, ``{1}`` ... are its operands, in f32 in CUDA.
        flops: for one element; ex2, rcp and the like count as one.
        word: name of its launch in the unfused chain.
        positive: operands that must be positive: their inputs are drawn from [0.5, 1.5) instead of [-1, 1).
    """

    operands: int
    cuda: str
    numpy: str
    torch: str
    flops: int
    word: str
    positive: tuple[int, ...] = ()


def _infix(sign: str, word: str, positive: tuple[int, ...] = ()) -> Operation:
    text = f"({{0}} {sign} {{1}})"
    return Operation(2, text, text, text, 1, word, positive)


def _comparison(sign: str, word: str) -> Operation:
    condition = f"({{0}} {sign} {{1}})"
    return Operation(2, f"({condition} ? 1.0f : 0.0f)", f"np.where({condition}, 1.0, 0.0)", condition, 1, word)


def _function(cuda: str, numpy: str, torch: str, flops: int, positive: bool = False) -> Operation:
    word = torch.partition("(")[0].rpartition(".")[2]
    return Operation(1, cuda, numpy, torch, flops, word, (0,) if positive else ())


OPERATIONS: dict[str, Operation] = {
    "+": _infix("+", "add"),
    "-": _infix("-", "subtract"),
    "*": _infix("*", "multiply"),
    "/": _infix("/", "divide", positive=(1,)),
    "<": _comparison("<", "less"),
    "<=": _comparison("<=", "less_equal"),
    ">": _comparison(">", "greater"),
    ">=": _comparison(">=", "greater_equal"),
    "==": _comparison("==", "equal"),
    "!=": _comparison("!=", "not_equal"),
    "negative": Operation(1, "(-{0})", "(-{0})", "(-{0})", 1, "negative"),
    "minimum": Operation(2, "fminf({0}, {1})", "np.fmin({0}, {1})", "torch.clamp({0}, max={1})", 1, "minimum"),
    "maximum": Operation(2, "fmaxf({0}, {1})", "np.fmax({0}, {1})", "torch.clamp({0}, min={1})", 1, "maximum"),
    "where": Operation(
        3,
        "({0} != 0.0f ? {1} : {2})",
        "np.where({0} != 0, {1}, {2})",
        "torch.where({0} != 0, {1}, {2})",
        1,
        "where",
    ),
    "abs": _function("fabsf({0})", "np.abs({0})", "torch.abs({0})", 1),
    "exp": _function("expf({0})", "np.exp({0})", "torch.exp({0})", 1),
    "exp2": _function("exp2f({0})", "np.exp2({0})", "torch.exp2({0})", 1),
    "log": _function("logf({0})", "np.log({0})", "torch.log({0})", 1, positive=True),
    "log2": _function("log2f({0})", "np.log2({0})", "torch.log2({0})", 1, positive=True),
    "sqrt": _function("sqrtf({0})", "np.sqrt({0})", "torch.sqrt({0})", 1, positive=True),
    "rsqrt": _function("rsqrtf({0})", "(1 / np.sqrt({0}))", "torch.rsqrt({0})", 1, positive=True),
    "sin": _function("sinf({0})", "np.sin({0})", "torch.sin({0})", 1),
    "cos": _function("cosf({0})", "np.cos({0})", "torch.cos({0})", 1),
    "tanh": _function("tanhf({0})", "np.tanh({0})", "torch.tanh({0})", 1),
    "sigmoid": _function("sigmoid({0})", "(1 / (1 + np.exp(-{0})))", "torch.sigmoid({0})", 4),
    "square": _function("({0} * {0})", "np.square({0})", "torch.square({0})", 1),
    "relu": _function("relu({0})", "np.fmax({0}, 0)", "torch.relu({0})", 1),
    "silu": _function("silu({0})", 'activation("silu", {0})', "torch.nn.functional.silu({0})", 5),
    "gelu": _function(
        "gelu_tanh({0})",
        'activation("gelu", {0})',
        "torch.nn.functional.gelu({0}, approximate='tanh')",
        8,
    ),
}
"""Name of the operation -> the operation. Operators are listed under their sign."""

DROPOUT = "dropout"
"""``dropout(x)``: zero with probability p, else x / (1 - p). :data:`OPERATIONS` lacks it, because it takes random numbers."""


@dataclass(frozen=True)
class Reduction:
    """A reduction along rows.

    Attributes:
        maximum: whether the largest term is taken; otherwise the sum of the terms.
        term: a term of the reduction, of an element ``{0}``, in CUDA.
        result: the result, of the sum or maximum ``{0}`` of a row of ``cols`` elements, in CUDA.
        numpy, torch: the reduction of ``{0}``, which keeps the axis.
        flops: for one element.
    """

    maximum: bool
    term: str
    result: str
    numpy: str
    torch: str
    flops: int


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(False, "{0}", "{0}", "{0}.sum(-1, keepdims=True)", "{0}.sum(-1, keepdim=True)", 1),
    "mean": Reduction(False, "{0}", "{0} / cols", "{0}.mean(-1, keepdims=True)", "{0}.mean(-1, keepdim=True)", 1),
    "norm": Reduction(
        False,
        "({0} * {0})",
        "sqrtf({0})",
        "np.sqrt(np.square({0}).sum(-1, keepdims=True))",
        "torch.linalg.vector_norm({0}, dim=-1, keepdim=True)",
        2,
    ),
    "max": Reduction(
        True, "{0}", "{0}", "np.fmax.reduce({0}, axis=-1, keepdims=True)", "{0}.amax(-1, keepdim=True)", 1
    ),
    "min": Reduction(
        True, "(-{0})", "-{0}", "np.fmin.reduce({0}, axis=-1, keepdims=True)", "{0}.amin(-1, keepdim=True)", 1
    ),
}
"""Reductions by name. ``min(x, y)`` and ``max(x, y)`` with two operands are ``minimum`` and ``maximum``."""
