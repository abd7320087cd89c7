import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.errors import PtxSyntaxError
from ptxkit.isa.lexer import Tokens, is_identifier, unescape, unescape_path


def texts(source):
    tokens = Tokens(source)
    return tokens.texts[: tokens.texts.index("")]


@pytest.mark.parametrize(
    "source, expected",
    [
        ("ld.global.nc.v4.f32 {%f1,_}, [%rd1+-4];",
         ["ld.global.nc.v4.f32", "{", "%f1", ",", "_", "}", ",", "[", "%rd1", "+", "-", "4", "]", ";"]),
        ("cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [a]",
         ["cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes", "[", "a", "]"]),
        ("tcgen05.ld.sync.aligned.32x32b.x2.b32", ["tcgen05.ld.sync.aligned.32x32b.x2.b32"]),
        ("mov .f32 a, .5;", ["mov", ".f32", "a", ",", ".5", ";"]),
        ("tex .1d .v4", ["tex", ".1d", ".v4"]),
        (".05e3 1. 1e-3 3.25E+2 7U", [".05e3", "1.", "1e-3", "3.25E+2", "7U"]),
        ("0f3F800000 0dBFF0000000000000 0x1E+5", ["0f3F800000", "0dBFF0000000000000", "0x1E", "+", "5"]),
        (".reg .b32 %r<100>;", [".reg", ".b32", "%r", "<", "100", ">", ";"]),
        ("@!%p1 bra $L__BB0_2;", ["@", "!", "%p1", "bra", "$L__BB0_2", ";"]),
        ("a<<2>>1>=b==c&&d||e|f", ["a", "<<", "2", ">>", "1", ">=", "b", "==", "c", "&&", "d", "||", "e", "|", "f"]),
        ('.file 1 "a \\"b\\" // no comment.cu"', [".file", "1", '"a \\"b\\" // no comment.cu"']),
        ("L:\r\n\tret;  ", ["L", ":", "ret", ";"]),
        ("%v.x %tid.y r2.b0", ["%v.x", "%tid.y", "r2.b0"]),
    ],
)  # fmt: skip
def test_tokens(source, expected):
    assert texts(source) == expected


def test_comments_and_line_markers_vanish_and_lines_are_kept():
    tokens = Tokens('a // x\n/* b\n * ** / c\n*/ d\n# 1 "f.h"\ne /**/ f')
    assert tokens.texts[:4] == ["a", "d", "e", "f"]
    assert tokens.lines[:4] == [1, 4, 6, 6]


def test_position_finds_the_column_past_comments():
    tokens = Tokens("ab /* x\n */ cd // y\n\tef")
    assert [tokens.position(i) for i in range(3)] == [(1, 1), (2, 5), (3, 2)]
    assert tokens.position(3) == (3, 4)  # the end of the text


def test_error_names_the_place_and_shows_the_line():
    tokens = Tokens("ret;\n\tadd.s32 %r1;\n", "k.ptx")
    error = tokens.expected("','", 4)
    assert isinstance(error, PtxSyntaxError)
    assert str(error) == "k.ptx:2:13: found ';', expected ','"
    assert error.log == f"{error}\n  \tadd.s32 %r1;\n  \t           ^"


def test_error_at_the_end_of_the_text():
    tokens = Tokens("ret")
    tokens.i = 1
    with pytest.raises(PtxSyntaxError, match=r"<ptx>:1:4: found the end of the text, expected ';'"):
        tokens.expect(";")


@pytest.mark.parametrize(
    "source, found", [('"abc', "a string without its closing quote"), ("/* abc", "a comment without")]
)
def test_what_is_never_closed_is_said(source, found):
    assert found in str(Tokens(source).expected("x", 0))


def test_long_tokens_are_cut_in_messages():
    assert len(str(Tokens("a" * 500).expected("x", 0))) < 120


def test_unescape():
    assert unescape(r'"C:\\k \"q\" \n\x41\101\/"') == 'C:\\k "q" \nAA/'


@given(st.lists(st.sampled_from(["%r1", "ld.u32", "12", "0f3F800000", "[", "]", ";", ",", "<<", '"s"', ".b32", "@"])))
def test_tokens_survive_any_white_space(words):
    assert texts(" \n".join(words)) == words
    assert texts("/* */\t".join(words)) == words


@given(st.text(max_size=200))
def test_any_text_has_tokens_with_positions(source):
    tokens = Tokens(source)
    count = tokens.texts.index("")
    lines = source.split("\n")
    for i in range(count):
        line, column = tokens.position(i)
        assert lines[line - 1][column - 1 :].startswith(tokens.texts[i].split("\n")[0])


def test_is_identifier():
    assert all(map(is_identifier, ["a", "%r1", "$L", "_x", "ld.u32", "Z$"]))
    assert not any(map(is_identifier, ["", "_", "%", "$", "1a", ".b32", "[", "é"]))


def test_escaped_bytes_are_utf_8():
    assert unescape(r'"/\303\274n\303\257/\346\227\245.cu"') == "/ünï/日.cu"
    assert unescape(r'"\377ü"') == "\ufffdü"


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/ü/k.cu", "/ü/k.cu"),
        (r"/a \303\274n\303\257/k.cu", "/a ünï/k.cu"),
        (r"/x/\303/251.cu", "/x/é.cu"),
        (r"/x/\346\227/245\303\251.cu", "/x/日é.cu"),
        (r"/\303\274/251.cu", "/ü/251.cu"),
        (r"C:\300\200", r"C:\300\200"),
    ],
)
def test_paths_of_line_tables(path, wanted):
    assert unescape_path(path) == wanted
