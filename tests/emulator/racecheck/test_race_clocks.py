"""Vector clocks: rows of clocks that are merged in runs and one by one, compared with the definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.emulator.racecheck.clocks import Table

RUNS = st.tuples(
    st.integers(0, 31), st.integers(0, 31), st.integers(1, 16), st.sampled_from([(0, 0), (0, 1), (1, 0), (1, 1), (2, 1)])
)
"""First key, first row, length, and the steps of both."""


@given(st.lists(RUNS, max_size=4), st.integers(0, 2**32 - 1))
def test_a_merge_is_the_maximum_of_all_rows_of_a_key(runs, seed):
    keys, rows = (
        np.array([(run[side] + k * run[3][side]) % 64 for run in runs for k in range(run[2])], np.int64) for side in (0, 1)
    )
    rng = np.random.default_rng(seed)
    table, known = Table(64, 2, 3, tensor=True), Table(64, 2, 3, tensor=True)
    for part in table.parts + known.parts:
        part.data[:] = rng.integers(0, 100, part.data.shape)
    expected = [part.flat.copy() for part in table.parts]
    for key, row in zip(keys, rows, strict=True):
        for target, source in zip(expected, known.parts, strict=True):
            target[key] = np.maximum(target[key], source.flat[row])
    table.merge(keys, known, rows)
    for part, target in zip(table.parts, expected, strict=True):
        np.testing.assert_array_equal(part.flat, target)
