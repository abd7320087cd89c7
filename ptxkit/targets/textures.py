"""The largest textures and surfaces, which are the same for all targets from sm_75.

CUDA C++ programming guide, "Compute Capabilities", "Technical Specifications per Compute Capability". The driver of an H200
reports the same (``CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH`` and the following attributes; driver 580, CUDA 13.0), and
tests/targets/test_textures.py compares them where there is a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

MOST_TEXELS: Mapping[str, Mapping[str, int]] = {
    "1d": {"width": 131072},
    "2d": {"width": 131072, "height": 65536},
    "3d": {"width": 16384, "height": 16384, "depth": 16384},
    "1d_layered": {"width": 32768, "layers": 2048},
    "2d_layered": {"width": 32768, "height": 32768, "layers": 2048},
    "cube": {"width": 32768},
    "cube_layered": {"width": 32768, "layers": 2046 // 6},
    "linear": {"width": 1 << 28},
    "pitch2d": {"width": 131072, "height": 65000},
}
"""Kind of a texture -> the largest size in texels of each dimension. A layer of ``cube_layered`` is a cube, with six of the
2046 layers of the guide's table."""

MOST_SURFACE_TEXELS: Mapping[str, Mapping[str, int]] = {**MOST_TEXELS, "1d": {"width": 32768}}
"""The same of surfaces, which have no ``linear`` and no ``pitch2d``."""

MOST_PITCH_BYTES = 2_097_120
"""The longest row of a ``pitch2d`` texture (``CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH`` of an H200)."""


def texel_refusal(kind: str, sizes: Mapping[str, int], *, surface: bool) -> str | None:
    """Why there is no texture or surface of these sizes, or None.

    Args:
        kind: of :data:`MOST_TEXELS`. sizes: width, height, depth and layers, as far as the kind has them.
        surface: whether it is a surface.
    """
    for name, most in (MOST_SURFACE_TEXELS if surface else MOST_TEXELS)[kind].items():
        if sizes[name] > most:
            limit = f"at most {most:,} layers" if name == "layers" else f"a {name} of at most {most:,}"
            return f"{kind} has {limit}, not {sizes[name]:,}"
    return None
