"""Binds a function's instructions: basic blocks whose straight runs become one generated Python function each.

A run is what lies between labels, branches and instructions that can block. Its instructions are bound to steps (see
:mod:`ptxkit.emulator.simt.step`), and the run is written out as a Python function over local variables, one per register.
It exists in two versions: *fast*, for a group that owns its frame alone and spans the whole wave, which replaces whole
registers, and *general*, which merges under the group's mask. Both share one body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ptxkit.emulator.instructions import branches as control
from ptxkit.emulator.instructions.moves import bind_move
from ptxkit.emulator.lowering.literals import constant
from ptxkit.emulator.lowering.liveness import live_out
from ptxkit.emulator.lowering.reconvergence import find_reconvergence
from ptxkit.emulator.memory.allocations import poison
from ptxkit.emulator.memory.layout import Layout, frame_layout
from ptxkit.emulator.simt.blocks import BasicBlock, Terminator
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.special import SPECIAL_TYPES
from ptxkit.emulator.simt.step import PRED, U64, Binding, Gated, Step, Typed
from ptxkit.emulator.simt.table import CARRY, CARRY_TYPE, Form, lookup
from ptxkit.emulator.simt.threads import merge
from ptxkit.emulator.simt.watched import Watched, accesses_local
from ptxkit.emulator.simt.where import Where
from ptxkit.errors import UnsupportedError
from ptxkit.isa.model import (
    Function,
    Immediate,
    Instruction,
    Module,
    Negated,
    Operand,
    Pair,
    Predicate,
    Register,
    SpecialRegister,
    Symbol,
)
from ptxkit.isa.types import PtxType

_DTYPES = {
    np.dtype(c): c.replace("?", "b1") for c in ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
}
_NAMESPACE = {name: dtype for dtype, name in _DTYPES.items()} | {"merge": merge}


def _at_first_call(block: BasicBlock, version: str, compile_it: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """What stands for a version of a block's run until it is called: many blocks run in one of their versions alone."""

    def run(registers: Any, group: Any) -> Any:
        compiled = compile_it()
        setattr(block, version, compiled)
        return compiled(registers, group)

    return run


class Binder:
    """Binds functions into one list of blocks, and collects every form that is not implemented.

    Args:
        stepping: every instruction gets a block of its own, and registers keep their values when they are dead.
    """

    def __init__(self, module: Module, layout: Layout, target: int, stepping: bool = False) -> None:
        self.module = module
        self.layout = layout
        self.target = target
        self.stepping = stepping
        self.blocks: list[BasicBlock] = []
        self.instructions: list[tuple[Where, Instruction]] = []
        self.unsupported: list[str] = []
        self.functions: dict[str, FunctionCode] = {}

    def bind(self, functions: list[Function]) -> None:
        """Bind every function given.

        Raises:
            UnsupportedError: some forms are not implemented; the message lists all of them.
        """
        for f in functions:
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
        blocks = [(code.function.is_entry, _FunctionBinder(self, code).run()) for code in self.functions.values()]
        callees = any(b.converges for is_entry, found in blocks if not is_entry for b in found)
        for is_entry, found in blocks:
            find_reconvergence(found, is_entry, callees)
        if self.unsupported:
            lines = "\n  ".join(dict.fromkeys(self.unsupported))
            raise UnsupportedError(f"the emulator does not implement:\n  {lines}")


