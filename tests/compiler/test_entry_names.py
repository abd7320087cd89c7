"""Kernels of one image whose plain names are equal are given with their namespaces and parameter types."""

from __future__ import annotations

import pytest

from ptxkit.compiler.image import FunctionResources, Image
from ptxkit.errors import MissingKernelError

KERNELS = ["_ZN1A1kEPi", "_ZN1B1kEPi", "_Z4overPi", "_Z4overPf", "_ZN12_GLOBAL__N_12anEPi", "plain"]
IMAGE = Image("sm_90a", "", None, functions={name: FunctionResources() for name in KERNELS}, source_name="s.cu")


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("A::k", "_ZN1A1kEPi"),
        ("B::k(int*)", "_ZN1B1kEPi"),
        ("over( float * )", "_Z4overPf"),
        ("an", "_ZN12_GLOBAL__N_12anEPi"),
        ("(anonymous namespace)::an", "_ZN12_GLOBAL__N_12anEPi"),
        ("plain", "plain"),
        ("_Z4overPi", "_Z4overPi"),
    ],
)
def test_a_name_that_one_kernel_has(name, kernel):
    assert IMAGE.entry(name) == kernel


def test_every_listed_name_is_accepted():
    names = IMAGE.distinct_names(KERNELS)
    assert list(names.values()) == ["an", "plain", "A::k", "B::k", "over(int*)", "over(float*)"]
    assert [IMAGE.entry(name) for name in names.values()] == list(names)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("k", "s.cu has 2 kernels 'k': A::k, B::k"),
        ("over", r"s.cu has 2 kernels 'over': over\(float\*\), over\(int\*\)"),
        ("over(double*)", r"did you mean over\(float\*\), over\(int\*\)\?"),
        ("C::k", r"did you mean A::k, B::k\?"),
    ],
)
def test_other_names_are_refused_with_those_that_may_be_given(name, message):
    with pytest.raises(MissingKernelError, match=message):
        IMAGE.entry(name)


INSTANCES = {
    "_Z1kPfi": "k",
    "_ZN1a1kEPf": "a::k",
    "_Z6reduceIiLj128EEvPT_S1_j": "reduce<int, 128u>",
    "_Z6reduceIdLj64EEvPT_S1_j": "reduce< double,64 >",
    "_ZN1a4flagILb1ELin3EEEvv": "flag<true, -3>",
    "_ZN1a4flagILb0ELin3EEEvv": "a::flag<false, -3>",
}


@pytest.mark.parametrize("kernel", INSTANCES)
def test_a_name_without_namespace_and_one_with_template_arguments(kernel):
    image = Image("sm_90a", "", None, functions={name: FunctionResources() for name in INSTANCES}, source_name="s.cu")
    assert image.entry(INSTANCES[kernel]) == kernel
    assert image.entry(image.distinct_names([kernel])[kernel]) == kernel
