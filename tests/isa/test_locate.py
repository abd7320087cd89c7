import pytest

from ptxkit.isa.locate import loc_at_line
from ptxkit.isa.model import Loc

BROKEN = """.version 8.6
.target sm_90a
.func f() {
	.loc 2 3 4
	ret;
}
.visible .entry k(
	.param .u64 p
)
{
	.reg .b32 %r<2>;
	// .loc 1 99 9
	mov.u32 %r1, ;
	.loc	1 12 5
	{ { { not PTX at all "
	.loc	2 7 1, function_name $L__info_string0, inlined_at 1 12 5
	.loc	2 9 1, function_name $L__info_string1+8, inlined_at 2 7 1
	wgmma.nonsense;
	.loc	1 20 1
	/* .loc 1 1 1
	.entry */ ret;
}
	.file	1 "k \\"x\\".cu"
	.file	2 "/inc/h.cuh"
"""
K, H = 'k "x".cu', "/inc/h.cuh"
CALL = Loc(H, 7, 1, Loc(K, 12, 5))


@pytest.mark.parametrize(
    "line, expected",
    [
        (0, None), (1, None), (3, None), (4, Loc(H, 3, 4)), (5, Loc(H, 3, 4)),
        (7, None), (10, None),  # the location of the function before does not carry over
        (13, None),  # nor does one in a comment count
        (14, Loc(K, 12, 5)), (15, Loc(K, 12, 5)), (16, CALL), (17, Loc(H, 9, 1, CALL)), (18, Loc(H, 9, 1, CALL)),
        (19, Loc(K, 20, 1)), (21, Loc(K, 20, 1)), (25, Loc(K, 20, 1)), (26, None), (-1, None),
    ],
)  # fmt: skip
def test_location_of_a_line(line, expected):
    assert loc_at_line(BROKEN, line) == expected


def test_text_without_locations_or_files():
    assert loc_at_line("", 1) is None
    assert loc_at_line(".loc 3 4 5", 1) == Loc("<file 3>", 4, 5)
