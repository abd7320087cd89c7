"""The block-scaled types of CUTLASS's kernels for sm_100."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """A block-scaled type: its elements, its scale factors, and CUTLASS's name for its kernels.

    Attributes:
        element, scale: types, as cutlass_library names them.
        block: elements along k that share a scale factor.
        kernels: how the names of CUTLASS's schedules begin.
    """

    element: str
    scale: str
    block: int
    kernels: str


FORMATS = {
    "mxf8": Format("e4m3", "ue8m0", 32, "Mxf8f6f4"),
    "mxf4": Format("e2m1", "ue8m0", 32, "Mxf4"),
    "nvf4": Format("e2m1", "ue4m3", 16, "Nvf4"),
}
"""The block-scaled types by their names in a :class:`~ptxkit.cutlass.description.GemmDescription`."""
