"""Tables and lines that fit a terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.columns import hanging, plain

HEADERS = ["", "time", "", "GB/s", "a long header", "traffic"]
ROWS = [
    ["unfused", "12.07 us", "± 0.2%", "695", "x", "1.00x"],
    ["vectorized", "3.247 us", "± 0.1%", "2583", "y", "2.75x"],
]
RIGHT = ["left", *["right"] * 5]


def longest(text):
    return max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in text.split("\n"))


def test_what_fits_is_left_as_it_is():
    wide = plain(ROWS, HEADERS, RIGHT)
    assert plain(ROWS, HEADERS, RIGHT, longest(wide)) == wide
    assert longest(plain(ROWS, HEADERS, RIGHT, longest(wide) - 1)) < longest(wide)


def test_what_does_not_goes_below_and_nothing_is_lost():
    text = plain(ROWS, HEADERS, RIGHT, 36)
    assert longest(text) <= 36
    parts = text.split("\n\n")
    assert len(parts) > 1 and all("unfused" in part and "vectorized" in part for part in parts)
    assert all(cell in text for row in ROWS for cell in row)


@pytest.mark.parametrize("width", range(24, 60))
def test_a_column_without_a_header_follows_its_own_column(width):
    for part in plain(ROWS, HEADERS, RIGHT, width).split("\n\n"):
        assert ("12.07 us" in part) == ("± 0.2%" in part)


def test_every_part_says_of_what_its_rows_are():
    rows = [["fused", mode, "12.07 us ± 0.2%", "11.03 us ± 0.4%", "same cubin"] for mode in ("cold", "hot")]
    parts = plain(rows, ["", "", "before", "after", "code"], ["left", *["right"] * 4], 40, keys=2).split("\n\n")
    assert len(parts) > 1 and all("cold" in part and "hot" in part for part in parts)


def test_text_is_wrapped_between_words():
    rows = [["saxpy", "one word after another until the line is full", "3"]]
    text = plain(rows, ["kernel", "what", "n"], ["left", "left", "right"], 40)
    assert longest(text) <= 40 and "\n\n" not in text
    assert all(word in text for word in rows[0][1].split())


def test_colours_take_no_room():
    coloured = [["\x1b[32mverified\x1b[0m", *row[1:]] for row in ROWS]
    width = longest(plain(coloured, HEADERS, RIGHT))
    assert plain(coloured, HEADERS, RIGHT, width) == plain(coloured, HEADERS, RIGHT)


def test_a_table_without_rows_is_its_head():
    assert plain([], HEADERS, RIGHT, 30).count("time") == 1


words = st.text("abcdefgh", min_size=1, max_size=9)


@given(
    rows=st.lists(st.lists(words, min_size=5, max_size=5), min_size=1, max_size=4),
    sides=st.lists(st.sampled_from(["left", "right"]), min_size=4, max_size=4),
    width=st.integers(30, 80),
)
def test_short_words_always_fit(rows, sides, width):
    text = plain(rows, ["a", "b", "c", "d", "e"], ["left", *sides], width)
    assert longest(text) <= width
    for row in rows:
        assert all(cell in text for cell in row)


@given(st.lists(words, min_size=1, max_size=30), st.integers(30, 80))
def test_a_hanging_line_keeps_its_words(line, width):
    text = hanging(" ".join(line), 8, width)
    assert text.split() == line and longest(text) <= width
    assert all(following.startswith(" " * 8) for following in text.split("\n")[1:])


def test_a_line_that_fits_and_no_terminal_change_nothing():
    assert hanging("  a  b", 4, 80) == hanging("  a  b", 4, None) == "  a  b"
