"""Inspection of PTX and SASS: listings, instruction mix, loops, registers, scheduling fields, occupancy, differences.

Nothing here needs a GPU::

    image = compile_source("saxpy.cu", target="sm_90a")
    kernel = inspect.sass(image)[image.entry("saxpy")]
    inspect.mix(kernel).count("LDG.128")
    inspect.occupancy(kernel, block=256).ctas_per_sm
    inspect.diff(kernel, other).resources["registers"]

The package shares its name with a module of the standard library: import it as ``from ptxkit import inspect``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptxkit.inspect.advice import Finding as Finding
    from ptxkit.inspect.advice import findings as findings
    from ptxkit.inspect.banks import BankConflicts as BankConflicts
    from ptxkit.inspect.banks import register_banks as register_banks
    from ptxkit.inspect.classes import Mix as Mix
    from ptxkit.inspect.classes import mix as mix
    from ptxkit.inspect.classes import ptx_mix as ptx_mix
    from ptxkit.inspect.compare import Difference as Difference
    from ptxkit.inspect.compare import diff as diff
    from ptxkit.inspect.control import Control as Control
    from ptxkit.inspect.control import decode as decode
    from ptxkit.inspect.disassembly import sass as sass
    from ptxkit.inspect.model import Block as Block
    from ptxkit.inspect.model import SassFunction as SassFunction
    from ptxkit.inspect.model import SassInstruction as SassInstruction
    from ptxkit.inspect.natural_loops import Loop as Loop
    from ptxkit.inspect.natural_loops import loops as loops
    from ptxkit.inspect.residency import Occupancy as Occupancy
    from ptxkit.inspect.residency import occupancy as occupancy

# Functions and modules share one namespace, so no module of this package has the name of a function here.
_HOMES = {
    "BankConflicts": "banks",
    "Block": "model",
    "Control": "control",
    "Difference": "compare",
    "Finding": "advice",
    "Loop": "natural_loops",
    "Mix": "classes",
    "Occupancy": "residency",
    "SassFunction": "model",
    "SassInstruction": "model",
    "decode": "control",
    "diff": "compare",
    "findings": "advice",
    "loops": "natural_loops",
    "mix": "classes",
    "occupancy": "residency",
    "ptx_mix": "classes",
    "register_banks": "banks",
    "sass": "disassembly",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ptxkit.inspect' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"ptxkit.inspect.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
