"""Results of texture and surface instructions, bit for bit as an H200 gave them."""

from __future__ import annotations

import pytest
from recorded import Case, cases, digest
from recorded_words import H200
from texture_programs import run

from ptxkit.runtime.device import device as open_device

EVERY = [pytest.param(case, id=case.name) for case in cases()]


@pytest.mark.parametrize("case", EVERY)
def test_results_are_those_of_an_h200(case: Case):
    words, after = run(open_device("emulator"), case.form, case.image, case.rows)
    assert digest(words if case.form.gives else after) == H200[case.name]


@pytest.mark.gpu
@pytest.mark.parametrize("case", EVERY)
def test_a_gpu_gives_the_same_words(case: Case):
    ours, theirs = (run(open_device(kind), case.form, case.image, case.rows) for kind in ("emulator", "gpu"))
    differing = (ours[0] != theirs[0]).any(axis=1)
    assert not differing.any(), f"{differing.sum()} of {len(differing)}, first row {case.rows[differing][0]}"
    assert ours[1].tobytes() == theirs[1].tobytes()


def test_every_case_is_recorded_once():
    names = [case.name for case in cases()]
    assert sorted(names) == sorted(H200)
