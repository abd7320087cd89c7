"""The recorder of timelines, a setting of launches."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from ptxkit.emulator.simt.hooks import RaceHooks
from ptxkit.emulator.timeline.record import DEFAULT_LATENCY, LaunchRecord
from ptxkit.emulator.timeline.steps import WaveSteps


class Timeline:
    """Records launches; the setting ``timeline`` of a launch.

    Args:
        ctas: linear indices of the CTAs to record, with the other CTAs of their clusters; None is the first cluster.
        latency: steps for which each asynchronous operation is in flight at least.

    Attributes:
        launches: what was recorded, in the order of the launches. Complete after :meth:`finish`.
    """

    def __init__(self, ctas: Iterable[int] | None = None, latency: int = DEFAULT_LATENCY) -> None:
        self.ctas = None if ctas is None else frozenset(ctas)
        self.latency = latency
        self.launches: list[LaunchRecord] = []
        self._serials: dict[int, LaunchRecord] = {}
        self._waves: list[WaveSteps] = []
        self._lock = threading.Lock()

    def follow(self, wave: Any) -> WaveSteps | None:
        """Called when ``wave`` is made; None where none of its CTAs is recorded."""
        launch = wave.launch
        with self._lock:
            record = self._serials.get(launch.serial)
            if record is None:
                record = LaunchRecord(
                    launch.name, launch.grid, launch.block, launch.cluster, launch.cluster_size, launch.ctas
                )
                self._serials[launch.serial] = record
                self.launches.append(record)
            first = {int(launch.order(0, 1)[0])} if self.ctas is None else self.ctas
            chosen = [k for k, cta in enumerate(wave.ctas.tolist()) if cta in first]
            if not chosen:
                return None
            size = launch.cluster_size
            members = sorted({k // size * size + rank for k in chosen for rank in range(size)})
            for k in members:
                cta = int(wave.ctas[k])
                record.recorded[cta] = launch.cta_coordinates(cta)
                record.clusters[cta] = int(wave.ctas[k // size * size])
            steps = WaveSteps(wave, record, members, self.latency)
            hooks: RaceHooks = steps  # for mypy, which checks here that WaveSteps has all methods of RaceHooks
            assert not hooks.compares
            self._waves.append(steps)
            return steps

    def finish(self) -> None:
        """All launches are over, or one has failed: complete the records."""
        for steps in self._waves:
            steps.close()
        self._waves.clear()
        for record in self.launches:
            record.sort()