class _FunctionBinder:
    def __init__(self, binder: Binder, code: FunctionCode) -> None:
        self.binder = binder
        self.code = code
        self.function = code.function
        self.labels = frozenset(code.function.labels.values())

    def run(self) -> list[BasicBlock]:
        f, b = self.function, self.binder
        items = f.instructions
        first = len(b.instructions)
        wheres = [Where(b.module.path, i, f.name) for i in items]
        b.instructions.extend(zip(wheres, items, strict=True))
        bound: list[Step | Terminator | Gated | None] = []
        for n, i in enumerate(items):
            try:
                bound.append(self._bind(first + n, i, wheres[n]))
            except UnsupportedError as e:
                b.unsupported.append(str(e))
                bound.append(None)
        # a block for the end of the text too: control that falls off it returns
        leaders = {0, len(items), *f.labels.values()}
        if b.stepping:
            leaders.update(range(len(items)))
        for n, s in enumerate(bound):
            if isinstance(s, Terminator):
                leaders.add(n + 1)
            elif isinstance(s, Gated):
                leaders |= {
                    n,
                    n + 1,
                }  # nothing else stands in its block: a group that waits there has no work half done
        starts = sorted(leaders)
        base = len(b.blocks)
        at = {start: base + k for k, start in enumerate(starts)}
        self.code.entry = base
        labels = {name: at[position] for name, position in f.labels.items()}
        plan = []
        for k, start in enumerate(starts):
            end = starts[k + 1] if k + 1 < len(starts) else len(items)
            run = list(range(start, end))
            terminator: Terminator
            if start == len(items):
                terminator = control.Return(None) if not f.is_entry else control.Exit(None)
            elif run and isinstance(bound[run[-1]], Terminator):
                terminator = bound[run.pop()]  # type: ignore[assignment]
            else:
                terminator = control.FallThrough()
            try:
                terminator.link(labels, b)
            except UnsupportedError as e:
                b.unsupported.append(str(e))
            next_block = base + k + 1
            block = BasicBlock(
                base + k, self.code, [(first + n, items[n]) for n in range(start, end)], terminator, next_block
            )
            block.successors = terminator.successors(next_block)
            if run and isinstance(bound[run[0]], Gated):
                gated: Gated = bound[run[0]]  # type: ignore[assignment]
                block.gate, bound[run[0]] = gated.gate, gated.step
                if gated.step is None:
                    run = []
            plan.append((block, run))
            b.blocks.append(block)
        if not b.unsupported:
            self._generate(plan, bound, first, base)
        return [block for block, _ in plan]

    def _bind(self, number: int, i: Instruction, where: Where) -> Step | Terminator | Gated:
        if i.name == "mov":
            return bind_move(i, where, self.function)
        found = lookup(i.opcode)
        if found is None:
            raise UnsupportedError(str(where))
        entry, form = found
        if entry.kind == "alu":
            # whether a second destination is wanted: setp need not compute a complement nobody reads
            pair = bool(i.operands) and isinstance(i.operands[0], Pair)
            form = Form(form.opcode, {**form.parts, "pair": pair})
            assert entry.signature is not None
            destinations, sources = entry.signature(form)
            return self._alu(i, where, entry.lane_function(form), destinations, sources, entry.optional)
        position = number - (len(self.binder.instructions) - len(self.function.instructions))
        layout, target = self.binder.layout, self.binder.target
        binding = Binding(i, form, number, where, self.function, layout, target, position, self.labels)
        result: Step | Terminator | Gated = entry.function(binding)
        return result

    def _alu(
        self,
        i: Instruction,
        where: Where,
        call: Callable[..., Any],
        dtypes: tuple[PtxType, ...],
        stypes: tuple[PtxType, ...],
        optional: int,
    ) -> Step:
        operands = list(i.operands)
        if not operands:
            raise UnsupportedError(f"{where}: no operands")
        first = operands.pop(0)
        real = [t for t in dtypes if t is not CARRY_TYPE]
        outs: list[Operand | None] = [first.first, first.second] if isinstance(first, Pair) else [first]
        if len(outs) > len(real):
            raise UnsupportedError(f"{where}: {len(outs)} destinations, the form has {len(real)}")
        single = len(real) > 1 and len(outs) == 1
        outs += [None] * (len(real) - len(outs))
        destinations: list[Typed] = []
        for t in dtypes:
            destinations.append((Register(CARRY), t) if t is CARRY_TYPE else (outs.pop(0), t))
        sources: list[Typed] = []
        for t in stypes:
            if t is CARRY_TYPE:
                sources.append((Register(CARRY), t))
            elif operands:
                sources.append((operands.pop(0), t))
        if operands:
            raise UnsupportedError(f"{where}: {len(operands)} operand(s) too many")
        if len(sources) < len(stypes) - optional:
            raise UnsupportedError(f"{where}: {len(stypes) - optional - len(sources)} operand(s) missing")
        if single:
            whole = call

            def call(*lanes: Any) -> Any:
                result = whole(*lanes)
                return result if isinstance(result, tuple) else (result, None)

        return Step(call, tuple(sources), tuple(destinations), pure=True)

    # -- code generation ---------------------------------------------------------------------------------------------

    def _generate(self, plan: list[Any], bound: list[Any], first: int, base: int) -> None:
        texts = []
        for block, run in plan:
            writer = _RunWriter(self.code, self.binder.layout, bound, first)
            try:
                writer.write(run, block.terminator.predicate, block.gate is not None)
            except UnsupportedError as e:
                self.binder.unsupported.append(str(e))
                continue
            texts.append(writer)
        if self.binder.unsupported:
            return
        index = self.code.register_index
        tails, gates = [], [0] * len(plan)
        for block, _ in plan:
            mask = 0
            for operand in block.terminator.reads():
                mask |= _bits(operand, index)
            tails.append(mask)
            if block.gate is not None:
                for operand in (*block.gate.reads, block.instructions[0][1].predicate):
                    gates[block.index - base] |= _bits(operand, index)
        inside = [[s - base for s in b.successors if base <= s < base + len(plan)] for b, _ in plan]
        uses = [w.loaded | g for w, g in zip(texts, gates, strict=True)]
        # lanes that the guard of a gated instruction switches off pass it by, with what its destinations held before
        defs = [0 if b.gate is not None and _is_guarded(b) else w.defs for (b, _), w in zip(plan, texts, strict=True)]
        out = live_out(uses, defs, inside, tails)
        self._find_undefined(uses[0] | (out[0] & ~defs[0]))
        if self.binder.stepping:
            out = [(1 << len(index)) - 1] * len(plan)
        for (block, run), w, live, gate, tail in zip(plan, texts, out, gates, tails, strict=True):
            block.written = w.written
            block.registers = w.loaded | w.written | gate | tail
            block.accesses_local = any(accesses_local(self.function, self.code.function.instructions[n]) for n in run)
            if run or block.terminator.predicate is not None:
                block.fast = _at_first_call(block, "fast", partial(w.compile, "fast", live, block.index))
                block.general = _at_first_call(block, "general", partial(w.compile, "general", live, block.index))
                block.make_watched = partial(self._watched, block, run, bound, first, live)

    def _watched(
        self, block: BasicBlock, run: list[int], bound: list[Any], first: int, live: int
    ) -> Callable[..., Any]:
        writer = _RunWriter(self.code, self.binder.layout, bound, first, self.binder.instructions)
        writer.write(run, block.terminator.predicate, block.gate is not None)
        return writer.compile_watched(live, block.index)

    def _find_undefined(self, live_in: int) -> None:
        """Registers that are live at the entry were not written by anything: parameters in registers apart."""
        code = self.code
        given = {code.register_index[v.name] for v in code.function.params if v.space == "reg"}
        given.add(code.register_index[CARRY])
        code.undefined = tuple(k for k in _members(live_in) if k not in given)


