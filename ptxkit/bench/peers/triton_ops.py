"""The Triton implementation of each kernel: its arguments and the configurations to tune over. Does not import Triton."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ptxkit.kernels.moe.moe_routed import requantized_tolerance
from ptxkit.workload.launch import Tolerance, cdiv
from ptxkit.workload.registry import is_bundled
from ptxkit.workload.workload import Workload

Config = Mapping[str, int]
"""num_warps, and the constants of the kernel that are chosen by measurement."""

LONGEST_BLOCK = (
    32768  # maximum number of columns of a row in the registers of a program: 32 f32 in each of 1024 threads
)
LANES = 32


@dataclass(frozen=True)
class Program:
    """A Triton kernel and its launch configuration.

    Attributes:
        kernel: Triton's. arguments: its first ones; a string names an input, an output (``out:``) or scratch (``tmp:``).
        grid: configuration -> programs.
        configs: configurations to try, the most promising first.
        constants: constants of the kernel in addition to those of a configuration.
        tolerance: tolerance that replaces that of the workload, if the kernel rounds differently.
        scratch: name -> shape and dtype of further arrays that it needs.
        then: the next program to launch with the same configuration, which has the constants of both.
    """

    kernel: Any
    arguments: tuple[object, ...]
    grid: Callable[[Config], tuple[int, ...]]
    configs: tuple[Config, ...]
    constants: Mapping[str, Any]
    tolerance: Tolerance | Mapping[str, Tolerance] | None = None
    scratch: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    then: Program | None = None

    @property
    def launches(self) -> tuple[Program, ...]:
        """The program itself and those that follow."""
        return (self, *(self.then.launches if self.then else ()))


Define = Callable[[Any], Program]
OPS: dict[str, tuple[Define, Callable[[Any], bool]]] = {}
"""Kernel name -> workload -> program, and for which workloads; calling the first imports Triton."""


def op(kernel: str, when: Callable[[Any], bool] = lambda w: True) -> Callable[[Define], Define]:
    """Register a definition for the sizes and options that ``when`` accepts."""

    def register(define: Define) -> Define:
        if kernel in OPS:
            raise ValueError(f"two definitions of {kernel} in Triton")
        OPS[kernel] = define, when
        return define

    return register


def find(workload: Workload) -> Define | None:
    """The definition for a workload, or None."""
    bundled = is_bundled(workload)
    if not bundled or workload.name not in OPS:
        return None
    define, when = OPS[workload.name]
    return define if when(workload) else None


def _module(name: str) -> Any:
    return importlib.import_module(f"ptxkit.bench.peers.{name}")


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n``."""
    return 1 << max(0, n - 1).bit_length()


# -- element by element ----------------------------------------------------------------------------------------------------

FLAT: tuple[Config, ...] = tuple(
    {"BLOCK": block, "num_warps": warps}
    for block, warps in ((1024, 4), (512, 4), (2048, 4), (2048, 8), (4096, 8), (256, 2))
)


def flat(n: int, kernel: Any, arguments: tuple[object, ...], **constants: Any) -> Program:
    """One program per BLOCK of ``n`` elements."""
    return Program(kernel, arguments, lambda c: (cdiv(n, c["BLOCK"]),), FLAT, constants)


@op("saxpy")
def saxpy(w: Any) -> Program:
    return flat(w.n, _module("triton_kernels").saxpy, ("a", "x", "y", "out:y", w.n))


@op("add_mul_exp")
def add_mul_exp(w: Any) -> Program:
    k = _module("triton_kernels")
    return flat(w.n, k.binary, ("x", "y", "out:out", w.n), function=k.add_mul_exp)


@op("add_gelu")
def add_gelu(w: Any) -> Program:
    k = _module("triton_kernels")
    return flat(w.n, k.binary, ("x", "y", "out:out", w.n), function=k.add_gelu)


@op("add_activation")
def add_activation(w: Any) -> Program:
    k = _module("triton_kernels")
    function = {"gelu": k.add_gelu, "silu": k.add_silu, "relu": k.add_relu}[w.activation]
    return flat(w.n, k.binary, ("x", "residual", "out:out", w.n), function=function)


@op("swiglu")
def swiglu(w: Any) -> Program:
    k = _module("triton_kernels")
    n = w.rows * w.cols
    return flat(n, k.binary, ("gate", "up", "out:out", n), function=k.silu_mul)


def gate(w: Any) -> Program:
    """gelu(x) * gate."""
    k = _module("triton_kernels")
    return flat(w.n, k.binary, ("x", "gate", "out:y", w.n), function=k.gelu_mul)


op("two_stage_pipeline")(gate)
op("warp_specialized")(gate)


