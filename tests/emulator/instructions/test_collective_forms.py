"""Collectives of a warp and barrier reductions with random operands, on any device, against the manual's formulas."""

from __future__ import annotations

import numpy as np
import pytest
from either import Bench

LANE = np.arange(32)
WARPS = 8
ADDRESSES = (
    "mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 31; mul.wide.u32 %rd2, %r0, 16; add.u64 %rd3, %rd0, %rd2; add.u64 %rd4, %rd1, %rd2;"
    "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd3]; mov.b64 %rd6, {%r4, %r5};"
)
"""A thread's four words are %r4 to %r7, the first two together %rd6; its results go to [%rd4]."""
MEMBER = "shr.u32 %r8, %r7, %r1; and.b32 %r8, %r8, 1; setp.ne.u32 %p1, %r8, 0;"
"""%p1: whether the lane is a member, by the mask in %r7."""


@pytest.fixture
def run(device) -> Bench:
    return Bench(device, "eager")


def words(seed: int, high: int) -> np.ndarray:
    """(warps, lanes, 4): values below ``high``, with the same mask of members for a warp in the last one."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, high, (WARPS, 32, 4), dtype=np.uint32)
    x[..., 3] = rng.integers(1, 1 << 32, (WARPS, 1), dtype=np.uint32)
    x[0, :, 3] = 0xFFFFFFFF
    return x


def members(x: np.ndarray) -> np.ndarray:
    """(warps, lanes): whether a lane takes part."""
    return (x[..., 3] >> LANE.astype(np.uint32) & 1).astype(bool)


def mask_of(chosen: np.ndarray) -> np.ndarray:
    """Bits of the lanes in the last axis."""
    return (chosen.astype(np.uint64) << LANE.astype(np.uint64)).sum(axis=-1).astype(np.uint32)


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shfl(run, mode):
    """Each lane has its own distance, clamp and segment mask, which the manual allows."""
    x = words(1, 1 << 31)
    x[..., 1] = x[..., 1] & 0xFF  # only five bits are used
    segment = np.random.default_rng(2).choice([0, 16, 24, 28, 30, 31], (WARPS, 1)).astype(np.uint32)
    clamp = np.where(mode == "up", 0, 31).astype(np.uint32)
    x[..., 2] = segment << 8 | np.where(np.arange(WARPS)[:, None] % 2, clamp, x[..., 2] & 31)
    body = ADDRESSES + f"shfl.sync.{mode}.b32 %r8|%p1, %r4, %r5, %r6, -1; selp.u32 %r9, 1, 0, %p1;"
    _, got = run(body + "st.global.v2.u32 [%rd4], {%r8, %r9};", x, np.zeros_like(x), block=WARPS * 32)
    b, c = x[..., 1].astype(int) & 31, x[..., 2].astype(int)
    segments, bound = c >> 8 & 31, c & 31
    highest, lowest = LANE & segments | bound & ~segments & 31, LANE & segments
    source = {"up": LANE - b, "down": LANE + b, "bfly": LANE ^ b, "idx": lowest | b & ~segments}[mode]
    inside = source >= highest if mode == "up" else source <= highest
    source = np.where(inside, source, LANE)
    np.testing.assert_array_equal(got[..., 1], inside)
    np.testing.assert_array_equal(got[..., 0], np.take_along_axis(x[..., 0], source, axis=1))


@pytest.mark.parametrize("mode", ["all", "any", "uni", "ballot"])
@pytest.mark.parametrize("negated", ["", "!"])
def test_vote(run, mode, negated):
    x = words(3, 2)
    x[1, :, 0], x[2, :, 0] = 0, 1
    vote = "vote.sync.ballot.b32 %r9" if mode == "ballot" else f"vote.sync.{mode}.pred %p3"
    body = ADDRESSES + MEMBER + "setp.ne.u32 %p2, %r4, 0; @!%p1 bra done;" + f"{vote}, {negated}%p2, %r7;"
    body += "" if mode == "ballot" else "selp.u32 %r9, 1, 0, %p3;"
    _, got = run(body + "st.global.u32 [%rd4], %r9; done:", x, np.zeros_like(x), block=WARPS * 32)
    inside, value = members(x), (x[..., 0] != 0) != (negated == "!")
    true, false = (inside & value).any(axis=1), (inside & ~value).any(axis=1)
    result = {"all": ~false, "any": true, "uni": true != false, "ballot": mask_of(inside & value)}[mode]
    np.testing.assert_array_equal(got[..., 0], np.where(inside, result[:, None], 0))


@pytest.mark.parametrize("t", ["b32", "b64"])
@pytest.mark.parametrize("mode", ["any", "all"])
def test_match(run, mode, t):
    x = words(4, 2)
    x[1, :, :2] = 7
    value = "%r4" if t == "b32" else "%rd6"
    body = ADDRESSES + MEMBER + "@!%p1 bra done;"
    if mode == "any":
        body += f"match.any.sync.{t} %r9, {value}, %r7; mov.u32 %r10, 0;"
    else:
        body += f"match.all.sync.{t} %r9|%p2, {value}, %r7; selp.u32 %r10, 1, 0, %p2;"
    _, got = run(body + "st.global.v2.u32 [%rd4], {%r9, %r10}; done:", x, np.zeros_like(x), block=WARPS * 32)
    inside = members(x)
    v = x[..., 0].astype(np.uint64) | (x[..., 1].astype(np.uint64) << np.uint64(32) if t == "b64" else np.uint64(0))
    same = (v[:, :, None] == v[:, None, :]) & inside[:, None, :]
    if mode == "any":
        want, everyone = mask_of(same), np.zeros((WARPS, 32), bool)
    else:
        everyone = (same == inside[:, None, :]).all(axis=2)
        want = np.where(everyone, x[..., 3], 0)
    np.testing.assert_array_equal(got[..., 0], np.where(inside, want, 0))
    np.testing.assert_array_equal(got[..., 1], inside & everyone)


REDUCTIONS = [(op, t) for op in ("add", "min", "max") for t in ("u32", "s32")]
REDUCTIONS += [(op, "b32") for op in ("and", "or", "xor")]


@pytest.mark.parametrize(("op", "t"), REDUCTIONS)
def test_redux(run, op, t):
    x = words(5, 1 << 32)
    body = ADDRESSES + MEMBER + f"@!%p1 bra done; redux.sync.{op}.{t} %r9, %r4, %r7; st.global.u32 [%rd4], %r9; done:"
    _, got = run(body, x, np.zeros_like(x), block=WARPS * 32)
    functions = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}
    f, dtype = functions.get(op, np.bitwise_xor), np.int32 if t == "s32" else np.uint32
    for warp, inside in zip(range(WARPS), members(x), strict=True):
        want = f.reduce(x[warp, inside, 0].view(dtype), dtype=dtype)
        np.testing.assert_array_equal(got[warp, :, 0].view(dtype), np.where(inside, want, 0))


def test_elect_chooses_one_member(run):
    """The manual does not define which lane is elected: all members get the same one, and only it gets true."""
    x = words(6, 2)
    body = ADDRESSES + MEMBER + "@!%p1 bra done; elect.sync %r9|%p2, %r7; selp.u32 %r10, 1, 0, %p2;"
    _, got = run(body + "st.global.v2.u32 [%rd4], {%r9, %r10}; done:", x, np.zeros_like(x), block=WARPS * 32)
    for warp, inside in zip(range(WARPS), members(x), strict=True):
        leader = np.unique(got[warp, inside, 0])
        assert len(leader) == 1 and inside[leader[0]]
        np.testing.assert_array_equal(got[warp, :, 1], leader[0] == LANE)


@pytest.mark.parametrize("form", ["bar", "bar.cta", "barrier", "barrier.aligned", "barrier.cta"])
@pytest.mark.parametrize("op", ["popc.u32", "and.pred", "or.pred"])
def test_barrier_reductions(run, op, form):
    """Each half of the block has its own barrier, with a thread count; the number of one of them is in a register."""
    x = words(7, 2)
    x[: WARPS // 2, :, 0] = 1
    base, aligned = form.removesuffix(".aligned"), ".aligned" if form.endswith(".aligned") else ""
    kind, t = op.split(".")
    opcode = f"{base}.red.{kind}{aligned}.{t}"
    body = (
        ADDRESSES + f"setp.ne.u32 %p2, %r4, 0; shr.u32 %r11, %r0, 7; add.u32 %r11, %r11, 3; mov.u32 %r12, {WARPS * 16};"
    )
    body += f"{opcode} {'%r9' if t == 'u32' else '%p3'}, %r11, %r12, %p2;" + (
        "" if t == "u32" else "selp.u32 %r9, 1, 0, %p3;"
    )
    _, got = run(body + "st.global.u32 [%rd4], %r9;", x, np.zeros_like(x), block=WARPS * 32)
    halves = x[..., 0].reshape(2, -1) != 0
    want = {"popc": halves.sum(axis=1), "and": halves.all(axis=1), "or": halves.any(axis=1)}[kind]
    np.testing.assert_array_equal(got[..., 0].reshape(2, -1), np.broadcast_to(want[:, None], halves.shape))
