"""The description of a matrix product with which libraries can compute it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ptxkit.workload.workload import Workload


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
