import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.errors import PtxSyntaxError
from ptxkit.isa.parser import parse

HEADER = ".version 8.6\n.target sm_90a\n.address_size 64\n"


def variable(declaration, name="x"):
    return parse(HEADER + declaration).variables[name]


@pytest.mark.parametrize(
    "declaration, space, type_, align, shape, vector, linkage, nbytes",
    [
        (".global .u32 x;", "global", "u32", 4, (), 1, "", 4),
        (".visible .const .align 16 .b8 x[64];", "const", "b8", 16, (64,), 1, "visible", 64),
        (".extern .shared .align 128 .b8 x[];", "shared", "b8", 128, (0,), 1, "extern", 0),
        (".shared .v4 .f32 x;", "shared", "f32", 16, (), 4, "", 16),
        (".shared::cta .f64 x[3][2];", "shared", "f64", 8, (3, 2), 1, "", 48),
        (".shared .align 8 .b8 x[2*4];", "shared", "b8", 8, (8,), 1, "", 8),
        (".weak .global .b16 x;", "global", "b16", 2, (), 1, "weak", 2),
        (".common .global .b64 x;", "global", "b64", 8, (), 1, "common", 8),
        (".visible .weak .global .b64 x;", "global", "b64", 8, (), 1, "weak", 8),
        (".const[2] .u32 x;", "const", "u32", 4, (), 1, "", 4),
        (".global .b128 x[2];", "global", "b128", 16, (2,), 1, "", 32),
        (".global .texref x;", "global", "texref", 8, (), 1, "", 8),
    ],
)
def test_shapes_and_spaces(declaration, space, type_, align, shape, vector, linkage, nbytes):
    v = variable(declaration)
    assert (v.space, v.type.name, v.align, v.shape, v.vector) == (space, type_, align, shape, vector)
    assert (v.linkage, v.bytes, v.init, v.line) == (linkage, nbytes, None, 4)


def test_several_names_and_ranges_in_one_declaration():
    module = parse(HEADER + ".global .u32 a, b = 7, c[2], d<3>;")
    assert list(module.variables) == ["a", "b", "c", "d0", "d1", "d2"]
    assert module.variables["b"].init == b"\7\0\0\0"


def test_attributes():
    assert variable(".global .attribute(.managed) .align 4 .u32 x;").attributes == ("managed",)
    assert variable(".global .attribute(.managed, .unified(19, 95)) .u32 x;").attributes == ("managed", "unified")


@pytest.mark.parametrize(
    "declaration, shape, init",
    [
        (".global .u32 x = 42;", (), struct.pack("<I", 42)),
        (".global .s16 x = -2;", (), struct.pack("<h", -2)),
        (".global .f32 x = 1.5;", (), struct.pack("<f", 1.5)),
        (".global .f32 x = 1;", (), struct.pack("<f", 1)),
        (".global .f64 x = 0dBFF0000000000000;", (), struct.pack("<d", -1)),
        (".global .f32 x = 0d3FF0000000000000;", (), struct.pack("<f", 1)),
        (".global .b32 x = 0f3F800000;", (), struct.pack("<f", 1)),
        (".const .f32 x[] = {-1.0, 1.0};", (2,), struct.pack("<ff", -1, 1)),
        (".const .f32 x[8] = {0.5};", (8,), struct.pack("<f", 0.5)),
        (".global .s32 x[3][2] = {{1,2},{3}};", (3, 2), struct.pack("<6i", 1, 2, 3, 0, 0, 0)),
        (".global .s32 x[][2] = {{-1,0},{0,-1},{1,0}};", (3, 2), struct.pack("<6i", -1, 0, 0, -1, 1, 0)),
        (".global .v2 .u16 x[2] = {{1,2},{3,4}};", (2,), struct.pack("<4H", 1, 2, 3, 4)),
        (".global .b8 x[4] = {1, 2, 0x3, -1};", (4,), b"\1\2\3\xff"),
        (".global .b8 x[4] = {8, 010};", (4,), b"\10\10"),
        (".global .b8 x[] = {1, 255,};", (2,), b"\1\xff"),
    ],
)
def test_initial_values(declaration, shape, init):
    v = variable(declaration)
    assert v.shape == shape
    assert v.init.ljust(v.bytes, b"\0") == init.ljust(v.bytes, b"\0")
    assert v.relocations == ()


