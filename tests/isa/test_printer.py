"""parse(format_module(m)) == m, for modules drawn at random and for PTX from the compiler (test_compiler_ptx.py)."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ptxkit.errors import PtxSyntaxError
from ptxkit.isa.model import (
    Address,
    Function,
    Immediate,
    Instruction,
    Loc,
    Module,
    Negated,
    Pair,
    Predicate,
    Prototype,
    Register,
    Selection,
    SpecialRegister,
    Symbol,
    Variable,
    Vector,
)
from ptxkit.isa.parser import parse
from ptxkit.isa.printer import format_function, format_module
from ptxkit.isa.types import TYPES

FILES = {1: "a.cu", 2: 'dir/"b".cuh'}
REGISTERS = {"%r0": "b32", "%r1": "b32", "%rd0": "b64", "f$1": "f32", "p": "pred", "w": "b128"}

names = st.sampled_from(["g0", "g1", "table", "$x", "_y", "%z"])
sizes = st.sampled_from([1, 2, 4, 8, 16, 128])
data_types = st.sampled_from(
    [t for t in TYPES.values() if t.name in ("b8", "u16", "s32", "b64", "f32", "f64", "bf16", "b128")]
)


@st.composite
def variables(draw, space):
    ptx_type = draw(data_types)
    vector = draw(st.sampled_from([1, 2, 4])) if ptx_type.bits <= 32 else 1
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=1 if space == "global" else 2)))
    variable = Variable("", space, ptx_type, draw(sizes), shape, vector)
    if space != "global" or ptx_type.bits > 64 or not draw(st.booleans()):  # a constant has 64 bits at most
        return variable
    init = draw(st.binary(min_size=variable.bytes, max_size=variable.bytes))
    relocations = ()
    if ptx_type.name == "b64":
        init = bytes(8) + init[8:]
        relocations = (
            (0, "other", draw(st.sampled_from([0, 8, -4])), draw(st.booleans()), draw(st.sampled_from([0, 0xFF00]))),
        )
    return replace(variable, init=init, relocations=relocations)


registers = st.sampled_from([Register(name) for name in REGISTERS])
symbols = st.builds(Symbol, st.sampled_from(["other", "param", "local", "END"]), st.sampled_from([0, 4, -8]))
immediates = st.one_of(
    st.integers(-(2**63) + 1, 2**64 - 1).map(Immediate),
    st.floats(allow_nan=False, allow_infinity=False).map(Immediate),
    st.sampled_from([Immediate(1.0, 32, 0x3F800000), Immediate(-2.0, 64, 0xC000000000000000)]),
)
specials = st.sampled_from(["%tid.x", "%clock64", "%lanemask_lt", "%nctaid", "%envreg31"]).map(SpecialRegister)
scalars = st.one_of(registers, immediates, st.none())
lists = st.lists(scalars, min_size=1, max_size=4).map(tuple)
addresses = st.builds(
    Address,
    st.one_of(registers, st.builds(Symbol, st.just("other"))),
    st.integers(-(2**31), 2**31),
    st.one_of(st.just(()), lists),
)
operands = st.one_of(
    scalars,
    symbols,
    specials,
    addresses,
    st.builds(Vector, lists),
    st.builds(Negated, registers, st.sampled_from("!-")),
    st.builds(Pair, st.one_of(registers, st.none(), st.builds(Vector, lists)), st.one_of(registers, st.none())),
    st.builds(Selection, registers, st.sampled_from(["b0", "h1", "b3210"])),
)
opcodes = st.sampled_from(
    ["mov.u32", "cp.async.bulk.tensor.2d.shared::cta.global", "tcgen05.ld.32x32b.x2", "ret", "bar.sync"]
)
places = st.builds(Loc, st.sampled_from(list(FILES.values())), st.integers(0, 9), st.integers(0, 3))
locs = st.one_of(places, st.builds(Loc, st.just("a.cu"), st.just(5), st.just(1), places))
instructions = st.builds(
    Instruction,
    opcodes,
    st.lists(operands, max_size=4).map(tuple),
    st.one_of(st.none(), st.builds(Predicate, st.just(Register("p")), st.booleans())),
    st.just(0),
    locs,
)


@st.composite
def modules(draw):
    body = tuple(draw(st.lists(instructions, max_size=8)))
    labels = {f"L{n}": draw(st.integers(0, len(body))) for n in range(draw(st.integers(0, 3)))}
    labels["END"] = len(body)
    function = Function(
        "k",
        True,
        (replace(draw(variables("param")), name="param", ptr=draw(st.sampled_from([None, ("global", 16), ("", 1)]))),),
        registers={name: TYPES[t] for name, t in REGISTERS.items()},
        variables={"local": replace(draw(variables("shared")), name="local")},
        instructions=body,
        labels=labels,
        branch_targets={"ts": ("END", *list(labels)[:1])},
        prototypes={
            "proto": Prototype(
                tuple(replace(v, name="_") for v in draw(st.lists(variables("param"), max_size=1))),
                tuple(replace(v, name="_") for v in draw(st.lists(variables("param"), max_size=3))),
                draw(st.booleans()),
            )
        },
        directives=draw(
            st.sampled_from([{}, {"maxntid": (256, 1, 1), "pragma": ("nounroll",), "explicitcluster": ()}])
        ),
        linkage=draw(st.sampled_from(["", "visible", "weak"])),
    )
    module_variables = {name: replace(draw(variables("global")), name=name) for name in draw(st.sets(names))}
    module_variables["other"] = Variable("other", "global", TYPES["b8"], 1, (64,), attributes=("managed",))
    module_variables["dyn"] = Variable("dyn", "shared", TYPES["b8"], 16, (0,), linkage="extern")
    prototype = Function("vprintf", False, (), (), linkage="extern", declared_only=True)
    functions = {"vprintf": prototype, "k": function}
    return Module((9, 0), "sm_100a", ("debug",), 64, module_variables, functions, FILES, "")


def without_lines(module):
    """The module without what printing does not preserve: PTX lines, the text, the path."""

    def strip(function):
        return replace(
            function,
            line=0,
            params=tuple(replace(p, line=0) for p in function.params),
            returns=tuple(replace(p, line=0) for p in function.returns),
            variables={name: replace(v, line=0) for name, v in function.variables.items()},
            prototypes={
                name: replace(
                    p,
                    params=tuple(replace(v, line=0) for v in p.params),
                    returns=tuple(replace(v, line=0) for v in p.returns),
                )
                for name, p in function.prototypes.items()
            },
            instructions=tuple(replace(i, line=0) for i in function.instructions),
        )

    return replace(
        module,
        text="",
        path="",
        variables={name: replace(v, line=0) for name, v in module.variables.items()},
        functions={name: strip(f) for name, f in module.functions.items()},
    )


@settings(max_examples=150, deadline=None)
@given(modules())
def test_a_printed_module_parses_to_itself(module):
    assert without_lines(parse(format_module(module))) == without_lines(module)


@settings(max_examples=150, deadline=None)
@given(modules(), st.data())
def test_damaged_text_is_refused_with_a_place_or_still_parses(module, data):
    text = format_module(module)
    start = data.draw(st.integers(0, len(text)))
    damage = data.draw(st.text(alphabet='{}[]();,:<>@!|.-+*/"%$_0f1a \n', max_size=6))
    damaged = text[:start] + damage + text[start + data.draw(st.integers(0, 12)) :]
    try:
        parse(damaged, "d.ptx")
    except PtxSyntaxError as error:
        line, column = map(int, str(error).split(":")[1:3])
        assert 1 <= line <= damaged.count("\n") + 1
        assert len(error.log.split("\n")[-1]) == column + 2


def test_one_function_is_printed_without_its_module():
    module = parse(".version 9.0\n.target sm_90a\n.entry k()\n{\n.reg .b32 %r<1>; L: mov.u32 %r0, 1; bra L;\n}")
    assert format_function(module.functions["k"]) == (
        ".entry k ()\n{\n\t.reg .b32 %r0;\nL:\n\tmov.u32 %r0, 1;\n\tbra L;\n}\n"
    )  # fmt: skip
