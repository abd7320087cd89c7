"""torch's element types, and the names that kernel descriptions and numpy have for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ptxkit.workload.inputs import dtype_of

KINDS = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float64: "f64",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.int8: "s8",
    torch.int16: "s16",
    torch.int32: "s32",
    torch.int64: "s64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
}
"""torch's dtype -> the name in descriptions."""

_TORCH = {kind: dtype for dtype, kind in KINDS.items()}
_BITS = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8}
"""Types that torch's numpy() does not convert -> an integer of their size."""


def torch_dtype(kind: str) -> torch.dtype:
    """torch's dtype for the name of a type in a description: ``"bf16"`` -> ``torch.bfloat16``."""
    return _TORCH[kind]


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """numpy's dtype, or that of ml_dtypes, for torch's."""
    return np.dtype(bool) if dtype is torch.bool else dtype_of(KINDS[dtype])


def from_numpy(dtype: np.dtype[Any]) -> torch.dtype | None:
    """torch's dtype for numpy's or ml_dtypes's; None if torch has none."""
    if dtype == np.dtype(bool):
        return torch.bool
    return next((ours for ours in KINDS if numpy_dtype(ours) == dtype), None)


def host_view(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The memory of a contiguous CPU tensor as a numpy array of the same type."""
    plain = tensor.detach()
    bits = _BITS.get(tensor.dtype)
    array: np.ndarray[Any, Any] = (plain if bits is None else plain.view(bits)).numpy()
    return array if bits is None else array.view(numpy_dtype(tensor.dtype))
