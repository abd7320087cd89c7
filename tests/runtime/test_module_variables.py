"""Which variables of a module kernels can write."""

from ptxkit.isa.parser import parse
from ptxkit.runtime.module_variables import written_variables

PTX = """
.version 8.0
.target sm_90
.address_size 64
.global .align 4 .u32 stored;
.global .align 4 .u32 pointed;
.global .align 8 .u64 table[1] = {generic(pointed)};
.global .align 4 .u32 passed;
.global .align 4 .u32 guarded;
.global .align 4 .u32 in_no_instruction = 7;
.global .align 1 .b8 $str[2] = {65, 0};
.const .align 4 .u32 constant;

.func callee(.param .b64 p)
{
    .reg .b64 %rd1;
    ld.param.b64 %rd1, [p];
    st.u32 [%rd1], 1;
    ret;
}

.visible .entry k()
{
    .reg .b64 %rd<3>;
    .reg .b32 %r1;
    .param .b64 argument;
    .global .align 4 .u32 inside;
    st.global.u32 [stored+0], 1;
    ld.global.u64 %rd1, [table];
    st.u32 [%rd1], 2;
    cvta.global.u64 %rd2, passed;
    st.param.b64 [argument], %rd2;
    call callee, (argument);
    atom.global.add.u32 %r1, [guarded], 1;
    st.global.u32 [inside], 3;
    ld.global.u8 %r1, [$str];
    ld.const.u32 %r1, [constant];
    ret;
}
"""


def test_variables_that_code_or_an_initialiser_names():
    found = {v.name for v in written_variables(parse(PTX, "k.ptx"))}
    assert found == {"stored", "pointed", "table", "passed", "guarded", "inside"}
