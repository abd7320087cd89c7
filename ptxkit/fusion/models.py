"""Graphs of language models, by their dimensions: no weights, one layer that is repeated.

:mod:`ptxkit.bench.shapes.models` has the dimensions and their sources.
"""

from __future__ import annotations

from ptxkit.bench.shapes.models import DIMENSIONS, Model
from ptxkit.errors import UsageError
from ptxkit.fusion.graph import Graph, GraphBuilder
from ptxkit.fusion.tensors import checked_dtype, is_float
from ptxkit.workload.workload import suggestion

GRAPHS = ("gpt2", "opt-13b", "llama3-8b", "mixtral-8x7b", "deepseek-v3")
MODELS: dict[str, Model] = {name: DIMENSIONS[name] for name in GRAPHS}
"""Name for ``--model`` -> dimensions, of the models whose layers :class:`_Layer` describes."""
QUANTIZED = ("s8", "e4m3")
"""Types of quantized experts."""


def model_graph(
    name: str, tokens: int = 4096, context: int = 0, dtype: str = "bf16", experts_dtype: str = ""
) -> Graph:
    """A layer of a model, repeated as often as the model has layers.

    Args:
        name: a key of :data:`MODELS`.
        tokens: rows of the activations: all tokens of a batch that are computed at once.
        context: keys that a token sees; 0: as many as there are tokens, causal, as in prefill.
        dtype: of activations and weights.
        experts_dtype: of routed experts' weights and of the rows that they multiply, ``s8`` or ``e4m3`` with a scale for each
            row; "" for ``dtype``.

    Raises:
        UsageError: no such model, a number of tokens below 1, a type of integers, or another type of experts, or of a model
            without experts.
    """
    if name not in MODELS:
        raise UsageError(f"there is no model {name!r}; {suggestion(name, MODELS)}")
    if tokens < 1 or context < 0:
        raise UsageError("the numbers of tokens and of keys must be positive")
    if experts_dtype and experts_dtype not in QUANTIZED:
        raise UsageError(f"the type of experts must be one of {', '.join(QUANTIZED)}, not {experts_dtype!r}")
    if experts_dtype and not MODELS[name].experts:
        raise UsageError(f"{name} has no routed experts, and takes no type for them")
    if not is_float(checked_dtype(dtype)):
        raise UsageError(f"activations are floating-point numbers, not {dtype}; --experts-dtype is for quantized experts")
    return _Layer(name, MODELS[name], tokens, context, checked_dtype(dtype), experts_dtype).graph()


