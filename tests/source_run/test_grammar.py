"""The text form of arguments: what it means, and that anything else is one clear line."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.errors import UsageError
from ptxkit.source_run.grammar import (
    DTYPES,
    ELEMENT_TYPES,
    INITIALISERS,
    ArgumentText,
    ArrayText,
    BytesText,
    Initialiser,
    NullText,
    ScalarText,
    number_text,
    parse_argument,
    parse_dim3,
    parse_files,
    parse_number,
)

numbers = st.one_of(st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.booleans())


@st.composite
def initialisers(draw):
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(INITIALISERS)))
        count = draw(st.sampled_from(INITIALISERS[name]))
        return Initialiser(name, tuple(draw(numbers) for _ in range(count)))
    return Initialiser("file", file=draw(st.sampled_from(["x.npy", "/a b/é:]=.npy", "d(1)/x[2].npy"])))


arrays = st.builds(
    ArrayText,
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.integers(1, 2**40), min_size=1, max_size=5).map(tuple),
    initialisers(),
)
scalars = st.builds(ScalarText, numbers, st.sampled_from(["", *DTYPES]))
values = st.one_of(arrays, scalars, st.just(NullText()), st.builds(BytesText, st.binary()))
keys = st.one_of(
    st.from_regex(r"[A-Za-z_]\w{0,8}", fullmatch=True).filter(str.isascii), st.integers(0, 99).map("#{}".format)
)


@given(keys, values)
def test_what_is_written_is_read_again(key, value):
    argument = ArgumentText(key, value)
    assert parse_argument(str(argument)) == argument


@given(st.text())
def test_any_text_is_an_argument_or_one_line(text):
    try:
        parse_argument(text)
    except UsageError as error:
        assert str(error)


@given(st.text(alphabet="x=float32[10]:(),.e-+_ #nuilzerosy", max_size=40))
def test_nearly_right_text_is_an_argument_or_one_line(text):
    try:
        argument = parse_argument(text)
    except UsageError:
        return
    assert parse_argument(str(argument)) == argument


@given(numbers)
def test_numbers_are_exact(number):
    assert parse_number(number_text(number), "") == number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x1F", 31),
        ("0b11", 3),
        ("1_000", 1000),
        ("2.5f", 2.5),
        ("-.5", -0.5),
        ("1e-3", 1e-3),
        ("inf", math.inf),
        ("TRUE", True),
    ],
)
def test_numbers_of_c_and_python(text, value):
    assert parse_number(text, "") == value


@pytest.mark.parametrize("text", ["", "1__0", "0x", "--1", "1e", "one", "1,2", "9" * 5000])
def test_no_numbers(text):
    with pytest.raises(UsageError, match="is not a number"):
        parse_number(text, "--arg x")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("float[8]", ArrayText("float32", (8,), Initialiser("empty"))),
        ("double[2,3]:zeros", ArrayText("float64", (2, 3), Initialiser("zeros"))),
        ("bf16[2x3x4]:uniform", ArrayText("bfloat16", (2, 3, 4), Initialiser("uniform"))),
        ("e4m3[1_024]:normal(0, 2)", ArrayText("float8_e4m3fn", (1024,), Initialiser("normal", (0, 2)))),
        ("int8[4]:7", ArrayText("int8", (4,), Initialiser("constant", (7,)))),
        ("f16[4]:a:b.npy", ArrayText("float16", (4,), Initialiser("file", file="a:b.npy"))),
        ("data.npy", ArrayText("", (), Initialiser("file", file="data.npy"))),
        ("nullptr", NullText()),
        ("None", NullText()),
        ("half(1.5)", ScalarText(1.5, "float16")),
        ("bytes(00ff)", BytesText(b"\x00\xff")),
    ],
)
def test_values(text, value):
    assert parse_argument(f"x={text}").value == value


def test_element_types_of_c_have_their_widths_in_cuda():
    widths = {"float": "float32", "double": "float64", "half": "float16", "unsigned": "uint32", "int": "int32"}
    assert {name: ELEMENT_TYPES[name] for name in widths} == widths


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("x", r"takes NAME=VALUE such as x=float32\[1024\]:uniform or n=1024, not 'x'"),
        ("=3", "takes NAME=VALUE"),
        ("a b=3", "'a b' is neither the name of a parameter nor a position"),
        ("x=flot32[4]", "unknown element type 'flot32'; did you mean 'float32'"),
        ("x=object[4]", "unknown element type 'object'"),
        ("x=float32[4,z]", "'4,z' is not a shape; write whole numbers, as in float32"),
        ("x=float32[]", "'' is not a shape"),
        ("x=float32[1.5]", "'1.5' is not a shape"),
        ("x=float32[0x10]", "must be at least 1, not 0"),
        ("x=float32[4,0]", "must be at least 1, not 0"),
        ("x=float32[-1]", "must be at least 1, not -1"),
        ("x=float32[99999999999999999999999999999999]", "too large a shape"),
        ("x=float32[4]:unifrm", "unknown initialiser 'unifrm'; did you mean 'uniform'"),
        ("x=float32[4]:", "unknown initialiser ''; write empty, zeros"),
        ("x=float32[4]:uniform(1)", "uniform takes 0 or 2 numbers, not 1"),
        ("x=float32[4]:constant", "constant takes 1 number, not 0"),
        ("x=float32[4]:zeros(1)", "zeros takes 0 numbers, not 1"),
        ("x=float32[4]:uniform(a,b)", "'a' is not a number"),
        ("x=float32", r"an array needs a shape, such as float32\[1024\]"),
        ("x=zeros", r"an initialiser follows an element type and a shape: float32\[1024\]:zeros"),
        ("x=data.txt", "'data.txt' is neither a number nor an array"),
        ("x=bytes(0)", "pairs of hexadecimal digits"),
    ],
)
def test_wrong_arguments_name_place_and_fix(text, match):
    with pytest.raises(UsageError, match=match):
        parse_argument(text)


@pytest.mark.parametrize(
    ("text", "dim"), [("4", (4, 1, 1)), ("4,2", (4, 2, 1)), ("4x2x3", (4, 2, 3)), (" 4 , 2 ", (4, 2, 1))]
)
def test_grids(text, dim):
    assert parse_dim3(text, "--grid") == dim


@pytest.mark.parametrize("text", ["", "4x", "1,2,3,4", "a", "0", "-1", "1.5", "9" * 30])
def test_wrong_grids(text):
    with pytest.raises(UsageError, match="--grid"):
        parse_dim3(text, "--grid")


def test_files_by_name_and_position():
    assert parse_files(["y=out.npy", "1=a=b.npy"], "--output") == {"y": "out.npy", "#1": "a=b.npy"}
    for wrong in (["y"], ["y=out.txt"], ["=a.npy"], ["y=a.npy", "y=b.npy"], ["#1=a.npy", "1=b.npy"]):
        with pytest.raises(UsageError, match="--output"):
            parse_files(wrong, "--output")
