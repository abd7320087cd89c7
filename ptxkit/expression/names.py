"""Names of inputs in CUDA C++: some that Python allows are keywords there, or names that the generated kernels use."""

from __future__ import annotations

import re
from collections.abc import Collection

CPP_WORDS = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class co_await
    co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do double
    dynamic_cast else enum explicit export extern false float for friend goto if inline int long main mutable namespace new
    noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires return short
    signed sizeof static static_assert static_cast struct switch template this thread_local throw true try typedef typeid
    typename typeof union unsigned using virtual void volatile wchar_t while xor xor_eq threadidx blockidx blockdim griddim
    warpsize
    """.split()
)
"""Keywords, alternative operators and built-in variables, some of which are valid names in Python."""
PREDEFINED = frozenset({"linux", "unix"})
"""Macros of the compiler that are no upper-case words."""


CLASS_WORDS = frozenset(
    """
    unfused fused vectorized T variant property field Literal int float str row columns usable preferred TILE emulator_sizes
    torch_is_random
    """.split()
)
"""What the body of a generated class defines or uses, so that no field may have its name."""


def identifiers(source: str) -> frozenset[str]:
    """The words of a C++ source that a variable can hide: those of comments and directives are none, nor are members."""
    code = re.sub(r"//.*|^\s*#.*", "", source, flags=re.MULTILINE)
    return frozenset(re.findall(r"(?<!\.)(?<!::)(?<!->)\b[A-Za-z_]\w*", code))


def cpp_names(inputs: Collection[str], own: Collection[str], kernel: str) -> dict[str, str]:
    """Input -> its name in C++: the same, or with a suffix where that has another meaning in the source.

    Args:
        own: the words of the source that are not names of inputs.
        kernel: its functions are called ``kernel_...``.
    """

    def clashes(name: str) -> bool:
        return (
            name in own
            or name.lower() in CPP_WORDS
            or name in PREDEFINED
            or name.isupper()  # macros, such as NULL and M_PI
            or name == kernel
            or name.startswith(kernel + "_")
            or name.endswith("_row")  # rows of inputs in registers
            or bool(re.fullmatch(r"(t|word|sum|largest|part|whole)\d+", name))  # numbered values
        )

    names = {name: name for name in inputs if not clashes(name)}
    for name in inputs:
        if name not in names:
            taken = {*own, *inputs, *names.values()}
            suffixed = (f"{name}_{suffix}" for suffix in ("", *range(2, len(taken) + 3)))
            names[name] = next(n for n in suffixed if n not in taken)
    return names
