"""Struct templates of the sources, as template arguments of a kernel."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class TemplateStruct:
    """An instantiation of a struct template, which is one template argument of a launch.

    A subclass has the name of the struct template in ``cu/`` and one field for each of its template parameters, with the same
    names in the same order. ``str()`` gives the C++: ``RowTile<128, true>``.
    """

    def __str__(self) -> str:
        values = (getattr(self, field.name) for field in fields(self))
        return f"{type(self).__name__}<{', '.join(str(v).lower() if isinstance(v, bool) else str(v) for v in values)}>"
