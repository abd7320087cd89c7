"""``.loc`` and ``.file``: which source line an instruction comes from (PTX ISA, "Debugging Directives")."""

from __future__ import annotations

from collections.abc import Mapping

from ptxkit.isa.lexer import Tokens
from ptxkit.isa.model import Loc


class LocationTracker:
    """Reads the ``.loc`` directives of one function; ``current`` is the location in force, or None before the first.

    ``inlined_at`` names the place of an earlier ``.loc``, which may itself be inlined, so the chain is found by place.
    """

    def __init__(self, tokens: Tokens, files: Mapping[int, str]) -> None:
        self.current: Loc | None = None
        self._tokens = tokens
        self._files = files
        self._seen: dict[tuple[int, int, int], Loc] = {}

    def parse(self) -> None:
        """Takes ``.loc file line column [, function_name label[+n], inlined_at file line column]``."""
        tokens = self._tokens
        tokens.i += 1
        place = self._place()
        inlined_at: Loc | None = None
        while tokens.skip(","):
            attribute = tokens.take()
            if attribute == "function_name":  # an offset into .debug_str
                tokens.i += 1
                if tokens.skip("+"):
                    tokens.i += 1
            elif attribute == "inlined_at":
                at = self._place()
                inlined_at = self._seen.get(at) or self.loc(at)
            else:
                raise tokens.expected("function_name or inlined_at", tokens.i - 1)
        self.current = self._seen[place] = self.loc(place, inlined_at)

    def loc(self, place: tuple[int, int, int], inlined_at: Loc | None = None) -> Loc:
        """The Loc of (file index, line, column)."""
        index, line, column = place
        return Loc(self._files.get(index, f"<file {index}>"), line, column, inlined_at)

    def _place(self) -> tuple[int, int, int]:
        index, line = self._number("a file index"), self._number("a line")
        return index, line, self._number("a column") if self._tokens.text.isdecimal() else 0

    def _number(self, what: str) -> int:
        text = self._tokens.text
        if not text.isdecimal():
            raise self._tokens.expected(what)
        self._tokens.i += 1
        return int(text)