@op("quantize_int8")
def quantize_int8(w: Any) -> Program:
    """Multiplies by the inverse, as torch does, so that values near a tie may round to the other integer."""
    program = flat(w.n, _module("triton_kernels").quantize, ("x", "out:q", w.n, "inverse", "zero_point"))
    return replace(program, tolerance=Tolerance(ulp=1))


def chain(w: Any) -> Program:
    return flat(w.n, _module("triton_kernels").chain, ("x", "out:out", w.n, "a", "b", w.fmas))


op("memory_bound")(chain)
op("compute_bound")(chain)


@op("bias_dropout_residual")
def bias_dropout_residual(w: Any) -> Program:
    """Uses the same random words per element as the kernel, so that the masks are equal."""
    kernel = _module("triton_kernels").bias_dropout_residual
    arguments = ("x", "bias", "residual", "out:out", w.rows, w.cols, "threshold", "scale", "seed")
    configs = tuple(
        {"ROWS": rows, "BLOCK": min(block, max(4, power_of_two(w.cols))), "num_warps": warps}
        for rows, block, warps in ((1, 1024, 4), (1, 2048, 4), (2, 1024, 4), (4, 1024, 8), (4, 256, 4), (8, 64, 4))
    )
    return Program(
        kernel,
        arguments,
        lambda c: (cdiv(w.cols, c["BLOCK"]) * cdiv(w.rows, c["ROWS"]),),
        _distinct(iter(configs)),
        {"QUADS": w.cols % 4 == 0},
    )


# -- row by row ------------------------------------------------------------------------------------------------------------


def whole_rows(w: Any) -> tuple[Config, ...]:
    """Configurations with rows in registers: 4 to 64 elements per thread, several rows only if they are short."""
    block = power_of_two(w.cols)

    def all_of_them() -> Iterator[Config]:
        for held in (16, 8, 32, 4, 64):
            for rows in (1, 4, 16, 64):
                warps = block * rows // (LANES * held)
                fits = 1 <= warps <= 32 and (rows == 1 or rows * block <= 4096) and rows <= 2 * w.rows
                if fits:
                    yield {"ROWS": rows, "BLOCK": block, "num_warps": warps}

    found = _distinct(all_of_them())[:8]
    return found or ({"ROWS": 1, "BLOCK": max(4, block), "num_warps": 1},)


def parts_of_rows(w: Any) -> tuple[Config, ...]:
    """Configurations that process a row in chunks."""
    return tuple(
        {"BLOCK": block, "num_warps": warps} for block, warps in ((4096, 16), (2048, 8), (8192, 32), (8192, 16))
    )


def by_row(w: Any, name: str, arguments: tuple[object, ...], **constants: Any) -> Program:
    """The kernel with rows in registers or, for longer rows, the one that processes them in chunks."""
    if power_of_two(w.cols) > LONGEST_BLOCK:
        kernel = getattr(_module("triton_long_rows"), name)
        return Program(kernel, arguments, lambda c: (w.rows,), parts_of_rows(w), constants)
    kernel = getattr(_module("triton_rows"), name)
    return Program(kernel, arguments, lambda c: (cdiv(w.rows, c["ROWS"]),), whole_rows(w), constants)


@op("fused_l2norm")
def fused_l2norm(w: Any) -> Program:
    program = by_row(w, "l2norm", ("x", "out:y", w.rows, w.cols, "eps"))
    return replace(program, tolerance=Tolerance(relative=2e-6))


@op("layernorm")
def layernorm(w: Any) -> Program:
    k = _module("triton_kernels")
    activation = {"none": k.identity, "relu": k.relu, "gelu": k.gelu}[w.activation]
    kept = ("out:mean", "out:rstd") if w.training else (None, None)
    arguments = ("x", "gamma", "beta", "out:y", *kept, w.rows, w.cols, "eps")
    return by_row(w, "layernorm", arguments, activation=activation, TRAINING=w.training)


@op("rmsnorm")
def rmsnorm(w: Any) -> Program:
    rstd = "out:rstd" if w.training else None
    return by_row(w, "rmsnorm", ("x", "gamma", "out:y", rstd, w.rows, w.cols, "eps"), TRAINING=w.training)


@op("softmax")
def softmax(w: Any) -> Program:
    """Uses the same random words per element as the kernel, so that the masks are equal."""
    arguments = ("x", "out:y", w.rows, w.cols, "threshold", "scale", "seed")
    return by_row(w, "softmax", arguments, DROPOUT=w.p > 0, QUADS=w.cols % 4 == 0)


@op("scale_mask_softmax")
def scale_mask_softmax(w: Any) -> Program:
    return by_row(w, "scale_mask_softmax", ("s", "mask", "out:y", w.rows, w.cols, "scale"))


