"""The arguments of bench run: kernels, variants and sizes."""

from __future__ import annotations

import pytest

from ptxkit.bench.cases import parse_sizes, plans
from ptxkit.errors import UsageError
from ptxkit.workload import registry


def test_no_word_means_every_kernel():
    assert {p.workload.name for p in plans(())} == set(registry.names())


def test_a_kernel_has_the_sizes_of_its_description():
    assert [p.workload.sizes["rows"] for p in plans(["fused_l2norm"])] == [128, 8192, 16384]


def test_variants_of_one_kernel_meet_in_one_plan():
    (plan,) = plans(["add_gelu:fused", "add_gelu:unfused"], [("1000",)])
    assert plan.variants == ("fused", "unfused")


def test_options_reach_the_kernels_that_have_them():
    chosen = plans(["add_gelu", "add_mul_exp"], options={"dtype": "bf16"})
    assert {p.workload.options.get("dtype") for p in chosen} == {"bf16", None}


@pytest.mark.parametrize(
    ("words", "sizes", "options", "complaint"),
    [
        (["add_glu"], (), {}, "add_gelu"),
        (["add_gelu:fast"], (), {}, "no variant 'fast'"),
        (["add_gelu"], [("1", "2")], {}, "too many"),
        (["add_gelu"], (), {"dtpe": "f16"}, "dtpe"),
    ],
)
def test_complaints(words, sizes, options, complaint):
    with pytest.raises(UsageError, match=complaint):
        plans(words, sizes, options)


def test_sizes():
    assert parse_sizes("8192x4096,128x4096") == [("8192", "4096"), ("128", "4096")]
    for bad in ("", "12x", "x", "1,,2", "-3"):
        with pytest.raises(UsageError):
            parse_sizes(bad)
