"""The emulator's settings in a part of a program: a ``with`` block changes them for the launches that its thread makes.

The changes are in a context variable, so that they nest, end with the block even when it raises, and do not reach other
threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ContextDecorator
from contextvars import ContextVar, Token
from dataclasses import replace
from typing import Any, NoReturn

from ptxkit.emulator.settings import NAMES, EmulatorSettings, check_name
from ptxkit.errors import UsageError
from ptxkit.runtime.sealed import Sealed

_changes: ContextVar[tuple[tuple[HasSettings, Mapping[str, Any]], ...]] = ContextVar("ptxkit_settings", default=())
"""The ``with`` blocks around the executing code, outermost first: the device of each, and the settings that it
changes."""


class _Block(ContextDecorator):
    """A reusable context for a ``with`` block or as a decorator."""

    def __init__(self, device: HasSettings, changes: Mapping[str, Any]) -> None:
        self._device, self._changes = device, changes
        self._tokens: list[Token[Any]] = []

    def __enter__(self) -> EmulatorSettings:
        self._tokens.append(_changes.set((*_changes.get(), (self._device, self._changes))))
        return self._device.current_settings

    def __exit__(self, *_: object) -> None:
        _changes.reset(self._tokens.pop())

    def _recreate_cm(self) -> _Block:
        return _Block(self._device, self._changes)  # calls of a decorated function may come from several threads


class HasSettings(Sealed):
    """A device whose launches have settings.

    Args:
        settings: those outside every block. They stay as they are for as long as the device lives.
    """

    _settings_by = {name: f"`with device.settings({name}=...):` around the launches that are meant" for name in NAMES}

    def __init__(self, settings: EmulatorSettings) -> None:
        if not isinstance(settings, EmulatorSettings):
            raise UsageError(f"a device's settings are an EmulatorSettings, not {settings!r}")
        self.__dict__["_settings"] = settings

    @property
    def current_settings(self) -> EmulatorSettings:
        """The current settings for launches of this thread without their own ``settings=``."""
        settings: EmulatorSettings = self.__dict__["_settings"]
        for device, changes in _changes.get():
            if device is self:
                settings = replace(settings, **changes)
        return settings

    def settings(self, **changes: Any) -> _Block:
        """Change settings for the launches of a ``with`` block; other settings keep their values.

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
        return _Block(self, changes)

    def __getattr__(self, name: str) -> NoReturn:
        where = f"; read current_settings.{name}" if name in NAMES else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{where}", name=name, obj=self)

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
