"""Which elements of a product of tcgen05.mma are uninitialised, where uninitialised bits are tracked.

An element is undefined if its row of A, its column of B, one of their scale factors, the metadata of the row, or the element
of D that it adds to contains an undefined bit. The operands are read from the wave that holds the undefined bits, at the same
time as the real ones.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ptxkit.emulator.arrays import Lanes, Mask
from ptxkit.emulator.tensor_core.tcgen05 import sparsity, zero_columns
from ptxkit.emulator.tensor_core.tcgen05.instruction_descriptors import Product
from ptxkit.emulator.tensor_core.tcgen05.layouts import Layout, Part
from ptxkit.emulator.tensor_core.tcgen05.memory import TensorMemory, address
from ptxkit.emulator.tensor_core.tcgen05.multiplication import Form, Operands
from ptxkit.emulator.tensor_core.tcgen05.scale_factors import Factors
from ptxkit.emulator.tensor_core.tcgen05.shared_matrix import SharedMatrix


class Issued(Protocol):
    """An instruction with its operands: the attributes of ``Execution`` that are needed here."""

    form: Form
    given: Operands
    product: Product
    layout: Layout
    ctas: list[int]
    a: SharedMatrix
    b: SharedMatrix
    b_shift: int
    factors: tuple[Factors, Factors] | None
    column: int
    a_column: int
    a_words: int
    metadata_column: int


def undefined(e: Issued, shadow: TensorMemory) -> Mask:
    """(M, N): the undefined elements of the product of ``e``; ``shadow`` are the undefined bits of tensor memory."""
    p, given, wave = e.product, e.given, shadow.wave
    b = np.concatenate([e.b.load(wave, cta, given.b) for cta in e.ctas])[e.b_shift :]
    columns = (b != 0).any(1)
    if given.zero_columns:
        columns &= ~zero_columns.mask(given.zero_columns, p.m, p.n)
    rows = np.zeros(p.m, np.bool_)
    if not e.form.in_memory:
        rows |= (np.concatenate([e.a.load(wave, cta, given.a) for cta in e.ctas]) != 0).any(1)
    out = np.zeros((p.m, p.n), np.bool_)
    for part in e.layout.parts:
        words = shadow.words[shadow.sm[e.ctas[part.cta]]]
        mine = slice(part.row, part.row + part.rows)
        rows[mine] |= _rows(e, part, words)
        across = slice(part.column, part.column + part.columns)
        found = rows[mine, None] | columns[None, across]
        if e.factors is not None:
            of_b = e.factors[1].read(words[:, address(given.scale_b)[1] :], part.lane, e.layout.width, 0)
            found = found | (of_b[: part.columns] != 0).any(1)[None]
        if given.accumulate:
            found = found | (words[part.lane : part.lane + part.rows, e.column : e.column + part.columns] != 0)
        out[mine, across] = found
    return out


def _rows(e: Issued, part: Part, words: Lanes) -> Mask:
    """The rows of a part whose elements in tensor memory, metadata or scale factors are undefined; words are (128, 512)."""
    lanes = slice(part.lane, part.lane + part.rows)
    found = np.zeros(part.rows, np.bool_)
    if e.form.in_memory:
        found |= (words[lanes, e.a_column : e.a_column + e.a_words] != 0).any(1)
    if e.form.sparse:
        metadata = words[:, e.metadata_column : e.metadata_column + sparsity.columns(e.product.a)]
        found |= (sparsity.nibbles(metadata, e.product.a, part.lane, part.rows) != 0).any(1)
    if e.factors is not None:
        start = part.row - part.cta * e.product.m // e.form.group
        of_a = e.factors[0].read(words[:, address(e.given.scale_a)[1] :], part.lane, part.rows, start)
        found |= (of_a != 0).any(1)
    return found