@op("layernorm_quantize")
def layernorm_quantize(w: Any) -> Program:
    return by_row(w, "layernorm_quantize", ("x", "gamma", "beta", "out:q", "out:scales", w.rows, w.cols, "eps"))


# -- gradients -------------------------------------------------------------------------------------------------------------

PROGRAMS_PER_SM = (1, 2, 4)  # each program has its own partial sums of dgamma and dbeta


def in_one_block(w: Any) -> bool:
    """Whether two rows fit in the registers of a program."""
    return power_of_two(w.cols) <= LONGEST_BLOCK // 2


@op("layernorm_backward", when=in_one_block)
def layernorm_backward(w: Any) -> Program:
    return gradients(w, "mean", ("gammas", "betas"), ("dgamma", "dbeta"))


@op("rmsnorm_backward", when=in_one_block)
def rmsnorm_backward(w: Any) -> Program:
    return gradients(w, None, ("gammas",), ("dgamma",))


@op("softmax_backward", when=in_one_block)
def softmax_backward(w: Any) -> Program:
    return by_row(w, "softmax_backward", ("y", "dy", "out:dx", w.rows, w.cols, "scale"))


@op("swiglu_backward")
def swiglu_backward(w: Any) -> Program:
    n = w.rows * w.cols
    return flat(n, _module("triton_kernels").swiglu_backward, ("dy", "gate", "up", "out:dgate", "out:dup", n))


@op("add_activation_backward")
def add_activation_backward(w: Any) -> Program:
    k = _module("triton_kernels")
    slope = {"gelu": k.gelu_slope, "silu": k.silu_slope, "relu": k.relu_slope}[w.activation]
    return flat(w.n, k.add_activation_backward, ("dy", "x", "residual", "out:dx", w.n), slope=slope)


