"""Writes the complete CUDA source of an expression: the arithmetic, the unfused chain, the fused and the vectorized kernel."""

from __future__ import annotations

from textwrap import indent

from ptxkit.expression.cuda import Source, unwrapped, wrapped
from ptxkit.expression.names import cpp_names, identifiers
from ptxkit.expression.operations import REDUCTIONS
from ptxkit.expression.syntax import Expression, Kind

RULE = "// " + "-" * 117


def source_of(expression: Expression, name: str) -> Source:
    """The source of an expression for kernels ``name_...``, in which no input hides a name that the kernels use."""
    numbered = {n: str(index) for index, n in enumerate(expression.inputs)}  # these are no identifiers
    own = identifiers(write_source(Source(expression, name, numbered)))
    return Source(expression, name, cpp_names(expression.inputs, own, name))


def write_source(source: Source) -> str:
    """The text of the ``.cu`` file."""
    return "\n".join(folded(line) for line in Kernels(source).text().split("\n"))


def folded(line: str, width: int = 120) -> str:
    """A line of the source in lines of at most ``width``, divided after commas, operators or, in comments, words."""
    if len(line) <= width:
        return line
    margin = line[: len(line) - len(line.lstrip())]
    comment = line.startswith("// ")
    place = max(
        line.rfind(mark, len(margin) + 8, width - len(mark) + 1) + len(mark) - 1
        for mark in ((" ",) if comment else (", ", " = ", " { "))
    )
    if place <= len(margin) + 8:
        place = line.rfind(" ", len(margin) + 8, width)
    if place <= 0:
        return line
    head, rest = line[:place].rstrip(), line[place:].strip()
    return head + "\n" + folded(("// " if comment else margin + "    ") + rest, width)


class Kernels:
    """The kernels of one source."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.expression = source.expression
        self.name = source.name
        self.has_reductions = bool(self.expression.reductions)
        self.inputs = [n for n, v in enumerate(source.values) if v.operation == "input" and v.kind is not Kind.SCALAR]
        self.elements = [n for n in self.inputs if source.values[n].kind is Kind.ELEMENT]
        self.columns = [n for n in self.inputs if source.values[n].kind is Kind.COLUMN]

    def text(self) -> str:
        parts = [self._head(), *self._functions()]
        parts += [f"{RULE}\n// unfused: {self._launches()}\n", *map(self.source.step_kernel, self.source.steps)]
        fused = "one CTA per row" if self.has_reductions else "one element per thread"
        parts += [
            f"{RULE}\n// fused: one launch, {fused}\n",
            self._fused_rows() if self.has_reductions else self._fused(),
        ]
        wide = "rows in registers" if self.has_reductions else "128-bit accesses"
        parts += [f"{RULE}\n// vectorized: {wide}\n", self._vectorized()]
        return "\n".join(parts)

    def _launches(self) -> str:
        count = len(self.source.steps)
        return "one launch" if count == 1 else f"{count} launches, with the intermediate results in device memory"

    def _head(self) -> str:
        elements = "rows x cols elements" if self.expression.rowwise else "n elements"
        result = "one result per row" if self.expression.result.kind is Kind.ROW else elements
        headers = ["elementwise/activations.cuh", "elementwise/elementwise.cuh"]
        headers += ["elementwise/philox.cuh"] if self.expression.dropouts else []
        headers += ["rows/row.cuh"] if self.expression.rowwise else []
        includes = "\n".join(f'#include "ptxkit/{header}"' for header in headers)
        formula = " ".join(self.expression.text.split())
        return f"""// {self.name}: out = {formula}
// {result[0].upper() + result[1:]} of f32, f16 or bf16, computed in f32.
{includes}

