"""Rounded arithmetic of every format and mode against exact rationals."""

from __future__ import annotations

import itertools

import alu_oracle as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

MODES = ("rn", "rz", "rm", "rp")


def opcodes() -> list[str]:
    found = []
    for name, mode, ftz, sat in itertools.product(("add", "sub", "mul", "fma"), MODES, ("", ".ftz"), ("", ".sat")):
        found.append(f"{name}.{mode}{ftz}{sat}.f32")
    for name, mode, ftz in itertools.product(("div", "rcp", "sqrt"), MODES, ("", ".ftz")):
        found.append(f"{name}.{mode}{ftz}.f32")
    found += [f"{name}.{mode}.f64" for name in ("add", "sub", "mul", "fma", "div", "rcp", "sqrt") for mode in MODES]
    for name, ftz, sat in itertools.product(("add", "sub", "mul", "fma.rn"), ("", ".ftz"), ("", ".sat")):
        found.append(f"{name}{ftz}{sat}.f16")
    found += [f"{name}.bf16" for name in ("add", "sub", "mul", "fma.rn", "fma.rz", "fma.rm", "fma.rp", "fma.rn.relu")]
    return [*found, "fma.rn.relu.f16", "fma.rn.ftz.relu.f16", "fma.rp.relu.bf16"]


def check(opcode: str, rows: list[list[int]]) -> None:
    t = opcode.rsplit(".", 1)[1]
    got = oracle.bits_of(oracle.apply(opcode, *(np.array(r, np.uint64) for r in rows)), len(rows[0]))
    wrong = []
    for n, lane in enumerate(zip(*rows, strict=True)):
        want = oracle.arithmetic(opcode, *lane)
        if (want == oracle.NAN) != oracle.is_nan(got[n], t) or (want != oracle.NAN and want != got[n]):
            wrong.append(
                f"{opcode}({', '.join(map(hex, lane))}) = {got[n]:#x}, expected {want if want == 'nan' else hex(want)}"
            )
    assert not wrong, f"{len(wrong)} wrong: " + "; ".join(wrong[:5])


@pytest.mark.parametrize("opcode", opcodes())
def test_rounds_once(opcode):
    t = opcode.rsplit(".", 1)[1]
    mask = (1 << oracle.FORMATS[t].bits) - 1
    rows = [[int(v) & mask for v in row] for row in oracle.operands(opcode, 700)]
    check(opcode, rows)


def near(t: str) -> st.SearchStrategy[int]:
    """Bits with few ones and long runs, where sums and products come near a tie."""
    f = oracle.FORMATS[t]
    fraction = st.one_of(
        st.integers(0, (1 << f.fraction) - 1),
        st.integers(0, f.fraction).map(lambda k: ((1 << f.fraction) - 1) ^ ((1 << k) - 1)),
        st.integers(0, f.fraction).map(lambda k: (1 << k) - 1),
        st.integers(0, f.fraction - 1).map(lambda k: 1 << k),
    )
    exponent = st.one_of(st.integers(0, (1 << f.exponent) - 1), st.integers(f.bias - 3, f.bias + 3), st.integers(0, 2))
    return st.builds(lambda s, e, m: s << (f.bits - 1) | e << f.fraction | m, st.integers(0, 1), exponent, fraction)


@pytest.mark.parametrize("t", ["f32", "f64", "f16", "bf16"])
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_fma_near_ties(t, data):
    lanes = data.draw(st.lists(st.tuples(near(t), near(t), near(t)), min_size=8, max_size=24))
    mode = data.draw(st.sampled_from(MODES if t in ("f32", "f64") else ("rn",)))
    check(f"fma.{mode}.{t}", [list(r) for r in zip(*lanes, strict=True)])


@pytest.mark.parametrize(("t", "element"), [("f16x2", "f16"), ("bf16x2", "bf16"), ("f32x2", "f32")])
def test_packed_forms_are_two_scalars(t, element):
    wide = 2 * oracle.FORMATS[element].bits
    mask = np.uint64((1 << wide // 2) - 1)
    for name in ("add", "sub", "mul", "fma.rn"):
        rows = oracle.operands(f"{name}.{t}", 500)
        got = np.array(oracle.bits_of(oracle.apply(f"{name}.{t}", *rows), 500), np.uint64)
        for shift in (0, wide // 2):
            part = [(r >> np.uint64(shift)) & mask for r in rows]
            want = np.array(oracle.bits_of(oracle.apply(f"{name}.{element}", *part), 500), np.uint64)
            assert np.array_equal((got >> np.uint64(shift)) & mask, want), name


@pytest.mark.parametrize("s", ["f16", "bf16"])
@pytest.mark.parametrize("mode", MODES)
def test_mixed_precision(s, mode):
    f, f32 = oracle.FORMATS[s], oracle.FORMATS["f32"]
    for name in ("add", "sub", "fma"):
        opcode = f"{name}.{mode}.f32.{s}"
        rows = [[int(v) for v in r] for r in oracle.operands(opcode, 500)]
        got = oracle.bits_of(oracle.apply(opcode, *(np.array(r, np.uint64) for r in rows)), 500)
        for n, lane in enumerate(zip(*rows, strict=True)):
            narrow = [f.decode(v & 0xFFFF) for v in lane[:-1]]
            last = f32.decode(lane[-1] & 0xFFFFFFFF)
            if name == "fma":
                exact = oracle.add(oracle.multiply(*narrow), last, mode)
            else:
                exact = oracle.add(narrow[0], last if name == "add" else oracle.negate(last), mode)
            want = f32.encode(exact, mode)
            assert oracle.is_nan(got[n], "f32") if want == oracle.NAN else got[n] == want, (opcode, lane)


def test_broadcast_operands_keep_small_shapes():
    one, row, lanes = (np.ones(shape, np.float32) for shape in ((1, 1, 1), (1, 8, 32), (4, 8, 32)))
    for opcode in ("fma.rn.f32", "fma.rz.f32"):
        run = oracle.lookup(opcode)[0].lane_function(oracle.lookup(opcode)[1])
        assert run(one, one, one).shape == (1, 1, 1)
        assert run(row, one, row).shape == (1, 8, 32)
        assert run(one, row, lanes).shape == (4, 8, 32)
        assert run(lanes, one, one).shape == (4, 8, 32)
