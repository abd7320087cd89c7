"""Sums of tensor cores for which alignment, truncation and order decide, bit for bit as an H200 gave them."""

from __future__ import annotations

import numpy as np
import pytest
from awkward_sums import KINDS, Numbers, Sum, digest, sums
from recorded_sums import H200

from ptxkit.runtime.device import device as open_device

EVERY = [pytest.param(case, id=case.name) for case in sums()]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("case", EVERY)
def test_results_are_those_of_an_h200(case: Sum):
    assert digest(case.words(open_device("emulator"))) == H200[case.opcode].split()[KINDS.index(case.kind)]


@pytest.mark.gpu
@pytest.mark.parametrize("case", EVERY)
def test_a_gpu_gives_the_same_words(case: Sum):
    gpu = open_device("gpu")
    if gpu.target.cc != 90:
        pytest.skip(f"{gpu.name} adds up in its own way")
    ours, theirs = (case.words(device) for device in (open_device("emulator"), gpu))
    differing = np.argwhere(ours != theirs)
    assert not differing.size, f"{len(differing)} of {ours.size}, first {differing[0]}"


def test_every_form_is_recorded_once_with_every_kind_of_operands():
    assert sorted({case.opcode for case in sums()}) == sorted(H200)
    assert {len(digests.split()) for digests in H200.values()} == {len(KINDS)}
    assert len(EVERY) == len(H200) * len(KINDS)


def test_the_random_words_are_those_of_splitmix64():
    """The first words of the published generator with the seed 1234567 (Vigna, splitmix64.c)."""
    numbers = Numbers("")
    numbers.state = 1234567
    first = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert numbers.words(5).tolist() == first
