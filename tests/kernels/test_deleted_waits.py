"""A deleted wait of the Blackwell kernels is reported, or the reason why it is not reported is recorded.

This file tests a representative part; ``scripts/delete_waits.py`` deletes all waits of all steps, and
docs/blackwell.md has its result.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/delete_waits.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("delete_waits", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def examined(script, variant, match, modes=("warps",)):
    (subject,) = [s for s in script.SUBJECTS if f"{s.kernel}:{s.variant}" == variant]
    return script.examine(subject, match, modes)


ORDERING = "matmul_tcgen05:step5_two_accumulators"
PAIRS = "matmul_tcgen05:step6_cta_pairs"
STORES = "matmul_tcgen05:step8_tma_store"
SCALES = "matmul_block_scaled:step1_single_issuer"
SCALED_PAIRS = "matmul_block_scaled:step3_cta_pairs"
SCALED_MMA = "matmul_block_scaled:mma_sync"
UNEXPLAINED = "^(?!fence.mbarrier_init|griddep|bar.warp|tcgen05.fence)"


@pytest.mark.parametrize(
    ("variant", "match", "count"),
    [
        ("matmul_tcgen05:step1_one_stage", UNEXPLAINED, 10),
        (ORDERING, r"^(?!bar\.warp|fence).*(sums_(full|empty)\(|release|tcgen05_fence|store_tensor|end_tensor)", 9),
        pytest.param(PAIRS, r"^(?!fence).*(commit.*barrier|cluster\.wait)", 4, marks=pytest.mark.slow),
        pytest.param(STORES, r"tcgen05\.wait|cp\.async|proxy.*store_by_tma", 6, marks=pytest.mark.slow),
        (SCALES, r"try_wait|commit", 5),
        pytest.param(SCALED_PAIRS, r"tcgen05\.commit|try_wait.*sums_full", 3, marks=pytest.mark.slow),
        (SCALED_MMA, r"cp\.async\.wait_group|barrier: .*filled next", 2),
        ("inline_ptx:tcgen05", r"try_wait|commit|wait::ld", 4),
    ],
)
def test_a_deleted_wait_is_found(script, variant, match, count):
    outcomes = examined(script, variant, match)
    assert [o.deletion.name for o in outcomes if o.mode is None] == []
    assert len(outcomes) == count


def test_a_deleted_barrier_of_a_warp_is_found_with_racecheck_lanes(script):
    (outcome,) = examined(script, ORDERING, r"bar\.warp.*release", ("lanes",))
    assert "race in tensor memory" in outcome.message and "write-after-read" in outcome.message


@pytest.mark.slow
def test_waits_for_the_last_arrivals_have_a_reason(script):
    """The wait in the loop is found; those before the exit are not, since a later commit of the same thread is waited for."""
    outcomes = examined(script, PAIRS, r"mbarrier_wait\(empty")
    assert [o.mode for o in outcomes] == ["warps"] + [None] * 6
    assert all("last arrivals before the CTA exits" in o.message for o in outcomes[1:])


@pytest.mark.slow
def test_what_is_not_found_has_a_reason(script):
    outcomes = examined(script, ORDERING, r"mbarrier_init|griddepcontrol|bar\.warp: end")
    assert [o.mode for o in outcomes] == [None] * 3
    assert all(o.message for o in outcomes)
