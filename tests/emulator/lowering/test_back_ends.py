"""Two back ends that share no arithmetic execute the same programs with the same results, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Run, kernel
from scalar_backend import ScalarBackEnd

from ptxkit.errors import UnsupportedError

THREADS, WORDS, RESULTS = 70, 64, 4  # the last warp has threads that do not exist

START = f"""
    mov.u32 %r0, %tid.x;
    mov.u32 %r20, %ctaid.x;
    mad.lo.u32 %r20, %r20, {THREADS}, %r0;
    mul.wide.u32 %rd2, %r20, {4 * RESULTS};
    add.u64 %rd2, %rd1, %rd2;
    mov.u32 %r1, %r20; mov.u32 %r2, 7; mov.u32 %r3, 0xfffffff0; mov.u32 %r4, %laneid;
    setp.lt.u32 %p0, %r0, 33; setp.ne.u32 %p1, %r4, 3;
"""
END = "\n".join(f"    st.global.u32 [%rd2+{4 * k}], %r{k + 1};" for k in range(RESULTS))

registers = st.integers(1, 4).map(lambda k: f"%r{k}")
immediates = st.sampled_from([0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]).map(str)
values = registers | immediates
guards = st.sampled_from(["", "", "@%p0 ", "@!%p0 ", "@%p1 "])


@st.composite
def arithmetic(draw):
    name = draw(
        st.sampled_from(
            "add.u32 add.s32 sub.s32 mul.lo.s32 min.s32 min.u32 max.u32 and.b32 or.b32 xor.b32 shl.b32 shr.u32 shr.s32".split()
        )
    )
    return f"    {draw(guards)}{name} {draw(registers)}, {draw(registers)}, {draw(values)};"


@st.composite
def other(draw):
    a, b, c, d = (draw(registers) for _ in range(4))
    p, t = draw(st.sampled_from(["%p0", "%p1"])), draw(st.sampled_from(["u32", "s32"]))
    how = draw(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]))
    return draw(
        st.sampled_from(
            [
                f"    {draw(guards)}mad.lo.u32 {a}, {b}, {c}, {d};",
                f"    setp.{how}.{t} {p}, {a}, {draw(values)};",
                f"    {draw(guards)}selp.b32 {a}, {b}, {c}, {p};",
                f"    {draw(guards)}not.b32 {a}, {b};",
                f"    {draw(guards)}mov.b32 {a}, {draw(values)};",
            ]
        )
    )


@st.composite
def memory(draw):
    """A load from an address that depends on data, or a store to the results of the thread."""
    a, b, guard = draw(registers), draw(registers), draw(guards)
    if draw(st.booleans()):
        return f"    {guard}st.global.u32 [%rd2+{4 * draw(st.integers(0, RESULTS - 1))}], {a};"
    return (
        f"    and.b32 %r9, {b}, {WORDS - 1}; mul.wide.u32 %rd3, %r9, 4; add.u64 %rd3, %rd0, %rd3;\n"
        f"    {guard}ld.global.u32 {a}, [%rd3];"
    )


lines = arithmetic() | other() | memory()
straight = st.lists(lines, min_size=1, max_size=12).map("\n".join)


@st.composite
def looped(draw):
    """A loop that each thread leaves after a number of iterations of its own, with a branch inside."""
    before, body, branch, after = draw(straight), draw(straight), draw(straight), draw(straight)
    guard = draw(st.sampled_from(["@%p0", "@!%p1"]))
    return f"""{before}
    and.b32 %r10, {draw(registers)}, 3;
LOOP:
{body}
    {guard} bra SKIP;
{branch}
SKIP:
    sub.u32 %r10, %r10, 1;
    setp.ge.s32 %p2, %r10, 0;
    @%p2 bra LOOP;
{after}"""


def results(text, seed, back_end):
    data = np.random.default_rng(seed).integers(0, 1 << 32, WORDS, np.uint32)
    out = np.zeros(2 * THREADS * RESULTS, np.uint32)
    return Run(text, workers=1, back_end=back_end)(data, out, grid=2, block=THREADS)[1]


def agree(body, seed):
    text = kernel(START + body + "\n" + END)
    np.testing.assert_array_equal(results(text, seed, ScalarBackEnd()), results(text, seed, None), err_msg=body)


@given(straight, st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_straight_line_programs(body, seed):
    agree(body, seed)


@given(looped(), st.integers(0, 9))
@settings(max_examples=15, deadline=None)
def test_loops_and_branches(body, seed):
    agree(body, seed)


def test_the_scalar_back_end_computes_what_the_manual_says():
    body = "mul.lo.s32 %r1, %r0, -3; shr.s32 %r2, %r1, 1; max.u32 %r3, %r1, 5; selp.b32 %r4, 1, 2, %p0;"
    found = results(kernel(START + body + END), 0, ScalarBackEnd()).reshape(-1, RESULTS)[:THREADS].astype(np.int64)
    t = np.arange(THREADS)
    product = -3 * t
    wanted = [product % 2**32, (product >> 1) % 2**32, np.maximum(product % 2**32, 5), np.where(t < 33, 1, 2)]
    np.testing.assert_array_equal(found, np.stack(wanted, 1))


def test_a_form_that_a_back_end_does_not_implement_is_refused_before_the_launch():
    with pytest.raises(UnsupportedError, match=r"test.ptx:\d+ popc.b32: not in the scalar back end"):
        results(kernel(START + "popc.b32 %r1, %r0;" + END), 0, ScalarBackEnd())
