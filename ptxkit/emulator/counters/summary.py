"""Adds up the tallies of a launch to counters, for the whole launch and for each source line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from ptxkit.emulator.counters.counters import Counters, LineCounters
from ptxkit.emulator.counters.tally import UNWRITTEN, Tally
from ptxkit.isa.model import Instruction

_FLOAT_SUFFIX = {"f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64", "tf32"}
_PER_LANE = {"f16x2": 2, "bf16x2": 2, "f32x2": 2}
_FLOPS = {
    "add": 1,
    "sub": 1,
    "mul": 1,
    "fma": 2,
    "mad": 2,
    "div": 1,
    "rcp": 1,
    "sqrt": 1,
    "rsqrt": 1,
    "ex2": 1,
    "lg2": 1,
    "sin": 1,
    "cos": 1,
    "tanh": 1,
}
_CONTROL = {"bra", "brx", "call", "ret", "exit", "trap", "brkpt"}
_LOGIC = {
    "and",
    "or",
    "xor",
    "not",
    "cnot",
    "shl",
    "shr",
    "shf",
    "lop3",
    "prmt",
    "bfe",
    "bfi",
    "bmsk",
    "brev",
    "popc",
    "clz",
    "bfind",
    "fns",
    "szext",
}
_SPECIAL = {"ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt"}
_WARP = {"shfl", "vote", "match", "redux", "elect", "activemask"}
_SYNC = {"bar", "barrier", "mbarrier", "membar", "fence", "nanosleep", "griddepcontrol"}
_TENSOR = {"mma": "mma", "wmma": "mma", "wgmma": "wgmma", "tcgen05": "tcgen05"}
_TEXTURE = {"tex", "tld4", "txq", "istypep"}
_SURFACE = {"suld", "sust", "sured", "suq"}
_MATRIX_MOVES = {"ldmatrix", "stmatrix", "movmatrix"}


@lru_cache(maxsize=8192)
def classify(opcode: str) -> str:
    """Class of an instruction for ``Counters.by_class``."""
    parts = opcode.split(".")
    name, last = parts[0], parts[-1]
    if name == "cp" or parts[:2] in (["st", "async"], ["red", "async"]):
        return "async.copy"
    if name == "multimem":
        return f"{_MULTIMEM[parts[1]]}.global"
    if name in ("ld", "ldu", "st", "atom", "red"):
        space = next(
            (
                p.partition("::")[0]
                for p in parts[1:]
                if p.partition("::")[0] in ("global", "shared", "local", "param", "const")
            ),
            "generic",
        )
        return f"{ {'ld': 'load', 'ldu': 'load', 'st': 'store'}.get(name, 'atomic') }.{space}"
    if name in _CONTROL:
        return "control"
    if name == "wmma" and parts[1] in ("load", "store"):
        return "matrix.move"
    if name in _TENSOR:
        return _TENSOR[name]
    if name in _MATRIX_MOVES:
        return "matrix.move"
    if name in _TEXTURE or name in _SURFACE:
        return "texture" if name in _TEXTURE else "surface"
    if name == "bar" and "warp" in parts:
        return "warp"
    if name in _WARP:
        return "warp"
    if name in _SYNC:
        return "barrier"
    if name in ("mov", "selp", "cvta", "slct"):
        return "move"
    if name == "cvt":
        return "convert"
    if name in ("setp", "set", "testp"):
        return "compare"
    if name in _LOGIC:
        return "logic"
    if last in _FLOAT_SUFFIX:
        if name in _SPECIAL and ("approx" in parts or name in ("ex2", "lg2", "sin", "cos", "tanh")):
            return "special"
        return {"f64": "float64", "f32": "float32", "f32x2": "float32"}.get(last, "float16")
    return "integer"


@lru_cache(maxsize=8192)
def flops_of(opcode: str) -> tuple[str, int]:
    """Floating-point operations of one lane, and their type."""
    parts = opcode.split(".")
    if parts[-1] not in _FLOAT_SUFFIX or parts[0] not in _FLOPS:
        return "", 0
    t = parts[-1]
    return t.removesuffix("x2"), _FLOPS[parts[0]] * _PER_LANE.get(t, 1)


class CountedBlock(Protocol):
    """A basic block: its number, and its instructions with their numbers in the program."""

    index: int
    instructions: list[tuple[int, Instruction]]


class CountedCode(Protocol):
    """A bound kernel: the file that its PTX came from, and its basic blocks."""

    path: str

    @property
    def blocks(self) -> Sequence[CountedBlock]:
        """The basic blocks in the order of their numbers."""


@dataclass
class _Sum:
    """Accumulates the values of :class:`Counters`."""

    n: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    classes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    flops: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    moved: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    remote: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    loops: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    sectors: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    texels: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def freeze(self) -> Counters:
        return Counters(
            **self.n,
            flops=sum(self.flops.values()),
            by_class=dict(self.classes),
            flops_by_type=dict(self.flops),
            async_bytes=dict(self.moved),
            async_sectors=dict(self.sectors),
            texture_bytes=dict(self.texels),
            remote_shared_bytes=dict(self.remote),
            loop_atomics=dict(self.loops),
        )


def summarize(code: CountedCode, tallies: list[Tally]) -> tuple[Counters, list[LineCounters]]:
    """Counters of the launch, and one entry per source line that executed, in order of file and line."""
    total = _Sum()
    lines: dict[tuple[str, int], _Sum] = defaultdict(_Sum)
    for tally in tallies:
        for block in code.blocks:
            lanes, warps = tally.block_lanes[block.index], tally.block_warps[block.index]
            if not warps:
                continue
            for number, i in block.instructions:
                mine = lanes if i.predicate is None else tally.predicated_lanes.get(number, 0)
                for s in (total, lines[_place(code, i)]):
                    _add(s, i, mine, warps, number, tally)
    result = [LineCounters(file, line, s.freeze()) for (file, line), s in sorted(lines.items())]
    return total.freeze(), result


_ACTIONS = {"ld": "load", "ldu": "load", "ldmatrix": "load", "st": "store", "stmatrix": "store", "cp": "copy"}


_MULTIMEM = {"ld_reduce": "load", "st": "store", "red": "atomic"}


def _action(opcode: str) -> str:
    """Whether an instruction loads, stores, copies, or updates memory atomically."""
    name, *parts = opcode.split(".")
    if name == "multimem":
        return _MULTIMEM[parts[0]]
    return parts[0] if name == "wmma" else _ACTIONS.get(name, "atomic")


def _add_accesses(s: _Sum, kind: str, action: str, space: str, row: list[int]) -> None:
    """Add the accesses of one instruction to one state space."""
    nbytes, sectors, passes, conflicts, lanes = row
    where, _, loop = space.partition(".")
    if action == "copy":
        if sectors:
            s.sectors["global_to_shared"] += sectors
        return
    if kind.endswith((".const", ".param")):
        return  # parameters are in the constant bank, or in registers
    if space == "remote":
        s.remote[action] += nbytes
        return
    s.n[f"{where}_{action}_bytes"] += nbytes
    if action == "atomic":
        s.n[f"{where}_atomics"] += lanes
    if loop:
        s.loops[where] += lanes
    elif where == "shared":
        s.n[f"shared_{action}_wavefronts"] += passes
        s.n["shared_bank_conflicts"] += conflicts
    else:
        s.n[f"{where}_{action}_sectors"] += sectors


def _place(code: CountedCode, i: Instruction) -> tuple[str, int]:
    return (i.loc.file, i.loc.line) if i.loc is not None else (code.path, i.line)


def _add(s: _Sum, i: Instruction, lanes: int, warps: int, number: int, tally: Tally) -> None:
    kind = classify(i.opcode)
    s.n["instructions"] += lanes
    s.n["warp_instructions"] += warps
    s.classes[kind] += lanes
    t, each = flops_of(i.opcode)
    if each:
        s.flops[t] += each * lanes
    for space, rows in tally.memory.items():
        if number in rows:
            _add_accesses(s, kind, _action(i.opcode), space, rows[number])
    if number in tally.branches:
        s.n["branches"] += tally.branches[number]
        s.n["divergent_branches"] += tally.divergent.get(number, 0)
    for (n, what), amount in tally.extra.items():
        if n == number:
            if what.startswith("flops."):
                s.flops[what.removeprefix("flops.")] += amount
            elif what.startswith("sectors."):
                s.sectors[what.removeprefix("sectors.")] += amount
            elif what.startswith("texture."):
                s.texels[what.removeprefix("texture.")] += amount
            elif what == UNWRITTEN:
                s.n["unwritten_loads"] += amount
            elif what == "misaligned":
                s.n["async_misaligned_bytes"] += amount
            else:
                s.moved[what] += amount
