"""GPUs: SM count, L2 cache, clocks, documented bandwidth and peak rates; and which GPU stands for a target.

The emulator takes the SM count and the L2 cache of a target's *reference GPU*, below, because a target itself has neither. On a
GPU both are queried, and only what a query cannot give (documented bandwidth and rates) is looked up here, by the GPU's name.

Rates are without sparsity, in TFLOPS or TOPS, for the type of the operands: f32 and f64 on the CUDA cores, the other types on
the tensor cores (f64 on the CUDA cores too), with f32 or s32 accumulation. A rate that the source does not state is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from ptxkit.errors import UsageError
from ptxkit.targets.target import Target

MIB = 1 << 20


@dataclass(frozen=True)
class DeviceFacts:
    """The facts about the device of a launch that are passed to kernel descriptions.

    Attributes:
        name: what messages call the device: ``"NVIDIA H200"``, or in the emulator the target, ``"sm_90a"``.
        target: what kernels are compiled for; its ``limits`` are those of a launch.
        sms: how many SMs there are.
        l2_bytes: size of the L2 cache.
        gpu: the GPU whose facts these are: the device's own name, or in the emulator the name of the reference GPU.
    """

    name: str
    target: Target
    sms: int
    l2_bytes: int
    gpu: str


@dataclass(frozen=True)
class Gpu:
    """A GPU as its maker documents it.

    Attributes:
        name: as the driver reports it.
        cc: compute capability times ten.
        sms: SMs. l2_bytes: L2 cache, as the driver reports it.
        clock_mhz: boost clock of the SMs.
        bandwidth_gbs: of the device memory, in GB/s (10^9 bytes).
        peak_tflops: type -> rate; see the module's docstring.
    """

    name: str
    cc: int
    sms: int
    l2_bytes: int
    clock_mhz: int
    bandwidth_gbs: float
    peak_tflops: Mapping[str, float] = field(default_factory=dict)


REFERENCE_GPUS: tuple[Gpu, ...] = (
    # T4 data sheet and Turing whitepaper (TU104)
    Gpu("Tesla T4", 75, 40, 4 * MIB, 1590, 320, {"f32": 8.1, "f16": 65, "s8": 130}),
    # A100 80GB data sheet and Ampere whitepaper (GA100)
    Gpu(
        "NVIDIA A100-SXM4-80GB",
        80,
        108,
        40 * MIB,
        1410,
        2039,
        {"f64": 9.7, "f32": 19.5, "tf32": 156, "bf16": 312, "f16": 312, "s8": 624},
    ),
    # A10 data sheet; L2 of GA102: Ampere GA102 whitepaper
    Gpu("NVIDIA A10", 86, 72, 6 * MIB, 1695, 600, {"f32": 31.2, "tf32": 62.5, "bf16": 125, "f16": 125, "s8": 250}),
    # Jetson AGX Orin technical brief (64 GB module)
    Gpu("Orin", 87, 16, 4 * MIB, 1300, 204.8, {"f32": 5.3}),
    # L40S data sheet (dense rates are half of its sparse ones); L2 of AD102: Ada whitepaper
    Gpu(
        "NVIDIA L40S",
        89,
        142,
        96 * MIB,
        2520,
        864,
        {"f32": 91.6, "tf32": 183, "bf16": 362, "f16": 362, "e4m3": 733, "e5m2": 733, "s8": 733},
    ),
    # H200 data sheet (dense rates are half of its sparse ones); L2: Hopper whitepaper (GH100)
    Gpu(
        "NVIDIA H200",
        90,
        132,
        50 * MIB,
        1980,
        4800,
        {"f64": 34, "f32": 67, "tf32": 494.5, "bf16": 989.5, "f16": 989.5, "e4m3": 1979, "e5m2": 1979, "s8": 1979},
    ),
    # HGX B200 data sheet, per GPU; SMs and L2 as the driver reports them, L2 also in the Blackwell Tuning Guide
    Gpu(
        "NVIDIA B200",
        100,
        148,
        253 * MIB // 2,
        1965,
        7700,
        {"f64": 37, "f32": 75, "tf32": 1125, "bf16": 2250, "f16": 2250, "e4m3": 4500, "e5m2": 4500, "s8": 4500},
    ),
    # HGX B300 data sheet, per GPU; SMs and L2 as those of the B200, of which it is a variant
    Gpu("NVIDIA B300 SXM6 AC", 103, 148, 253 * MIB // 2, 1920, 8000, {"bf16": 2250, "f16": 2250, "e4m3": 4500}),
    # Jetson AGX Thor data sheet (T5000 module)
    Gpu("NVIDIA Thor", 110, 20, 32 * MIB, 1575, 273, {"f32": 8.06}),
    # RTX Blackwell whitepaper (GB202)
    Gpu(
        "NVIDIA GeForce RTX 5090",
        120,
        170,
        96 * MIB,
        2407,
        1792,
        {"f32": 104.8, "tf32": 104.8, "bf16": 209.5, "f16": 209.5, "e4m3": 419, "e5m2": 419, "s8": 838},
    ),
    # DGX Spark data sheet; SMs and L2 as the driver reports them
    Gpu("NVIDIA GB10", 121, 48, 24 * MIB, 2418, 273, {}),
)
"""One GPU for each architecture of which a GPU is documented, oldest first."""


OTHER_GPUS: tuple[Gpu, ...] = (
    # H100 data sheet (dense rates are half of its sparse ones), SXM and PCIe; SMs and L2: Hopper whitepaper (GH100)
    Gpu(
        "NVIDIA H100 80GB HBM3",
        90,
        132,
        50 * MIB,
        1980,
        3350,
        {"f64": 34, "f32": 67, "tf32": 494.5, "bf16": 989.5, "f16": 989.5, "e4m3": 1979, "e5m2": 1979, "s8": 1979},
    ),
    Gpu(
        "NVIDIA H100 PCIe",
        90,
        114,
        50 * MIB,
        1755,
        2000,
        {"f64": 26, "f32": 51, "tf32": 378, "bf16": 756.5, "f16": 756.5, "e4m3": 1513, "e5m2": 1513, "s8": 1513},
    ),
    # Ada whitepaper (AD102), rates of products with f32 accumulation
    Gpu(
        "NVIDIA GeForce RTX 4090",
        89,
        128,
        72 * MIB,
        2520,
        1008,
        {"f32": 82.6, "tf32": 82.6, "bf16": 165.2, "f16": 165.2, "e4m3": 330.3, "e5m2": 330.3, "s8": 660.6},
    ),
    # L4 data sheet (dense rates are half of its sparse ones); SMs and L2: Ada whitepaper (AD104)
    Gpu(
        "NVIDIA L4",
        89,
        58,
        48 * MIB,
        2040,
        300,
        {"f32": 30.3, "tf32": 60, "bf16": 121, "f16": 121, "e4m3": 242.5, "e5m2": 242.5, "s8": 242.5},
    ),
)
"""Documented GPUs of architectures for which another one stands."""

GPUS = REFERENCE_GPUS + OTHER_GPUS
"""All documented GPUs."""


def reference_gpu(target: Target | str) -> Gpu:
    """The GPU that stands for a target: the one of its architecture, or where no GPU of it is documented (sm_88, sm_107), the
    one of the nearest older architecture."""
    cc = Target.parse(target).cc
    older = [gpu for gpu in REFERENCE_GPUS if gpu.cc <= cc]
    return older[-1] if older else REFERENCE_GPUS[0]


def gpu_named(name: str) -> Gpu | None:
    """The documented GPU of that name (``"NVIDIA H200"``), or None where its data sheet is not in this table."""
    return next((gpu for gpu in GPUS if gpu.name == name), None)


def find_gpu(name: str) -> Gpu:
    """The documented GPU of that name, or the one whose name contains it in any case: ``"NVIDIA H200"``, ``"h200"``.

    Names that contain it as whole words come first: ``"L4"`` is the L4, not the L40S.

    Raises:
        UsageError: no documented GPU, or more than one, has such a name.
    """
    if (exact := gpu_named(name)) is not None:
        return exact
    words = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE)
    whole = [gpu for gpu in GPUS if words.search(gpu.name)]
    found = whole or [gpu for gpu in GPUS if name.lower() in gpu.name.lower()]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"GPU {name!r} may be {' or '.join(repr(gpu.name) for gpu in found)}; give more of the name")
    known = [gpu.name for gpu in GPUS]
    near = get_close_matches(name, known, n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(known)}"
    raise UsageError(f"there is no documented GPU {name!r}; {hint}")


def target_of(gpu: Gpu) -> Target:
    """The target to compile for: the architecture-specific form of the GPU's architecture where there is one."""
    plain = Target.parse(f"sm_{gpu.cc}")
    return Target.parse(f"{plain}a") if plain.has_a_form else plain


def facts_of(gpu: Gpu) -> DeviceFacts:
    """The facts of a documented GPU, as a device of that name would offer them to kernel descriptions."""
    return DeviceFacts(gpu.name, target_of(gpu), gpu.sms, gpu.l2_bytes, gpu.name)


def reference_facts(target: Target | str) -> DeviceFacts:
    """The facts of a target's reference GPU: what a device without hardware offers to kernel descriptions."""
    found, gpu = Target.parse(target), reference_gpu(target)
    return DeviceFacts(found.name, found, gpu.sms, gpu.l2_bytes, gpu.name)
