"""Operations of ATen as kinds, exactly or not at all.

A function translates a call if a kind, with attributes, computes what the call computes: every argument that has another value
than its default must be one that the function takes (:meth:`ptxkit.fusion.aten_call.Call.take`). Where none does, the call is a
``pointwise`` kind if torch says that it is element by element, else ``other``, of which only the shapes are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from ptxkit.fusion.aten_call import Call, Unknown, Values

UNARY = {
    **{name: name for name in ("silu", "relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "abs", "sin", "cos")},
    "square": "square",
    "neg": "negative",
    "clamp": "clamp",
    "clamp_min": "clamp",
    "clamp_max": "clamp",
    "round": "round",
}
"""Functions of one tensor. The limits of ``clamp`` are no attributes of the kind, which no kernel and no formula computes."""
BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "maximum": "maximum",
    "minimum": "minimum",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}
RESHAPES = ("view", "reshape", "unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten", "ravel", "view_as", "reshape_as")
SAME = ("alias", "detach", "lift_fresh_copy", "positive")
COPIES = ("contiguous", "clone")
CASTS = ("to", "to_copy", "type_as", "float", "half", "bfloat16")
FREE = ("dropout", "lift_fresh_copy", "detach_copy")
"""Operations that return their argument itself where the exported program has another tensor."""
FILLED = ("zeros", "ones", "full", "empty")
CONSTANTS = (*(f"{name}_like" for name in FILLED), *(f"new_{name}" for name in FILLED))
"""Tensors that depend on the shape of another only."""
POINTWISE = ("where", "rsub", "masked_fill", "and", "or", "xor")
"""Functions of elements of which torch does not say in all forms that they are."""
RMS_EPS = {"f32": 2.0**-23, "bf16": 2.0**-23, "f16": 2.0**-23, "f64": 2.0**-52}
"""Type -> eps of ``rms_norm`` where the call has none: the machine epsilon of the type in which torch computes it."""

Translation: TypeAlias = Callable[[Call, Values], Any]


def translated(call: Call, values: Values) -> Any:
    """The names of the results of a call. Raises Unknown."""
    translation = TRANSLATIONS.get(call.word)
    if translation is None:
        raise Unknown
    return translation(call, values)


def _unary(call: Call, values: Values) -> Any:
    x = call.tensor("self")
    if call.word.startswith("clamp"):
        for name in ("min", "max"):
            if isinstance(call.take(name), str):
                raise Unknown
    call.done()
    return values.add(call, UNARY[call.word], x, dtype=call.dtype)


def _gelu(call: Call, values: Values) -> Any:
    x, approximate = call.tensor("self"), call.take("approximate", "none")
    call.done()
    return values.add(call, "gelu", x, approximate=approximate, dtype=call.dtype)


def _dropout(call: Call, values: Values) -> Any:
    x, p, train = call.tensor("input"), float(call.take("p")), bool(call.take("train"))
    call.done()
    if not train or not p:
        return x
    return values.add(call, "dropout", x, p=p, dtype=call.dtype)


def _binary(call: Call, values: Values) -> Any:
    x, y = call.tensor("self"), call.take("other")
    if call.take("alpha", 1) != 1 or call.take("rounding_mode") is not None:
        raise Unknown
    call.done()
    if isinstance(y, str):
        return values.add(call, BINARY[call.word], x, y, dtype=call.dtype)
    if isinstance(y, bool) or not isinstance(y, (int, float)) or not math.isfinite(y):
        raise Unknown
    return values.add(call, BINARY[call.word], x, value=y, dtype=call.dtype)


def _reversed_difference(call: Call, values: Values) -> Any:
    x, y, alpha = call.tensor("self"), call.tensor("other"), call.take("alpha", 1)
    call.done()
    if alpha != 1:
        raise Unknown
    return values.add(call, "subtract", y, x, dtype=call.dtype)


def _where(call: Call, values: Values) -> Any:
    condition, x, y = call.tensor("condition"), call.tensor("self"), call.take("other")
    call.done()
    if isinstance(y, str):
        return values.add(call, "where", condition, x, y, dtype=call.dtype)
    if not isinstance(y, (int, float)) or not math.isfinite(y):
        raise Unknown
    return values.add(call, "where", condition, x, value=float(y), dtype=call.dtype)


def _pow(call: Call, values: Values) -> Any:
    x, power = call.tensor("self"), call.take("exponent")
    call.done()
    if power == 2:
        return values.add(call, "square", x, dtype=call.dtype)
    if isinstance(power, str):
        return values.add(call, "power", x, power, dtype=call.dtype)
    if not isinstance(power, (int, float)) or not math.isfinite(power):
        raise Unknown
    return values.add(call, "power", x, value=float(power), dtype=call.dtype)


def _cast(call: Call, values: Values) -> Any:
    x = call.tensors[0]
    return x if values.dtype(x) == call.dtype else values.add(call, "cast", x, dtype=call.dtype)


def _same(call: Call, values: Values) -> Any:
    return call.tensors[0]


def _copy(call: Call, values: Values) -> Any:
    x = call.tensors[0]
    return x if call.view or (call.word == "contiguous" and values.attended(x)) else values.add(call, "copy", x)


def _copy_into(call: Call, values: Values) -> Any:
    """What is written in place of ``self``, which is not read."""
    x, shape, target = call.tensor("src"), call.shape, call.take("self")
    call.done()
    if x == target:
        return x  # torch.export ends with such a copy for `self.buffer += y`, which the module does not execute
    if list(values.shape(x)) != shape:
        x = values.part(call, "source", "expand", x, shape=shape)
    return values.add(call, "copy", x) if values.dtype(x) == call.dtype else values.add(call, "cast", x, dtype=call.dtype)


def _filled(call: Call, values: Values) -> Any:
    call.take("self")
    value = call.take("value")
    call.done()
    x = value if isinstance(value, str) else values.constant(call)
    if list(values.shape(x)) != call.shape:
        x = values.part(call, "source", "expand", x, shape=call.shape)
    return values.add(call, "copy", x)


def _reshape(call: Call, values: Values) -> Any:
    x = call.tensors[0]
    same = list(values.shape(x)) == call.shape
    if math.prod(values.shape(x)) != math.prod(call.shape) or values.dtype(x) != call.dtype:
        raise Unknown
    if not call.view and not values.attended(x):
        if same:
            return values.add(call, "copy", x)
        x = values.part(call, "copy", "copy", x)
    return x if same else values.add(call, "reshape", x, shape=call.shape)


def _expand(call: Call, values: Values) -> Any:
    x = call.tensors[0]
    if math.prod(values.shape(x)) == math.prod(call.shape):
        return x if list(values.shape(x)) == call.shape else values.add(call, "reshape", x, shape=call.shape)
    return values.add(call, "expand", x, shape=call.shape)


def _slice(call: Call, values: Values) -> Any:
    x, axis = call.tensor("self"), int(call.take("dim", 0))
    start, end, step = call.take("start") or 0, call.take("end"), call.take("step", 1)
    length = call.take("length")
    extent = values.shape(x)[axis]
    if step != 1 or not all(value is None or isinstance(value, int) for value in (start, end, length)):
        raise Unknown
    start = max(0, start + extent) if start < 0 else min(start, extent)
    size = call.shape[axis]
    if size == extent:
        return x
    return _part(call, values, x, axis, start, size)


def _part(call: Call, values: Values, x: str, axis: int, start: int, size: int) -> str:
    """Of an axis ``size`` elements from ``start``."""
    extent = values.shape(x)[axis]
    sizes = [n for n in (start, size, extent - start - size) if n]
    found = values.part(call, "parts", "chunk", x, axis=axis, sizes=sizes) if len(sizes) > 1 else x
    name: str = found[1 if start else 0] if isinstance(found, tuple) else found
    return name


def _select(call: Call, values: Values) -> Any:
    x, axis, index = call.tensor("self"), int(call.take("dim")), call.take("index")
    if not isinstance(index, int):
        raise Unknown
    one = _part(call, values, x, axis, index % values.shape(x)[axis], 1)
    return values.add(call, "reshape", one, shape=call.shape)


def _parts(call: Call, values: Values) -> Any:
    x, axis = call.tensors[0], int(call.take("dim", 0))
    sizes = [shape[axis] for shape, _ in call.results]
    found = values.add(call, "chunk", x, axis=axis, sizes=sizes)
    return found if isinstance(found, tuple) else (found,)


def _unbind(call: Call, values: Values) -> Any:
    x, axis = call.tensor("self"), int(call.take("dim", 0))
    count = len(call.results)
    parts = values.part(call, "parts", "chunk", x, axis=axis, sizes=[1] * count) if count > 1 else (x,)
    shapes = [shape for shape, _ in call.results]
    pairs = enumerate(zip(parts, shapes, strict=True))
    return tuple(values.part(call, str(i), "reshape", part, shape=shape) for i, (part, shape) in pairs)


def _concat(call: Call, values: Values) -> Any:
    names, axis = call.take("tensors"), call.take("dim", 0)
    call.done()
    if len(names) == 1:
        return names[0]
    return values.add(call, "concat", *names, axis=int(axis))


def _stack(call: Call, values: Values) -> Any:
    names, axis = call.take("tensors"), int(call.take("dim", 0))
    call.done()
    axis %= len(call.shape)
    one = [*call.shape[:axis], 1, *call.shape[axis + 1 :]]
    if len(set(names)) != len(names) or len(names) < 2:
        raise Unknown
    rows = [values.part(call, f"row{i}", "reshape", name, shape=one) for i, name in enumerate(names)]
    return values.add(call, "concat", *rows, axis=axis)


def _linear(call: Call, values: Values) -> Any:
    x, w, bias = call.tensor("input"), call.tensor("weight"), call.take("bias")
    call.done()
    return values.add(call, "linear", x, w, *([bias] if isinstance(bias, str) else []), dtype=call.dtype)


def _matmul(call: Call, values: Values) -> Any:
    a, b = call.tensor("self"), call.take("mat2", call.take("other"))
    call.done()
    if not isinstance(b, str) or min(len(values.shape(a)), len(values.shape(b))) < 2:
        raise Unknown
    return values.add(call, "matmul", a, b, dtype=call.dtype)


def _addmm(call: Call, values: Values) -> Any:
    added, a, b = call.tensor("self"), call.tensor("mat1"), call.tensor("mat2")
    if call.take("beta", 1) != 1 or call.take("alpha", 1) != 1:
        raise Unknown
    call.done()
    if values.shape(added) == (values.shape(b)[1],):
        w = values.part(call, "weight", "permute", b, axes=[1, 0])
        return values.add(call, "linear", a, w, added, dtype=call.dtype)
    product = values.part(call, "product", "matmul", a, b, dtype=call.dtype)
    return values.add(call, "add", product, added, dtype=call.dtype)


def _norm(call: Call, values: Values) -> Any:
    x, extent, weight = call.tensor("input"), call.take("normalized_shape"), call.take("weight")
    bias, eps = call.take("bias"), call.take("eps")
    call.take("cudnn_enable")
    call.done()
    if len(extent) != 1 or (weight is None and bias is not None):
        raise Unknown
    if eps is None:
        eps = RMS_EPS.get(call.dtype)
    if eps is None:
        raise Unknown
    kind = "layernorm" if call.word == "layer_norm" else "rmsnorm"
    rest = [name for name in (weight, bias) if isinstance(name, str)]
    return values.add(call, kind, x, *rest, eps=float(eps), dtype=call.dtype)


def _softmax(call: Call, values: Values) -> Any:
    x, axis = call.tensor("self"), int(call.take("dim"))
    call.take("dtype"), call.take("half_to_float")  # the type of the result has it
    call.done()
    if axis not in (-1, len(values.shape(x)) - 1):
        raise Unknown
    return values.add(call, "softmax", x, dtype=call.dtype)


def _reduction(kind: str) -> Translation:
    def translation(call: Call, values: Values) -> Any:
        x, axes = call.tensor("self"), call.take("dim")
        call.take("keepdim"), call.take("dtype")
        call.done()
        rank = len(values.shape(x))
        axes = [axes] if isinstance(axes, int) else list(axes) if axes else list(range(rank))
        wanted = sorted(axis % rank for axis in axes)
        if wanted == [rank - 1]:
            kept = values.part(call, "kept", kind, x, dtype=call.dtype)
        elif kind == "sum" and rank > 1 and wanted == list(range(rank - 1)):
            kept = values.part(call, "kept", "column_sum", x, dtype=call.dtype)
        else:
            raise Unknown
        return values.add(call, "reshape", kept, shape=call.shape) if list(values.shape(kept)) != call.shape else kept

    return translation


def _attention(call: Call, values: Values) -> Any:
    q, k, v = call.tensor("query"), call.tensor("key"), call.tensor("value")
    mask, causal, scale = call.take("attn_mask"), bool(call.take("is_causal")), call.take("scale")
    dropout = call.take("dropout_p", 0.0)
    call.take("enable_gqa")  # the numbers of heads say it
    call.done()
    queries, keys, d = values.shape(q)[-2], values.shape(k)[-2], values.shape(q)[-1]
    if dropout or (causal and queries != keys):
        raise Unknown  # torch's first query sees one key, the kind's last query sees all
    attributes: dict[str, Any] = {"causal": causal, "dtype": call.dtype}
    if scale is not None and not math.isclose(scale, 1 / math.sqrt(d), rel_tol=1e-6):
        attributes["scale"] = float(scale)
    return values.add(call, "attention", q, k, v, *([mask] if isinstance(mask, str) else []), **attributes)


def _transpose(call: Call, values: Values) -> Any:
    x = call.tensors[0]
    rank = len(values.shape(x))
    axes = list(range(rank))
    a, b = call.take("dim0", call.take("axis0")), call.take("dim1", call.take("axis1"))
    axes[a], axes[b] = axes[b], axes[a]
    return values.add(call, "permute", x, axes=axes)


def _reversed(call: Call, values: Values) -> Any:
    x = call.tensors[0]
    rank = len(values.shape(x))
    axes = [*range(rank - 2), rank - 1, rank - 2] if call.word == "mT" else list(reversed(range(rank)))
    return values.add(call, "permute", x, axes=axes)


def _permute(call: Call, values: Values) -> Any:
    x, axes = call.tensor("self"), call.take("dims")
    return values.add(call, "permute", x, axes=[axis % len(axes) for axis in axes])


def _topk(call: Call, values: Values) -> Any:
    x, k, axis, largest = call.tensor("self"), int(call.take("k")), int(call.take("dim", -1)), call.take("largest", True)
    call.take("sorted")
    call.done()
    if axis not in (-1, len(values.shape(x)) - 1) or not largest:
        raise Unknown
    (_, dtype), (_, indices) = call.results
    own = {"dtype": dtype, "indices": indices}
    places, scores = values.add(call, "top_k", x, k=k, scores="none", renormalize=False, **own)
    return scores, places


def _index(call: Call, values: Values) -> Any:
    table, indices = call.tensor("self"), call.take("indices")
    if len(indices) != 1 or not isinstance(indices[0], str) or values.dtype(indices[0]) == "bool":
        raise Unknown
    return values.add(call, "gather", table, indices[0])


def _embedding(call: Call, values: Values) -> Any:
    return values.add(call, "gather", call.tensor("weight"), call.tensor("indices"))


def _index_select(call: Call, values: Values) -> Any:
    table, axis, index = call.tensor("self"), call.take("dim"), call.tensor("index")
    if axis:
        raise Unknown
    return values.add(call, "gather", table, index)


TRANSLATIONS: dict[str, Translation] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(CASTS, _cast),
    **dict.fromkeys(SAME, _same),
    **dict.fromkeys(COPIES, _copy),
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(("zero", "fill"), _filled),
    "copy": _copy_into,
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expand),
    **dict.fromkeys(("slice", "narrow"), _slice),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split"), _parts),
    **dict.fromkeys(("mm", "bmm", "matmul"), _matmul),
    **dict.fromkeys(("cat", "concat", "concatenate"), _concat),
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), _transpose),
    **dict.fromkeys(("t", "numpy_T", "mT"), _reversed),
    **{name: _reduction(kind) for name, kind in (("sum", "sum"), ("mean", "mean"), ("amax", "max"))},
    "softmax": _softmax,
    "gelu": _gelu,
    "dropout": _dropout,
    "where": _where,
    "rsub": _reversed_difference,
    "pow": _pow,
    "select": _select,
    "unbind": _unbind,
    "stack": _stack,
    "linear": _linear,
    "addmm": _addmm,
    "scaled_dot_product_attention": _attention,
    "permute": _permute,
    "topk": _topk,
    "index": _index,
    "index_select": _index_select,
    "embedding": _embedding,
}
"""Name of an operation without its overload -> its translation."""
