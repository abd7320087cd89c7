"""The grid of ``ptxkit bench shapes``: cases that follow from rules, so that no kernel is tuned for a list of sizes.

A rule drafts sizes: from the dimensions of published models and numbers of tokens, at random (log-uniform, from a seed), or
awkward ones: primes, one more and one less than a power of two, rows that no vector divides. A draft whose constraints refuse
it is kept with the reason. Sizes are bounded (:data:`MOST_FLOPS`, :data:`MOST_BYTES`, :data:`MOST_ARRAY_BYTES`), because the
reference of every case is computed on the host: while a draft is too large, its first size (tokens, rows, batch) is halved.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ptxkit.bench.shapes.models import DIMENSIONS, Model
from ptxkit.errors import UsageError
from ptxkit.workload import registry
from ptxkit.workload.workload import Workload, suggestion

MOST_FLOPS = 1 << 38  # float32 references of products of this size take less than a second on 16 cores
MOST_BYTES = 1 << 29  # minimum traffic of a case; its float64 reference takes a few seconds
MOST_ARRAY_BYTES = 1 << 31  # inputs, outputs and temporaries, such as the scores of unfused attention
RANDOM_COUNT = (
    14  # random cases of each family of kernels that move arrays, and a third of it for each type of products
)
ROWS = (1, 1_000_000)  # smallest and largest random number of rows
COLUMNS = (64, 150_000)  # and of columns
ELEMENTS = (1_000, 1 << 26)  # and of elements of element-wise kernels
SIDES = (16, 16_384)  # and of rows, columns and depth of products
WIDTHS = (256, 16_384)  # and of hidden states and intermediate results of layers
TOKENS = (1, 16, 64, 300, 2048, 8192)  # decode, small batches, and prefill
POWERS = (7, 10, 12, 14)  # exponents of the powers of two beside which awkward sizes lie
VECTOR = 16  # random sizes of products are multiples of it where the kernel requires aligned rows

PRODUCTS: Mapping[str, tuple[tuple[str, Mapping[str, str]], ...]] = {
    "f32": (("micro_tiling_matmul", {}),),
    "tf32": (
        ("matmul_fused", {"dtype": "tf32"}),
        ("matmul_tcgen05", {"dtype": "tf32"}),
        ("cutlass_gemm", {"dtype": "tf32"}),
    ),
    "bf16": (
        ("matmul_wgmma", {"dtype": "bf16"}),
        ("matmul_tcgen05", {"dtype": "bf16"}),
        ("matmul_mma", {"dtype": "bf16"}),
    ),
    "f16": (("matmul_wgmma", {"dtype": "f16"}), ("matmul_tcgen05", {"dtype": "f16"}), ("matmul_mma", {"dtype": "f16"})),
    "e4m3": (("matmul_fused", {"dtype": "e4m3"}), ("matmul_tcgen05", {"dtype": "e4m3"})),
    "s8": (("matmul_fused", {"dtype": "s8"}),),
}
"""Type of the operands -> the kernels that multiply them, and their options. The first one that the device runs is measured."""

ANY_SIZE = ("f32", "bf16", "f16")
"""Types whose products take rows of any length."""

FAMILIES = (
    "rows",
    "elementwise",
    "gradients",
    *(f"product_{kind}" for kind in PRODUCTS),
    "attention",
    "sparse",
    "layers",
)
"""The families, in the order of reports."""

ROW_KERNELS = ("rmsnorm", "layernorm", "softmax", "scale_mask_softmax", "layernorm_quantize", "fused_l2norm")
FLAT_KERNELS = ("add_gelu", "quantize_int8", "add_activation", "add_mul_exp", "saxpy")  # take a number of elements
MATRIX_KERNELS = ("swiglu", "bias_dropout_residual")  # element-wise, take rows and columns
NORM_GRADIENTS = ("rmsnorm_backward", "layernorm_backward")
FLAT_GRADIENTS = ("swiglu_backward", "add_activation_backward")  # element-wise
GRADIENTS = (*NORM_GRADIENTS, "softmax_backward", *FLAT_GRADIENTS)
LAYERS = ("swiglu_ffn", "ffn_sublayer", "linear_layernorm_gelu", "moe_int8", "moe_routed")
DTYPES = ("bf16", "f32", "f16")
DECODING = ((16, 1, 4096), (1, 1, 16384), (128, 1, 500), (8, 4, 2000), (1, 64, 8192))
"""Sequences, queries and keys of attention with few queries: decoding, also of a long context and of many sequences, a few
proposed tokens (speculative decoding), and a part of a prompt after a long one (chunked prefill)."""


@dataclass(frozen=True)
class Draft:
    """A case before its constraints are checked.

    Attributes:
        family: one of :data:`FAMILIES`. origin: the rule: a model, ``"random"``, ``"awkward"``.
        kernel: name. fields: its sizes and options.
    """

    family: str
    origin: str
    kernel: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Shape:
    """A case of the grid.

    Attributes:
        family, origin: see :class:`Draft`. workload: the kernel with its sizes and options.
    """

    family: str
    origin: str
    workload: Workload


@dataclass(frozen=True)
class Refused:
    """A draft that the constraints of the kernel or of all its variants refuse.

    Attributes:
        draft: the sizes. reason: of the kernel, or of its last variant.
    """

    draft: Draft
    reason: str


@dataclass(frozen=True)
class Grid:
    """All cases.

    Attributes:
        shapes: no two have the same kernel, sizes and options. refused: what no kernel computes, with the reason.
    """

    shapes: tuple[Shape, ...]
    refused: tuple[Refused, ...]

    def of_families(self, names: Collection[str]) -> Grid:
        """The cases of these families alone; all where none are named.

        Raises:
            UsageError: there is no such family.
        """
        for name in names:
            if name not in FAMILIES:
                raise UsageError(f"there is no family {name!r}; {suggestion(name, FAMILIES)}")
        wanted = names or FAMILIES
        shapes = tuple(s for s in self.shapes if s.family in wanted)
        return Grid(shapes, tuple(r for r in self.refused if r.draft.family in wanted))

    def of_shapes(self, shapes: Sequence[Shape]) -> Grid:
        """These cases, without refused ones."""
        return Grid(tuple(shapes), ())

    def sample(self, count: int, seed: int = 0) -> list[Shape]:
        """Cases drawn at random, as many of each family as of the others as far as it has them, in the order of the grid.

        Args:
            count: how many; all if there are no more. seed: the same one draws the same cases.
        """
        generator = random.Random(f"sample {seed}")
        drawn = [[s for s in self.shapes if s.family == family] for family in FAMILIES]
        for of_family in drawn:
            generator.shuffle(of_family)
        rounds = itertools.chain.from_iterable(itertools.zip_longest(*drawn))
        chosen = set(itertools.islice((s for s in rounds if s is not None), count))
        return [s for s in self.shapes if s in chosen]


@lru_cache(maxsize=4)
def grid(seed: int = 0) -> Grid:
    """The grid; the seed determines its random sizes, and the other cases are the same for all seeds."""
    shapes: dict[Workload, Shape] = {}
    refused: dict[str, Refused] = {}
    for draft in drafts(seed):
        found = bounded(draft)
        if isinstance(found, Refused):
            refused.setdefault(repr((found.draft.kernel, found.draft.fields)), found)
        elif found is not None:
            shapes.setdefault(found.workload, found)
    ordered = sorted(shapes.values(), key=lambda s: FAMILIES.index(s.family))
    return Grid(tuple(ordered), tuple(refused.values()))


def family_of(kernel: str, options: Mapping[str, Any]) -> str:
    """The family of a kernel with these options; ``"other"`` for kernels that the grid does not have."""
    for kind, kernels in PRODUCTS.items():
        if any(kernel == name and all(options.get(k) == v for k, v in given.items()) for name, given in kernels):
            return f"product_{kind}"
    by_kernel: Mapping[str, Sequence[str]] = {
        "rows": ROW_KERNELS,
        "elementwise": (*FLAT_KERNELS, *MATRIX_KERNELS),
        "gradients": GRADIENTS,
        "attention": ("attention", "attention_backward", "attention_e4m3"),
        "sparse": ("matmul_sparse", "sparse_compress", "sparse_swiglu_ffn"),
        "layers": LAYERS,
    }
    return next((family for family, names in by_kernel.items() if kernel in names), "other")


def bounded(draft: Draft) -> Shape | Refused | None:
    """The case of a draft, made smaller until it is within the bounds; None where only its first size could be, and is 1."""
    kernel = registry.get(draft.kernel)
    fields, first = dict(draft.fields), kernel.size_names()[0]
    while True:
        try:
            workload = kernel(**fields)
        except UsageError as error:
            reason = str(error).partition(": ")[2]
            return Refused(Draft(draft.family, draft.origin, draft.kernel, fields), reason)
        if is_bounded(workload):
            refusal: str | None = None
            for variant in kernel.variants().values():  # a search for a permitted tile takes long for some variants
                if (refusal := variant.refusal(workload)) is None:
                    return Shape(draft.family, draft.origin, workload)
            return Refused(Draft(draft.family, draft.origin, draft.kernel, fields), str(refusal))
        if fields[first] == 1:
            return None
        fields[first] //= 2


def is_bounded(workload: Workload) -> bool:
    """Whether a case is small enough for its reference to be computed within seconds."""
    work = workload.work()
    return work.flops <= MOST_FLOPS and work.bytes <= MOST_BYTES and workload.bytes_needed() <= MOST_ARRAY_BYTES


def drafts(seed: int) -> Iterator[Draft]:
    """All drafts of all families, from the seed of the random ones."""
    for family, rule in (
        ("rows", _rows),
        ("elementwise", _elementwise),
        ("gradients", _gradients),
        ("attention", _attention),
        ("sparse", _sparse),
        ("layers", _layers),
    ):
        for origin, kernel, fields in rule(random.Random(f"{family} {seed}")):
            yield Draft(family, origin, kernel, _with_known(kernel, fields))
    for kind, ((kernel, options), *_) in PRODUCTS.items():
        for origin, (m, n, k) in _products(random.Random(f"{kind} {seed}"), aligned=kind not in ANY_SIZE):
            yield Draft(f"product_{kind}", origin, kernel, {"m": m, "n": n, "k": k, **options})


def alternatives(shape: Shape) -> Iterator[Workload]:
    """The same product by the other kernels of its family, for devices that cannot run the first one."""
    if not shape.family.startswith("product_"):
        return
    sizes = {name: shape.workload.sizes[name] for name in ("m", "n", "k")}
    for kernel, options in PRODUCTS[shape.family.removeprefix("product_")][1:]:
        with suppress(UsageError):  # sizes that it does not take
            yield registry.get(kernel)(**sizes, **options)


def _with_known(kernel: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the kernel has: kernels without a dtype compute f32."""
    known = registry.get(kernel).fields()
    return {name: value for name, value in fields.items() if name in known or name != "dtype"}


