"""One thread of a stopped kernel: its position, calls, registers, variables and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ptxkit.debugger import registers
from ptxkit.debugger.breakpoints import chain
from ptxkit.debugger.ctypes import C_TYPES, UINT, CType, array_of, numpy_ctype, pointer_to, ptx_type
from ptxkit.debugger.evaluate import Value, evaluate, load
from ptxkit.debugger.memory import Location, located, read
from ptxkit.debugger.places import Lane, Place, position_in
from ptxkit.debugger.syntax import named_type, parse
from ptxkit.debugger.variables import InMemory, InRegister, Variable
from ptxkit.emulator.memory.layout import CLUSTER_RANK_SHIFT, SHARED_BASE
from ptxkit.emulator.simt.special import SPECIAL_TYPES
from ptxkit.emulator.tensor_core.in_flight import InFlight
from ptxkit.errors import UsageError
from ptxkit.isa.mangled import base_name

if TYPE_CHECKING:
    from ptxkit.debugger.subject import Subject
    from ptxkit.emulator.engine.wave import Wave
    from ptxkit.emulator.simt.threads import Frame
    from ptxkit.isa.model import Function
    from ptxkit.runtime.parameters import Parameter

_BUILTINS = {"threadIdx": "tid", "blockIdx": "ctaid", "blockDim": "ntid", "gridDim": "nctaid"}
_WGMMA_TAG, _WGMMA_BITS = 0xFFC0_0000, (1 << 15) - 1


@dataclass(frozen=True)
class Call:
    """One line of a backtrace.

    Attributes:
        function: the readable name; of code that has been inlined, that of the function it is in.
        file, line: position in the source; ``""`` and 0 if the PTX has no line table.
        ptx_line: of the instruction.
        inlined: the line is that of a call which has been inlined further in.
    """

    function: str
    file: str
    line: int
    ptx_line: int
    inlined: bool
    frame: Frame
    code: Function
    position: int


class Thread:
    """A thread of the wave that is being executed.

    Args:
        subject: the kernel that is launched, with its parameters.
        wave, place, lane: where the thread is; ``place`` None when it has exited.
        written: which registers hold a value.
        level: number of the call in the backtrace that names are looked up in.
    """

    def __init__(
        self, subject: Subject, wave: Wave, place: Place | None, lane: Lane, written: registers.Written, level: int = 0
    ) -> None:
        self.subject = subject
        self.wave = wave
        self.place = place
        self.lane = lane
        self.written = written
        self.level = level

    # -- where --------------------------------------------------------------------------------------

    @property
    def cta_coordinates(self) -> tuple[int, int, int]:
        """blockIdx."""
        return self.wave.cta_coordinates(self.lane.cta)

    @property
    def thread_coordinates(self) -> tuple[int, int, int]:
        """threadIdx."""
        return self.wave.thread_coordinates(self.lane.thread)

    def calls(self) -> list[Call]:
        """The backtrace, innermost first."""
        if self.place is None:
            return []
        found: list[Call] = []
        frame: Frame | None = self.place.frame
        block = self.place.block
        while frame is not None:
            function = frame.function.function
            position = position_in(block)
            lines = function.instructions[position] if position < len(function.instructions) else None
            places = list(reversed(chain(lines))) if lines is not None else []
            for n, (file, line) in enumerate(places or [("", 0)]):
                ptx_line = lines.line if lines is not None else 0
                found.append(Call(base_name(function.name), file, line, ptx_line, n > 0, frame, function, position))
            if frame.parent is not None:
                block = self.wave.blocks[frame.back - 1]  # the call, which is a block of its own
            frame = frame.parent
        return found

    def call(self) -> Call:
        """The selected call.

        Raises:
            UsageError: the thread has exited.
        """
        calls = self.calls()
        if not calls:
            raise UsageError(
                f"thread {self.thread_coordinates} of CTA {self.cta_coordinates} has ended; it has no registers"
            )
        return calls[min(self.level, len(calls) - 1)]

    # -- values --------------------------------------------------------------------------------------

    def evaluate(self, expression: str) -> Value:
        """The value of an expression.

        Raises:
            UsageError: it cannot be read or computed; the message says why.
        """
        return evaluate(parse(expression), self)

    def memory(self, where: Location, nbytes: int) -> bytes:
        """Bytes as this thread addresses them."""
        return read(self.wave, self.lane, where, nbytes)

    def register(self, name: str) -> Value:
        """A register of the selected call, or a special register."""
        if name in SPECIAL_TYPES:
            group = self.place.group if self.place else None
            return Value(*registers.special_value(self.wave, group, name, self.lane))
        call = self.call()
        if name not in call.code.registers:
            raise UsageError(self._no_register(name, call.code))
        return self._register(call.frame, name)

    def _register(self, frame: Frame, name: str) -> Value:
        code = frame.function
        index = code.register_index[name]
        made = registers.register_type(code.function, name)
        raw = registers.register_bytes(frame, index, self.lane)
        if raw is None or not self.written.holds(frame, index, self.lane):
            return Value(made, None, missing="<not written>")
        flying = self.wave.part(InFlight).flying
        if flying and len(raw) == 4:
            word = int.from_bytes(raw, "little")
            if word & _WGMMA_TAG == _WGMMA_TAG and word >> 7 & _WGMMA_BITS in flying:
                return Value(made, None, missing="<wgmma in flight>")
        return Value(made, raw[: made.size])

    def _no_register(self, name: str, function: Function) -> str:
        from difflib import get_close_matches

        names = list(registers.visible_registers(function))
        near = get_close_matches(name, [*names, *SPECIAL_TYPES], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{base_name(function.name)} has no register {name}{hint} ('info registers' lists them)"

    def name(self, name: str) -> Value:
        """The meaning of a name: a C variable, a CUDA built-in, a parameter, or a variable of the PTX."""
        call = self.call() if self.place else None
        if call is not None:
            for variable in self.variables_in_scope(call):
                if variable.name == name:
                    return self._variable(variable, call)
        for found in (self._builtin(name), self._parameter(name), self._ptx_variable(name, call)):
            if found is not None:
                return found
        if call is not None and name in call.code.registers:
            return self._register(call.frame, name)
        raise UsageError(self._unknown(name))

    def variables_in_scope(self, call: Call) -> list[Variable]:
        """The C variables in scope at a call, innermost first, without those that an inner one of the same name hides."""
        return list({v.name: v for v in reversed(self.subject.variables.at(call.code, call.position))}.values())[::-1]

    def _variable(self, variable: Variable, call: Call) -> Value:
        where = variable.location
        if isinstance(where, InRegister) and where.name in call.code.registers:
            found = self._register(call.frame, where.name)
            if found.raw is None and variable.parameter and call.code.is_entry:
                given = self._parameter(variable.name)
                if given is not None and given.raw is not None:
                    return Value(variable.type, given.raw, given.location)
            raw = found.raw
            if raw is not None and len(raw) < variable.type.size:
                raw = None
            return Value(variable.type, raw[: variable.type.size] if raw is not None else None, missing=found.missing)
        if isinstance(where, InMemory):
            location = self._symbol(where.symbol, call)
            if location is not None:
                return load(variable.type, Location(location.space, location.address + where.offset), self)
        return Value(variable.type, None, missing="<optimised out>")

    def _symbol(self, symbol: str, call: Call | None) -> Location | None:
        """The location of a PTX variable for this thread."""
        layout = self.wave.launch.code.layout
        if call is not None and symbol in call.frame.function.frame_offsets:
            return Location("local", call.frame.local_base + call.frame.function.frame_offsets[symbol])
        if symbol in layout.shared:
            address = layout.shared[symbol]
            if self.wave.ranked:
                address |= int(self.wave.cluster_rank[self.lane.cta]) << CLUSTER_RANK_SHIFT
            return Location("shared", address)
        if symbol in layout.globals:
            return Location("global", layout.globals[symbol][0])
        if symbol in layout.params:
            return Location("global", self.wave.launch.param_allocation.base + layout.params[symbol][0])
        return None

    def _builtin(self, name: str) -> Value | None:
        if name == "warpSize":
            return Value(UINT, UINT.encode(32))
        if name not in _BUILTINS:
            return None
        raw = b"".join(self.register(f"%{_BUILTINS[name]}.{axis}").raw or b"" for axis in "xyz")
        return Value(C_TYPES["uint3"], raw)

    def _parameter(self, name: str) -> Value | None:
        parameter = next((p for p in self.subject.parameters if p.name == name), None)
        if parameter is None:
            names = list(self.wave.launch.code.layout.params)
            if name not in names or names.index(name) >= len(self.subject.parameters):
                return None
            parameter = self.subject.parameters[names.index(name)]
        launch = self.wave.launch
        raw = bytes(launch.params[parameter.offset : parameter.offset + parameter.size])
        where = Location("global", launch.param_allocation.base + parameter.offset)
        return Value(self._parameter_type(parameter), raw, where)

    def _parameter_type(self, parameter: Parameter) -> CType:
        stated = parameter.cpp.replace("const", "").replace("__restrict__", "").replace("*", "").strip()
        element = self.subject.elements.get(parameter.index)
        if parameter.kind == "pointer" or (parameter.kind == "word" and element is not None):
            made = named_type(stated) if parameter.cpp else None
            if made is None or made.size == 0:
                made = numpy_ctype(element) if element is not None else C_TYPES["void"]
            return pointer_to(made)
        if parameter.dtype is not None:
            return named_type(stated) or numpy_ctype(np.dtype(parameter.dtype))
        if parameter.size in (1, 2, 4, 8):
            return CType("bits", f"b{parameter.size * 8}", parameter.size, dtype=f"u{parameter.size}")
        return array_of(C_TYPES["unsigned char"], parameter.size)

    def _ptx_variable(self, name: str, call: Call | None) -> Value | None:
        space = {"shared": Location("shared", self._shared_base()), "local": Location("local", 0)}.get(name)
        layout = self.wave.launch.code.layout
        module = self.subject.module
        declared = {v.name: v for v in module.variables.values()}
        for f in module.functions.values():
            declared.update({v.name: v for v in f.variables.values() if v.space in ("shared", "global", "const")})
        if call is not None:
            declared.update({v.name: v for v in call.code.variables.values()})
        found = declared.get(name) or next((v for n, v in declared.items() if variable_name(n) == name), None)
        if found is not None:
            location = self._symbol(found.name, call)
            if location is None:
                return None
            element = self.subject.shared_types.get(variable_name(found.name)) if found.space == "shared" else None
            element = element or ptx_type(found.type)
            nbytes = found.bytes
            if nbytes == 0:  # extern .shared x[]: all that follows the static variables
                nbytes = SHARED_BASE + self.wave.launch.shared_bytes - layout.dynamic_base
            if nbytes == element.size and not found.shape:
                return load(element, location, self)
            return load(array_of(element, nbytes // element.size), location, self)
        if space is not None:
            made = pointer_to(C_TYPES["unsigned char"], space.space)
            return Value(made, made.encode(space.address))
        return None

    def _shared_base(self) -> int:

        rank = int(self.wave.cluster_rank[self.lane.cta]) if self.wave.ranked else 0
        return SHARED_BASE | rank << CLUSTER_RANK_SHIFT

    def _unknown(self, name: str) -> str:
        known = [p.name for p in self.subject.parameters if p.name]
        if not self.subject.variables:
            return (
                f"no {name!r} here: this kernel was compiled without -G, so only parameters ({', '.join(known) or 'unnamed'}), "
                f"registers and PTX variables have names; debug it with -G for C variables"
            )
        return f"no variable {name!r} is in scope here ('info locals' lists them)"

    # -- lists --------------------------------------------------------------------------------------

    def all_registers(self) -> dict[str, Value]:
        """Every register of the selected call that this thread has written."""
        call = self.call()
        found = {n: self._register(call.frame, n) for n in registers.visible_registers(call.code)}
        return {n: v for n, v in found.items() if v.missing != "<not written>"}

    def all_variables(self, parameters: bool | None = None) -> dict[str, Value]:
        """The C variables in scope; ``parameters`` True or False restricts them to those that are, or are not, parameters."""
        call = self.call()
        chosen = [v for v in self.variables_in_scope(call) if parameters is None or v.parameter == parameters]
        found = {v.name: self._variable(v, call) for v in chosen}
        if parameters is not False and call.code.is_entry:
            for p in self.subject.parameters:
                if p.name and p.name not in found:
                    value = self._parameter(p.name)
                    if value is not None:
                        found[p.name] = value
        return found

    def dereferenced(self, pointer: Value, made: CType, index: int) -> Value:
        """Element ``index`` of the array of type ``made`` at an address."""
        where = pointer_location(pointer)
        return load(made, Location(where.space, where.address + index * made.size), self)


def pointer_location(value: Value) -> Location:
    """The location that a value names: an array's own, else the number as an address."""
    if value.type.kind in ("array", "struct") and value.location is not None:
        return value.location
    number = value.python
    if not isinstance(number, int):
        raise UsageError(f"{value.missing or value.type.name} is not an address")
    return located(number, value.type.space)


def variable_name(mangled: str) -> str:
    """The name that the source has for a variable of the PTX: ``tile`` for ``_ZZ6kernelPfE4tile``."""
    if not mangled.startswith("_Z"):
        return mangled
    import re

    found = ""
    for match in re.finditer(r"E[sK_]*(?:L)?(\d+)", mangled):
        name = mangled[match.end() : match.end() + int(match[1])]
        if len(name) == int(match[1]):
            found = name
    return found or base_name(mangled)