class _Layer:
    def __init__(
        self, name: str, model: Model, tokens: int, context: int, dtype: str, experts_dtype: str
    ) -> None:
        self.model, self.tokens, self.context, self.dtype = model, tokens, context, dtype
        self.experts_dtype = experts_dtype
        self.g = GraphBuilder(f"{name}, one of {model.layers} layers, {tokens} tokens", model.layers)

    def weight(self, name: str, *shape: int) -> str:
        return self.g.input(name, shape, self.dtype)

    def linear(self, x: str, name: str, n: int) -> str:
        k = self.g.shape(x)[-1]
        result: str = self.g.linear(x, self.weight(f"{name}.weight", n, k), name=name)
        if self.model.bias:
            result = self.g.add(result, self.weight(f"{name}.bias", n), name=f"{name}_bias")
        return result

    def norm(self, x: str, name: str) -> str:
        weights = [self.weight(f"{name}.weight", self.model.hidden)]
        if self.model.norm == "layernorm":
            weights.append(self.weight(f"{name}.bias", self.model.hidden))
        result: str = self.g.operation(self.model.norm, x, *weights, name=name)
        return result

    def graph(self) -> Graph:
        g, model = self.g, self.model
        x = g.input("x", (self.tokens, model.hidden), self.dtype)
        attended = self.attention(self.norm(x, "attention_norm"))
        x = g.add(attended, x, name="attention_residual")
        h = self.norm(x, "ffn_norm")
        y = g.add(self.experts(h) if model.experts else self.ffn(h, ""), x, name="ffn_residual")
        return g.graph(outputs=[y])

    def attention(self, h: str) -> str:
        g, model = self.g, self.model
        keys = self.context or self.tokens

        def heads(name: str, number: int) -> str:
            flat = self.linear(h, name, number * model.d)
            split = g.reshape(flat, name=f"{name}_heads", shape=[self.tokens, number, model.d])
            return str(g.permute(split, name=f"{name}_by_head", axes=[1, 0, 2]))

        q, k, v = heads("q", model.heads), heads("k", model.kv_heads), heads("v", model.kv_heads)
        if model.norm == "rmsnorm":  # these models rotate queries and keys
            cos = self.g.input("cos", (self.tokens, model.d), "f32")
            sin = self.g.input("sin", (self.tokens, model.d), "f32")
            q, k = (g.rope(t, cos, sin, name=f"rope_{n}", dtype=self.dtype) for t, n in ((q, "q"), (k, "k")))
        if self.context:  # the cache holds the keys and values of earlier tokens, and of these
            k, v = (self.g.input(f"cached_{n}", (model.kv_heads, keys, model.d), self.dtype) for n in "kv")
        o = g.attention(q, k, v, name="attention", causal=not self.context)
        together = g.permute(o, name="o_by_token", axes=[1, 0, 2])
        flat = g.reshape(together, name="o_flat", shape=[self.tokens, model.heads * model.d])
        return self.linear(flat, "output", model.hidden)

    def ffn(self, h: str, prefix: str, width: int = 0) -> str:
        g, model, width = self.g, self.model, width or self.model.intermediate
        if model.gated:
            gate = g.silu(self.linear(h, f"{prefix}gate", width), name=f"{prefix}silu")
            inner = g.multiply(gate, self.linear(h, f"{prefix}up", width), name=f"{prefix}gated")
        else:
            inner = g.operation(
                model.activation, self.linear(h, f"{prefix}up", width), name=f"{prefix}{model.activation}"
            )
        return self.linear(inner, f"{prefix}down", model.hidden)

    def experts(self, h: str) -> str:
        """Routed experts: gating, products with the weights of each token's experts, and their weighted sum."""
        g, model = self.g, self.model
        hit = max(1, round(model.experts * (1 - (1 - model.active / model.experts) ** self.tokens)))
        router = self.weight("router.weight", model.experts, model.hidden)
        logits = g.linear(h, router, name="router", dtype="f32")
        scores = "sigmoid" if model.sigmoid else "softmax"
        chosen, scored = g.top_k(logits, name="gating", k=model.active, scores=scores)
        quantized = self.experts_dtype not in ("", self.dtype)

        def grouped(x: tuple[str, ...], name: str, n: int) -> str:
            shape, dtype = (model.experts, n, g.shape(x[0])[-1]), self.experts_dtype if quantized else self.dtype
            operands = [x[0], g.input(f"{name}.weight", shape, dtype), chosen, *x[1:]]
            if quantized:
                operands.append(g.input(f"{name}.scales", shape[:2], "f32"))
            return str(g.routed_linear(*operands, name=name, experts=hit, dtype=self.dtype))

        def rows(x: str, name: str) -> tuple[str, ...]:
            return g.quantize_rows(x, name=name, dtype=self.experts_dtype) if quantized else (x,)

        x = rows(h, "quantize_tokens")
        gate = g.silu(grouped(x, "gate", model.intermediate), name="silu")
        inner = g.multiply(gate, grouped(x, "up", model.intermediate), name="gated")
        down = grouped(rows(inner, "quantize_inner"), "down", model.hidden)
        weights = g.reshape(scored, name="weights", shape=[self.tokens, model.active, 1])
        weighted = g.multiply(down, weights, name="weighted", dtype=self.dtype)
        swapped = g.permute(weighted, name="choices_last", axes=[0, 2, 1])
        summed = g.sum(swapped, name="combine")
        combined = g.reshape(summed, name="combined", shape=[self.tokens, model.hidden])
        if model.shared:
            combined = g.add(combined, self.ffn(h, "shared_", model.shared), name="with_shared")
        return str(combined)
