"""Lets these tests import programs from the tests of asynchronous copies."""

from __future__ import annotations

import sys
from pathlib import Path

for room in ("tma", "instructions"):
    sys.path.insert(0, str(Path(__file__).parents[1] / room))
