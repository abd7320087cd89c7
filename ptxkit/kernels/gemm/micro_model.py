"""A model of the time of steps 9 to 14 of micro_tiling_matmul, by which the step and its tile are chosen.

The time is the norm of order ``order``, which is nearly the maximum, of the times of what overlaps: reading all operands from
device memory, delivery by L2, and the products of the busiest SM; where threads read the operands themselves, the loads of the
busiest SM and their latency instead of L2. What does not overlap is added: the launch with the first load, and the sums that
CTAs add. The coefficients are fitted to measured times by ``scripts/fit_f32_products.py``; some have no meaning alone.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ptxkit import Tile, cdiv
from ptxkit.kernels.gemm import few_columns, few_rows
from ptxkit.kernels.gemm.micro_tiles import CHUNK, F32Product, aligned_copies, has_deep_steps, shares, threads
from ptxkit.kernels.measured import cluster_ctas, measured
from ptxkit.targets import WARP

FILE = Path(__file__).with_name("fitted_f32.json")
ORDER_OF_WAITS = 4.0  # of the norm of the products of a scheduler and of those of its warps with their waits
STEP_BK = 16  # elements of k of the step for which a copy by a thread takes ``copies``
CLUSTER_ALL = 2  # CTAs of the largest cluster that leaves no SM idle


@dataclass(frozen=True)
class MicroRates:
    """Coefficients.

    Attributes:
        order: of the norm. memory_gbs: what all SMs read from device memory. l2_gbs: what L2 delivers to them.
        launch_us: of the launch, with the first load.
        products: of an SM in a microsecond, without reads of shared memory. reads: how many of them a read of an operand takes.
        idle: products of a thread that would take as long as a warp waits for the operands of a step of k.
        stored_vectors: products that a sum takes which is stored with three others. stored_elements: the same where rows of c
            are not aligned.
        copies: how many products a copy by a thread takes, of one, two or four elements. scattered: share more that L2 delivers
            for them.
        chain_us: of the launch that clears flags. link_us: of each CTA that adds to a tile in a chain; added_us: of 2^14 sums
            that each adds. single_us: of 10^6 of them that are added one by one, where rows of c are not aligned.
        partial_us: of the launch that clears flags and the exchange of partial sums. sum_us: of 10^6 of them. many_us: of more
            parts than a thread has vectors, which lanes add. second_us: of the launch that adds partial sums instead.
        cluster_us: of a cluster. exchange_us: of 2^14 sums of the CTAs of an SM. wave_us: of another wave of CTAs.
            uneven: how much of the time of one more CTA on an SM is
            taken where the SMs have room for it, because some of them begin more CTAs than others.
        rows_order: of the norm in step 12. rows_us: of its launch, with the first load; of its clusters: rows_cluster_us.
            rows_gbs: what an SM reads. rows_latency_us: of a load. rows_ends: loads that take as long as a CTA
            begins and adds its sums. rows_products: how long products take, relative to the peak.
            rows_unaligned: share more of strips of 32 columns whose rows are not aligned. rows_elements: the same of strips of
            which each SM has one, and whose elements are loaded without comparisons.
        copy_us: of the launch that copies operands. stores_us: of 10^6 bytes of c whose rows are not aligned, where threads do
            not store neighbouring elements.
        columns_us, columns_gbs, columns_latency_us: the same for step 13. columns_lines: how long reads of L1 take.
            columns_sums_us: of sums of a warp that its lanes exchange.
    """

    order: float
    memory_gbs: float
    l2_gbs: float
    launch_us: float
    products: float
    reads: float
    idle: float
    stored_vectors: float
    stored_elements: float
    copies: float
    scattered: float
    chain_us: float
    link_us: float
    added_us: float
    single_us: float
    partial_us: float
    sum_us: float
    many_us: float
    second_us: float
    cluster_us: float
    exchange_us: float
    wave_us: float
    uneven: float
    rows_order: float
    rows_us: float
    rows_cluster_us: float
    rows_gbs: float
    rows_latency_us: float
    rows_ends: float
    rows_products: float
    rows_unaligned: float
    rows_elements: float
    columns_us: float
    columns_gbs: float
    columns_latency_us: float
    columns_lines: float
    columns_sums_us: float
    copy_us: float
    stores_us: float


@cache
def fitted() -> MicroRates:
    """The coefficients of the measured GPU."""
    return MicroRates(**json.loads(FILE.read_text(encoding="utf-8"))["rates"])


def predicted_us(w: F32Product, step: str, t: Tile, rates: MicroRates) -> float:
    """The time of a step with a tile."""
    if step == "step12_few_rows":
        return _rows(w, t, rates)
    if step == "step13_few_columns":
        return _columns(w, t, rates)
    return _tiles(w, step, t, rates)


def _norm(order: float, *times: float) -> float:
    found: float = sum(time**order for time in times) ** (1 / order)
    return found


def _memory(w: F32Product, rates: MicroRates, nbytes: float) -> float:
    """The time to read bytes from device memory, whose rate is taken to grow with the number of SMs."""
    return nbytes / rates.memory_gbs / 1e3 * measured(w.device).sms / w.device.sms


def _multiplying(w: F32Product, rates: MicroRates, t: Tile, ctas: int) -> float:
    """The time of ``ctas`` CTAs that share an SM, as a multiple of that of one which alone used all of it.

    A warp multiplies one instruction for each of a thread's sums, and then waits for operands; meanwhile the other warps of its
    scheduler multiply.
    """
    sums, warps = t.TM * t.TN, threads(t) // WARP * ctas / w.device.target.limits.subpartitions
    return ctas * _norm(ORDER_OF_WAITS, 1.0, (sums + rates.idle) / (sums * warps))


def _tiles(w: F32Product, step: str, t: Tile, rates: MicroRates) -> float:
    """Steps 9 to 11 and 14."""
    boxes = w.aligned or t.get("COPY", 0)
    sums = t.BM * t.BN
    tiles, steps = w.grid(t.BM, t.BN), cdiv(w.k, t.BK)
    multiplied = cdiv(w.k, CHUNK) * CHUNK / t.BK  # steps of a whole tile, of the last one what is multiplied
    storing = (rates.stored_vectors if w.n % 4 == 0 and boxes else rates.stored_elements) / t.BK  # as steps of k
    if step == "step10_cluster_k":
        busy, beside = _clusters(w, t, rates, bool(boxes), tiles, cdiv(steps, t.PARTS) if t.PARTS > 1 else multiplied + storing)
    else:
        work = shares(w, t)
        of_last = _multiplying(w, rates, t, min(t.CTAS, cdiv(work.shares, w.device.sms)))
        of_tile = multiplied + storing
        longest = cdiv(work.left * steps, work.shares) if work.divided else of_tile * cdiv(work.left, work.shares)
        busy = work.whole * of_tile * _multiplying(w, rates, t, t.CTAS) + longest * of_last
        beside = 0.0
        if work.divided and step == "step9_stream_k":
            link = rates.link_us + rates.added_us * sums / 2**14
            beside = rates.chain_us + link * cdiv(work.shares, work.left)
            if w.n % 4:  # an instruction for each sum of a share that begins within a tile
                beside += rates.single_us * (work.shares - math.gcd(work.shares, work.left)) * sums / 1e6
        elif work.divided:
            many = work.shares / work.left > t.TM * t.TN / 4
            added = rates.second_us if step == "step14_two_launches" else rates.partial_us + rates.many_us * many
            parts = work.shares + work.left - math.gcd(work.shares, work.left)  # where shares or tiles begin
            beside = added + rates.sum_us * parts * sums / 1e6
    copied_by_threads = 1 / (t.BN * math.gcd(w.k, 4)) + 1 / (t.BM * math.gcd(w.n, 4))
    # Addresses take half of the time of copies, and follow from one another in a step of k.
    addresses = (1 + STEP_BK / t.BK) / 2 if has_deep_steps(w, t) else 1.0
    copies = 0.0 if boxes else rates.copies * addresses * copied_by_threads
    each = (t.TM * t.TN + rates.reads * (t.TM + t.TN)) / (t.TM * t.TN) * (1 + copies) / rates.products
    delivered = tiles * steps * (t.BM + t.BN) * t.BK * 4 * (1 if boxes else 1 + rates.scattered)
    l2 = delivered / rates.l2_gbs / 1e3 * measured(w.device).sms / w.device.sms
    hidden = _norm(rates.order, busy * sums * t.BK * each, _memory(w, rates, w.work().bytes), l2)
    if w.n % 4 and t.get("PARTS", 0) > 1:
        beside += rates.stores_us * 4 * w.m * w.n / 1e6
    if t.get("COPY", 0):
        copied = sum(copy.rows * (4 * copy.columns + 16 * copy.vectors) for copy in aligned_copies(w).values())
        beside += rates.copy_us + _memory(w, rates, copied)
    return float(rates.launch_us + hidden + beside)


def _clusters(w: F32Product, t: Tile, rates: MicroRates, boxes: bool, tiles: int, steps: float) -> tuple[float, float]:
    """Of step 10: steps of the busiest SM, weighted by how CTAs share it, and the time of what is not hidden."""
    sms = cluster_ctas(w.device, t.PARTS) if t.PARTS > CLUSTER_ALL else w.device.sms
    ctas, at_once = tiles * t.PARTS, sms * t.CTAS
    waves = cdiv(ctas, at_once)
    last = cdiv(ctas - (waves - 1) * at_once, sms)
    of_last = _multiplying(w, rates, t, last)
    if waves == 1 and last < t.CTAS and not (boxes and ctas == sms):
        of_last += rates.uneven * (_multiplying(w, rates, t, last + 1) - of_last)
    of_waves = (waves - 1) * _multiplying(w, rates, t, t.CTAS) + of_last
    beside = (waves - 1) * rates.wave_us
    if t.PARTS > 1:
        resident = t.CTAS if waves > 1 else last
        beside += rates.cluster_us + rates.exchange_us * t.BM * t.BN * resident / 2**14
    return steps * of_waves, beside


def _rows(w: F32Product, t: Tile, rates: MicroRates) -> float:
    """Step 12."""
    groups, sms = cdiv(w.m, t.ROWS), cluster_ctas(w.device, t.PARTS) if t.PARTS > CLUSTER_ALL else w.device.sms
    ctas = max(1.0, few_rows.strips(w, t) * t.PARTS * groups / sms)  # of an SM; the last ones begin wherever others end
    blocks = cdiv(cdiv(w.k, 4), t.PARTS)
    loads = cdiv(cdiv(blocks, t.THREADS // t.ACROSS), t.BATCH)
    columns = few_rows.strip_columns(w, t)
    elements = blocks * 4 * columns
    access = few_rows.access(w, t)
    elements_more = rates.rows_elements if few_rows.many_strips(w, t.ROWS) else rates.rows_unaligned
    more = 1.0 if access == "VECTORS" else 1 + elements_more * 8 / t.ACROSS
    if access == "SHIFTED":
        more = 1 + 4 / columns
    hidden = _norm(
        rates.rows_order,
        _memory(w, rates, w.work().bytes * more),
        ctas * elements * 4 * more / rates.rows_gbs / 1e3,
        (loads + rates.rows_ends) * math.ceil(ctas / few_rows.at_once(w, t)) * rates.rows_latency_us,
        ctas * elements * t.ROWS / rates.products * rates.rows_products,
    )
    return rates.rows_us + hidden + (rates.rows_cluster_us if t.PARTS > 1 else 0.0)


def _columns(w: F32Product, t: Tile, rates: MicroRates) -> float:
    """Step 13."""
    access, warps = few_columns.access(w, t), t.THREADS // WARP
    deep = 4 if access == "VECTORS" else 1
    ctas = cdiv(few_columns.groups(w, t) * t.PARTS * cdiv(w.n, t.COLUMNS), w.device.sms)
    at_once = max(1, w.device.target.limits.registers // (few_columns.registers(w, t) * t.THREADS))
    depth = cdiv(w.k, t.PARTS)
    columns = min(w.n, t.COLUMNS)
    lines = {"VECTORS": deep * columns * columns, "B_VECTORS": columns, "ELEMENTS": columns * columns}[access]
    hidden = _norm(
        rates.order,
        _memory(w, rates, w.work().bytes),
        ctas * depth * t.ROWS * warps * 4 / rates.columns_gbs / 1e3,
        cdiv(depth, WARP * deep * t.BATCH) * cdiv(ctas, at_once) * rates.columns_latency_us,
        ctas * warps * cdiv(depth, WARP * deep) * (t.ROWS * deep + lines) * rates.columns_lines / 1e3,
    )
    beside = cdiv(ctas, at_once) * t.ROWS * t.COLUMNS * rates.columns_sums_us
    return float(rates.columns_us + hidden + beside) + (rates.rows_cluster_us if t.PARTS > 1 else 0.0)
