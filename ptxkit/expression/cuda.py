"""Writes the CUDA source of an expression: the unfused chain, the fused kernel and the vectorized kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import indent

import numpy as np

from ptxkit.expression.operations import DROPOUT, OPERATIONS, REDUCTIONS, Reduction
from ptxkit.expression.syntax import Expression, Kind, Value


@dataclass(frozen=True)
class Step:
    """One launch of the unfused chain, which computes one value.

    Attributes:
        kernel: name of the kernel. value: number of the value.
        form: ``flat`` (all arrays have the same elements), ``by_element`` (elements of rows), ``by_row`` (one CTA for each row)
            or ``dropout``.
        arrays: numbers of the values that it reads.
        scalars: names of the scalar inputs that it takes.
    """

    kernel: str
    value: int
    form: str
    arrays: tuple[int, ...]
    scalars: tuple[str, ...]


class Source:
    """The source of one expression.

    Args:
        expression: what is computed.
        name: of the kernels.
        cpp: input -> its name in C++.
    """

    def __init__(self, expression: Expression, name: str, cpp: Mapping[str, str]) -> None:
        self.expression = expression
        self.name = name
        self._cpp = cpp
        self.values = expression.values
        self.last = len(self.values) - 1
        self.arrays = [n for n, kind in expression.inputs.items() if kind is not Kind.SCALAR]
        self.scalars = [n for n, kind in expression.inputs.items() if kind is Kind.SCALAR]
        self.steps = [
            self._step(number) for number, v in enumerate(self.values) if v.computed and v.kind is not Kind.SCALAR
        ]

    # -- names -------------------------------------------------------------------------------------------------------

    def cpp(self, name: str) -> str:
        """The C++ name of an input."""
        return self._cpp[name]

    def array(self, number: int) -> str:
        """The C++ name of the array of a value, and its name in the description."""
        value = self.values[number]
        return "out" if number == self.last else self.cpp(value.name) if value.name else f"t{number}"

    def described(self, number: int) -> str:
        """The name of the array of a value in the description."""
        return "out" if number == self.last else self.values[number].name or self.expression.temporary(number)

    def used_scalars(self, number: int) -> list[str]:
        """Names of the scalar inputs in the operands of one operation."""
        found: list[str] = []
        for operand in self.values[number].operands:
            self._scalars_below(operand, found)
        return [name for name in self.scalars if name in found]

    def _scalars_below(self, number: int, found: list[str]) -> None:
        value = self.values[number]
        if value.kind is Kind.SCALAR:
            found += [value.name] if value.name else []
            for operand in value.operands:
                self._scalars_below(operand, found)

    def text(self, number: int, leaves: dict[int, str]) -> str:
        """A value as an operand: a leaf, a literal, or the formula of a scalar."""
        value = self.values[number]
        if number in leaves:
            return leaves[number]
        if value.operation == "constant":
            return literal(value.number)
        if value.operation == "input":
            return self.cpp(value.name)
        assert value.kind is Kind.SCALAR
        return self.formula(number, leaves)

    def formula(self, number: int, leaves: dict[int, str]) -> str:
        """The operation of a value on its operands."""
        value = self.values[number]
        operands = [self.text(operand, leaves) for operand in value.operands]
        if value.operation == DROPOUT:
            return f"(word{int(value.number)} < threshold ? 0.0f : {operands[0]} * keep_scale)"
        return OPERATIONS[value.operation].cuda.format(*operands)

    # -- the unfused chain -------------------------------------------------------------------------------------------

    def _step(self, number: int) -> Step:
        value = self.values[number]
        read = tuple(dict.fromkeys(o for o in value.operands if self.values[o].kind is not Kind.SCALAR))
        kinds = {self.values[o].kind for o in read}
        if value.operation in REDUCTIONS:
            word, form = value.operation, "by_row"
        elif value.operation == DROPOUT:
            word, form = DROPOUT, "dropout"
        else:
            word, form = OPERATIONS[value.operation].word, "flat" if kinds == {value.kind} else "by_element"
        return Step(
            f"{self.name}_{len(self._computed_before(number)) + 1}_{word}",
            number,
            form,
            read,
            tuple(self.used_scalars(number)),
        )

    def _computed_before(self, number: int) -> list[Value]:
        return [v for v in self.values[:number] if v.computed and v.kind is not Kind.SCALAR]

    def step_kernel(self, step: Step) -> str:
        """The kernel of one launch of the unfused chain."""
        arrays = [(self._element_type(number), self.array(number)) for number in step.arrays]
        reads = "".join(f"const {kind}* {name}, " for kind, name in arrays)
        scalars = "".join(f", float {self.cpp(name)}" for name in step.scalars)
        out = f"{self._element_type(step.value)}* out"
        if step.form == "flat":
            operands = ", ".join(f"float {self.array(number)}" for number in step.arrays)
            formula = self.formula(step.value, {number: self.array(number) for number in step.arrays})
            names = ", ".join(name for _, name in arrays)
            capture = "=" if step.scalars else ""
            reads, out = reads.replace("const float*", "const T*"), "T* out"
            return f"""template <class T, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) {step.kernel}({reads}{out}, long long n{scalars}) {{
    auto operation = [{capture}]({operands}) {{ return {unwrapped(formula)}; }};
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, operation, out, {names});
}}
"""
        if step.form == "dropout":
            name = arrays[0][1]
            return f"""template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) {step.kernel}({reads}{out}, long long n{scalars}, unsigned threshold,
                                          float keep_scale, unsigned long long seed) {{
    constexpr int width = vector_width<T>;
    Vector<T, width> vector;
    auto dropped = [&](float value, unsigned word) {{ return word < threshold ? 0.0f : value * keep_scale; }};
    auto load = [&](int, long long i) {{ vector.template load<CACHE_KEEP>({name} + i); }};
    auto store = [&](int, long long i) {{
        const RandomWords<width> words(i, seed + {int(self.values[step.value].number)});
        Vector<T, width> result;
        result.fill([&](int j) {{ return dropped(vector[j], words.word[j]); }});
        result.template store<CACHE_KEEP>(out + i);
    }};
    auto one = [&](long long i) {{
        const unsigned word = philox_element(i, seed + {int(self.values[step.value].number)});
        out[i] = Convert<T>::from_f32(dropped(load_element({name} + i), word));
    }};
    for_each_vector<THREADS, 1, width, false>(n, aligned16({name}, out), load, store, one);
}}
"""
        if step.form == "by_row":
            reduction = REDUCTIONS[self.values[step.value].operation]
            operand = self.values[step.value].operands[0]
            name = self.array(operand)
            total = "largest" if reduction.maximum else "sum"
            loop = self.reduction_loop(reduction, f"to_f32({name}[c])", total, 0)
            result = unwrapped(reduction.result.format(total))
            return f"""template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) {step.kernel}({reads}{out}, unsigned cols{scalars}) {{
    __shared__ CtaSlots<float, THREADS / 32> slots;
    {name} += static_cast<long long>(blockIdx.x) * cols;
{indent(loop, "    ")}    if (threadIdx.x == 0) out[blockIdx.x] = {result};
}}
"""
        index = {Kind.ELEMENT: "i", Kind.COLUMN: "c", Kind.ROW: "r"}
        leaves = {n: f"to_f32({self.array(n)}[{index[self.values[n].kind]}])" for n in step.arrays}
        formula = unwrapped(self.formula(step.value, leaves))
        return f"""template <class T, int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) {step.kernel}({reads}{out}, int cols{scalars}) {{
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned r, unsigned c) {{
        const long long i = static_cast<long long>(r) * cols + c;
        out[i] = Convert<T>::from_f32({formula});
    }});
}}
"""

    def _element_type(self, number: int) -> str:
        return "float" if self.values[number].kind is Kind.ROW else "T"

    def reduction_loop(self, reduction: Reduction, term: str, name: str, iteration: int) -> str:
        """Statements that reduce ``term`` over the columns c of a row by all threads of a CTA, into a variable."""
        start = "-infinity()" if reduction.maximum else "0"
        terms = unwrapped(reduction.term.format("value"))
        combine = f"{name} = fmaxf({name}, {terms});" if reduction.maximum else f"{name} += {terms};"
        whole = "cta_max" if reduction.maximum else "cta_sum"
        return f"""float {name} = {start};
