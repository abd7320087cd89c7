"""Gradients of attention by a library that computes dP or delta in 16 bits, where the terms of dS cancel in whole rows."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ptxkit.bench.measure import library_accuracy
from ptxkit.bench.measure.library_accuracy import judged
from ptxkit.kernels.attention.attention import forward
from ptxkit.workload import registry
from ptxkit.workload.data import Data

NARROW: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
SIZES = {
    "few visible keys": {"heads": 2, "q": 384, "k": 384, "causal": True},
    "shared heads": {"heads": 4, "kv_heads": 2, "q": 192, "k": 192, "causal": True},
    "one key": {"heads": 2, "q": 96, "k": 1},
    "equal values": {"heads": 2, "q": 128, "k": 128},
}


@cache
def data_of(case: str, dtype: str) -> Data:
    """Inputs and reference of a case."""
    w = registry.get("attention_backward")(**{"batch": 1, "d": 64, "dtype": dtype, **SIZES[case]})
    data = Data(w, 0)
    if case != "equal values":
        return data
    value = np.broadcast_to(data.inputs["value"][:1], data.inputs["value"].shape).copy()
    o, lse = forward(w, data.inputs["query"], data.inputs["key"], value)
    return Data(w, 0, {**data.inputs, "value": value, "o": o.astype(value.dtype), "lse": lse.astype(np.float32)})


def library(
    data: Data,
    rounds: tuple[str, ...] = ("scores", "dp"),
    *,
    mask: int = 0,
    without: slice = slice(0, 0),
    other_head: int = 0,
    scaled: bool = True,
    delta_of: float = 1.0,
) -> dict[str, np.ndarray]:
    """The gradients by separate products, whose results named in ``rounds`` have the type of the inputs.

    Args:
        mask: by how many columns the mask is moved. without: keys that are left out. other_head: by how many heads those of the
            keys are moved. scaled: whether dS has its scale. delta_of: factor of delta.
    """
    w: Any = data.workload
    given = {n: np.asarray(x, np.float64) for n, x in data.inputs.items()}
    found = {n: np.zeros(given[of].shape) for n, of in {"dq": "query", "dk": "key", "dv": "value"}.items()}

    def kept(x: np.ndarray, name: str) -> np.ndarray:
        return x.astype(NARROW[w.dtype]).astype(np.float64) if name in (*rounds, "p", "ds") else x

    for head in range(w.heads):
        to = head // (w.heads // w.shared_heads)
        of = (to + other_head) % w.shared_heads
        q, o, do = (given[name][:, head] for name in ("query", "o", "do"))
        k, v = given["key"][:, of], given["value"][:, of]
        p = np.exp(kept(q @ k.T, "scores") * w.d**-0.5 - given["lse"][head][:, None])
        p = np.tril(p, mask) if w.causal else p
        p[:, without] = 0
        delta = kept((do * o).sum(1, keepdims=True), "delta") * delta_of
        ds = kept(p * (kept(do @ v.T, "dp") - delta) * (w.d**-0.5 if scaled else 1.0), "ds")
        found["dq"][:, head] = ds @ k
        found["dk"][:, to] += ds.T @ q
        found["dv"][:, to] += kept(p, "p").T @ do
    return {name: x.astype(NARROW[w.dtype]) for name, x in found.items()}


@pytest.mark.parametrize("rounds", [("scores", "dp"), ("delta",), ("scores", "dp", "delta")], ids="-".join)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("case", SIZES)
def test_rounded_terms_are_less_accurate_where_they_cancel(case, dtype, rounds):
    data = data_of(case, dtype)
    verdict = judged(library(data, rounds), data.expected, data)
    assert verdict.verified, verdict.explanation


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("case", SIZES)
def test_the_magnitude_of_the_results_says_nothing_of_these_errors(case, dtype, monkeypatch):
    data = data_of(case, dtype)
    found = library(data)
    monkeypatch.setattr(library_accuracy, "without_errors_of_terms", lambda outputs, *_: outputs)
    assert not judged(found, data.expected, data).verified


WRONG = {
    "a key too many": {"mask": 1},
    "a key too few": {"mask": -1},
    "a missing scale": {"scaled": False},
    "a dropped key": {"without": slice(16, 17)},
    "a dropped block": {"without": slice(64, 128)},
    "the last block dropped": {"without": slice(-16, None)},
    "keys of another head": {"other_head": 1},
    "no delta": {"delta_of": 0.0},
    "half of delta": {"delta_of": 0.5},
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("case", ["few visible keys", "shared heads"])
def test_wrong_gradients_are_refused(case, dtype, wrong):
    data = data_of(case, dtype)
    assert not judged(library(data, **WRONG[wrong]), data.expected, data).verified


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("case", ["one key", "equal values"])
def test_a_gradient_that_should_cancel_and_does_not_is_refused(case, dtype):
    data = data_of(case, dtype)
    assert not judged(library(data, delta_of=0.5), data.expected, data).verified
