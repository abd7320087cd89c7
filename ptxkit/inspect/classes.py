"""Instruction classes: SASS and PTX opcodes by purpose, and the mix of a function, a loop or a module.

The opcodes are those of NVIDIA's "CUDA Binary Utilities", tables "Instruction Set Reference" for Turing to Blackwell, and
further ones that ptxas 13 was observed to emit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxkit.inspect.model import SassFunction, SassInstruction

if TYPE_CHECKING:
    from ptxkit.isa.model import Function, Instruction

GROUPS: dict[str, str] = {
    "tensor": """HMMA IMMA DMMA BMMA QMMA OMMA HGMMA IGMMA QGMMA BGMMA UTCHMMA UTCIMMA UTCQMMA UTCOMMA""",
    "fp32": """FFMA FADD FMUL FFMA2 FADD2 FMUL2 FFMA32I FADD32I FMUL32I FSETP FSET FSEL FMNMX FMNMX3 FSWZADD FCHK FRND
        UFADD UFMUL UFFMA UFSETP UFSET UFSEL UFMNMX UFRND""",
    "fp16": """HFMA2 HADD2 HMUL2 HSETP2 HSET2 HMNMX2 HADD2_32I HFMA2_32I HMUL2_32I FHADD FHFMA""",
    "fp64": """DFMA DADD DMUL DSETP""",
    "integer": """IMAD IADD IADD3 IADD32I IABS IDP IDP4A IMNMX IMUL IMUL32I ISETP ISCADD ISCADD32I LEA LOP LOP3 LOP32I BMSK BREV
        FLO POPC SGXT SHF SHL SHR VABSDIFF VABSDIFF4 VIADD VIADDMNMX VIMNMX VIMNMX3 VHMNMX UIADD3 UIMAD UISETP ULEA ULOP ULOP3
        ULOP32I USHF USHL USHR UBMSK UBREV UFLO UPOPC USGXT UIABS UVIADD UVIMNMX""",
    "move": """MOV MOV32I MOVM SEL PRMT S2R S2UR CS2R CS2UR R2UR UMOV USEL UPRMT P2R R2P PLOP3 PSETP UPLOP3 UPSETP UP2UR UR2UP
        B2R R2B LEPC GETLMEMBASE SETLMEMBASE QSPC""",
    "convert": """F2F F2I F2FP F2IP I2F I2I I2IP I2FP UF2F UF2I UF2FP UF2IP UI2F UI2I UI2FP""",
    "special": """MUFU""",
    "global": """LDG STG LD ST LDGSTS LDGMC LDGDEPBAR ATOM ATOMG RED REDG CCTL CCTLL CCTLT USTGR UREDGR""",
    "shared": """LDS STS LDSM STSM ATOMS STAS REDAS""",
    "local": """LDL STL""",
    "constant": """LDC LDCU ULDC""",
    "bulk": """UTMALDG UTMASTG UTMAREDG UTMAPF UTMACCTL UTMACMDFLUSH UBLKCP UBLKRED UBLKPF""",
    "tensor memory": """LDT STT LDTM STTM UTCCP UTCSHIFT UTCATOMSWS UTCBAR""",
    "texture": """TEX TLD TLD4 TMML TXD TXQ SUATOM SULD SURED SUST""",
    "sync": """BAR DEPBAR SYNCS MEMBAR ERRBAR FENCE UCGABAR_ARV UCGABAR_WAIT CGAERRBAR WARPGROUP WARPGROUPSET WARPSYNC
        ENDCOLLECTIVE ACQBULK ACQSHMINIT PREEXIT NANOSLEEP USETMAXREG UGETNEXTWORKID""",
    "warp": """SHFL VOTE VOTEU MATCH REDUX CREDUX ELECT""",
    "control": """BRA BRX BRXU JMP JMX JMXU CALL RET EXIT KILL BSSY BSYNC BREAK BMOV BPT YIELD RPCMOV RTT NOP PMTRIG""",
}
"""Group -> opcodes, in the order in which groups are listed."""

_GROUP_OF = {opcode: group for group, opcodes in GROUPS.items() for opcode in opcodes.split()}
_WITH_WIDTH = frozenset("LDG STG LD ST LDS STS LDL STL LDGSTS LDC LDCU ULDC".split())
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}


def group_of(instruction: SassInstruction) -> str:
    """The group of an instruction: a key of :data:`GROUPS`, or ``"other"`` for unknown opcodes."""
    if _is_move(instruction):
        return "move"
    return _GROUP_OF.get(instruction.opcode, "other")


def _is_move(instruction: SassInstruction) -> bool:
    """Whether an arithmetic instruction only moves a value: ptxas spreads moves over the pipes, as IMAD.MOV and as
    -0 * 0 + constant."""
    if instruction.opcode == "IMAD":
        return "MOV" in instruction.modifiers
    return instruction.opcode == "HFMA2" and ", -RZ, RZ, " in instruction.operands


def width_bits(instruction: SassInstruction) -> int:
    """The width of a thread's load or store in bits: 8 to 256."""
    return next((_WIDTHS[m] for m in reversed(instruction.modifiers) if m in _WIDTHS), 32)


