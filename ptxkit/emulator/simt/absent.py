"""The instruction forms of PTX that the emulator does not execute, each with its reason.

Every other form of the manual that ptxas takes is executed; ``tests/emulator/instructions/test_manual_forms.py`` compares.
``docs/ptx_forms.md`` is written from this list by ``scripts/write_forms.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Absent:
    """Forms that are not executed.

    Attributes:
        forms: as the manual writes them, for the documentation.
        reason: a sentence without its full stop.
        opcodes: a regular expression of the opcodes; "" where the operands decide.
        examples: statements that are refused, for the test.
    """

    forms: str
    reason: str
    opcodes: str = ""
    examples: tuple[str, ...] = ()


_COORDINATES = "[%rd1, {%f1, %f2}]"
_RESULT = "{%f0, %f1, %f2, %f3}"

DEPTH = Absent(
    "tex, tld4 with a value to compare with",
    "a depth comparison needs a sampler that compares, which CUDA's texture objects do not have",
    examples=(
        f"tex.2d.v4.f32.f32 {_RESULT}, {_COORDINATES}, %f4;",
        f"tld4.r.2d.v4.f32.f32 {_RESULT}, {_COORDINATES}, %f4;",
    ),
)
SAMPLER = Absent(
    "tex, tld4 with an explicit sampler",
    "an explicit sampler needs .target texmode_independent, which CUDA's texture objects are not for",
    examples=(f"tex.2d.v4.f32.f32 {_RESULT}, [%rd1, %rd2, {{%f1, %f2}}];",),
)
MULTI_SAMPLE = Absent(
    "tex.2dms, tex.a2dms",
    "CUDA has no multi-sample textures",
    examples=(f"tex.2dms.v4.f32.s32 {_RESULT}, [%rd1, {{%r1, %r2, %r3, %r4}}];",),
)
OFFSETS = Absent(
    "tex, tld4 with offsets in registers, or outside of -8 to 7",
    "offsets are constants from -8 to 7; the manual does not say what a GPU does with others",
    examples=(
        f"tex.2d.v4.f32.f32 {_RESULT}, {_COORDINATES}, {{%r1, %r2}};",
        f"tex.2d.v4.f32.f32 {_RESULT}, {_COORDINATES}, {{1, 20}};",
    ),
)
WHOLE_GRADIENTS = Absent(
    "tex.grad with .s32 coordinates",
    "gradients choose between levels by float coordinates; the manual does not say what they do with whole ones",
    examples=(f"tex.grad.2d.v4.f32.s32 {_RESULT}, [%rd1, {{%r1, %r2}}], {{%f1, %f2}}, {{%f3, %f4}};",),
)

REFERENCES = Absent(
    ".texref, .samplerref and .surfref variables of module scope",
    "nothing binds them: CUDA 12 has no texture and surface references any more; pass objects as arguments",
)

ABSENT = (
    REFERENCES,
    Absent(
        "alloca, stacksave, stackrestore",
        "the emulator determines the local memory of a thread before the launch; use an array of a fixed size",
        r"(alloca|stacksave|stackrestore)\..*",
        ("alloca.u64 %rd1, %rd2, 16;", "stacksave.u64 %rd1;", "stackrestore.u64 %rd1;"),
    ),
    Absent(
        "fma.rn.oob",
        "the manual does not say which NaN, and of which operands, counts as out of bounds",
        r"fma\.rn\.oob\..*",
        ("fma.rn.oob.f16 %h1, %h2, %h3, %h4;", "fma.rn.oob.relu.bf16x2 %r1, %r2, %r3, %r4;"),
    ),
    Absent(
        "multimem.cp.async.bulk, multimem.cp.reduce.async.bulk",
        "multicast objects span several GPUs; multimem.ld_reduce, multimem.st and multimem.red are executed for one device",
        r"multimem\.cp\..*",
    ),
    Absent(
        "shfl, vote without .sync, in modules for sm_70 and newer from .version 6.4 on",
        "ptxas refuses it; write .sync and a member mask",
        "",
        ("shfl.idx.b32 %r1, %r2, %r3, %r4;", "vote.all.pred %p1, %p2;"),
    ),
    Absent(
        "suq.channel_data_type, .channel_order, .array_size, .memory_layout",
        "the CUDA driver does not load a kernel with this query (CUDA_ERROR_NOT_SUPPORTED, driver 580)",
        r"suq\.(channel_data_type|channel_order|array_size|memory_layout)\..*",
        ("suq.memory_layout.b32 %r1, [%rd1];", "suq.array_size.b32 %r1, [%rd1];"),
    ),
    Absent(
        "txq of anything but .width, .height and .depth",
        "the CUDA driver does not load a kernel with this query (CUDA_ERROR_NOT_SUPPORTED, driver 580)",
        r"txq\.(?!(level\.)?(width|height|depth)\.).*",
        (
            "txq.array_size.b32 %r1, [%rd1];",
            "txq.addr_mode_0.b32 %r1, [%rd1];",
            "txq.normalized_coords.b32 %r1, [%rd1];",
        ),
    ),
    DEPTH,
    SAMPLER,
    MULTI_SAMPLE,
    OFFSETS,
    WHOLE_GRADIENTS,
)


def reason_for(opcode: str) -> str:
    """Why an opcode is not executed, to be appended to a message: ``: CUDA has no …``; "" if no reason is known."""
    found = next((a for a in ABSENT if a.opcodes and re.fullmatch(a.opcodes, opcode)), None)
    return "" if found is None else f": {found.reason}"
