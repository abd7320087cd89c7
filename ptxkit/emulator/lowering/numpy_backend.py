"""The numpy back end: each straight run becomes a Python function over lane arrays, with a local variable for each register.

The function exists in two versions. *fast* is for a group that is the only one of its frame and contains all threads of the
wave; it replaces whole registers. *general* is for all other groups; it writes results for the lanes of the group only. Both
have the same body. A third version, which reports every instruction to an instrumentation, is compiled when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType
from typing import cast

import numpy as np

from ptxkit.emulator.arrays import Mask
from ptxkit.emulator.lowering.backend import Translation
from ptxkit.emulator.lowering.bits import members
from ptxkit.emulator.lowering.control_flow import StraightRun
from ptxkit.emulator.lowering.literals import constant
from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.memory.allocations import poison
from ptxkit.emulator.memory.layout import Layout
from ptxkit.emulator.simt.blocks import InstrumentedRun, Run
from ptxkit.emulator.simt.function import FunctionCode
from ptxkit.emulator.simt.instrumented import Instrumented
from ptxkit.emulator.simt.special import SPECIAL_TYPES
from ptxkit.emulator.simt.step import PRED, U64
from ptxkit.emulator.simt.threads import merge
from ptxkit.errors import UnsupportedError
from ptxkit.isa.model import Immediate, Instruction, Negated, Operand, Predicate, Register, SpecialRegister, Symbol
from ptxkit.isa.types import PtxType

_DTYPES = {
    np.dtype(c): c.replace("?", "b1") for c in ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
}
_NAMESPACE = {name: dtype for dtype, name in _DTYPES.items()} | {"merge": merge}


@lru_cache(maxsize=8192)
def _code(source: str, name: str) -> CodeType:
    """The code object of a generated text. The text contains no addresses, so that the cache also serves other launches."""
    return compile(source, name, "exec")


class NumpyBackEnd:
    """See :class:`~ptxkit.emulator.lowering.backend.BackEnd`."""

    def translate(self, run: StraightRun, code: FunctionCode, layout: Layout) -> Translation:
        """See :class:`~ptxkit.emulator.lowering.backend.BackEnd`."""
        return NumpyRun(run, code, layout)


class NumpyRun:
    """The Python text of one straight run. See :class:`~ptxkit.emulator.lowering.backend.Translation`.

    Args:
        instrumented: each instruction is to be reported to an instrumentation.
    """

    def __init__(self, run: StraightRun, code: FunctionCode, layout: Layout, instrumented: bool = False) -> None:
        self.run = run
        self.code = code
        self.layout = layout
        self.instrumented = instrumented
        self.namespace: dict[str, object] = dict(_NAMESPACE)
        self.lines: list[str] = []
        self.views: dict[tuple[int, np.dtype], str] = {}
        self.temporaries = 0
        block = run.block
        self._write(run.instructions, block.terminator.predicate, block.gate is not None)

    def _write(self, run: Sequence[TypedInstruction], branch: Predicate | None, gated: bool) -> None:
        """Generate the text of the run, which returns the branch's predicate. After a gate the predicate is already applied."""
        for typed in run:
            step, i, number = typed.step, typed.instruction, typed.number
            assert step is not None
            guard = None
            if i.predicate is not None and not gated:
                guard = self._predicate(i.predicate)
            arguments = [self._source(o, t, i) for o, t in step.sources]
            name = f"s{number}"
            self.namespace[name] = step.call
            results = [self._temporary() for _ in step.destinations]
            left = f"{', '.join(results)} = " if results else ""
            group = "x"
            indent = "    "
            if self.instrumented:
                self.namespace[f"w{number}"] = Instrumented(
                    number, typed.where, typed.form, step, self.code.register_index, self.code.register_types
                )
                if guard is not None and not step.pure:
                    self.lines.append(f"    u.guard(w{number}, x)")
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
            if self.instrumented:
                values = "".join(f"{a}, " for a in arguments)
                self.lines.append(f"{indent}a = ({values})")
                self.lines.append(f"{indent}q = u.before(w{number}, {group}, a, {guard if step.pure else None})")
                arguments = ["*a"]
            self.lines.append(f"{indent}{left}{name}({', '.join(head + arguments)})")
            if self.instrumented:
                values = "".join(f"{r}, " for r in results)
                self.lines.append(f"{indent}u.after(w{number}, {group}, a, ({values}), {guard}, q)")
            for (o, t), r in zip(step.destinations, results, strict=True):
                if o is not None:
                    self._assign(o, t, r, guard, indent, i)
        if branch is not None:
            self.lines.append(f"    return {self._predicate(branch)}")

    def compile_fast(self, live: int) -> Run:
        """See :meth:`Translation.compile_fast`: the version that replaces whole registers."""
        text = ["def fast(R, x):", *self._loads("R[{k}]"), *self._body()]
        text += [f"    R[{k}] = r{k}" for k in members(self.run.registers.written) if live >> k & 1]
        text += [f"    R[{k}] = None" for k in members(self.run.registers.loaded) if not live >> k & 1]
        return self._compiled("fast", text)

    def compile_general(self, live: int) -> Run:
        """See :meth:`Translation.compile_general`: the version that writes registers for the lanes of the group only."""
        return self._compiled("general", self._merging("def general(R, x):", live))

    def compile_instrumented(self, live: int) -> InstrumentedRun:
        """See :meth:`Translation.compile_instrumented`: the general version with a report of each instruction."""
        return NumpyRun(self.run, self.code, self.layout, instrumented=True)._compile_instrumented(live)

    def _compile_instrumented(self, live: int) -> InstrumentedRun:
        return self._compiled("instrumented", self._merging("def instrumented(R, x, u):", live))

    def _merging(self, head: str, live: int) -> list[str]:
        """The source lines of a generated function that writes registers for the active lanes of the group only."""
        written = members(self.run.registers.written)
        stores = [f"    if r{k} is not None: x.store({k}, r{k})" for k in written if live >> k & 1]
        return [head, *self._loads("x.fetch({k})"), *self._body(), *stores]

    def _loads(self, load: str) -> list[str]:
        """The text that reads the registers of the run, each by ``load``; registers without a value get the poison value."""
        text = []
        for k in members(self.run.registers.loaded):
            text.append(f"    r{k} = {load.format(k=k)}")
            if self.run.registers.read >> k & 1:
                self.namespace[f"z{k}"] = poison(self.code.register_types[k].dtype)
                text.append(f"    if r{k} is None: r{k} = z{k}")
        return text

    def _body(self) -> list[str]:
        return self.lines[:-1] if self._returns() else self.lines

    def _returns(self) -> bool:
        """Whether the last line returns the branch's predicate."""
        return bool(self.lines) and self.lines[-1].startswith("    return ")

    def _compiled(self, version: str, text: list[str]) -> Callable[..., Mask | None]:
        source = "\n".join([*text, *(self.lines[-1:] if self._returns() else ()), "    pass", ""])
        name = f"<{version} ptx block {self.run.block.index} of {self.code.function.name}>"
        exec(_code(source, name), self.namespace)
        return cast(Callable[..., Mask | None], self.namespace[version])

    # -- operands ----------------------------------------------------------------------------------------------------

    def _temporary(self) -> str:
        self.temporaries += 1
        return f"t{self.temporaries}"

    def _predicate(self, p: Predicate) -> str:
        name = f"r{self.code.register_index[p.register.name]}"
        return f"~{name}" if p.negated else name

    def _source(self, operand: Operand | None, t: PtxType, i: Instruction) -> str:
        sign = ""
        if isinstance(operand, Negated):
            sign, operand = operand.sign, operand.operand
        if isinstance(operand, Register):
            k = self.code.register_index[operand.name]
            text = f"r{k}"
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
        if guard is not None:
            text = f"merge({text}, r{k}, {guard})"
        self.lines.append(f"{indent}r{k} = {text}")
        for key in [v for v in self.views if v[0] == k]:
            del self.views[key]

    def _place(self, i: Instruction) -> str:
        return f"line {i.line}: {i.opcode}"
