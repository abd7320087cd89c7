"""Names that CUDA C++ does not allow."""

from __future__ import annotations

CPP_WORDS = frozenset(
    """
    alignas alignof auto bool break case catch char concept const consteval constexpr continue decltype default
    delete do double else enum explicit export extern false float for friend goto if inline int long main mutable
    namespace new noexcept not nullptr operator or private protected public register requires return short signed
    sizeof static struct switch template this throw true try typedef typeid typename union unsigned using virtual
    void volatile while threadidx blockidx blockdim griddim warpsize
    """.split()
)
"""Keywords and built-in variables, some of which are valid names in Python."""
