"""A model of the time of products whose CTAs stream tiles of both operands through a ring of stages in shared memory.

The time is the norm of order ``order``, which is nearly the maximum, of five times: reading all operands from device memory,
which takes longer where some TPCs have more CTAs than others,
the shared memory of the busiest SM, delivery by L2 to all SMs together with the boxes of c that TMA stores, multiplying, and
waiting for a ring of few stages, for the latency of L2 or, for the share of the bytes that come from there, of device memory.
Shared memory receives each stage, and
each wgmma of 64 rows reads 64 rows of one operand and all of the other, which limits tiles with few columns. What is not
hidden is added: the launch, clusters, waves, the end of tiles, and partial sums. The coefficients are fitted to measured times
by ``scripts/fit_products.py`` (:class:`~ptxkit.kernels.measured.StreamRates`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ptxkit.kernels.measured import StreamRates
from ptxkit.targets.sm import SMS_PER_TPC

FIRST_READS = 4
ROW_BYTES = 128  # of a row of a tile in shared memory


@dataclass(frozen=True)
class StreamWork:
    """What a launch does.

    Attributes:
        memory_bytes: of all operands and results. split: of the delivered rows, by ``wgmma_tiles.split_share``.
        steps: steps along k of the busiest SM. rows, columns: rows of both operands in a stage.
        delivered: rows that L2 delivers for a CTA in a step; fewer than rows + columns with multicast.
        paired: those of a that a CTA loads for itself and one other CTA.
        sms: busy ones. idle: the share of others. stages: in the shared memory of an SM. units: tiles of 64 rows in a stage.
        wgmma_columns: columns of a wgmma. others: CTAs of a cluster that read what a CTA loads, beside itself.
        ends: sums of the tiles that an SM ends. waves: after the first one. exchanged: sums that CTAs of a cluster send.
        scattered: of the sums of ``ends``, those that are stored one by one, in step 15 also by pairs.
        shifted: those of rows that begin anywhere, which are stored by shifted vectors, or row by row.
        wide: those that are stored as four bytes.
        clustered: whether CTAs share operands. packed: whether these are more than the SMs of a TPC.
        partial_bytes: of sums in device memory, which are added there.
        box_rows: rows of boxes of c that TMA stores on the busiest SM; those that begin within a cache line count twice.
        again_bytes: see :func:`again_bytes`; with a long k and a small result, all bytes of both operands are such.
    """

    memory_bytes: int
    split: float
    steps: float
    rows: float
    columns: float
    delivered: float
    sms: int
    stages: float
    units: float
    wgmma_columns: float
    ends: float
    waves: float = 0
    exchanged: int = 0
    scattered: float = 0.0
    shifted: float = 0.0
    clustered: bool = False
    packed: bool = False
    others: int = 0
    idle: float = 0.0
    partial_bytes: float = 0.0
    again_bytes: float = 0.0
    paired: float = 0.0
    wide: float = 0.0
    box_rows: float = 0.0


def again_bytes(w: Any, itemsize: int, reads_a: int, reads_b: int) -> float:
    """Bytes of a and b that come from device memory for one CTA or cluster, and are read by the next ones soon after.

    Args:
        reads_a, reads_b: how many read each row of a, and of b; those after the first :data:`FIRST_READS` find it in L2.
    """
    rows = w.m * (min(reads_a, FIRST_READS) - 1) + w.n * (min(reads_b, FIRST_READS) - 1)
    return float(rows * w.k * itemsize)


def predicted_us(rates: StreamRates, work: StreamWork, scale: float) -> float:
    """The time by the model. All operations are elementwise, so that the members of ``work`` may be arrays.

    Args:
        scale: SMs of the device over those of the measured GPU.
    """
    split = 1 + (rates.split_line - 1) * work.split
    received = (work.rows + work.columns) * split + work.units * (64 + work.wgmma_columns) * rates.reads
    delivered = work.sms * work.steps * work.delivered * ROW_BYTES
    # CTAs are placed on different TPCs while there are such, but not those of large clusters.
    alone = work.idle >= 1 - 1 / SMS_PER_TPC
    excess = alone * work.packed * (SMS_PER_TPC - 1) + (1 - alone) * work.idle / (1 - work.idle)
    misses = work.memory_bytes / (work.memory_bytes + delivered)
    times = (
        (work.memory_bytes + rates.again * work.again_bytes) / (rates.memory_gbs * 1e3 * scale) * (1 + rates.uneven * excess),
        work.steps * received * ROW_BYTES / (rates.shared_gbs * 1e3),
        (delivered + rates.paired * work.sms * work.steps * work.paired * ROW_BYTES) * split / (rates.l2_gbs * 1e3 * scale)
        + work.box_rows * rates.box_us,
        work.steps * work.units * work.wgmma_columns * rates.column_us * (1 - rates.power * work.idle),
        work.steps * (rates.latency_us * misses + rates.hit_us * (1 - misses) + rates.release_us * work.others) / work.stages,
        work.steps * rates.step_us,
    )
    hidden = sum(time**rates.order for time in times) ** (1 / rates.order)
    ends = work.ends * rates.end_us + work.wide * rates.wide_us
    ends += work.scattered * rates.scattered_us + work.shifted * rates.shifted_us
    beside = rates.launch_us + ends + work.waves * rates.wave_us + work.exchanged * rates.exchange_us
    added = (work.partial_bytes > 0) * rates.second_us + work.partial_bytes / (rates.partial_gbs * 1e3 * scale)
    predicted: float = hidden + beside + work.clustered * rates.cluster_us + added
    return predicted
