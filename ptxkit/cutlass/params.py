"""The byte layouts of the builder kernel's input and output, as in cu/ptxkit/cutlass/*.cuh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ptxkit.errors import UnavailableError
from ptxkit.runtime.tensor_map.limits import BYTES, Encoding

PROBLEM = np.dtype(
    [
        *((name, "<i4") for name in ("m", "n", "k", "batches")),
        *((name, "<u8") for name in ("a", "b", "c", "d")),
        *((name, "<i8") for name in ("lda", "ldb", "ldc", "ldd", "batch_a", "batch_b", "batch_c", "batch_d")),
        *((name, "<f4") for name in ("alpha", "beta")),
        *((name, "<i4") for name in ("multiprocessors", "clusters")),
        *((name, "<u8") for name in ("workspace", "a_scales", "b_scales")),
    ]
)
"""``ptxkit::cutlass::Problem``."""

ANSWER = np.dtype(
    [
        *((name, "<u8") for name in ("params_bytes", "workspace_bytes", "clear_bytes")),
        *((name, "<u4", 3) for name in ("grid", "block")),
        *((name, "<u4") for name in ("shared_bytes", "possible")),
    ]
)
"""``ptxkit::cutlass::Answer``."""

FACTS = np.dtype(
    [*((name, "<u4") for name in ("params_bytes", "shared_bytes", "threads", "align")), ("cluster", "<u4", 3)]
)
"""``ptxkit_facts``."""

NOTE = np.dtype(
    [
        *((name, "<u8") for name in ("head", "address")),
        *(("strides", "<u8", 4), ("sizes", "<u4", 5), ("box", "<u2", 5), ("element_strides", "u1", 5)),
        *((name, "u1") for name in ("element", "rank", "swizzle", "swizzle_base")),
        *(("rest", "V33"), ("tail", "<u8")),
    ]
)
"""``ptxkit::cutlass::TensorMapNote``."""
_NOTE_MARK = int.from_bytes(b"tmapnote", "little")

_L2_PROMOTION_128B = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B, as CUTLASS passes to the driver


def notes(params: np.ndarray[Any, Any]) -> Iterator[tuple[int, Encoding]]:
    """(offset, description) of every tensor map in the bytes of Params.

    Raises:
        UnavailableError: a tensor map of a kind that is not supported.
    """
    for offset in range(0, len(params) - BYTES + 1, 64):  # alignment of a tensor map
        note = params[offset : offset + BYTES].view(NOTE)[0]
        if note["head"] != _NOTE_MARK or note["tail"] != _NOTE_MARK:
            continue
        if note["swizzle_base"]:
            raise UnavailableError("this CUTLASS kernel swizzles atoms of more than 16 bytes, which is not supported")
        rank = int(note["rank"])
        yield (
            offset,
            Encoding(
                element=int(note["element"]),
                address=int(note["address"]),
                dimensions=tuple(int(size) + 1 for size in note["sizes"][:rank]),
                strides=tuple(int(stride) for stride in note["strides"][: rank - 1]),
                box=tuple(int(size) for size in note["box"][:rank]),
                element_strides=tuple(int(stride) for stride in note["element_strides"][:rank]),
                swizzle=int(note["swizzle"]),
                l2_promotion=_L2_PROMOTION_128B,
            ),
        )
