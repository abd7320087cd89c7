"""The description of a matrix product with which libraries can compute it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ptxkit.workload.workload import Workload


Layout = Literal["tn", "nn", "nt", "tt"]
"""Layouts of a (m, k) and b (k, n) in the notation of BLAS, in which c is row-major: t is row-major, n column-major."""


class HasLayout:
    """The part of a description of c = a b whose option ``layout`` (:data:`Layout`) says how a and b lie in memory."""

    @property
    def a_layout(self) -> Literal["row", "column"]:
        """The layout of a: "row" is stored as (m, k), "column" as (k, m)."""
        return "row" if self._layout[0] == "t" else "column"

    @property
    def b_layout(self) -> Literal["row", "column"]:
        """The layout of b: "row" is stored as (k, n), "column" as (n, k)."""
        return "row" if self._layout[1] == "t" else "column"

    @property
    def _layout(self) -> Layout:
        """The option, or "tn" for a description without it."""
        found: Layout = getattr(self, "layout", "tn")
        return found

    def stored(self, m: int, n: int, k: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The shapes in which a and b are stored."""
        return (m, k) if self.a_layout == "row" else (k, m), (k, n) if self.b_layout == "row" else (n, k)


@dataclass(frozen=True)
class Gemm:
    """c (m, n) = activation(alpha a (m, k) b (k, n) + beta c + bias), row-major; a or b may be transposed in memory.

    A description may return one from a method ``gemm()``; `ptxkit bench` then compares the kernel with libraries.

    Attributes:
        m, n, k: sizes.
        a, b: names of the inputs. c: name of the output.
        a_transposed: a is stored as (k, m), which BLAS calls column-major. b_transposed: b is stored as (n, k).
        alpha, beta: factors. bias: name of the input (n) that is added to each row, or None.
        activation: gelu is the tanh formula.
        compute: ``"f32"`` for products of the unrounded inputs and sums in f32 (f64 for float64), ``"tf32"`` for float32
            inputs on tensor cores, ``"s32"`` for int8 inputs and exact sums.
        operands: element type of a and b where c has another floating-point type, such as ``"e4m3"``; else "".
        sparse: ``"b"`` if of every four neighbouring elements along k of b at most two are not zero, which libraries may use.
            It does not change the product, so that it is not compared.
    """

    m: int
    n: int
    k: int
    a: str = "a"
    b: str = "b"
    c: str = "c"
    a_transposed: bool = False
    b_transposed: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    bias: str | None = None
    activation: Literal["none", "relu", "gelu", "silu"] = "none"
    compute: Literal["f32", "tf32", "s32"] = "f32"
    operands: str = ""
    sparse: Literal["", "b"] = field(default="", compare=False)

    @property
    def plain(self) -> bool:
        """Whether it is a product without epilogue."""
        return self.beta == 0 and self.bias is None and self.activation == "none"


def gemm_of(workload: Workload) -> Gemm | None:
    """The result of a workload's method ``gemm()``, or None."""
    method = getattr(workload, "gemm", None)
    found = method() if callable(method) else None
    return found if isinstance(found, Gemm) else None
