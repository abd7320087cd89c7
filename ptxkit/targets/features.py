"""What kernels can require: every feature, and the rule that says which targets have it.

A rule has tokens of three kinds, after the PTX ISA's "Target ISA Notes" and ``.target`` sections:

``sm_80``    that architecture and every later one, whatever the suffix;
``sm_90a``   that architecture-specific target alone: ``a`` code runs on no other architecture;
``sm_100f``  the family: the ``f`` and ``a`` forms of that architecture and of the later ones of its family.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """One thing a kernel can require.

    Attributes:
        description: a few words, for listings.
        rule: the targets that have it, as tokens (see the module's docstring); several are alternatives.
    """

    description: str
    rule: tuple[str, ...]


def _feature(description: str, rule: str) -> Feature:
    return Feature(description, tuple(rule.split()))


_BLACKWELL = "sm_100f sm_110f sm_120f"
_DATACENTER = "sm_100f sm_110f"

FEATURES: dict[str, Feature] = {
    "mma.f16": _feature("mma.sync on f16, accumulating in f16 or f32", "sm_75"),
    "mma.int8": _feature("mma.sync on s8 and u8", "sm_75"),
    "mma.bf16": _feature("mma.sync on bf16", "sm_80"),
    "mma.tf32": _feature("mma.sync on tf32", "sm_80"),
    "mma.f64": _feature("mma.sync on f64", "sm_80"),
    "mma.sp": _feature("mma.sp: 2:4 structured sparsity", "sm_80"),
    "mma.fp8": _feature("mma.sync on e4m3 and e5m2", "sm_89"),
    "mma.block_scale": _feature("mma.sync with block scaling: mxf8f6f4, mxf4, nvf4", "sm_120f"),
    "ldmatrix": _feature("ldmatrix and movmatrix", "sm_75"),
    "stmatrix": _feature("stmatrix", "sm_90"),
    "bf16": _feature("bf16 fma, conversion, min and max", "sm_80"),
    "bf16.add": _feature("bf16 add, sub and mul", "sm_90"),
    "cp.async": _feature("cp.async: copies from global to shared memory without registers", "sm_80"),
    "mbarrier": _feature("mbarrier objects in shared memory", "sm_80"),
    "mbarrier.try_wait": _feature("mbarrier.try_wait, expect_tx and complete_tx", "sm_90"),
    "redux": _feature("redux.sync on integers", "sm_80"),
    "redux.f32": _feature("redux.sync min and max on f32", "sm_100f"),
    "cache_hint": _feature("createpolicy, L2 cache hints, discard and applypriority", "sm_80"),
    "fp8": _feature("cvt to and from e4m3x2 and e5m2x2", "sm_89"),
    "fp4": _feature("cvt to and from e2m1x2, e2m3x2, e3m2x2 and ue8m0x2", _BLACKWELL),
    "tma": _feature("cp.async.bulk and cp.async.bulk.tensor", "sm_90"),
    "tensormap.replace": _feature("changing a tensor map on the device", f"sm_90a {_BLACKWELL}"),
    "clusters": _feature("thread block clusters and barrier.cluster", "sm_90"),
    "dsmem": _feature("distributed shared memory: mapa, ld and st.shared::cluster", "sm_90"),
    "st.async": _feature("st.async and red.async", "sm_90"),
    "elect": _feature("elect.sync", "sm_90"),
    "griddepcontrol": _feature("programmatic dependent launch", "sm_90"),
    "multimem": _feature("multimem loads and reductions over several GPUs", "sm_90"),
    "wgmma": _feature("warpgroup matrix multiply", "sm_90a"),
    "setmaxnreg": _feature("moving registers between warpgroups", f"sm_90a {_BLACKWELL}"),
    "f32x2": _feature("add, mul and fma on f32x2", "sm_100"),
    "ld.256": _feature("256-bit loads and stores of global memory", "sm_100"),
    "tcgen05": _feature("fifth-generation tensor cores and tensor memory", _DATACENTER),
    "clusterlaunchcontrol": _feature("clusterlaunchcontrol: work stealing between clusters", "sm_100"),
    "clusterlaunchcontrol.multicast": _feature("answers of clusterlaunchcontrol to all CTAs of a cluster", _BLACKWELL),
}
"""Feature name -> description and targets."""
