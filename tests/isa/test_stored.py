"""A module that was stored is the module that was parsed, and its functions are read when they are used."""

import pickle
import struct
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.isa import stored
from ptxkit.isa.model import Function
from ptxkit.isa.parser import parse

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
TEXT = (
    HEAD
    + """.file 1 "one.cu"
.global .align 8 .u64 table[2] = {generic(value), 7};
.visible .global .u32 value;
.func (.reg .u32 result) twice (.reg .u32 given)
{
    add.u32 result, given, given;
    ret;
}
.visible .entry first(.param .u64 out, .param .align 16 .b8 rest[32]) .maxntid 128, 1, 1
{
    .reg .pred %p<2>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<3>;
    .reg .f32 %f<2>;
    .shared .align 16 .b8 tile[64];
    .loc 1 4 5
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 16;
    @!%p1 bra DONE;
    mov.f32 %f1, 0f3F800000;
    call (%r2), twice, (%r1);
    st.global.v2.u32 [%rd1+8], {%r1, %r2};
    st.shared.f32 [tile+4], %f1;
DONE:
    ret;
}
.visible .entry second()
{
    .reg .b64 %rd<2>;
    mov.u64 %rd1, value;
    ret;
}
"""
)
OTHERS = sorted((Path(__file__).parents[2] / "ptx").rglob("*.ptx"))


def round_trip(module):
    return stored.from_bytes(stored.to_bytes(module), module.text, module.path)


@pytest.mark.parametrize("text", [TEXT, *(file.read_text() for file in OTHERS)], ids=["all", *(f.stem for f in OTHERS)])
def test_every_attribute_is_kept(text):
    module = parse(text, "one.ptx")
    read = round_trip(module)
    assert replace(read, functions={}) == replace(module, functions={})
    assert list(read.functions) == list(module.functions)
    for name, function in module.functions.items():
        for attribute in (f.name for f in fields(Function)):
            assert getattr(read.functions[name], attribute) == getattr(function, attribute), (name, attribute)
        assert read.functions[name].symbols() == function.symbols()


def test_types_are_the_same_objects():
    read = round_trip(parse(TEXT))
    assert read.functions["first"].registers["%f1"] is parse(TEXT).functions["first"].registers["%f1"]


def test_a_body_is_read_when_it_is_used(monkeypatch):
    read = round_trip(parse(TEXT))
    opened = []
    original = stored._read
    monkeypatch.setattr(stored, "_read", lambda data: opened.append(data) or original(data))
    first = read.functions["first"]
    assert (first.params[0].name, first.variables["tile"].space, first.directives["maxntid"]) == ("out", "shared", (128, 1, 1))
    assert read.functions["second"].symbols() == {"value"}
    assert not opened
    assert len(first.instructions) == 9
    assert first.labels
    assert len(opened) == 1


def test_a_read_function_can_be_changed_before_and_after_its_body_is_read():
    function = round_trip(parse(TEXT)).functions["second"]
    for _ in range(2):
        assert replace(function, name="other").instructions == parse(TEXT).functions["second"].instructions
        assert function.labels == {}


def test_an_attribute_that_does_not_exist_is_an_error():
    with pytest.raises(AttributeError, match="nothing"):
        round_trip(parse(TEXT)).functions["first"].nothing


@given(st.data())
def test_shortened_bytes_are_refused(data):
    whole = stored.to_bytes(parse(TEXT))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ValueError, match="no stored module"):
        stored.from_bytes(whole[:cut], TEXT, "one.ptx")


def test_bytes_that_would_call_something_else_are_refused():
    class Call:
        def __reduce__(self):
            return print, ("called",)

    head = pickle.dumps(Call())
    with pytest.raises(ValueError, match=r"builtins\.print is no part of a module"):
        stored.from_bytes(struct.pack("<Q", len(head)) + head, TEXT, "one.ptx")
