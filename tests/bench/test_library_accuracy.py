"""Results of peers: with the roundings of libraries they are less accurate, with any other error they are wrong."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxkit import Launch, Tolerance, Work, Workload, variant
from ptxkit.bench.measure.library_accuracy import half_unit, judged, widened
from ptxkit.workload import registry
from ptxkit.workload.data import Data

NARROW: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


def rounded(x: Any, t: str) -> np.ndarray:
    """float64 numbers rounded to a type once."""
    return np.asarray(x, np.float64).astype(NARROW[t]).astype(np.float64)


class Case:
    """A kernel on data, with the results of a library; ``exact`` is what ptxkit's kernels give."""

    def __init__(self, kernel: str, seed: int = 0, **sizes: Any) -> None:
        self.workload = registry.get(kernel)(**sizes)
        self.t = "bf16" if self.workload.dtype == "e4m3" else self.workload.dtype
        self.data = Data(self.workload, seed)
        self.given = {n: np.asarray(v, np.float64) for n, v in self.data.inputs.items() if np.ndim(v)}
        (self.name, *_) = self.data.expected
        self.exact = np.asarray(self.data.expected[self.name], np.float64)

    def judge(self, found: Any) -> Any:
        typed = np.asarray(found, np.float64).astype(NARROW[self.t])
        return judged({self.name: typed}, {self.name: self.data.expected[self.name]}, self.data)


def split(case: Case, parts: int) -> np.ndarray:
    """A product whose k is divided, with partial sums and their running sum in the type of c."""
    a, b = case.given["a"], case.given["b"].T
    total = np.zeros(case.exact.shape)
    for chosen in np.array_split(np.arange(a.shape[1]), parts):
        total = rounded(total + rounded(a[:, chosen] @ b[chosen], case.t), case.t)
    return total


def softmax_gradient(case: Case) -> np.ndarray:
    """As torch computes it: y dy is rounded first."""
    y, products = case.given["y"], rounded(case.given["y"] * case.given["dy"], case.t)
    return products - y * products.sum(1, keepdims=True)


def gelu_of_sum(case: Case) -> np.ndarray:
    """gelu(x + y) by the tanh formula, operation by operation."""
    x = rounded(case.given["x"] + case.given["y"], case.t)
    cubic = rounded(x * rounded(1 + rounded(0.044715 * rounded(x * x, case.t), case.t), case.t), case.t)
    return x * rounded(0.5 * rounded(1 + rounded(np.tanh(0.7978845608 * cubic), case.t), case.t), case.t)


def swiglu_gradient(case: Case) -> np.ndarray:
    """dgate = (dy up) silu'(gate) with the product and the factor rounded."""
    gate = case.given["gate"]
    s = 1 / (1 + np.exp(-gate))
    return rounded(case.given["dy"] * case.given["up"], case.t) * rounded(s * (1 + gate * (1 - s)), case.t)


def layernorm_gradient(case: Case) -> np.ndarray:
    """dx with the normalized row and dy gamma rounded, as separate operations store them."""
    x, mean, rstd = case.given["x"], case.given["mean"][:, None], case.given["rstd"][:, None]
    n, w = rounded((x - mean) * rstd, case.t), rounded(case.given["dy"] * case.given["gamma"], case.t)
    return rstd * (w - w.mean(1, keepdims=True) - n * (w * n).mean(1, keepdims=True))


def scaled_product(case: Case) -> np.ndarray:
    """A product of e4m3 that is rounded to bf16 before each of its scales."""
    product = rounded(case.given["a"] @ case.given["b"].T, "bf16")
    return rounded(product * case.given["row_scales"][:, None], "bf16") * case.given["column_scales"]


LIBRARIES = [
    ("matmul_wgmma", {"m": 64, "n": 128, "k": 1021}, lambda case: split(case, 8)),
    ("matmul_wgmma", {"m": 64, "n": 128, "k": 2048}, lambda case: split(case, 32)),
    ("softmax_backward", {"rows": 64, "cols": 4093}, softmax_gradient),
    ("softmax_backward", {"rows": 17, "cols": 3}, softmax_gradient),
    ("softmax_backward", {"rows": 3, "cols": 70_000}, softmax_gradient),
    ("add_gelu", {"n": 65536}, gelu_of_sum),
    ("swiglu_backward", {"rows": 64, "cols": 512}, swiglu_gradient),
    ("layernorm_backward", {"rows": 64, "cols": 768}, layernorm_gradient),
]


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(("kernel", "sizes", "library"), LIBRARIES)
def test_roundings_of_libraries_are_accepted(kernel, sizes, library, dtype):
    case = Case(kernel, dtype=dtype, **sizes)
    assert case.judge(case.exact).less_accurate == ""
    verdict = case.judge(library(case))
    assert verdict.verified, verdict.explanation


