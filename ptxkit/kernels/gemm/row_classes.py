"""Tiles of matmul_row_classes.cu: products with few rows of a or of b, and rows of the other operand of any length.

TMA reads these without a copy. Every eighth of them, or every second or fourth if the pitch allows it, has a tensor map of
its own: a class. The tiles are those of :mod:`ptxkit.kernels.gemm.multicast`, with the classes as the products of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ptxkit import Launch, TensorMap, Tile, Work, cdiv
from ptxkit.kernels.gemm import direct, multicast, stream_model, unaligned
from ptxkit.kernels.gemm.stream_model import StreamWork
from ptxkit.kernels.measured import measured
from ptxkit.targets.gpus import DeviceFacts

if TYPE_CHECKING:
    from ptxkit.kernels.gemm.matmul import Matmul

SOURCE = "matmul_row_classes.cu"
MAPS = unaligned.ALIGNMENT // unaligned.SIZE  # of a launch, and the most classes
SPACE = multicast.SPACE
MOST_ROWS = 256  # of the smaller operand, which are copied once for each class
SHIFTED = "shifted_rows"
"""The temporary with these copies."""


def transposed(w: Matmul) -> bool:
    """Whether b has fewer rows than a, so that the operands are exchanged."""
    return w.n < w.m


def roles(w: Matmul) -> tuple[str, str]:
    """The operand with few rows, and the other one."""
    return ("b", "a") if transposed(w) else ("a", "b")


def period(w: Matmul) -> int:
    """Classes of rows of the larger operand."""
    return direct.period(unaligned.pitches(w)[roles(w)[1]], unaligned.ALIGNMENT)


@dataclass(frozen=True)
class OfClass:
    """The product of a with the rows of one class, as a :class:`~ptxkit.kernels.gemm.wgmma_tiles.Product`."""

    m: int
    n: int
    k: int
    kind: str
    device: DeviceFacts
    all_work: Work
    a_layout: Literal["row", "column"] = "row"
    b_layout: Literal["row", "column"] = "column"

    @classmethod
    def of(cls, w: Matmul) -> OfClass:
        """That of the class with the most elements before a row."""
        few, many = sorted((w.m, w.n))
        return cls(few, cdiv(many, period(w)), w.k + MAPS - MAPS // period(w), w.kind, w.device, w.work())

    @property
    def output_kind(self) -> str:
        """The type of the results."""
        return self.kind

    def work(self) -> Work:
        """Its flops and bytes, together with those of the other classes."""
        return self.all_work


def considered(w: Matmul) -> bool:
    """Whether the variant may be the fastest: where the larger operand has to be copied otherwise."""
    return direct.along_k(w) and min(w.m, w.n) <= MOST_ROWS and roles(w)[1] in unaligned.copies(w)


def was_timed(w: Matmul) -> bool:
    """Whether there are times of such products."""
    return considered(w) and measured(w.device).row_classes is not None


def usable(w: Matmul, t: Mapping[str, int]) -> bool | str:
    """The constraint of step 18."""
    if not direct.along_k(w):
        return "reads rows of a and of b along k: layout tn"
    few, many = roles(w)
    if many not in unaligned.copies(w):
        return f"TMA reads the rows of {many} by one tensor map"
    if (rows := min(w.m, w.n)) > MOST_ROWS:
        return f"{rows} rows of {few} are more than the {MOST_ROWS} that are copied for each class of rows of {many}"
    return multicast.usable(OfClass.of(w), t)


def copies(w: Matmul) -> tuple[int, int]:
    """The shape of the copies of the operand with few rows."""
    return period(w) * min(w.m, w.n), cdiv(OfClass.of(w).k, unaligned.LINE) * unaligned.LINE


def copy_us(w: Matmul) -> float:
    """The predicted time of the copies, in microseconds."""
    rows, columns = copies(w)
    return unaligned.COPY_US + unaligned.SIZE * rows * columns / (unaligned.COPY_GBS * 1e3)


def maps(w: Matmul, rows: int) -> Iterator[TensorMap]:
    """The tensor maps of the classes, for boxes of ``rows`` rows; those of classes that do not exist are not used."""
    name = roles(w)[1]
    pitch, every, count = unaligned.pitches(w)[name], period(w), max(w.m, w.n)
    for i in range(MAPS):
        first = i if i < min(every, count) else 0
        before = first * pitch % MAPS
        yield TensorMap(
            name,
            box=(rows, unaligned.BK),
            swizzle="128B",
            shape=(cdiv(count - first, every), w.k + before),
            strides=(every * pitch * unaligned.SIZE, unaligned.SIZE),
            offset=(first * pitch - before) * unaligned.SIZE,
        )


def launches(w: Matmul, t: Tile) -> list[Launch]:
    """Launches of ``shift_rows`` and ``matmul_row_classes``."""
    pitch, of_class, every = unaligned.pitches(w), OfClass.of(w), period(w)
    (few, many), rows = roles(w), sorted((w.m, w.n))
    loaded_few, loaded_many = multicast.loaded_rows(t)
    c, bias, _, _, _, *others = w.scalars
    lines, columns = copies(w)
    vectors = columns * unaligned.SIZE // unaligned.ALIGNMENT
    shift = Launch(
        "shift_rows",
        cdiv(lines * vectors, unaligned.COPY_THREADS),
        unaligned.COPY_THREADS,
        (few, SHIFTED, rows[0], w.k, pitch[few], vectors, every, pitch[many] % MAPS),
        template=(f"ptxkit::{w.kind}",),
        source=unaligned.COPY_SOURCE,
    )
    cluster = multicast.cluster(t)
    multiply = Launch(
        "matmul_row_classes",
        multicast.clusters(of_class, t) * every * cluster,
        multicast.threads(t),
        (
            TensorMap(SHIFTED, box=(loaded_few, unaligned.BK), swizzle="128B"),
            *maps(w, loaded_many),
            *(c, bias, *rows, *others, pitch[many], every),
            *multicast.arguments(of_class, t),
        ),
        shared=multicast.shared_bytes(of_class, t),
        cluster=cluster if cluster > 1 else None,
        template=(multicast.MulticastTile.of(t), f"ptxkit::{w.kind}", w.epilogue_bits, int(transposed(w))),
    )
    return [shift, multiply]


def candidates(w: Matmul) -> Iterator[dict[str, int]]:
    """The tiles to consider."""
    yield from multicast.candidates(OfClass.of(w), batch=period(w))


def stream_work(w: Matmul, t: Mapping[str, int]) -> StreamWork:
    """What the launch does."""
    return multicast.stream_work(OfClass.of(w), t, batch=period(w))


def predicted_us(w: Matmul, t: Mapping[str, int]) -> float:
    """The time by the model, without that of the copies; before there were times of it, by that of step 15."""
    entry = measured(w.device)
    rates = entry.row_classes or entry.multicast or entry.swapped
    return stream_model.predicted_us(rates, stream_work(w, t), w.device.sms / entry.sms)


def preferred(w: Matmul) -> Iterator[Mapping[str, Any]]:
    """The candidates, the one with the shortest predicted time first."""
    yield from sorted(candidates(w), key=lambda t: predicted_us(w, t))
