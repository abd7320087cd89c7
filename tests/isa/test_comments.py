"""Text without comments."""

from __future__ import annotations

import pytest

from ptxkit.isa.comments import without_comments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("inline/**/void f();", "inline void f();"),  # a comment separates names
        ("a // b /* c\nd", "a  \nd"),
        ("a /* b\n// c */ d\ne", "a  \n d\ne"),
        ("/* never ends", "/* never ends"),
    ],
)
def test_each_comment_is_a_space_and_lines_keep_their_numbers(text, expected):
    assert without_comments(text) == expected
