"""Writes the description and the test of an expression."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent

from ptxkit.expression.cuda import Source, Step
from ptxkit.expression.formulas import statements
from ptxkit.expression.operations import OPERATIONS, REDUCTIONS
from ptxkit.expression.rounding import MARGIN, sensible_shapes
from ptxkit.expression.syntax import Kind
from ptxkit.workload.launch import Tolerance

TESTED_ROWS = ((1, 1), (3, 17), (5, 1000), (2, 4096))
TESTED_SIZES = (1, 31, 4096, 5001)
"""Shapes and sizes of a written test, without those at which the formula has no sensible results."""

Ranges = Mapping[str, tuple[float, float]]


class Description:
    """The description of one source.

    Args:
        source: the CUDA source.
        title: name of the class.
        ranges: range of the random values of each array.
        scalars: default of each scalar input.
        tolerances: element type -> tolerance, or None for the default.
    """

    def __init__(
        self,
        source: Source,
        title: str,
        ranges: Ranges,
        scalars: Mapping[str, float],
        tolerances: Mapping[str, Tolerance | None],
    ) -> None:
        self.source, self.expression, self.name, self.title = source, source.expression, source.name, title
        self.ranges, self.scalars, self.tolerances = ranges, scalars, tolerances
        self.rowwise = self.expression.rowwise
        self.has_reductions = bool(self.expression.reductions)
        self.random = bool(self.expression.dropouts)
        self.by_row = self.expression.result.kind is Kind.ROW
        self.formula = " ".join(self.expression.text.split())

    def text(self, naming: str) -> str:
        """The text of the ``.py`` file; ``naming`` is a line that names the kernel, or ""."""
        body = [
            self._fields(naming),
            self._inputs(),
            self._outputs(),
            self._temporaries(),
            self._reference(),
            self._torch(),
        ]
        body += [self._work(), self._constraints(), self._tolerance(), self._properties(), self._variants()]
        return f"{self._head()}\n\n{self._class()}" + "".join(part for part in body if part)

    # -- the parts of the file ---------------------------------------------------------------------------------------

    def _head(self) -> str:
        names = ["Launch", *(["Tolerance"] if any(self.tolerances.values()) else []), "Work", "Workload", "cdiv"]
        text = "".join(map(str, statements(self.expression, "numpy")))
        helpers = [*(["activation"] if "activation(" in text else []), *self._element_helpers()]
        lines = ["from ptxkit.kernels.elementwise import columns"] if self._is_columnwise() else []
        lines += [
            f"from ptxkit.kernels.elementwise.elementwise import {', '.join(sorted(set(helpers), key=_import_order))}"
        ]
        lines += ["from ptxkit.kernels.elementwise.philox import random_words"] if self.random else []
        if self.has_reductions or any(step.form in ("by_element", "by_row") for step in self.source.steps):
            lines += ["from ptxkit.kernels.rows import rows as row"]
        if any(range_ != (-1.0, 1.0) for range_ in self.ranges.values()):
            lines += ["from ptxkit.workload.inputs import dtype_of"]
        names += ["uniform"] if (-1.0, 1.0) in self.ranges.values() else []
        ptxkit = ", ".join([*names, "variant"])
        fields = "from dataclasses import field\n" if self.random else ""
        return f'''"""{self.name}: out = {self.formula}"""

{fields}from typing import Literal

import numpy as np

from ptxkit import {ptxkit}
{chr(10).join(lines)}
'''

    def _element_helpers(self) -> list[str]:
        found = ["ELEMENTS"]
        forms = {(step.form, self.source.values[step.value].kind) for step in self.source.steps}
        found += ["framework"] if any(form == "flat" for form, _ in forms) else []
        found += ["width"] if any(form == "dropout" for form, _ in forms) else []
        found += [] if self.has_reductions else ["SCALAR_THREADS", "scalar"]
        found += ["TILE", "launch", "preferred", "usable"] if not self.rowwise else []
        return found

    def _is_columnwise(self) -> bool:
        return self.rowwise and not self.has_reductions

    def _class(self) -> str:
        return f'class {self.title}(Workload):\n    """out = {self.formula}"""\n\n'

    def _fields(self, naming: str) -> str:
        types = ", ".join(f'"{dtype}"' for dtype in self.tolerances)
        first = next(iter(self.tolerances))
        sizes = ["rows: int = 16384", "cols: int = 4096"] if self.rowwise else ["n: int = 1 << 26"]
        emulated = '{"rows": 16, "cols": 1024}' if self.rowwise else '{"n": 1 << 14}'
        lines = [f'source = "{self.name}.cu"', *sizes, f'dtype: Literal[{types}] = "{first}"']
        lines += [f"{name}: float = {value!r}" for name, value in self.scalars.items()]
        if self.random:
            lines += [
                "p: float = 0.1  # probability of an element to be dropped",
                "seed: int = field(default=1234, kw_only=True)",
            ]
            lines += ["torch_is_random = True  # torch drops other elements, so that its results are not compared"]
        lines += [f"emulator_sizes = {emulated}"]
        return naming + indent("\n".join(lines), "    ") + "\n"

    def _inputs(self) -> str:
        lines = []
        for name in self.source.arrays:
            column = self.expression.inputs[name] is Kind.COLUMN
            shape = "self.cols" if column else "(self.rows, self.cols)" if self.rowwise else "self.n"
            low, high = self.ranges[name]
            if (low, high) == (-1.0, 1.0):
                lines.append(f'"{name}": uniform(rng, {shape}, self.dtype),')
            else:
                lines.append(f'"{name}": rng.uniform({low}, {high}, {shape}).astype(dtype_of(self.dtype)),')
        lines += [f'"{name}": np.float32(self.{name}),' for name in self.scalars]
        if self.random:
            lines += ['"threshold": np.uint32(self.p * 2**32),', '"keep_scale": np.float32(1 / (1 - self.p)),']
            lines += ['"seed": np.uint64(self.seed),']
        return _method("inputs(self, rng)", ["return {", *(f"    {line}" for line in lines), "}"])

    def _outputs(self) -> str:
        shape = "self.rows" if self.by_row else "(self.rows, self.cols)" if self.rowwise else "self.n"
        dtype = '"f32"' if self.by_row else "self.dtype"
        return _method("outputs(self)", [f'return {{"out": ({shape}, {dtype})}}'])

    def _temporaries(self) -> str:
        shapes = {
            Kind.ELEMENT: "(self.rows, self.cols)" if self.rowwise else "self.n",
            Kind.COLUMN: "self.cols",
            Kind.ROW: "self.rows",
        }
        items = []
        for step in self.source.steps[:-1]:
            kind = self.source.values[step.value].kind
            dtype = '"f32"' if kind is Kind.ROW else "self.dtype"
            items.append(f'"{self.source.described(step.value)}": ({shapes[kind]}, {dtype}),')
        if not items:
            return ""
        comment = "# what the launches of the unfused chain pass on in device memory"
        return _method("temporaries(self)", [comment, "return {", *(f"    {item}" for item in items), "}"])

    def _parameters(self) -> list[str]:
        return [*self.source.arrays, *self.source.scalars]

    def _reference(self) -> str:
        lines, result = statements(self.expression, "numpy")
        names = [f"{name} = np.asarray({name}, np.float64)" for name in self._parameters()]
        random = ["threshold", "keep_scale", "seed"] if self.random else []
        head = f"reference({', '.join(['self', *self._parameters(), *random])})"
        if self.random:
            names += ["", "def dropout(value, number):"]
            names += ["    kept = random_words(value.size, int(seed) + number).reshape(value.shape) >= threshold"]
            names += ["    return np.where(kept, value * np.float64(keep_scale), 0)", ""]
        shown = f"({result}).reshape(-1)" if self.by_row else result
        return _method(
            head,
            [
                *names,
                'with np.errstate(all="ignore"):',
                *(f"    {line}" for line in lines),
                f'    return {{"out": {shown}}}',
            ],
        )

    def _torch(self) -> str:
        lines, result = statements(self.expression, "torch")
        first = next(name for name in self.source.arrays if self.expression.inputs[name] is Kind.ELEMENT)
        names = [
            f"{name} = torch.tensor({name}, dtype={first}.dtype, device={first}.device)" for name in self.source.scalars
        ]
        if self.random:
            names += ["", "def dropout(value, number):", "    return torch.nn.functional.dropout(value, self.p)", ""]
        dtype = "torch.float32" if self.by_row else f"{first}.dtype"
        shown = f"({result}).reshape(-1).to({dtype})" if self.by_row else f"({result}).to({dtype})"
        head = f"torch({', '.join(['self', *self._parameters()])})"
        body = ["import torch", "", *names, *lines, f"return {shown}"]
        if "torch." not in "".join([*names, *lines, shown]):
            body = body[2:]
        return _method(head, body)

    def _work(self) -> str:
        flops = {Kind.ELEMENT: 0, Kind.ROW: 0, Kind.COLUMN: 0, Kind.SCALAR: 0}
        for value in self.source.values:
            if value.operation in REDUCTIONS:
                flops[Kind.ELEMENT] += REDUCTIONS[value.operation].flops
            elif value.computed:
                flops[value.kind] += OPERATIONS[value.operation].flops if value.operation in OPERATIONS else 1
        counts = {Kind.ELEMENT: "n", Kind.ROW: "self.rows", Kind.COLUMN: "self.cols"}
        terms = [f"{flops[kind]} * {count}" for kind, count in counts.items() if flops[kind]]
        size = "ELEMENTS[self.dtype][1]"
        arrays = [self.expression.inputs[name] for name in self.source.arrays]
        elements = arrays.count(Kind.ELEMENT) + (not self.by_row)
        moved = f"{elements} * n" + (f" + {arrays.count(Kind.COLUMN)} * self.cols" if Kind.COLUMN in arrays else "")
        bytes_ = f"({moved}) * {size}" if " + " in moved else f"{moved} * {size}"
        bytes_ += " + 4 * self.rows" if self.by_row else ""
        sums = any(not REDUCTIONS[self.source.values[r].operation].maximum for r in self.expression.reductions)
        length = ", sum_length=self.cols" if sums else ", sum_length=1"
        n = "self.rows * self.cols" if self.rowwise else "self.n"
        lines = ["# the minimum that any version must compute and move", f"n = {n}"]
        return _method("work(self)", [*lines, f"return Work(flops={' + '.join(terms)}, bytes={bytes_}{length})"])

    def _constraints(self) -> str:
        lines = []
        if self.random:
            lines += ["if not 0 <= self.p < 1:", '    yield f"p must be at least 0 and below 1, not {self.p}"']
            lines += [
                "if not 0 <= self.seed < 2**63:",
                '    yield f"seed must be at least 0 and below 2^63, not {self.seed}"',
            ]
        if self.has_reductions or any(step.form == "by_element" for step in self.source.steps):
            lines += ["yield from row.too_many(self)"]
        if not self.has_reductions:
            n = "self.rows * self.cols" if self.rowwise else "self.n"
            lines += [f"if cdiv({n}, SCALAR_THREADS) >= 2**31:", '    yield "more CTAs than a grid can have"']
        return _method("constraints(self)", lines)

    def _tolerance(self) -> str:
        stated = {dtype: value for dtype, value in self.tolerances.items() if value is not None}
        if not stated:
            return ""
        entries = [
            f'"{dtype}": Tolerance(relative={value.relative!r}, absolute={value.absolute!r}),'
            for dtype, value in stated.items()
        ]
        doc = '"""Intermediate results are rounded, which matters where terms cancel: '
        doc += f'{MARGIN:.0f} times the largest error of a simulation in numpy."""'
        lines = [doc, "stated = {", *(f"    {entry}" for entry in entries), "}", "return stated.get(self.dtype)"]
        return "\n    @property\n" + _method("tolerance(self)", lines).lstrip("\n")

    def _properties(self) -> str:
        doc = '"""The element type in C++, the first template argument."""'
        return "\n    @property\n" + _method("T(self)", [doc, "return ELEMENTS[self.dtype][0]"]).lstrip("\n")

    # -- variants ----------------------------------------------------------------------------------------------------

    def _arguments(self, arrays: list[str], sizes: list[str], scalars: list[str], random: bool) -> str:
        items = [*(f'"{name}"' for name in arrays), '"out"', *sizes, *(f'"{name}"' for name in scalars)]
        items += ['"threshold"', '"keep_scale"', '"seed"'] if random else []
        return f"({', '.join(items)})"

    def _variants(self) -> str:
        steps = [f"    {self._step(step)}," for step in self.source.steps]
        count = len(steps)
        kind = "One launch" if count == 1 else f"{count} launches, with the intermediate results in device memory"
        n = ["n = self.rows * self.cols"] if self.rowwise and any("n)" in s or "n," in s for s in steps) else []
        unfused = _method("unfused(self)", [f'"""{kind}."""', *n, "return [", *steps, "]"])
        arrays, scalars = self.source.arrays, self.source.scalars
        parts = ["    @variant\n" + unfused.lstrip("\n")]
        if self.has_reductions:
            fused = self._arguments(arrays, ["self.cols"], scalars, self.random)
            wide = self._arguments(arrays, ["self.rows", "self.cols"], scalars, self.random)
            held = len(arrays)
            parts += [
                "    @variant\n"
                + _method(
                    "fused(self)",
                    [
                        '"""One launch, one CTA per row, which reads the row for each reduction and for the result."""',
                        f"args = {fused}",
                        f'return [row.by_row("{self.name}_fused", self, args, (self.T,))]',
                    ],
                ).lstrip("\n"),
                f"    @variant(tile=row.TILE_IN_REGISTERS, constraint=row.fits_in_registers({held}), "
                f"prefer=row.preferred_in_registers({held}))\n"
                + _method(
                    "vectorized(self, t)",
                    [
                        '"""128-bit accesses, rows in registers: several short rows per CTA, one long row per cluster."""',
                        f"args = {wide}",
                        f'return [row.launch_in_registers("{self.name}_vectorized", self, t, args, (self.T,))]',
                    ],
                ).lstrip("\n"),
            ]
        elif self.rowwise:
            args = self._arguments(arrays, ["self.rows", "self.cols"], scalars, self.random)
            inputs = [self.expression.inputs[name] for name in arrays].count(Kind.ELEMENT)
            parts += [
                "    @variant\n"
                + _method(
                    "fused(self)",
                    [
                        '"""One launch, one element per thread."""',
                        f"args = {args}",
                        f'return [scalar("{self.name}_fused", self.rows * self.cols, args, (self.T,))]',
                    ],
                ).lstrip("\n"),
                f"    @variant(tile=columns.ROW_TILE, constraint=columns.usable({inputs}), prefer=columns.preferred)\n"
                + _method(
                    "vectorized(self, t)",
                    [
                        '"""128-bit accesses; a thread loads the values of its columns once for several rows."""',
                        f"args = {args}",
                        f'return [columns.launch("{self.name}_vectorized", self, t, args, (self.T,))]',
                    ],
                ).lstrip("\n"),
            ]
        else:
            args = self._arguments(arrays, ["self.n"], scalars, self.random)
            elements = f"lambda w: w.n, {len(arrays)}"
            parts += [
                "    @variant\n"
                + _method(
                    "fused(self)",
                    [
                        '"""One launch, one element per thread."""',
                        f"args = {args}",
                        f'return [scalar("{self.name}_fused", self.n, args, (self.T,))]',
                    ],
                ).lstrip("\n"),
                f"    @variant(tile=TILE, constraint=usable({elements}), prefer=preferred({elements}))\n"
                + _method(
                    "vectorized(self, t)",
                    [
                        '"""128-bit accesses, several in flight per thread."""',
                        f"args = {args}",
                        f'return [launch("{self.name}_vectorized", self.n, self.dtype, args, t, (self.T,))]',
                    ],
                ).lstrip("\n"),
            ]
        return "".join(f"\n{part}" for part in parts)

    def _step(self, step: Step) -> str:
        kind = self.source.values[step.value].kind
        arrays = [f'"{self.source.described(number)}"' for number in step.arrays] + [
            f'"{self.source.described(step.value)}"'
        ]
        scalars = [f'"{name}"' for name in step.scalars]
        n = "n" if self.rowwise else "self.n"
        if step.form == "by_row":
            return f'row.by_row("{step.kernel}", self, ({", ".join([*arrays, "self.cols", *scalars])}), (self.T,))'
        if step.form == "by_element":
            return f'row.by_element("{step.kernel}", self, ({", ".join([*arrays, "self.cols", *scalars])}), (self.T,))'
        if step.form == "dropout":
            args = ", ".join([*arrays, n, *scalars, '"threshold"', '"keep_scale"', '"seed"'])
            return f'Launch("{step.kernel}", cdiv({n}, 128 * width(self.dtype)), 128, ({args}), template=(self.T, 128))'
        count = {Kind.ELEMENT: n, Kind.COLUMN: "self.cols", Kind.ROW: "self.rows"}[kind]
        dtype, template = ('"f32"', '("float",)') if kind is Kind.ROW else ("self.dtype", "(self.T,)")
        return f'framework("{step.kernel}", {count}, {dtype}, ({", ".join([*arrays, count, *scalars])}), {template})'

    # -- the test ----------------------------------------------------------------------------------------------------

    def test(self) -> str:
        """The text of the test file."""
        sizes = "rows, cols" if self.rowwise else "n"
        shapes = list(TESTED_ROWS) if self.rowwise else [(1, n) for n in TESTED_SIZES]
        sensible = sensible_shapes(self.expression, self.ranges, self.scalars, shapes)
        values = repr(sensible if self.rowwise else [n for _, n in sensible])
        given = "rows=rows, cols=cols" if self.rowwise else "n=n"
        some = "rows=4, cols=1024" if self.rowwise else "n=4096"
        types = ", ".join(f'"{dtype}"' for dtype in self.tolerances)
        several = len(self.source.steps) > 1
        fewer = (
            f"""

def test_fusion_saves_traffic():
    results = assert_verified({self.title}({some}), device="emulator")
    unfused, fused = (results[name].counters for name in ("unfused", "fused"))
    assert fused.global_store_bytes < unfused.global_store_bytes
"""
            if several
            else ""
        )
        return f'''"""Tests of {self.name}; run them with: pytest test_{self.name}.py"""

import pytest
from {self.name} import {self.title}

from ptxkit.testing import assert_verified


@pytest.mark.parametrize("dtype", [{types}])
@pytest.mark.parametrize("{sizes}", {values})
def test_every_variant_is_verified({sizes}, dtype):
    assert_verified({self.title}({given}, dtype=dtype), seed=[0, 1])


def test_there_are_no_races():
    assert_verified({self.title}({some}), device="emulator", racecheck=True)
{fewer}'''


def _method(head: str, lines: list[str]) -> str:
    body = "\n".join(lines)
    return f"\n    def {head}:\n{indent(body, ' ' * 8)}\n"


def _import_order(name: str) -> tuple[bool, str]:
    """ruff's order: constants first."""
    return (not name.isupper(), name)
