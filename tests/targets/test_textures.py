"""The limits of textures and surfaces are the attributes of the driver."""

from __future__ import annotations

import pytest

import ptxkit
from ptxkit.targets.textures import MOST_PITCH_BYTES, MOST_SURFACE_TEXELS, MOST_TEXELS

NAMES = {
    "1d": "1D",
    "2d": "2D",
    "3d": "3D",
    "1d_layered": "1D_LAYERED",
    "2d_layered": "2D_LAYERED",
    "cube": "CUBEMAP",
    "cube_layered": "CUBEMAP_LAYERED",
    "linear": "1D_LINEAR",
    "pitch2d": "2D_LINEAR",
}
ON_H200 = {
    "TEXTURE1D": (131072,),
    "TEXTURE2D": (131072, 65536),
    "TEXTURE3D": (16384, 16384, 16384),
    "TEXTURE1D_LAYERED": (32768, 2048),
    "TEXTURE2D_LAYERED": (32768, 32768, 2048),
    "TEXTURECUBEMAP": (32768,),
    "TEXTURECUBEMAP_LAYERED": (32768, 2046),
    "TEXTURE1D_LINEAR": (268435456,),
    "TEXTURE2D_LINEAR": (131072, 65000),
    "SURFACE1D": (32768,),
    "SURFACE2D": (131072, 65536),
    "SURFACE3D": (16384, 16384, 16384),
    "SURFACE1D_LAYERED": (32768, 2048),
    "SURFACE2D_LAYERED": (32768, 32768, 2048),
    "SURFACECUBEMAP": (32768,),
    "SURFACECUBEMAP_LAYERED": (32768, 2046),
}
"""``CU_DEVICE_ATTRIBUTE_MAXIMUM_*`` of an H200 with driver 580, in the order of the dimensions."""
LIMITS = [
    *(("TEXTURE", kind, sizes) for kind, sizes in MOST_TEXELS.items()),
    *(("SURFACE", kind, sizes) for kind, sizes in MOST_SURFACE_TEXELS.items() if kind not in ("linear", "pitch2d")),
]


@pytest.mark.parametrize(("owner", "kind", "sizes"), LIMITS, ids=[f"{owner}-{kind}" for owner, kind, _ in LIMITS])
def test_limits(owner, kind, sizes):
    name = f"{owner}{NAMES[kind]}"
    cubes = {**sizes, "layers": sizes["layers"] * 6} if kind == "cube_layered" else sizes
    assert tuple(cubes.values()) == ON_H200[name]


@pytest.mark.gpu
def test_the_driver_reports_the_same():
    from cuda.bindings import driver

    ptxkit.device("gpu")

    def attribute(name):
        return driver.cuDeviceGetAttribute(getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_MAXIMUM_{name}"), 0)[1]

    for name, sizes in ON_H200.items():
        dimensions = ("WIDTH", "LAYERS") if "LAYERED" in name and len(sizes) == 2 else ("WIDTH", "HEIGHT", "DEPTH")
        if name.endswith("2D_LAYERED"):
            dimensions = ("WIDTH", "HEIGHT", "LAYERS")
        assert sizes == tuple(attribute(f"{name}_{d}") for d, _ in zip(dimensions, sizes, strict=False)), name
    assert attribute("TEXTURE2D_LINEAR_PITCH") == MOST_PITCH_BYTES
