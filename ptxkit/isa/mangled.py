"""Readable names of functions: the plain name inside a mangled one (Itanium C++ ABI, "Mangling")."""

import re
from itertools import combinations

from ptxkit.isa.parameter_types import parameter_types, template_arguments


def base_name(mangled: str) -> str:
    """The unqualified function name inside an Itanium-mangled one; anything else comes back as it is.

    ``_Z6l2normILi256EfEvPT0_`` -> ``l2norm``; ``_ZN2ns4copyEPf`` -> ``copy``.
    """
    names = _names(mangled)
    return names[-1] if names and names[-1] else mangled


def qualified_name(mangled: str) -> str:
    """The function name inside an Itanium-mangled one with its namespaces; anything else comes back as it is.

    ``_ZN2ns4copyEPf`` -> ``ns::copy``; of an anonymous namespace ``(anonymous namespace)::copy``.
    """
    shown = ["(anonymous namespace)" if name.startswith("_GLOBAL__N_") else name for name in _names(mangled)]
    return "::".join(shown) or mangled


def spellings(mangled: str) -> tuple[str, ...]:
    """The plain name, with none, some or all of its namespaces.

    C++ lets inline namespaces be left out, and a mangled name does not say which these are.
    """
    *namespaces, plain = qualified_name(mangled).split("::")
    chosen = (c for count in range(len(namespaces) + 1) for c in combinations(namespaces, count))
    return tuple("::".join((*some, plain)) for some in chosen)


def template_list(mangled: str) -> str:
    """The template arguments of a function, ``<float, 256>``; "" where it has none, or they cannot be read."""
    arguments = template_arguments(mangled)
    return f"<{', '.join(arguments)}>" if arguments else ""


def parameter_list(mangled: str) -> str:
    """The types of a function's parameters, ``(float*, int)``; "" where they cannot be read."""
    types = parameter_types(mangled)
    if types is None or not all(t.text for t in types):
        return ""
    return f"({', '.join(t.text for t in types)})"


def signature(mangled: str) -> str:
    """The qualified name with the types of the parameters, ``ns::copy(float*)``; without them where they cannot be read."""
    return qualified_name(mangled) + parameter_list(mangled)


def _names(mangled: str) -> list[str]:
    """The namespaces of a mangled name and the plain one, which is the last; empty for names that are not mangled."""
    match = re.match(r"_ZL?(N[VK]*)?", mangled)
    if not match:
        return []
    position, names = match.end(), []
    while number := re.match(r"L?(\d+)", mangled[position:]):
        start = position + number.end()
        position = start + int(number[1])
        if not mangled.startswith("_INTERNAL_", start):  # of a source file, for what is static
            names.append(mangled[start:position])
        if not match[1]:
            break
    return names