using namespace ptxkit;
"""

    # -- arithmetic --------------------------------------------------------------------------------------------------

    def _functions(self) -> list[str]:
        return [self.source.function(number, function) for number, function in self._named_functions().items()]

    def _named_functions(self) -> dict[int, str]:
        """Value -> device function, for the operand of each reduction and for the result, where they are computed."""
        found: dict[int, str] = {}
        for number in self.expression.reductions:
            operand = self.source.values[number].operands[0]
            if self.source.values[operand].computed:
                found.setdefault(operand, f"{self.name}_t{operand}")
        if self.expression.result.kind is Kind.ELEMENT:
            found[self.source.last] = f"{self.name}_element"
        return found

    def _value(self, number: int, leaf: dict[int, str], word: str) -> str:
        """The value of an element: a leaf itself, or a call."""
        if number in leaf:
            return leaf[number]
        return self.source.call(number, self._named_functions()[number], leaf, word)

    # -- parameters --------------------------------------------------------------------------------------------------

    def _parameters(self, sizes: list[str]) -> list[str]:
        values = self.source.values
        arrays = [f"const T* {self.source.cpp(values[n].name)}" for n in self.inputs]
        out = "float* out" if self.expression.result.kind is Kind.ROW else "T* out"
        scalars = [f"float {self.source.cpp(name)}" for name in self.source.scalars]
        dropout = (
            ["unsigned threshold", "float keep_scale", "unsigned long long seed"] if self.expression.dropouts else []
        )
        return [*arrays, out, *sizes, *scalars, *dropout]

    def _kernel(self, template: str, bounds: str, suffix: str, sizes: list[str], body: str) -> str:
        head = wrapped(
            f"__global__ void __launch_bounds__({bounds}) {self.name}_{suffix}(", self._parameters(sizes), ") {"
        )
        return f"template <{template}>\n{head}\n{indent(body, '    ')}}}\n"

    def _word(self, index: str) -> str:
        return f"philox_element({index}, seed + {{0}})"

    def _pointer(self, number: int) -> str:
        return self.source.cpp(self.source.values[number].name)

    # -- elements without reductions ---------------------------------------------------------------------------------

    def _fused(self) -> str:
        rowwise = self.expression.rowwise
        leaf = {n: f"load_element({self._pointer(n)} + i)" for n in self.elements}
        leaf |= {n: f"load_element({self._pointer(n)} + i % cols)" for n in self.columns}
        size = "static_cast<long long>(rows) * cols" if rowwise else "n"
        body = f"""const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
if (i >= {size}) return;
{self._assign("out[i] = Convert<T>::from_f32(", self.source.last, leaf, self._word("i"), ");")}
"""
        return self._kernel("class T, int THREADS", "THREADS", "fused", self._sizes(), body)

    def _assign(self, head: str, number: int, leaf: dict[int, str], word: str, tail: str) -> str:
        call = self._value(number, leaf, word)
        return f"{head}{call}{tail}"

    def _sizes(self) -> list[str]:
        return ["int rows", "int cols"] if self.expression.rowwise else ["long long n"]

    def _vectorized(self) -> str:
        if self.has_reductions:
            return self._vectorized_rows()
        if not self.expression.rowwise and not self.expression.dropouts:
            operands = ", ".join(f"float {self._pointer(n)}" for n in self.elements)
            call = self._value(self.source.last, {n: self._pointer(n) for n in self.elements}, "")
            capture = "=" if self.source.scalars else ""
            arrays = ", ".join(self._pointer(n) for n in self.elements)
            body = f"""auto operation = [{capture}]({operands}) {{ return {call}; }};
elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, operation, out, {arrays});
"""
            template = "class T, int THREADS, int VECTORS, int CACHE, bool STRIDE"
            return self._kernel(template, "THREADS", "vectorized", ["long long n"], body)
        return self._vectorized_elements()

    def _vectorized_elements(self) -> str:
        """The loops of elementwise.cuh with explicit loads and stores, for columns and for dropout."""
        rowwise = self.expression.rowwise
        count = "ROWS" if rowwise else "VECTORS"
        held = ", ".join(f"{self._pointer(n)}_vectors[{count}]" for n in self.elements)
        shared = ", ".join(f"{self._pointer(n)}_vector" for n in self.columns)
        vector = {n: f"{self._pointer(n)}_vectors[k][j]" for n in self.elements}
        vector |= {n: f"{self._pointer(n)}_vector[j]" for n in self.columns}
        single = {n: f"load_element({self._pointer(n)} + i)" for n in self.elements}
        single |= {n: f"load_element({self._pointer(n)} + c)" for n in self.columns}
        arrays = ", ".join([*map(self._pointer, self.inputs), "out"])
        lines = ["constexpr int width = vector_width<T>;", "const unsigned long long policy = load_policy<CACHE>();"]
        lines += [f"Vector<T, width> {', '.join(filter(None, [held, shared]))};"]
        if rowwise:
            loads = " ".join(
                f"{self._pointer(n)}_vector.template load<CACHE_KEEP>({self._pointer(n)} + c);" for n in self.columns
            )
            lines += [f"auto column = [&](unsigned c) {{ {loads} }};"]
        lines += ["auto load = [&](int k, long long i) {"]
        lines += [
            f"    {self._pointer(n)}_vectors[k].template load<CACHE>({self._pointer(n)} + i, policy);"
            for n in self.elements
        ]
        lines += ["};", "auto store = [&](int k, long long i) {"]
        drops = [int(self.source.values[n].number) for n in self.expression.dropouts]
        lines += [f"    const RandomWords<width> words{k}(i, seed + {k});" for k in drops]
        lines += ["    Vector<T, width> result;"]
        lines += [
            f"    result.fill([&](int j) {{ return {self._value(self.source.last, vector, 'words{0}.word[j]')}; }});"
        ]
        lines += ["    result.template store<CACHE>(out + i);", "};"]
        parameters = "long long i, unsigned c" if rowwise else "long long i"
        lines += [f"auto one = [&]({parameters}) {{"]
        lines += [
            "    " + self._assign("out[i] = Convert<T>::from_f32(", self.source.last, single, self._word("i"), ");"),
            "};",
        ]
        if rowwise:
            lines += [f"const bool aligned = aligned16({arrays});"]
            lines += [
                "for_each_row_vector<THREADS, LANES, ROWS, width>(rows, cols, aligned, column, load, store, one);"
            ]
            template = "class T, int THREADS, int LANES, int ROWS, int CACHE"
        else:
            lines += [f"for_each_vector<THREADS, VECTORS, width, STRIDE>(n, aligned16({arrays}), load, store, one);"]
            template = "class T, int THREADS, int VECTORS, int CACHE, bool STRIDE"
        return self._kernel(template, "THREADS", "vectorized", self._sizes(), "\n".join(lines) + "\n")

    # -- rows with reductions ----------------------------------------------------------------------------------------

    def _row_values(self) -> list[int]:
        """The values of a row, in the order of their computation: reductions, and operations on their results."""
        return [n for n, v in enumerate(self.source.values) if v.kind is Kind.ROW and v.computed]

    def _fused_rows(self) -> str:
        leaf = {n: f"to_f32({self._pointer(n)}[first + c])" for n in self.elements}
        leaf |= {n: f"to_f32({self._pointer(n)}[c])" for n in self.columns}
        rows = self._row_values()
        leaf |= {n: f"t{n}" for n in rows}
        lines = ["__shared__ CtaSlots<float, THREADS / 32> slots;"]
        lines += ["const long long first = static_cast<long long>(blockIdx.x) * cols;"]
        for iteration, number in enumerate(self.expression.reductions):
            lines += self._ready(rows, number)
            reduction = REDUCTIONS[self.source.values[number].operation]
            term = self._value(self.source.values[number].operands[0], leaf, self._word("first + c"))
            name = f"{'largest' if reduction.maximum else 'sum'}{number}"
            lines += self.source.reduction_loop(reduction, term, name, iteration).splitlines()
            lines += [f"const float t{number} = {unwrapped(reduction.result.format(name))};"]
        lines += self._ready(rows, len(self.source.values))
        if self.expression.result.kind is Kind.ROW:
            lines += [f"if (threadIdx.x == 0) out[blockIdx.x] = t{self.source.last};"]
        else:
            lines += ["for (unsigned c = threadIdx.x; c < cols; c += THREADS) {"]
            assign = self._assign(
                "out[first + c] = Convert<T>::from_f32(", self.source.last, leaf, self._word("first + c"), ");"
            )
            lines += ["    " + assign, "}"]
        return self._kernel("class T, int THREADS", "THREADS", "fused", ["unsigned cols"], "\n".join(lines) + "\n")

    def _ready(self, rows: list[int], before: int) -> list[str]:
        """The row operations between the last reduction that precedes a value, and the value."""
        earlier = [n for n in self.expression.reductions if n < before]
        if not earlier:
            return []
        names = {n: f"t{n}" for n in rows}
        between = [n for n in rows if earlier[-1] < n < before and n not in self.expression.reductions]
        return [f"const float t{n} = {unwrapped(self.source.formula(n, names))};" for n in between]

    def _vectorized_rows(self) -> str:
        leaf = {n: f"{self._pointer(n)}_row[k]" for n in (*self.elements, *self.columns)}
        rows = self._row_values()
        leaf |= {n: f"t{n}" for n in rows}
        arrays = ", ".join(
            [*map(self._pointer, self.inputs), *(["out"] if self.expression.result.kind is Kind.ELEMENT else [])]
        )
        lines = ["using S = typename Tile::template Shape<T>;", "__shared__ RowRecords<float, S, 2> slots;"]
        lines += [
            f"const RowLayout<S> layout(rows, cols, aligned16({arrays}));",
            "row_arrive<S, Tile::NO_EARLY_LAUNCH>();",
        ]
        lines += [
            f"const Row<S> {self._pointer(n)}_row = layout.template load<Tile::CACHE>({self._pointer(n)});"
            for n in self.elements
        ]
        lines += [
            f"const Row<S> {self._pointer(n)}_row = layout.load_shared({self._pointer(n)});" for n in self.columns
        ]
        lines += ["row_wait<S>();"]
        some = f"{self._pointer(self.elements[0])}_row"
        word = self._word("layout.index(k)")
        for iteration, number in enumerate(self.expression.reductions):
            lines += self._ready(rows, number)
            reduction = REDUCTIONS[self.source.values[number].operation]
            value = self._value(self.source.values[number].operands[0], leaf, word)
            padding, method = ("-infinity()", "max") if reduction.maximum else ("0.0f", "sum")
            lines += [
                f"const float part{number} = {some}.{method}([&](float, int k) {{",
                f"    const float value = {value};",
                f"    return layout.is_column(k) ? {unwrapped(reduction.term.format('value'))} : {padding};",
                "});",
                f"const float whole{number} = row_{method}(part{number}, slots, {iteration % 2});",
                f"const float t{number} = {unwrapped(reduction.result.format(f'whole{number}'))};",
            ]
        lines += self._ready(rows, len(self.source.values))
        if self.expression.result.kind is Kind.ROW:
            lines += [f"if (layout.cols && layout.thread == 0) out[layout.row] = t{self.source.last};"]
        else:
            lines += ["Row<S> result;"]
            lines += [f"result.each([&](float& v, int k) {{ v = {self._value(self.source.last, leaf, word)}; }});"]
            lines += ["layout.template store<Tile::CACHE>(out, result);"]
        body = "\n".join(lines) + "\n"
        return self._kernel("class T, class Tile", "Tile::THREADS", "vectorized", ["int rows", "int cols"], body)
