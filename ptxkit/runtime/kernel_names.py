"""The names by which the kernels of a module are listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ptxkit.isa.mangled import base_name, parameter_list

if TYPE_CHECKING:
    from ptxkit.compiler.image import Image


def readable_names(image: Image, mangled: Iterable[str]) -> dict[str, str]:
    """Readable name -> mangled name, in the order given.

    The readable name is the name expression that instantiated the kernel, its plain name where no other kernel has that, or the
    plain name with the types of the parameters. Where these do not differ either, the mangled names stay.
    """
    names = list(mangled)
    written = {name: expression for expression, name in image.names.items()}
    plain = _unique({name: written.get(name) or base_name(name) for name in names})
    typed = _unique({name: plain.get(name) or _with_types(name) for name in names})
    return {typed.get(name, name): name for name in names}


def _unique(shown: dict[str, str]) -> dict[str, str]:
    times = Counter(shown.values())
    return {name: text for name, text in shown.items() if times[text] == 1}


def _with_types(mangled: str) -> str:
    types = parameter_list(mangled)
    return base_name(mangled) + types if types else mangled
