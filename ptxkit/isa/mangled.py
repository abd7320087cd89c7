"""Readable names of functions: the plain name inside a mangled one (Itanium C++ ABI, "Mangling")."""

import re


def base_name(mangled: str) -> str:
    """The unqualified function name inside an Itanium-mangled one; anything else comes back as it is.

    ``_Z6l2normILi256EfEvPT0_`` -> ``l2norm``; ``_ZN2ns4copyEPf`` -> ``copy``.
    """
    match = re.match(r"_ZL?(N[VK]*)?", mangled)
    if not match or not mangled.startswith("_Z"):
        return mangled
    position, name = match.end(), ""
    while number := re.match(r"L?(\d+)", mangled[position:]):
        start = position + number.end()
        name = mangled[start : start + int(number[1])]
        position = start + int(number[1])
        if not match[1]:
            break
    return name or mangled


def qualified_name(mangled: str) -> str:
    """The function name inside an Itanium-mangled one with its namespaces; anything else comes back as it is.

    ``_ZN2ns4copyEPf`` -> ``ns::copy``; of an anonymous namespace ``(anonymous namespace)::copy``.
    """
    match = re.match(r"_ZL?N[VK]*", mangled)
    if not match:
        return base_name(mangled)
    position, names = match.end(), []
    while number := re.match(r"L?(\d+)", mangled[position:]):
        start = position + number.end()
        names.append(mangled[start : start + int(number[1])])
        position = start + int(number[1])
    shown = ["(anonymous namespace)" if name.startswith("_GLOBAL__N_") else name for name in names]
    return "::".join(shown) or mangled


def signature(mangled: str) -> str:
    """The qualified name with the types of the parameters, ``ns::copy(float*)``; without them where they cannot be read."""
    from ptxkit.isa.parameter_types import parameter_types

    types = parameter_types(mangled)
    name = qualified_name(mangled)
    if types is None or not all(t.text for t in types):
        return name
    return f"{name}({', '.join(t.text for t in types)})"