for (unsigned c = threadIdx.x; c < cols; c += THREADS) {{
    const float value = {unwrapped(term)};
    {combine}
}}
{name} = {whole}<THREADS>({name}, slots, {iteration});
"""

    # -- the arithmetic of one element -------------------------------------------------------------------------------

    def leaves_of(self, number: int) -> list[int]:
        """The inputs and the values of a row from which a value is computed, in order; dropout words are separate."""
        found: set[int] = set()
        self._collect(number, found, top=True)
        return sorted(found)

    def _collect(self, number: int, found: set[int], top: bool = False) -> None:
        value = self.values[number]
        if value.kind is Kind.SCALAR:
            return
        if value.operation == "input" or (value.kind is Kind.ROW and not top):
            found.add(number)
            return
        for operand in value.operands:
            self._collect(operand, found)

    def body_of(self, number: int) -> tuple[list[str], str]:
        """Statements that compute a value from its leaves, and the expression of the value."""
        statements: list[str] = []
        names = {leaf: self.leaf_name(leaf) for leaf in self.leaves_of(number)}
        self._emit(number, names, statements)
        return statements, names[number]

    def _emit(self, number: int, names: dict[int, str], statements: list[str]) -> None:
        value = self.values[number]
        if number in names or value.kind is Kind.SCALAR:
            return
        for operand in value.operands:
            self._emit(operand, names, statements)
        statements.append(f"const float t{number} = {unwrapped(self.formula(number, names))};")
        names[number] = f"t{number}"

    def leaf_name(self, number: int) -> str:
        """The name of a leaf in the arithmetic of an element."""
        value = self.values[number]
        return self.cpp(value.name) if value.name else f"t{number}"

    def function(self, number: int, name: str) -> str:
        """A device function that computes a value from its leaves."""
        statements, result = self.body_of(number)
        last = statements.pop()
        lines = [*statements, f"return {last.partition(' = ')[2]}"]
        assert result in last
        parameters = [f"float {self.leaf_name(leaf)}" for leaf in self.leaves_of(number)]
        parameters += [f"float {self.cpp(name)}" for name in self.scalars_within(number)]
        if words := self.words_within(number):
            parameters += [f"unsigned word{k}" for k in words] + ["unsigned threshold", "float keep_scale"]
        head = wrapped(f"__device__ __forceinline__ float {name}(", parameters, ") {")
        return f"{head}\n{indent(chr(10).join(lines), '    ')}\n}}\n"

    def call(self, number: int, name: str, leaf: dict[int, str], word: str) -> str:
        """A call of :meth:`function`; ``leaf`` gives the argument of each leaf, ``word`` with {0} a random word."""
        arguments = [leaf[n] for n in self.leaves_of(number)] + [self.cpp(n) for n in self.scalars_within(number)]
        if words := self.words_within(number):
            arguments += [word.format(k) for k in words] + ["threshold", "keep_scale"]
        return f"{name}({', '.join(arguments)})"

    def scalars_within(self, number: int) -> list[str]:
        """Scalar inputs that the arithmetic between a value and its leaves uses."""
        found: list[str] = []
        for v in self._between(number):
            for operand in self.values[v].operands:
                self._scalars_below(operand, found)
        return [name for name in self.scalars if name in found]

    def words_within(self, number: int) -> list[int]:
        """Numbers of the dropouts between a value and its leaves."""
        return sorted(int(self.values[v].number) for v in self._between(number) if self.values[v].operation == DROPOUT)

    def _between(self, number: int) -> set[int]:
        found: set[int] = set()
        self._collect_between(number, found, top=True)
        return found

    def _collect_between(self, number: int, found: set[int], top: bool = False) -> None:
        value = self.values[number]
        if value.kind is Kind.SCALAR or value.operation == "input" or (value.kind is Kind.ROW and not top):
            return
        found.add(number)
        for operand in value.operands:
            self._collect_between(operand, found)


def literal(number: float) -> str:
    """A constant in CUDA C++, as a float."""
    text = repr(float(np.float32(number))) if float(np.float32(number)) == number else repr(float(number))
    return f"({text}f)" if number < 0 else f"{text}f"


def unwrapped(formula: str) -> str:
    """A formula without its outermost parentheses, where they enclose all of it."""
    if not formula.startswith("("):
        return formula
    depth = 0
    for place, letter in enumerate(formula):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return formula[1:-1] if place == len(formula) - 1 else formula
    return formula


def wrapped(head: str, items: list[str], tail: str, width: int = 120) -> str:
    """``head``, the items separated by commas, and ``tail``, in lines of at most ``width``, aligned below the first item."""
    lines, line = [], head
    for position, item in enumerate(items):
        piece = item + (", " if position + 1 < len(items) else tail)
        if len(line) + len(piece.rstrip()) > width and line.strip():
            lines.append(line.rstrip())
            line = " " * min(len(head), 40)
        line += piece
    if not items:
        line += tail
    return "\n".join([*lines, line.rstrip()])
