"""Statements of a function body (PTX ISA, "Statements")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ptxkit.isa.constants import parse_integer
from ptxkit.isa.declarations import (
    LINKAGES,
    SPACES,
    parse_declaration,
    parse_linkage,
    parse_parameters,
    parse_range,
    parse_type,
)
from ptxkit.isa.lexer import Tokens, is_identifier
from ptxkit.isa.locations import LocationTracker
from ptxkit.isa.model import Immediate, Instruction, Operand, Predicate, Prototype, Register, Variable
from ptxkit.isa.operands import OperandParser
from ptxkit.isa.scopes import Scopes
from ptxkit.isa.types import PtxType

_SEPARATORS = frozenset((",", ";"))
_REGISTER_VECTORS = {".v2": 2, ".v4": 4, ".v8": 8}


class BodyParser:
    """Parses one body, from after its ``{`` to its ``}``, into public attributes.

    Args:
        tokens: positioned after the opening brace.
        parameters: formal and return parameters, visible in the body.
        labels: token index of an opening brace -> token indices of the labels directly inside it. Known beforehand
            because a label may be used before it is declared.
        module_variables: module-scope variables by name.
        reserved: all module-scope names.
        files: ``.file`` index -> path.
        unknown: called with a name that is declared nowhere yet, and its token index.
    """

    def __init__(
        self,
        tokens: Tokens,
        parameters: tuple[Variable, ...],
        labels: Mapping[int, list[int]],
        module_variables: Mapping[str, Variable],
        reserved: Mapping[str, object],
        files: Mapping[int, str],
        unknown: Callable[[str, int], None],
    ) -> None:
        self.instructions: list[Instruction] = []
        self.variables: dict[str, Variable] = {}
        self.labels: dict[str, int] = {}
        self.branch_targets: dict[str, tuple[str, ...]] = {}
        self.prototypes: dict[str, Prototype] = {}
        self._tokens = tokens
        self._labels = labels
        self._scopes = Scopes(tokens, reserved)
        self._locations = LocationTracker(tokens, files)
        self._predicates: dict[tuple[str, bool], Predicate] = {}
        self._module_variables = module_variables
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._operands = OperandParser(tokens, self._scopes.names, self._element_bytes, unknown, self._sum)
        self._unknown = unknown
        for parameter in parameters:
            if parameter.space == "reg":
                self._scopes.declare_register(parameter.name, parameter.type, parameter.vector)
            elif parameter.name:
                self._scopes.declare_symbol(parameter.name)

    @property
    def registers(self) -> dict[str, PtxType]:
        """Every register the body declares, by unique name."""
        return self._scopes.registers

    def declare(self, starts: Iterable[int]) -> None:
        """Declare registers and variables outside of the body, which it may hide: those of module scope of older versions.

        Args:
            starts: token indices of the declarations.
        """
        tokens = self._tokens
        at = tokens.i
        for tokens.i in starts:
            self._directive(tokens.text)
        tokens.i = at
        self._scopes.open()

    def parse(self) -> None:
        """Takes the statements and the closing brace."""
        tokens = self._tokens
        texts = tokens.texts
        self._declare_labels(tokens.i - 1)  # the body shares the parameters' scope, as ptxas has it
        depth = 1
        while True:
            text = texts[tokens.i]
            first = text[:1]
            if texts[tokens.i + 1] == ":" and is_identifier(text):
                self._label()
            elif first == ".":
                self._directive(text)
            elif first == "@":
                self._guarded()
            elif text == "{":
                self._scopes.open()
                self._declare_labels(tokens.i)
                tokens.i += 1
                depth += 1
            elif text == "}":
                tokens.i += 1
                depth -= 1
                if depth == 0:
                    return
                self._scopes.close()
            elif text == ";":
                tokens.i += 1
            elif is_identifier(text) and first.isalpha():
                self._instruction(None, tokens.lines[tokens.i])
            else:
                raise tokens.expected("an instruction, a directive, a label or '}'")

    def _element_bytes(self, name: str) -> int:
        variable = self.variables.get(name) or self._parameters.get(name) or self._module_variables.get(name)
        return variable.type.bytes * variable.vector if variable else 1

    def _sum(self, register: Register, constant: int, index: int) -> Register:
        """A register with ``register + constant``, for ``st.u32 [x], r + 1``; it is computed before the instruction."""
        tokens = self._tokens
        ptx_type = self._scopes.registers[register.name]
        if ptx_type.kind not in "bus" or ptx_type.bits not in (16, 32, 64):
            raise tokens.error(f"a constant cannot be added to '{register}', which is .{ptx_type.name}", index)
        name = f"%ptxkit_sum{len(self.instructions)}_{index}"
        self._scopes.declare_register(name, ptx_type)
        result = self._scopes.names[name]
        assert isinstance(result, Register)
        operands = (result, register, Immediate(constant & ((1 << ptx_type.bits) - 1)))
        add = f"add.u{ptx_type.bits}"
        self.instructions.append(Instruction(add, operands, None, tokens.lines[index], self._locations.current))
        return result

    def _declare_labels(self, brace: int) -> None:
        for index in self._labels.get(brace, ()):
            self._scopes.declare_symbol(self._tokens.texts[index], index)

    def _label_name(self, text: str) -> str:
        return str(self._scopes.names[text])

    def _label(self) -> None:
        tokens = self._tokens
        name = self._label_name(tokens.take())
        tokens.i += 1
        directive = tokens.text
        if directive in (".branchtargets", ".calltargets"):
            tokens.i += 1
            self.branch_targets[name] = self._targets()
        elif directive == ".callprototype":
            tokens.i += 1
            self.prototypes[name] = self._prototype()
        else:
            self.labels[name] = len(self.instructions)

    def _targets(self) -> tuple[str, ...]:
        tokens = self._tokens
        targets: list[str] = []
        while True:
            index = tokens.i
            stem = tokens.take_identifier("a label or a function")
            count = parse_range(tokens)
            for name in [stem] if count is None else [f"{stem}{n}" for n in range(count)]:
                known = self._scopes.names.get(name)
                if known is None:
                    self._unknown(name, index)
                targets.append(name if known is None else str(known))
            if not tokens.skip(","):
                break
        tokens.expect(";", "after the list of targets")
        return tuple(targets)

    def _prototype(self) -> Prototype:
        tokens = self._tokens
        returns = parse_parameters(tokens)
        if tokens.text != "_" and not is_identifier(tokens.text):
            raise tokens.expected("'_' in place of the function's name")
        tokens.i += 1
        parameters = parse_parameters(tokens)
        noreturn = False
        while tokens.text[:1] == ".":
            directive = tokens.take()
            noreturn = noreturn or directive == ".noreturn"
            if tokens.text.isdecimal():  # .abi_preserve N
                tokens.i += 1
        tokens.expect(";", "after the prototype")
        return Prototype(returns, parameters, noreturn)

    def _directive(self, text: str) -> None:
        tokens = self._tokens
        if text == ".loc":
            self._locations.parse()
        elif text == ".reg":
            self._registers()
        elif text in SPACES or text in LINKAGES:
            linkage = parse_linkage(tokens)
            if tokens.text not in SPACES:
                raise tokens.expected("a state space such as '.shared'")
            for variable in parse_declaration(tokens, linkage):
                unique = self._scopes.declare_symbol(variable.name)
                self.variables[unique] = variable if unique == variable.name else replace(variable, name=unique)
        elif text == ".pragma":  # has no effect on what the code means
            tokens.i += 1
            tokens.take_string()
            while tokens.skip(","):
                tokens.take_string()
            tokens.expect(";", "after .pragma")
        elif text == ".loc_intermediate":  # file, line, column of an intermediate language
            tokens.i += 1
            while tokens.text.isdecimal():
                tokens.i += 1
        else:
            raise tokens.expected("a directive that may stand in a function body")

    def _registers(self) -> None:
        tokens = self._tokens
        tokens.i += 1
        vector = 1
        if tokens.skip(".align"):  # registers have no address
            parse_integer(tokens, "an alignment in bytes")
        if tokens.text in _REGISTER_VECTORS:
            vector = _REGISTER_VECTORS[tokens.take()]
        ptx_type = parse_type(tokens)
        while True:
            name = tokens.take_identifier("a register name")
            if tokens.text == "<":
                count = parse_range(tokens) or 0
                if vector == 1:
                    self._scopes.declare_registers(name, count, ptx_type)
                else:
                    for n in range(count):
                        self._scopes.declare_register(f"{name}{n}", ptx_type, vector)
            else:
                self._scopes.declare_register(name, ptx_type, vector)
            if not tokens.skip(","):
                break
        tokens.expect(";", "after the registers")

    def _guarded(self) -> None:
        tokens = self._tokens
        line = tokens.lines[tokens.i]
        tokens.i += 1
        negated = tokens.skip("!")
        key = (tokens.text, negated)
        register = self._scopes.names.get(tokens.text)
        if not isinstance(register, Register):
            raise tokens.expected("a declared predicate register as the guard")
        tokens.i += 1
        predicate = self._predicates.get(key)
        if predicate is None or predicate.register is not register:
            predicate = self._predicates[key] = Predicate(register, negated)
        if not is_identifier(tokens.text):
            raise tokens.expected("an instruction after its guard")
        self._instruction(predicate, line)

    def _instruction(self, predicate: Predicate | None, line: int) -> None:
        tokens = self._tokens
        texts = tokens.texts
        names = self._scopes.names
        i = tokens.i
        opcode = texts[i]
        i += 1
        while texts[i][:1] == "." and len(texts[i]) > 1:  # modifiers set apart from their opcode
            opcode += texts[i]
            i += 1
        operands: list[Operand | None] = []
        if texts[i] == ";":
            i += 1
        else:
            while True:
                known = names.get(texts[i])
                following = texts[i + 1]
                if known is not None and following in _SEPARATORS:
                    operands.append(known)
                    i += 2
                else:
                    tokens.i = i
                    operands.append(self._operands.parse(opcode))
                    i = tokens.i + 1
                    following = texts[tokens.i]
                if following == ";":
                    break
                if following != ",":
                    raise tokens.expected(f"',' or ';' after an operand of '{opcode}'", i - 1)
        tokens.i = i
        self.instructions.append(Instruction(opcode, tuple(operands), predicate, line, self._locations.current))