def gradients(w: Any, mean: str | None, partial: tuple[str, ...], outputs: tuple[str, ...]) -> Program:
    """Persistent programs, and one launch that adds up their partial gradients of the columns."""
    k = _module("triton_gradients")
    block, centered = power_of_two(w.cols), mean is not None
    parts = [f"tmp:{name}" for name in partial] + [None] * (2 - len(partial))
    sums = [f"out:{name}" for name in outputs] + [None] * (2 - len(outputs))
    configs = (
        {"PROGRAMS": programs, "BLOCK": block, "num_warps": warps, "ROWS": 16, "COLS": 64}
        for held in (8, 16, 4, 32)
        for programs in (w.device.sms * per_sm for per_sm in PROGRAMS_PER_SM)
        for warps in [max(block // (LANES * held), 1)]
        if warps <= 32
    )
    finish = Program(
        k.finish, (*parts, *sums, w.cols), lambda c: (cdiv(w.cols, c["COLS"]),), (), {"CENTERED": centered}
    )
    return Program(
        k.rows,
        (
            "x",
            "dy",
            "gamma",
            None if w.activation == "none" else "beta",
            mean,
            "rstd",
            "out:dx",
            *parts,
            w.rows,
            w.cols,
        ),
        lambda c: (c["PROGRAMS"],),
        _distinct(configs),
        {"CENTERED": centered, "ACTIVATION": w.activation},
        scratch=dict.fromkeys(partial, ((w.device.sms * max(PROGRAMS_PER_SM), w.cols), "f32")),
        then=finish,
    )


# -- mixture of experts ----------------------------------------------------------------------------------------------------


def expert_tiles(tokens: float) -> Iterator[Config]:
    """Tiles of the grouped products for this number of tokens of an expert, as vLLM's tuned configurations have them."""

    def tile(m: int, n: int, k: int, warps: int, stages: int, group: int = 1) -> Config:
        return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": group, "num_warps": warps, "num_stages": stages}

    if tokens <= 24:
        yield tile(16, 64, 256, 4, 4)
        yield tile(16, 32, 256, 4, 5)
        yield tile(16, 128, 128, 4, 4)
        yield tile(16, 64, 128, 4, 5)
    elif tokens <= 96:
        yield tile(64, 128, 128, 4, 4)
        yield tile(64, 64, 128, 4, 4)
        yield tile(32, 128, 128, 4, 4)
        yield tile(64, 128, 128, 8, 4, 16)
    else:
        yield tile(128, 256, 128, 8, 3, 16)
        yield tile(128, 128, 128, 8, 4, 16)
        yield tile(128, 128, 128, 4, 3, 16)
        yield tile(64, 256, 128, 8, 4, 16)


ROUNDED_TWICE = 1.5 * 2**-9
"""Mean relative error of silu(gate) * factor, both rounded to bf16 before: the largest error of each is 2^-9, and that of the
gate is up to 1.3 times as large in its activation. With random inputs and s8, numpy's results of moe_routed have then a root
mean square error of 1.1%."""


@op("moe_routed")
def moe_routed(w: Any) -> Program:
    k = _module("triton_moe")
    configs, pairs, integer = tuple(expert_tiles(w.tokens_of_expert)), w.pairs, w.dtype == "s8"
    smallest, largest = (f(c["BLOCK_M"] for c in configs) for f in (min, max))
    most = pairs + min(w.experts, pairs) * (largest - 1)  # indices, with those that fill the blocks of experts
    experts, scan = (
        {"EXPERTS": w.experts, "PADDED": power_of_two(w.experts)},
        {"SCAN": min(1024, max(16, power_of_two(pairs)))},
    )

    def blocks(c: Config) -> int:
        return int(pairs // c["BLOCK_M"] + min(w.experts, pairs))

    def product(weighted: bool, arguments: tuple[object, ...], n: int, depth: int, then: Program) -> Program:
        order = ("tmp:sorted", "tmp:block_expert", "tmp:padded", pairs, n, depth)
        constants = {"PAIRS_PER_ROW": 1 if weighted else w.top_k, "WEIGHTED": weighted, "INTEGER": integer}
        grid = lambda c: (blocks(c) * cdiv(n, c["BLOCK_N"]),)  # noqa: E731
        return Program(k.grouped_product, (*arguments, *order), grid, configs, constants, then=then)

    add = Program(
        k.add_experts,
        ("tmp:results", "out:y", w.hidden),
        lambda c: (w.tokens, cdiv(w.hidden, 1024)),
        configs,
        {"TOP_K": w.top_k, "COLS": 1024},
    )
    down = ("tmp:q", "w2", "tmp:results", "tmp:scales", "w2_scales", "out:weight")
    activate = Program(
        k.swiglu_quantize,
        ("tmp:both", "tmp:q", "tmp:scales", w.ffn),
        lambda c: (pairs,),
        configs,
        {"INTEGER": integer, "PADDED": power_of_two(w.ffn)},
        then=product(True, down, w.hidden, w.ffn, add),
    )
    up = ("x", "w1", "tmp:both", "x_scales", "w1_scales", "out:weight")
    align = Program(
        k.align,
        ("out:expert", "tmp:counts", "tmp:sorted", "tmp:block_expert", "tmp:padded", pairs),
        lambda c: (w.experts,),
        configs,
        {**experts, **scan},
        then=product(False, up, 2 * w.ffn, w.hidden, activate),
    )
    count = Program(k.count, ("out:expert", "tmp:counts", pairs), lambda c: (w.experts,), configs, scan, then=align)
    return Program(
        k.gate,
        ("logits", "out:expert", "out:weight", w.tokens),
        lambda c: (w.tokens,),
        configs,
        {**experts, "TOP_K": w.top_k, "RENORMALIZE": w.renormalize},
        tolerance=requantized_tolerance(w, rounded=ROUNDED_TWICE),
        scratch={
            "counts": ((w.experts,), "s32"),
            "sorted": ((most + largest,), "s32"),
            "block_expert": ((pairs // smallest + w.experts,), "s32"),
            "padded": ((1,), "s32"),
            "both": ((pairs, 2 * w.ffn), "bf16"),
            "q": ((pairs, w.ffn), w.dtype),
            "scales": ((pairs,), "f32"),
            "results": ((pairs, w.hidden), "bf16"),
        },
        then=count,
    )


# -- attention -------------------------------------------------------------------------------------------------------------


@op("attention")
def attention(w: Any) -> Program:
    shapes: tuple[tuple[int, int, int, int], ...]
    shapes = ((64, 64, 4, 3), (64, 64, 8, 2), (128, 64, 8, 2), (128, 32, 8, 3), (64, 32, 4, 3))
    if w.d <= 128:
        shapes = ((128, 128, 8, 3), (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (64, 128, 4, 2))
    configs = tuple(
        {"BLOCK_Q": queries, "BLOCK_K": keys, "num_warps": warps, "num_stages": stages}
        for queries, keys, warps, stages in shapes
    )
    arrays = ("query", "key", "value", "out:o", "out:lse", "q_starts", "k_starts")
    return Program(
        _module("triton_attention").attention,
        (*arrays, w.tokens[0], w.heads, w.shared_heads, math.log2(math.e) / math.sqrt(w.d)),
        lambda c: (cdiv(w.q, c["BLOCK_Q"]), w.heads, w.batch),
        configs,
        {"CAUSAL": w.causal, "D": w.d},
    )


def _distinct(configs: Iterator[Config]) -> tuple[Config, ...]:
    found: dict[tuple[tuple[str, int], ...], Config] = {tuple(sorted(c.items())): c for c in configs}
    return tuple(found.values())
