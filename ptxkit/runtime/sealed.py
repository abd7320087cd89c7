"""Objects that refuse the assignment of attributes that they do not have, so that a misspelt one is not accepted silently."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from ptxkit.errors import UsageError


class _SealedType(type):
    """Makes objects whose attributes are complete after ``__init__``."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        made = super().__call__(*args, **options)
        made.__dict__["_sealed"] = True
        return made


class Sealed(metaclass=_SealedType):
    """A base class: after ``__init__``, only attributes that exist can be assigned. Names that begin with ``_`` are exempt.

    Attributes:
        _settings_by: setting -> how it is set, for names that are no attributes but that messages suggest.
    """

    _settings_by: dict[str, str] = {}

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and "_sealed" in self.__dict__ and name not in self.__dict__:
            known = {n for kind in type(self).__mro__ for n in (*vars(kind), *vars(kind).get("__annotations__", ()))}
            if name not in known:
                raise UsageError(f"{type(self).__name__} has no attribute {name!r}{self._suggestion(name, known)}")
        super().__setattr__(name, value)

    def _suggestion(self, name: str, known: set[str]) -> str:
        public = sorted(n for n in known | set(self.__dict__) if not n.startswith("_"))
        near = get_close_matches(name, [*self._settings_by, *public], n=1)
        if not near:
            return "; it is not assigned, because nothing would read it"
        how = self._settings_by.get(near[0])
        return f"; did you mean {near[0]!r}?" + (f" Write {how}" if how else "")
