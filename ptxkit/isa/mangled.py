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
