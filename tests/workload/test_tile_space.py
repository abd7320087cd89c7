"""The enumeration of tiles gives what a test of every combination gives, in the same order, with fewer tests."""

from __future__ import annotations

import copy
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.workload import registry
from ptxkit.workload.launch import Tile
from ptxkit.workload.tile_space import ObservedTile, permitted

NAMES = ("A", "B", "C", "D")
SPACES = st.fixed_dictionaries({name: st.lists(st.integers(0, 3), min_size=1, max_size=3) for name in NAMES})


def every(preferred, space, permits):
    """Each permitted combination, without what ``permitted`` leaves out."""
    combinations = (dict(zip(space, values)) for values in itertools.product(*space.values()))
    tiles = dict.fromkeys(Tile({name: values[name] for name in space}) for values in (*preferred, *combinations))
    return [tile for tile in tiles if permits(tile)]


@st.composite
def constraints(draw):
    """Refusals in order: (parameters that are read, residue of their sum that is refused)."""
    rules = draw(st.lists(st.tuples(st.lists(st.sampled_from(NAMES), unique=True), st.integers(0, 2)), max_size=4))
    return lambda tile: all(sum(tile[name] for name in read) % 3 != refused for read, refused in rules)


@given(SPACES, constraints(), st.data())
def test_nothing_is_lost_or_added(space, permits, data):
    preferred = data.draw(st.lists(st.fixed_dictionaries({n: st.sampled_from(v) for n, v in space.items()}), max_size=2))
    assert list(permitted(preferred, space, permits)) == every(preferred, space, permits)


def asked(space, permits, preferred=()):
    """How many tiles are tested, and those found."""
    tested = []

    def counted(tile):
        tested.append(tile)
        return permits(tile)

    found = list(permitted(preferred, space, counted))
    assert found == every(preferred, space, permits)
    return len(tested)


SPACE = {name: range(4) for name in NAMES}


def test_a_refusal_of_a_fixed_value_ends_the_search():
    fixed = {**SPACE, "D": (2,)}
    assert asked(fixed, lambda tile: tile["D"] != 2) == 1
    assert asked(fixed, lambda tile: tile["B"] == 1 and tile["D"] == 2) == 4 * 3 + 4 * 4


def test_a_refusal_ends_what_shares_the_values_that_were_read():
    assert asked(SPACE, lambda tile: False) == 1
    assert asked(SPACE, lambda tile: False, [dict.fromkeys(NAMES, 2)]) == 1
    assert asked(SPACE, lambda tile: tile.B == 1) == 4 * 3 + 4 * 16
    assert asked(SPACE, lambda tile: tile["A"] == 1 and tile.get("D", 0) == 2) == 3 + 64


@pytest.mark.parametrize(
    "permits",
    [
        lambda tile: sum(tile.values()) % 5 == 0,
        lambda tile: hash(tile) % 5 == 0,
        lambda tile: tile == Tile(dict.fromkeys(NAMES, 1)),
        lambda tile: dict.fromkeys(NAMES, 1) == tile,
        lambda tile: str(tile).count("1") == 1,
        lambda tile: repr(tile).count("1") == 1,
        lambda tile: {**tile, "A": 0}["D"] == 1,
        lambda tile: Tile(tile).D == 1,
        lambda tile: copy.copy(tile).D == 1,
        lambda tile: max(tile.items()) == ("D", 2),
    ],
)
def test_a_constraint_that_reads_a_tile_as_a_whole_is_asked_for_every_tile(permits):
    assert asked(SPACE, permits) == 4**4


def test_an_observed_tile_is_its_tile():
    tile = Tile({"A": 1, "B": 2})
    observed = ObservedTile(tile)
    assert len(observed) == 2 and observed.read == set()
    assert observed.A == 1 and observed.read == {"A"}
    assert observed == tile and hash(observed) == hash(tile) and str(observed) == str(tile)


@pytest.mark.parametrize(("kernel", "variant"), [("layernorm_quantize", "pipelined"), ("rmsnorm", "persistent")])
@pytest.mark.parametrize("cols", [100, 3000, 20000])
def test_the_tiles_of_a_bundled_kernel(kernel, variant, cols):
    chosen = registry.get(kernel).variant(variant)
    workload = registry.get(kernel)(rows=3, cols=cols)
    fixed = {"CACHE": 1, "CTAS_PER_SM": 2, "SMEM_VECTORS": 0}
    space = {name: (fixed[name],) if name in fixed else values for name, values in chosen.tile.items()}
    preferred = [values | fixed for values in chosen._preferred(workload)]
    wanted = every(preferred, space, lambda tile: chosen.constraint(workload, tile) in (None, True))
    assert list(chosen.tiles(workload, fixed)) == wanted