@given(st.lists(st.integers(0, 255), min_size=1, max_size=40))
def test_byte_tables(values):
    assert variable(f".global .b8 x[{len(values)}] = {{{', '.join(map(str, values))}}};").init == bytes(values)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_float_tables(values):
    text = ", ".join(f"0f{np.float32(v).view(np.uint32):08x}" for v in values)
    assert variable(f".global .f32 x[] = {{{text}}};").init == np.array(values, np.float32).tobytes()


def test_addresses_become_relocations():
    v = variable(".global .u32 y; .global .u64 x[] = {y, y+8, generic(y), generic(y)+-4, generic(y)+8+4, 5};")
    assert v.relocations == (
        (0, "y", 0, False, 0), (8, "y", 8, False, 0), (16, "y", 0, True, 0), (24, "y", -4, True, 0), (32, "y", 12, True, 0),
    )  # fmt: skip
    assert v.init == bytes(40) + struct.pack("<Q", 5)
    assert v.shape == (6,)


def test_masks_take_bytes_of_an_address():
    v = variable(".global .u32 y; .global .u8 x[] = {0xff(y), 0xFF00(y+4), 0xff(generic(y)+4), 0xFF00(131187)};")
    assert v.relocations == ((0, "y", 0, False, 0xFF), (1, "y", 4, False, 0xFF00), (2, "y", 4, True, 0xFF))
    assert v.init == bytes([0, 0, 0, 131187 >> 8 & 0xFF])


@pytest.mark.parametrize(
    "declaration, message",
    [
        (".global .u64 x = generic(y+4);", "an offset only after generic"),
        (".global .u64 x = generic(y)-4;", r"only \+ before the offset"),
        (".global .u64 x = y-4;", r"only \+ before the offset"),
        (".global .u8 x[] = {0xff(y-4)};", r"only \+ before the offset"),
        (".global .u33 x;", r"<ptx>:4:9: found '.u33', expected a type"),
        (".global x;", "found 'x', expected a type"),
        (".global .u32 ;", "found ';', expected a name"),
        (".global .u32 .f32 x;", "found '.f32', expected a name"),
        (".global .u32 x", "end of the text, expected ';'"),
        (".global .align 3 .u32 x;", "3 bytes is not a power of two"),
        (".global .u32 x[-1];", "an array of -1 elements"),
        (".global .u32 x<9999999>;", "a range of 9999999 names"),
        (".global .u32 x[1] = {1, 2};", "more initial values than 'x'"),
        (".global .u32 x[2] = {{1}, {2}};", "nested deeper"),
        (".global .u32 x[2][1] = {{1, 2}};", "more than the 4 bytes of a row"),
        (".global .u32 x = 1.5;", "a float initialises .u32"),
        (".global .f32 x = 1e300;", "does not fit .f32"),
        ('.global .b8 x[] = "abc";', "no string initial values"),
        (".global .u8 x = 0(y);", "a mask without bits"),
        (".global .u32 x[2] = {1 2};", "expected ',' or '}'"),
        (".reg .u32 x;", "registers belong into a function"),
        (".extern .pragma x;", "expected '.entry', '.func' or a state space"),
        (".global .attribute(managed) .u32 x;", "expected an attribute"),
    ],
)
def test_errors(declaration, message):
    with pytest.raises(PtxSyntaxError, match=message):
        parse(HEADER + declaration)


def test_a_definition_completes_an_extern_declaration():
    module = parse(HEADER + ".extern .global .u32 x;\n.visible .global .u32 x = 3;\n.extern .global .u32 x;")
    assert module.variables["x"].init == struct.pack("<I", 3)
