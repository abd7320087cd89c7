"""Peers: other implementations of the same computation, such as libraries, as plugins.

There is no list of peers: each module ``*_peer.py`` of this directory that defines a :class:`~ptxkit.bench.peers.base.Peer`
is one, and so is each class, or module with such classes, of the entry point group ``ptxkit.peers``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from ptxkit.bench.peers.base import Peer, PeerCall
from ptxkit.errors import DescriptionError, UsageError
from ptxkit.workload.workload import suggestion

__all__ = ["Peer", "PeerCall", "every", "names", "peers"]

ENTRY_POINT_GROUP = "ptxkit.peers"


def names() -> tuple[str, ...]:
    """The names of all peers, sorted, including those whose package is not installed."""
    return tuple(sorted(_classes()))


def every() -> list[Peer]:
    """All peers by name, including those whose package is not installed, to query what they offer."""
    classes = _classes()
    return [classes[name]() for name in sorted(classes)]


def peers(wanted: Sequence[str] | None = None) -> tuple[list[Peer], list[tuple[str, str]]]:
    """The peers that can be used on this machine, and the others with the reason.

    Args:
        wanted: their names, in the order of the result; None means all.

    Raises:
        UsageError: no peer of that name; the message names similar ones.
        DescriptionError: a plugin cannot be loaded, or two have one name.
    """
    classes = _classes()
    for name in wanted or ():
        if name not in classes:
            raise UsageError(f"there is no peer {name!r}; {suggestion(name, sorted(classes))}")
    found: list[Peer] = []
    absent: list[tuple[str, str]] = []
    for name in sorted(classes) if wanted is None else dict.fromkeys(wanted):
        peer = classes[name]()
        reason = peer.absent()
        if reason is None:
            found.append(peer)
        else:
            absent.append((name, reason))
    return found, absent


@functools.cache
def _classes() -> dict[str, type[Peer]]:
    """Peer name -> class."""
    modules = [f"{__name__}.{file.stem}" for file in sorted(Path(__file__).parent.glob("*_peer.py"))]
    found: dict[str, type[Peer]] = {}
    for module in modules:
        for peer in _defined(importlib.import_module(module)):
            _add(found, peer, module)
    for origin, peer in _offered():
        _add(found, peer, origin)
    return found


def _add(found: dict[str, type[Peer]], peer: type[Peer], origin: str) -> None:
    if peer.name in found:
        raise DescriptionError(f"two peers are called {peer.name}; {origin} defines the second")
    found[peer.name] = peer


def _offered() -> list[tuple[str, type[Peer]]]:
    """The peers of other packages, as (entry point, class)."""
    from importlib.metadata import entry_points

    found: list[tuple[str, type[Peer]]] = []
    for point in entry_points(group=ENTRY_POINT_GROUP):
        origin = f"entry point {point.name} = {point.value}"
        try:
            value = point.load()
        except Exception as error:
            raise DescriptionError(f"{origin} cannot be loaded: {error}") from error
        for peer in _defined(value) if isinstance(value, ModuleType) else [value]:
            if not (isinstance(peer, type) and issubclass(peer, Peer)):
                raise DescriptionError(f"{origin} is neither a Peer nor a module that defines one")
            found.append((origin, peer))
    return found


def _defined(module: ModuleType) -> list[type[Peer]]:
    """The concrete peers that ``module`` itself defines; abstract ones are base classes."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Peer)
        and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    ]
