"""Headers of CUTLASS that are patched for NVRTC, as texts that replace the files.

Each is the installed file with a few passages replaced. A passage that does not occur the expected number of times means
another version of CUTLASS and raises an error, because the patched kernel could compute wrong results.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ptxkit.cutlass import package
from ptxkit.errors import UnavailableError

Edits = tuple[tuple[str, str], ...]

# Arguments may omit the number of SMs, which only host code can query. The builder kernel always sets it.
_HARDWARE_COUNT = "  static inline int\n  query_device_multiprocessor_count"
_HARDWARE_HERE = "  static inline int query_device_multiprocessor_count(int = 0) { return 0; }"
_HARDWARE: Edits = (
    (
        f"#if !defined(__CUDACC_RTC__)\n{_HARDWARE_COUNT}",
        f"#if defined(__CUDACC_RTC__)\n{_HARDWARE_HERE}\n#else\n{_HARDWARE_COUNT}",
    ),
)

# Device code cannot encode tensor maps: it records the arguments for the driver's encoding function.
_ENCODE = """\
  #if (__CUDACC_VER_MAJOR__ >= 12) && !defined(__CUDACC_RTC__)

    CUtensorMapDataType     tma_format """
_NOTE = """\
    ptxkit::cutlass::note_tensor_map<TmaInternalType>(
        tma_desc, tma_dim, gmem_address, gmem_prob_shape, gmem_prob_stride, smem_box_shape, smem_box_stride,
        uint32_t(get_tma_swizzle_bits(swizzle)), uint32_t(get_tma_swizzle_base(swizzle)));

"""
_TENSOR_MAPS: Edits = (
    ("#pragma once\n", '#pragma once\n#include "ptxkit/cutlass/tensor_map_note.cuh"\n'),
    (_ENCODE, _NOTE + _ENCODE),
)

# The header enables the functions that make 2-SM copies for the host only, although they do not need a host.
_TWO_SM: Edits = (
    ("\nCUTE_HOST\n", "\nCUTE_HOST_RTC\n"),
    ("\n#if !defined(__CUDACC_RTC__)\n/** Make", "\n#if 1\n/** Make"),
)

# The header computes the workspace size of stream-K on the host only; device code would get 0.
_WORKSPACE: Edits = (
    (
        "  #if !defined(__CUDACC_RTC__)\n  static void\n  get_workspace_component_sizes(",
        "  #if 1\n  static void\n  get_workspace_component_sizes(",
    ),
    (
        "    #if !defined(__CUDACC_RTC__)\n      get_workspace_component_sizes(",
        "    #if 1\n      get_workspace_component_sizes(",
    ),
)

EDITS: dict[str, Edits] = {
    "cutlass/gemm/kernel/tile_scheduler_params.h": _WORKSPACE,
    "cutlass/kernel_hardware_info.h": _HARDWARE,
    "cute/atom/copy_traits_sm90_tma.hpp": _TENSOR_MAPS,
    "cute/atom/copy_traits_sm100_tma.hpp": _TWO_SM,
}
"""Header -> (passage, replacement)."""

_REPEATED = {"\nCUTE_HOST\n"}


@cache
def patched_headers(arch: int) -> tuple[tuple[str, str], ...]:
    """(name as included, text) of the headers to replace for an architecture; none below sm_90.

    Raises:
        UnavailableError: CUTLASS is not installed, or is of another version than these patches.
    """
    root = Path(package.include_dirs()[0])
    wanted = [name for name in EDITS if arch >= 90 and (arch >= 100 or "sm100" not in name)]
    return tuple((name, patched(name, (root / name).read_text(encoding="utf-8"))) for name in wanted)


def patched(name: str, text: str) -> str:
    """A header's patched text.

    Raises:
        UnavailableError: a passage does not occur the expected number of times.
    """
    for passage, replacement in EDITS[name]:
        count = text.count(passage)
        if count != 1 and not (count and passage in _REPEATED):
            raise UnavailableError(
                f"{name} is not that of nvidia-cutlass {package.VERSION}: a passage to patch occurs {count} times; "
                f"{package.INSTALL} --force-reinstall"
            )
        text = text.replace(passage, replacement)
    return text
