"""The cluster of ``ffn_sublayer`` for few rows: its tile parameters and its launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ptxkit import Launch, TensorMap, Tile, cdiv
from ptxkit.kernels.ffn.linear import cu_type, swapped_us
from ptxkit.kernels.measured import measured
from ptxkit.kernels.template import TemplateStruct

BK = 64  # elements of k in a tile
MAX_SUMS = 128  # of a thread
TILE = {
    "BN": [256, 64, 128, 512],  # columns of out of a cluster
    "CONSUMERS": [2, 1],  # warpgroups that multiply
    "STAGES": [4, 12, 8, 6, 3, 2],  # of the ring of weights
    "CLUSTER": [8, 2, 4, 16],  # CTAs of a cluster, each of which has a part of k
    "ROWS": [64, 8, 16, 32],  # rows of a cluster
}


@dataclass(frozen=True)
class FewRowsTile(TemplateStruct):
    """``FewRowsTile`` of cu/kernels/ffn_sublayer.cu."""

    BN: int
    CONSUMERS: int
    STAGES: int
    CTAS: int
    ROWS: int


def shared_bytes(w: Any, t: Tile) -> int:
    """Dynamic shared memory of a CTA: ``FewRowsLayout`` of the kernel."""
    tiles = cdiv(cdiv(w.hidden, BK), t.CLUSTER)
    operands = (tiles * t.ROWS + t.STAGES * 64 * t.CONSUMERS) * BK * 2
    return int(max(operands, t.ROWS * t.BN * 4) + t.CLUSTER * t.ROWS * 8 + 16 * t.STAGES + 32)


def usable(w: Any, t: Tile) -> bool | str:
    """The constraint of ``cluster``."""
    limits = w.device.target.limits
    if limits.largest_cluster < t.CLUSTER:
        return f"a cluster has at most {limits.largest_cluster} CTAs"
    if t.BN % (64 * t.CONSUMERS):
        return f"BN={t.BN} is not a multiple of 64 columns for each of {t.CONSUMERS} consumers"
    if (sums := t.BN * t.ROWS // (128 * t.CONSUMERS)) > MAX_SUMS:
        return f"a thread of {t.CONSUMERS} consumers holds {sums} sums, more than {MAX_SUMS}"
    if cdiv(w.rows, t.ROWS) > limits.grid[1]:
        return f"{w.rows} rows are more than {limits.grid[1]} clusters with {t.ROWS} rows, the limit of a grid's y"
    if (needed := shared_bytes(w, t)) > limits.shared_bytes_per_cta:
        return f"needs {needed} bytes of shared memory, more than {limits.shared_bytes_per_cta}"
    return True


def preferred(w: Any) -> Iterator[Mapping[str, Any]]:
    """As few rows as there are, one CTA for nearly every SM, and as many bytes of weights in flight as fit."""
    rows = next((count for count in (8, 16, 32) if w.rows <= count), 64)
    for cluster in (8, 16):
        blocks = cdiv(w.rows, rows)
        columns = next((n for n in (64, 128, 256) if cluster * cdiv(w.features, n) * blocks <= w.device.sms), 512)
        for bn in dict.fromkeys((columns, 256, 128)):
            for stages in (12, 8, 6, 4, 3, 2):
                consumers = 1 if bn == 64 else 2
                yield {"BN": bn, "CONSUMERS": consumers, "STAGES": stages, "CLUSTER": cluster, "ROWS": rows}


def slower(w: Any) -> str | None:
    """``slower`` of the cluster: when its exchange of sums takes longer than a second launch, or when ``row_kernels_swapped``,
    which reads the weights faster, is predicted to be faster with its second launch.

    The second launch starts early, so that the latency of its first bytes is not counted for the exchange. A CTA sends the
    sums of the rows that exist and of a cluster's columns, four rows in a store. Clusters with other rows read all weights
    again.
    """
    tile = next((tile for tile in preferred(w) if usable(w, Tile(tile)) is True), None)
    if tile is None:
        return "no preferred tile fits"
    rates = measured(w.device)
    exchange = cdiv(w.rows, 4) * tile["BN"] * rates.remote_store_us
    second = rates.swapped.launch_us + rates.swapped.latency_us  # before its first bytes arrive
    if exchange > rates.swapped.launch_us:
        return f"exchanges sums for {exchange:.3g} us by the model, and a second launch takes {rates.swapped.launch_us:.3g} us"
    bandwidth = rates.few_rows_gbs * 1e3 * w.device.sms / rates.sms  # bytes in a microsecond
    own = second + w.hidden * w.features * 2 / bandwidth + exchange
    product = swapped_us(w)
    if product is None or own <= product + second:
        return None
    return f"predicted to take {own:.3g} us, and row_kernels_swapped {product + second:.3g} us"


def launch(w: Any, t: Tile) -> Launch:
    """The launch of ``ffn_few_rows``."""
    return Launch(
        "ffn_few_rows",
        (t.CLUSTER * cdiv(w.features, t.BN), cdiv(w.rows, t.ROWS)),
        128 * (t.CONSUMERS + 1),
        (
            TensorMap("x", box=(t.ROWS, BK), swizzle="128B"),
            TensorMap("w", box=(64 * t.CONSUMERS, BK), swizzle="128B"),
            *("gamma", "beta", "bias", "residual", "out", "eps", w.rows, w.features, w.hidden),
        ),
        shared=shared_bytes(w, t),
        cluster=t.CLUSTER,
        template=(FewRowsTile(t.BN, t.CONSUMERS, t.STAGES, t.CLUSTER, t.ROWS), cu_type(w)),
    )
