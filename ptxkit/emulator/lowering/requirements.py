"""What ptxas requires of the head of a module: the version of the language for newer instructions, and 64-bit addresses; and
what the head of an old module changes.

The versions are those of the manual ("PTX ISA Notes" of each instruction); ``tests/emulator/lowering/test_requirements.py``
compares them with the messages of ptxas. Single modifiers that came later than their instruction are not listed.
"""

from __future__ import annotations

import re

from ptxkit.emulator.simt.orders import name_of
from ptxkit.emulator.simt.table import lookup
from ptxkit.emulator.simt.where import Where
from ptxkit.errors import UnsupportedError
from ptxkit.isa.model import Module

VERSIONS: dict[str, tuple[int, int]] = {
    "clusterlaunchcontrol": (8, 6),
    "cp.async.bulk": (8, 0),
    "cp.reduce.async.bulk": (8, 0),
    "elect": (8, 0),
    "mbarrier.complete_tx": (8, 0),
    "mbarrier.expect_tx": (8, 0),
    "red.async": (8, 1),
    "setmaxnreg": (8, 0),
    "st.async": (8, 1),
    "st.bulk": (8, 6),
    "tcgen05": (8, 6),
    "tensormap": (8, 3),
    "wgmma": (8, 0),
}
"""The first ``.version`` with an instruction, by its name or the beginning of its name."""

_WITHOUT_SYNC = ("shfl", "vote")
_ONLY_WITH_SYNC = (6, 4)


def check_module(module: Module) -> None:
    """Refuse 32-bit addresses.

    Raises:
        UnsupportedError: the module has them.
    """
    if module.address_size != 64:
        raise UnsupportedError(
            f"{module.path}: .address_size {module.address_size} is not supported: ptxas has no 32-bit addresses for sm_90 and "
            "newer; compile for 64-bit addresses"
        )


def check_version(where: Where, module: Module) -> None:
    """Compare an instruction with the module's ``.version`` and ``.target``.

    Raises:
        UnsupportedError: the version is too old for it, or the target is too new for it.
    """
    i = where.instruction
    without = i.name in _WITHOUT_SYNC and "sync" not in i.modifiers
    if without and _number(module.target) >= 70 and module.version >= _ONLY_WITH_SYNC:
        raise UnsupportedError(
            f"{where}: only with .sync (ptxas refuses it without, for .target sm_70 and newer from .version 6.4 on)"
        )
    if module.version >= _NEWEST:
        return
    name = name_of(i.opcode)
    while name:
        needed = VERSIONS.get(name)
        if needed is not None and module.version < needed:
            written, first = (".".join(map(str, v)) for v in (module.version, needed))
            raise UnsupportedError(f"{where}: needs .version {first} or newer; the module has .version {written}")
        name = name.rpartition(".")[0]


def opcode_for(opcode: str, target: str) -> str:
    """What an opcode means in a module for a target.

    Before sm_20, f32 has no subnormal numbers, so that each instruction of f32 has .ftz, except conversions from and to f64;
    and ``mad.f32``, which has no rounding mode there, is a fused multiplication and addition for later targets. PTX ISA,
    "mad", "cvt"; ptxas generates FADD.FTZ and FFMA.FTZ for them.
    """
    parts = opcode.split(".")
    if _number(target) >= 20 or "f32" not in parts or "f64" in parts or "ftz" in parts:
        return opcode
    name = name_of(opcode)
    rounding = ".rn" if name == "mad" and not {"rn", "rz", "rm", "rp"} & set(parts) else ""
    found = lookup(f"{name}{rounding}.ftz{opcode[len(name):]}")
    return opcode if found is None else found[1].opcode


def _number(target: str) -> int:
    """90 of ``sm_90a``."""
    digits = re.search(r"\d+", target)
    return int(digits[0]) if digits else 0


_NEWEST = max(VERSIONS.values())
