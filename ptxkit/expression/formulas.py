"""Writes an expression as numpy or torch statements."""

from __future__ import annotations

from collections import Counter

from ptxkit.expression.cuda import unwrapped
from ptxkit.expression.operations import DROPOUT, OPERATIONS, REDUCTIONS
from ptxkit.expression.syntax import Expression


def statements(expression: Expression, language: str) -> tuple[list[str], str]:
    """Assignments of the values that occur more than once, and the formula of the result.

    Args:
        expression: what is computed.
        language: ``numpy`` or ``torch``. Inputs have their names; dropout is ``dropout(value, number)``.
    """
    uses = Counter(operand for value in expression.values for operand in value.operands)
    texts: list[str] = []
    lines: list[str] = []
    for number, value in enumerate(expression.values):
        operands = [texts[operand] for operand in value.operands]
        if value.operation == "input":
            text = value.name
        elif value.operation == "constant":
            text = f"({value.number!r})" if value.number < 0 else repr(value.number)
        elif value.operation == DROPOUT:
            text = f"dropout({unwrapped(operands[0])}, {int(value.number)})"
        elif value.operation in REDUCTIONS:
            text = getattr(REDUCTIONS[value.operation], language).format(operands[0])
        else:
            formula = getattr(OPERATIONS[value.operation], language)
            bare = formula.startswith(("np.", "torch.", "activation")) and "!=" not in formula
            text = formula.format(*(unwrapped(o) if bare else o for o in operands))
        if uses[number] > 1 and value.computed:
            name = expression.temporary(number)
            lines.append(f"{name} = {unwrapped(text)}")
            text = name
        texts.append(text)
    return lines, unwrapped(texts[-1])
