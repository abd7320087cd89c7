"""Arrays from their text: exact, reproducible, of the requested type; files that do not fit are refused."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.source_run.arrays import array_from, read_npy, scalar_of
from ptxkit.source_run.grammar import DTYPES, parse_argument
from ptxkit.source_run.outputs import save_npy
from ptxkit.workload.inputs import dtype_of

FLOATS = [d for d in DTYPES if "float" in d]
INTEGERS = [d for d in DTYPES if "float" not in d]


def made(text, seed=0):
    return array_from(parse_argument(f"x={text}").value, np.random.default_rng(seed), "--arg x")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("initialiser", ["zeros", "ones", "1", "integers(0,2)"])
def test_every_type_and_shape(dtype, initialiser):
    array = made(f"{dtype}[2x3x4]:{initialiser}")
    assert array.shape == (2, 3, 4) and array.dtype == dtype_of(dtype) and array.flags.c_contiguous


@pytest.mark.parametrize("dtype", FLOATS)
def test_random_numbers_are_in_range_and_follow_the_seed(dtype):
    array = made(f"{dtype}[1000]:uniform(-3,3)").astype(np.float64)
    assert -3 <= array.min() < array.max() <= 3 and len(set(array)) > 4
    spread = made(f"{dtype}[4000]:normal(1,2)").astype(np.float64)
    assert abs(spread.mean() - 1) < 0.2 and abs(spread.std() - 2) < 0.2
    assert np.array_equal(made(f"{dtype}[9]:normal", 1), made(f"{dtype}[9]:normal", 1))
    assert not np.array_equal(made(f"{dtype}[9]:normal", 1), made(f"{dtype}[9]:normal", 2))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_reach_both_ends_of_their_type(dtype):
    array = made(f"{dtype}[4000]:integers")
    assert len(set(array.tolist())) > 1
    if dtype in ("int8", "uint8"):
        assert (array.min(), array.max()) == (np.iinfo(dtype).min, np.iinfo(dtype).max)


def test_integers_exclude_their_end():
    assert set(made("int64[500]:integers(-1,2)").tolist()) == {-1, 0, 1}
    assert set(made("float16[500]:integers(3)").astype(int).tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("int32[4]:arange", [0, 1, 2, 3]),
        ("int8[2,2]:arange(5)", [5, 6, 7, 8]),
        ("uint64[2]:arange(18446744073709551614,1)", [2**64 - 2, 2**64 - 1]),
        ("int64[3]:arange(-9223372036854775808,3)", [-(2**63), -(2**63) + 3, -(2**63) + 6]),
        ("int16[3]:arange(10,-10)", [10, 0, -10]),
        ("float32[3]:arange(0,0.5)", [0, 0.5, 1]),
    ],
)
def test_arange(text, values):
    assert made(text).reshape(-1).tolist() == values


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("int8[4]:300", "int8 holds -128 to 127, not 300"),
        ("uint8[4]:-1", "uint8 holds 0 to 255, not -1"),
        ("int32[4]:1.5", "write a whole number"),
        ("int32[4]:2.0", "write 2"),
        ("bool[4]:2", "write true or false"),
        ("float16[4]:70000", "float16 cannot hold 70000"),
        ("float8_e4m3fn[4]:1000", "float8_e4m3fn cannot hold 1000"),
        ("float32[4]:1e39", "float32 cannot hold 1e"),
        ("int8[200]:arange", "ends at 199"),
        ("bool[4]:arange", "arange gives numbers"),
        ("int32[4]:uniform", r"uniform is for floating-point types; write int32\[...\]:integers"),
        ("float32[4]:uniform(2,1)", "is empty"),
        ("float32[4]:uniform(0,inf)", "finite"),
        ("float32[4]:normal(0,-1)", "at least 0"),
        ("int8[4]:integers(5,5)", "is empty"),
        ("int8[4]:integers(0,1000)", "int8 holds"),
        ("int8[4]:integers(0.5,3)", "whole numbers"),
    ],
)
def test_what_a_type_cannot_hold_is_refused(text, match):
    with pytest.raises(UsageError, match=match):
        made(text)


def test_infinity_and_nan_are_constants():
    assert np.isinf(made("float32[2]:inf")).all() and np.isnan(made("bfloat16[2]:nan").astype(float)).all()


def test_a_float_is_rounded_and_an_integer_is_exact():
    assert scalar_of(0.1, np.dtype("f4"), "") == np.float32(0.1)
    assert scalar_of(2**64 - 1, np.dtype("u8"), "") == 2**64 - 1
    assert scalar_of(True, np.dtype("i4"), "") == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_files_keep_every_type(dtype, tmp_path):
    array = made(f"{dtype}[3x5]:integers(0,2)")
    save_npy(tmp_path / "x.npy", array)
    again = made(f"{dtype}[3x5]:{tmp_path / 'x.npy'}")
    assert again.dtype == array.dtype and again.tobytes() == array.tobytes()


def test_files_of_another_order_are_brought_into_ours(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3)))
    array = read_npy(str(tmp_path / "x.npy"), "")
    assert array.dtype == np.float32 and array.flags.c_contiguous and array.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("content", "text", "match"),
    [
        (np.zeros((2, 3), np.float64), "float32[2x3]:{}", "holds float64, not float32; save it as array.astype"),
        (np.zeros((2, 3), np.float32), "float32[6]:{}", "has the shape 2x3, not 6"),
        (np.zeros(3, dtype_of("bf16")), "{}", r"elements without a type.*bfloat16\[3\]"),
        (np.zeros(3, dtype_of("bf16")), "float32[3]:{}", "elements of 2 bytes; float32 has 4"),
        (np.zeros(3, complex), "{}", "holds complex128"),
        (np.float32(3), "{}", "holds no array"),
        (np.zeros((3, 0)), "{}", "holds no array"),
        (np.array([None]), "{}", "holds Python objects"),
        (b"not an array", "{}", "is not written by np.save"),
        (np.zeros(3, dtype_of("e5m2")), "e5m2[3]:{}", "does not know its element type; save array.view"),
        (b"\x93NUMPY\x01", "{}", "cut short or damaged"),
        (b"", "{}", "is not written by np.save"),
    ],
)
def test_files_that_do_not_fit(content, text, match, tmp_path):
    file = tmp_path / "x.npy"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        np.save(file, content, allow_pickle=True)
    with pytest.raises(UsageError, match=match):
        made(text.format(file))


def test_a_missing_file_and_a_directory(tmp_path):
    (tmp_path / "d.npy").mkdir()
    for name in ("d.npy", "no.npy"):
        with pytest.raises(UsageError, match=f"there is no file .*{name}"):
            made(str(tmp_path / name))