Rule = Iterator[tuple[str, str, dict[str, Any]]]


def _rows(generator: random.Random) -> Rule:
    """Norms of hidden states, softmax over the vocabulary, and random and awkward rows."""
    dtypes, kernels = itertools.cycle(DTYPES), itertools.cycle(ROW_KERNELS)
    for name, model in DIMENSIONS.items():
        for tokens in TOKENS[::2]:
            plain = {"activation": "none"} if model.norm == "layernorm" else {}
            yield name, model.norm, {"rows": tokens, "cols": model.hidden, "dtype": next(dtypes), **plain}
        yield name, "softmax", {"rows": 2 * TOKENS[1], "cols": model.vocabulary, "dtype": next(dtypes)}
    for rows, cols in _matrices(generator, RANDOM_COUNT):
        yield "random", next(kernels), {"rows": rows, "cols": cols, "dtype": next(dtypes)}
    for cols in awkward():
        yield "awkward", next(kernels), {"rows": max(1, (1 << 22) // cols), "cols": cols, "dtype": next(dtypes)}


def _elementwise(generator: random.Random) -> Rule:
    """Activations of feed-forward networks, residuals, and random and awkward numbers of elements."""
    dtypes, flat = itertools.cycle(DTYPES), itertools.cycle(FLAT_KERNELS)
    tokens = itertools.cycle(TOKENS)
    for name, model in DIMENSIONS.items():
        yield name, "bias_dropout_residual", {"rows": next(tokens), "cols": model.hidden, "dtype": next(dtypes)}
        if model.gated:
            yield name, "swiglu", {"rows": next(tokens), "cols": model.intermediate, "dtype": next(dtypes)}
        else:
            yield name, "add_gelu", {"n": next(tokens) * model.intermediate, "dtype": next(dtypes)}
    for n in (log_uniform(generator, *ELEMENTS) for _ in range(RANDOM_COUNT)):
        yield "random", next(flat), {"n": n, "dtype": next(dtypes)}
    for n in awkward():
        yield "awkward", next(flat), {"n": n * n, "dtype": next(dtypes)}


def _gradients(generator: random.Random) -> Rule:
    """Gradients of the norms, activations and attention scores of models, and of random and awkward rows."""
    dtypes, norms, tokens = itertools.cycle(DTYPES), itertools.cycle(NORM_GRADIENTS), itertools.cycle(TOKENS[2:])
    for name, model in DIMENSIONS.items():
        for count in TOKENS[2::2]:
            yield name, f"{model.norm}_backward", {"rows": count, "cols": model.hidden, "dtype": next(dtypes)}
        if model.gated:
            yield name, "swiglu_backward", {"rows": next(tokens), "cols": model.intermediate, "dtype": next(dtypes)}
        else:
            yield name, "add_activation_backward", {"n": next(tokens) * model.intermediate, "dtype": next(dtypes)}
        yield (
            name,
            "softmax_backward",
            {"rows": model.heads * next(tokens), "cols": next(tokens), "dtype": next(dtypes)},
        )
    of_random = itertools.cycle((*NORM_GRADIENTS, "softmax_backward", "swiglu_backward"))
    for rows, cols in _matrices(generator, 2 * RANDOM_COUNT):
        yield "random", next(of_random), {"rows": rows, "cols": cols, "dtype": next(dtypes)}
    for cols in awkward():
        rows = max(1, (1 << 21) // cols)
        yield "awkward", next(norms), {"rows": rows, "cols": cols, "dtype": next(dtypes)}
        yield "awkward", "softmax_backward", {"rows": rows, "cols": cols, "dtype": next(dtypes)}
        yield "awkward", "add_activation_backward", {"n": cols * cols, "dtype": next(dtypes)}
        next(dtypes)  # so that each kernel gets all types


def _products(generator: random.Random, *, aligned: bool) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """(m, n, k) of the linear layers of models, of random products, and of products beside the multiples of tiles."""
    tokens = itertools.cycle(TOKENS)
    for index, (name, model) in enumerate(DIMENSIONS.items()):
        for n, k in layers(model)[index % 2 :: 2]:
            yield name, (next(tokens), n, k)
    multiple = VECTOR if aligned else 1
    for _ in range(RANDOM_COUNT // 3):
        m, n, k = (log_uniform(generator, *SIDES) for _ in range(3))
        yield "random", (m, -(-n // multiple) * multiple, -(-k // multiple) * multiple)
    for side in (3000, 1 << 10, 1 << 12):
        yield "awkward", (side, side + 8, side)
        yield "awkward", (side + 1, side, side)
    yield "awkward", (256, 256, 1 << 16)  # a long k with a small result
    for side in awkward()[2::3]:
        yield "awkward", (side, side, side)


def layers(model: Model) -> list[tuple[int, int]]:
    """(outputs, inputs) of the linear layers of a model: queries with keys and values, output, up, down, vocabulary."""
    of_heads = model.heads * model.d
    return [
        (of_heads + 2 * model.kv_heads * model.d, model.hidden),
        (model.hidden, of_heads),
        (model.intermediate, model.hidden),
        (model.hidden, model.intermediate),
        (model.vocabulary, model.hidden),
    ]


def _attention(_: random.Random) -> Rule:
    """Prefill and decoding of models, gradients, and lengths beside the multiples of tiles."""
    dtypes, masks = itertools.cycle(("bf16", "f16")), itertools.cycle((False, True, True))
    for name, model in DIMENSIONS.items():
        heads = {"heads": model.heads, "kv_heads": model.kv_heads % model.heads, "d": model.d}
        for batch, length in ((1, 300), (4, 2048)):
            sizes = {"batch": batch, "q": length, "k": length, **heads}
            yield name, "attention", {**sizes, "causal": model.causal, "dtype": next(dtypes)}
        for batch, queries, keys in DECODING if model.causal else ():
            sizes = {"batch": batch, "q": queries, "k": keys, **heads, "causal": queries > 1}
            yield name, "attention", {**sizes, "dtype": next(dtypes)}
        training = {"batch": 2, "q": 1024, "k": 1024, **heads, "causal": model.causal}
        yield name, "attention_backward", {**training, "dtype": next(dtypes)}
        yield name, "attention_e4m3", training
    for length in awkward():
        if length <= TOKENS[-1]:
            sizes = {"batch": 1, "heads": 16, "q": length, "k": length, "d": 128}
            yield "awkward", "attention", {**sizes, "causal": next(masks), "dtype": next(dtypes)}


def _sparse(generator: random.Random) -> Rule:
    """Products with 2:4 sparse weights of models, their compression, and gated networks."""
    dtypes, wide, tokens = (itertools.cycle(of) for of in (("bf16", "f16", "e4m3"), ("bf16", "f16"), TOKENS))
    for index, (name, model) in enumerate(DIMENSIONS.items()):
        of_weights = layers(model)[:4]
        for n, k in of_weights[index % 2 :: 2]:
            yield name, "matmul_sparse", {"m": next(tokens), "n": n, "k": k, "dtype": next(dtypes)}
        rows, k = of_weights[index % len(of_weights)]
        yield name, "sparse_compress", {"rows": rows, "k": k, "dtype": next(dtypes)}
        if model.gated:
            sizes = {"tokens": next(tokens), "hidden": model.hidden, "ffn": model.intermediate}
            yield name, "sparse_swiglu_ffn", {**sizes, "dtype": next(wide)}
    for _ in range(RANDOM_COUNT // 3):
        m, n, k = (log_uniform(generator, *SIDES) for _ in range(3))
        sizes = {"m": m, "n": -(-n // VECTOR) * VECTOR, "k": -(-k // (4 * VECTOR)) * 4 * VECTOR}
        yield "random", "matmul_sparse", {**sizes, "dtype": next(dtypes)}


def _layers(generator: random.Random) -> Rule:
    """Feed-forward networks and experts of models, and layers of random widths with random and awkward numbers of tokens."""
    wide, narrow, tokens = itertools.cycle(("bf16", "f16")), itertools.cycle(("s8", "e4m3")), itertools.cycle(TOKENS)
    of_norms = itertools.cycle(("ffn_sublayer", "linear_layernorm_gelu"))
    for name, model in DIMENSIONS.items():
        if model.gated and not model.experts:
            sizes = {"tokens": next(tokens), "hidden": model.hidden, "ffn": model.intermediate}
            yield name, "swiglu_ffn", {**sizes, "dtype": next(wide)}
        if model.experts:
            experts = {
                "hidden": model.hidden,
                "ffn": model.intermediate,
                "experts": model.experts,
                "top_k": model.active,
            }
            yield (
                name,
                "moe_int8",
                {"m": next(tokens), "n": model.intermediate, "k": model.hidden, "dtype": next(narrow)},
            )
            yield name, "moe_routed", {"tokens": next(tokens), **experts, "dtype": next(narrow)}
        if model.norm == "layernorm":
            for features in (model.hidden, model.intermediate):
                sizes = {"rows": next(tokens), "hidden": model.hidden, "features": features}
                yield name, next(of_norms), {**sizes, "dtype": next(wide)}
    drafts: list[tuple[str, int, int, int]] = []
    for _ in range(RANDOM_COUNT // 3):
        count, hidden, width = (log_uniform(generator, *of) for of in ((TOKENS[0], TOKENS[-1]), WIDTHS, WIDTHS))
        drafts.append(("random", count, -(-hidden // VECTOR) * VECTOR, -(-width // VECTOR) * VECTOR))
    beside = itertools.cycle([(1 << e) + VECTOR * sign for e in POWERS[1:] for sign in (-1, 1)])  # a power of two
    drafts += [("awkward", count, next(beside), next(beside)) for count in awkward() if count < TOKENS[-1]]
    for index, (origin, count, hidden, width) in enumerate(drafts):
        experts = {"experts": 1 << 2 + index % 5, "top_k": 1 + index % 4}
        yield origin, "swiglu_ffn", {"tokens": count, "hidden": hidden, "ffn": width, "dtype": next(wide)}
        yield origin, next(of_norms), {"rows": count, "hidden": hidden, "features": width, "dtype": next(wide)}
        yield origin, "moe_int8", {"m": count, "n": width, "k": hidden, "dtype": next(narrow)}
        yield origin, "moe_routed", {"tokens": count, "hidden": hidden, "ffn": width, **experts, "dtype": next(narrow)}
        next(wide), next(narrow)  # so that each kernel gets all types


def _matrices(generator: random.Random, count: int) -> Iterable[tuple[int, int]]:
    """Random (rows, columns), each log-uniform; the rows are bounded by the number of elements."""
    for _ in range(count):
        cols = log_uniform(generator, *COLUMNS)
        yield log_uniform(generator, ROWS[0], min(ROWS[1], ELEMENTS[1] // cols)), cols


def log_uniform(generator: random.Random, low: int, high: int) -> int:
    """A whole number whose logarithm is uniform between those of ``low`` and ``high``, both included."""
    return min(high, max(low, round(math.exp(generator.uniform(math.log(low), math.log(high))))))


def awkward() -> Sequence[int]:
    """For each of the :data:`POWERS` of two the largest prime below it, and one less and one more than it; ascending."""
    found = {size for e in POWERS for size in (prime_below(1 << e), (1 << e) - 1, (1 << e) + 1)}
    return sorted(found)


def prime_below(limit: int) -> int:
    """The largest prime below ``limit``, which is at least 3."""
    return next(n for n in range(limit - 1, 1, -1) if all(n % d for d in range(2, math.isqrt(n) + 1)))