def class_of(instruction: SassInstruction) -> str:
    """The class an instruction is counted in: its opcode, with the width in bits of a load or store: ``"LDG.128"``."""
    if instruction.opcode in _WITH_WIDTH:
        return f"{instruction.opcode}.{width_bits(instruction)}"
    if _is_move(instruction):
        return f"{instruction.opcode}.MOV"
    return instruction.opcode


@dataclass(frozen=True)
class Mix:
    """The number of instructions of each class in a piece of code: static counts, not executions.

    Attributes:
        total: instructions.
        groups: group -> count, in the order of :data:`GROUPS`; groups without instructions are left out.
        classes: group -> class (``"LDG.128"``) -> count, the most frequent first.
    """

    total: int
    groups: Mapping[str, int]
    classes: Mapping[str, Mapping[str, int]]

    def count(self, name: str) -> int:
        """Instructions of a class (``"LDG.128"``), an opcode (``"LDG"``) or a group (``"tensor"``)."""
        if name in self.groups:
            return self.groups[name]
        every = [item for found in self.classes.values() for item in found.items()]
        return sum(count for key, count in every if name in (key, key.split(".")[0]))


def mix(what: SassFunction | Iterable[SassInstruction]) -> Mix:
    """The mix of a kernel's SASS, or of any of its instructions, such as a loop's."""
    instructions = what.instructions if isinstance(what, SassFunction) else what
    return _counted(((group_of(i), class_of(i)) for i in instructions), [*GROUPS, "other"])


# Groups of PTX instructions; the first pattern that matches the start of the opcode decides.

_PTX_SPACES = ("global", "shared::cta", "shared::cluster", "shared", "local", "const", "param")
_PTX_GROUPS = {
    "tensor": r"mma|wmma|wgmma|tcgen05\.mma",
    "tensor memory": r"tcgen05",
    "bulk": r"cp\.async\.bulk|cp\.reduce\.async\.bulk|tensormap",
    "async copy": r"cp\.async",
    "memory": r"ld|st|ldu|atom|red|prefetch|ldmatrix|stmatrix|multimem|cvta|isspacep|discard|applypriority|createpolicy",
    "sync": r"bar|barrier|mbarrier|membar|fence|griddepcontrol|setmaxnreg|nanosleep|clusterlaunchcontrol",
    "warp": r"shfl|vote|match|redux|elect|activemask",
    "control": r"bra|brx|call|ret|exit|trap|brkpt",
    "special": r"sin|cos|ex2|lg2|rcp|rsqrt|sqrt|tanh",
    "convert": r"cvt",
    "move": r"mov|selp|prmt|movmatrix|mapa|getctarank",
    "texture": r"tex|tld4|txq|suld|sust|sured|suq",
}
PTX_GROUPS = ("tensor", "fp32", "fp16", "fp64", "integer", *list(_PTX_GROUPS)[1:], "other")


def ptx_mix(function: Function) -> Mix:
    """The mix of a PTX function; a class is an opcode with space and vector, or type: ``"ld.global.v4"``, ``"fma.f32"``."""
    return _counted((_ptx_class(i) for i in function.instructions), PTX_GROUPS)


def _ptx_class(instruction: Instruction) -> tuple[str, str]:
    opcode = instruction.opcode
    group = next((g for g, pattern in _PTX_GROUPS.items() if re.match(rf"({pattern})\b", opcode)), "")
    parts = instruction.modifiers
    if group == "memory":
        kept = [p for p in parts if p in _PTX_SPACES or re.fullmatch(r"v[248]|add|cas|exch|min|max|x[124]", p)]
        return group, ".".join([instruction.name, *kept])
    if group in ("tensor", "bulk", "async copy", "tensor memory", "sync"):
        words = [p for p in parts if not re.fullmatch(r"[a-z]?\d+.*|sync|aligned|row|col|L2.*|x\d+", p)]
        return group, ".".join([instruction.name, *words[:3]])
    kind = next((p for p in reversed(parts) if re.fullmatch(r"[bsuf]\d+(x2)?|bf16(x2)?|pred", p)), "")
    if not group:
        floats = {"f64": "fp64", "f32": "fp32", "f32x2": "fp32", "f16": "fp16", "f16x2": "fp16", "bf16": "fp16"}
        group = floats.get(kind, "fp16" if kind == "bf16x2" else "integer")
    return group, f"{instruction.name}.{kind}" if kind else instruction.name


def _counted(pairs: Iterable[tuple[str, str]], order: Iterable[str]) -> Mix:
    counted: dict[str, Counter[str]] = {}
    for group, name in pairs:
        counted.setdefault(group, Counter())[name] += 1
    classes = {group: dict(counted[group].most_common()) for group in order if group in counted}
    groups = {group: sum(found.values()) for group, found in classes.items()}
    return Mix(sum(groups.values()), groups, classes)
