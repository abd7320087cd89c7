"""A model of the time of steps 9 to 13 of micro_tiling_matmul, by which their tiles and the step are chosen.

The time is the norm of order ``order``, which is nearly the maximum, of the times of what overlaps: reading all operands from
device memory, and multiplying by the busiest SM or, where threads read operands themselves, its loads and their latency. What
does not overlap is added: the launch with the first load, and sums that are added. The coefficients are fitted to measured
times by ``scripts/fit_f32_products.py``, which writes ``fitted_f32.json``; some have no meaning alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxkit import Tile, cdiv
from ptxkit.kernels.gemm import few_columns, few_rows
from ptxkit.kernels.gemm.micro_tiles import Shares, shares, threads
from ptxkit.kernels.measured import H200
from ptxkit.targets import WARP

if TYPE_CHECKING:
    from ptxkit.kernels.gemm.micro_tiling_matmul import MicroTilingMatmul

FILE = Path(__file__).with_name("fitted_f32.json")
