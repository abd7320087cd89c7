"""The results of a graph in float64, to compare the kernels that reports name with what the operations compute."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import float8_e4m3fn

from ptxkit.expression.operations import OPERATIONS, REDUCTIONS
from ptxkit.fusion.graph import Graph, Operation
from ptxkit.fusion.kinds import DEFAULTS, permutation
from ptxkit.kernels.elementwise.elementwise import activation
from ptxkit.kernels.elementwise.philox import random_words

FORMULAS = {o.word: o.numpy for o in OPERATIONS.values()}
SEED = 1234  # of the kernels with dropout, by default


def evaluated(graph: Graph, inputs: dict[str, Any]) -> dict[str, Any]:
    """Every tensor of a graph. The arrays of the inputs have the shapes of the graph."""
    found = {name: np.asarray(value, np.float64) for name, value in inputs.items()}
    for operation in graph.operations:
        results = _results(graph, operation, [found[name] for name in operation.inputs])
        for name, result in zip(operation.outputs, results, strict=True):
            assert result.shape == graph.shape(name)
            found[name] = result
    return found


def _results(graph: Graph, operation: Operation, x: list[Any]) -> list[Any]:
    kind = operation.kind
    a = {**DEFAULTS.get(kind, {}), **operation.attributes}
    if "value" in a:
        x = [*x, np.float64(a["value"])]
    if kind in FORMULAS:
        return [
            eval(
                FORMULAS[kind].format(*[f"x[{i}]" for i in range(len(x))]), {"np": np, "activation": activation, "x": x}
            )
        ]
    if kind in REDUCTIONS:
        return [eval(REDUCTIONS[kind].numpy.format("x[0]"), {"np": np, "x": x})]
    if kind == "layernorm":
        centred = x[0] - x[0].mean(-1, keepdims=True)
        y = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + a["eps"])
        return [y * x[1] + x[2] if len(x) == 3 else y]
    if kind == "rmsnorm":
        return [x[0] / np.sqrt(np.square(x[0]).mean(-1, keepdims=True) + a["eps"]) * (x[1] if len(x) > 1 else 1)]
    if kind == "l2norm":
        return [x[0] / np.sqrt(np.square(x[0]).sum(-1, keepdims=True) + a["eps"])]
    if kind == "softmax":
        e = np.exp(x[0] - x[0].max(-1, keepdims=True))
        return [e / e.sum(-1, keepdims=True)]
    if kind == "quantize_rows":
        most = 448.0 if graph.tensors[operation.outputs[0]].dtype == "e4m3" else 127.0
        scales = np.abs(x[0]).max(-1, keepdims=True) / most
        steps = x[0] / scales
        return [steps.astype(float8_e4m3fn).astype(np.float64) if most == 448 else np.rint(steps), scales]
    if kind == "quantize":
        return [np.clip(np.rint(np.float32(x[0]) / np.float32(a["scale"]) + np.float32(a["zero_point"])), -128, 127)]
    if kind == "dropout":
        words = random_words(x[0].size, SEED).reshape(x[0].shape)
        return [np.where(words >= np.uint32(a["p"] * 2**32), x[0] / (1 - a["p"]), 0)]
    if kind == "linear":
        return [x[0] @ x[1].T + (x[2] if len(x) > 2 else 0)]
    if kind == "top_k":
        return _chosen(x[0], a)
    if kind == "routed_linear":
        rows, w, expert = x[0], x[1], x[2].astype(int)
        rows = rows if rows.ndim > expert.ndim else rows[..., None, :]
        y = np.einsum("...k,...nk->...n", np.broadcast_to(rows, (*expert.shape, rows.shape[-1])), w[expert])
        if len(x) < 5:
            return [y]
        return [y * (x[3] if x[3].ndim == y.ndim else x[3][..., None, :]) * x[4][expert]]
    if kind == "matmul":
        return [x[0] @ (x[1].swapaxes(-1, -2) if a["transpose_b"] else x[1])]
    if kind == "attention":
        q, k, v = x[:3]
        k, v = (np.repeat(each, q.shape[-3] // each.shape[-3], -3) for each in (k, v))
        scores = q @ k.swapaxes(-1, -2) * (a["scale"] or 1 / np.sqrt(q.shape[-1])) + (x[3] if len(x) > 3 else 0)
        if a["causal"]:
            n, m = scores.shape[-2:]
            scores = np.where(np.arange(m) > np.arange(n)[:, None] + m - n, -np.inf, scores)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return [e / e.sum(-1, keepdims=True) @ v]
    if kind in ("cast", "copy"):
        return [x[0]]
    if kind == "power":
        return [x[0] ** x[1]]
    if kind == "expand":
        return [np.broadcast_to(x[0], a["shape"])]
    if kind == "strided":
        flat = np.ascontiguousarray(x[0]).reshape(-1)[a.get("offset", 0) :]
        return [np.lib.stride_tricks.as_strided(flat, a["shape"], [8 * stride for stride in a["strides"]])]
    if kind in ("chunk", "split"):
        return np.split(x[0], np.cumsum(a["sizes"])[:-1], a["axis"])
    if kind == "concat":
        return [np.concatenate(x, a["axis"])]
    if kind == "gather":
        return [x[0][x[1].astype(int)]]
    if kind == "column_sum":
        return [x[0].reshape(-1, x[0].shape[-1]).sum(0)]
    if kind in ("permute", "transpose"):
        return [x[0].transpose(permutation(x[0].ndim, a))]
    if kind == "reshape":
        return [x[0].reshape(a["shape"])]
    raise AssertionError(f"{kind} cannot be evaluated")


def _chosen(x: Any, a: dict[str, Any]) -> list[Any]:
    """Positions and scores of the largest elements of each row; of equal ones the first."""
    scores = {"none": x, "sigmoid": 1 / (1 + np.exp(-x))}.get(a["scores"])
    if scores is None:
        e = np.exp(x - x.max(-1, keepdims=True))
        scores = e / e.sum(-1, keepdims=True)
    place = np.argsort(-x, axis=-1, kind="stable")[..., : a["k"]]
    found = np.take_along_axis(scores, place, -1)
    return [place.astype(np.float64), found / found.sum(-1, keepdims=True) if a["renormalize"] else found]