def _is_guarded(block: BasicBlock) -> bool:
    return block.instructions[0][1].predicate is not None


def _bits(operand: Operand | None, index: Mapping[str, int]) -> int:
    if isinstance(operand, Register):
        return 1 << index[operand.name]
    if isinstance(operand, Predicate):
        return 1 << index[operand.register.name]
    mask = 0
    for attribute in ("items", "coordinates", "extra"):
        for o in getattr(operand, attribute, ()) or ():
            mask |= _bits(o, index)
    for attribute in ("operand", "base", "first", "second"):
        o = getattr(operand, attribute, None)
        if o is not None:
            mask |= _bits(o, index)
    return mask


class _RunWriter:
    """Writes the Python text of one straight run.

    Args:
        watched: the program's instructions, where each is to be reported to a watch.
    """

    def __init__(
        self,
        code: FunctionCode,
        layout: Layout,
        bound: list[Any],
        first: int,
        watched: list[tuple[Where, Instruction]] | None = None,
    ) -> None:
        self.watched = watched
        self.code = code
        self.layout = layout
        self.bound = bound
        self.first = first
        self.namespace: dict[str, Any] = dict(_NAMESPACE)
        self.lines: list[str] = []
        self.uses = 0  # read before written
        self.loaded = 0  # needed in the prologue: read, or the old value of a predicated write
        self.defs = 0
        self.written = 0
        self.views: dict[tuple[int, np.dtype], str] = {}
        self.temporaries = 0

    def write(self, run: list[int], branch: Predicate | None, gated: bool) -> None:
        """Emit the run, and the branch's predicate as its result. Behind a gate the predicate has been applied already."""
        items = self.code.function.instructions
        for n in run:
            step: Step = self.bound[n]
            i = items[n]
            number = self.first + n
            guard = None
            if i.predicate is not None and not gated:
                guard = self._predicate(i.predicate)
            arguments = [self._source(o, t, i) for o, t in step.sources]
            name = f"s{n}"
            self.namespace[name] = step.call
            results = [self._temporary() for _ in step.destinations]
            left = f"{', '.join(results)} = " if results else ""
            group = "x"
            indent = "    "
            if self.watched is not None:
                where = self.watched[number][0]
                self.namespace[f"w{n}"] = Watched(
                    number, where, step, self.code.register_index, self.code.register_types
                )
                if guard is not None and not step.pure:
                    self.lines.append(f"    u.guard(w{n}, x)")
            if guard is not None:
                if step.pure:
                    self.lines.append(f"    x.tally.predicated(x, {number}, {guard})")
                else:
                    self.lines += [
                        f"    y = x.narrow({guard})",
                        "    if y is not None:",
                        f"        y.tally.lanes(y, {number})",
                    ]
                    group, indent = "y", "        "
            head = [] if step.pure else [group]
            if self.watched is not None:
                values = "".join(f"{a}, " for a in arguments)
                self.lines.append(f"{indent}a = ({values})")
                self.lines.append(f"{indent}q = u.before(w{n}, {group}, a, {guard if step.pure else None})")
                arguments = ["*a"]
            self.lines.append(f"{indent}{left}{name}({', '.join(head + arguments)})")
            if self.watched is not None:
                values = "".join(f"{r}, " for r in results)
                self.lines.append(f"{indent}u.after(w{n}, {group}, a, ({values}), {guard}, q)")
            for (o, t), r in zip(step.destinations, results, strict=True):
                if o is not None:
                    self._assign(o, t, r, guard, indent, i)
        if branch is not None:
            self.lines.append(f"    return {self._predicate(branch)}")

    def compile(self, version: str, live: int, index: int) -> Callable[..., Any]:
        """One of the versions, ``fast`` or ``general``; only registers in ``live`` are written back."""
        types = self.code.register_types
        body = self.lines
        tail: list[str] = []
        if body and body[-1].startswith("    return "):
            body, tail = body[:-1], body[-1:]
        fast = version == "fast"
        text = [f"def {version}(R, x):"]
        for k in _members(self.loaded):
            text.append(f"    r{k} = R[{k}]" if fast else f"    r{k} = x.fetch({k})")
            if self.uses >> k & 1:
                self.namespace[f"z{k}"] = poison(types[k].dtype)
                text.append(f"    if r{k} is None: r{k} = z{k}")
        text += body
        keep = [k for k in _members(self.written) if live >> k & 1]
        if fast:
            text += [f"    R[{k}] = r{k}" for k in keep]
            text += [f"    R[{k}] = None" for k in _members(self.loaded) if not live >> k & 1]
        else:
            text += [f"    if r{k} is not None: x.store({k}, r{k})" for k in keep]
        source = "\n".join([*text, *tail, "    pass", ""])
        exec(compile(source, f"<ptx block {index} of {self.code.function.name}>", "exec"), self.namespace)
        return self.namespace[version]  # type: ignore[no-any-return]

    def compile_watched(self, live: int, index: int) -> Callable[..., Any]:
        """The version that reports what it executes; it merges under the group's mask, as the general one does."""
        body, tail = self.lines, []
        if body and body[-1].startswith("    return "):
            body, tail = body[:-1], body[-1:]
        text = ["def watched(R, x, u):"]
        for k in _members(self.loaded):
            text.append(f"    r{k} = x.fetch({k})")
            if self.uses >> k & 1:
                self.namespace[f"z{k}"] = poison(self.code.register_types[k].dtype)
                text.append(f"    if r{k} is None: r{k} = z{k}")
        text += body
        text += [f"    if r{k} is not None: x.store({k}, r{k})" for k in _members(self.written) if live >> k & 1]
        source = "\n".join([*text, *tail, "    pass", ""])
        exec(compile(source, f"<watched ptx block {index} of {self.code.function.name}>", "exec"), self.namespace)
        return self.namespace["watched"]  # type: ignore[no-any-return]

    # -- operands ----------------------------------------------------------------------------------------------------

    def _temporary(self) -> str:
        self.temporaries += 1
        return f"t{self.temporaries}"

    def _read(self, k: int) -> str:
        bit = 1 << k
        if not self.defs & bit:
            self.uses |= bit
            self.loaded |= bit
        return f"r{k}"

    def _predicate(self, p: Predicate) -> str:
        name = self._read(self.code.register_index[p.register.name])
        return f"~{name}" if p.negated else name

    def _source(self, operand: Operand | None, t: PtxType, i: Instruction) -> str:
        sign = ""
        if isinstance(operand, Negated):
            sign, operand = operand.sign, operand.operand
        if isinstance(operand, Register):
            k = self.code.register_index[operand.name]
            text = self._read(k)
            have = self.code.register_types[k]
            if have.dtype != t.dtype:
                key = (k, t.dtype)
                view = self.views.get(key)
                if view is None:
                    view = self._temporary()
                    self.lines.append(f"    {view} = {self._coerce(text, have.dtype, t, i)}")
                    self.views[key] = view
                text = view
        elif isinstance(operand, Immediate):
            name = f"c{len(self.namespace)}"
            self.namespace[name] = constant(operand, t)
            text = name
        elif isinstance(operand, SpecialRegister):
            have_type = SPECIAL_TYPES.get(operand.name)
            if have_type is None:
                raise UnsupportedError(f"{self._place(i)}: special register {operand}")
            text = f"x.wave.special(x, {operand.name!r})"
            if have_type.dtype != t.dtype:
                text = self._coerce(text, have_type.dtype, t, i)
        elif isinstance(operand, Symbol):
            text = self._symbol(operand, t, i)
        elif operand is None:
            raise UnsupportedError(f"{self._place(i)}: '_' where a value is read")
        else:
            raise UnsupportedError(f"{self._place(i)}: operand {operand} where a value is read")
        if sign == "!":
            return f"~{text}"
        return f"-{text}" if sign else text

    def _symbol(self, s: Symbol, t: PtxType, i: Instruction) -> str:
        layout, name = self.layout, f"c{len(self.namespace)}"
        function = self.code.function
        value: int | None = None
        if s.name in self.code.frame_offsets:
            text = f"x.wave.local_address(x, {self.code.frame_offsets[s.name] + s.offset})"
        elif not function.is_entry and any(v.name == s.name for v in (*function.params, *function.returns)):
            if s.name in self.code.register_index:
                return self._source(Register(s.name), t, i)
            text = f"x.wave.bound_address(x, {s.name!r}, {s.offset})"
        elif function.is_entry and s.name in layout.params:
            text = f"x.wave.param_address({layout.params[s.name][0] + s.offset})"
        else:
            if s.name in layout.shared and layout.ranked:
                return f"x.wave.shared_address(x, {layout.shared[s.name] + s.offset}, {_DTYPES[t.dtype]})"
            if s.name in layout.shared:
                value = layout.shared[s.name]
            elif s.name in layout.globals:
                value = layout.globals[s.name][0]
            elif s.name in layout.functions:
                value = layout.functions[s.name]
            else:
                raise UnsupportedError(f"{self._place(i)}: unknown symbol {s.name}")
            self.namespace[name] = constant(Immediate(value + s.offset), t)
            return name
        return text if t.dtype == U64.dtype else self._coerce(text, U64.dtype, t, i)

    def _coerce(self, text: str, have: np.dtype, t: PtxType, i: Instruction) -> str:
        want = t.dtype
        if have == want:
            return text
        if (have == PRED.dtype) != (want == PRED.dtype):
            raise UnsupportedError(f"{self._place(i)}: a predicate and a {t.name} value cannot stand for each other")
        if have.itemsize == want.itemsize:
            return f"{text}.view({_DTYPES[want]})"
        if have.itemsize < want.itemsize:
            raise UnsupportedError(f"{self._place(i)}: a {have.itemsize * 8}-bit register is read as .{t.name}")
        bits, low = f"u{have.itemsize}", f"u{want.itemsize}"
        text = text if _DTYPES[have] == bits else f"{text}.view({bits})"
        text = f"{text}.astype({low})"
        return text if _DTYPES[want] == low else f"{text}.view({_DTYPES[want]})"

    def _assign(self, operand: Operand, t: PtxType, text: str, guard: str | None, indent: str, i: Instruction) -> None:
        if not isinstance(operand, Register):
            raise UnsupportedError(f"{self._place(i)}: {operand} cannot be written")
        k = self.code.register_index[operand.name]
        have = self.code.register_types[k]
        if have.dtype != t.dtype:
            if have.dtype.itemsize > t.dtype.itemsize and t.dtype != PRED.dtype:
                signed = "i" if t.kind == "s" else "u"
                narrow, wide = f"{signed}{t.dtype.itemsize}", f"{signed}{have.dtype.itemsize}"
                text = text if _DTYPES[t.dtype] == narrow else f"{text}.view({narrow})"
                text = f"{text}.astype({wide})"
                text = text if _DTYPES[have.dtype] == wide else f"{text}.view({_DTYPES[have.dtype]})"
            elif have.dtype.itemsize == t.dtype.itemsize and (have.dtype == PRED.dtype) == (t.dtype == PRED.dtype):
                text = f"{text}.view({_DTYPES[have.dtype]})"
            else:
                raise UnsupportedError(
                    f"{self._place(i)}: a .{t.name} result does not fit register {operand} (.{have.name})"
                )
        bit = 1 << k
        if guard is not None:
            if not self.written & bit:
                self.loaded |= bit  # the lanes that are predicated off keep the old value
            self.lines.append(f"{indent}r{k} = merge({text}, r{k}, {guard})")
        else:
            self.lines.append(f"{indent}r{k} = {text}")
            self.defs |= bit
        self.written |= bit
        for key in [v for v in self.views if v[0] == k]:
            del self.views[key]

    def _place(self, i: Instruction) -> str:
        return f"line {i.line}: {i}"


def _members(bits: int) -> list[int]:
    """Positions of the set bits, few among many: a block touches some of a function's thousands of registers."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found
