"""Whether the GPUs of a cluster agree on the winner of a sweep, and what the common winner costs where they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GpuTimes:
    """The leaders of a sweep, measured against each other on one GPU.

    Attributes:
        measured_on: see :class:`ptxkit.sweep.journal.Entry`.
        times_us: medians in the order of :attr:`Agreement.tiles`; None for one that was not right there.
    """

    measured_on: Mapping[str, Any]
    times_us: tuple[float | None, ...]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> GpuTimes:
        """From the rows of :meth:`ptxkit.sweep.executor.Executor.leaders`."""
        about: Mapping[str, Any] = next((row["measured_on"] for row in rows if row.get("measured_on")), {})
        return cls(about, tuple(None if is_wrong(row) else float(row["cold"]["median_us"]) for row in rows))


@dataclass(frozen=True)
class Agreement:
    """The leaders on each GPU, of which the first has decided the winner.

    Attributes:
        tiles: the leaders. gpus: at least one.
    """

    tiles: tuple[Mapping[str, Any], ...]
    gpus: tuple[GpuTimes, ...]

    @property
    def winner(self) -> int | None:
        """The place of the winner in ``tiles``; None if none is right on the GPU that decides."""
        return _fastest(self.gpus[0].times_us)

    @property
    def agreeing(self) -> int:
        """On how many GPUs the winner is the fastest."""
        return sum(_fastest(gpu.times_us) == self.winner is not None for gpu in self.gpus)

    def regret(self, gpu: GpuTimes) -> float | None:
        """The time of the winner over that of the fastest leader on a GPU, less 1; None where the winner is not right there."""
        fastest = _fastest(gpu.times_us)
        mine = None if self.winner is None else gpu.times_us[self.winner]
        return None if mine is None or fastest is None else mine / float(gpu.times_us[fastest] or mine) - 1

    @property
    def text(self) -> str:
        """A sentence about the share of GPUs that agree, and the largest regret."""
        count = len(self.gpus)
        if self.winner is None:
            return f"No leader is right on the GPU that decides, of {count} GPUs."
        said = f"The winner is the fastest on {self.agreeing} of {count} GPUs"
        regrets = [self.regret(gpu) for gpu in self.gpus]
        wrong = sum(regret is None for regret in regrets)
        worst = max((regret for regret in regrets if regret is not None), default=0.0)
        if worst > 0:
            said += f"; where another is, it takes at most {worst:.2%} longer"
        if wrong:
            said += f"; its result is not right on {wrong} of them"
        times = [float(t) for gpu in self.gpus if (t := gpu.times_us[self.winner]) is not None]
        if len(times) > 1:
            said += f". Its time differs by {max(times) / min(times) - 1:.1%} between GPUs"
        return said + "."

    def to_json(self) -> dict[str, Any]:
        """As JSON values, the key ``agreement`` of ``ptxkit.sweep/1``."""
        return {
            "tiles": [dict(tile) for tile in self.tiles],
            "winner": self.winner,
            "gpus": len(self.gpus),
            "agreeing": self.agreeing,
            "each": [
                {
                    "measured_on": dict(gpu.measured_on),
                    "times_us": list(gpu.times_us),
                    "fastest": _fastest(gpu.times_us),
                    "regret": self.regret(gpu),
                }
                for gpu in self.gpus
            ],
        }


def is_wrong(row: Mapping[str, Any]) -> bool:
    """Whether a leader has no time that counts."""
    return row["cold"] is None or row["verified"] is False


def _fastest(times: Sequence[float | None]) -> int | None:
    known = [(time, place) for place, time in enumerate(times) if time is not None]
    return min(known)[1] if known else None
