"""The emulator's settings in a part of a program: a ``with`` block changes them for the launches that its thread makes.

The changes are in a context variable, so that they nest, end with the block even when it raises, and do not reach other
threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NoReturn

from ptxkit.emulator.settings import NAMES, EmulatorSettings, check_name
from ptxkit.errors import UsageError

_changes: ContextVar[tuple[tuple[HasSettings, Mapping[str, Any]], ...]] = ContextVar("ptxkit_settings", default=())
"""The blocks that the executing code is in, outermost first: whose settings each changes, and to what."""


class HasSettings:
    """A device whose launches have settings.

    Args:
        settings: those outside every block. They stay as they are for as long as the device lives.
    """

    def __init__(self, settings: EmulatorSettings) -> None:
        self.__dict__["_settings"] = settings

    @property
    def current_settings(self) -> EmulatorSettings:
        """What a launch by this thread takes now, unless it has ``settings=`` of its own."""
        settings: EmulatorSettings = self.__dict__["_settings"]
        for device, changes in _changes.get():
            if device is self:
                settings = replace(settings, **changes)
        return settings

    def settings(self, **changes: Any) -> AbstractContextManager[EmulatorSettings]:
        """Change settings for the launches of a ``with`` block; the others keep what they are outside it.

        ``with device.settings(racecheck="warps"):`` gives the resulting settings. Blocks nest, and what they change is restored
        at their end. Launches by other threads are not affected. A prepared launch takes the settings in force when it is
        called.

        Args:
            **changes: fields of :class:`ptxkit.EmulatorSettings`.

        Raises:
            UsageError: no such setting, or not one of its values.
        """
        for name in changes:
            check_name(name)
        EmulatorSettings(**changes)
        return self._changed(changes)

    @contextmanager
    def _changed(self, changes: Mapping[str, Any]) -> Iterator[EmulatorSettings]:
        token = _changes.set((*_changes.get(), (self, changes)))
        try:
            yield self.current_settings
        finally:
            _changes.reset(token)

    def __setattr__(self, name: str, value: object) -> None:
        if name in NAMES:
            _refuse_assignment(name, value)
        super().__setattr__(name, value)


def _refuse_assignment(name: str, value: object) -> NoReturn:
    shown = repr(value) if isinstance(value, (str, bool, int, float)) else "..."
    raise UsageError(
        f"a device's {name} cannot be assigned, since every later launch would have it, too; write "
        f"`with device.settings({name}={shown}):` around the launches that are meant"
    )