def test_a_product_of_e4m3_is_rounded_to_bf16_between_its_scales():
    case = Case("matmul_fused", m=64, n=128, k=512, dtype="e4m3", scale="rows_columns")
    assert case.judge(scaled_product(case)).verified
    case.given["row_scales"] = np.roll(case.given["row_scales"], 1)
    assert not case.judge(scaled_product(case)).verified


@pytest.mark.parametrize("dtype", NARROW)
def test_what_exceeds_the_tolerance_of_the_kernel_is_stated_with_figures(dtype):
    case = Case("matmul_wgmma", m=64, n=128, k=1021, dtype=dtype)
    verdict = case.judge(split(case, 8))
    assert verdict.verified and verdict.worst == ""
    pattern = r"[\d,]+ of 8,192 elements of c exceed the tolerance of ptxkit's kernels, the largest error is [\d.]+ times "
    assert re.match(pattern, verdict.less_accurate), verdict.less_accurate


def element(at: tuple[int, int], change: Any) -> Any:
    def changed(x: np.ndarray) -> np.ndarray:
        x = x.copy()
        x[at] = change(x[at])
        return x

    return changed


WRONG = {
    "an element is zero": element((5, 7), lambda x: 0.0),
    "an element has the other sign": element((5, 7), lambda x: -x),
    "an element is infinite": element((5, 7), lambda x: np.inf),
    "an element is NaN": element((5, 7), lambda x: np.nan),
    "two rows are exchanged": lambda x: x[[1, 0, *range(2, len(x))]],
    "columns are shifted": lambda x: np.roll(x, 1, axis=1),
    "the last row is missing": lambda x: np.concatenate([x[:-1], np.zeros_like(x[-1:])]),
    "a scale is missing": lambda x: x * 1.0625,
    "a scale is applied twice": lambda x: x / np.sqrt(128),
    "all elements have an offset": lambda x: x + 0.25 * np.abs(x).mean(),
    "it is of the transposed tile": lambda x: np.ascontiguousarray(x[:64, :64].T) if x.shape[1] > 64 else x.T,
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(("kernel", "sizes", "library"), [LIBRARIES[0], LIBRARIES[2]])
def test_wrong_results_are_refused(kernel, sizes, library, dtype, wrong):
    """The errors are made on results that have the roundings of a library already; the changed element is a usual one."""
    case = Case(kernel, dtype=dtype, **sizes)
    found = library(case)
    found[5, 7] = case.exact[5, 7] = np.abs(case.exact).mean()
    case.data.expected[case.name] = case.exact.copy()
    changed = found.copy()
    part = WRONG[wrong](found)
    changed[: part.shape[0], : part.shape[1]] = part
    verdict = case.judge(changed)
    assert not verdict.verified
    assert verdict.worst and verdict.explanation


COMMON = {  # errors in half units, of which single elements may have more
    "all elements have": lambda x, half, rms: x + 5 * half * rms,
    "those of column 9 have": lambda x, half, rms: x + np.where(np.arange(x.shape[1]) == 9, 9 * half * rms, 0),
    "those of row 5 have": lambda x, half, rms: x * np.where(np.arange(x.shape[0]) == 5, 1 + 13 * half, 1)[:, None],
}


@pytest.mark.parametrize("where", COMMON)
@pytest.mark.parametrize("dtype", NARROW)
def test_an_error_that_many_elements_have_in_common_is_refused(dtype, where):
    """An offset of all elements, a bias of one column and the scale of one row, within what single elements may differ by."""
    case = Case("matmul_wgmma", dtype=dtype, m=96, n=96, k=4096)
    found = split(case, 8)
    assert case.judge(found).verified
    verdict = case.judge(COMMON[where](found, half_unit([np.dtype(NARROW[dtype])]), np.sqrt(np.square(found).mean())))
    assert not verdict.verified and verdict.mismatches == 0
    assert f"the errors of c are not independent, as roundings are: {where}" in verdict.worst


def test_equal_elements_have_equal_roundings():
    """Of ones, every partial sum of a column is rounded alike: the errors are not independent, and yet those of a library."""
    case = Case("matmul_wgmma", m=64, n=128, k=1021, dtype="bf16")
    case.data.expected["c"] = np.full((64, 128), 1021.0)
    assert case.judge(np.full((64, 128), 1021.0 * (1 + 5 * 2.0**-8))).verified


@pytest.mark.parametrize("power", [-100, -20, 0, 60])
def test_the_verdict_does_not_depend_on_the_magnitude(power):
    """bf16 has the range of f32: the same results times a power of two."""
    case = Case("matmul_wgmma", m=64, n=128, k=1021, dtype="bf16")
    found, factor = split(case, 8), 2.0**power
    case.data.expected["c"] = case.exact * factor
    assert case.judge(found * factor).verified
    wrong = found.copy()
    wrong[3, 9] += 0.25 * np.abs(found).mean()
    if power >= 0:  # the kernel's own tolerance has an absolute part of 5e-3
        assert not case.judge(wrong * factor).verified


def test_subnormal_results_of_f16_may_differ_by_whole_units():
    case = Case("softmax_backward", rows=64, cols=4093, dtype="f16")
    tiny = case.exact * 2.0**-8
    case.data.expected["dx"] = tiny
    noise = np.random.default_rng(0).integers(-1, 2, tiny.shape) * 2.0**-24
    assert case.judge(tiny + noise).verified
    assert not case.judge(tiny + 12 * noise).verified


class Stated(Workload):
    """An integer output, and one that must be equal."""

    source = "none.cu"
    n: int = 256
    tolerance = {"copy": Tolerance()}

    def inputs(self, rng):
        return {"x": rng.uniform(1, 2, self.n).astype(np.float16)}

    def reference(self, x):
        return {"q": np.rint(x.astype(np.float64) * 100).astype(np.int64), "copy": x}

    def work(self):
        return Work(flops=self.n, bytes=self.n)

    @variant
    def unfused(self):
        return [Launch("none", 1, 32)]


@pytest.mark.parametrize("output", ["q", "copy"])
def test_what_must_be_equal_stays_so_unless_the_peer_states_a_tolerance(output):
    data = Data(Stated(), 0)
    found = {"q": data.expected["q"].astype(np.int32), "copy": data.inputs["x"].copy()}
    assert judged(found, data.expected, data).verified
    found[output][9] = found[output][9] + (1 if output == "q" else np.float16(2**-10))
    assert not judged(found, data.expected, data).verified
    verdict = judged(found, data.expected, data, {output: Tolerance(ulp=1)})
    assert verdict.verified
    assert verdict.less_accurate.startswith(f"1 of 256 elements of {output} exceed the tolerance")


@pytest.mark.parametrize(("factor", "right"), [(1 + 2**-9, True), (1 + 2**-6, False)])
def test_statistics_in_f32_may_have_one_rounding_to_bf16(factor, right):
    """rstd of a row that was rounded on the way is accepted, that of the variance over n - 1 of 32 columns is not."""
    data = Data(registry.get("layernorm")(rows=64, cols=32, dtype="bf16", training=True), 0)
    found = {"rstd": (data.expected["rstd"] * factor).astype(np.float32)}
    assert judged(found, {"rstd": data.expected["rstd"]}, data).verified is right


def test_a_result_that_no_tolerance_accepts_is_explained_by_that_of_libraries():
    case = Case("matmul_wgmma", m=64, n=128, k=256, dtype="bf16")
    verdict = case.judge(case.exact * 2)
    assert "that of libraries, which round between operations" in verdict.explanation


@pytest.mark.parametrize(
    ("dtypes", "half"),
    [
        ((np.float32,), 2.0**-24),
        ((np.float32, np.float16), 2.0**-11),
        ((np.float16, ml_dtypes.bfloat16), 2.0**-8),
        ((ml_dtypes.float8_e4m3fn, np.float32), 2.0**-8),
        ((np.int8, np.int32), 2.0**-24),
    ],
)
def test_the_unit_is_that_of_the_coarsest_type_of_16_bits(dtypes, half):
    assert half_unit(map(np.dtype, dtypes)) == half


@settings(max_examples=25)
@given(
    st.floats(0, 1), st.floats(0, 1), st.floats(0, 4), st.floats(0, 1), st.sampled_from([np.float32, *NARROW.values()])
)
def test_no_part_of_a_tolerance_becomes_smaller(relative, absolute, ulp, typical, dtype):
    own = Tolerance(relative=relative, absolute=absolute, ulp=ulp, typical=typical)
    data = Data(Stated(), 0)
    rule = data.tolerance_rule(own=own)
    x = np.linspace(-1, 1, 300)
    wide, _ = widened(rule, {"x": np.dtype(dtype)}, {"x": x}, [x]).resolved(np.dtype(dtype), x, "x")
    if own == Tolerance():
        assert wide == own
    else:
        parts = ("relative", "absolute", "ulp", "typical")
        assert all(getattr(wide, part) >= getattr(own, part) for part in parts)
        assert wide.rms >= max(relative, typical)
