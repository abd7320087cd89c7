"""Executes PTX on numpy arrays: see ``docs/emulator.md`` for how it works and where its limits are."""

from ptxkit.emulator.counters.counters import Counters, LineCounters
from ptxkit.emulator.engine.machine import Machine
from ptxkit.emulator.settings import EmulatorSettings

__all__ = ["Counters", "EmulatorSettings", "LineCounters", "Machine"]
