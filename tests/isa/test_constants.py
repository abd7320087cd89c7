import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.errors import PtxSyntaxError
from ptxkit.isa.constants import parse_constant, parse_integer
from ptxkit.isa.lexer import Tokens
from ptxkit.isa.model import Immediate


def value(text):
    tokens = Tokens(text)
    result = parse_constant(tokens)
    assert tokens.text == "", f"'{tokens.text}' is left over"
    return result


# Expected values: PTX ISA, "Integer Constant Expression Evaluation" and its summary table.
@pytest.mark.parametrize(
    "text, expected",
    [
        ("0", 0), ("42", 42), ("42U", 42), ("0x1F", 31), ("0XffU", 255), ("017", 15), ("0b101", 5), ("WARP_SZ", 32),
        ("-1", -1), ("-(-42)", 42), ("+7", 7), ("-1U", 2**64 - 1), ("~0", 2**64 - 1), ("!5", 0), ("!0", 1),
        ("0xffffffffffffffff", 2**64 - 1), ("9223372036854775807", 2**63 - 1), ("-9223372036854775808", 2**63),
        ("1+2*3", 7), ("(1+2)*3", 9), ("(4*8)", 32), ("10-4-3", 3), ("-7/2", -3), ("7/-2", -3), ("7 % 3", 1),
        ("-1 % 10", 5),  # the remainder takes -1 as 2**64 - 1
        ("1<<4", 16), ("-16>>2", -4), ("-1U>>60", 15), ("1<<64", 0), ("0xF0&0x3C", 0x30), ("1|6^2", 5),
        ("1<2", 1), ("-1<1U", 0), ("3==3&&2!=2", 0), ("0||5", 1), ("1?2:3", 2), ("0?2:1?4:5", 4),
        ("(.u64)-1", 2**64 - 1), ("(.s64)0xffffffffffffffff", -1), ("(.u64)5", 5), ("WARP_SZ*2-1", 63),
        ("1.5", 1.5), (".5", 0.5), ("1.", 1.0), ("1e3", 1000.0), ("-2.5e-1", -0.25), ("1.5+2.0", 3.5), ("1.0<2.0", 1),
        ("1?1.5:2.5", 1.5), ("3.0/2.0", 1.5),
    ],
)  # fmt: skip
def test_expressions(text, expected):
    assert value(text) == Immediate(expected)
    assert type(value(text).value) is type(expected)


@pytest.mark.parametrize(
    "text, message",
    [
        ("1/0", "division by zero"), ("1 % 0", "division by zero"), ("1.0/0.0", "division by zero"),
        ("1+1.0", "mixes an integer and a float"), ("1.0 % 2.0", "takes integers"), ("1.0&2.0", "takes integers"),
        ("~1.0", "takes an integer"), ("(.u64)1.0", "no cast from float"), ("1.0?1:2", "must be an integer"),
        ("1?1:2.0", "both integers or both floats"), ("0x1G", "'0x1G' is not a number"), ("09", "'09' is not a number"),
        ("18446744073709551616", "does not fit 64 bits"), ("0f3F80", "not a number"), ("1e999", "not a number"),
        ("%r1", "expected a constant"), ("(1", r"expected '\)'"), ("1?2", "expected ':'"), ("", "end of the text"),
    ],
)  # fmt: skip
def test_errors(text, message):
    with pytest.raises(PtxSyntaxError, match=message):
        value(text)


def test_an_integer_is_demanded():
    with pytest.raises(PtxSyntaxError, match="expected a size, an integer"):
        parse_integer(Tokens("1.5"), "a size")


@given(st.integers(0, 2**32 - 1))
def test_exact_f32_keeps_its_bits(bits):
    result = value(f"0f{bits:08X}")
    assert (result.width, result.bits) == (32, bits)
    number = struct.unpack("<f", struct.pack("<I", bits))[0]
    assert result.value == number or (math.isnan(number) and math.isnan(result.value))
    assert value(str(result)) == result
    assert value(f"-0f{bits:08X}").bits == bits ^ 0x8000_0000


@given(st.integers(0, 2**64 - 1))
def test_exact_f64_keeps_its_bits(bits):
    result = value(f"0d{bits:016x}")
    assert (result.width, result.bits) == (64, bits)
    assert value(str(result)) == result


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_decimal_floats(number):
    assert value(repr(number)) == Immediate(number)


_INTEGERS = st.recursive(
    st.integers(0, 1000).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" + ", " - ", " * ", " | ", " ^ ", " & "]), inner).map("".join),
        inner.map("({})".format),
        inner.map("-({})".format),
    ),
    max_leaves=8,
)


@given(_INTEGERS)
def test_integer_expressions_agree_with_python(text):
    expected = eval(text)
    assert value(text).value % 2**64 == expected % 2**64
