"""A model of the time of products whose CTAs stream tiles of both operands through a ring of stages in shared memory.

The time is the norm of order ``order``, which is nearly the maximum, of five times: reading all operands from device memory,
filling the shared memory of the busiest SM, delivery by L2 to all SMs, multiplying, and waiting for a ring of few stages. What
is not hidden is added: the launch, waves, the end of tiles, and partial sums. The coefficients are fitted to measured times
(:class:`~ptxkit.kernels.measured.StreamRates`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ptxkit.kernels.measured import StreamRates

ROW_BYTES = 128  # of a row of a tile in shared memory


@dataclass(frozen=True)
class StreamWork:
    """What a launch does.

    Attributes:
        memory_bytes: of all operands and results. split: rows of an operand are no multiples of a cache line.
        steps: steps along k of the busiest SM. rows, columns: rows of both operands in a stage.
        delivered: rows that L2 delivers for a CTA in a step; fewer than rows + columns with multicast.
        sms: busy ones. stages: in the shared memory of an SM. units: tiles of 64 rows in a stage.
        wgmma_columns: columns of a wgmma.
        ends: sums of the tiles that an SM ends. waves: after the first one. exchanged: sums that CTAs of a cluster send.
        partial_bytes: of sums in device memory, which a second launch adds.
    """

    memory_bytes: int
    split: bool
    steps: float
    rows: int
    columns: int
    delivered: float
    sms: int
    stages: int
    units: float
    wgmma_columns: int
    ends: float
    waves: int = 0
    exchanged: int = 0
    partial_bytes: int = 0


def predicted_us(rates: StreamRates, work: StreamWork, scale: float) -> float:
    """The time by the model.

    Args:
        scale: SMs of the device over those of the measured GPU.
    """
    split = rates.split_line if work.split else 1.0
    times = (
        work.memory_bytes / (rates.memory_gbs * 1e3 * scale),
        work.steps * (work.rows + work.columns) * split * ROW_BYTES / (rates.sm_gbs * 1e3),
        work.sms * work.steps * work.delivered * split * ROW_BYTES / (rates.l2_gbs * 1e3 * scale),
        work.steps * work.units * max(work.wgmma_columns, rates.least_columns) * rates.column_us,
        work.steps * rates.latency_us / work.stages,
    )
    hidden = sum(time**rates.order for time in times) ** (1 / rates.order)
    beside = rates.launch_us + work.ends * rates.end_us + work.waves * rates.wave_us + work.exchanged * rates.exchange_us
    if work.partial_bytes:
        beside += rates.second_us + work.partial_bytes / (rates.partial_gbs * 1e3 * scale)
    return float(hidden + beside)
