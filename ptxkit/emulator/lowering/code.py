"""Lowers functions: typed instructions, basic blocks, and the functions of a back end that execute their straight runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from ptxkit.emulator.arrays import Mask
from ptxkit.emulator.lowering.arguments import with_matching_arguments
from ptxkit.emulator.lowering.backend import BackEnd
from ptxkit.emulator.lowering.bits import members
from ptxkit.emulator.lowering.control_flow import StraightRun, build_blocks
from ptxkit.emulator.lowering.liveness import live_out
from ptxkit.emulator.lowering.numpy_backend import NumpyBackEnd
from ptxkit.emulator.lowering.reconvergence import find_reconvergence
from ptxkit.emulator.lowering.register_sets import registers_in
from ptxkit.emulator.lowering.requirements import check_module
from ptxkit.emulator.lowering.time_dependence import timed_registers
from ptxkit.emulator.lowering.typed import bind_function
from ptxkit.emulator.lowering.uniformity import uniform_registers
from ptxkit.emulator.memory.layout import Layout, frame_layout
from ptxkit.emulator.simt.blocks import BasicBlock, Run
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.instrumented import accesses_local
from ptxkit.emulator.simt.opcode_patterns import CARRY, CARRY_TYPE
from ptxkit.emulator.simt.threads import Group, Registers
from ptxkit.emulator.simt.where import Where
from ptxkit.errors import UnsupportedError
from ptxkit.isa.model import Function, Instruction, Module, Operand, Predicate


def _at_first_call(block: BasicBlock, version: str, compile_it: Callable[[], Run]) -> Run:
    """Compiles a version of a block's run when it is first called, because most blocks are executed in one version only."""

    def run(registers: Registers, group: Group) -> Mask | None:
        compiled = compile_it()
        setattr(block, version, compiled)
        return compiled(registers, group)

    return run


class Binder:
    """Binds functions into one list of blocks, and collects every form that is not implemented.

    Args:
        stepping: every instruction gets a block of its own, and registers keep their values when they are dead.
        back_end: executes straight runs; None is numpy's.
    """

    def __init__(
        self, module: Module, layout: Layout, target: int, stepping: bool = False, back_end: BackEnd | None = None
    ) -> None:
        self.module = module
        self.layout = layout
        self.target = target
        self.stepping = stepping
        self.back_end = NumpyBackEnd() if back_end is None else back_end
        self.blocks: list[BasicBlock] = []
        self.instructions: list[tuple[Where, Instruction]] = []
        self.unsupported: list[str] = []
        self.functions: dict[str, FunctionCode] = {}
        self.runs: list[StraightRun] = []

    def bind(self, functions: list[Function]) -> None:
        """Bind the functions.

        Raises:
            UnsupportedError: some forms are not implemented; the message lists all of them.
        """
        check_module(self.module)
        for f in (with_matching_arguments(f, self.module) for f in functions):
            offsets, nbytes = frame_layout(f)
            names = {n: i for i, n in enumerate(f.registers)}
            types = list(f.registers.values())
            names[CARRY] = len(types)
            types.append(CARRY_TYPE)
            for v in (*f.params, *f.returns):  # .func parameters declared .reg
                if v.space == "reg" and v.name not in names:
                    names[v.name] = len(types)
                    types.append(v.type)
            self.functions[f.name] = FunctionCode(f, names, types, offsets, nbytes)
        blocks = [(code.function.is_entry, self._bind(code)) for code in self.functions.values()]
        callees = any(b.converges for is_entry, found in blocks if not is_entry for b in found)
        for is_entry, found in blocks:
            find_reconvergence(found, is_entry, callees)
        if self.unsupported:
            lines = "\n  ".join(distinct(self.unsupported))
            error = UnsupportedError(f"the emulator does not implement:\n  {lines}")
            error.places = tuple(dict.fromkeys(self.unsupported))
            raise error

    def _bind(self, code: FunctionCode) -> list[BasicBlock]:
        function, first, base = code.function, len(self.instructions), len(self.blocks)
        typed = bind_function(function, self.module, self.layout, self.target, first, self.unsupported)
        self.instructions.extend((t.where, t.instruction) for t in typed)
        runs = build_blocks(code, typed, base, self, self.stepping, self.unsupported)
        blocks = [run.block for run in runs]
        self.blocks.extend(blocks)
        self.runs.extend(runs)
        code.find_uniform = partial(uniform_registers, runs, code)
        code.find_timed = partial(timed_registers, runs, code)
        if not self.unsupported:
            self._translate(code, runs)
        return blocks

    def _translate(self, code: FunctionCode, runs: list[StraightRun]) -> None:
        """Translate the runs by the back end; each is compiled with the registers that are live after it."""
        translations = []
        for run in runs:
            try:
                translations.append(self.back_end.translate(run, code, self.layout))
            except UnsupportedError as e:
                self.unsupported.append(str(e))
        if self.unsupported:
            return
        index, base = code.register_index, runs[0].block.index
        tails = [registers_in(run.block.terminator.reads(), index) for run in runs]
        results = [registers_in(run.block.terminator.writes(), index) for run in runs]
        gates = [registers_in(_gate_reads(run.block), index) for run in runs]
        inside = [[s - base for s in run.block.successors if base <= s < base + len(runs)] for run in runs]
        uses = [run.registers.loaded | g for run, g in zip(runs, gates, strict=True)]
        # lanes for which the predicate of a gated instruction is false keep the old values of its destinations
        defs = [0 if _is_guarded_gate(run.block) else run.registers.defined for run in runs]
        out = live_out(uses, defs, inside, tails, results)
        _find_undefined(code, uses[0] | (out[0] & ~defs[0]))
        if self.stepping:
            out = [(1 << len(index)) - 1] * len(runs)
        for run, t, live, gate, tail in zip(runs, translations, out, gates, tails, strict=True):
            block = run.block
            block.written = run.registers.written
            block.registers = run.registers.loaded | run.registers.written | gate | tail
            block.accesses_local = any(accesses_local(code.function, i.instruction) for i in run.instructions)
            if run.instructions or block.terminator.predicate is not None:
                block.fast = _at_first_call(block, "fast", partial(t.compile_fast, live))
                block.general = _at_first_call(block, "general", partial(t.compile_general, live))
                block.make_instrumented = partial(t.compile_instrumented, live)


_PLACE = re.compile(r"^(?:line \d+|\S+:\d+(?: \([^)]*\))?)[: ]*")


def distinct(lines: list[str]) -> list[str]:
    """One line for each form: that of its first place, with the number of its other places."""
    first: dict[str, str] = {}
    count: dict[str, int] = {}
    for line in dict.fromkeys(lines):
        form = _PLACE.sub("", line)
        first.setdefault(form, line)
        count[form] = count.get(form, 0) + 1
    return [line if count[f] == 1 else f"{line} (and {count[f] - 1:,} more)" for f, line in first.items()]


def _find_undefined(code: FunctionCode, live_in: int) -> None:
    """Registers that are live at the entry of a function are read before they are written, unless they are its parameters."""
    given = {code.register_index[v.name] for v in code.function.params if v.space == "reg"}
    given.add(code.register_index[CARRY])
    code.undefined = tuple(k for k in members(live_in) if k not in given)


def _gate_reads(block: BasicBlock) -> tuple[Operand | Predicate | None, ...]:
    """The registers that the gate of a block and the predicate of its instruction read."""
    return () if block.gate is None else (*block.gate.reads, block.instructions[0][1].predicate)


def _is_guarded_gate(block: BasicBlock) -> bool:
    return block.gate is not None and block.instructions[0][1].predicate is not None
